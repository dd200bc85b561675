//! Settings that are declared once: name, range, meaning, and the field behind them.

use flow::{SetTunableError, Tunable};

/// Longest timeout, seconds: what the kernel takes with a clock of 1000 ticks.
pub(crate) const LONGEST: u64 = 2_147_483;

/// The tunables of the settings `S` and how to reach their fields.
pub(crate) struct Declared<S: 'static> {
    pub tunables: &'static [Tunable],
    /// In the order of `tunables`.
    pub access: &'static [Access<S>],
}

/// How a field is read and written.
pub(crate) struct Access<S> {
    pub get: fn(&S) -> u64,
    pub set: fn(&mut S, u64),
}

impl<S> Declared<S> {
    /// The value of a tunable, `None` if there is none of that name.
    pub fn get(&self, settings: &S, name: &str) -> Option<u64> {
        self.position(name).map(|at| (self.access[at].get)(settings))
    }

    /// Changes a tunable.
    ///
    /// # Errors
    /// An unknown name or a value out of range; nothing is changed then.
    pub fn set(&self, settings: &mut S, name: &str, value: u64) -> Result<(), SetTunableError> {
        let at = self
            .position(name)
            .ok_or_else(|| SetTunableError::Unknown { name: name.to_owned() })?;
        (self.access[at].set)(settings, self.tunables[at].check(value)?);
        Ok(())
    }

    /// Gives every tunable its default.
    pub fn apply_defaults(&self, settings: &mut S) {
        for (access, tunable) in self.access.iter().zip(self.tunables) {
            (access.set)(settings, tunable.default);
        }
    }

    fn position(&self, name: &str) -> Option<usize> {
        self.tunables.iter().position(|tunable| tunable.name == name)
    }
}

/// How a field is seen from outside. `restore` gets a value in the tunable's range.
pub(crate) trait Field: Copy {
    fn show(self) -> u64;
    fn restore(value: u64) -> Self;
}

impl Field for bool {
    fn show(self) -> u64 {
        self.into()
    }
    fn restore(value: u64) -> Self {
        value != 0
    }
}

/// Unsigned integers: the range of the tunable fits the field.
macro_rules! integer_fields {
    ($($integer:ty)*) => {$(
        impl Field for $integer {
            fn show(self) -> u64 {
                self.into()
            }
            fn restore(value: u64) -> Self {
                value as Self
            }
        }
    )*};
}

integer_fields! { u8 u32 u64 }

/// Declares the tunables of a settings type and how to reach their fields, in one list.
macro_rules! declare_tunables {
    ($settings:ty; $($name:literal, $unit:ident, $default:literal, $min:literal..=$max:expr,
       $meaning:literal, [$($place:tt)+];)*) => {
        const DECLARED: $crate::declared::Declared<$settings> = $crate::declared::Declared {
            tunables: &[$(flow::Tunable {
                name: $name,
                unit: flow::Unit::$unit,
                default: $default,
                min: $min,
                max: $max,
                meaning: $meaning,
            },)*],
            access: &[$($crate::declared::Access {
                get: |settings| $crate::declared::Field::show(settings.$($place)+),
                set: |settings, value| {
                    settings.$($place)+ = $crate::declared::Field::restore(value);
                },
            },)*],
        };
    };
}

pub(crate) use declare_tunables;
