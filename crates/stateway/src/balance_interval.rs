//! The interval of the balancer, as people write it.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// The allowed values, for messages.
pub const ALLOWED: &str = "a time from 10ms to 3600s, or off";

/// The interval of the balancer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BalanceInterval {
    /// Never.
    #[default]
    Off,
    /// Each time that this much time has passed.
    Interval(Duration),
}

impl BalanceInterval {
    /// From milliseconds; `None` when they are out of range.
    fn from_f64_millis(millis: f64) -> Option<Self> {
        let allowed = (10.0..=3_600_000.0).contains(&millis);
        allowed.then(|| Self::Interval(Duration::from_secs_f64(millis / 1000.0)))
    }

    /// From seconds; `None` when they are out of range.
    pub fn from_secs(seconds: f64) -> Option<Self> {
        Self::from_f64_millis(seconds * 1000.0)
    }

    /// From the milliseconds of the API, where `None` is off.
    pub fn from_millis(millis: Option<u64>) -> Self {
        millis.map_or(Self::Off, |millis| Self::Interval(Duration::from_millis(millis)))
    }

    /// The time between two rounds; `None` if there are none.
    pub fn interval(self) -> Option<Duration> {
        match self {
            Self::Off => None,
            Self::Interval(interval) => Some(interval),
        }
    }
}

impl FromStr for BalanceInterval {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, &'static str> {
        if text == "off" {
            return Ok(Self::Off);
        }
        let (number, unit_ms) = match (text.strip_suffix("ms"), text.strip_suffix('s')) {
            (Some(number), _) => (number, 1.0),
            (None, Some(number)) => (number, 1000.0),
            (None, None) => (text, 1000.0),
        };
        let number = number.parse::<f64>().map_err(|_| ALLOWED)?;
        Self::from_f64_millis(number * unit_ms).ok_or(ALLOWED)
    }
}

impl fmt::Display for BalanceInterval {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off => f.write_str("off"),
            Self::Interval(interval) => write!(f, "every {interval:?}"),
        }
    }
}
