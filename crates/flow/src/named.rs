//! Names of GRE calls. A packet of enhanced GRE (version 1) names only the call id of its
//! receiver (RFC 2637 section 4.1), which tells the calls between two hosts apart.

use wire::{IcmpError, Network, QuotedTransport, Transport};

use crate::KeyedPacket;

/// [`FlowKey::kind`](crate::FlowKey::kind) of a call as an ICMP error names it: by the call id
/// of the error's sender, who was the receiver of the quoted packet.
const BY_SENDER: u8 = 3;

impl KeyedPacket {
    /// The same packet with the call id that it names, if it is one of enhanced GRE. An ICMP
    /// error has to be keyed as an answer to the packet that it quotes.
    #[must_use]
    #[inline]
    pub fn named(self, network: &Network) -> Self {
        if self.key.is_of_calls() { self.named_by(&network.transport) } else { self }
    }

    #[cold]
    fn named_by(self, transport: &Transport) -> Self {
        let Self { key, sender } = self;
        match transport {
            Transport::Gre { key: id, .. } => Self { key: key.call(sender, 0, *id as u16), sender },
            Transport::IcmpError(IcmpError { quoted: Some(quoted), .. }) => {
                let QuotedTransport::Gre { key: id, .. } = quoted.transport else { return self };
                let mut key = key.call(sender, id as u16, 0);
                key.kind = BY_SENDER;
                Self { key, sender }
            }
            _ => self,
        }
    }

    /// The name that packets of this flow and direction carry. For a call it holds the
    /// receiver's id alone; every other flow is its own name.
    #[must_use]
    #[inline]
    pub fn name(&self) -> Self {
        let Self { key, sender } = *self;
        if !key.is_call() {
            return *self;
        }
        Self { key: key.call(sender, 0, key.endpoint(sender.opposite()).port), sender }
    }

    /// True if `name` names this flow and direction. `self` must be a flow and not a name.
    #[inline]
    pub fn is_named_by(&self, name: &Self) -> bool {
        let Self { key, sender } = *self;
        match (key.is_call(), name.key.kind) {
            (true, BY_SENDER) => {
                let mut by_sender = key.call(sender, key.endpoint(sender).port, 0);
                by_sender.kind = BY_SENDER;
                *name == Self { key: by_sender, sender }
            }
            _ => *name == self.name(),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use wire::build::PacketBuilder;
    use wire::{dissect, protocol};

    use super::*;
    use crate::{Endpoint, FlowKey, Side, Zone};

    const HOSTS: [[u8; 4]; 2] = [[192, 0, 2, 1], [198, 51, 100, 2]];

    /// The packet of a call from one of the hosts to the other.
    fn packet(from: usize, id: u16) -> (KeyedPacket, Network) {
        let [high, low] = id.to_be_bytes();
        let gre = [0x30, 1, 0x88, 0x0b, 0, 0, high, low, 0, 0, 0, 1];
        let mut frame = Vec::new();
        let builder = PacketBuilder::v4(HOSTS[from], HOSTS[1 - from]);
        builder.transport(protocol::GRE, &gre, &mut frame);
        let network = dissect(&frame).unwrap().network.unwrap();
        (FlowKey::of_packet(&network, Zone(0)).unwrap(), network)
    }

    fn call(ids: [u16; 2]) -> FlowKey {
        let [one, other] = [0, 1].map(|at| {
            let address = wire::mapped(std::net::IpAddr::from(HOSTS[at]));
            Endpoint { address, port: ids[at] }
        });
        FlowKey::of_call(wire::Family::V4, Zone(0), one, other)
    }

    proptest! {
        #[test]
        fn packets_name_the_calls_of_their_receivers_id(
            ids in prop::array::uniform2(0u16..3), named in 0u16..3, from in 0usize..2,
        ) {
            let (keyed, network) = packet(from, named);
            let name = keyed.named(&network);
            // The first host sorts first.
            let sender = [Side::Low, Side::High][from];
            let flow = KeyedPacket { key: call(ids), sender };
            prop_assert_eq!(flow.is_named_by(&name), ids[1 - from] == named);
            prop_assert_eq!(flow.name() == name, ids[1 - from] == named);
            let back = KeyedPacket { key: call(ids), sender: sender.opposite() };
            prop_assert!(!back.is_named_by(&name), "it goes the other way");
            // An error about this packet goes back to its sender and comes from its
            // destination.
            let answer = KeyedPacket { sender: keyed.sender.opposite(), ..keyed };
            let error = Network {
                transport: Transport::IcmpError(IcmpError {
                    quoted: Some(wire::Quoted {
                        transport: QuotedTransport::Gre { version: 1, key: named.into() },
                        ..quoted()
                    }),
                    ..error()
                }),
                ..network
            };
            let error = answer.named(&error);
            prop_assert_eq!(back.is_named_by(&error), ids[1 - from] == named);
            prop_assert!(!flow.is_named_by(&error));
            prop_assert_eq!(error.name(), error, "a name is its own name");
        }
    }

    /// A real ICMP error, of which the tests replace a few fields.
    fn error() -> IcmpError {
        let Transport::IcmpError(error) = quoting().transport else { panic!("it is one") };
        error
    }

    fn quoted() -> wire::Quoted {
        error().quoted.unwrap()
    }

    fn quoting() -> Network {
        let (_, network) = packet(0, 1);
        let mut inner = Vec::new();
        let gre = [0x30, 1, 0x88, 0x0b, 0, 0, 0, 1, 0, 0, 0, 1];
        PacketBuilder::v4(HOSTS[0], HOSTS[1]).transport(protocol::GRE, &gre, &mut inner);
        let mut message = vec![3, 1, 0, 0, 0, 0, 0, 0];
        message.extend(&inner[usize::from(network.offset)..]);
        let mut frame = Vec::new();
        let builder = PacketBuilder::v4(HOSTS[1], HOSTS[0]);
        builder.transport(protocol::ICMP, &message, &mut frame);
        dissect(&frame).unwrap().network.unwrap()
    }
}
