use proptest::prelude::*;

use super::*;
use crate::build::{PacketBuilder, Tcp};
use crate::fragment::{Cut, Fragments};
use crate::{Dissected, TcpFlags, checksum, dissect};

/// The content of a packet, with any ends.
#[derive(Clone, Debug)]
enum Content {
    Tcp,
    /// UDP, UDP-Lite with its whole length covered, DCCP or SCTP.
    Ports(u8),
    UdpWithoutChecksum,
    Echo {
        reply: bool,
    },
    Call,
    Unknown,
}

/// Two ends and the content between them.
#[derive(Clone, Debug)]
struct Model {
    v6: bool,
    vlan: bool,
    source: ([u8; 16], u16),
    destination: ([u8; 16], u16),
    content: Content,
    payload: Vec<u8>,
}

impl Model {
    fn builder(&self, source: [u8; 16], destination: [u8; 16]) -> PacketBuilder {
        let v4 = |address: [u8; 16]| *address.last_chunk::<4>().unwrap();
        let builder = if self.v6 {
            PacketBuilder::v6(source, destination)
        } else {
            PacketBuilder::v4(v4(source), v4(destination)).options(&[1; 4]).id(77)
        };
        if self.vlan { builder.vlan(9) } else { builder }
    }

    /// The packet, built anew, with every checksum by the builder.
    fn frame(&self) -> Vec<u8> {
        let mut out = Vec::new();
        let builder = self.builder(self.source.0, self.destination.0);
        let (from, to) = (self.source.1, self.destination.1);
        let ports = |more: &[u8]| {
            let ports = [from.to_be_bytes(), to.to_be_bytes()].concat();
            [&ports, more, &self.payload].concat()
        };
        let total = 8 + self.payload.len() as u16;
        match self.content {
            Content::Tcp => {
                let flags = TcpFlags::ACK;
                let tcp = Tcp { source_port: from, destination_port: to, flags, ..Tcp::default() };
                builder.tcp(&tcp, &self.payload, &mut out);
            }
            Content::Ports(protocol::UDP) => builder.udp(from, to, &self.payload, &mut out),
            Content::Ports(protocol::DCCP) => {
                let header = [4, 0, 0, 0, 4, 0, 0, 9];
                builder.transport(protocol::DCCP, &ports(&header), &mut out);
            }
            Content::Ports(protocol::SCTP) => {
                // One chunk of data.
                let chunk = [0, 3, 0, 4 + self.payload.len() as u8];
                let header = [&[1; 4], &[0; 4][..], &chunk].concat();
                builder.transport(protocol::SCTP, &ports(&header), &mut out);
            }
            Content::Ports(protocol) => {
                let [high, low] = total.to_be_bytes();
                builder.transport(protocol, &ports(&[high, low, 0, 0]), &mut out);
            }
            Content::UdpWithoutChecksum => {
                let [high, low] = total.to_be_bytes();
                builder.raw(protocol::UDP, &ports(&[high, low, 0, 0]), &mut out);
            }
            Content::Echo { reply } => {
                builder.echo(reply, if reply { to } else { from }, 5, &self.payload, &mut out);
            }
            Content::Call => {
                let [high, low] = (self.payload.len() as u16).to_be_bytes();
                let mut header = vec![0x20, 1, 0x88, 0x0b, high, low];
                header.extend(to.to_be_bytes());
                header.extend(&self.payload);
                builder.raw(protocol::GRE, &header, &mut out);
            }
            Content::Unknown => builder.raw(250, &self.payload, &mut out),
        }
        out
    }

    fn with(&self, to: &Readdress) -> Self {
        let end =
            |old, new: Option<TransportAddress>| new.map_or(old, |new| (new.address, new.port));
        Self {
            source: end(self.source, to.source),
            destination: end(self.destination, to.destination),
            ..self.clone()
        }
    }
}

