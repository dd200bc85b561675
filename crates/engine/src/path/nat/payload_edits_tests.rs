//! FTP through a router that masquerades: the messages that both ends of the control connection
//! get, and the ends of the data connections.

use std::collections::HashSet;
use std::fmt::Write as _;

use wire::{dissect, protocol};

use super::*;
use crate::testing::control_connection::*;
use crate::testing::router::*;
use crate::worker::command::Command;

/// The address in the form of EPRT.
fn bars((address, port): Host) -> String {
    format!("|{}|{address}|{port}|", if address.is_ipv4() { 1 } else { 2 })
}

fn of_bars(text: &str) -> Host {
    let parts: Vec<_> = text.split('|').collect();
    (parts[2].parse().unwrap(), parts[3].parse().unwrap())
}

#[test]
fn a_server_reaches_the_clients_that_have_told_it_where() {
    for six_numbers in [true, false] {
        for client_port in 40000..40012 {
            let mut net = if six_numbers { Net::v4(3, 21) } else { Net::v6(2, 21) };
            let (client, server) = ((net.inside, client_port), (net.outside, 21));
            let mut control = Control::open(&mut net, 0, client, server);
            for data in [2005, 40001, 50000, 1024] {
                assert_eq!(control.say(&mut net, 0, "NOOP\r\n"), "NOOP\r\n");
                let place = (net.inside, data);
                let text = match six_numbers {
                    true => format!("PORT {}\r\n", six(place)),
                    false => format!("EPRT {}\r\n", bars(place)),
                };
                let first = control.repeat(&mut net, 0, &text);
                let heard = control.say(&mut net, 0, &text);
                assert_eq!(heard, first, "said again");
                let public = if six_numbers { of_six(&heard) } else { of_bars(&heard) };
                assert_eq!(public, (net.own, data), "the port stays");
                control.say(&mut net, 1, "200 I see\r\n");
                assert_eq!(net.expected(), 1);
                let (to, from) = net.open(1, (net.outside, 20), public);
                assert_eq!((to, from), (place, (net.outside, 20)));
                assert_eq!(net.expected(), 0);
                control.say(&mut net, 1, "226 That was all\r\n");
            }
            // No packet was dropped or left to the host.
            assert_eq!((net.gateway.reasons(), net.gateway.to_host()), (vec![], 0));
        }
    }
}

#[test]
fn a_client_that_asks_for_a_port_comes_from_the_routers_address_there_too() {
    for is_v4 in [true, false] {
        let mut net = if is_v4 { Net::v4(3, 21) } else { Net::v6(2, 21) };
        let (client, server) = ((net.inside, 40000), (net.outside, 21));
        let mut control = Control::open(&mut net, 0, client, server);
        for data in [2000, 30000, 60000] {
            let place = (net.outside, data);
            let text = match is_v4 {
                true => format!("227 Entering Passive Mode ({})\r\n", six(place)),
                false => format!("229 Entering Extended Passive Mode (|||{data}|)\r\n"),
            };
            control.say(&mut net, 0, "PASV\r\n");
            assert_eq!(control.say(&mut net, 1, &text), text, "the server is who it says it is");
            assert_eq!(net.expected(), 1);
            let (to, from) = net.open(0, (net.inside, data), place);
            assert_eq!((to, from.0), (place, net.own));
            assert_eq!((net.expected(), net.gateway.dropped()), (0, 0));
        }
    }
}

