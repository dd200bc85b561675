//! The side of the engine that no packet passes: the gateway as the rest of the program sees it,
//! and the coordinator, which gives buckets and queues to workers.

pub mod balance;
pub mod blueprint;
pub mod config;
pub mod coordinator;
pub mod execution;
pub mod gateway;
pub mod hand_over;
pub mod host_answers;
pub mod host_bridges;
pub mod host_chains;
pub mod host_guard;
pub mod offers;
pub mod peer;
pub mod pfsync;
pub mod policies;
pub mod port_book;
pub mod ports;
pub mod realms;
pub mod record;
pub mod records;
pub mod replication;
mod resteering;
pub mod route_keeper;
pub mod routing_source;
pub mod rule_elements;
pub mod rule_loading;
pub mod selection;
pub mod setting_changes;
pub mod shared_copies;
pub mod state_sync;
pub mod stepped;
pub mod translation_addresses;
pub mod views;
mod ways;
pub mod worker_handle;
pub mod zone_changes;
