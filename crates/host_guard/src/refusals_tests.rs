use std::net::IpAddr;

use engine::PortLink;
use netio::PortId;
use ruleset::{Interval, name_bits};

use super::*;
use crate::interface::Interface;

const OWN: [u8; 4] = [198, 51, 100, 254];
const SENDER: [u8; 4] = [203, 0, 113, 7];
const TCP: u8 = protocol::TCP;
const UDP: u8 = protocol::UDP;

/// A filter of two interfaces, which translates to one address.
fn filter() -> HostFilter {
    let interfaces = vec![Interface::test(Some(3), "lan0"), Interface::test(Some(4), "wan0")];
    let own = IpAddr::from(OWN);
    HostFilter { interfaces, translation_addresses: vec![own..=own], ..HostFilter::default() }
}

fn packet(protocol: u8, port: u16, opens: bool) -> ToHost {
    let (source, destination) = ((SENDER, 9).into(), (OWN, port).into());
    ToHost { port: PortId(1), source, destination, protocol, opens }
}

fn rule(interface: &str, ports: Option<(u16, u16)>) -> Forwarded {
    let interfaces = Some(Interval::one(name_bits(interface).unwrap()));
    Forwarded { interfaces, protocol: Some(TCP), ports, ..Forwarded::default() }
}

#[test]
fn the_host_gets_what_opens_connections_to_services_and_no_other_packets() {
    let link = Some(LinkId(4));
    let cases = [
        (packet(TCP, 80, true), None),
        (packet(TCP, 1023, true), None),
        (packet(TCP, 80, false), link),
        (packet(TCP, 1024, true), link),
        (packet(TCP, 40_000, false), link),
        (packet(UDP, 53, false), link),
        (packet(UDP, 40_000, false), link),
    ];
    for (packet, expected) in cases {
        assert_eq!(filter().kept(&packet), expected, "{packet:?}");
        // Helpers may expect any connection.
        let expecting = HostFilter { expects: true, ..filter() };
        assert_eq!(expecting.kept(&packet), link, "{packet:?}");
        let elsewhere = ToHost { destination: ([198, 51, 100, 253], 40_000).into(), ..packet };
        assert_eq!(filter().kept(&elsewhere), None, "{elsewhere:?}");
        let gone = PortLink { link: None, name: "wan0".into() };
        let mut without = filter();
        without.interfaces[1].follow(&gone);
        assert_eq!(without.kept(&packet), None, "the interface has gone");
    }
}

#[test]
fn packets_that_the_kernel_may_redirect_are_known() {
    let redirected = vec![rule("wan0", Some((8000, 8010)))];
    let now = HostFilter { redirected: redirected.clone(), ..filter() };
    let former = HostFilter { formerly_redirected: redirected, ..filter() };
    for filter in [now, former] {
        assert!(filter.may_be_redirected(&packet(TCP, 8005, true)));
        assert!(!filter.may_be_redirected(&packet(TCP, 8011, true)));
        assert!(!filter.may_be_redirected(&packet(UDP, 8005, false)));
        let inside = ToHost { port: PortId(0), ..packet(TCP, 8005, true) };
        assert!(!filter.may_be_redirected(&inside));
    }
}

#[test]
fn packets_of_forwards_are_kept_and_those_that_open_connections_to_former_ones_are_not() {
    let addresses = Some((Family::V4, Interval { low: 0xcb00_7100, high: 0xcb00_71ff }));
    let forward = Forwarded { addresses, ..rule("wan0", None) };
    let to_forwarded =
        |opens| ToHost { destination: ([203, 0, 113, 80], 40_000).into(), ..packet(TCP, 0, opens) };
    let now = HostFilter { forwarded: vec![forward], ..filter() };
    let former = HostFilter { formerly_forwarded: vec![forward], ..filter() };
    for opens in [false, true] {
        assert_eq!(now.kept(&to_forwarded(opens)), Some(LinkId(4)));
        assert_eq!(filter().kept(&to_forwarded(opens)), None);
    }
    assert_eq!(former.kept(&to_forwarded(false)), Some(LinkId(4)));
    assert_eq!(former.kept(&to_forwarded(true)), None);
    // A current rule may take any connection.
    let vague = HostFilter { expects: true, ..former };
    assert_eq!(vague.kept(&to_forwarded(true)), Some(LinkId(4)));
    // The rule is about a name that the interface had before.
    let mut renamed = now;
    renamed.interfaces[1].follow(&PortLink { link: Some(LinkId(4)), name: "wan9".into() });
    assert_eq!(renamed.kept(&to_forwarded(false)), Some(LinkId(4)));
    assert_eq!(renamed.kept(&to_forwarded(true)), None);
}

#[test]
fn chains_that_may_drop_a_packet_for_the_host_or_its_answer_count() {
    let chain = |hook, accepts, is_empty, is_nat| BaseChain {
        family: "inet",
        table: "filter".to_owned(),
        name: "own".to_owned(),
        hook,
        accepts,
        is_empty,
        is_nat,
    };
    for hook in ["prerouting", "input", "output"] {
        assert!(!may_drop(&chain(hook, true, true, false)));
        assert!(may_drop(&chain(hook, true, false, false)));
        assert!(may_drop(&chain(hook, false, true, false)));
        assert!(!may_drop(&chain(hook, true, false, true)));
        assert!(may_drop(&chain(hook, false, true, true)));
    }
    assert!(!may_drop(&chain("forward", false, false, false)));
    let own = BaseChain { table: "stateway_12_3".to_owned(), ..chain("input", true, false, false) };
    assert!(!may_drop(&own));
}