#[test]
fn a_server_behind_a_port_of_the_router_says_where_clients_reach_it() {
    for (is_v4, client_port) in (3000..3016).flat_map(|port| [(true, port), (false, port)]) {
        let mut net = if is_v4 { Net::v4(3, 8080) } else { Net::v6(2, 8080) };
        let (client, server) = ((net.outside, client_port), (net.own, 8080));
        let mut control = Control::open(&mut net, 1, client, server);
        for data in [2020, 30000, 60000] {
            let place = (net.inside, data);
            let text = match is_v4 {
                true => format!("227 Entering Passive Mode ({})\r\n", six(place)),
                false => format!("229 Entering Extended Passive Mode (|||{data}|)\r\n"),
            };
            control.say(&mut net, 0, "PASV\r\n");
            let heard = control.say(&mut net, 1, &text);
            let public = match is_v4 {
                true => of_six(&heard),
                false => (net.own, heard.split('|').nth(3).unwrap().parse().unwrap()),
            };
            assert_eq!(public.0, net.own);
            let (to, from) = net.open(1, (net.outside, client_port + 1), public);
            assert_eq!((to, from), (place, (net.outside, client_port + 1)));
            control.say(&mut net, 1, "226 Done\r\n");
            assert_eq!(
                (net.expected(), net.gateway.reasons(), net.gateway.to_host()),
                (0, vec![], 0)
            );
        }
    }
}

#[test]
fn a_port_that_nobody_has_announced_is_the_hosts() {
    let mut net = Net::v4(2, 21);
    let (client, server) = ((net.inside, 40000), (net.outside, 21));
    let mut control = Control::open(&mut net, 0, client, server);
    let text = format!("PORT {}\r\n", six((net.inside, 5000)));
    let public = of_six(&control.say(&mut net, 0, &text));
    let before = net.gateway.connections();
    // The connection comes from another server, or goes to another port.
    for (from, to) in
        [((ip("203.0.113.9"), 20), public), ((net.outside, 20), (public.0, public.1 ^ 1))]
    {
        let to_host = net.gateway.to_host();
        let syn = net.segment(1, (from, to), SYN, (1, 0), b"");
        net.gateway.arrive(1, &syn);
        net.gateway.run_until_idle();
        assert_eq!((net.gateway.sent(0).len(), net.gateway.to_host()), (0, to_host + 1));
    }
    assert_eq!((net.gateway.connections(), net.expected()), (before, 1));
}

#[test]
fn without_rules_the_connections_that_were_go_on() {
    let mut net = Net::v4(2, 21);
    let (client, server) = ((net.inside, 40000), (net.outside, 21));
    let mut control = Control::open(&mut net, 0, client, server);
    for handle in &mut net.gateway.handles {
        handle.tell(Command::Rules(None)).unwrap();
    }
    net.gateway.run_until_idle();
    for data in [5000, 5001] {
        let place = (net.inside, data);
        let heard = control.say(&mut net, 0, &format!("PORT {}\r\n", six(place)));
        let public = of_six(&heard);
        assert_eq!(public.0, net.own);
        let to_host = net.gateway.to_host();
        let stranger = net.segment(1, ((ip("203.0.113.9"), 20), public), SYN, (1, 0), b"");
        net.gateway.arrive(1, &stranger);
        net.gateway.run_until_idle();
        assert_eq!((net.gateway.sent(0).len(), net.gateway.to_host()), (0, to_host + 1));
        assert_eq!(net.open(1, (net.outside, 20), public), (place, (net.outside, 20)));
        control.say(&mut net, 1, "226 Done\r\n");
        control.say(&mut net, 0, "PASV\r\n");
        let reply = format!("227 ({})\r\n", six((net.outside, data)));
        control.say(&mut net, 1, &reply);
        let (_, from) = net.open(0, (net.inside, 6000), (net.outside, data));
        assert_eq!(from.0, net.own);
    }
    assert_eq!(net.gateway.reasons(), []);
}

