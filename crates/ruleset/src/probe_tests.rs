use proptest::prelude::*;

use super::*;

fn shown(question: &str) -> String {
    match Probe::parse(question) {
        Ok(probe) => wire::Summary { frame: &probe.frame }.to_string(),
        Err(error) => error.to_string(),
    }
}

#[test]
fn tuples_are_packets() {
    insta::assert_snapshot!(
        [
            "tcp 192.0.2.1:1234 198.51.100.2:443 in lan0 out wan0 [state new] [flags syn]",
            "tcp 192.0.2.1:1234 > 198.51.100.2:443 reply",
            "TCP 192.0.2.1 198.51.100.2:443 flags syn|ack length 1500",
            "udp [2001:db8::1]:5353 [2001:db8::2]:53 vlan 7 ttl 1",
            "icmp 192.0.2.1 198.51.100.2 type echo-reply id 77",
            "icmp 192.0.2.1 198.51.100.2 type 13",
            "icmpv6 2001:db8::1 2001:db8::2",
            "icmpv6 2001:db8::1 2001:db8::2 type nd-neighbor-solicit",
            "sctp 192.0.2.1:5 198.51.100.2:6",
            "dccp 192.0.2.1:5 198.51.100.2:6",
            "udplite 192.0.2.1:5 198.51.100.2:6",
            "gre 192.0.2.1 198.51.100.2",
            "esp 192.0.2.1 198.51.100.2 dscp ef",
            "89 192.0.2.1 224.0.0.5",
        ]
        .map(shown)
        .join("\n"),
        @r"
        192.0.2.1:1234 > 198.51.100.2:443 TCP SYN seq 1 ack 0 window 65535 length 0
        192.0.2.1:1234 > 198.51.100.2:443 TCP ACK seq 1 ack 0 window 65535 length 0
        192.0.2.1:49152 > 198.51.100.2:443 TCP SYN|ACK seq 1 ack 0 window 65535 length 1456
        [2001:db8::1]:5353 > [2001:db8::2]:53 UDP length 8
        192.0.2.1 > 198.51.100.2 ICMP type 0 code 0 id 77
        192.0.2.1 > 198.51.100.2 ICMP type 13 code 0 id 1
        2001:db8::1 > 2001:db8::2 ICMPv6 type 128 code 0 id 1
        2001:db8::1 > 2001:db8::2 ICMPv6 type 135 code 0
        192.0.2.1:5 > 198.51.100.2:6 SCTP length 32
        192.0.2.1:5 > 198.51.100.2:6 DCCP length 20
        192.0.2.1:5 > 198.51.100.2:6 UDP-Lite length 8
        192.0.2.1 > 198.51.100.2 GRE version 0 key 0x0
        192.0.2.1 > 198.51.100.2 protocol 50
        192.0.2.1 > 224.0.0.5 protocol 89
        "
    );
}

#[test]
fn mistakes_in_a_question_are_explained() {
    insta::assert_snapshot!(
        [
            "tcp 192.0.2.1",
            "tcp 192.0.2 198.51.100.2:1",
            "tcp 192.0.2.1 198.51.100.2",
            "tcp 192.0.2.1 [2001:db8::1]:5",
            "icmp 192.0.2.1:5 198.51.100.2",
            "icmp 2001:db8::1 2001:db8::2",
            "udp 192.0.2.1 198.51.100.2:5 flags syn",
            "udp 192.0.2.1 198.51.100.2:5 length 10",
            "udp 192.0.2.1 198.51.100.2:5 state open",
            "tcp 192.0.2.1 198.51.100.2:5 flags syn,sin",
            "udp 192.0.2.1 198.51.100.2:5 vlan 5000",
            "udp 192.0.2.1 198.51.100.2:5 in",
            "udp 2001:db8::1:5 2001:db8::2:6",
            "udp 192.0.2.1 198.51.100.2:5 in lan0 in lan1",
            "udp 192.0.2.1 198.51.100.2:5 iif lan0 ttl 5 iifname lan0",
            "udp 192.0.2.1 198.51.100.2:5 reply reply",
        ]
        .map(shown)
        .join("\n"),
        @r#"
        no destination address; for example tcp 192.0.2.1 198.51.100.2
        "192.0.2" is no source; write an address, or an address with a port: 192.0.2.1:80, [2001:db8::1]:80
        tcp needs a destination port; for example 198.51.100.2:443
        one address is of IPv4 and the other of IPv6
        icmp has no ports; write addresses alone
        icmp does not run over this address family
        "flags" does not apply to this protocol
        length 10 is less than the headers, 28
        "open" is no state; there are: new, established, related, invalid, untracked
        "sin" is unknown; there are: fin, syn, rst, psh, ack, urg, ecn, cwr
        vlan "5000": write a name or a number from 0 to 4094
        "in" without its value
        udp needs a destination port; for example [2001:db8::2]:6, since 2001:db8::2:6 is an address
        "in" appears twice
        "iifname" appears twice
        "reply" appears twice
        "#
    );
    assert!(shown("tcpp ::1 ::2").starts_with("\"tcpp\" is neither a protocol nor a frame; write"));
    assert!(shown("").starts_with("no packet is named; write PROTOCOL"));
    assert!(shown("udp 192.0.2.1 198.51.100.2:5 nonsense").starts_with("\"nonsense\" is not"));
}

