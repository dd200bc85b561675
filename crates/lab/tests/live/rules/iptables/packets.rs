//! The packets that go through the rules: of every protocol, and in every state of a connection.

use lab::{Family, Side};
use wire::build::{PacketBuilder, Tcp, sctp};
use wire::{TcpFlags, protocol};

use crate::scenario::cables::{CLIENT, CLIENT_V6, OWN, SERVER, SERVER_V6, Sent};

/// A kind of packets. Those of one source port are one connection.
pub struct Kind {
    pub name: String,
    /// The packets of the connection with this source port.
    pub packets: Box<dyn Fn(u16) -> Vec<Sent>>,
}

const FIN: u8 = 1;
const SYN: u8 = 2;
const RST: u8 = 4;
const PSH: u8 = 8;
const ACK: u8 = 16;
const URG: u8 = 32;

/// Options of a SYN: a maximum segment size of 1460.
const SEGMENT_SIZE: [u8; 4] = [2, 4, 0x05, 0xb4];
/// The same with 1200, and a timestamp.
const TIMESTAMP: [u8; 16] = [2, 4, 0x04, 0xb0, 8, 10, 0, 0, 0, 1, 0, 0, 0, 0, 1, 1];

/// A packet of a connection between the client and the server, or another host beside it.
#[derive(Clone, Copy)]
struct Maker {
    family: Family,
    /// The last byte of the server's address.
    server: u8,
    /// The client's port.
    port: u16,
}

impl Maker {
    fn new(family: Family, port: u16) -> Self {
        Self { family, server: 2, port }
    }

    /// The headers of a packet to the server.
    fn forth(self) -> PacketBuilder {
        let [mut v4, mut v6] = [SERVER.to_vec(), SERVER_V6.to_vec()];
        *v4.last_mut().unwrap() = self.server;
        *v6.last_mut().unwrap() = self.server;
        match self.family {
            Family::V4 => PacketBuilder::v4(CLIENT, v4.try_into().unwrap()),
            Family::V6 => PacketBuilder::v6(CLIENT_V6, v6.try_into().unwrap()),
        }
    }

    /// The headers of a packet from the server.
    fn back(self) -> PacketBuilder {
        match self.family {
            Family::V4 => PacketBuilder::v4(SERVER, CLIENT),
            Family::V6 => PacketBuilder::v6(SERVER_V6, CLIENT_V6),
        }
    }

    /// The end of a payload, which no two packets share: `number` is that of the packet in its
    /// connection.
    fn mark(self, number: u8) -> [u8; 8] {
        let [first, second] = self.port.to_be_bytes();
        let family = if self.family == Family::V4 { 4 } else { 6 };
        [b'f', b'o', b'r', b'm', family, number, first, second]
    }

    fn tcp(self, port: u16, flags: u8, options: &[u8]) -> Sent {
        let tcp = Tcp {
            source_port: self.port,
            destination_port: port,
            sequence: 1000,
            acknowledgment: 5000,
            flags: TcpFlags(flags),
            window: 8192,
            options,
        };
        let mut frame = Vec::new();
        self.forth().tcp(&tcp, &self.mark(0), &mut frame);
        Sent { side: Side::Client, frame }
    }

    fn udp(self, port: u16) -> Sent {
        self.udp_with(&self.forth(), port, &self.mark(0))
    }

    fn udp_with(self, headers: &PacketBuilder, port: u16, payload: &[u8]) -> Sent {
        let mut frame = Vec::new();
        headers.udp(self.port, port, payload, &mut frame);
        Sent { side: Side::Client, frame }
    }

    fn answer(self, port: u16) -> Sent {
        let mut frame = Vec::new();
        self.back().udp(port, self.port, &self.mark(1), &mut frame);
        Sent { side: Side::Server, frame }
    }

    /// An answer to a masqueraded datagram.
    fn answer_to_router(self, port: u16) -> Sent {
        let headers = match self.family {
            Family::V4 => PacketBuilder::v4(SERVER, OWN[1]),
            Family::V6 => {
                let mut own = SERVER_V6;
                own[15] = 0xfe;
                PacketBuilder::v6(SERVER_V6, own)
            }
        };
        let mut frame = Vec::new();
        headers.udp(port, self.port, &self.mark(1), &mut frame);
        Sent { side: Side::Server, frame }
    }

