//! Settings that are declared once: name, range, meaning, and the field behind them.
//!
//! [`declare_tunables!`](crate::declare_tunables) makes the constant `DECLARED` of a settings
//! type. The type uses it for `get`, `set` and its defaults.

use crate::{SetTunableError, Tunable};

/// Longest timeout, seconds: the limit of a kernel with 1000 clock ticks a second.
pub const LONGEST_TIMEOUT: u64 = 2_147_483;

/// The tunables of the settings `S`, with access to their fields.
pub struct Declared<S: 'static> {
    /// Name, range and meaning.
    pub tunables: &'static [Tunable],
    /// The access to each field, in the order of `tunables`.
    pub access: &'static [Access<S>],
}

/// Functions that read and write a field.
pub struct Access<S> {
    /// Reads the field.
    pub get: fn(&S) -> u64,
    /// Writes a value that is in the tunable's range.
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

/// Converts a field from and to the number that operators see.
pub trait Field: Copy {
    /// Returns the field as a number.
    fn show(self) -> u64;
    /// Makes the field from a number in the tunable's range.
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

/// Unsigned integers. Each tunable's range fits its field.
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

integer_fields! { u8 u16 u32 u64 }

/// Declares the tunables of a settings type and the fields behind them, in one list.
#[macro_export]
macro_rules! declare_tunables {
    ($settings:ty; $($name:literal, $unit:ident, $default:literal, $min:literal..=$max:expr,
       $meaning:literal, [$($place:tt)+];)*) => {
        const DECLARED: $crate::declared::Declared<$settings> = $crate::declared::Declared {
            tunables: &[$($crate::Tunable {
                name: $name,
                unit: $crate::Unit::$unit,
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
