//! The reasons for words of nft that are refused and stay so.

/// Words as `docs/nft.md` lists them, each with its reason.
const REASONS: &[(&str, &str)] = &[
    ("add @MAP { KEY : VALUE }", "nft 1.0.6 has no JSON for it"),
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
    ("fwd", "it would pass by all other rules"),
    ("ipsec", IPSEC),
    ("meta cgroup", SOCKETS),
    ("meta ibrname", BRIDGES),
    ("meta ipsec", IPSEC),
    ("meta obrname", BRIDGES),
    (
        "meta pkttype set",
        "has the kernel's stack take or leave a frame, which it does not carry here",
    ),
    ("meta skgid", SOCKETS),
    ("meta skuid", SOCKETS),
    ("osf", "needs the fingerprints that nfnl_osf loads into the kernel"),
    ("queue", "the gateway hands packets to no other program"),
    (
        "rt classid",
        "the realm of a route, which the gateway does not read (`rt nexthop` tells routes apart)",
    ),
    ("rt ipsec", IPSEC),
    ("secmark", "labels of the kernel's security modules"),
    ("socket", SOCKETS),
    ("tcp flags set", "it would be another packet"),
    (
        "tproxy",
        "leads packets to sockets of the host; use `redirect`, which the kernel carries out",
    ),
    (
        "xt",
        "an extension of iptables, of which nft prints the name alone; load the file of \
         iptables-save in its place",
    ),
];

const BRIDGES: &str = "the kernel's bridges, which do not carry the gateway's frames";
const ETHER_SET: &str = "the next link has its own addresses";
const IPSEC: &str = "IPsec of the host, which forwarded frames do not pass";
const SOCKETS: &str = "about sockets of the host, which forwarded packets do not have";

/// The reason why a word is refused; `None` if the word has none.
pub fn reason_for_refusal(word: &str) -> Option<&'static str> {
    REASONS.iter().find(|(known, _)| *known == word).map(|(_, reason)| *reason)
}

/// A message about a word, with the reason if there is one.
pub(super) fn told(message: String, word: &str) -> String {
    match reason_for_refusal(word) {
        Some(reason) => format!("{message}: {reason}"),
        None => message,
    }
}