    /// A packet of another protocol, with this beginning.
    fn other(self, protocol: u8, begin: &[u8]) -> Sent {
        let mut frame = Vec::new();
        self.forth().transport(protocol, &[begin, &self.mark(0)].concat(), &mut frame);
        Sent { side: Side::Client, frame }
    }

    /// An error of the server about a packet that it has got, or would have.
    fn error(self, kind: [u8; 2], about: &Sent) -> Sent {
        let quoted = [&about.frame[14..], &self.mark(2)].concat();
        let mut frame = Vec::new();
        self.back().icmp_error(kind[0], kind[1], [0; 4], &quoted, &mut frame);
        Sent { side: Side::Server, frame }
    }

    /// A segment of a conversation, from the server if `is_back`.
    fn segment(
        self,
        number: u8,
        is_back: bool,
        port: u16,
        [seq, ack]: [u32; 2],
        flags: u8,
    ) -> Sent {
        let (from, to) = if is_back { (port, self.port) } else { (self.port, port) };
        let tcp = Tcp {
            source_port: from,
            destination_port: to,
            sequence: seq,
            acknowledgment: ack,
            flags: TcpFlags(flags),
            window: 8192,
            options: if flags & SYN == 0 { &[] } else { &SEGMENT_SIZE },
        };
        let mut frame = Vec::new();
        let headers = if is_back { self.back() } else { self.forth() };
        headers.tcp(&tcp, &self.mark(number), &mut frame);
        Sent { side: if is_back { Side::Server } else { Side::Client }, frame }
    }

    /// A connection of TCP from its opening to the answer.
    fn conversation(self, port: u16) -> Vec<Sent> {
        // Each segment has 8 bytes of payload.
        vec![
            self.segment(0, false, port, [1000, 0], SYN),
            self.segment(1, true, port, [5000, 1001], SYN | ACK),
            self.segment(2, false, port, [1009, 5009], ACK),
            self.segment(3, true, port, [5009, 1017], PSH | ACK),
        ]
    }
}

fn kind(name: &str, packets: impl Fn(u16) -> Vec<Sent> + 'static) -> Kind {
    Kind { name: name.to_owned(), packets: Box::new(packets) }
}

/// The kinds of a family.
pub fn kinds(family: Family) -> Vec<Kind> {
    let parts = [segments, datagrams, errors, of_other_protocols, with_other_fields];
    parts.into_iter().flat_map(|part| part(family)).collect()
}

fn segments(family: Family) -> Vec<Kind> {
    let of = move |port| Maker::new(family, port);
    let mut kinds = Vec::new();
    for (name, flags) in [
        ("null", 0),
        ("ACK", ACK),
        ("RST", RST),
        ("RST ACK", RST | ACK),
        ("FIN ACK", FIN | ACK),
        ("SYN FIN", SYN | FIN),
        ("FIN PSH URG", FIN | PSH | URG),
        ("all flags", FIN | SYN | RST | PSH | ACK | URG),
        ("SYN ACK", SYN | ACK),
        ("PSH ACK", PSH | ACK),
    ] {
        kinds.push(kind(name, move |port| vec![of(port).tcp(80, flags, &[])]));
    }
    for (name, to, options) in [
        ("SYN to 22", 22, &SEGMENT_SIZE[..]),
        ("SYN to 80", 80, &[]),
        ("SYN to 90", 90, &TIMESTAMP),
        ("SYN to 443", 443, &SEGMENT_SIZE),
        ("SYN to 7010", 7010, &SEGMENT_SIZE),
        ("SYN to 7011", 7011, &SEGMENT_SIZE),
        ("SYN to 7046", 7046, &[]),
    ] {
        kinds.push(kind(name, move |port| vec![of(port).tcp(to, SYN, options)]));
    }
    kinds.push(kind("connection of TCP", move |port| of(port).conversation(80)));
    kinds.push(kind("SYN to a translated address", move |port| {
        vec![Maker { server: 9, ..of(port) }.tcp(7016, SYN, &[])]
    }));
    kinds
}

