//! Packets that match random rules.

use lab::{Random, Side};
use wire::TcpFlags;
use wire::build::{PacketBuilder, Tcp};

use super::{NUMBERLESS, PORTS, Packet, Traffic, host};

/// The number of packets in a case.
const PACKETS: usize = 60;
/// The factor from a packet's number to its sequence numbers. The player identifies a reset by
/// them.
const NUMBERED: u32 = 100_000;

/// The client, the server and the ports of both; the ports are indices into `PORTS`.
type Ends = [usize; 4];

/// Packets of some flows. With `options` some packets of IPv4 have options.
pub fn packets(random: &mut Random, traffic: Traffic, options: bool) -> Vec<Packet> {
    let ends = |random: &mut Random| -> Ends {
        [host(random), host(random), random.between(0, 7), random.between(0, 7)]
    };
    let flows: Vec<Ends> = (0..12).map(|_| ends(random)).collect();
    let mut sent = [0; 12];
    (0..PACKETS as u32)
        .map(|number| {
            // The packets belong to few flows, so that some are answered.
            if traffic != Traffic::Tracked {
                let ends = ends(random);
                return packet(random, ends, number, (traffic, options), None);
            }
            let flow = random.between(0, flows.len() - 1);
            sent[flow] += 1;
            packet(random, flows[flow], number, (traffic, options), Some(sent[flow]))
        })
        .collect()
}

