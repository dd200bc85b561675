//! The sites for the rulesets of `examples/rulesets`: networks around a gateway, and the hosts
//! that talk there.

/// One of the gateway's interfaces.
pub struct Cable {
    pub name: &'static str,
    /// The gateway's addresses, each with its prefix length.
    pub addresses: &'static [&'static str],
    /// The hosts directly on the link.
    pub hosts: &'static [&'static str],
}

/// A host that opens connections.
pub struct Source {
    pub at: &'static str,
    pub address: &'static str,
}

/// An address and its ports to which hosts open connections.
pub struct Target {
    /// Hosts on this interface do not ask.
    pub at: Option<&'static str>,
    pub address: &'static str,
    pub tcp: &'static [u16],
    pub udp: &'static [u16],
}

/// A range of addresses and ports from which a rule may choose.
pub struct Choice {
    pub first: &'static str,
    pub last: &'static str,
    /// None if the rule does not change the port.
    pub ports: Option<(u16, u16)>,
}

/// A gateway and its surroundings.
pub struct Site {
    pub cables: &'static [Cable],
    /// Arguments of `ip route add`.
    pub routes: &'static [&'static str],
    pub sources: &'static [Source],
    pub targets: &'static [Target],
    pub choices: &'static [Choice],
    /// The addresses of the gateway whose packets the rules forward.
    pub forwarded: &'static [&'static str],
}

const fn source(at: &'static str, address: &'static str) -> Source {
    Source { at, address }
}

const fn target(
    at: &'static str,
    address: &'static str,
    tcp: &'static [u16],
    udp: &'static [u16],
) -> Target {
    Target { at: Some(at), address, tcp, udp }
}

/// A target that hosts on every interface ask.
const fn anywhere(address: &'static str, tcp: &'static [u16], udp: &'static [u16]) -> Target {
    Target { at: None, address, tcp, udp }
}

/// The kernel keeps privileged ports; ours replaces them.
const ANY_PORT: Option<(u16, u16)> = Some((1, 65535));

const fn any_port(address: &'static str) -> Choice {
    Choice { first: address, last: address, ports: ANY_PORT }
}

/// The uplink of two of the gateways, with the provider's router.
const UPLINK_CABLE: Cable = Cable {
    name: "wan0",
    addresses: &["192.0.2.65/26", "2001:db8:1::1/64"],
    hosts: &["192.0.2.66", "2001:db8:1::2"],
};
const UPLINK: [&str; 2] = ["default via 192.0.2.66 dev wan0", "default via 2001:db8:1::2 dev wan0"];

pub const HOME_ROUTER: Site = Site {
    cables: &[
        Cable {
            name: "lan0",
            addresses: &["198.51.100.1/24", "2001:db8:2::1/64"],
            hosts: &[
                "198.51.100.10",
                "198.51.100.11",
                "198.51.100.12",
                "198.51.100.20",
                "198.51.100.130",
                "2001:db8:2::20",
            ],
        },
        Cable {
            name: "guest0",
            addresses: &["203.0.113.129/25", "2001:db8:3::1/64"],
            hosts: &["203.0.113.140", "2001:db8:3::40"],
        },
        UPLINK_CABLE,
    ],
    routes: &UPLINK,
    sources: &[
        source("lan0", "198.51.100.10"),
        source("lan0", "198.51.100.20"),
        source("lan0", "2001:db8:2::20"),
        source("guest0", "203.0.113.140"),
        source("guest0", "2001:db8:3::40"),
        source("wan0", "203.0.113.9"),
        source("wan0", "203.0.113.11"),
        // Spoofed sources.
        source("wan0", "192.0.2.3"),
        source("wan0", "198.51.100.130"),
        source("wan0", "2001:db8:9::9"),
    ],
    targets: &[
        target("lan0", "198.51.100.20", &[22, 23, 80], &[53]),
        target("lan0", "198.51.100.10", &[8080, 8443], &[]),
        anywhere("192.0.2.65", &[80, 443, 2222, 81], &[51820, 5000]),
        target("wan0", "203.0.113.9", &[80, 443, 22], &[53, 123, 5000]),
        target("guest0", "203.0.113.140", &[80], &[53]),
        target("lan0", "2001:db8:2::20", &[22, 80], &[53]),
        target("wan0", "2001:db8:9::9", &[80, 443, 22], &[53, 5000]),
        target("guest0", "2001:db8:3::40", &[80], &[53]),
    ],
    choices: &[any_port("192.0.2.65")],
    forwarded: &["192.0.2.65"],
};

pub const SERVER: Site = Site {
    cables: &[
        Cable {
            name: "lan0",
            addresses: &["198.51.100.254/24", "2001:db8:2::fe/64"],
            hosts: &["198.51.100.10", "2001:db8:2::10"],
        },
        Cable {
            name: "wan0",
            addresses: &["192.0.2.254/24", "2001:db8:1::fe/64"],
            hosts: &[
                "192.0.2.5",
                "192.0.2.66",
                "192.0.2.70",
                "192.0.2.71",
                "192.0.2.100",
                "192.0.2.200",
                "192.0.2.201",
                "2001:db8:1::2",
                "2001:db8:1::100",
            ],
        },
    ],
    routes: &["default via 192.0.2.100 dev wan0", "default via 2001:db8:1::2 dev wan0"],
    sources: &[
        source("wan0", "192.0.2.5"),
        source("wan0", "192.0.2.70"),
        source("wan0", "192.0.2.71"),
        source("wan0", "192.0.2.100"),
        source("wan0", "192.0.2.200"),
        source("wan0", "192.0.2.201"),
        source("wan0", "2001:db8:a::1"),
        source("wan0", "2001:db8:b::1"),
        source("wan0", "2001:db8:1::100"),
        source("lan0", "198.51.100.10"),
        source("lan0", "2001:db8:2::10"),
    ],
    targets: &[
        target("lan0", "198.51.100.10", &[22, 25, 53, 80, 8080], &[53, 443, 5000]),
        target("lan0", "2001:db8:2::10", &[22, 25, 53, 80, 8080], &[53, 443, 5000]),
        target("wan0", "192.0.2.100", &[80, 8080], &[53, 5000]),
        target("wan0", "2001:db8:1::100", &[80, 8080], &[53, 5000]),
    ],
    choices: &[],
    forwarded: &[],
};

