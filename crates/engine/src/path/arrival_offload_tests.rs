//! A sender says where others are to write a checksum. Whatever it says, the packet leaves as it
//! was judged: only the checksum of a transport is written.

use std::collections::BTreeSet;
use std::ops::Range;

use flow::HashKey;
use netio::{Checksum, Frame, FramePool, Segmentation};
use wire::build::{PacketBuilder, Tcp};
use wire::{TcpFlags, protocol};

use super::*;
use crate::Config;
use crate::testing::one_worker::Rig;
use crate::testing::router::*;

/// A packet, and where its checksum may be left to others.
struct Subject {
    name: &'static str,
    bytes: Vec<u8>,
    /// Start of each transport that has a checksum, and where that is from there.
    fields: Vec<(u16, u16)>,
}

fn subject(name: &'static str, fields: &[(u16, u16)], write: impl FnOnce(&mut Vec<u8>)) -> Subject {
    let mut bytes = Vec::new();
    write(&mut bytes);
    Subject { name, bytes, fields: fields.to_vec() }
}

fn outer() -> PacketBuilder {
    from_inside([192, 0, 2, 1], SERVER)
}

/// The IP packet inside a tunnel, and a frame around it.
fn inner_frame() -> Vec<u8> {
    tcp(&PacketBuilder::v4([10, 0, 0, 1], [10, 0, 0, 2]), (5000, 80), 2, (7, 0))
}

/// The same as a local sender leaves it: the checksum holds the sum of the pseudo header. The
/// checksum outside counts on its being completed.
fn leave_checksum(frame: &mut [u8], start: usize) {
    let field = start + 16..start + 18;
    let complete = u16::from_be_bytes([frame[field.start], frame[field.start + 1]]);
    frame[field.clone()].fill(0);
    let rest = wire::checksum::checksum(&frame[start..]);
    let pseudo_header = !wire::checksum::Sum::ZERO.word(!complete).word(rest).finish();
    frame[field].copy_from_slice(&pseudo_header.to_be_bytes());
}

fn acknowledgment() -> Tcp<'static> {
    Tcp { flags: TcpFlags::ACK, ..Tcp::default() }
}

fn init() -> Vec<u8> {
    let chunk = [1, 0, 0, 20, 0, 0, 0, 9, 0, 1, 0, 0, 0, 1, 0, 1, 0, 0, 0, 5];
    [&[0x0f, 0xa0, 0x0f, 0xa1, 0, 0, 0, 0, 0, 0, 0, 0][..], &chunk].concat()
}

/// Packets of IPv4 that are neither tagged nor labelled, so that a router takes them too.
fn plain() -> Vec<Subject> {
    let syn = tcp(&outer(), (5000, 80), 2, (7, 0));
    let vxlan = [&[8, 0, 0, 0, 0, 0, 7, 0], &inner_frame()[..]].concat();
    let gre = [&[0, 0, 8, 0], &inner_frame()[14..]].concat();
    let bridging = [&[0x20, 0, 0x65, 0x58, 0, 0, 0, 7], &inner_frame()[..]].concat();
    vec![
        subject("tcp", &[(34, 16)], |out| *out = syn),
        subject("udp", &[(34, 6)], |out| outer().udp(5000, 53, &[7; 30], out)),
        subject("echo", &[(34, 2)], |out| outer().echo(false, 7, 1, &[5; 30], out)),
        subject("sctp", &[(34, 8)], |out| outer().transport(protocol::SCTP, &init(), out)),
        subject("ospf", &[], |out| outer().raw(89, &[1; 40], out)),
        subject("vxlan", &[(34, 6), (84, 16)], |out| {
            outer().udp(9, 4789, &vxlan, out);
            leave_checksum(out, 84);
        }),
        subject("gre", &[(58, 16)], |out| outer().raw(protocol::GRE, &gre, out)),
        subject("gretap", &[(76, 16)], |out| outer().raw(protocol::GRE, &bridging, out)),
        subject("ipip", &[(54, 16)], |out| outer().raw(protocol::IPIP, &inner_frame()[14..], out)),
        // Bytes in a stream that look like a tunnel are none.
        subject("ip in tcp", &[(34, 16)], |out| {
            outer().tcp(&acknowledgment(), &inner_frame()[14..], out);
        }),
    ]
}

/// Packets that a bridge takes besides.
fn others() -> Vec<Subject> {
    let six = || PacketBuilder::v6([0x20; 16], [0x21; 16]);
    let tagged = |builder: PacketBuilder| tcp(&builder, (5000, 80), 2, (7, 0));
    let tags = [0x81, 0, 0, 0].repeat(4);
    let syn = inner_frame();
    vec![
        subject("udp over IPv6", &[(54, 6)], |out| six().udp(5000, 53, &[7; 30], out)),
        subject("echo over IPv6", &[(54, 2)], |out| six().echo(false, 7, 1, &[5; 30], out)),
        subject("in a VLAN", &[(38, 16)], |out| *out = tagged(outer().vlan(7))),
        subject("in PPPoE", &[(42, 16)], |out| *out = tagged(outer().pppoe(7))),
        // A checksum at the right place would make this an IP packet.
        subject("ARP behind tags", &[], |out| {
            *out = [&syn[..12], &tags, &[8, 6], &syn[14..]].concat();
        }),
        subject("ARP", &[], |out| *out = [&syn[..12], &[8, 6], &syn[14..]].concat()),
        subject("a first fragment", &[], |out| {
            outer().fragment(protocol::UDP, 0, true, &[0, 9, 0, 9, 0, 80, 0, 0], out);
        }),
    ]
}

