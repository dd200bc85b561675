//! The reasons for words of nft that are refused and stay so.

/// Words as `docs/nft.md` lists them, each with its reason.
const REASONS: &[(&str, &str)] = &[
    (
        "TUNNEL HEADER FIELD",
        "about the inside of a tunnel, and rules judge its outermost packet; with `tunnels = \
         \"judged\"` in [gateway] they judge the packet inside as well",
    ),
    ("add @MAP { KEY : VALUE }", "nft 1.0.6 has no JSON for it"),
    ("ct event", EVENTS),
    ("ct event set", EVENTS),
    ("ct expectation set", "expectations come from helpers here"),
    (
        "ct id",
        "the kernel's is an address in its memory, mixed, and here a connection is named by its \
         addresses, ports and zone",
    ),
    ("dccp option", "of a protocol that Linux has given up; nft 1.0.6 does not know the word"),
    ("dup", "the gateway sends no copies"),
    ("ether daddr set", ETHER_SET),
    ("ether saddr set", ETHER_SET),
    ("exthdr srh", "the segments of a route, which the gateway does not read"),
    ("fwd", "it would pass by all other rules"),
    ("ipsec", IPSEC),
    ("meta cgroup", SOCKETS),
    ("meta ibrname", BRIDGES),
    ("meta ibrpvid", BRIDGES),
    ("meta ibrvproto", BRIDGES),
    ("meta iifkind", KINDS),
    ("meta ipsec", IPSEC),
    ("meta obrname", BRIDGES),
    ("meta oifkind", KINDS),
    (
        "meta pkttype set",
        "has the kernel's stack take or leave a frame, which it does not carry here",
    ),
    ("meta rtclassid", REALMS),
    ("meta sdif", VRFS),
    ("meta sdifname", VRFS),
    ("meta skgid", SOCKETS),
    ("meta skuid", SOCKETS),
    ("osf", "needs the fingerprints that nfnl_osf loads into the kernel"),
    ("queue", "the gateway hands packets to no other program"),
    ("reset", "the gateway takes no option out of a segment"),
    ("rt classid", REALMS),
    ("rt ipsec", IPSEC),
    ("secmark", "labels of the kernel's security modules"),
    ("socket", SOCKETS),
    ("tcp flags set", "it would be another packet"),
    (
        "tproxy",
        "leads packets to sockets of the host; use `redirect`, which the kernel carries out",
    ),
    ("udp checksum set", "checksums are computed"),
    ("vlan pcp", TAGS),
    ("vlan type", TAGS),
    (
        "xt",
        "an extension of iptables, of which nft prints the name alone; load the file of \
         iptables-save in its place",
    ),
];

const BRIDGES: &str = "the kernel's bridges, which do not carry the gateway's frames";
const ETHER_SET: &str = "the next link has its own addresses";
const EVENTS: &str = "every event of a connection is told";
const IPSEC: &str = "IPsec of the host, which forwarded frames do not pass";
const KINDS: &str = "the gateway knows interfaces by name, type and group";
const REALMS: &str =
    "the realm of a route, which the gateway does not read (`rt nexthop` tells routes apart)";
const SOCKETS: &str = "about sockets of the host, which forwarded packets do not have";
const TAGS: &str = "rules see the number of a VLAN, and nothing else of its tag";
const VRFS: &str = "interfaces of a VRF, which the gateway does not take";

/// The reason why a word is refused; `None` if the word has none.
pub fn reason_for_refusal(word: &str) -> Option<&'static str> {
    REASONS.iter().find(|(known, _)| *known == word).map(|(_, reason)| *reason)
}

/// A message about a word, with the reason if there is one.
pub(super) fn with_reason(message: String, word: &str) -> String {
    match reason_for_refusal(word) {
        Some(reason) => format!("{message}: {reason}"),
        None => message,
    }
}
