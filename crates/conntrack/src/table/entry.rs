//! One connection as it lies in memory: two cache lines.

use flow::{FlowKey, Side, Timestamp};

use crate::connection::Head;
use crate::proto::State;
use crate::replication::Note;

/// A connection. The first line holds the fields that every packet reads, the second those of
/// the protocol.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Entry {
    pub head: Head,
    pub body: Body,
}

/// The second line.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Body {
    pub state: State,
    /// [`TrackedPacket::map_epoch`](crate::TrackedPacket::map_epoch) of the last packet with which
    /// the tracker knew where the connection was.
    pub map_epoch: u16,
    /// The knowledge of a peer.
    pub note: Note,
}

impl Body {
    fn new(state: State) -> Self {
        Self { state, map_epoch: 0, note: Note::default() }
    }
}

/// Two cache lines for an entry. They leave 72 of at most 200 bytes for a connection to its
/// share of the index and of the timer wheel.
const _: () = assert!(size_of::<Entry>() == 128 && size_of::<Head>() == 64);

impl Entry {
    /// A slot that holds nothing and links to the free slot `next`.
    pub fn free(next: u32) -> Self {
        Self { head: Head::free(next), body: Body::new(State::Generic) }
    }

    /// True for a connection that is over because its time is. That of a peer ends when the peer says
    /// so.
    #[inline]
    pub fn is_over(&self, now: Timestamp) -> bool {
        self.head.is_expired(now) && !self.body.note.is_copy()
    }

    /// A connection opened by `originator` of `key`. It has no deadline yet.
    pub fn open(key: FlowKey, hash: u32, originator: Side, state: State) -> Self {
        Self { head: Head::open(key, hash, originator), body: Body::new(state) }
    }
}

impl Body {
    /// True if the connection may have continued at another gateway, and the tracker has not
    /// caught up with it: the zone has received packets of other zones, or the connection has come
    /// from a peer.
    pub fn is_behind(&self, map_epoch: u16) -> bool {
        // The numbers wrap round.
        map_epoch.wrapping_sub(self.map_epoch).cast_signed() > 0
    }
}