impl Subject {
    fn frame(&self, start: u16, offset: u16) -> Frame {
        let mut frame = FramePool::new(0, 0).copy_of(&self.bytes).unwrap();
        frame.offload.checksum = Checksum::Partial { start, offset };
        frame
    }

    /// Tries each place, with `pass` between two links. A frame leaves for the right places
    /// alone, and differs from the one that came in the checksum and in `changes` only.
    fn try_all(&self, changes: &[Range<usize>], mut pass: impl FnMut(Frame) -> Option<Frame>) {
        let mut left = BTreeSet::new();
        let end = self.bytes.len() as u16 + 2;
        for (start, offset) in (0..end).flat_map(|start| (0..end).map(move |at| (start, at))) {
            let Some(mut frame) = pass(self.frame(start, offset)) else { continue };
            if let Checksum::Partial { start, offset } = frame.offload.checksum {
                assert!(wire::checksum::complete(frame.bytes_mut(), start, offset));
            }
            left.insert((start, offset));
            let length = if offset == 8 { 4 } else { 2 };
            let field = usize::from(start + offset);
            let allowed = |at: usize| {
                (field..field + length).contains(&at) || changes.iter().any(|it| it.contains(&at))
            };
            let pairs = self.bytes.iter().zip(frame.bytes()).enumerate();
            let differing = pairs.filter(|(at, (old, new))| old != new && !allowed(*at));
            let places: Vec<_> = differing.map(|(at, _)| at).collect();
            assert_eq!(places, [0; 0], "{} by {start} and {offset}", self.name);
            assert_eq!(frame.len(), self.bytes.len());
        }
        let expected: BTreeSet<_> = self.fields.iter().copied().collect();
        assert_eq!(left, expected, "{}", self.name);
    }
}

#[test]
fn a_bridge_writes_nothing_but_the_checksum_of_a_transport() {
    for subject in plain().into_iter().chain(others()) {
        let mut rig = Rig::new(&Config::new(HashKey(1, 2)));
        subject.try_all(&[], |frame| rig.exchange(0, [frame])[1].pop());
        let dropped = rig.worker.path.counters.dropped(DropReason::OffloadMismatch);
        let end = subject.bytes.len() as u64 + 2;
        assert_eq!(dropped, end * end - subject.fields.len() as u64, "{}", subject.name);
    }
}

#[test]
fn a_router_that_masquerades_writes_checksums_hop_and_addresses_alone() {
    for subject in plain() {
        let mut gateway = gateway(1);
        // Stations; identification; hop and the header's checksum; source.
        let mut changes = vec![0..12, 18..20, 22..23, 24..26, 26..30];
        let has_ports = ["tcp", "udp", "sctp", "vxlan", "ip in tcp"].contains(&subject.name);
        if has_ports {
            changes.push(34..36);
        }
        if subject.name == "echo" {
            changes.push(38..40);
        }
        // The gateway leaves the checksum inside a tunnel to others, and completes the one outside.
        if subject.name == "vxlan" {
            changes.push(40..42);
        }
        subject.try_all(&changes, |frame| {
            gateway.inputs[0].put([frame]);
            gateway.run_until_idle();
            gateway.sent(1).pop()
        });
    }
}

/// A packet, where its transport begins and has its checksum, the kinds of super-packet that it may
/// be, and the length of its headers.
type Long<'a> = (&'a [u8], u16, u16, &'a [u8], u16);

/// A super-packet passes if it is what it says, and with the length of its headers.
#[test]
fn a_super_packet_is_of_the_kind_that_it_says() {
    let mut long = Vec::new();
    outer().tcp(&acknowledgment(), &[7; 3000], &mut long);
    let mut datagrams = Vec::new();
    outer().udp(9, 5000, &[7; 3000], &mut datagrams);
    let mut six = Vec::new();
    PacketBuilder::v6([0x20; 16], [0x21; 16]).tcp(&acknowledgment(), &[7; 3000], &mut six);
    let mut tunnel = Vec::new();
    outer().raw(protocol::IPIP, &long[14..], &mut tunnel);
    let padded = [&long[..], &[0; 4]].concat();
    let mut short_datagram = datagrams.clone();
    short_datagram[38..40].copy_from_slice(&[0, 100]);
    let packets: [Long<'_>; 6] = [
        (&long, 34, 16, &[1, 0x81], 54),
        (&datagrams, 34, 6, &[5], 42),
        (&six, 54, 16, &[4, 0x84], 74),
        (&tunnel, 54, 16, &[1, 0x81], 74),
        // Bytes behind the packet, or behind the datagram, would become part of it.
        (&padded, 34, 16, &[], 54),
        (&short_datagram, 34, 6, &[], 42),
    ];
    let mut rig = Rig::new(&Config::new(HashKey(1, 2)));
    for (number, (bytes, start, offset, kinds, headers)) in packets.into_iter().enumerate() {
        for kind in 0..=255 {
            for (segment_size, said) in [(1000, 54), (1000, 14), (0, 54), (1000, u16::MAX), (1, 0)]
            {
                let mut frame = FramePool::new(0, 0).copy_of(bytes).unwrap();
                let header_length = said;
                frame.offload.checksum = Checksum::Partial { start, offset };
                frame.offload.segmentation =
                    Some(Segmentation { kind, segment_size, header_length });
                let sent = rig.exchange(0, [frame])[1].pop();
                let fits = segment_size > 0 && said < u16::MAX && kinds.contains(&kind);
                let left = sent.map(|sent| sent.offload.segmentation.unwrap());
                let expected = Segmentation { kind, segment_size, header_length: headers };
                assert_eq!(left, fits.then_some(expected), "packet {number}, kind {kind}");
            }
        }
    }
}
