//! Dialogues: packets of one flow with pauses between them.

use std::net::IpAddr;

use flow::{FlowKey, Zone};
use lab::{Family, Random};
use wire::build::PacketBuilder;
use wire::{Network, dissect};

/// The side from which a packet comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    Client,
    Server,
}

pub use Side::{Client, Server};

impl Side {
    pub const BOTH: [Self; 2] = [Client, Server];

    pub fn other(self) -> Self {
        if self == Client { Server } else { Client }
    }

    pub fn name(self) -> &'static str {
        if self == Client { "client" } else { "server" }
    }
}

#[derive(Clone, Debug)]
pub enum Step {
    /// A frame from a side.
    Send(Side, Vec<u8>),
    /// Sets the remaining time of the entry in seconds.
    Age(u32),
    /// Pauses all dialogues together.
    Pause,
}

/// The addresses of a dialogue. Each dialogue of a batch has its own.
#[derive(Clone, Copy, Debug)]
pub struct Ends {
    pub family: Family,
    pub client: IpAddr,
    pub server: IpAddr,
}

impl Ends {
    /// The addresses of the dialogue with this number in its batch, which is below 62500.
    pub fn of(number: u64, family: Family) -> Self {
        let (host, net) = (1 + (number % 250) as u8, 1 + (number / 250) as u8);
        let [client, server] = match family {
            Family::V4 => [format!("192.0.2.{host}"), format!("198.51.100.{net}")],
            Family::V6 => [format!("2001:db8:1::{host:x}"), format!("2001:db8:2::{net:x}")],
        };
        Self { family, client: client.parse().unwrap(), server: server.parse().unwrap() }
    }

    pub fn address(&self, side: Side) -> IpAddr {
        if side == Client { self.client } else { self.server }
    }

    /// The IPv4 address of a side as a number.
    pub fn number(&self, side: Side) -> u64 {
        match self.address(side) {
            IpAddr::V4(address) => address.to_bits().into(),
            IpAddr::V6(address) => panic!("{address} is of IPv6"),
        }
    }

    /// A packet from a side to the other.
    pub fn from(&self, side: Side) -> PacketBuilder {
        packet(self.address(side), self.address(side.other()))
    }

    /// A router on the path of a side.
    pub fn router(&self, side: Side) -> IpAddr {
        let address = match (self.family, side) {
            (Family::V4, Client) => "192.0.2.254",
            (Family::V4, Server) => "198.51.100.254",
            (Family::V6, Client) => "2001:db8:1::ffff",
            (Family::V6, Server) => "2001:db8:2::ffff",
        };
        address.parse().unwrap()
    }
}

pub fn packet(source: IpAddr, destination: IpAddr) -> PacketBuilder {
    match (source, destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            PacketBuilder::v4(source.octets(), destination.octets())
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            PacketBuilder::v6(source.octets(), destination.octets())
        }
        _ => panic!("{source} and {destination} are of two families"),
    }
}

/// The packets of one flow.
#[derive(Clone, Debug)]
pub struct Dialogue {
    pub seed: u64,
    pub ends: Ends,
    /// A packet of the flow whose entry is read. The client sends it.
    pub flow: Vec<u8>,
    pub steps: Vec<Step>,
}

impl Dialogue {
    /// The key of the flow, and the dissected packet.
    pub fn key(&self) -> (FlowKey, Network) {
        let network = dissect(&self.flow).unwrap().network.unwrap();
        (FlowKey::of_packet(&network, Zone(0)).unwrap().key, network)
    }
}

/// Remaining times in seconds, one above and one below every timeout. They show whether a packet
/// set the timer, and whether it shortened it.
const AGES: [u32; 2] = [1_000_000, 80];

/// Reads timers between packets, and lets the entry time out at one place in some dialogues.
pub fn interrupt(random: &mut Random, packets: Vec<Step>) -> Vec<Step> {
    let end_at = if random.once_in(4) { random.between(1, packets.len()) } else { 0 };
    let mut steps = Vec::new();
    for (at, step) in packets.into_iter().enumerate() {
        if at > 0 && at == end_at {
            steps.extend([Step::Age(1), Step::Pause]);
        } else if at > 0 && random.once_in(4) {
            steps.push(Step::Age(random.one_of(&AGES)));
        }
        steps.push(step);
    }
    steps
}
