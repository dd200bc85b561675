//! The engine: workers, the pipeline, the rings between workers, and bucket moves.
//!
//! [`Gateway`] runs each worker on a thread of its own, and the rest of the program talks to
//! workers through it. A `Worker` itself has no thread: each of its turns is a function of its
//! input and the time. The replay and the tests call it directly.

mod control;
mod egress;
mod path;
mod replay;
mod rings;
#[cfg(any(test, feature = "testing"))]
mod testing;
mod worker;

pub use control::config::{Config, StartError, SteerError, WorkerCount};
pub use control::execution::Stepper;
pub use control::gateway::{CpuSource, Gateway, system_cpus};
pub use control::hand_over::{
    FreezeError, HandedInterface, HandedQueue, Intake, IntakeError, IntakeReport, Outflow,
    OutflowError, Standing,
};
pub use control::host_bridges::filtered_bridges;
pub use control::host_chains::{KernelChains, kernel_chains};
pub use control::host_guard::{FromHost, HostGuard};
pub use control::peer::{
    Connections, CopyCounters, Peer, Role, SharedCounters, SupplyCounters, rules_likeness,
};
pub use control::pfsync::{Carried, Pfsync, PfsyncCounters, Unmapped};
pub use control::policies::{DeviceService, SetPolicyError};
pub use control::port_book::{place, taken_over};
pub use control::ports::{
    AfPacket, OpenPort, OpenSelectors, PortLink, PortLook, PortOpener, PortSetup,
};
pub use control::record::{Record, RecordRefusal, SharedRecord};
pub use control::records::ImportReport;
pub use control::route_keeper::host_addresses;
pub use control::rule_elements::ChangeElementsError;
pub use control::rule_loading::{LoadRulesError, RulesView, wall_clock};
pub use control::setting_changes::ChangeTunableError;
pub use control::settings_in_force::SettingsInForce;
pub use control::shared_copies::{
    SharedChange, SharedCursor, SharedOutcome, SharedPiece, SharedThings,
};
pub use control::state_sync::StateSync;
pub use control::stepped::Unthreaded;
pub use control::views::{
    DroppedPacket, PortStatus, RulesStatus, Status, WorkerStatus, ZoneStatus,
};
pub use control::worker_handle::Unresponsive;
pub use control::zone_changes::{ChangeZonesError, ZoneBook};
pub use egress::Mode;
pub use egress::outputs::Sent;
pub use egress::port_set::MAX_PORTS;
pub use egress::reverse_path::ReversePath;
pub use egress::stations::StationLimits;
pub use fib::LinkId;
pub use netpolicy::{Policy, WaitCounts};
pub use path::announcement_copies::Outcome;
pub use path::bucket::Bucket;
pub use path::change_ring::{ChangeSender, ChangeStream, ChangeTap, Lot};
pub use path::drop_cause::DropCause;
pub use path::events::{EventStream, NumberedEvent, Reported};
pub use path::host_questions::{HostPart, ToHost};
pub use path::inner_packets::flow_inside;
pub use path::pass_list::{PassList, PassListError};
pub use path::prefetch::Hardware;
pub use path::reassembly::{DatagramMemory, DatagramStatus};
pub use path::recent_drops::{DROPS_KEPT, RecentDrop};
pub use path::replication::{CopyChange, CopyReport, Passed, ReplicationPiece};
pub use path::rules::ruleset::{PrepareRulesError, check_rules};
pub use path::rules::worker_rules::RuleCounts;
pub use path::settings::Settings;
pub use path::zone_config::{
    LAST_VLAN, MOST_CONNECTIONS, MOST_TIMEOUT_POLICIES, ZoneConfig, ZoneError, ZoneTimeouts,
};
pub use path::zones::{MOST_ZONES, Zones, ZonesError};
pub use replay::fates::Fate;
pub use replay::{REPLAY_SECRET, ReplayOptions, ReplayReport, Seen, replay};
pub use rings::link::Wakeup;
#[cfg(any(test, feature = "testing"))]
pub use testing::{cable::Cable, line::Line};
pub use worker::queue::Received;
pub use worker::report::BucketStatus;

/// Most packets that a worker tracks in one go.
pub const BATCH: usize = 64;
