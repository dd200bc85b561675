//! The lab: client, gateway and server.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::error::{Error, Result};
use crate::namespace::Namespace;
use crate::placement::Placement;
use crate::program::Program;
use crate::stateway::{Stateway, StatewaySpec};

/// The gateway between client and server.
#[derive(Clone, Debug)]
pub enum Gateway {
    /// The kernel's bridge, in one subnet.
    KernelBridge,
    /// The kernel's forwarding, between two subnets.
    KernelForwarding(Tracking),
    /// `stateway run`: a bridge in one subnet, or a router between two.
    Stateway(StatewaySpec),
}

/// Further work of the kernel's forwarding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tracking {
    /// Nothing.
    Off,
    /// Connection tracking, with a ruleset that accepts all packets but invalid ones.
    Conntrack,
    /// Connection tracking, with masquerade for the client's IPv4 addresses.
    Masquerade,
    /// The same, with ports of this range.
    MasqueradeTo {
        /// The first.
        first: u16,
        /// The last.
        last: u16,
    },
}

/// Version of the Internet Protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

/// One of the two sides of the gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Interface `lan0` of the gateway.
    Client,
    /// Interface `wan0` of the gateway.
    Server,
}

/// Client - gateway - server. The end points' interface is `eth0`. The gateway's are `lan0`,
/// towards the client, and `wan0`. Addresses are those of RFC 5737 and RFC 3849. There is no
/// duplicate address detection.
#[derive(Debug)]
pub struct Lab {
    gateway_kind: Gateway,
    placement: Placement,
    // Declared before the namespaces, because fields are dropped in order.
    stateway: Option<Stateway>,
    client: Namespace,
    gateway: Namespace,
    server: Namespace,
}

/// A host behind the server, which routes to it; see [`Lab::add_far_host`].
#[derive(Debug)]
pub struct FarHost {
    namespace: Namespace,
}

const CLIENT: [IpAddr; 2] = addresses([192, 0, 2, 1], [1, 1]);
const SERVER_BRIDGED: [IpAddr; 2] = addresses([192, 0, 2, 2], [1, 2]);
const SERVER_ROUTED: [IpAddr; 2] = addresses([198, 51, 100, 2], [2, 2]);
const FAR: [IpAddr; 2] = addresses([203, 0, 113, 129], [3, 2]);

// Hardware addresses (the documentation values of RFC 9542) stay the same when a cable is replaced,
// because the neighbour entries on the other side outlive the cable.
const BRIDGED_CLIENT: [&str; 5] = [
    "link set eth0 address 00:00:5e:00:53:01",
    "addr add 192.0.2.1/24 dev eth0",
    "addr add 2001:db8:1::1/64 dev eth0 nodad",
    "route add default via 192.0.2.2",
    "route add default via 2001:db8:1::2",
];
const BRIDGED_SERVER: [&str; 3] = [
    "link set eth0 address 00:00:5e:00:53:02",
    "addr add 192.0.2.2/24 dev eth0",
    "addr add 2001:db8:1::2/64 dev eth0 nodad",
];
const ROUTED_CLIENT: [&str; 5] = [
    "link set eth0 address 00:00:5e:00:53:01",
    "addr add 192.0.2.1/24 dev eth0",
    "addr add 2001:db8:1::1/64 dev eth0 nodad",
    "route add default via 192.0.2.254",
    "route add default via 2001:db8:1::fe",
];
const ROUTED_LAN: [&str; 3] = [
    "link set lan0 address 00:00:5e:00:53:03",
    "addr add 192.0.2.254/24 dev lan0",
    "addr add 2001:db8:1::fe/64 dev lan0 nodad",
];
const ROUTED_WAN: [&str; 5] = [
    "link set wan0 address 00:00:5e:00:53:04",
    "addr add 198.51.100.254/24 dev wan0",
    "addr add 2001:db8:2::fe/64 dev wan0 nodad",
    "route add default via 198.51.100.2",
    "route add default via 2001:db8:2::2",
];
const ROUTED_SERVER: [&str; 5] = [
    "link set eth0 address 00:00:5e:00:53:02",
    "addr add 198.51.100.2/24 dev eth0",
    "addr add 2001:db8:2::2/64 dev eth0 nodad",
    "route add 192.0.2.0/24 via 198.51.100.254",
    "route add 2001:db8:1::/64 via 2001:db8:2::fe",
];

const CONNTRACK_RULES: &str = "
table inet lab {
    chain forward {
        type filter hook forward priority filter; policy accept;
        ct state invalid drop
        ct state new,established,related accept
    }
}
";
const MASQUERADE_RULES: &str = "
table ip labnat {
    chain postrouting {
        type nat hook postrouting priority srcnat; policy accept;
        oifname wan0 masquerade
    }
}
";

