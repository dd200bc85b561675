//! Names that nftables prints instead of numbers (IANA registries, kernel interface).

/// Names with their numbers.
pub(crate) type Names = &'static [(&'static str, u64)];

/// IP protocols.
pub(crate) const PROTOCOLS: Names = &[
    ("hopopt", 0),
    ("icmp", 1),
    ("igmp", 2),
    ("ggp", 3),
    ("ipencap", 4),
    ("st", 5),
    ("tcp", 6),
    ("egp", 8),
    ("igp", 9),
    ("pup", 12),
    ("udp", 17),
    ("hmp", 20),
    ("xns-idp", 22),
    ("rdp", 27),
    ("iso-tp4", 29),
    ("dccp", 33),
    ("xtp", 36),
    ("ddp", 37),
    ("idpr-cmtp", 38),
    ("ipv6", 41),
    ("ipv6-route", 43),
    ("ipv6-frag", 44),
    ("idrp", 45),
    ("rsvp", 46),
    ("gre", 47),
    ("esp", 50),
    ("ah", 51),
    ("skip", 57),
    ("ipv6-icmp", 58),
    ("ipv6-nonxt", 59),
    ("ipv6-opts", 60),
    ("rspf", 73),
    ("vmtp", 81),
    ("eigrp", 88),
    ("ospf", 89),
    ("ax.25", 93),
    ("ipip", 94),
    ("etherip", 97),
    ("encap", 98),
    ("pim", 103),
    ("ipcomp", 108),
    ("vrrp", 112),
    ("l2tp", 115),
    ("isis", 124),
    ("sctp", 132),
    ("fc", 133),
    ("mobility-header", 135),
    ("udplite", 136),
    ("mpls-in-ip", 137),
    ("manet", 138),
    ("hip", 139),
    ("shim6", 140),
    ("wesp", 141),
    ("rohc", 142),
    ("ethernet", 143),
    ("icmpv6", 58),
    ("comp", 108),
];
/// ICMP types.
pub(crate) const ICMP_TYPES: Names = &[
    ("echo-reply", 0),
    ("destination-unreachable", 3),
    ("source-quench", 4),
    ("redirect", 5),
    ("echo-request", 8),
    ("router-advertisement", 9),
    ("router-solicitation", 10),
    ("time-exceeded", 11),
    ("parameter-problem", 12),
    ("timestamp-request", 13),
    ("timestamp-reply", 14),
    ("info-request", 15),
    ("info-reply", 16),
    ("address-mask-request", 17),
    ("address-mask-reply", 18),
];
/// Codes of ICMP's "destination unreachable".
pub(crate) const ICMP_CODES: Names = &[
    ("net-unreachable", 0),
    ("host-unreachable", 1),
    ("prot-unreachable", 2),
    ("port-unreachable", 3),
    ("frag-needed", 4),
    ("net-prohibited", 9),
    ("host-prohibited", 10),
    ("admin-prohibited", 13),
];
/// IGMP types (RFC 2236 section 2.1, RFC 3376 section 4).
pub(crate) const IGMP_TYPES: Names = &[
    ("membership-query", 0x11),
    ("membership-report-v1", 0x12),
    ("membership-report-v2", 0x16),
    ("membership-report-v3", 0x22),
    ("leave-group", 0x17),
];
/// ICMPv6 types.
pub(crate) const ICMPV6_TYPES: Names = &[
    ("destination-unreachable", 1),
    ("packet-too-big", 2),
    ("time-exceeded", 3),
    ("parameter-problem", 4),
    ("echo-request", 128),
    ("echo-reply", 129),
    ("mld-listener-query", 130),
    ("mld-listener-report", 131),
    ("mld-listener-done", 132),
    ("mld-listener-reduction", 132),
    ("nd-router-solicit", 133),
    ("nd-router-advert", 134),
    ("nd-neighbor-solicit", 135),
    ("nd-neighbor-advert", 136),
    ("nd-redirect", 137),
    ("router-renumbering", 138),
    ("ind-neighbor-solicit", 141),
    ("ind-neighbor-advert", 142),
    ("mld2-listener-report", 143),
];
/// Codes of ICMPv6's "destination unreachable".
pub(crate) const ICMPV6_CODES: Names = &[
    ("no-route", 0),
    ("admin-prohibited", 1),
    ("addr-unreachable", 3),
    ("port-unreachable", 4),
    ("policy-fail", 5),
    ("reject-route", 6),
];
/// Unreachable codes for either family.
pub(crate) const ICMPX_CODES: Names =
    &[("no-route", 0), ("port-unreachable", 1), ("host-unreachable", 2), ("admin-prohibited", 3)];
/// Differentiated services code points.
pub(crate) const DSCPS: Names = &[
    ("cs0", 0),
    ("cs1", 8),
    ("cs2", 16),
    ("cs3", 24),
    ("cs4", 32),
    ("cs5", 40),
    ("cs6", 48),
    ("cs7", 56),
    ("df", 0),
    ("be", 0),
    ("lephb", 1),
    ("af11", 10),
    ("af12", 12),
    ("af13", 14),
    ("af21", 18),
    ("af22", 20),
    ("af23", 22),
    ("af31", 26),
    ("af32", 28),
    ("af33", 30),
    ("af41", 34),
    ("af42", 36),
    ("af43", 38),
    ("va", 44),
    ("ef", 46),
];
/// ECN fields.
pub(crate) const ECNS: Names = &[("not-ect", 0), ("ect1", 1), ("ect0", 2), ("ce", 3)];
/// TCP control bits.
pub(crate) const TCP_FLAGS: Names = &[
    ("fin", 1),
    ("syn", 2),
    ("rst", 4),
    ("psh", 8),
    ("ack", 16),
    ("urg", 32),
    ("ecn", 64),
    ("cwr", 128),
];
/// States of connection tracking, one bit each.
pub(crate) const CT_STATES: Names =
    &[("invalid", 1), ("established", 2), ("related", 4), ("new", 8), ("untracked", 64)];
