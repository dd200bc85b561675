use super::*;

fn inside(prefix: &str, address: &str) -> bool {
    prefix.parse::<Prefix>().unwrap().contains(address.parse().unwrap())
}

#[test]
fn prefixes_choose_by_their_leading_bits() {
    assert!(inside("192.0.2.0/24", "192.0.2.255"));
    assert!(!inside("192.0.2.0/24", "192.0.3.0"));
    assert!(inside("192.0.2.7", "192.0.2.7") && !inside("192.0.2.7", "192.0.2.6"));
    assert!(inside("0.0.0.0/0", "203.0.113.1"));
    assert!(!inside("0.0.0.0/0", "2001:db8::1"), "families are kept apart");
    assert!(inside("2001:db8::/32", "2001:db8:ffff::1"));
    assert!(inside("::/0", "2001:db8::1"));
}

#[test]
fn a_prefix_mapped_into_ipv6_is_an_ipv4_prefix() {
    assert!(inside("::ffff:192.0.2.7", "192.0.2.7"));
    assert!(inside("::ffff:192.0.2.0/120", "192.0.2.9"));
    assert!(!inside("::ffff:192.0.2.0/120", "192.0.3.9"));
    assert_eq!("::ffff:192.0.2.0/120".parse::<Prefix>().unwrap().to_string(), "192.0.2.0/24");
    assert!(inside("::ffff:0.0.0.0/90", "::ffff:1.2.3.4"), "not only those");
}

#[test]
fn a_network_has_no_bits_behind_its_length() {
    for (text, network) in [
        ("192.0.2.77/24", "192.0.2.0/24"),
        ("192.0.2.77", "192.0.2.77/32"),
        ("192.0.2.77/0", "0.0.0.0/0"),
        ("2001:db8::77/126", "2001:db8::74/126"),
        ("2001:db8::77/0", "::/0"),
        ("2001:db8::77", "2001:db8::77/128"),
    ] {
        assert_eq!(text.parse::<Prefix>().unwrap().network().to_string(), network);
    }
}

#[test]
fn a_text_that_is_no_prefix_is_refused_and_quoted() {
    for text in ["", "192.0.2", "192.0.2.0/33", "192.0.2.0/", "2001:db8::/129", "a/24"] {
        assert_eq!(text.parse::<Prefix>(), Err(PrefixError { given: text.into() }));
    }
}
