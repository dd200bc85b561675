//! Names that nft reads in its own syntax.

/// Words of nft 1.0.6 that it reads as such wherever they stand, so that nothing can be named so. In
/// order.
#[rustfmt::skip]
const WORDS: &[&str] = &[
    "accept", "add", "ah", "all", "and", "arp", "auto-merge", "bridge", "cgroup", "chain",
    "comment", "comp", "constant", "continue", "counter", "cpu", "create", "ct", "day", "dccp",
    "define", "delete", "describe", "device", "devices", "dnat", "drop", "dst", "dup",
    "dynamic", "ecn", "element", "elements", "eq", "esp", "ether", "exists", "expires",
    "export", "exthdr", "fib", "flags", "flow", "flowtable", "flush", "frag", "fwd",
    "gc-interval", "ge", "get", "goto", "gt", "handle", "hbh", "hook", "hour", "ibriport",
    "ibrname", "icmp", "icmpv6", "igmp", "iif", "iifgroup", "iifname", "iiftype", "import",
    "include", "index", "inet", "insert", "interval", "ip", "ip6", "ipsec", "jhash", "jump",
    "le", "limit", "list", "log", "lshift", "lt", "map", "mark", "masquerade", "meta", "meter",
    "mh", "missing", "monitor", "ne", "netdev", "nftrace", "not", "notrack", "numgen",
    "obriport", "obrname", "oif", "oifgroup", "oifname", "oiftype", "or", "osf", "policy",
    "position", "priority", "queue", "quota", "random", "redefine", "redirect", "reject",
    "rename", "replace", "reset", "return", "rshift", "rt", "rt0", "rt2", "rtclassid", "rule",
    "ruleset", "sctp", "secmark", "set", "size", "skgid", "snat", "socket", "srh", "symhash",
    "synproxy", "table", "tcp", "th", "time", "timeout", "tproxy", "type", "typeof", "udp",
    "udplite", "undefine", "update", "vlan", "vmap", "xor", "xt",
];

/// True if nft reads a name in its own syntax: a letter or `_`, then letters, digits and some marks, and no
/// word of its own.
pub(super) fn is_readable(name: &str) -> bool {
    let is_inner = |it: char| it.is_ascii_alphanumeric() || "/_.-".contains(it);
    name.starts_with(|it: char| it.is_ascii_alphabetic() || it == '_')
        && name.chars().all(is_inner)
        && WORDS.binary_search(&name).is_err()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_nft_and_what_is_no_word_can_not_be_read_as_names() {
        assert!(WORDS.is_sorted());
        for name in ["f", "FORWARD", "acceptable", "block-list_4", "a.b/c", "_x"] {
            assert!(is_readable(name), "{name}");
        }
        for name in ["accept", "ip", "vmap", "1st", "", "with space"] {
            assert!(!is_readable(name), "{name}");
        }
    }
}
