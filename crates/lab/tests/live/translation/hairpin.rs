//! Hosts that reach their neighbours by the router's outside address. The kernel with the same
//! rules is the model, and a third party forges packets.

use lab::{Result, Side};
use wire::build::{PacketBuilder, Tcp};
use wire::{Network, QuotedTransport, TcpFlags, Transport, dissect};

use crate::scenario::cables::{CLIENT, OWN, Router, SERVER, Sent};
use crate::scenario::{beside_others, drops};

/// The neighbour that runs the service.
const NEIGHBOUR: [u8; 4] = [192, 0, 2, 5];
const OUTSIDE: [u8; 4] = OWN[1];
/// The source address that the neighbour sees.
const INSIDE: [u8; 4] = OWN[0];
/// The client's port, one that both translations keep.
const PORT: u16 = 20_000;

const RULES: &str = "
table ip hairpin {
    chain pre {
        type nat hook prerouting priority dstnat; policy accept;
        ip daddr 198.51.100.254 tcp dport 8000 dnat to 192.0.2.5:80
        ip daddr 198.51.100.254 udp dport 5300 dnat to 192.0.2.5:53
    }
    chain post {
        type nat hook postrouting priority srcnat; policy accept;
        oifname \"client0\" ip saddr 192.0.2.0/24 masquerade
        oifname \"server0\" masquerade
    }
    chain forward {
        type filter hook forward priority filter; policy drop;
        ct state invalid drop
        ct state established,related accept
        iifname \"client0\" accept
        ct status dnat accept
    }
}
";

fn inside(frame: Vec<u8>) -> Sent {
    Sent { side: Side::Client, frame }
}

type End = ([u8; 4], u16);

fn tcp(from: End, to: End, flags: TcpFlags, numbers: [u32; 2], payload: &[u8]) -> Vec<u8> {
    let mut frame = Vec::new();
    let tcp = Tcp {
        source_port: from.1,
        destination_port: to.1,
        sequence: numbers[0],
        acknowledgment: numbers[1],
        flags,
        window: 8192,
        options: &[],
    };
    PacketBuilder::v4(from.0, to.0).tcp(&tcp, payload, &mut frame);
    frame
}

fn udp(from: End, to: End) -> Vec<u8> {
    let mut frame = Vec::new();
    PacketBuilder::v4(from.0, to.0).udp(from.1, to.1, b"something", &mut frame);
    frame
}

/// An ICMP error of `from` about a packet.
fn error(from: [u8; 4], to: [u8; 4], code: u8, about: &[u8]) -> Vec<u8> {
    let mut frame = Vec::new();
    let rest = if code == 4 { [0, 0, 2, 40] } else { [0; 4] };
    PacketBuilder::v4(from, to).icmp_error(3, code, rest, &about[14..14 + 28], &mut frame);
    frame
}

const SYN: TcpFlags = TcpFlags::SYN;
const ACK: TcpFlags = TcpFlags::ACK;
const FIN: TcpFlags = TcpFlags::FIN.with(ACK);

/// The ends of the connection as the client and as the neighbour see them.
const ASKED: [End; 2] = [(CLIENT, PORT), (OUTSIDE, 8000)];
const SERVED: [End; 2] = [(INSIDE, PORT), (NEIGHBOUR, 80)];
const ASKED_UDP: [End; 2] = [(CLIENT, PORT), (OUTSIDE, 5300)];
const SERVED_UDP: [End; 2] = [(INSIDE, PORT), (NEIGHBOUR, 53)];

/// The packets of a connection, of a question and of its answer.
fn opened() -> Vec<Sent> {
    let [client, service] = ASKED;
    let [gateway, server] = SERVED;
    [
        tcp(client, service, SYN, [100, 0], b""),
        tcp(server, gateway, SYN.with(ACK), [500, 101], b""),
        tcp(client, service, ACK, [101, 501], b""),
        tcp(client, service, ACK, [101, 501], b"GET"),
        tcp(server, gateway, ACK, [501, 104], b"200"),
        udp(ASKED_UDP[0], ASKED_UDP[1]),
        udp(SERVED_UDP[1], SERVED_UDP[0]),
    ]
    .map(inside)
    .into()
}

/// ICMP errors about both from the neighbour and from the client, and the end of the connection.
fn closed() -> Vec<Sent> {
    let [client, service] = ASKED;
    let [gateway, server] = SERVED;
    let to_server = tcp(gateway, server, ACK, [101, 501], b"");
    let to_client = tcp(service, client, ACK, [501, 104], b"");
    [
        error(NEIGHBOUR, INSIDE, 3, &udp(SERVED_UDP[0], SERVED_UDP[1])),
        error(CLIENT, OUTSIDE, 3, &udp(ASKED_UDP[1], ASKED_UDP[0])),
        error(NEIGHBOUR, INSIDE, 4, &to_server),
        error(CLIENT, OUTSIDE, 4, &to_client),
        tcp(client, service, FIN, [104, 504], b""),
        tcp(server, gateway, FIN, [504, 105], b""),
        tcp(client, service, ACK, [105, 505], b""),
    ]
    .map(inside)
    .into()
}

