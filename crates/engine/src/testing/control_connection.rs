//! For tests: connections through a router that translates, on which programs announce others.

use std::net::IpAddr;
use std::sync::Arc;

use fib::{Action, Hops, LinkId, Neighbour, NextHop, Route, Rule, TableId};
use netlink::{Link, Picture};
use wire::TcpFlags;
use wire::build::{PacketBuilder, Tcp};

use crate::Config;
use crate::egress::routing::Routing;
use crate::testing::many_workers::TestGateway;
use crate::testing::router::seen;
use crate::testing::router::{
    INSIDE, OUTSIDE, OWN, RULES, SERVER, STATIONS, ends, gateway_of, ip, routing,
};
use conntrack::helper::Kind;
use flow::HashKey;
use wire::Transport;

/// Flags of segments.
pub const PSH_ACK: u8 = 0x18;
pub const SYN: u8 = 2;
pub const SYN_ACK: u8 = 0x12;

/// An address and a port.
pub type Host = (IpAddr, u16);

/// A router, with a host on each side and its address outside.
pub struct Net {
    pub gateway: TestGateway,
    pub inside: IpAddr,
    pub outside: IpAddr,
    pub own: IpAddr,
}

impl Net {
    /// A router with a helper for the FTP connections to this port.
    pub fn v4(workers: u16, control: u16) -> Self {
        Self::helped_by(Kind::Ftp, control, workers, RULES)
    }

    /// The same with these rules, and another helper for the connections to this port.
    pub fn helped_by(kind: Kind, control: u16, workers: u16, rules: &str) -> Self {
        let gateway =
            gateway_of(workers, rules, routing(), OWN.into(), Self::config(kind, control));
        Self { gateway, inside: ip("192.0.2.10"), outside: SERVER.into(), own: OWN.into() }
    }

    fn config(kind: Kind, control: u16) -> Config {
        let mut config = Config::new(HashKey(3, 4));
        config.settings.conntrack.helpers.attach(kind, control).unwrap();
        config
    }

