//! The engine: workers, the pipeline, the rings between workers, and bucket moves.
//!
//! [`Gateway`] runs each worker on a thread of its own, and the rest of the program talks to
//! workers through it. A `Worker` itself has no thread: each of its turns is a function of its
//! input and the time. The replay and the tests call it directly.

mod aliases;
mod aliasing;
mod allowance;
mod arrival;
mod balancing;
mod bridge;
mod bucket;
mod calls;
mod capture_clock;
mod carrying_out;
mod command;
mod config;
mod coordinator;
mod crew;
#[cfg(test)]
mod crew_rig;
mod doorbell;
mod events;
mod eviction;
mod fast_path;
mod following;
mod gateway;
mod host_chains;
mod host_flows;
mod host_guard;
mod icmp_answers;
mod identifications;
mod inside;
mod ip_options;
mod journey;
mod judging;
mod martian;
mod orders;
mod output;
mod ownership;
mod packet;
mod pass_list;
mod path_mtu;
mod peers;
mod pipeline;
mod port_book;
mod port_set;
mod ports;
mod prefetch;
mod reassembly;
mod recent_drops;
mod refragment;
mod replay;
mod reverse_path;
#[cfg(test)]
mod rig;
mod route_keeper;
mod router;
mod routing;
mod rule_loading;
mod rules;
mod runtime;
mod seeking;
mod selection;
mod setting_changes;
mod settings;
mod stations;
mod syn_proxy;
mod tracking;
mod translating;
mod translation_addresses;
mod unthreaded;
mod views;
mod why;
mod worker;
mod zone_changes;
mod zone_config;
mod zones;

pub use bucket::Bucket;
pub use config::{Config, Mode, StartError, SteerError, WorkerCount};
pub use crew::Unresponsive;
pub use events::{EventStream, NumberedEvent, Reported};
pub use fib::LinkId;
pub use gateway::{CpuSource, Gateway, system_cpus};
pub use host_chains::host_chains;
pub use host_guard::{FromHost, HostGuard};
pub use inside::flow_inside;
pub use output::Sent;
pub use pass_list::{PassList, PassListError};
pub use port_book::{place, taken_over};
pub use port_set::MAX_PORTS;
pub use ports::{AfPacket, OpenPort, PortLink, PortLook, PortOpener, PortSetup};
pub use prefetch::Hardware;
pub use recent_drops::{DROPS_KEPT, RecentDrop};
pub use replay::{REPLAY_SECRET, ReplayOptions, ReplayReport, Seen, replay};
pub use reverse_path::ReversePath;
pub use route_keeper::host_addresses;
pub use rule_loading::RulesView;
pub use rules::{LoadRulesError, RuleCounts, check_rules};
pub use setting_changes::ChangeTunableError;
pub use settings::Settings;
pub use stations::StationLimits;
pub use unthreaded::Unthreaded;
pub use views::{
    BucketStatus, DatagramMemory, DatagramStatus, DroppedPacket, PortStatus, Received, RulesStatus,
    Status, WorkerStatus, ZoneStatus,
};
pub use why::Why;
pub use zone_changes::{ChangeZonesError, ZoneBook};
pub use zone_config::{
    LAST_VLAN, MOST_CONNECTIONS, MOST_TIMEOUT_POLICIES, TimeoutPolicy, ZoneConfig, ZoneError,
};
pub use zones::{MOST_ZONES, Zones, ZonesError};

/// Most packets that a worker takes from a queue and tracks in one go.
pub const BATCH: usize = 64;
