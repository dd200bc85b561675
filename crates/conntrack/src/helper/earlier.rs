//! The earlier announcements of a connection, as its helper may ask about them.

use std::fmt::Debug;
use std::net::IpAddr;

use flow::FlowKey;

use crate::Direction;

/// The addresses of a call's packets on their way: sender and receiver. Both are in the
/// IPv4-mapped form.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Way {
    pub zone: flow::Zone,
    pub from: [u8; 16],
    pub to: [u8; 16],
}

/// The announcements of a gateway. Helpers know no more of them than this. Each question names the
/// announcing connection by the key `master`.
pub(crate) trait Announcements: Debug {
    /// The real place behind one that a translated connection has announced.
    fn meant(&self, master: &FlowKey, said: (IpAddr, u16)) -> Option<(IpAddr, u16)>;

    /// The id towards the other side for the id `own` that an end of a control connection chose:
    /// that id, unless another control connection uses that on this way. `None` if all that were
    /// tried are in use.
    fn give_call_id(&self, master: &FlowKey, own: (Direction, u16), way: Way) -> Option<u16>;

    /// The id towards the other side for an end's `own` id.
    fn known_call_id(&self, master: &FlowKey, own: (Direction, u16)) -> u16;

    /// An end's own id for the one `known` to the other side.
    fn own_call_id(&self, master: &FlowKey, known: (Direction, u16)) -> u16;
}

/// The announcements of one connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Earlier<'a> {
    pub announcements: &'a dyn Announcements,
    /// Key of the connection.
    pub master: &'a FlowKey,
}

impl Earlier<'_> {
    /// The real place behind `said`, if an end has announced one that is translated to `said`;
    /// else `said`.
    pub fn meant(&self, said: (IpAddr, u16)) -> (IpAddr, u16) {
        self.announcements.meant(self.master, said).unwrap_or(said)
    }
}
