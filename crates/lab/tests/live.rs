//! Tests with real traffic, through the kernel's own gateways (which proves the harness) and
//! through Stateway. They share one binary, and only one lab runs at a time.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stdout,
    reason = "the modules of a test are tests, which clippy sees in functions marked so only"
)]

#[path = "live/announced.rs"]
mod announced;
#[path = "live/bypass/mod.rs"]
mod bypass;
#[path = "live/calls.rs"]
mod calls;
#[path = "live/carried.rs"]
mod carried;
#[path = "live/control_groups.rs"]
mod control_groups;
#[path = "live/flooded.rs"]
mod flooded;
#[path = "live/floods.rs"]
mod floods;
#[path = "live/fragments/mod.rs"]
mod fragments;
#[path = "live/greed.rs"]
mod greed;
#[path = "live/h323.rs"]
mod h323;
#[path = "live/headers/mod.rs"]
mod headers;
#[path = "live/hostile_text.rs"]
mod hostile_text;
#[path = "live/identifications.rs"]
mod identifications;
#[path = "live/inside.rs"]
mod inside;
#[path = "live/kernel.rs"]
mod kernel;
#[path = "live/kills.rs"]
mod kills;
#[path = "live/lifetime.rs"]
mod lifetime;
#[path = "live/link.rs"]
mod link;
#[path = "live/mtu.rs"]
mod mtu;
#[path = "live/names.rs"]
mod names;
#[path = "live/operations.rs"]
mod operations;
#[path = "live/overruns.rs"]
mod overruns;
#[path = "live/past_the_kernel.rs"]
mod past_the_kernel;
#[path = "live/port_forwards.rs"]
mod port_forwards;
#[path = "live/pptp.rs"]
mod pptp;
#[path = "live/pptp_translated.rs"]
mod pptp_translated;
#[path = "live/rate.rs"]
mod rate;
#[path = "live/redirects.rs"]
mod redirects;
#[path = "live/reloads.rs"]
mod reloads;
#[path = "live/routed.rs"]
mod routed;
#[path = "live/rules/mod.rs"]
mod rules;
#[path = "live/rulesets.rs"]
mod rulesets;
#[path = "live/scenario.rs"]
mod scenario;
#[path = "live/services.rs"]
mod services;
#[path = "live/slipstreaming.rs"]
mod slipstreaming;
#[path = "live/stacked.rs"]
mod stacked;
#[path = "live/stallers.rs"]
mod stallers;
#[path = "live/stateway.rs"]
mod stateway;
#[path = "live/stations.rs"]
mod stations;
#[path = "live/syn_proxy.rs"]
mod syn_proxy;
#[path = "live/tracking/mod.rs"]
mod tracking;
#[path = "live/translated.rs"]
mod translated;
#[path = "live/translated_calls.rs"]
mod translated_calls;
#[path = "live/tunnels.rs"]
mod tunnels;
#[path = "live/zoned.rs"]
mod zoned;
