//! The settings of a device that a policy may change, each with a stable name.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use steer::CpuSet;

use crate::snapshot::Napi;

/// A setting of a device. The order is that in which a plan writes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum Setting {
    /// The value that new NAPIs get. A write overwrites that of every NAPI of the device.
    Device(Deferral),
    /// A setting of one NAPI.
    Napi {
        /// Its place among those of the device, lowest id first. Ids change when the link goes down
        /// and up, places do not.
        place: u16,
        /// The setting.
        kind: NapiSetting,
    },
    /// A setting of the device's interrupt coalescing.
    Coalescing(Coalescing),
    /// The CPUs that may serve an interrupt.
    Interrupt(u32),
    /// The CPUs to which the kernel spreads packets of a receive queue.
    Rps(u16),
    /// The number of flows of a receive queue that the kernel steers to the CPUs of their sockets.
    Rfs(u16),
    /// The CPUs that send by a transmit queue.
    Xps(u16),
}

/// How long the kernel polls on before it lets the device interrupt again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Deferral {
    /// Empty polls for which interrupts stay off.
    DeferHardIrqs,
    /// Time until the next poll while they are off, ns.
    GroFlushTimeout,
}

/// A setting of one NAPI.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum NapiSetting {
    /// As the device's value of this name, which it inherits.
    Deferral(Deferral),
    /// 1 if a thread of its own polls it, else 0.
    Threaded,
    /// The CPUs on which that thread may run. There is no such setting without a thread.
    ThreadCpus,
}

/// A setting of interrupt coalescing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Coalescing {
    /// 1 if the driver itself adapts the values for received packets. These may not be set then.
    AdaptiveRx,
    /// As before, for sent packets.
    AdaptiveTx,
    /// Longest delay of an interrupt after a packet was received, us.
    RxUsecs,
    /// Received packets that cause an interrupt sooner.
    RxFrames,
    /// Longest delay of an interrupt after a packet was sent, us.
    TxUsecs,
}

impl Deferral {
    /// Both.
    pub const ALL: [Self; 2] = [Self::DeferHardIrqs, Self::GroFlushTimeout];

    /// The device's file in sysfs.
    pub const fn file(self) -> &'static str {
        match self {
            Self::DeferHardIrqs => "napi_defer_hard_irqs",
            Self::GroFlushTimeout => "gro_flush_timeout",
        }
    }
}

impl NapiSetting {
    /// All of them, in the order in which they are written.
    pub const ALL: [Self; 4] = [
        Self::Deferral(Deferral::DeferHardIrqs),
        Self::Deferral(Deferral::GroFlushTimeout),
        Self::Threaded,
        Self::ThreadCpus,
    ];

    /// Its name in the netdev family of netlink, except for the last.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Deferral(Deferral::DeferHardIrqs) => "defer-hard-irqs",
            Self::Deferral(Deferral::GroFlushTimeout) => "gro-flush-timeout",
            Self::Threaded => "threaded",
            Self::ThreadCpus => "thread-cpus",
        }
    }
}

impl Coalescing {
    /// All of them, in the order in which they are written.
    pub const ALL: [Self; 5] =
        [Self::AdaptiveRx, Self::AdaptiveTx, Self::RxUsecs, Self::RxFrames, Self::TxUsecs];

    /// Its name in ethtool(8).
    pub const fn name(self) -> &'static str {
        match self {
            Self::AdaptiveRx => "adaptive-rx",
            Self::AdaptiveTx => "adaptive-tx",
            Self::RxUsecs => "rx-usecs",
            Self::RxFrames => "rx-frames",
            Self::TxUsecs => "tx-usecs",
        }
    }
}

impl Setting {
    /// True if drivers may set a value near the one that they were asked for.
    pub const fn may_round(self) -> bool {
        matches!(self, Self::Coalescing(_) | Self::Rfs(_))
    }

    /// The worst that a write of it does to traffic.
    pub const fn risk(self) -> Risk {
        match self {
            Self::Rps(_)
            | Self::Rfs(_)
            | Self::Xps(_)
            | Self::Napi { kind: NapiSetting::Threaded, .. } => Risk::FlowAffecting,
            _ => Risk::Live,
        }
    }

    /// The setting of the device whose writes overwrite this one.
    pub const fn overwritten_by(self) -> Option<Self> {
        match self {
            Self::Napi { kind: NapiSetting::Deferral(deferral), .. } => {
                Some(Self::Device(deferral))
            }
            _ => None,
        }
    }

    /// True if its values are of this type.
    pub const fn takes(self, value: &Value) -> bool {
        let takes_cpus = matches!(
            self,
            Self::Interrupt(_)
                | Self::Rps(_)
                | Self::Xps(_)
                | Self::Napi { kind: NapiSetting::ThreadCpus, .. }
        );
        takes_cpus == matches!(value, Value::Cpus(_))
    }

