//! Faults that tests plant, to see that a simulation catches them.

/// Declares the faults that tests of a crate, and of others with its feature `faults`, can plant: an
/// enum `Fault`, and `Faults`, the value that carries a planted one to where it shows. A build without
/// them has no `Fault`; `Faults` is empty there, and each of its questions is answered with `false`
/// when it is compiled.
#[macro_export]
macro_rules! declare_faults {
    ($($(#[$meaning:meta])* $fault:ident $(: $question:ident)?),* $(,)?) => {
        /// A fault that tests plant.
        #[cfg(any(test, feature = "faults"))]
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Fault {
            $($(#[$meaning])* $fault,)*
        }

        /// The fault that is planted, if any.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Faults {
            #[cfg(any(test, feature = "faults"))]
            planted: Option<Fault>,
        }

        impl Faults {
            $($(
                /// True if this one is planted.
                #[inline(always)]
                pub const fn $question(self) -> bool {
                    #[cfg(any(test, feature = "faults"))]
                    return matches!(self.planted, Some(Fault::$fault));
                    #[cfg(not(any(test, feature = "faults")))]
                    false
                }
            )?)*
        }

        #[cfg(any(test, feature = "faults"))]
        impl Faults {
            /// True if this one is planted.
            pub fn is(self, fault: Fault) -> bool {
                self.planted == Some(fault)
            }

            /// Plants one.
            #[must_use]
            pub const fn planted(fault: Fault) -> Self {
                Self { planted: Some(fault) }
            }
        }
    };
}