impl Lab {
    /// The server drops packets to this address without an answer: the target of packet-rate
    /// measurements.
    pub const SINK: &str = "203.0.113.1";

    /// Builds the lab and starts its gateway. Stateway is ready when this returns.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if namespaces are not allowed, the kernel lacks a part, or the given
    /// binary has no command `run`. Also if `placement` has CPUs that this process may not use, or
    /// steers softirqs without real root. Other errors if the gateway does not come up.
    pub fn new(gateway: Gateway, placement: Placement) -> Result<Self> {
        let mut lab = Self {
            gateway_kind: gateway,
            placement,
            stateway: None,
            client: Namespace::new("client")?,
            gateway: Namespace::new("gateway")?,
            server: Namespace::new("server")?,
        };
        for cpus in [&lab.placement.gateway, &lab.placement.endpoints] {
            let pinned = lab.gateway.program("true").cpus(cpus).check();
            pinned.map_err(|error| Error::Unavailable { why: format!("CPUs {cpus}: {error}") })?;
        }
        match lab.gateway_kind {
            Gateway::KernelBridge => {
                let bridge = ["link add br0 type bridge", "link set br0 up"];
                lab.gateway.ip(&bridge).map_err(Error::or_unavailable)?;
            }
            Gateway::KernelForwarding(tracking) => lab.forward(tracking)?,
            // As on a host that forwarded by itself before.
            Gateway::Stateway(StatewaySpec { routed: true, .. }) => {
                enable_forwarding(&lab.gateway)?;
            }
            Gateway::Stateway(_) => {}
        }
        lab.plug(Side::Client).map_err(Error::or_unavailable)?;
        lab.plug(Side::Server)?;
        lab.server.ip(&[&format!("route add blackhole {}", Self::SINK)])?;
        if let Gateway::Stateway(spec) = &lab.gateway_kind {
            lab.stateway = Some(Stateway::start(&lab.gateway, spec, &lab.placement)?);
        }
        Ok(lab)
    }

    /// The namespace of the client.
    #[must_use]
    pub fn client(&self) -> &Namespace {
        &self.client
    }

    /// The namespace of the gateway.
    #[must_use]
    pub fn gateway(&self) -> &Namespace {
        &self.gateway
    }

    /// The namespace of the server.
    #[must_use]
    pub fn server(&self) -> &Namespace {
        &self.server
    }

    /// The running Stateway, if it is the gateway and was not stopped.
    #[must_use]
    pub fn stateway(&self) -> Option<&Stateway> {
        self.stateway.as_ref()
    }

    /// Takes the running Stateway out, so that a test can stop it and check its end.
    pub fn take_stateway(&mut self) -> Option<Stateway> {
        self.stateway.take()
    }

    /// Puts a running Stateway in, which has taken the place of another one.
    pub fn put_stateway(&mut self, stateway: Stateway) {
        self.stateway = Some(stateway);
    }

    /// The client's address.
    #[must_use]
    pub fn client_address(&self, family: Family) -> IpAddr {
        of(CLIENT, family)
    }

    /// The server's address.
    #[must_use]
    pub fn server_address(&self, family: Family) -> IpAddr {
        of(if self.is_routed() { SERVER_ROUTED } else { SERVER_BRIDGED }, family)
    }

    /// The hardware address that the client sends to.
    #[must_use]
    pub fn next_hop_mac(&self) -> [u8; 6] {
        [0, 0, 0x5e, 0, 0x53, if self.is_routed() { 0x03 } else { 0x02 }]
    }

    /// A program of the client, on the end points' CPUs.
    pub fn on_client(&self, program: &str) -> Program {
        self.client.program(program).cpus(&self.placement.endpoints)
    }

    /// A program of the server, on the end points' CPUs.
    pub fn on_server(&self, program: &str) -> Program {
        self.server.program(program).cpus(&self.placement.endpoints)
    }

    /// Adds a host behind the server, and makes the server the router in between. The server's
    /// kernel answers when a hop limit runs out.
    ///
    /// # Errors
    /// [`Error::Failed`] if it was added before.
    pub fn add_far_host(&self) -> Result<FarHost> {
        let namespace = Namespace::new("far")?;
        self.server.join("far0", &namespace, "eth0")?;
        self.server.ip(&[
            "addr add 203.0.113.254/25 dev far0",
            "addr add 2001:db8:3::fe/64 dev far0 nodad",
        ])?;
        namespace.ip(&[
            "addr add 203.0.113.129/25 dev eth0",
            "addr add 2001:db8:3::2/64 dev eth0 nodad",
            "route add default via 203.0.113.254",
            "route add default via 2001:db8:3::fe",
        ])?;
        enable_forwarding(&self.server)?;
        Ok(FarHost { namespace })
    }

