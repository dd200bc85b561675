//! Packets of translated connections, byte by byte: a packet leaves with the chosen ends and
//! correct checksums, and a reply becomes the packet that its receiver expects.

use flow::{Class, FlowKey, Zone};
use proptest::prelude::*;
use wire::build::{PacketBuilder, Tcp, sctp};
use wire::checksum::verify_transport;
use wire::{
    ChecksumCovers, IcmpError, Network, Readdress, TcpFlags, Transport, TransportAddress, dissect,
    protocol,
};

use super::*;
use crate::nat::{Addresses, BucketPorts, Ports};
use crate::syn_proxy::Screening;
use crate::testing::{Lab, SECRET};
use crate::{Checksum, Tracked, TrackedPacket};

#[derive(Clone, Copy, Debug, PartialEq)]
enum Content {
    Tcp,
    Udp,
    Echo,
    Sctp,
}

/// A flow of some protocol with the content of its packets.
#[derive(Clone, Debug)]
struct Flow {
    content: Content,
    v6: bool,
    payload: Vec<u8>,
}

fn hash(key: &FlowKey) -> u64 {
    key.hash(SECRET)
}

impl Flow {
    fn builder(&self, from: [u8; 16], to: [u8; 16]) -> PacketBuilder {
        let v4 = |address: [u8; 16]| *address.last_chunk::<4>().unwrap();
        if self.v6 {
            PacketBuilder::v6(from, to).id(9)
        } else {
            PacketBuilder::v4(v4(from), v4(to)).id(9)
        }
    }

    /// A packet between two places, in the original direction or as an answer.
    fn frame(&self, from: TransportAddress, to: TransportAddress, answer: bool) -> Vec<u8> {
        let mut out = Vec::new();
        let builder = self.builder(from.address, to.address);
        match self.content {
            Content::Tcp => {
                let flags = TcpFlags(if answer { 0x12 } else { 0x02 });
                let acknowledgment = u32::from(answer);
                let ports = (from.port, to.port);
                let tcp = Tcp {
                    source_port: ports.0,
                    destination_port: ports.1,
                    flags,
                    acknowledgment,
                    window: 1000,
                    ..Tcp::default()
                };
                builder.tcp(&tcp, &self.payload, &mut out);
            }
            Content::Udp => builder.udp(from.port, to.port, &self.payload, &mut out),
            Content::Echo => {
                let id = if answer { to.port } else { from.port };
                builder.echo(answer, id, 5, &self.payload, &mut out);
            }
            Content::Sctp => {
                let mut packet = match answer {
                    false => sctp::init(0, 1, 7),
                    true => sctp::init(7, 2, 9),
                };
                packet[..2].copy_from_slice(&from.port.to_be_bytes());
                packet[2..4].copy_from_slice(&to.port.to_be_bytes());
                builder.transport(protocol::SCTP, &packet, &mut out);
            }
        }
        out
    }
}

fn network_of(frame: &[u8]) -> Network {
    dissect(frame).unwrap().network.unwrap()
}

fn keyed_of(network: &Network) -> KeyedPacket {
    match network.transport {
        Transport::IcmpError(IcmpError { quoted: Some(quoted), .. }) => {
            FlowKey::of_quoted(&quoted, network.family, Zone(0))
        }
        _ => FlowKey::of_packet(network, Zone(0)).unwrap(),
    }
}

fn track(lab: &mut Lab, frame: &[u8]) -> Tracked {
    let network = network_of(frame);
    let keyed = keyed_of(&network);
    let packet = TrackedPacket {
        network: &network,
        frame,
        keyed: &keyed,
        hash: hash(&keyed.key),
        guess: crate::Guess::NONE,
        checksum: Checksum::Verify,
        segments: 1,
        may_open: true,
        screening: Screening::Off,
        map_epoch: 0,
        zones: None,
    };
    lab.run(|table, context| table.track(&packet, context))
}

/// The frame with these ends, checked.
fn readdressed(frame: &[u8], by: &Readdress) -> Vec<u8> {
    let mut frame = frame.to_vec();
    let mut network = network_of(&frame);
    let transport_len = network.end as usize - usize::from(network.transport_offset);
    by.apply(&mut frame, &mut network, transport_len, ChecksumCovers::All);
    assert_eq!(network_of(&frame), network, "the description follows");
    assert!(verify_transport(&frame, &network));
    frame
}

/// The error, translated as a packet of its direction.
fn readdressed_error(frame: &[u8], address_changes: &AddressChanges) -> Vec<u8> {
    let mut frame = readdressed(frame, &address_changes.whole());
    let mut network = network_of(&frame);
    address_changes.quoted().apply_to_quoted(&mut frame, &mut network);
    assert_eq!(network_of(&frame), network);
    assert!(verify_transport(&frame, &network));
    frame
}