/// Status bits of a connection.
pub(crate) const CT_STATUS: Names = &[
    ("expected", 1),
    ("seen-reply", 2),
    ("assured", 4),
    ("confirmed", 8),
    ("snat", 16),
    ("dnat", 32),
    ("dying", 512),
];
/// Directions of a connection.
pub(crate) const CT_DIRECTIONS: Names = &[("original", 0), ("reply", 1)];
/// Address families.
pub(crate) const NFPROTOS: Names = &[("ipv4", 2), ("ipv6", 10)];
/// EtherTypes.
pub(crate) const ETHERTYPES: Names = &[
    ("ip", 0x0800),
    ("arp", 0x0806),
    ("ip6", 0x86dd),
    ("vlan", 0x8100),
    ("8021q", 0x8100),
    ("8021ad", 0x88a8),
];
/// The receivers of a packet on the link.
pub(crate) const PACKET_TYPES: Names =
    &[("host", 0), ("unicast", 0), ("broadcast", 1), ("multicast", 2), ("other", 3)];
/// Kinds of addresses and routes (`enum` of `linux/rtnetlink.h`).
pub(crate) const ADDRESS_TYPES: Names = &[
    ("unspec", 0),
    ("unicast", 1),
    ("local", 2),
    ("broadcast", 3),
    ("anycast", 4),
    ("multicast", 5),
    ("blackhole", 6),
    ("unreachable", 7),
    ("prohibit", 8),
    ("throw", 9),
    ("nat", 10),
    ("xresolve", 11),
];
/// Types of mobility headers (RFC 6275 section 6.1.1, and IANA's registry).
pub(crate) const MOBILITY_TYPES: Names = &[
    ("binding-refresh-request", 0),
    ("home-test-init", 1),
    ("careof-test-init", 2),
    ("home-test", 3),
    ("careof-test", 4),
    ("binding-update", 5),
    ("binding-acknowledgement", 6),
    ("binding-error", 7),
    ("fast-binding-update", 8),
    ("fast-binding-acknowledgement", 9),
    ("fast-binding-advertisement", 10),
    ("experimental-mobility-header", 11),
    ("home-agent-switch-message", 12),
];
/// Traffic control handles with a name (`linux/pkt_sched.h`).
pub(crate) const PRIORITIES: Names = &[("none", 0), ("root", 0xffff_ffff)];
/// DCCP packet types.
pub(crate) const DCCP_TYPES: Names = &[
    ("request", 0),
    ("response", 1),
    ("data", 2),
    ("ack", 3),
    ("dataack", 4),
    ("closereq", 5),
    ("close", 6),
    ("reset", 7),
    ("sync", 8),
    ("syncack", 9),
];

/// The number of a name.
pub(crate) fn number(names: Names, name: &str) -> Option<u64> {
    names.iter().find(|(known, _)| *known == name).map(|(_, number)| *number)
}

/// Types of links (`linux/if_arp.h`), as nftables names them.
pub(crate) const LINK_TYPES: Names = &[
    ("ether", 1),
    ("ppp", 512),
    ("ipip", 768),
    ("ipip6", 769),
    ("loopback", 772),
    ("sit", 776),
    ("ipgre", 778),
];

/// Groups of interfaces (iproute2).
pub(crate) const GROUPS: Names = &[("default", 0)];

/// Options of TCP (IANA "TCP Option Kind Numbers").
pub(crate) const TCP_OPTIONS: Names = &[
    ("eol", 0),
    ("nop", 1),
    ("maxseg", 2),
    ("window", 3),
    ("sack-perm", 4),
    ("sack", 5),
    ("sack0", 5),
    ("sack1", 5),
    ("sack2", 5),
    ("sack3", 5),
    ("timestamp", 8),
    ("md5sig", 19),
    ("mptcp", 30),
    ("fastopen", 34),
];

/// Chunks of SCTP (RFC 9260 section 3.2, RFC 3758, RFC 5061).
pub(crate) const SCTP_CHUNKS: Names = &[
    ("data", 0),
    ("init", 1),
    ("init-ack", 2),
    ("sack", 3),
    ("heartbeat", 4),
    ("heartbeat-ack", 5),
    ("abort", 6),
    ("shutdown", 7),
    ("shutdown-ack", 8),
    ("error", 9),
    ("cookie-echo", 10),
    ("cookie-ack", 11),
    ("ecne", 12),
    ("cwr", 13),
    ("shutdown-complete", 14),
    ("asconf-ack", 128),
    ("forward-tsn", 192),
    ("asconf", 193),
];

/// Days of the week.
pub(crate) const DAYS: Names = &[
    ("Sunday", 0),
    ("Monday", 1),
    ("Tuesday", 2),
    ("Wednesday", 3),
    ("Thursday", 4),
    ("Friday", 5),
    ("Saturday", 6),
];
