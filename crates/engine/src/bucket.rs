//! What a bucket owns.

use conntrack::{Inside, Table};
use defrag::Parcel;
use flow::{Timestamp, Zone};

use crate::aliases::{Aliases, Openings};
use crate::host_flows::HostFlows;
use crate::reassembly::Fragment;
use crate::router::{NextStation, Unsent};

/// Everything that the flows of one bucket need. It moves between workers whole.
#[derive(Debug)]
pub struct Bucket {
    /// Connections.
    pub connections: Table,
    /// Connections inside tunnels, where those are judged and some are there.
    pub inside: Option<Box<Inside>>,
    /// Packets processed in this bucket since it was made; the balancer works on
    /// differences.
    pub packets: u64,
    /// Incomplete datagrams, while the bucket is on its way; a worker keeps those of
    /// all its buckets together.
    pub datagrams: Option<Parcel<Fragment>>,
    /// Frames that wait for the station of their next hop, while the bucket is on its way; a
    /// worker keeps those of all its buckets together.
    pub unsent: Vec<(NextStation, Unsent)>,
    /// Event clock of the worker that owned it last, see `crate::events`.
    pub event_clock: u64,
    /// When it was made: when the gateway has started.
    pub born: Timestamp,
    /// What the SYN proxy of the worker that owned it last has promised, while it is on its
    /// way.
    pub promises: Vec<(Zone, Timestamp)>,
    /// Keys that are steered here, of connections in other buckets.
    pub aliases: Aliases,
    /// Packets that wait for the aliases of their connections.
    pub openings: Openings,
    /// Flows that rules have left to the host.
    pub host_flows: HostFlows,
    /// Its owner has sent packets or messages in its name, see `crate::aliasing`.
    pub has_spoken: bool,
}

impl Bucket {
    /// An empty bucket.
    pub fn new(now: Timestamp) -> Self {
        Self {
            connections: Table::new(now),
            inside: None,
            packets: 0,
            datagrams: None,
            unsent: Vec::new(),
            event_clock: 0,
            born: now,
            promises: Vec::new(),
            aliases: Aliases::default(),
            openings: Openings::default(),
            host_flows: HostFlows::default(),
            has_spoken: false,
        }
    }
}
