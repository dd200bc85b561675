//! Scanners and backup servers through translation: what their helpers find, and which connections
//! get through.

use conntrack::helper::Kind;

use super::*;
use crate::testing::control_connection::*;
use crate::testing::router::*;

/// Sends a packet in by a port. Returns the ends and the payload of the packet that leaves by the
/// other port.
fn pass(net: &mut Net, port: usize, bytes: &[u8]) -> ([Host; 2], Vec<u8>) {
    net.gateway.arrive(port, bytes);
    net.gateway.run_until_idle();
    let sent = net.gateway.sent(1 - port);
    assert_eq!(sent.len(), 1, "dropped: {:?}", net.gateway.reasons());
    let network = seen(&sent[0]);
    let header = match network.transport {
        Transport::Tcp(tcp) => usize::from(tcp.header_len),
        _ => 8,
    };
    let start = usize::from(network.transport_offset) + header;
    (ends(&network), sent[0].bytes()[start..network.end as usize].to_vec())
}

/// `SANE_NET_INIT` with version and user, and its reply.
const INIT: &[u8] = &[0, 0, 0, 0, 1, 0, 0, 3, 0, 0, 0, 1, 0];
const READY: &[u8] = &[0, 0, 0, 0, 1, 0, 0, 3];
/// `SANE_NET_START`, and the reply with a port.
const START: &[u8] = &[0, 0, 0, 7, 0, 0, 0, 5];

fn started(port: u16) -> Vec<u8> {
    let [high, low] = port.to_be_bytes();
    [&[0, 0, 0, 0, 0, 0, high, low][..], &[0, 0, 0x12, 0x34, 0, 0, 0, 0]].concat()
}

/// Lets a client behind `port` start a scan. Returns the reply as the client gets it.
fn scan(net: &mut Net, port: usize, client: Host, server: Host, picture: u16) -> Vec<u8> {
    let (real, shown) = net.open(port, client, server);
    let (mut said, mut heard) = ([101, 501], Vec::new());
    for (who, text) in [(0, INIT), (1, READY), (0, START), (1, &started(picture))] {
        let (side, ends) =
            if who == 0 { (port, (client, server)) } else { (1 - port, (real, shown)) };
        let numbers = (said[who], said[1 - who]);
        let bytes = net.segment(side, ends, PSH_ACK, numbers, text);
        let expected = if who == 0 { [shown, real] } else { [server, client] };
        let (leaves, read) = pass(net, side, &bytes);
        assert_eq!((leaves, read.len()), (expected, text.len()));
        said[who] += text.len() as u32;
        heard = read;
    }
    heard
}

#[test]
fn a_client_behind_the_router_gets_the_picture_of_a_scanner() {
    for client_port in 40000..40012 {
        let mut net = Net::helped_by(Kind::Sane, 6566, 3, RULES);
        let (client, server) = ((net.inside, client_port), (net.outside, 6566));
        assert_eq!(scan(&mut net, 0, client, server, 40001), started(40001));
        assert_eq!(net.expected(), 1);
        let (real, shown) = net.open(0, (net.inside, client_port + 1), (net.outside, 40001));
        assert_eq!((real, shown.0), ((net.outside, 40001), net.own));
        assert_eq!((net.expected(), net.gateway.dropped()), (0, 0));
    }
}

/// The reply is not text and is not edited, so a connection to the port that it names is expected.
#[test]
fn a_scanner_behind_the_router_is_reached_at_the_port_that_it_names() {
    let rules = RULES.replace(r#""right":8080"#, r#""right":6566"#);
    let rules = rules.replace(r#","port":80}"#, "}");
    for (client_port, picture) in (40000..40012).flat_map(|port| [(port, 10001), (port, 40001)]) {
        let mut net = Net::helped_by(Kind::Sane, 6566, 3, &rules);
        let (client, server) = ((net.outside, client_port), (net.own, 6566));
        assert_eq!(scan(&mut net, 1, client, server, picture), started(picture));
        let from = (net.outside, client_port + 1);
        let (real, shown) = net.open(1, from, (net.own, picture));
        assert_eq!((real, shown), ((net.inside, picture), from));
        assert_eq!((net.expected(), net.gateway.dropped()), (0, 0));
    }
}

fn ports_of(text: &[u8]) -> [u16; 3] {
    let text = std::str::from_utf8(text).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("CONNECT ")).unwrap();
    let words: Vec<_> = line.split(' ').collect();
    [1, 3, 5].map(|at: usize| words[at].parse().unwrap())
}

fn reply(ports: [u16; 3]) -> String {
    let [data, messages, index] = ports;
    format!(
        "Amanda 2.4 REP HANDLE 000-0 SEQ 1\nCONNECT DATA {data} MESG {messages} INDEX {index}\n\
         OPTIONS features=ff;\n"
    )
}

/// Lets a backup server behind `port` ask a client. Returns the ports that the server is told.
fn back_up(net: &mut Net, port: usize, [asks, client]: [Host; 2], ports: [u16; 3]) -> [u16; 3] {
    let datagram = |port: usize, from: Host, to: Host, text: &str| {
        let packet = builder(from.0, to.0).macs([INSIDE, OUTSIDE][port], STATIONS[port]);
        udp(&packet, (from.1, to.1), text.as_bytes())
    };
    let request = "Amanda 2.4 REQ HANDLE 000-0 SEQ 1\nSERVICE sendbackup\n";
    let ([shown, real], text) = pass(net, port, &datagram(port, asks, client, request));
    assert_eq!(text, request.as_bytes());
    let answer = datagram(1 - port, real, shown, &reply(ports));
    let (ends, text) = pass(net, 1 - port, &answer);
    assert_eq!(ends, [client, asks]);
    let known = ports_of(&text);
    assert_eq!(text, reply(known).as_bytes());
    known
}

#[test]
fn a_backup_server_behind_the_router_reaches_the_ports_it_is_told() {
    const PORTS: [u16; 3] = [11078, 11079, 11080];
    for asks in 40000..40012 {
        let mut net = Net::helped_by(Kind::Amanda, 10080, 3, RULES);
        let ends = [(net.inside, asks), (net.outside, 10080)];
        assert_eq!(back_up(&mut net, 0, ends, PORTS), PORTS);
        for (number, port) in PORTS.into_iter().enumerate() {
            let place = (net.outside, port);
            let (real, shown) = net.open(0, (net.inside, asks + number as u16), place);
            assert_eq!((real, shown.0), (place, net.own));
        }
        assert_eq!((net.expected(), net.gateway.dropped()), (0, 0));
    }
}

#[test]
fn a_client_of_backups_behind_the_router_is_reached_at_ports_of_the_router() {
    const PORTS: [u16; 3] = [11078, 11079, 11080];
    let rules = RULES.replace("tcp", "udp").replace(r#""right":8080"#, r#""right":10080"#);
    let rules = rules.replace(r#""port":80}"#, r#""port":10080}"#);
    for asks in 40000..40012 {
        let mut net = Net::helped_by(Kind::Amanda, 10080, 3, &rules);
        let ends = [(net.outside, asks), (net.own, 10080)];
        let known = back_up(&mut net, 1, ends, PORTS);
        assert!(known.iter().all(|port| (1024..=32767).contains(port)), "{known:?}");
        for (number, (port, known)) in PORTS.into_iter().zip(known).enumerate() {
            let from = (net.outside, asks + 1 + number as u16);
            let (real, shown) = net.open(1, from, (net.own, known));
            assert_eq!((real, shown), ((net.inside, port), from));
        }
        assert_eq!((net.expected(), net.gateway.dropped()), (0, 0));
    }
}