fn datagrams(family: Family) -> Vec<Kind> {
    let of = move |port| Maker::new(family, port);
    let mut kinds = Vec::new();
    // Each port of the targets, and some others. Gateways limit the rate of their errors, so refused
    // ports stand apart.
    let ports = (7000..=7013).chain([7021, 7022, 7023]).chain(7030..=7038).chain([53, 123]);
    let (ports, mut refused) = (ports.collect::<Vec<u16>>(), 7040..=7046);
    for to in ports.chunks(4).flat_map(|some| some.iter().copied().chain(refused.next())) {
        kinds.push(kind(&format!("UDP to {to}"), move |port| vec![of(port).udp(to)]));
    }
    for to in [7014, 7015, 7017] {
        kinds.push(kind(&format!("UDP to {to} of a translated address"), move |port| {
            let asked = Maker { server: 9, ..of(port) }.udp(to);
            let from = if to == 7015 { 7099 } else { to };
            vec![asked.clone(), of(port).answer(from), asked]
        }));
    }
    for to in [7021, 7022, 7023] {
        kinds.push(kind(&format!("UDP to {to} with its answer"), move |port| {
            vec![of(port).udp(to), of(port).answer_to_router(to), of(port).udp(to)]
        }));
    }
    for to in [53, 7036, 7037, 7038] {
        kinds.push(kind(&format!("UDP to {to} with its answer"), move |port| {
            vec![of(port).udp(to), of(port).answer(to), of(port).udp(to)]
        }));
    }
    kinds.push(kind("UDP between low ports", move |port| {
        let low = Maker { port: 1 + port % 1000, ..of(port) };
        let from_53 = Maker { port: 53, ..low };
        vec![low.udp(123), from_53.udp_with(&low.forth(), port, &of(port).mark(1))]
    }));
    kinds
}

/// Errors, and a ping.
fn errors(family: Family) -> Vec<Kind> {
    let of = move |port| Maker::new(family, port);
    let mut kinds = Vec::new();
    kinds.push(kind("error about a datagram", move |port| {
        let asked = of(port).udp(53);
        let kind = if family == Family::V4 { [3, 3] } else { [1, 4] };
        vec![asked.clone(), of(port).error(kind, &asked)]
    }));
    kinds.push(kind("other error about a datagram", move |port| {
        let asked = of(port).udp(123);
        let kind = if family == Family::V4 { [3, 4] } else { [1, 3] };
        vec![asked.clone(), of(port).error(kind, &asked)]
    }));
    kinds.push(kind("error about nothing", move |port| {
        let kind = if family == Family::V4 { [3, 4] } else { [1, 4] };
        vec![of(port).error(kind, &of(port).udp(55))]
    }));
    kinds.push(kind("ping with its answer", move |port| {
        let (mut asked, mut answered) = (Vec::new(), Vec::new());
        of(port).forth().echo(false, port, 1, &of(port).mark(0), &mut asked);
        of(port).back().echo(true, port, 1, &of(port).mark(1), &mut answered);
        vec![
            Sent { side: Side::Client, frame: asked },
            Sent { side: Side::Server, frame: answered },
        ]
    }));
    kinds
}