fn address(v6: bool, last: u8) -> [u8; 16] {
    let mut bytes =
        if v6 { [0; 16] } else { [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 192, 0, 2, 0] };
    if v6 {
        bytes[..4].copy_from_slice(&[0x20, 0x01, 0x0d, 0xb8]);
    }
    bytes[15] = last;
    bytes
}

fn place(v6: bool, (last, port): (u8, u16)) -> TransportAddress {
    TransportAddress { address: address(v6, last), port }
}

fn one(v6: bool, last: u8) -> Option<Addresses> {
    let bytes = std::net::Ipv6Addr::from(address(v6, last));
    Some(Addresses::one(bytes.to_ipv4_mapped().map_or(bytes.into(), Into::into)))
}

fn any_flow() -> impl Strategy<Value = Flow> {
    let content =
        prop::sample::select(&[Content::Tcp, Content::Udp, Content::Echo, Content::Sctp][..]);
    let payload = prop::collection::vec(any::<u8>(), 0..300);
    (content, any::<bool>(), payload).prop_map(|(content, v6, payload)| Flow {
        content,
        v6,
        payload,
    })
}

/// An error of a router, to the sender of a frame, about the frame as the router has `seen` it.
fn error_about(flow: &Flow, seen: &[u8], router: [u8; 16]) -> Vec<u8> {
    let network = network_of(seen);
    let quote = &seen[usize::from(network.offset)..network.end as usize];
    let (kind, code) = if flow.v6 { (1, 4) } else { (3, 3) };
    let mut out = Vec::new();
    let quote = &quote[..quote.len().min(500)];
    flow.builder(router, network.source).icmp_error(kind, code, [0; 4], quote, &mut out);
    out
}

/// A router's error about a frame as it has `seen` it reaches the sender as an error about the
/// frame that it `sent`.
fn check_error(
    lab: &mut Lab,
    flow: &Flow,
    (seen, sent): (&[u8], &[u8]),
    address_changes: AddressChanges,
    direction: Direction,
) -> Result<(), TestCaseError> {
    let v6 = flow.v6;
    let router = address(v6, 250);
    let error = error_about(flow, seen, router);
    let tracked = track(lab, &error);
    prop_assert_eq!((tracked.class, tracked.direction), (Class::Related, Some(direction)));
    prop_assert_eq!(lab.table.translation(&tracked), address_changes);
    let actual = readdressed_error(&error, &address_changes);
    let expected =
        error_about(flow, sent, address_changes.source.map_or(router, |place| place.address));
    prop_assert_eq!(network_of(&actual), network_of(&expected));
    // The quote does not tell the length that a CRC covers, so it can not be updated.
    prop_assert!(flow.content == Content::Sctp || actual == expected);
    // To somebody else it is no error about this.
    let stranger = TransportAddress { address: address(v6, 251), port: 0 };
    let misled = readdressed(&error, &Readdress { destination: Some(stranger), source: None });
    let class = track(lab, &misled).class;
    prop_assert_eq!(class, Class::Invalid(DropReason::IcmpErrorDirection));
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]
    #[test]
    fn both_directions_and_their_errors_are_translated_and_back(
        flow in any_flow(),
        client in (1u8..4, 1u16..), server in (10u8..14, 1u16..),
        new_source in prop::option::of(100u8..104),
        new_destination in prop::option::of((110u8..114, 1u16..)),
        seed: u64,
    ) {
        let v6 = flow.v6;
        let (client, server) = (place(v6, client), place(v6, server));
        let mut lab = Lab::new();
        let there = flow.frame(client, server, false);
        let opened = track(&mut lab, &there);
        prop_assert_eq!((opened.class, opened.fresh), (Class::New, true));
        let original = keyed_of(&network_of(&there));
        let id = opened.connection.unwrap();
        let to = new_destination.map(|(last, port)| Request {
            addresses: one(v6, last), ports: Ports::new(port, port), ..Request::of(TranslatedEnd::Destination)
        });
        let from = new_source.map(|last| Request {
            addresses: one(v6, last), ..Request::of(TranslatedEnd::Source)
        });
        let supply = Supply { own: BucketPorts::ALL, seed, hash: &hash };
        for request in [to, from].into_iter().flatten() {
            lab.run(|table, context| table.translate(id, &request, supply, context)).unwrap();
        }
        lab.run(|table, context| table.make_reply_unique(id, supply, context)).unwrap();

        // The way there.
        let forth = lab.table.translation(&opened);
        lab.run(|table, context| table.confirm(id, context).unwrap());
        let sent = readdressed(&there, &forth.whole());
        let leaves = lab.table.leaves_as(id.0);
        prop_assert_eq!(keyed_of(&network_of(&sent)), leaves);
        let in_halves =
            readdressed(&readdressed(&there, &forth.before_routing()), &forth.after_routing());
        prop_assert_eq!(&in_halves, &sent);
        // Translating back gives the original.
        prop_assert_eq!(&readdressed(&sent, &{
            let ends = Ends::of(&original.key, original.sender);
            let after = Ends::of(&leaves.key, leaves.sender);
            AddressChanges::between(&after, &ends, Direction::Original).whole()
        }), &there);

        // The way back.
        let ends = Ends::of(&leaves.key, leaves.sender);
        let place = |end: flow::Endpoint| TransportAddress { address: end.address, port: end.port };
        let answer = flow.frame(place(ends.destination), place(ends.source), true);
        let tracked = track(&mut lab, &answer);
        let back = lab.table.translation(&tracked);
        prop_assert_eq!((tracked.class, tracked.direction), (Class::Established, Some(Direction::Reply)));
        let received = readdressed(&answer, &back.whole());
        let expected = flow.frame(server, client, true);
        prop_assert_eq!(network_of(&received), network_of(&expected));
        prop_assert_eq!(&received, &expected);

        // An error about the packet that has left, from a router on its way, and one about the
        // answer.
        check_error(&mut lab, &flow, (&sent, &there), back, Direction::Reply)?;
        check_error(&mut lab, &flow, (&received, &answer), forth, Direction::Original)?;
    }

    /// Fragments that leave equal the fragments that came, translated one by one.
    #[test]
    fn fragments_leave_as_the_whole_would(
        flow in any_flow(), more in 600usize..1200, piece in 8usize..60, new in (100u8..104, 1u16..),
    ) {
        let mut flow = flow;
        flow.payload.resize(more, 7);
        if flow.content == Content::Tcp || flow.content == Content::Sctp {
            flow.content = Content::Udp;
        }
        let v6 = flow.v6;
        let (client, server) = (place(v6, (1, 1000)), place(v6, (10, 53)));
        let by = Readdress { source: Some(place(v6, new)), destination: None };
        let number = match (flow.content, v6) {
            (Content::Udp, _) => protocol::UDP,
            (_, false) => protocol::ICMP,
            (_, true) => protocol::ICMPV6,
        };
        let cut = |frame: &[u8], from: [u8; 16]| {
            let network = network_of(frame);
            let datagram = &frame[usize::from(network.transport_offset)..network.end as usize];
            flow.builder(from, server.address).fragments(number, datagram, piece * 8)
        };
        let whole = flow.frame(client, server, false);
        let length = whole.len() - usize::from(network_of(&whole).transport_offset);
        let translated = readdressed(&whole, &by);
        let wanted = cut(&translated, by.source.unwrap().address);
        for (mut fragment, wanted) in cut(&whole, client.address).into_iter().zip(wanted) {
            let mut network = network_of(&fragment);
            by.apply(&mut fragment, &mut network, length, ChecksumCovers::All);
            prop_assert_eq!(fragment, wanted);
        }
    }
}