fn content() -> impl Strategy<Value = Content> {
    prop_oneof![
        Just(Content::Tcp),
        Just(Content::Ports(protocol::UDP)),
        Just(Content::Ports(protocol::UDPLITE)),
        Just(Content::Ports(protocol::DCCP)),
        Just(Content::Ports(protocol::SCTP)),
        Just(Content::UdpWithoutChecksum),
        any::<bool>().prop_map(|reply| Content::Echo { reply }),
        Just(Content::Call),
        Just(Content::Unknown),
    ]
}

/// A packet and its new ends.
fn cases() -> impl Strategy<Value = (Model, Readdress)> {
    let end = || (any::<[u8; 16]>(), any::<u16>());
    let new = || prop::option::of(end());
    (any::<[bool; 2]>(), end(), end(), content(), 1usize..40, new(), new()).prop_map(
        |([v6, vlan], source, destination, content, length, from, to)| {
            let address = |address: [u8; 16]| if v6 { address } else { mapped(address) };
            let place = |(new, port)| TransportAddress { address: address(new), port };
            let model = Model {
                v6,
                vlan,
                source: (address(source.0), source.1),
                destination: (address(destination.0), destination.1),
                content,
                payload: (0..4 * length as u8).collect(),
            };
            (model, Readdress { source: from.map(place), destination: to.map(place) })
        },
    )
}

fn mapped(address: [u8; 16]) -> [u8; 16] {
    let mut mapped = [0; 16];
    mapped[10..12].fill(0xff);
    mapped[12..].copy_from_slice(&address[12..]);
    mapped
}

fn network(frame: &[u8]) -> Network {
    let Ok(Dissected { network: Some(network), .. }) = dissect(frame) else {
        panic!("no packet in {frame:02x?}");
    };
    network
}

fn apply(to: &Readdress, frame: &mut [u8], covers: ChecksumCovers) -> Network {
    let mut network = network(frame);
    let length = network.transport_len() as usize;
    to.apply(frame, &mut network, length, covers);
    network
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn becomes_the_packet_that_the_new_ends_would_have_sent((model, to) in cases()) {
        let mut frame = model.frame();
        let described = apply(&to, &mut frame, ChecksumCovers::All);
        prop_assert_eq!(&frame, &model.with(&to).frame());
        prop_assert_eq!(described, network(&frame));
    }

    #[test]
    fn a_wrong_checksum_stays_wrong_by_as_much((model, to) in cases(), flip in 1u8..) {
        let mut frame = model.frame();
        let last = frame.len() - 1;
        frame[last] ^= flip;
        apply(&to, &mut frame, ChecksumCovers::All);
        frame[last] ^= flip;
        prop_assert_eq!(&frame, &model.with(&to).frame());
    }

    #[test]
    fn a_partial_checksum_has_the_pseudo_header_of_the_new_ends((model, to) in cases()) {
        let partial = |model: &Model| {
            let mut frame = model.frame();
            let network = network(&frame);
            let at = match network.protocol {
                protocol::TCP => 16,
                protocol::UDP | protocol::UDPLITE | protocol::DCCP => 6,
                protocol::ICMPV6 => 2,
                _ => return None,
            };
            let field = usize::from(network.transport_offset) + at;
            let sum = !Sum::ZERO.pseudo_header(&network, network.transport_len()).finish();
            frame[field..field + 2].copy_from_slice(&sum.to_be_bytes());
            Some(frame)
        };
        if let Some(mut frame) = partial(&model) {
            apply(&to, &mut frame, ChecksumCovers::PseudoHeader);
            prop_assert_eq!(Some(frame), partial(&model.with(&to)));
        }
    }

    #[test]
    fn fragments_become_those_of_the_new_packet((mut model, to) in cases(), large: bool) {
        model.payload = vec![7; if large { 9000 } else { 400 }];
        // A chunk of SCTP has its own length, which this test ignores.
        let cut = |frame: &[u8]| {
            let mut fragments = Fragments::new(frame, &Cut { mtu: 300, id: 3, ..Cut::default() })
                .expect("longer than the MTU");
            let mut all = Vec::new();
            while let Some(length) = fragments.next_len() {
                let mut piece = vec![0; length];
                fragments.write_next(&mut piece);
                all.push(piece);
            }
            all
        };
        let whole = model.frame();
        let length = network(&whole).transport_len() as usize;
        let mut pieces = cut(&whole);
        for piece in &mut pieces {
            let mut described = network(piece);
            to.apply(piece, &mut described, length, ChecksumCovers::All);
            prop_assert_eq!(described, network(piece));
        }
        prop_assert_eq!(pieces, cut(&model.with(&to).frame()));
    }

    #[test]
    fn a_quote_becomes_that_of_the_new_packet((model, to) in cases(), words in 4usize..50) {
        let error = |model: &Model| {
            let about = model.frame();
            let header = usize::from(network(&about).offset);
            let end = about.len().min(usize::from(network(&about).transport_offset) + 2 * words);
            let mut out = Vec::new();
            let ends = ([0x26; 16], [0x27; 16]);
            let kind = if model.v6 { 1 } else { 3 };
            model.builder(ends.0, ends.1).icmp_error(kind, 0, [0; 4], &about[header..end], &mut out);
            out
        };
        let mut frame = error(&model);
        let mut described = network(&frame);
        to.apply_to_quoted(&mut frame, &mut described);
        let mut expected = error(&model.with(&to));
        if matches!(model.content, Content::Ports(protocol::SCTP)) {
            leave_crc(&mut expected, &error(&model));
        }
        prop_assert_eq!(&frame, &expected);
        prop_assert_eq!(described, network(&frame));
        prop_assert!(checksum::verify_transport(&frame, &described));
    }

    #[test]
    fn nothing_panics(mut bytes in prop::collection::vec(any::<u8>(), 14..200), v6: bool, to: [u16; 2]) {
        bytes[12..14].copy_from_slice(if v6 { &[0x86, 0xdd] } else { &[8, 0] });
        if let Some(first) = bytes.get_mut(14) {
            *first = if v6 { 0x60 } else { 0x45 };
        }
        if let Ok(Dissected { network: Some(mut network), .. }) = dissect(&bytes) {
            let place = |port| Some(TransportAddress { address: [9; 16], port });
            let to = Readdress { source: place(to[0]), destination: place(to[1]) };
            to.apply(&mut bytes, &mut network, 100, ChecksumCovers::All);
            to.apply_to_quoted(&mut bytes, &mut network);
        }
    }
}

