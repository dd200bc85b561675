//! The addresses by which the other end of a translated connection knows the ends of this one and
//! of the connections that it announces.

use std::net::IpAddr;

use flow::KeyedPacket;
use wire::mapped;

use crate::connection::{Direction, ip_address};
use crate::helper::{Announced, Mention};
use crate::nat::{Ends, ExpectedTranslation};

/// The ends of a packet on both sides of the gateway.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Passage {
    /// On arrival.
    pub came: Ends,
    /// On departure.
    pub leaves: Ends,
}

impl Passage {
    /// The ends of packets of a direction of the connection `original`, which leaves as
    /// `leaves_as`.
    pub fn of(original: &KeyedPacket, leaves_as: &KeyedPacket, direction: Direction) -> Self {
        let ends = |it: &KeyedPacket| Ends::of(&it.key, it.sender);
        let (original, leaves) = (ends(original), ends(leaves_as));
        match direction {
            Direction::Original => Self { came: original, leaves },
            Direction::Reply => Self { came: leaves.reversed(), leaves: original.reversed() },
        }
    }

    /// True if the packet leaves with other ends than it came with.
    pub fn changes(&self) -> bool {
        self.came != self.leaves
    }

    /// The address and port by which the receiver knows the mentioned end; `None` if it is no
    /// end of the packet.
    pub fn known_by(&self, mention: &Mention) -> Option<(IpAddr, u16)> {
        let Self { came, leaves } = self;
        let is_it = |end: &flow::Endpoint| {
            end.address == mapped(mention.address)
                && mention.port.is_none_or(|port| port == end.port)
        };
        let pairs = [(came.source, leaves.source), (came.destination, leaves.destination)];
        let (_, now) = pairs.into_iter().find(|(before, _)| is_it(before))?;
        Some((ip_address(now.address, family_of(mention.address)), now.port))
    }

    /// The announced connection with the addresses that the other end knows. Its port is still
    /// the announced one. `None` if no address of it is translated.
    pub fn announced(&self, announced: &Announced, interface: Option<u32>) -> Option<Announced> {
        let Self { came, leaves } = self;
        let is = |address: IpAddr, end: [u8; 16]| mapped(address) == end;
        let like = |address: IpAddr, end: [u8; 16]| ip_address(end, family_of(address));
        let (port, destination) = (announced.destination_port, announced.destination);
        let to_sender = came.source != leaves.source
            && (is(destination, came.source.address) || is(destination, leaves.source.address));
        let by_receiver = came.destination.address != leaves.destination.address
            && announced.source.is_none_or(|source| is(source, came.destination.address));
        if !to_sender && !by_receiver {
            return None;
        }
        let receiver = like(destination, came.destination.address);
        let follow = ExpectedTranslation {
            destination: to_sender.then(|| (like(destination, came.source.address), port)),
            source: by_receiver.then_some(receiver),
            source_port: None,
            interface,
        };
        let source = match announced.source {
            Some(address) if by_receiver => Some(like(address, leaves.destination.address)),
            source => source,
        };
        let destination =
            if to_sender { like(destination, leaves.source.address) } else { destination };
        Some(Announced { source, destination, follow: Some(follow), ..announced.clone() })
    }
}

/// An end of a call.
#[derive(Clone, Copy)]
struct CallEnd {
    /// Its real address.
    real: [u8; 16],
    /// The address by which the other end knows it.
    known: [u8; 16],
    direction: Direction,
}

impl Passage {
    /// The announced call, from a packet of a direction, with the addresses and ids that the
    /// other end knows. `known` returns the id by which the other side knows an end's own id.
    pub fn call(
        &self,
        announced: &Announced,
        direction: Direction,
        known: impl Fn(Direction, u16) -> u16,
        interface: Option<u32>,
    ) -> Option<Announced> {
        let Self { came, leaves } = self;
        let own = announced.source_port?;
        let is_by_sender = mapped(announced.source?) == came.source.address;
        let sender = CallEnd { real: came.source.address, known: leaves.source.address, direction };
        let receiver = CallEnd {
            real: leaves.destination.address,
            known: came.destination.address,
            direction: direction.reversed(),
        };
        let (from, to) = if is_by_sender { (sender, receiver) } else { (receiver, sender) };
        let meant = announced.destination_port;
        let (own_known, meant_known) = (known(from.direction, own), known(to.direction, meant));
        let address = |bytes| ip_address(bytes, family_of(announced.destination));
        let follow = ExpectedTranslation {
            destination: ((to.known, meant_known) != (to.real, meant))
                .then(|| (address(to.real), meant)),
            source: ((from.known, own_known) != (from.real, own)).then(|| address(from.known)),
            source_port: Some(own_known),
            interface,
        };
        let is_plain = follow.destination.is_none() && follow.source.is_none();
        Some(Announced {
            source: Some(address(from.real)),
            destination: address(to.known),
            destination_port: meant_known,
            follow: (!is_plain).then_some(follow),
            ..announced.clone()
        })
    }

    /// The real address for one by which the sender of the packet knows its receiver; other
    /// addresses stay.
    pub fn real(&self, address: [u8; 16]) -> [u8; 16] {
        let is_receiver = address == self.came.destination.address;
        if is_receiver { self.leaves.destination.address } else { address }
    }
}

const fn family_of(address: IpAddr) -> wire::Family {
    if address.is_ipv4() { wire::Family::V4 } else { wire::Family::V6 }
}
