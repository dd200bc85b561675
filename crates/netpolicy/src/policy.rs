//! The words of NET policy, and a request for one.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use steer::CpuSet;

use crate::setting::{Setting, cpu_list};

/// The policy of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Policy {
    /// No policy: every setting is as it was found.
    #[default]
    None,
    /// Most bytes a second.
    Bulk,
    /// Least CPU time for each packet.
    Cpu,
    /// Shortest delay.
    Latency,
    /// A third of the queues for short delay, the others for throughput.
    Mix,
}

impl Policy {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::None, Self::Bulk, Self::Cpu, Self::Latency, Self::Mix];

    /// Its word.
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Bulk => "bulk",
            Self::Cpu => "cpu",
            Self::Latency => "latency",
            Self::Mix => "mix",
        }
    }

    /// The policy by which a worker waits that serves devices with these policies: the one that
    /// delays packets least. That is the first of latency, mix, none, bulk and cpu that is among
    /// them, and none if there are no devices.
    pub fn strictest(policies: impl IntoIterator<Item = Self>) -> Self {
        const ORDER: [Policy; 5] =
            [Policy::Latency, Policy::Mix, Policy::None, Policy::Bulk, Policy::Cpu];
        let place = |policy: &Self| ORDER.iter().position(|it| it == policy);
        policies.into_iter().min_by_key(place).unwrap_or(Self::None)
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// There is no policy of this name.
#[derive(Debug, thiserror::Error)]
#[error("{0:?} is no policy; the policies are none, bulk, cpu, latency and mix")]
pub struct UnknownPolicy(String);

impl FromStr for Policy {
    type Err = UnknownPolicy;

    /// Reads the word in capital or small letters.
    fn from_str(text: &str) -> Result<Self, UnknownPolicy> {
        let policy = Self::ALL.into_iter().find(|it| it.name().eq_ignore_ascii_case(text));
        policy.ok_or_else(|| UnknownPolicy(text.to_owned()))
    }
}

/// A request of the user for a device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Request {
    /// The policy.
    pub policy: Policy,
    /// The CPUs that are to serve the device; `None` for all that are online.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "optional_list")]
    pub cpus: Option<CpuSet>,
    /// Settings that are to stay as they were found.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub without: BTreeSet<Setting>,
}

impl Request {
    /// A request for this policy with all CPUs and settings.
    pub const fn new(policy: Policy) -> Self {
        Self { policy, cpus: None, without: BTreeSet::new() }
    }
}

mod optional_list {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};
    use steer::CpuSet;

    use super::cpu_list;

    #[derive(Serialize, Deserialize)]
    struct List(#[serde(with = "cpu_list")] CpuSet);

    pub fn serialize<S: Serializer>(cpus: &Option<CpuSet>, to: S) -> Result<S::Ok, S::Error> {
        cpus.map(List).serialize(to)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<CpuSet>, D::Error> {
        Ok(Option::<List>::deserialize(from)?.map(|list| list.0))
    }
}
