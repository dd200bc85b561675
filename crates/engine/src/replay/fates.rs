//! What became of each packet of a replay: its class, its connection, its direction.

use std::fmt;

use conntrack::{Connection, Direction, TupleTransport};
use flow::{Counters, FlowKey, Timestamp};
use netio::PortId;
use wire::{Transport, vlan_of};

use crate::replay::lockstep::Lockstep;

/// The number of packets of each class.
pub type Classes = [u64; Counters::CLASS_NAMES.len()];

/// How tracking saw a packet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fate {
    /// Its class, by the name of its counter; `None` if tracking has not judged it.
    pub class: Option<&'static str>,
    /// Its connection, or for an ICMP error that of the packet that it quotes, by the name that
    /// its first packet gave it; `None` without one.
    pub connection: Option<String>,
    /// Its direction in that connection.
    pub direction: Option<Direction>,
}

impl fmt::Display for Fate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.class.unwrap_or("not tracked"))?;
        match (&self.connection, self.direction) {
            (Some(connection), Some(direction)) => {
                write!(f, ", {direction} direction of {connection}")
            }
            _ => Ok(()),
        }
    }
}

impl Lockstep {
    /// The packets of each class so far.
    pub(super) fn classes(&self) -> Classes {
        let mut sum = Classes::default();
        for worker in &self.workers {
            for (sum, packets) in sum.iter_mut().zip(worker.path.counters().classes) {
                *sum += packets;
            }
        }
        sum
    }

    /// The fate of packets, the first bytes of each with its port. They passed or were dropped when
    /// one packet was played; `before` were the classes then, `None` if these say nothing of them.
    ///
    /// Only one packet is played at a time, and the fragments of a datagram pass together. So they
    /// have one class, and one connection, which the fragment with the ports names.
    pub(super) fn fate<'a>(
        &self,
        before: Option<Classes>,
        packets: impl IntoIterator<Item = (PortId, &'a [u8])>,
    ) -> Fate {
        let counted = self.classes();
        let is_more = |class: &usize| before.is_some_and(|before| counted[*class] > before[*class]);
        let class = (0..counted.len()).find(is_more).map(|class| Counters::CLASS_NAMES[class]);
        let mut packets = packets.into_iter();
        let known = packets.find_map(|(port, bytes)| self.connection_of(port, bytes));
        let (connection, direction) = known.unzip();
        Fate { class, connection: connection.map(|it| name(&it)), direction }
    }

    fn connection_of(&self, port: PortId, frame: &[u8]) -> Option<(Connection, Direction)> {
        let path = &self.workers.first()?.path;
        let zone = path.link_zone(port, vlan_of(frame));
        let network = wire::dissect(frame).ok()?.network?;
        let (keyed, is_error) = match &network.transport {
            Transport::IcmpError(error) => {
                (FlowKey::of_quoted(error.quoted.as_ref()?, network.family, zone), true)
            }
            _ => (FlowKey::of_packet(&network, zone)?, false),
        };
        let now = Timestamp::from_nanos(self.clock.now());
        let mut workers = self.workers.iter();
        let connection = workers.find_map(|worker| worker.path.connection(&keyed.key, now))?;
        let direction = connection.direction_of(&keyed);
        // An error goes back to where the quoted packet came from.
        Some((connection, if is_error { direction.reversed() } else { direction }))
    }
}

fn name(connection: &Connection) -> String {
    let tuple = &connection.original;
    let protocol = match conntrack::format::protocol_name(connection.protocol) {
        "unknown" => format!("protocol {}", connection.protocol),
        name => name.to_owned(),
    };
    let (from, to) = (tuple.source, tuple.destination);
    match tuple.transport {
        TupleTransport::Ports { source, destination } => {
            let from = std::net::SocketAddr::new(from, source);
            let to = std::net::SocketAddr::new(to, destination);
            format!("{protocol} {from} > {to}")
        }
        TupleTransport::Icmp { id, .. } => format!("{protocol} {from} > {to} id {id}"),
        TupleTransport::Gre { key } => format!("{protocol} {from} > {to} key {key:#x}"),
        TupleTransport::Call { .. } | TupleTransport::None => format!("{protocol} {from} > {to}"),
    }
}
