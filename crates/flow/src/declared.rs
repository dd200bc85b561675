//! Settings that are declared once: name, range, meaning, and the field behind them.
//!
//! [`declare_tunables!`](crate::declare_tunables) makes the constant `DECLARED` of a
//! settings type, by which it implements `get`, `set` and its defaults.

use crate::{SetTunableError, Tunable};

/// Longest timeout, seconds: what the kernel takes with a clock of 1000 ticks.
pub const LONGEST_TIMEOUT: u64 = 2_147_483;

/// The tunables of the settings `S` and how to reach their fields.
pub struct Declared<S: 'static> {
    /// Name, range and meaning.
    pub tunables: &'static [Tunable],
    /// In the order of `tunables`.
    pub access: &'static [Access<S>],
}

/// How a field is read and written.
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

/// How a field is seen from outside.
pub trait Field: Copy {
    /// The field as a number.
    fn show(self) -> u64;
    /// The field of a number in the tunable's range.
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

integer_fields! { u8 u16 u32 u64 }

/// Declares the tunables of a settings type and how to reach their fields, in one list.
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
