//! The control API of a running gateway: HTTP/1 with JSON over a unix socket.
//!
//! | request | answer |
//! | --- | --- |
//! | `GET /v1/status` | [`schema::Status`] |
//! | `GET /v1/buckets` | [`schema::Buckets`] |
//! | `GET /v1/connections?FILTER` | stream of [`schema::Connection`], one per line |
//! | `DELETE /v1/connections?FILTER` | [`schema::Done`]; without a filter all are deleted |
//! | `PATCH /v1/connections?FILTER` | [`schema::Done`]; body [`schema::UpdateConnections`] |
//! | `GET /v1/connections/records` | stream of records ([`conntrack::Batch`]), then a byte 0 and their number in 8 bytes |
//! | `POST /v1/connections/records` | [`schema::ImportedRecords`]; body: records, up to 2 MB |
//! | `GET /v1/connections/count?zone=ZONE` | [`schema::Count`]; without a zone, of all |
//! | `GET /v1/datagrams` | stream of [`schema::Datagram`], one per line |
//! | `GET /v1/drops/recent` | [`schema::RecentDrops`] |
//! | `GET /v1/events?FILTER` | stream of [`schema::Event`], one per line |
//! | `GET /v1/expectations` | stream of [`schema::Expectation`], one per line |
//! | `DELETE /v1/expectations` | [`schema::Done`]; all are deleted |
//! | `GET /v1/expectations/events` | stream of [`schema::ExpectationEvent`], one per line |
//! | `POST /v1/hand-over` | 101, then the messages of [`sync::hand_over`]; for the user of the gateway alone |
//! | `POST /v1/upgrade` | [`schema::HandedOver`], when a new process has taken over; body [`schema::Upgrade`]; for the same user |
//! | `GET /v1/rules` | [`schema::ActiveRules`] |
//! | `PUT /v1/rules?confirm_s=SECONDS&allow_unsupported=BOOL&keep_elements=BOOL` | [`schema::LoadedRules`]; body: what `nft -j list ruleset` prints |
//! | `PUT /v1/rules/kept` | [`schema::KeptElements`], for a new process; body: what `nft -j list ruleset` prints |
//! | `POST /v1/rules/confirm` | [`schema::Done`] |
//! | `POST /v1/rules/rollback` | [`schema::Done`] |
//! | `POST /v1/rules/reset` | [`schema::Done`] |
//! | `POST /v1/rules/elements` | [`schema::Done`]; body [`schema::ChangeElements`] |
//! | `POST /v1/rules/explain` | [`schema::Explanation`]; body [`schema::AskRules`] |
//! | `GET /v1/policies` | [`schema::Policies`] |
//! | `PUT /v1/policies` | [`schema::Done`]; body [`schema::DevicePolicy`] |
//! | `POST /v1/policies/explain` | [`schema::ExplainedPolicy`]; body [`schema::AskPolicy`] |
//! | `GET /v1/settings/changed` | [`schema::ChangedSettings`] |
//! | `GET /v1/sync` | [`schema::Sync`] |
//! | `PUT /v1/sync/role` | [`schema::Done`]; body [`schema::SetRole`] |
//! | `GET /v1/tunables` | [`schema::Tunables`] |
//! | `PUT /v1/tunables/NAME` | [`schema::Done`]; body [`schema::SetTunable`] |
//! | `PUT /v1/workers` | [`schema::Moves`]; body [`schema::SetWorkers`] |
//! | `GET /v1/zones` | [`schema::Zones`] |
//! | `PUT /v1/zones` | [`schema::Done`]; body [`schema::SetZones`] |
//! | `POST /v1/balance` | [`schema::Moves`]; body [`schema::Balance`] |
//! | `PUT /v1/balancer` | [`schema::Done`]; body [`schema::SetBalancer`] |
//!
//! Streams of connections, expectations and events take `format=conntrack` for lines as the
//! kernel's tool prints them, and `format=conntrack,labels` for those of its option `-o labels`.
//! Every object carries `"schema": 1`. An answer other than 200 carries a [`schema::Refusal`].
//!
//! All calls into the gateway happen on threads of their own, so a slow reader holds up no other
//! client. A connection carries one request. There are at most 64 connections at the same time, and
//! 16 streams. A new client evicts the one that has kept the gateway waiting longest.

mod carried_settings;
mod client;
mod connections;
mod gate;
mod hand_over_routes;
mod policy_routes;
mod query;
mod record_routes;
mod refusal;
mod routes;
mod rule_body;
mod rule_routes;
mod rules;
pub mod schema;
mod server;
mod socket;
mod stream;
mod sync_routes;

pub use carried_settings::{carry_settings, changed_settings};
pub use client::{Client, ClientError};
pub use gate::{Closed, Gate};
pub use hand_over_routes::{HAND_OVER_PATH, HAND_OVER_PROTOCOL};
pub use query::{ConnectionQuery, LineFormat, QueryError};
pub use rules::{
    EVERYTHING_PASSES, HostRule, KernelLook, RuleBook, RulesRefused, check_memory,
    iptables_warning, no_ruleset, repeated_element,
};
pub use server::{HandOverRequest, HostPolicies, Server, ServerError, Successors};
pub use socket::{BindError, ControlSocket};

/// Version of all JSON that this crate produces.
pub const SCHEMA: u32 = 1;

/// The default path of the control socket.
pub const DEFAULT_SOCKET: &str = "/run/stateway.sock";
