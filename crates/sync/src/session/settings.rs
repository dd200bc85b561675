//! The numbers that an owner may tune.

use std::ops::RangeInclusive;

use super::AROUND_MESSAGE_BYTES;
use crate::epoch::KEY_FRAMES_MAX;
use crate::likeness::Proof;
use crate::record::RECORD_BYTES_MAX;

/// The numbers that an owner may tune. A session brings each within its bounds;
/// [`Settings::check`] tells of one that is not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Longest datagram, bytes: [`Settings::DATAGRAM_BYTES`]. A record that does not fit gets a
    /// datagram of its own, which is longer.
    pub datagram_bytes: usize,
    /// Most bytes of frames that wait for the peer's acknowledgment: [`Settings::QUEUE_BYTES`].
    pub queue_bytes: usize,
    /// Rate of a bulk transfer, records a second: [`Settings::BULK_RECORDS_PER_S`].
    pub bulk_records_per_s: u32,
    /// Frames after which new keys are agreed: [`Settings::REKEY_AFTER_FRAMES`].
    pub rekey_after_frames: u64,
}

/// A setting that no session takes as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name} is {given}: use {least} to {most}")]
pub struct SettingOutOfBounds {
    /// The field of [`Settings`].
    pub name: &'static str,
    /// Its value.
    pub given: u64,
    /// The least that it can be.
    pub least: u64,
    /// The most.
    pub most: u64,
}

impl Settings {
    /// The shortest datagrams in which each message fits that has no records.
    pub const DATAGRAM_BYTES_MIN: usize = AROUND_MESSAGE_BYTES + 1 + Proof::BYTES_MAX;
    /// Bounds of [`Settings::datagram_bytes`]: each message without records fits, and so does the
    /// datagram in UDP.
    pub const DATAGRAM_BYTES: RangeInclusive<usize> = Self::DATAGRAM_BYTES_MIN..=65_000;
    /// Bounds of [`Settings::queue_bytes`]: a record of a usual length fits beside a bulk transfer,
    /// and a peer that is away can not take much memory.
    pub const QUEUE_BYTES: RangeInclusive<usize> = 4 << 10..=1 << 30;
    /// Bounds of [`Settings::bulk_records_per_s`]: a transfer moves, and its pace is counted in
    /// whole nanoseconds without a great error.
    pub const BULK_RECORDS_PER_S: RangeInclusive<u32> = 1..=10_000_000;
    /// Bounds of [`Settings::rekey_after_frames`]: an exchange of greetings takes fewer frames, and
    /// one that fails for long leaves half of [`KEY_FRAMES_MAX`].
    pub const REKEY_AFTER_FRAMES: RangeInclusive<u64> = 16..=KEY_FRAMES_MAX / 2;

    /// Checks all bounds.
    ///
    /// # Errors
    /// [`SettingOutOfBounds`] names the first setting that is beyond them.
    pub fn check(&self) -> Result<(), SettingOutOfBounds> {
        let bounds = |range: RangeInclusive<usize>| *range.start() as u64..=*range.end() as u64;
        let rate = Self::BULK_RECORDS_PER_S;
        let all = [
            ("datagram_bytes", self.datagram_bytes as u64, bounds(Self::DATAGRAM_BYTES)),
            ("queue_bytes", self.queue_bytes as u64, bounds(Self::QUEUE_BYTES)),
            (
                "bulk_records_per_s",
                self.bulk_records_per_s.into(),
                u64::from(*rate.start())..=u64::from(*rate.end()),
            ),
            ("rekey_after_frames", self.rekey_after_frames, Self::REKEY_AFTER_FRAMES),
        ];
        match all.into_iter().find(|(_, given, range)| !range.contains(given)) {
            None => Ok(()),
            Some((name, given, range)) => {
                let (least, most) = range.into_inner();
                Err(SettingOutOfBounds { name, given, least, most })
            }
        }
    }

    /// The same, with the nearest value for each that is out of bounds.
    pub(super) fn bounded(self) -> Self {
        fn within<T: Ord>(value: T, range: RangeInclusive<T>) -> T {
            let (least, most) = range.into_inner();
            value.clamp(least, most)
        }
        Self {
            datagram_bytes: within(self.datagram_bytes, Self::DATAGRAM_BYTES),
            queue_bytes: within(self.queue_bytes, Self::QUEUE_BYTES),
            bulk_records_per_s: within(self.bulk_records_per_s, Self::BULK_RECORDS_PER_S),
            rekey_after_frames: within(self.rekey_after_frames, Self::REKEY_AFTER_FRAMES),
        }
    }

    /// The longest record: [`RECORD_BYTES_MAX`], but it fits beside a bulk transfer, which has half of
    /// the queue.
    pub(super) fn record_bytes(&self) -> usize {
        RECORD_BYTES_MAX.min(self.queue_bytes / 4)
    }

    /// The longest message, unless it has a record that is longer.
    pub(super) fn message_bytes(&self) -> usize {
        self.datagram_bytes - AROUND_MESSAGE_BYTES
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            datagram_bytes: 1400,
            queue_bytes: 8 << 20,
            bulk_records_per_s: 500_000,
            rekey_after_frames: 1 << 22,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_out_of_bounds_are_named_and_brought_back() {
        assert_eq!(Settings::default().check(), Ok(()));
        let least = Settings {
            datagram_bytes: 0,
            queue_bytes: 0,
            bulk_records_per_s: 0,
            rekey_after_frames: 0,
        };
        let most = Settings {
            datagram_bytes: usize::MAX,
            queue_bytes: usize::MAX,
            bulk_records_per_s: u32::MAX,
            rekey_after_frames: u64::MAX,
        };
        for settings in [least, most] {
            let fits = settings.bounded();
            assert_eq!(fits.check(), Ok(()));
            let each = [
                ("datagram_bytes", Settings { datagram_bytes: settings.datagram_bytes, ..fits }),
                ("queue_bytes", Settings { queue_bytes: settings.queue_bytes, ..fits }),
                (
                    "bulk_records_per_s",
                    Settings { bulk_records_per_s: settings.bulk_records_per_s, ..fits },
                ),
                (
                    "rekey_after_frames",
                    Settings { rekey_after_frames: settings.rekey_after_frames, ..fits },
                ),
            ];
            for (name, settings) in each {
                assert_eq!(settings.check().unwrap_err().name, name);
            }
        }
        let error = Settings { queue_bytes: 7, ..Settings::default() }.check().unwrap_err();
        assert_eq!(error.to_string(), "queue_bytes is 7: use 4096 to 1073741824");
    }
}
