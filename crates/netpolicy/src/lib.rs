//! NET policy: one word for a device in place of a page of settings.
//!
//! This crate decides, and does nothing else: it has no clock, file or socket.
//!
//! In the gateway, a policy chooses how a worker waits for packets ([`Waiting`]) and how many it
//! takes at once, by the figures in [`WaitSettings`]. [`Lanes`] chooses from which queue, where services
//! have queues of their own.
//!
//! For the devices of the host it chooses settings. From a [`Snapshot`]
//! of a device and a [`Request`] it makes a [`Plan`], a list of writes with reasons. [`carry_out`]
//! makes these writes through a [`Host`], and notes in a [`Journal`] what was there first. The plan
//! for [`Policy::None`] puts that back.
//!
//! [`judge`] compares a device before and under a policy that is on trial.
//!
//! - A value goes back only if it is still Stateway's. A value that another program has set since is
//!   left alone and named.
//! - The values that were there first stay in the journal while policies follow each other.
//! - A write of a device's `gro_flush_timeout` or `napi_defer_hard_irqs` overwrites that of all its
//!   NAPIs. So a plan writes the device's values first, and then the value of each NAPI, also where
//!   that does not change.

mod carry_out;
mod journal;
mod ladder;
mod lanes;
mod plan;
mod policy;
mod profile;
mod setting;
mod snapshot;
mod trial;
mod wait_settings;
mod waiting;

pub use carry_out::{Failure, Host, HostFailure, carry_out, put_back};
pub use journal::{Difference, Identity, Journal, JournalError, Owner};
pub use lanes::{LaneTurn, Lanes, Pick};
pub use plan::{Action, Plan, PlanError};
pub use policy::{Policy, Request, UnknownPolicy};
pub use setting::{Coalescing, Deferral, NapiSetting, Risk, Setting, UnknownSetting, Value};
pub use snapshot::{Cpu, LeftAlone, Napi, Snapshot};
pub use trial::{Figure, Slice, Spread, Verdict, judge};
pub use wait_settings::WaitSettings;
pub use waiting::{Came, Manner, Step, WaitCounts, Waiting};

#[cfg(test)]
#[path = "policy_tests.rs"]
mod tests;