    /// The same for IPv6.
    pub fn v6(workers: u16, control: u16) -> Self {
        let rules = RULES.replace(r#""ip""#, r#""ip6""#).replace("192.0.2.10", "2001:db8:1::10");
        let own = ip("2001:db8:2::fe");
        let gateway =
            gateway_of(workers, &rules, routing_v6(), own, Self::config(Kind::Ftp, control));
        Self { gateway, inside: ip("2001:db8:1::10"), outside: ip("2001:db8:2::7"), own }
    }

    /// A segment on its way out of `port`.
    pub fn segment(
        &self,
        port: usize,
        (from, to): (Host, Host),
        flags: u8,
        numbers: (u32, u32),
        text: &[u8],
    ) -> Vec<u8> {
        let station = [INSIDE, OUTSIDE][port];
        let mut bytes = Vec::new();
        let header = Tcp {
            source_port: from.1,
            destination_port: to.1,
            sequence: numbers.0,
            acknowledgment: numbers.1,
            flags: TcpFlags(flags),
            window: 5000,
            ..Tcp::default()
        };
        builder(from.0, to.0).macs(station, STATIONS[port]).tcp(&header, text, &mut bytes);
        bytes
    }

    /// Opens a connection from the side of `port`. Returns the ends to which its packets go and
    /// from which they seem to come.
    pub fn open(&mut self, port: usize, from: Host, to: Host) -> (Host, Host) {
        let syn = self.segment(port, (from, to), SYN, (100, 0), b"");
        let [seen, server] = ends(&self.gateway.pass(port, &syn));
        let answer = self.segment(1 - port, (server, seen), SYN_ACK, (500, 101), b"");
        assert_eq!(ends(&self.gateway.pass(1 - port, &answer)), [to, from]);
        (server, seen)
    }

    /// The number of expected connections.
    pub fn expected(&self) -> usize {
        self.gateway.workers[0].path.expected()
    }
}

/// A packet of the family of these addresses.
pub fn builder(from: IpAddr, to: IpAddr) -> PacketBuilder {
    match (from, to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => PacketBuilder::v4(from.octets(), to.octets()),
        (IpAddr::V6(from), IpAddr::V6(to)) => PacketBuilder::v6(from.octets(), to.octets()),
        _ => panic!("one family"),
    }
}

/// The routing of the router for IPv6.
fn routing_v6() -> Arc<Routing> {
    let mut picture = Picture::default();
    picture.fib.set_rules(true, vec![Rule::ask(1, TableId::LOCAL), Rule::ask(2, TableId::MAIN)]);
    let links = [("lan0", "2001:db8:1::", "10", INSIDE), ("wan0", "2001:db8:2::", "7", OUTSIDE)];
    for (number, (name, network, host, station)) in links.into_iter().enumerate() {
        let id = LinkId(10 + number as u32);
        let link = Link {
            name: name.to_owned(),
            station: Some(STATIONS[number]),
            mtu: 1500,
            is_up: true,
            addresses: vec![format!("{network}fe/64").parse().unwrap()],
        };
        picture.links.insert(id, link);
        let own = format!("{network}fe/128").parse().unwrap();
        picture.fib.insert(TableId::LOCAL, Route::new(own, Action::Local));
        let hops = Hops::one(NextHop::new(id, None));
        let network = Route::new(format!("{network}/64").parse().unwrap(), Action::Forward(hops));
        picture.fib.insert(TableId::MAIN, network);
        let known = Neighbour::Known { station, is_fresh: true };
        let host = format!("{}{host}", links[number].1);
        picture.neighbours.insert(id, ip(&host), known);
    }
    Arc::new(Routing::new(&picture, &["lan0", "wan0"].map(|name| picture.link_named(name))))
}

/// The address in the form of PORT and of the reply 227.
pub fn six((address, port): Host) -> String {
    let IpAddr::V4(address) = address else { panic!("IPv4") };
    let [high, low] = port.to_be_bytes();
    format!("{},{high},{low}", address.to_string().replace('.', ","))
}

/// The address that a text in this form names.
pub fn of_six(text: &str) -> Host {
    let is_part = |c: char| c.is_ascii_digit() || c == ',';
    let start = text.find(',').unwrap();
    let start = text[..start].rfind(|c| !is_part(c)).map_or(0, |at| at + 1);
    let end = text[start..].find(|c| !is_part(c)).map_or(text.len(), |at| start + at);
    let numbers: Vec<u8> = text[start..end].split(',').map(|it| it.parse().unwrap()).collect();
    let [a, b, c, d, high, low] = numbers[..] else { panic!("{text:?}") };
    ([a, b, c, d].into(), u16::from_be_bytes([high, low]))
}

/// Both ends of an FTP control connection, with counts of what they send and get.
pub struct Control {
    /// The port that the client is behind.
    pub port: usize,
    /// For client and server, the address that it sends to and the address that the other end
    /// sees.
    pub speaks: [(Host, Host); 2],
    pub said: [u32; 2],
    pub heard: [u32; 2],
}

impl Control {
    /// Opens a connection from the side of `port`, and greets.
    pub fn open(net: &mut Net, port: usize, client: Host, server: Host) -> Self {
        let (real, seen) = net.open(port, client, server);
        let speaks = [(client, server), (real, seen)];
        let mut control = Self { port, speaks, said: [101, 501], heard: [501, 101] };
        control.say(net, 1, "220 Welcome\r\n");
        control.say(net, 0, "USER anonymous\r\n");
        control
    }

    /// Sends a message of one end (0 the client, 1 the server). Returns the message that the other
    /// end gets.
    pub fn say(&mut self, net: &mut Net, who: usize, text: &str) -> String {
        let heard = self.repeat(net, who, text);
        self.said[who] += text.len() as u32;
        self.heard[1 - who] += heard.len() as u32;
        heard
    }

    /// Sends a message without counting it, so that it can be sent again.
    pub fn repeat(&self, net: &mut Net, who: usize, text: &str) -> String {
        let port = if who == 0 { self.port } else { 1 - self.port };
        let numbers = (self.said[who], self.heard[who]);
        let bytes = net.segment(port, self.speaks[who], PSH_ACK, numbers, text.as_bytes());
        self.check(net, who, port, &bytes)
    }

    /// Sends a segment, and checks it where it arrives. Returns its text.
    pub fn check(&self, net: &mut Net, who: usize, port: usize, bytes: &[u8]) -> String {
        net.gateway.arrive(port, bytes);
        net.gateway.run_until_idle();
        let sent = net.gateway.sent(1 - port);
        assert_eq!(sent.len(), 1, "dropped: {:?}", net.gateway.reasons());
        let network = seen(&sent[0]);
        let (from, to) = self.speaks[1 - who];
        assert_eq!(ends(&network), [to, from]);
        let Transport::Tcp(tcp) = network.transport else { panic!("TCP") };
        assert_eq!(tcp.sequence, self.heard[1 - who], "what the other end waits for");
        assert_eq!(tcp.acknowledgment, self.said[1 - who], "what the other end has said");
        let text = usize::from(network.transport_offset) + usize::from(tcp.header_len);
        assert_eq!(sent[0].len(), network.end as usize);
        String::from_utf8(sent[0].bytes()[text..].to_vec()).unwrap()
    }
}
