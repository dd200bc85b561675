//! How long acknowledgments take (RFC 6298).

use std::time::Duration;

/// Shortest and longest time after which a frame counts as lost.
const TIMEOUT_SHORTEST: Duration = Duration::from_millis(10);
const TIMEOUT_LONGEST: Duration = Duration::from_secs(1);
/// Before the first measurement.
const TIMEOUT_FIRST: Duration = Duration::from_millis(50);

/// A smoothed round trip time.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RoundTrip {
    measured: Option<(Duration, Duration)>,
}

impl RoundTrip {
    /// Takes in a round trip of a frame that was sent once.
    pub fn measure(&mut self, sample: Duration) {
        self.measured = Some(match self.measured {
            None => (sample, sample / 2),
            Some((smoothed, variance)) => {
                ((smoothed * 7 + sample) / 8, (variance * 3 + smoothed.abs_diff(sample)) / 4)
            }
        });
    }

    /// The smoothed time.
    pub fn smoothed(&self) -> Duration {
        self.measured.map_or(TIMEOUT_FIRST, |(smoothed, _)| smoothed)
    }

    /// Time after which frames count as lost if none was acknowledged. It doubles with each
    /// time-out that came before, up to a second.
    pub fn timeout(&self, before: u32) -> Duration {
        let once = self.measured.map_or(TIMEOUT_FIRST, |(smoothed, variance)| {
            (smoothed + variance * 4).max(TIMEOUT_SHORTEST)
        });
        once.saturating_mul(2u32.saturating_pow(before)).min(TIMEOUT_LONGEST)
    }
}
