//! Settings under the kernel's names.

/// The unit of a tunable's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// 0 or 1.
    Switch,
    /// Seconds.
    Seconds,
    /// Microseconds.
    Microseconds,
    /// Bytes.
    Bytes,
    /// Packets.
    Packets,
    /// Entries of a table.
    Entries,
    /// Percent.
    Percent,
    /// A plain number; the description says what it counts.
    Count,
}

impl Unit {
    /// The unit as it is printed, empty where there is none.
    pub const fn symbol(self) -> &'static str {
        match self {
            Self::Switch | Self::Count => "",
            Self::Seconds => "s",
            Self::Microseconds => "us",
            Self::Bytes => "bytes",
            Self::Packets => "packets",
            Self::Entries => "entries",
            Self::Percent => "%",
        }
    }
}

/// One setting that can be changed while the gateway runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tunable {
    /// The kernel's name without its `net.` prefix, for example
    /// `nf_conntrack_tcp_timeout_established`.
    pub name: &'static str,
    /// Unit of the value.
    pub unit: Unit,
    /// Value before anybody sets it.
    pub default: u64,
    /// Smallest value allowed.
    pub min: u64,
    /// Largest value allowed.
    pub max: u64,
    /// One sentence for people.
    pub meaning: &'static str,
}

impl Tunable {
    /// Checks a value against the range.
    ///
    /// # Errors
    /// [`SetTunableError::OutOfRange`] with the range.
    pub fn check(&self, value: u64) -> Result<u64, SetTunableError> {
        if (self.min..=self.max).contains(&value) {
            Ok(value)
        } else {
            Err(SetTunableError::OutOfRange {
                name: self.name,
                value,
                min: self.min,
                max: self.max,
                unit: self.unit.symbol(),
            })
        }
    }
}

/// Why a setting was refused. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SetTunableError {
    /// There is no such setting.
    #[error("no tunable is named {name:?}; `stateway tunable list` shows all")]
    Unknown {
        /// The name as given.
        name: String,
    },
    /// The value is outside the range.
    #[error("{}", out_of_range(name, value, (*min, *max), unit))]
    OutOfRange {
        /// The setting.
        name: &'static str,
        /// The value as given.
        value: u64,
        /// Smallest value allowed.
        min: u64,
        /// Largest value allowed.
        max: u64,
        /// Symbol of the unit.
        unit: &'static str,
    },
}

/// The message for a value outside of the two limits, both of which are allowed. `unit` is
/// empty for a plain number.
pub fn out_of_range(
    name: &str,
    value: impl std::fmt::Display,
    (min, max): (u64, u64),
    unit: &str,
) -> String {
    let range = format!("{min} to {max} {unit}");
    format!("{name} = {value} is out of range: {}", range.trim_end())
}
