//! A new process takes the place of the one that runs: docs/internals/hand-over.md explains the rules.

mod channel;
mod give;
mod take;

pub use give::{Gift, GiveError, Given, give};
pub use take::{Giver, Taken};