/// A reset of an unanswered connection ends it, and has to reach its receiver.
#[test]
fn the_packet_that_ends_a_connection_is_translated_too() {
    let flow = Flow { content: Content::Tcp, v6: false, payload: Vec::new() };
    let (client, server) = (place(false, (1, 1000)), place(false, (10, 80)));
    let mut lab = Lab::new();
    let opened = track(&mut lab, &flow.frame(client, server, false));
    let id = opened.connection.unwrap();
    let request = Request { addresses: one(false, 100), ..Request::of(TranslatedEnd::Source) };
    let supply = Supply { own: BucketPorts::ALL, seed: 1, hash: &hash };
    lab.run(|table, context| table.translate(id, &request, supply, context)).unwrap();
    lab.run(|table, context| table.confirm(id, context).unwrap());
    let reply = lab.table.reply(id);
    let ends = Ends::of(&reply.key, reply.sender);
    let mut reset = Vec::new();
    let tcp = Tcp {
        source_port: ends.source.port,
        destination_port: ends.destination.port,
        flags: TcpFlags(0x14),
        acknowledgment: 1,
        ..Tcp::default()
    };
    flow.builder(ends.source.address, ends.destination.address).tcp(&tcp, &[], &mut reset);
    let tracked = track(&mut lab, &reset);
    assert!(lab.table.is_empty() && tracked.connection.is_none());
    // The result belongs to the packet, whatever the table does meanwhile.
    let other = place(false, (2, 1000));
    let opened = track(&mut lab, &flow.frame(other, server, false));
    lab.run(|table, context| table.confirm(opened.connection.unwrap(), context).unwrap());
    let mut reset = Vec::new();
    let tcp = Tcp { source_port: server.port, destination_port: other.port, ..tcp };
    flow.builder(server.address, other.address).tcp(&tcp, &[], &mut reset);
    let second = track(&mut lab, &reset);
    assert!(lab.table.is_empty() && second.direction == Some(Direction::Reply));
    assert_eq!(lab.table.translation(&tracked).destination, Some(client));
    assert!(lab.table.translation(&second).is_identity());
}