pub const CONTAINERS: Site = Site {
    cables: &[
        Cable {
            name: "pod0",
            addresses: &["198.51.100.14/28"],
            hosts: &["198.51.100.2", "198.51.100.3", "198.51.100.4", "198.51.100.5"],
        },
        Cable {
            name: "pod1",
            addresses: &["198.51.100.30/28", "198.51.100.46/28"],
            hosts: &["198.51.100.17", "198.51.100.18", "198.51.100.33"],
        },
        UPLINK_CABLE,
    ],
    routes: &UPLINK,
    sources: &[
        source("pod0", "198.51.100.2"),
        source("pod0", "198.51.100.4"),
        source("pod1", "198.51.100.17"),
        source("pod1", "198.51.100.33"),
        source("wan0", "203.0.113.9"),
        source("wan0", "203.0.113.12"),
    ],
    targets: &[
        anywhere("203.0.113.10", &[80, 443, 81], &[53]),
        anywhere("203.0.113.11", &[53], &[53]),
        anywhere("192.0.2.65", &[30000, 30010, 30011, 31000], &[30000]),
        target("wan0", "203.0.113.9", &[80, 31000], &[53]),
        target("pod0", "198.51.100.2", &[8080, 9090, 22], &[53]),
        target("pod1", "198.51.100.17", &[5432, 6379, 22], &[5353, 53]),
        target("pod1", "198.51.100.33", &[80], &[5353]),
    ],
    choices: &[
        Choice { first: "198.51.100.2", last: "198.51.100.5", ports: None },
        any_port("198.51.100.14"),
        any_port("198.51.100.30"),
        any_port("192.0.2.65"),
    ],
    forwarded: &["192.0.2.65"],
};

pub const NAT_GATEWAY: Site = Site {
    cables: &[
        Cable {
            name: "lan0",
            addresses: &["198.51.100.254/24", "2001:db8:2::fe/64"],
            hosts: &[
                "198.51.100.7",
                "198.51.100.10",
                "198.51.100.11",
                "198.51.100.20",
                "198.51.100.21",
                "198.51.100.70",
                "198.51.100.150",
                "198.51.100.205",
                "198.51.100.211",
                "198.51.100.220",
                "2001:db8:2::80",
                "2001:db8:2::90",
            ],
        },
        Cable {
            name: "wan0",
            addresses: &[
                "192.0.2.1/24",
                "192.0.2.2/32",
                "192.0.2.3/32",
                "192.0.2.4/32",
                "192.0.2.5/32",
                "192.0.2.6/32",
                "192.0.2.7/32",
                "192.0.2.10/32",
                "192.0.2.11/32",
                "2001:db8:1::fe/64",
                "2001:db8:1::80/128",
            ],
            hosts: &["192.0.2.66", "2001:db8:1::2"],
        },
    ],
    routes: &UPLINK,
    sources: &[
        source("lan0", "198.51.100.7"),
        source("lan0", "198.51.100.10"),
        source("lan0", "198.51.100.70"),
        source("lan0", "198.51.100.150"),
        source("lan0", "198.51.100.205"),
        source("lan0", "198.51.100.211"),
        source("lan0", "198.51.100.220"),
        source("lan0", "2001:db8:2::90"),
        source("wan0", "203.0.113.9"),
        source("wan0", "203.0.113.10"),
        source("wan0", "2001:db8:9::9"),
    ],
    targets: &[
        target("wan0", "203.0.113.9", &[21, 80, 2525], &[53, 5005]),
        anywhere("192.0.2.1", &[8000, 8050, 8100, 8101, 2525], &[5000, 5010, 5011]),
        anywhere("192.0.2.10", &[80, 22], &[53]),
        anywhere("192.0.2.11", &[443], &[]),
        anywhere("2001:db8:1::80", &[80, 81], &[]),
        target("wan0", "2001:db8:9::9", &[80], &[53]),
        target("lan0", "2001:db8:2::90", &[22], &[53]),
        target("lan0", "198.51.100.70", &[22], &[53]),
    ],
    choices: &[
        any_port("192.0.2.1"),
        any_port("192.0.2.2"),
        any_port("192.0.2.3"),
        Choice { first: "192.0.2.4", last: "192.0.2.6", ports: ANY_PORT },
        Choice { first: "192.0.2.7", last: "192.0.2.7", ports: Some((20_000, 30_000)) },
        any_port("2001:db8:1::80"),
    ],
    forwarded: &["192.0.2.1", "192.0.2.10", "192.0.2.11", "2001:db8:1::80"],
};
