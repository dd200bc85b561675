use proptest::prelude::*;

use super::*;
use crate::build::{PacketBuilder, Tcp};
use crate::checksum::complete;
use crate::{TcpFlags, dissect, protocol};

/// A packet with any payload.
#[derive(Clone, Copy, Debug)]
struct Model {
    v6: bool,
    vlan: bool,
    kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Tcp,
    Udp,
    UdpWithoutChecksum,
}

impl Model {
    fn frame(self, payload: &[u8]) -> Vec<u8> {
        let builder = match self.v6 {
            true => PacketBuilder::v6([1; 16], [2; 16]),
            false => PacketBuilder::v4([192, 0, 2, 1], [198, 51, 100, 2]).id(9).options(&[1; 4]),
        };
        let builder = if self.vlan { builder.vlan(9) } else { builder };
        let mut out = Vec::new();
        match self.kind {
            Kind::Tcp => {
                let flags = TcpFlags::ACK;
                let tcp = Tcp { source_port: 7, flags, options: &[1; 12], ..Tcp::default() };
                builder.tcp(&tcp, payload, &mut out);
            }
            Kind::Udp => builder.udp(7, 9, payload, &mut out),
            Kind::UdpWithoutChecksum => {
                let length = (8 + payload.len() as u16).to_be_bytes();
                let header = [0, 7, 0, 9, length[0], length[1], 0, 0];
                builder.raw(protocol::UDP, &[&header, payload].concat(), &mut out);
            }
        }
        out
    }
}

fn network_of(frame: &[u8]) -> Network {
    dissect(frame).unwrap().network.unwrap()
}

type Texts = Vec<(Vec<u8>, Vec<u8>, Vec<u8>)>;

/// Bytes that stay, bytes that are replaced, and their replacement, in turn.
fn texts() -> impl Strategy<Value = Texts> {
    let text = || prop::collection::vec(any::<u8>(), 0..40);
    prop::collection::vec((text(), text(), text()), 0..5)
}

fn model() -> impl Strategy<Value = Model> {
    let kind = prop::sample::select(&[Kind::Tcp, Kind::Udp, Kind::UdpWithoutChecksum][..]);
    (any::<bool>(), any::<bool>(), kind).prop_map(|(v6, vlan, kind)| Model { v6, vlan, kind })
}

proptest! {
    /// Compared with a packet that was built with the other payload.
    #[test]
    fn an_edited_packet_is_one_that_was_built_so(
        model in model(), texts in texts(), rest: Vec<u8>, padding in 0usize..20, wrong: bool,
    ) {
        let (mut before, mut after, mut edits) = (Vec::new(), Vec::new(), Vec::new());
        for (stays, goes, comes) in &texts {
            before.extend(stays);
            after.extend(stays);
            edits.push((before.len()..before.len() + goes.len(), &comes[..]));
            before.extend(goes);
            after.extend(comes);
        }
        before.extend(&rest);
        after.extend(&rest);
        let mut frame = model.frame(&before);
        let network = network_of(&frame);
        let at = usize::from(network.transport_offset) + sum_field(network.protocol, network.family).unwrap();
        let wrong = wrong && model.kind != Kind::UdpWithoutChecksum;
        if wrong {
            frame[at] ^= 0x55;
        }
        frame.resize(frame.len() + padding, 0);
        let mut out = vec![1, 2, 3];
        let edited =
            edit_payload(&frame, &network, edits.clone(), ChecksumCovers::All, &mut out).unwrap();
        let wanted = model.frame(&after);
        prop_assert_eq!(edited, network_of(&wanted));
        if !wrong {
            prop_assert_eq!(&out, &wanted);
        } else if before == after {
            prop_assert!(!verify_transport(&out, &edited));
        }
        // A network card completes it to the same packet.
        if model.kind != Kind::UdpWithoutChecksum && !wrong {
            let length = (network.end as usize - usize::from(network.transport_offset)) as u32;
            let sum = !crate::checksum::Sum::ZERO.pseudo_header(&network, length).finish();
            frame[at..at + 2].copy_from_slice(&sum.to_be_bytes());
            edit_payload(&frame, &network, edits, ChecksumCovers::PseudoHeader, &mut out).unwrap();
            let start = network.transport_offset;
            prop_assert!(complete(&mut out, start, at as u16 - start));
            prop_assert_eq!(out, wanted);
        }
    }
}

#[test]
fn impossible_edits_are_refused() {
    let model = Model { v6: false, vlan: false, kind: Kind::Tcp };
    let frame = model.frame(&[7; 100]);
    let network = network_of(&frame);
    let edit = |edits: Vec<(Range<usize>, &[u8])>| {
        edit_payload(&frame, &network, edits, ChecksumCovers::All, &mut Vec::new())
    };
    assert!(edit(vec![(0..100, b"a")]).is_some());
    assert!(edit(vec![(0..101, b"a")]).is_none());
    assert!(edit(vec![(5..10, b"a"), (9..12, b"b")]).is_none());
    let headers = (network.end - u32::from(network.offset)) as usize - 100;
    let long = vec![0; 65535 - headers + 1];
    assert!(edit(vec![(0..100, &long[1..])]).is_some());
    assert!(edit(vec![(0..100, &long)]).is_none());
    let mut out = Vec::new();
    PacketBuilder::v4([192, 0, 2, 1], [192, 0, 2, 2]).echo(false, 1, 1, b"abc", &mut out);
    let echo = network_of(&out);
    assert_eq!(edit_payload(&out, &echo, [], ChecksumCovers::All, &mut Vec::new()), None);
}
