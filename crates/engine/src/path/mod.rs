//! The way of a packet through a worker, one file for each stage.

pub mod alias_messages;
pub mod alias_table;
pub mod arrival;
pub mod bucket;
pub mod events;
pub mod eviction;
pub mod fast_path;
pub mod host_flows;
pub mod inner_packets;
pub mod nat;
pub mod packet;
pub mod pass_list;
pub mod pipeline;
pub mod prefetch;
pub mod reassembly;
pub mod recent_drops;
pub mod refragment;
pub mod rules;
pub mod settings;
pub mod syn_proxy;
pub mod tracking;
pub mod why;
pub mod zone_config;
pub mod zones;