fn of_other_protocols(family: Family) -> Vec<Kind> {
    let of = move |port| Maker::new(family, port);
    let mut kinds = Vec::new();
    for to in [5, 7] {
        kinds.push(kind(&format!("SCTP to {to}"), move |port: u16| {
            // An INIT (RFC 9260 section 3.3.2), whose numbers of streams and whose first sequence
            // number are those of the mark.
            let init = [&[0, 0, 0, 9, 0, 1, 0, 0][..], &of(port).mark(0)].concat();
            let mut packet = sctp::packet(0, &[sctp::chunk(1, 0, &init)]);
            packet[..2].copy_from_slice(&port.to_be_bytes());
            packet[2..4].copy_from_slice(&u16::to_be_bytes(to));
            let mut frame = Vec::new();
            of(port).forth().transport(protocol::SCTP, &packet, &mut frame);
            vec![Sent { side: Side::Client, frame }]
        }));
        kinds.push(kind(&format!("ESP of {to}"), move |port| {
            vec![of(port).other(50, &[0, 0, 0, to as u8, 0, 0, 0, 1])]
        }));
        kinds.push(kind(&format!("ESP of {}", 10 * to), move |port| {
            vec![of(port).other(50, &[0, 0, 0, 10 * to as u8, 0, 0, 0, 1])]
        }));
    }
    kinds.push(kind("DCCP to 5", move |port: u16| {
        // A request (RFC 4340 section 5) with long sequence numbers and no options. Newer kernels do
        // not know the ports, so all are of one connection.
        let begin = [0x4e, 0x20, 0, 5, 5, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1];
        vec![of(port).other(protocol::DCCP, &begin)]
    }));
    if family == Family::V4 {
        for spi in [5, 7, 50] {
            kinds.push(kind(&format!("AH of {spi}"), move |port| {
                // Of no next header, with 96 bits of integrity (RFC 4302 section 2).
                let begin = [59, 4, 0, 0, 0, 0, 0, spi, 0, 0, 0, 1];
                vec![of(port).other(51, &[&begin[..], &[0; 12]].concat())]
            }));
        }
    }
    kinds.push(kind("GRE", move |port| vec![of(port).other(protocol::GRE, &[0, 0, 8, 0])]));
    kinds
}

/// Datagrams with other fields of IP.
fn with_other_fields(family: Family) -> Vec<Kind> {
    let of = move |port| Maker::new(family, port);
    let mut kinds = Vec::new();
    let with = move |name: &str, change: fn(PacketBuilder) -> PacketBuilder, length: usize| {
        kind(name, move |port| {
            let payload = [&vec![0; length][..], &of(port).mark(0)].concat();
            vec![of(port).udp_with(&change(of(port).forth()), 5000, &payload)]
        })
    };
    kinds.push(with("UDP of 9 hops", |it| it.ttl(9), 0));
    kinds.push(with("UDP of 10 hops", |it| it.ttl(10), 0));
    kinds.push(with("UDP of 200 hops", |it| it.ttl(200), 0));
    kinds.push(with("UDP with DSCP 46", |it| it.traffic_class(46 << 2), 0));
    // 60 bytes of IPv4, of IPv6, and more of both.
    kinds.push(with("short UDP", |it| it, 24));
    kinds.push(with("shorter UDP", |it| it, 4));
    kinds.push(with("long UDP", |it| it, 200));
    for source in [3, 4] {
        kinds.push(kind(&format!("UDP of host {source}"), move |port| {
            let (mut v4, mut v6) = (CLIENT, CLIENT_V6);
            (v4[3], v6[15]) = (source, source);
            let headers = match family {
                Family::V4 => PacketBuilder::v4(v4, SERVER),
                Family::V6 => PacketBuilder::v6(v6, SERVER_V6),
            };
            vec![of(port).udp_with(&headers, 5000, &of(port).mark(0))]
        }));
    }
    // One of a host that is not behind the interface where it comes in, and one of a host that no
    // route leads to.
    let mut elsewhere = SERVER_V6;
    elsewhere[5] = 9;
    let mut behind = SERVER_V6;
    behind[15] = 0x77;
    for (v4, v6) in [([198, 51, 100, 77], behind), ([203, 0, 113, 9], elsewhere)] {
        kinds.push(kind(&format!("spoofed UDP of {v4:?}"), move |port| {
            let headers = match family {
                Family::V4 => PacketBuilder::v4(v4, SERVER),
                Family::V6 => PacketBuilder::v6(v6, SERVER_V6),
            };
            vec![of(port).udp_with(&headers, 5001, &of(port).mark(0))]
        }));
    }
    // For the router itself, which has no such service.
    kinds.push(kind("UDP to the router", move |port| {
        let mut own = CLIENT_V6;
        own[15] = 0xfe;
        let headers = match family {
            Family::V4 => PacketBuilder::v4(CLIENT, OWN[0]),
            Family::V6 => PacketBuilder::v6(CLIENT_V6, own),
        };
        vec![of(port).udp_with(&headers, 5001, &of(port).mark(0))]
    }));
    kinds
}
