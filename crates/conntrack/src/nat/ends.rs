//! The two ends of a connection as its packets name them.

use flow::{Endpoint, FlowKey, KeyedPacket, Side};
use wire::{Place, Readdress};

use crate::Direction;

/// Both ends, as packets of the originator name them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ends {
    pub source: Endpoint,
    pub destination: Endpoint,
}

impl Ends {
    /// The ends of a flow that `sender` has opened.
    pub fn of(key: &FlowKey, sender: Side) -> Self {
        Self { source: key.end(sender), destination: key.end(sender.opposite()) }
    }

    /// The same ends, as packets of the other direction name them.
    pub const fn reversed(self) -> Self {
        Self { source: self.destination, destination: self.source }
    }

    /// The flow `like` with these ends: the packet of its `sender` with other addresses.
    pub fn keyed(&self, like: &KeyedPacket) -> KeyedPacket {
        like.key.between(like.sender, self.source, self.destination)
    }
}

/// What a translation does to the packets of one direction. An end that is `None` stays.
///
/// The destination changes before a packet is routed and the source after that, as in the
/// kernel, so rules and routes see the host that it is really for, and rules of the forward
/// stage the one that it is really from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Halves {
    /// New destination.
    pub destination: Option<Place>,
    /// New source.
    pub source: Option<Place>,
}

impl Halves {
    /// What a connection that leaves as `translated` does to its packets.
    pub(crate) fn between(original: &Ends, translated: &Ends, direction: Direction) -> Self {
        let new = |before: Endpoint, after: Endpoint| {
            (before != after).then_some(Place { address: after.address, port: after.port })
        };
        let (before, after) = (original, translated);
        match direction {
            Direction::Original => Self {
                destination: new(before.destination, after.destination),
                source: new(before.source, after.source),
            },
            Direction::Reply => Self {
                destination: new(after.source, before.source),
                source: new(after.destination, before.destination),
            },
        }
    }

    /// True if nothing changes.
    pub fn is_identity(&self) -> bool {
        *self == Self::default()
    }

    /// For the packet before it is routed.
    pub const fn before_routing(&self) -> Readdress {
        Readdress { source: None, destination: self.destination }
    }

    /// For the packet after it was routed.
    pub const fn after_routing(&self) -> Readdress {
        Readdress { source: self.source, destination: None }
    }

    /// For the packet, all at once.
    pub const fn whole(&self) -> Readdress {
        Readdress { source: self.source, destination: self.destination }
    }

    /// For what an ICMP error that goes in this direction quotes
    /// ([`Readdress::apply_to_quoted`]): a packet that was on its way in the other one, which
    /// becomes what its sender has sent. The error's own addresses change as those of any
    /// packet of the direction, so one from a router behind a translated destination comes in
    /// the name of that, as with the kernel: nobody outside could tell whom the router speaks
    /// of (RFC 5508 section 4.2).
    pub const fn quoted(&self) -> Readdress {
        Readdress { source: self.destination, destination: self.source }
    }
}
