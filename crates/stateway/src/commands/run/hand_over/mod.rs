//! A new process takes the place of the one that runs: docs/internals/hand-over.md explains the rules.

mod channel;
mod estate;
mod give;
mod take;

pub use estate::{End, Estate, Event, StartAgain};
pub use take::{Giver, Taken};