/// Puts the CRC that `from` quotes into `error`, and corrects the checksum of that.
fn leave_crc(error: &mut [u8], from: &[u8]) {
    let described = network(error);
    let Transport::IcmpError(IcmpError { quoted: Some(quoted), .. }) = described.transport else {
        panic!("no quote");
    };
    let crc = usize::from(quoted.transport_offset) + SCTP_CHECKSUM;
    if let (Some(new), Some(old)) = (error.get_mut(crc..), from.get(crc..)) {
        let length = new.len().min(4);
        new[..length].copy_from_slice(&old[..length]);
    }
    checksum::fill_transport(error, &described);
}

#[test]
fn with_a_routing_header_the_last_destination_counts() {
    let (first, last, new) = ([0x21; 16], [0x22; 16], [0x23; 16]);
    let udp = |to: [u8; 16]| {
        let mut frame = Vec::new();
        PacketBuilder::v6([0x20; 16], to).udp(5, 7, b"data", &mut frame);
        frame[14 + 40..].to_vec()
    };
    let routed = |by: [u8; 16]| {
        let mut payload = vec![protocol::UDP, 2, 4, 1, 0, 0, 0, 0];
        payload.extend(last);
        payload.extend(udp(last));
        let mut frame = Vec::new();
        PacketBuilder::v6([0x20; 16], by).raw(43, &payload, &mut frame);
        frame
    };
    let mut frame = routed(first);
    let to = TransportAddress { address: new, port: 7 };
    apply(&Readdress { source: None, destination: Some(to) }, &mut frame, ChecksumCovers::All);
    assert_eq!(frame, routed(new));
}
