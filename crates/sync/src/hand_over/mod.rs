//! A gateway hands over to a new process on the same machine: the messages, and what each end does
//! when one comes. docs/internals/hand-over.md explains the rules.
//!
//! The socket between the two is nobody else's, so nothing is encrypted. Records are opaque here.

mod message;
mod states;

pub use message::{
    DecodeMessageError, FRAME_BYTES_MAX, HEAD_BYTES, Head, Interface, MISSING, Message, Offer,
    OfferedRole, Position, VERSION, is_version_known,
};
pub use states::{Giving, Heard, Lost, Taking};