    /// The place in the kernel where it is read and written, for people.
    pub fn interface(self, device: &str, napis: &[Napi]) -> String {
        let netlink = "netlink";
        match self {
            Self::Device(deferral) => format!("/sys/class/net/{device}/{}", deferral.file()),
            Self::Napi { place, kind } => {
                let id = napis.get(usize::from(place)).map_or(0, |napi| napi.id);
                match kind {
                    NapiSetting::ThreadCpus => format!("sched_setaffinity, thread of NAPI {id}"),
                    kind => format!("{netlink} netdev, napi-set {id} {}", kind.name()),
                }
            }
            Self::Coalescing(kind) => format!("{netlink} ethtool, coalesce-set {}", kind.name()),
            Self::Interrupt(number) => format!("/proc/irq/{number}/smp_affinity_list"),
            Self::Rps(_) | Self::Rfs(_) | Self::Xps(_) => {
                format!("/sys/class/net/{device}/queues/{self}")
            }
        }
    }
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Device(deferral) => f.write_str(deferral.file()),
            Self::Napi { place, kind } => write!(f, "napi-{place}/{}", kind.name()),
            Self::Coalescing(kind) => write!(f, "coalesce/{}", kind.name()),
            Self::Interrupt(number) => write!(f, "irq-{number}/smp_affinity_list"),
            Self::Rps(queue) => write!(f, "rx-{queue}/rps_cpus"),
            Self::Rfs(queue) => write!(f, "rx-{queue}/rps_flow_cnt"),
            Self::Xps(queue) => write!(f, "tx-{queue}/xps_cpus"),
        }
    }
}

/// There is no setting of this name.
#[derive(Debug, thiserror::Error)]
#[error(
    "{0:?} is no setting; `stateway policy plan` prints their names, such as coalesce/rx-usecs or \
     rx-0/rps_cpus"
)]
pub struct UnknownSetting(String);

impl FromStr for Setting {
    type Err = UnknownSetting;

    fn from_str(text: &str) -> Result<Self, UnknownSetting> {
        let unknown = || UnknownSetting(text.to_owned());
        let setting = match text.split_once('/') {
            None => {
                let deferral = Deferral::ALL.into_iter().find(|it| it.file() == text);
                Self::Device(deferral.ok_or_else(unknown)?)
            }
            Some(("coalesce", name)) => {
                let kind = Coalescing::ALL.into_iter().find(|it| it.name() == name);
                Self::Coalescing(kind.ok_or_else(unknown)?)
            }
            Some((part, name)) => {
                let (part, number) = part.split_once('-').ok_or_else(unknown)?;
                let number: u32 = number.parse().map_err(|_| unknown())?;
                let place = || u16::try_from(number).map_err(|_| unknown());
                match (part, name) {
                    ("irq", "smp_affinity_list") => Self::Interrupt(number),
                    ("rx", "rps_cpus") => Self::Rps(place()?),
                    ("rx", "rps_flow_cnt") => Self::Rfs(place()?),
                    ("tx", "xps_cpus") => Self::Xps(place()?),
                    ("napi", name) => {
                        let kind = NapiSetting::ALL.into_iter().find(|it| it.name() == name);
                        Self::Napi { place: place()?, kind: kind.ok_or_else(unknown)? }
                    }
                    _ => return Err(unknown()),
                }
            }
        };
        // A number in another form, such as `rx-01`, would be a second name.
        if setting.to_string() == text { Ok(setting) } else { Err(unknown()) }
    }
}

impl From<Setting> for String {
    fn from(setting: Setting) -> Self {
        setting.to_string()
    }
}

impl TryFrom<String> for Setting {
    type Error = UnknownSetting;

    fn try_from(text: String) -> Result<Self, UnknownSetting> {
        text.parse()
    }
}

/// The worst that a write does to traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Risk {
    /// No packet is lost or overtaken.
    Live,
    /// Flows move to other CPUs or queues. Packets under way may be overtaken once.
    FlowAffecting,
}

impl Risk {
    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Live => "live",
            Self::FlowAffecting => "flow-affecting",
        }
    }
}

/// The value of a setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Value {
    /// A number; the setting has its unit.
    Number(u64),
    /// A set of CPUs, written as a list.
    Cpus(#[serde(with = "cpu_list")] CpuSet),
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => write!(f, "{number}"),
            Self::Cpus(cpus) if cpus.is_empty() => f.write_str("none"),
            Self::Cpus(cpus) => write!(f, "CPUs {}", cpus.list()),
        }
    }
}

/// A set of CPUs as a list in a text, such as `0-3,8`.
pub(crate) mod cpu_list {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};
    use steer::CpuSet;

    pub fn serialize<S: Serializer>(cpus: &CpuSet, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(&cpus.list())
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<CpuSet, D::Error> {
        CpuSet::of_list(&String::deserialize(from)?).map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_setting_has_one_name() {
        for name in [
            "gro_flush_timeout",
            "napi_defer_hard_irqs",
            "napi-0/defer-hard-irqs",
            "napi-12/gro-flush-timeout",
            "napi-3/threaded",
            "napi-3/thread-cpus",
            "coalesce/adaptive-rx",
            "coalesce/rx-frames",
            "irq-4000000000/smp_affinity_list",
            "rx-0/rps_cpus",
            "rx-65535/rps_flow_cnt",
            "tx-1/xps_cpus",
        ] {
            assert_eq!(name.parse::<Setting>().unwrap().to_string(), name);
        }
        for bad in
            ["", "rx-0", "rx-01/rps_cpus", "rx-65536/rps_cpus", "tx-0/rps_cpus", "coalesce/x"]
        {
            assert!(bad.parse::<Setting>().is_err(), "{bad}");
        }
    }

    #[test]
    fn values_keep_their_type() {
        for value in
            [Value::Number(u64::MAX), Value::Cpus(CpuSet::EMPTY), Value::Cpus(CpuSet::first(3))]
        {
            let text = serde_json::to_string(&value).unwrap();
            assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), value);
        }
    }
}
