//! SIP calls whose ports belong to the buckets of several workers, and edited packets of unusual
//! lengths.

use std::fmt::Write as _;

use conntrack::helper::Kind;
use netio::{Checksum, Offload, Segmentation};
use wire::{Network, dissect, protocol};

use super::*;
use crate::testing::control_connection::*;
use crate::testing::router::*;
use crate::worker::command::Command;

const SIP: u16 = 5060;

fn phones(workers: u16) -> Net {
    Net::helped_by(Kind::Sip, SIP, workers, RULES)
}

impl Net {
    /// Sends a datagram in by a port. Returns the ends and the text of the datagram that leaves.
    fn datagram(
        &mut self,
        port: usize,
        (from, to): (Host, Host),
        text: &str,
    ) -> (Host, Host, String) {
        let station = [INSIDE, OUTSIDE][port];
        let packet = builder(from.0, to.0).macs(station, STATIONS[port]);
        self.gateway.arrive(port, &udp(&packet, (from.1, to.1), text.as_bytes()));
        self.gateway.run_until_idle();
        let sent = self.gateway.sent(1 - port);
        assert_eq!(sent.len(), 1, "dropped: {:?}", self.gateway.reasons());
        let network = seen(&sent[0]);
        let [from, to] = ends(&network);
        let start = usize::from(network.transport_offset) + 8;
        let text = sent[0].bytes()[start..network.end as usize].to_vec();
        (from, to, String::from_utf8(text).unwrap())
    }
}