#[test]
fn a_message_that_came_in_fragments_leaves_in_others() {
    let mut net = Net::v4(3, 21);
    let (client, server) = ((net.inside, 40000), (net.outside, 21));
    let mut control = Control::open(&mut net, 0, client, server);
    for (round, data) in [40001, 50000].into_iter().enumerate() {
        let mut text = format!("PORT {}\r\n", six((net.inside, data)));
        for line in 0..3 {
            write!(text, "NOOP {line}\r\n").unwrap();
        }
        let numbers = (control.said[0], control.heard[0]);
        let whole = net.segment(0, control.speaks[0], PSH_ACK, numbers, text.as_bytes());
        let pieces = builder(client.0, server.0).macs(INSIDE, STATIONS[0]).id(9 + round as u32);
        for piece in pieces.fragments(protocol::TCP, &whole[34..], 32) {
            net.gateway.arrive(0, &piece);
        }
        net.gateway.run_until_idle();
        let sent = net.gateway.sent(1);
        assert!(sent.len() > 1, "{:?}", net.gateway.reasons());
        let mut payload = Vec::new();
        let mut ids = HashSet::new();
        for frame in &sent {
            let network = dissect(frame.bytes()).unwrap().network.unwrap();
            let fragment = network.fragment.unwrap();
            assert_eq!(usize::from(fragment.offset), payload.len());
            assert_eq!(network.source_ip(), net.own);
            ids.insert(fragment.id);
            assert!(network.end <= 34 + 32, "no longer than they came");
            assert_eq!(network.ttl, 63, "one hop further");
            payload.extend_from_slice(&frame.bytes()[34..network.end as usize]);
        }
        assert_eq!(ids.len(), 1);
        let (to, from) = control.speaks[1];
        let mut joined = Vec::new();
        builder(from.0, to.0).raw(protocol::TCP, &payload, &mut joined);
        let network = dissect(&joined).unwrap().network.unwrap();
        assert!(wire::checksum::verify_transport(&joined, &network));
        let Transport::Tcp(tcp) = network.transport else { panic!("TCP") };
        assert_eq!((tcp.sequence, tcp.acknowledgment), (control.heard[1], control.said[1]));
        let heard = String::from_utf8(payload[20..].to_vec()).unwrap();
        assert!(heard.ends_with("\r\nNOOP 0\r\nNOOP 1\r\nNOOP 2\r\n"), "{heard:?}");
        assert_eq!(of_six(&heard).0, net.own);
        control.said[0] += text.len() as u32;
        control.heard[1] += heard.len() as u32;
        control.say(&mut net, 1, "200 I see\r\n");
        control.say(&mut net, 0, "NOOP\r\n");
    }
}

#[test]
fn an_error_about_a_shifted_segment_quotes_what_was_sent() {
    let mut net = Net::v4(2, 21);
    let (client, server) = ((net.inside, 40000), (net.outside, 21));
    let mut control = Control::open(&mut net, 0, client, server);
    let text = format!("PORT {}\r\n", six((net.inside, 5000)));
    let heard = control.say(&mut net, 0, &text);
    assert_ne!(control.said[0], control.heard[1], "{heard:?} is longer");
    let numbers = (control.said[0], control.heard[0]);
    let bytes = net.segment(0, control.speaks[0], PSH_ACK, numbers, b"NOOP\r\n");
    net.gateway.arrive(0, &bytes);
    net.gateway.run_until_idle();
    let mut onward = net.gateway.sent(1).remove(0).bytes().to_vec();
    wire::set_stations(&mut onward, STATIONS[1], OUTSIDE);
    let mut error = [0; wire::icmp_error::MAX_FRAME];
    let message = wire::icmp_error::Message::Unreachable { code: 1 };
    let length = wire::icmp_error::write(&onward, message, ip("198.51.100.2"), &mut error).unwrap();
    wire::set_stations(&mut error, OUTSIDE, STATIONS[1]);
    net.gateway.arrive(1, &error[..length]);
    net.gateway.run_until_idle();
    let heard = net.gateway.sent(0).remove(0);
    seen(&heard);
    // The quoted segment is behind the headers of link, network and error, and of the quoted
    // network.
    let quoted = &heard.bytes()[14 + 20 + 8 + 20..];
    assert_eq!(quoted[..4], [40000_u16.to_be_bytes(), 21_u16.to_be_bytes()].concat());
    assert_eq!(quoted[4..8], control.said[0].to_be_bytes());
}
