//! The TCP tracker: a state machine that watches both ends from the middle.
//!
//! It sees all segments that arrive, and also some that will be lost behind it. So it follows
//! the state that the *senders* must assume: a transition table over the control bits
//! ([`transition`]), and the window rules of Guido van Rooij, "Real Stateful TCP Packet
//! Filtering in IP Filter" (SANE 2000), which bound the sequence and acknowledgment numbers
//! that an honest sender can use. States, timers and exceptions are those of the Linux kernel's
//! tracker, which operators know; `lab` compares the two. There is one difference: when both
//! ends close out of their windows, the timer is lowered to
//! `nf_conntrack_tcp_timeout_unacknowledged` even if less than two minutes are left.
//!
//! ```text
//! frame -> Segment::parse -> TcpTracker::open     first segment of a flow
//!                         -> TcpTracker::advance  every later one -> Step
//! ```
//!
//! The tracker knows neither time nor table: a [`Step`] tells the owner of the entry how to
//! change the timer and the entry.

mod in_window;
mod invalid;
mod outline;
mod record;
mod relearning;
mod segment;
mod sequence;
mod settings;
mod state;
mod tracker;
mod window;

#[cfg(test)]
mod endpoints_tests;
#[cfg(test)]
mod testing;

pub use invalid::Invalid;
pub use outline::{SenderOutline, TcpOutline};
pub use relearning::{Effect, Relearning, Relearnt};
pub use segment::{Segment, SynOptions};
pub use sequence::Seq;
pub use settings::{TUNABLES, TcpSettings, TcpTimeouts};
pub use state::{FlagClass, TcpState, Transition, opening, transition};
pub use tracker::{Accepted, Opened, Step, TcpTracker, Timeout};