fn invite((address, port): Host, sound: u16) -> String {
    let body = format!("v=0\r\nc=IN IP4 {address}\r\nm=audio {sound} RTP/AVP 0\r\n");
    format!(
        "INVITE sip:b@example.com SIP/2.0\r\nVia: SIP/2.0/UDP {address}:{port}\r\n\
         CSeq: 1 INVITE\r\nContact: <sip:a@{address}:{port}>\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
}

fn sound_of(text: &str) -> u16 {
    text.split_once("m=audio ").unwrap().1.split(' ').next().unwrap().parse().unwrap()
}

#[test]
fn sound_finds_its_way_whoever_owns_its_ports() {
    for (round, port) in (40000..40024).enumerate() {
        let mut net = phones(3);
        let (phone, server) = ((net.inside, port), (net.outside, SIP));
        let (seen, _, text) = net.datagram(0, (phone, server), &invite(phone, 6000));
        let public_port = sound_of(&text);
        assert_eq!(text, invite(seen, public_port));
        assert!(public_port.is_multiple_of(2) && public_port > 1023, "{public_port}");
        let answer =
            invite(server, 7000).replace("INVITE sip:b@example.com SIP/2.0", "SIP/2.0 200 OK");
        net.datagram(1, (server, seen), &answer);
        for odd in [0, 1] {
            let near = (net.inside, 6000 + odd);
            let (known, far) = ((net.own, public_port + odd), (net.outside, 7000 + odd));
            let there = |net: &mut Net| {
                assert_eq!(net.datagram(0, (near, far), "x"), (known, far, "x".to_owned()));
            };
            let back = |net: &mut Net| {
                assert_eq!(net.datagram(1, (far, known), "x"), (far, near, "x".to_owned()));
            };
            let connections = net.gateway.connections();
            if round.is_multiple_of(2) {
                there(&mut net)
            } else {
                back(&mut net)
            }
            back(&mut net);
            there(&mut net);
            assert_eq!(net.gateway.connections(), connections + 1, "one for both directions");
        }
        assert_eq!((net.gateway.reasons(), net.gateway.to_host()), (vec![], 0));
    }
}

#[test]
fn the_next_call_between_two_places_goes_on_with_the_flows_of_the_last() {
    for workers in 1..4 {
        let mut net = phones(workers);
        let server = (net.outside, SIP);
        let mut known = Vec::new();
        // Each call has signalling of its own, so the helper does not know the call before.
        for port in 40000..40008 {
            let phone = (net.inside, port);
            let (seen, _, text) = net.datagram(0, (phone, server), &invite(phone, 6000));
            let public = (net.own, sound_of(&text));
            let answer =
                invite(server, 7000).replace("INVITE sip:b@example.com SIP/2.0", "SIP/2.0 200 OK");
            net.datagram(1, (server, seen), &answer);
            let (near, far) = ((net.inside, 6000), (net.outside, 7000));
            for _ in 0..2 {
                let out = net.datagram(0, (near, far), "x");
                assert_eq!(out, (public, far, "x".to_owned()));
                assert_eq!(net.datagram(1, (far, public), "x"), (far, near, "x".to_owned()));
            }
            known.push(public);
        }
        known.dedup();
        assert_eq!((known.len(), net.gateway.reasons()), (1, vec![]));
    }
}

#[test]
fn a_message_that_outgrows_the_next_link_is_cut_or_refused_as_any() {
    const MTU: u32 = 1500;
    for may_be_cut in [true, false] {
        let mut net = phones(2);
        for handle in &mut net.gateway.handles {
            handle.tell(Command::SetMtus(vec![Some(MTU); 2])).unwrap();
        }
        net.gateway.run_until_idle();
        let (phone, server) = ((net.inside, 40000), (net.outside, SIP));
        let short = invite(phone, 6000);
        // The text is as long as a packet that is not edited may be.
        let subject = "x".repeat(MTU as usize - 28 - short.len() - "Subject: \r\n".len());
        let text = short.replace("CSeq:", &format!("Subject: {subject}\r\nCSeq:"));
        let packet = builder(phone.0, server.0).macs(INSIDE, STATIONS[0]);
        let packet = if may_be_cut { packet } else { packet.dont_fragment() };
        let bytes = udp(&packet, (phone.1, server.1), text.as_bytes());
        assert_eq!(bytes.len(), 14 + MTU as usize);
        net.gateway.arrive(0, &bytes);
        net.gateway.run_until_idle();
        let (sent, errors) = (net.gateway.sent(1), net.gateway.sent(0));
        if may_be_cut {
            assert_eq!((sent.len(), errors.len()), (2, 0), "{:?}", net.gateway.reasons());
            let heard: Vec<u8> =
                sent.iter().flat_map(|it| it.bytes()[34..].iter().copied()).skip(8).collect();
            let heard = String::from_utf8(heard).unwrap();
            assert!(heard.contains(&subject) && heard.len() > text.len());
            assert!(heard.contains("198.51.100.254") && !heard.contains("192.0.2.10"), "{heard}");
            continue;
        }
        assert_eq!((sent.len(), errors.len()), (0, 1), "{:?}", net.gateway.reasons());
        let network = seen(&errors[0]);
        assert_eq!(network.destination_ip(), phone.0);
        let Transport::IcmpError(error) = network.transport else { panic!("{network:?}") };
        let quoted = error.quoted.unwrap();
        let ports = wire::QuotedTransport::Ports { source: phone.1, destination: server.1 };
        assert_eq!((quoted.source, quoted.transport), (wire::mapped(phone.0), ports));
    }
}

#[test]
fn a_session_goes_on_while_its_buckets_move() {
    let mut net = Net::v4(3, 21);
    let (client, server) = ((net.inside, 40000), (net.outside, 21));
    let mut control = Control::open(&mut net, 0, client, server);
    for data in 40001..40007 {
        for bucket in 0..16 {
            net.gateway.start_move(bucket, bucket + data);
            net.gateway.run_until_idle();
        }
        let place = (net.inside, data);
        let public = of_six(&control.say(&mut net, 0, &format!("PORT {}\r\n", six(place))));
        control.say(&mut net, 1, "200 I see\r\n");
        for bucket in 0..16 {
            net.gateway.start_move(bucket, bucket + data + 1);
            net.gateway.run_until_idle();
        }
        assert_eq!(net.open(1, (net.outside, 20), public), (place, (net.outside, 20)));
        control.say(&mut net, 1, "226 That was all\r\n");
        control.say(&mut net, 0, "NOOP\r\n");
    }
    assert_eq!((net.gateway.reasons(), net.expected()), (vec![], 0));
}

/// The sum of addresses, protocol and length. A segment has it in place of a checksum that is
/// still to be completed.
fn pseudo_header(frame: &[u8], network: &Network) -> [u8; 2] {
    let length = network.end - u32::from(network.transport_offset);
    let addresses = frame[26..34].chunks(2).map(|it| u32::from(u16::from_be_bytes([it[0], it[1]])));
    let sum = addresses.sum::<u32>() + u32::from(protocol::TCP) + length;
    (((sum >> 16) + (sum & 0xffff)) as u16).to_be_bytes()
}

#[test]
fn a_super_packet_is_edited_whole() {
    let mut net = Net::v4(2, 21);
    let (client, server) = ((net.inside, 40000), (net.outside, 21));
    let mut control = Control::open(&mut net, 0, client, server);
    for data in [40001, 2005] {
        let mut text = format!("PORT {}\r\n", six((net.inside, data)));
        (0..300).for_each(|line| write!(text, "NOOP {line}\r\n").unwrap());
        let numbers = (control.said[0], control.heard[0]);
        let bytes = net.segment(0, control.speaks[0], PSH_ACK, numbers, text.as_bytes());
        let mut frame = netio::FramePool::new(0, 0).copy_of(&bytes).unwrap();
        let network = dissect(frame.bytes()).unwrap().network.unwrap();
        // A kernel leaves the checksum like this.
        let sum = pseudo_header(frame.bytes(), &network);
        frame.bytes_mut()[50..52].copy_from_slice(&sum);
        frame.offload = Offload {
            checksum: Checksum::Partial { start: 34, offset: 16 },
            segmentation: Some(Segmentation { kind: 1, header_length: 54, segment_size: 1400 }),
        };
        net.gateway.inputs[0].put([frame]);
        net.gateway.run_until_idle();
        let sent = net.gateway.sent(1);
        assert_eq!(sent.len(), 1, "dropped: {:?}", net.gateway.reasons());
        let (from, to) = control.speaks[1];
        let network = dissect(sent[0].bytes()).unwrap().network.unwrap();
        assert_eq!(ends(&network), [to, from]);
        let heard = &sent[0].bytes()[54..network.end as usize];
        let heard = String::from_utf8(heard.to_vec()).unwrap();
        assert_eq!(of_six(&heard).0, net.own);
        assert_eq!(heard.split_once("\r\n").unwrap().1, text.split_once("\r\n").unwrap().1);
        assert_eq!(sent[0].offload.segmentation.map(|it| it.segment_size), Some(1400));
        assert_eq!(sent[0].bytes()[50..52], pseudo_header(sent[0].bytes(), &network));
        control.said[0] += text.len() as u32;
        control.heard[1] += heard.len() as u32;
        control.say(&mut net, 1, "200 I see\r\n");
    }
}