/// Packets that a third party forges to reach the hosts or disturb their connection.
fn forged() -> Vec<Sent> {
    let [client, service] = ASKED;
    let [gateway, server] = SERVED;
    let in_window = [501 + 1000, 104];
    [
        // In the client's name,
        udp((CLIENT, 9), ASKED_UDP[1]),
        tcp(client, service, ACK, [104, 504], b"data"),
        tcp(client, service, TcpFlags::RST, [104, 0], b""),
        // in the server's,
        tcp(server, gateway, ACK, [504, 104], b"data"),
        tcp(server, gateway, TcpFlags::RST, [504, 0], b""),
        udp(SERVED_UDP[1], SERVED_UDP[0]),
        // and in the router's.
        tcp(service, client, ACK, in_window, b"data"),
        tcp(service, client, TcpFlags::RST, [504, 0], b""),
        tcp(gateway, server, ACK, [104, 504], b"data"),
    ]
    .map(|frame| Sent { side: Side::Server, frame })
    .into()
}

/// A description of a packet: its side, its addresses and ports, its kind, and the ends of the
/// packet that it quotes.
fn seen(sent: &Sent) -> Option<String> {
    let network: Network = dissect(&sent.frame).ok()?.network?;
    let ends = format!("{:?} {} > {}", sent.side, network.source_ip(), network.destination_ip());
    match network.transport {
        Transport::Tcp(tcp) => {
            let (from, to) = (tcp.source_port, tcp.destination_port);
            Some(format!("{ends} TCP {from} > {to} {:?} {}", tcp.flags, tcp.sequence))
        }
        Transport::Udp { source_port, destination_port, .. } => {
            Some(format!("{ends} UDP {source_port} > {destination_port}"))
        }
        Transport::IcmpError(error) => {
            let quoted = error.quoted?;
            let QuotedTransport::Ports { source, destination } = quoted.transport else {
                return None;
            };
            let of =
                |address: [u8; 16]| address[12..].iter().map(u8::to_string).collect::<Vec<_>>();
            let (from, to) = (of(quoted.source).join("."), of(quoted.destination).join("."));
            let kind = network.transport_offset;
            let code = sent.frame[usize::from(kind) + 1];
            Some(format!("{ends} error {code} about {from}:{source} > {to}:{destination}"))
        }
        _ => None,
    }
}

/// Descriptions of all packets that came out, without those that the router's host sends by itself.
fn came(router: &Router, sent: &[Sent], marks: &mut u64) -> Result<Vec<String>> {
    let mut orders = Vec::new();
    for sent in sent {
        orders.push((sent.clone(), false));
        // A mark behind each frame shows that all packets it causes have arrived.
        *marks += 1;
        let payload = [&[0; 24][..], &marks.to_be_bytes()].concat();
        let mut mark = Vec::new();
        PacketBuilder::v4(CLIENT, SERVER).udp(7, 9, &payload, &mut mark);
        orders.push((inside(mark), true));
    }
    let own = |seen: &String| seen.contains("RST|ACK");
    Ok(router.burst(&orders)?.iter().filter_map(seen).filter(|it| !own(it)).collect())
}

/// A router with a static entry for the neighbour's link address.
fn router() -> Result<Router> {
    let router = Router::new()?;
    router.namespace.ip(&["neigh add 192.0.2.5 lladdr 00:00:5e:00:53:01 dev client0"])?;
    Ok(router)
}

#[test]
fn a_neighbour_is_reached_by_the_outside_address_as_with_the_kernel() {
    beside_others(|| {
        let router = router()?;
        let talk = [opened(), closed()].concat();
        let mut marks = 0;
        router.namespace.load_rules(RULES)?;
        let theirs = came(&router, &talk, &mut marks)?;
        router.namespace.flush_rules()?;
        assert_eq!(theirs.len(), talk.len(), "{theirs:#?}");
        let stateway = router.stateway_with_rules(RULES, "")?;
        let ours = came(&router, &talk, &mut marks)?;
        assert_eq!(ours, theirs);
        stateway.stop().map(drop)
    });
}

#[test]
fn strangers_have_no_part_in_what_neighbours_say_by_the_outside_address() {
    beside_others(|| {
        let router = router()?;
        let mut marks = 0;
        // The forged packets that pass, and the number of genuine packets lost after them.
        let mut passes = |router: &Router| -> Result<(Vec<String>, usize)> {
            assert_eq!(came(router, &opened(), &mut marks)?.len(), opened().len());
            let passes = came(router, &forged(), &mut marks)?;
            Ok((passes, closed().len() - came(router, &closed(), &mut marks)?.len()))
        };
        router.namespace.load_rules(RULES)?;
        router.namespace.sysctl(["net.ipv4.conf.all.rp_filter=0"])?;
        let (theirs, gone) = passes(&router)?;
        let (all, most) = (forged().len(), theirs.len());
        println!(
            "the kernel lets {most} of {all} pass, and {gone} packets are lost then: {theirs:#?}"
        );
        // Otherwise the test would show nothing.
        assert!(most >= 4);
        router.namespace.flush_rules()?;
        let stateway = router.stateway_with_rules(RULES, "")?;
        assert_eq!(passes(&router)?, (Vec::new(), 0));
        let refused = drops(&stateway, "rp_filter")? + drops(&stateway, "martian")?;
        assert_eq!(refused, all as u64);
        stateway.stop().map(drop)
    });
}
