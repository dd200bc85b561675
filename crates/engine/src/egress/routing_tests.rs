use super::*;

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
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
    let link = Link {
        name: "wan0".to_owned(),
        station: Some([2, 0, 0, 0, 0, 1]),
        mtu: 1500,
        is_up: true,
        addresses: addresses.iter().map(|address| address.parse().unwrap()).collect(),
    };
    let mut picture = Picture::default();
    picture.links.insert(LinkId(7), link);
    let routing = Routing::new(&picture, &[picture.link_named("wan0")]);
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