#[test]
fn frames_are_read_with_and_without_link_header() {
    let built = Probe::parse("udp 192.0.2.1:7 198.51.100.2:53").expect("a tuple");
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    for digits in [hex(&built.frame), hex(&built.frame[14..])] {
        let read = Probe::parse(&format!("{digits} in lan0 state established")).expect("a frame");
        assert_eq!(read.frame, built.frame);
        assert_eq!(read.input.as_deref(), Some("lan0"));
        assert_eq!(read.state, Some(CtState::Established));
    }
    let whole = hex(&built.frame);
    for wrong in [&whole[..whole.len() - 1], &whole[..60], &format!("{whole} ttl 5")] {
        assert!(Probe::parse(wrong).is_err(), "{wrong}");
    }
    // A malformed packet gets a description in words.
    let Err(error) = Probe::parse(&whole[..60]) else { panic!("it is cut") };
    assert_eq!(
        error.to_string(),
        "rules do not see this frame: IPv4 header with wrong version, length or checksum"
    );
}

#[test]
fn the_state_is_supposed_from_the_packet() {
    let state = |question: &str| Probe::parse(question).expect("a packet").supposed_state();
    assert_eq!(state("udp 192.0.2.1:7 198.51.100.2:53"), CtState::New);
    assert_eq!(state("udp 192.0.2.1:7 198.51.100.2:53 reply"), CtState::Established);
    assert_eq!(state("udp 192.0.2.1:7 198.51.100.2:53 reply state invalid"), CtState::Invalid);
    let solicit = "icmpv6 2001:db8::1 2001:db8::2 type nd-neighbor-solicit";
    assert_eq!(state(solicit), CtState::Untracked);
}

proptest! {
    #[test]
    fn no_question_panics(text in "\\PC{0,80}", digits in "[0-9a-f:]{40,200}") {
        let _ = Probe::parse(&text);
        let _ = Probe::parse(&digits);
        let _ = Probe::parse(&format!("tcp 192.0.2.1:5 198.51.100.2:6 {text}"));
    }

    #[test]
    fn a_tuple_is_the_packet_that_it_says(
        tcp in any::<bool>(),
        from in any::<[u8; 4]>(),
        to in any::<[u8; 4]>(),
        ports in any::<(u16, u16)>(),
    ) {
        let (from, to) = (std::net::Ipv4Addr::from(from), std::net::Ipv4Addr::from(to));
        let name = if tcp { "tcp" } else { "udp" };
        let text = format!("{name} {from}:{} {to}:{}", ports.0, ports.1);
        let probe = Probe::parse(&text).expect("it is right");
        prop_assert_eq!(probe.network.source_ip(), std::net::IpAddr::from(from));
        prop_assert_eq!(probe.network.destination_ip(), std::net::IpAddr::from(to));
        prop_assert_eq!(probe.network.transport.ports().unwrap_or_default(), ports);
    }
}
