//! The writes that bring a device to a policy, or back to what was there.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use crate::journal::{Journal, Owner};
use crate::policy::Request;
use crate::profile::{Target, Targets};
use crate::setting::{Coalescing, NapiSetting, Risk, Setting, Value};
use crate::snapshot::{LeftAlone, Snapshot};

/// Why a write does not change a value.
const KEPT: &str = "it stays, but the device's value overwrites it for a moment";

/// A write.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Action {
    /// The setting.
    #[serde(rename = "id")]
    pub setting: Setting,
    /// The place in the kernel.
    pub interface: String,
    /// The value now; `None` if the setting comes to be by a write before this one.
    pub old: Option<Value>,
    /// The value to write.
    pub new: Value,
    /// The reason.
    pub reason: String,
    /// The worst that it does to traffic.
    pub risk: Risk,
    /// True if another program has set the old value, which is therefore the one to keep.
    #[serde(skip)]
    pub(crate) is_anothers: bool,
}

/// The writes in their order, and the settings that are left alone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Plan {
    /// The writes.
    pub actions: Vec<Action>,
    /// The rest, with reasons.
    pub left: Vec<LeftAlone>,
    /// Settings that Stateway had set and another program has set since. They are left alone.
    pub by_others: BTreeSet<Setting>,
    /// The values that writes of the device's values overwrite.
    #[serde(skip)]
    pub(crate) overwritten: BTreeMap<Setting, Value>,
    /// The settings that the request asks for, and that have the value already.
    #[serde(skip)]
    pub(crate) fulfilled: BTreeMap<Setting, Value>,
}

/// A request that can not be met.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum PlanError {
    /// A CPU that is not there.
    #[error("CPU {cpu} is not online; the CPUs that are: {online}")]
    NoSuchCpu {
        /// Its number.
        cpu: usize,
        /// The CPUs that are online, as a list.
        online: String,
    },
    /// A request without a CPU.
    #[error("the request names no CPU; name some of {online}")]
    NoCpu {
        /// The CPUs that are online, as a list.
        online: String,
    },
    /// A mix on one queue.
    #[error(
        "mix needs two receive queues, and {device} has one; possible here are bulk, cpu and \
         latency"
    )]
    MixNeedsQueues {
        /// The device.
        device: String,
    },
}

impl Plan {
    /// Plans the way from a snapshot to a request. The journal says which values are Stateway's.
    /// Those that the request does not need any more return to what was there first. Under
    /// [`Policy::None`](crate::Policy::None), these are all.
    ///
    /// # Errors
    /// [`PlanError`], if the request can not be met on this device.
    pub fn new(
        snapshot: &Snapshot,
        request: &Request,
        journal: &Journal,
    ) -> Result<Self, PlanError> {
        let Targets { mut wanted, mut left } = Targets::new(snapshot, request)?;
        for setting in &request.without {
            if wanted.remove(setting).is_some() {
                left.push(LeftAlone::new(setting, "the request leaves it out"));
            }
        }
        let (online, mut by_others) = (snapshot.online(), BTreeSet::new());
        let settings: BTreeSet<Setting> =
            journal.settings().chain(snapshot.values.keys().copied()).collect();
        for setting in settings {
            let now = snapshot.values.get(&setting);
            let owner = match journal.owner(setting, now) {
                Owner::Another if journal.is_displaced(setting, &online) => Owner::Stateway,
                owner => owner,
            };
            match (owner, now) {
                (Owner::Another, Some(now)) => {
                    wanted.remove(&setting);
                    by_others.insert(setting);
                    left.push(LeftAlone::new(setting, journal.story(setting, now)));
                }
                (Owner::Stateway, Some(now)) => {
                    let target = wanted.get(&setting).map(|target| target.value);
                    if target.is_some_and(|target| journal.is_rounded(setting, &target, now)) {
                        wanted.remove(&setting);
                    } else if target.is_none()
                        && let Some(value) = journal.original(setting, Some(now))
                    {
                        wanted.insert(setting, Target::restored(value));
                    }
                }
                (Owner::Gone, _) => {
                    let reason = match snapshot.hides(setting) {
                        true => "it can not be read now",
                        false => "the device does not have it any more",
                    };
                    left.push(LeftAlone::new(setting, reason));
                }
                _ => {}
            }
        }
        Ok(Self::write(snapshot, wanted, left, by_others))
    }

    /// Orders the writes. Those of the device's values come first, because they overwrite those of
    /// the NAPIs. A driver begins to adapt coalescing after the last.
    fn write(
        snapshot: &Snapshot,
        mut wanted: BTreeMap<Setting, Target>,
        left: Vec<LeftAlone>,
        by_others: BTreeSet<Setting>,
    ) -> Self {
        let (mut overwritten, mut fulfilled) = (BTreeMap::new(), BTreeMap::new());
        let mut actions = Vec::new();
        // The values as they are after each write.
        let mut values = snapshot.values.clone();
        while let Some((setting, target)) = wanted.pop_first() {
            let old = snapshot.values.get(&setting).copied();
            if old == Some(target.value) && values.get(&setting) == old.as_ref() {
                fulfilled.insert(setting, target.value);
                continue;
            }
            values.insert(setting, target.value);
            if let Setting::Napi { place, kind: NapiSetting::Threaded } = setting
                && target.value == Value::Number(0)
            {
                // The thread ends, and its setting with it.
                wanted.remove(&Setting::Napi { place, kind: NapiSetting::ThreadCpus });
            }
            for (&napi, &before) in &snapshot.values {
                if napi.overwritten_by() == Some(setting) {
                    overwritten.insert(napi, before);
                    values.insert(napi, target.value);
                    wanted.entry(napi).or_insert_with(|| Target::kept(before));
                }
            }
            let is_same = old == Some(target.value);
            actions.push(Action {
                setting,
                interface: setting.interface(&snapshot.device, &snapshot.napis),
                old,
                new: target.value,
                reason: if is_same { KEPT.to_owned() } else { target.reason },
                risk: setting.risk(),
                is_anothers: by_others.contains(&setting),
            });
        }
        // Drivers refuse other values of coalescing while they adapt them.
        actions.sort_by_key(Action::turns_adaptation_on);
        Self { actions, left, by_others, overwritten, fulfilled }
    }

    /// True if nothing is to be written, and no other program has changed a setting.
    pub fn is_in_force(&self) -> bool {
        self.actions.is_empty() && self.by_others.is_empty()
    }
}

impl Action {
    fn turns_adaptation_on(&self) -> bool {
        let is_adaptation = matches!(
            self.setting,
            Setting::Coalescing(Coalescing::AdaptiveRx | Coalescing::AdaptiveTx)
        );
        is_adaptation && self.new != Value::Number(0)
    }
}

impl Target {
    fn restored(value: Value) -> Self {
        Self { value, reason: "the value that was there first".to_owned() }
    }

    fn kept(value: Value) -> Self {
        Self { value, reason: KEPT.to_owned() }
    }
}
