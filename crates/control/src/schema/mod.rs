//! The JSON of the API. The command line prints the same objects with `--json`.
//!
//! Within one schema version keys are only added, never renamed or removed.

mod connection;
mod datagram;
mod dropped;
mod expectation;
mod hand_over;
mod names;
mod policies;
mod rules;
mod settings;
mod status;
mod sync;
mod zones;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

pub use connection::{Connection, Counts, Event, Tuple};
pub use datagram::{Datagram, DatagramMemory, Datagrams};
pub use dropped::{Dropped, RecentDrops};
pub use expectation::{Expectation, ExpectationEvent};
pub use hand_over::{HandedOver, Upgrade};
pub use names::Names;
pub use policies::{
    AskPolicy, DevicePolicy, ExplainedPolicy, ExplainedSelector, Policies, PollingWorker,
};
pub use rules::{
    ActiveRules, AskRules, ChangeElements, ExplainedStage, ExplainedStep, Explanation,
    KeptElements, LoadedRules, NotKept, RuleObject, RuleProblem, RulesReport, RulesSummary,
};
pub use settings::{ChangedSetting, ChangedSettings};
pub use status::{
    Bucket, Buckets, Counters, HostPolicy, Lane, Lanes, Port, RulesStatus, Status, Waiting, Worker,
    ZoneStatus,
};
pub use sync::{Difference, Flow, SetRole, Sync};
pub(crate) use zones::ZoneFault;
pub use zones::{NamedTimeouts, SetZones, Zone, Zones};

/// An answer other than 200.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Refusal {
    /// Schema version.
    pub schema: u32,
    /// The reason.
    pub error: RefusalBody,
}

/// The reason of a refusal. Nothing was changed.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RefusalBody {
    /// The problem.
    pub what: String,
    /// The part of the request or of the gateway that has the problem.
    #[serde(rename = "where")]
    pub place: String,
    /// Advice.
    #[serde(rename = "do")]
    pub todo: String,
}

/// The number of connections.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Count {
    /// Schema version.
    pub schema: u32,
    /// Connections.
    pub connections: u64,
}

/// A request was carried out.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Done {
    /// Schema version.
    pub schema: u32,
    /// The number of objects that changed.
    pub affected: u64,
}

/// The results of an import of records.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImportedRecords {
    /// Schema version.
    pub schema: u32,
    /// The number of records that are connections now.
    pub imported: u64,
    /// The number of records of what connections have announced that were taken over.
    #[serde(default)]
    pub announced: u64,
    /// The number of records that are elements of sets now.
    #[serde(default)]
    pub elements: u64,
    /// The number of records that were not taken over, by the name of the reason
    /// ([`engine::RecordRefusal::name`]).
    pub refused: BTreeMap<String, u64>,
    /// The number of records that this gateway can not read, by reason.
    pub unreadable: BTreeMap<String, u64>,
}

/// All tunables.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Tunables {
    /// Schema version.
    pub schema: u32,
    /// In the order of the documentation.
    pub tunables: Vec<Tunable>,
}

/// One tunable.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Tunable {
    /// The kernel's name without `net.` and its subsystem.
    pub name: String,
    /// Value in force.
    pub value: u64,
    /// Value at the start when nothing is configured.
    pub default: u64,
    /// The smallest value allowed.
    pub min: u64,
    /// The largest value allowed.
    pub max: u64,
    /// Unit; empty for switches and plain numbers.
    pub unit: String,
    /// A sentence for people.
    pub meaning: String,
}

impl Tunable {
    /// A tunable with its value.
    pub fn new(tunable: &flow::Tunable, value: u64) -> Self {
        Self {
            name: tunable.name.to_owned(),
            value,
            default: tunable.default,
            min: tunable.min,
            max: tunable.max,
            unit: tunable.unit.symbol().to_owned(),
            meaning: tunable.meaning.to_owned(),
        }
    }
}

/// Changes to the connections that a filter chooses.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UpdateConnections {
    /// New mark.
    #[serde(default)]
    pub mark: Option<u32>,
    /// Bits of the old mark to clear before it is combined with `mark` by exclusive or. Absent:
    /// all bits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mark_mask: Option<u32>,
    /// New timeout from now on, in seconds.
    #[serde(default)]
    pub timeout_s: Option<u32>,
    /// Labels to remove first: names or numbers.
    #[serde(default)]
    pub drop_labels: Vec<String>,
    /// True to remove all labels first.
    #[serde(default)]
    pub drop_all_labels: bool,
    /// Labels to add: names or numbers.
    #[serde(default)]
    pub add_labels: Vec<String>,
}

/// A request to set a tunable.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SetTunable {
    /// The value.
    pub value: u64,
}

/// A request for a number of workers.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SetWorkers {
    /// The number of workers.
    pub workers: usize,
}

/// A request to balance once.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Balance {
    /// True to plan the moves without making them.
    #[serde(default)]
    pub dry_run: bool,
}

/// A request to balance from time to time.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SetBalancer {
    /// Time between two rounds, in milliseconds; `null` switches the balancer off.
    pub interval_ms: Option<u64>,
}

/// Bucket moves, done or planned.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Moves {
    /// Schema version.
    pub schema: u32,
    /// True if the moves are only planned.
    pub dry_run: bool,
    /// The moves with their reasons, as a text for people.
    pub report: String,
    /// The moves.
    pub moves: Vec<Move>,
}

/// One bucket move.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Move {
    /// The bucket.
    pub bucket: u16,
    /// Its owner before.
    pub from: u16,
    /// Its owner after.
    pub to: u16,
    /// Measured load of the bucket as a fraction of one worker's time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub load: Option<f64>,
    /// The reason, if the load decided.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

impl Moves {
    /// The moves of the balancer.
    pub fn planned(plan: &steer::Plan, dry_run: bool) -> Self {
        let moves = plan.moves.iter().map(|step| Move {
            load: Some(step.load),
            reason: Some(step.reason.to_string()),
            ..Move::from(&step.change)
        });
        Self { schema: crate::SCHEMA, dry_run, report: plan.to_string(), moves: moves.collect() }
    }

    /// Moves that follow from a new number of workers.
    pub fn done(moves: &[steer::BucketMove]) -> Self {
        let report = format!("{} buckets have changed their worker", moves.len());
        let moves = moves.iter().map(Move::from).collect();
        Self { schema: crate::SCHEMA, dry_run: false, report, moves }
    }
}

impl From<&steer::BucketMove> for Move {
    fn from(change: &steer::BucketMove) -> Self {
        let (bucket, from, to) = (change.bucket.0, change.from.0, change.to.0);
        Self { bucket, from, to, load: None, reason: None }
    }
}
