//! The two ends of a connection in the addresses of its packets.

use flow::{Endpoint, FlowKey, KeyedPacket, Side};
use wire::{Readdress, TransportAddress};

use crate::Direction;

/// Both ends, in the addresses of the originator's packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ends {
    pub source: Endpoint,
    pub destination: Endpoint,
}

impl Ends {
    /// The ends of a flow whose originator is `sender`.
    #[inline]
    pub fn of(key: &FlowKey, sender: Side) -> Self {
        Self { source: key.end(sender), destination: key.end(sender.opposite()) }
    }

    /// The same ends in the addresses of the other direction's packets.
    pub const fn reversed(self) -> Self {
        Self { source: self.destination, destination: self.source }
    }

    /// The flow `like` with these ends: the packet of its `sender` with other addresses.
    pub fn keyed(&self, like: &KeyedPacket) -> KeyedPacket {
        like.key.between(like.sender, self.source, self.destination)
    }
}

/// The effect of a translation on the packets of one direction. An end with `None` stays.
///
/// The destination changes before a packet is routed and the source after that, as in the
/// kernel. So rules and routes see the real receiver, and rules of the forward stage the real
/// sender.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AddressChanges {
    /// New destination.
    pub destination: Option<TransportAddress>,
    /// New source.
    pub source: Option<TransportAddress>,
}

impl AddressChanges {
    /// The effect of a connection that leaves as `translated` on its packets.
    pub(crate) fn between(original: &Ends, translated: &Ends, direction: Direction) -> Self {
        let new = |before: Endpoint, after: Endpoint| {
            (before != after)
                .then_some(TransportAddress { address: after.address, port: after.port })
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

    /// The change of the packet before it is routed.
    pub const fn before_routing(&self) -> Readdress {
        Readdress { source: None, destination: self.destination }
    }

    /// The change of the packet after it was routed.
    pub const fn after_routing(&self) -> Readdress {
        Readdress { source: self.source, destination: None }
    }

    /// Both changes of the packet.
    pub const fn whole(&self) -> Readdress {
        Readdress { source: self.source, destination: self.destination }
    }

    /// The change of the packet that an ICMP error in this direction quotes
    /// ([`Readdress::apply_to_quoted`]). The quoted packet travelled in the other direction;
    /// the change turns it back into the packet that its sender has sent. The error's own
    /// addresses change as those of any packet of the direction. So an error from a router
    /// behind a translated destination comes in the name of that destination, as with the
    /// kernel: otherwise nobody outside could tell which host the router means (RFC 5508
    /// section 4.2).
    pub const fn quoted(&self) -> Readdress {
        Readdress { source: self.destination, destination: self.source }
    }
}