    /// Pulls the cable of one side, which deletes both interfaces.
    ///
    /// # Errors
    /// [`Error::Failed`] if it was pulled before.
    pub fn unplug(&self, side: Side) -> Result<()> {
        self.gateway.ip(&[&format!("link del {}", side.gateway_interface())])
    }

    /// Puts a new cable in: interfaces with the same names and addresses. Only in a bridge `lan0`
    /// and `wan0` get other hardware addresses. A kernel gateway is configured anew, and Stateway
    /// has to notice by itself.
    ///
    /// # Errors
    /// [`Error::Failed`] if the old one was not unplugged.
    pub fn plug(&self, side: Side) -> Result<()> {
        let end = match side {
            Side::Client => &self.client,
            Side::Server => &self.server,
        };
        let port = side.gateway_interface();
        self.gateway.join(port, end, "eth0")?;
        let (at_gateway, at_end): (&[&str], &[&str]) = match (side, self.is_routed()) {
            (Side::Client, false) => (&[], &BRIDGED_CLIENT),
            (Side::Server, false) => (&[], &BRIDGED_SERVER),
            (Side::Client, true) => (&ROUTED_LAN, &ROUTED_CLIENT),
            (Side::Server, true) => (&ROUTED_WAN, &ROUTED_SERVER),
        };
        self.gateway.ip(at_gateway)?;
        end.ip(at_end)?;
        if matches!(self.gateway_kind, Gateway::KernelBridge) {
            self.gateway.ip(&[&format!("link set {port} master br0")])?;
        }
        if self.placement.steer_softirq {
            steer_softirq(&self.gateway, port, &self.placement.gateway.mask())?;
            steer_softirq(end, "eth0", &self.placement.endpoints.mask())?;
        }
        Ok(())
    }

    fn is_routed(&self) -> bool {
        match &self.gateway_kind {
            Gateway::KernelBridge => false,
            Gateway::KernelForwarding(_) => true,
            Gateway::Stateway(spec) => spec.routed,
        }
    }

    fn forward(&self, tracking: Tracking) -> Result<()> {
        enable_forwarding(&self.gateway)?;
        let Some(rules) = tracking.rules() else { return Ok(()) };
        self.gateway.load_rules(&rules).map_err(Error::or_unavailable)
    }
}

impl Tracking {
    /// The ruleset in nft's syntax; `None` without tracking.
    pub(crate) fn rules(self) -> Option<String> {
        match self {
            Self::Off => None,
            Self::Conntrack => Some(CONNTRACK_RULES.to_owned()),
            Self::Masquerade => Some(format!("{CONNTRACK_RULES}{MASQUERADE_RULES}")),
            Self::MasqueradeTo { first, last } => {
                let one = "oifname wan0 masquerade";
                let range = format!("masquerade to :{first}-{last}");
                let all = ["tcp", "udp"].map(|it| format!("oifname wan0 ip protocol {it} {range}"));
                let rules = MASQUERADE_RULES.replace(one, &all.join("\n        "));
                Some(format!("{CONNTRACK_RULES}{rules}"))
            }
        }
    }
}

impl Side {
    /// The name of the gateway's interface on this side.
    #[must_use]
    pub fn gateway_interface(self) -> &'static str {
        match self {
            Self::Client => "lan0",
            Self::Server => "wan0",
        }
    }
}

impl FarHost {
    /// Its namespace.
    #[must_use]
    pub fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    /// Its address.
    #[must_use]
    pub fn address(&self, family: Family) -> IpAddr {
        of(FAR, family)
    }
}

/// An IPv4 address and 2001:db8:SUBNET::HOST.
const fn addresses([a, b, c, d]: [u8; 4], [subnet, host]: [u16; 2]) -> [IpAddr; 2] {
    [
        IpAddr::V4(Ipv4Addr::new(a, b, c, d)),
        IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, subnet, 0, 0, 0, 0, host)),
    ]
}

fn of(addresses: [IpAddr; 2], family: Family) -> IpAddr {
    match family {
        Family::V4 => addresses[0],
        Family::V6 => addresses[1],
    }
}

fn enable_forwarding(namespace: &Namespace) -> Result<()> {
    namespace.sysctl(["net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1"])
}

fn steer_softirq(namespace: &Namespace, interface: &str, mask: &str) -> Result<()> {
    if !namespace.is_real_root() {
        return Err(Error::Unavailable {
            why: "steering softirqs (rps_cpus) is for root only, not for a user namespace".into(),
        });
    }
    let file = format!("/sys/class/net/{interface}/queues/rx-0/rps_cpus");
    namespace.program("tee").args([file]).input(mask.to_owned()).check().map(drop)
}
