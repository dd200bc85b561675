use super::*;

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// Routes of a host with one link, which has these addresses.
fn with_addresses(addresses: &[&str]) -> Routing {
    let link = Link {
        name: "wan0".to_owned(),
        station: Some([2, 0, 0, 0, 0, 1]),
        mtu: 1500,
        is_up: true,
        addresses: addresses.iter().map(|address| address.parse().unwrap()).collect(),
    };
    let mut picture = Picture::default();
    picture.links.insert(LinkId(7), link);
    Routing::new(&picture, &[picture.link_named("wan0")])
}

/// It is the address in the network of the next hop, or else the first. For IPv6 it is the address
/// with the longest common prefix.
#[test]
fn a_masquerade_has_the_address_that_the_kernel_would_choose() {
    let addresses = [
        "127.0.0.1/8",
        "203.0.113.1/28",
        "198.51.100.1/24",
        "198.51.100.7/24",
        "fe80::1/64",
        "2001:db8:1::1/64",
        "2001:db8:2::1/64",
    ];
    let routing = with_addresses(&addresses);
    let masquerade = |next, destination| {
        let chosen = routing.masquerade(LinkId(7), ip(next), ip(destination));
        chosen.map(|address| address.to_string()).unwrap_or_default()
    };
    assert_eq!(masquerade("198.51.100.9", "192.0.2.1"), "198.51.100.1");
    assert_eq!(masquerade("203.0.113.2", "192.0.2.1"), "203.0.113.1");
    assert_eq!(masquerade("192.0.2.254", "192.0.2.1"), "203.0.113.1");
    assert_eq!(masquerade("fe80::2", "2001:db8:2::99"), "2001:db8:2::1");
    assert_eq!(masquerade("fe80::2", "2001:db8:1::99"), "2001:db8:1::1");
    assert_eq!(routing.masquerade(LinkId(8), ip("192.0.2.1"), ip("192.0.2.1")), None);
    assert_eq!(routing.masquerade_addresses(|_| true).count(), 5);
}

/// The choices are those that `ip -6 route get` of Linux 6.18 shows for the same addresses.
#[test]
fn an_ipv6_masquerade_suits_the_destination_by_label_and_prefix() {
    let routing = with_addresses(&[
        "2001:db8:3::1/128",
        "2001:db8:1::2/64",
        "2002:c000:201::1/64",
        "2001:db8:2::1/48",
        "fd00:1::1/64",
        "2001:db8:1::1/64",
        "fe80::1/64",
    ]);
    for (destination, expected) in [
        ("2001:db8:1::99", "2001:db8:1::2"),
        ("2001:db8:2::99", "2001:db8:2::1"),
        ("2001:db8:2:8000::9", "2001:db8:2::1"),
        ("2001:db8:3::9", "2001:db8:3::1"),
        ("fd00:2::1", "fd00:1::1"),
        ("fc01::1", "fd00:1::1"),
        ("2002:c000:9::1", "2002:c000:201::1"),
        ("2001:4860::8888", "2001:db8:3::1"),
        ("2001:0:1::1", "2001:db8:3::1"),
        ("64:ff9b::1", "2001:db8:3::1"),
    ] {
        let chosen = routing.masquerade(LinkId(7), ip("fe80::2"), ip(destination));
        assert_eq!(chosen, Some(ip(expected)), "{destination}");
    }
}