fn builder(random: &mut Random, [client, server, ..]: Ends, side: Side) -> PacketBuilder {
    let is_back = side == Side::Server;
    let builder = if (client + server).is_multiple_of(3) {
        let mut ends = [(1, client), (2, server)].map(|(net, host)| {
            let mut address = [0x20, 1, 0x0d, 0xb8, 0, net, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
            address[15] = host as u8;
            address
        });
        if is_back {
            ends.reverse();
        }
        PacketBuilder::v6(ends[0], ends[1])
    } else {
        let mut ends = [[192, 0, 2, client as u8], [198, 51, 100, server as u8]];
        if is_back {
            ends.reverse();
        }
        PacketBuilder::v4(ends[0], ends[1])
    };
    let builder = if random.once_in(3) { builder.dont_fragment() } else { builder };
    let mac = [0, 0, 0x5e, 0, 0x53, random.one_of(&[1, 2, 3, 0x77])];
    builder
        .macs(mac, [0; 6])
        .id(random.one_of(&[0, 99, 5000]))
        .ttl(random.one_of(&[64, 64, 63, 41, 200]))
        .traffic_class(random.one_of(&[0, 0, 0x20, 0xb8, 3, 2]))
}

/// The TCP flags of a packet in a flow, or of a single packet.
fn flags(random: &mut Random, traffic: Traffic, of_flow: Option<u32>) -> u8 {
    match (traffic, of_flow) {
        (Traffic::Translated, _) | (_, Some(1)) => 0x02,
        (_, None) => random.one_of(&[0x02, 0x02, 0x12, 0x10, 0x18, 0x11, 0x04, 0x14, 0, 0x29]),
        (_, Some(2)) => 0x12,
        (_, Some(_)) => 0x10,
    }
}

/// Puts an extension header into some packets of IPv6: options for each hop or the destination, or
/// an empty segment routing header (RFC 8200 section 4, RFC 8754).
fn extend(random: &mut Random, frame: &mut Vec<u8>) {
    const IPV6: [u8; 2] = [0x86, 0xdd];
    if frame[12..14] != IPV6 || !random.once_in(2) {
        return;
    }
    let (number, content): (u8, &[u8]) = random.one_of(&[
        (0, &[0, 1, 4, 0, 0, 0, 0][..]),
        (60, &[0, 1, 4, 0, 0, 0, 0]),
        (60, &[1, 1, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
        (43, &[0, 4, 0, 0, 0, 0, 0]),
    ]);
    let inside = [&[frame[20]], content].concat();
    let length = u16::from_be_bytes([frame[18], frame[19]]) + inside.len() as u16;
    frame[18..20].copy_from_slice(&length.to_be_bytes());
    frame[20] = number;
    frame.splice(54..54, inside);
}

/// An option of TCP, filled up to words: SACK permitted, a window scale, a time stamp or a SACK.
fn tcp_option(random: &mut Random) -> &'static [u8] {
    random.one_of(&[
        &[][..],
        &[],
        &[4, 2, 1, 1],
        &[3, 3, 7, 1],
        &[8, 10, 0, 0, 0, 7, 0, 0, 0, 0, 1, 1],
        &[1, 1, 5, 10, 0, 0, 0, 5, 0, 0, 0, 9],
    ])
}

/// The options of a segment. The last is an experimental one (RFC 4727), which ends with the number.
fn options_of(random: &mut Random, traffic: Traffic, opens: bool, number: u32) -> Vec<u8> {
    let mut options = Vec::new();
    if opens && random.once_in(2) {
        options.extend([2, 4]);
        options.extend(random.one_of(&[1460_u16, 1220, 536]).to_be_bytes());
    }
    if traffic == Traffic::Stateless {
        options.extend(tcp_option(random));
    }
    options.extend([254, 8]);
    options.extend(&u64::from(number).to_be_bytes()[2..]);
    options
}

/// A packet of SCTP: perhaps a SACK, then data (RFC 9260 section 3.3), which end with the number.
fn sctp(random: &mut Random, ports: [u16; 2], number: u32) -> Vec<u8> {
    let ends = ports.map(u16::to_be_bytes).concat();
    let mut packet = [&ends[..], &[0, 0, 0, 7, 0, 0, 0, 0]].concat();
    if random.once_in(2) {
        packet.extend([3, 0, 0, 16, 0, 0, 0, 5, 0, 0, 1, 0, 0, 0, 0, 0]);
    }
    let length = 16 + 8;
    packet.extend([0, 3, 0, length, 0, 0, 0, random.one_of(&[7, 8]), 0, 0, 0, 1]);
    packet.extend([0, 0, 0, random.one_of(&[0, 9])]);
    packet.extend(u64::from(number).to_be_bytes());
    packet
}

fn packet(
    random: &mut Random,
    ends: Ends,
    number: u32,
    (traffic, options): (Traffic, bool),
    of_flow: Option<u32>,
) -> Packet {
    // Other tests compare the trackers, so connections open correctly here.
    let side = match of_flow {
        Some(1) => Side::Client,
        Some(2) => Side::Server,
        _ => random.one_of(&[Side::Client, Side::Client, Side::Server]),
    };
    let [client, _, from, to] = ends;
    let mut ports = [PORTS[from], PORTS[to]];
    let mut id = 7;
    if side == Side::Server {
        ports.reverse();
    }
    if traffic == Traffic::Translated {
        // Each packet has a port or identifier of its own, so that no translations collide.
        id = 2000 + number as u16;
        ports[0] = id;
    }
    let builder = builder(random, ends, side);
    // A record of the route with nothing in it yet, and a router alert (RFC 791, RFC 2113).
    let recorded: &[u8] =
        random.one_of(&[&[][..], &[], &[], &[7, 7, 4, 0, 0, 0, 0, 1], &[1, 148, 4, 0, 0, 0, 0, 0]]);
    let builder = if options { builder.options(recorded) } else { builder };
    // The number is at the end, so that the player finds it in the frames that come out.
    let mut payload = random.bytes(random.clone().between(0, 40));
    payload.extend(u64::from(number).to_be_bytes());
    let mut frame = Vec::new();
    match (client + from) % 4 {
        0 | 1 => {
            let flags = flags(random, traffic, of_flow);
            let has = |bit| flags & bit != 0;
            let options = options_of(random, traffic, has(0x02), number);
            let (sequence, acknowledgment) = match of_flow {
                None => (number * NUMBERED, number * NUMBERED),
                Some(_) if has(0x02) => (1000, 1001),
                Some(_) => (1001, 1001),
            };
            let tcp = Tcp {
                source_port: ports[0],
                destination_port: ports[1],
                sequence,
                acknowledgment: if has(0x10) { acknowledgment } else { 0 },
                flags: TcpFlags(flags),
                window: 5000,
                options: &options,
            };
            // A packet that opens a connection carries no data, as with most senders.
            let is_bare = traffic != Traffic::Stateless && has(0x02);
            builder.tcp(&tcp, if is_bare { &[] } else { &payload }, &mut frame);
        }
        2 => {
            builder.udp(ports[0], ports[1], &payload, &mut frame);
            extend(random, &mut frame);
        }
        _ if traffic == Traffic::Stateless && random.once_in(4) => {
            let packet = sctp(random, ports, number);
            builder.transport(wire::protocol::SCTP, &packet, &mut frame);
        }
        _ if traffic != Traffic::Translated && random.once_in(4) => {
            builder.transport(NUMBERLESS, &payload, &mut frame);
        }
        _ => {
            let is_reply = side == Side::Server && traffic != Traffic::Translated;
            builder.echo(is_reply, id, 1, &payload, &mut frame);
        }
    }
    Packet { side, frame }
}
