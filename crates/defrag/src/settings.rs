//! Tunables under the kernel's names.

use std::time::Duration;

use flow::declared::LONGEST_TIMEOUT;
use flow::{SetTunableError, Timestamp, Tunable, declare_tunables};
use wire::Family;

/// Everything that can be tuned about reassembly.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// IPv4.
    pub v4: FamilySettings,
    /// IPv6.
    pub v6: FamilySettings,
    /// Fragments that a source may send between two fragments of one of its IPv4 datagrams
    /// before its identifications count as used again; 0 switches this off.
    pub max_dist: u32,
    /// Fragments of a datagram that may begin in an aligned block of 4096 bytes; 512 is no
    /// bound.
    pub pieces_per_4k: u16,
}

/// The limits of a family.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FamilySettings {
    /// Most bytes that the fragments held by the gateway may occupy.
    pub high_thresh: u64,
    /// Bytes of these that datagrams in several fragments may hold while others wait for their
    /// second fragment. A value above `high_thresh` counts as `high_thresh`.
    pub low_thresh: u64,
    /// Longest time from the first fragment of a datagram to its completion, seconds.
    pub time: u32,
}

impl FamilySettings {
    pub(crate) const fn timeout(&self) -> Duration {
        Duration::from_secs(self.time as u64)
    }

    /// True if the timeout of a datagram has passed. It calculates in plain numbers, because it
    /// runs for each fragment.
    #[inline]
    pub(crate) const fn is_due(&self, created: Timestamp, now: Timestamp) -> bool {
        now.as_nanos().saturating_sub(created.as_nanos()) >= self.time as u64 * 1_000_000_000
    }
}

impl Settings {
    /// All tunables of reassembly.
    pub fn tunables() -> impl Iterator<Item = &'static Tunable> {
        DECLARED.tunables.iter()
    }

    /// The value of a tunable, `None` if there is none of that name.
    pub fn get(&self, name: &str) -> Option<u64> {
        DECLARED.get(self, name)
    }

    /// Changes a tunable.
    ///
    /// # Errors
    /// An unknown name or a value out of range; nothing is changed then.
    pub fn set(&mut self, name: &str, value: u64) -> Result<(), SetTunableError> {
        DECLARED.set(self, name, value)
    }

    /// The limits of a family.
    pub const fn family(&self, family: Family) -> &FamilySettings {
        match family {
            Family::V4 => &self.v4,
            Family::V6 => &self.v6,
        }
    }

    pub(crate) const fn families(&self) -> [&FamilySettings; 2] {
        [&self.v4, &self.v6]
    }
}

impl Default for Settings {
    fn default() -> Self {
        let family = FamilySettings::default();
        let mut settings = Self { v4: family, v6: family, max_dist: 0, pieces_per_4k: 0 };
        DECLARED.apply_defaults(&mut settings);
        settings
    }
}

/// Largest limit that can be set, bytes.
const MOST_BYTES: u64 = 1 << 40;

declare_tunables! {
    Settings;
    "ipfrag_high_thresh", Bytes, 4_194_304, 0..=MOST_BYTES,
        "Most bytes that incomplete IPv4 datagrams may hold.",
        [v4.high_thresh];
    "ipfrag_low_thresh", Bytes, 3_145_728, 0..=MOST_BYTES,
        "Bytes that IPv4 datagrams with several fragments may hold; the rest is kept for new ones. A value above ipfrag_high_thresh counts as that limit.",
        [v4.low_thresh];
    "ipfrag_time", Seconds, 30, 0..=LONGEST_TIMEOUT,
        "How long an IPv4 datagram may take from its first fragment to its last.",
        [v4.time];
    "ipfrag_max_dist", Packets, 64, 0..=2_147_483_647,
        "Fragments of the same source that may come between two fragments of an IPv4 datagram; 0 is no limit.",
        [max_dist];
    "ipfrag_pieces_per_4k", Count, 128, 1..=512,
        "Fragments of a datagram that may begin in 4096 bytes of it; 512 is no limit.",
        [pieces_per_4k];
    "ip6frag_high_thresh", Bytes, 4_194_304, 0..=MOST_BYTES,
        "Most bytes that incomplete IPv6 datagrams may hold.",
        [v6.high_thresh];
    "ip6frag_low_thresh", Bytes, 3_145_728, 0..=MOST_BYTES,
        "Bytes that IPv6 datagrams with several fragments may hold; the rest is kept for new ones. A value above ip6frag_high_thresh counts as that limit.",
        [v6.low_thresh];
    "ip6frag_time", Seconds, 60, 0..=LONGEST_TIMEOUT,
        "How long an IPv6 datagram may take from its first fragment to its last.",
        [v6.time];
    "nf_conntrack_frag6_high_thresh", Bytes, 4_194_304, 0..=MOST_BYTES,
        "Another name of ip6frag_high_thresh.",
        [v6.high_thresh];
    "nf_conntrack_frag6_low_thresh", Bytes, 3_145_728, 0..=MOST_BYTES,
        "Another name of ip6frag_low_thresh.",
        [v6.low_thresh];
    "nf_conntrack_frag6_timeout", Seconds, 60, 0..=LONGEST_TIMEOUT,
        "Another name of ip6frag_time.",
        [v6.time];
}
