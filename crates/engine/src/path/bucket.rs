//! A bucket: the unit in which flows move between workers.

use std::sync::Arc;

use conntrack::{Inside, Table};
use defrag::Parcel;
use flow::{Timestamp, Zone};

use crate::egress::router::NextStation;
use crate::egress::routing::Routing;
use crate::egress::unsent::Unsent;
use crate::path::alias_table::{Aliases, Openings};
use crate::path::host_flows::HostFlows;
use crate::path::reassembly::Fragment;

/// Everything that the flows of one bucket need. It moves between workers as a whole.
#[derive(Debug)]
pub struct Bucket {
    /// Connections.
    pub connections: Table,
    /// Connections inside tunnels. `None` if packets inside tunnels are not judged or there are no
    /// such connections.
    pub inside: Option<Box<Inside>>,
    /// Packets that were processed in this bucket since it was made. The balancer uses the
    /// differences.
    pub packets: u64,
    /// Incomplete datagrams, only while the bucket is on its way. A worker keeps those of all its
    /// buckets together.
    pub datagrams: Option<Parcel<Fragment>>,
    /// Frames that wait for the station of their next hop, only while the bucket is on its way. A
    /// worker keeps those of all its buckets together.
    pub unsent: Vec<(NextStation, Unsent)>,
    /// The routes of the worker that gave the bucket away, only while it is on its way. The next
    /// owner may know later ones.
    pub left_under: Option<Arc<Routing>>,
    /// The event clock of the worker that owned it last, see `crate::path::events`.
    pub event_clock: u64,
    /// The time when it was made, which is the start of the gateway.
    pub born: Timestamp,
    /// The last promises of the SYN proxy by zone, from the worker that owned the bucket last;
    /// only while it is on its way.
    pub promises: Vec<(Zone, Timestamp)>,
    /// The aliases of keys that are steered here and whose connections are in other buckets.
    pub aliases: Aliases,
    /// Packets that wait for the aliases of their connections.
    pub openings: Openings,
    /// Flows that rules have left to the host.
    pub host_flows: HostFlows,
    /// Its owner has sent packets or messages in its name, see `crate::path::alias_messages`.
    pub must_flush: bool,
}

impl Bucket {
    /// Creates an empty bucket.
    pub fn new(now: Timestamp) -> Self {
        Self {
            connections: Table::new(now),
            inside: None,
            packets: 0,
            datagrams: None,
            unsent: Vec::new(),
            left_under: None,
            event_clock: 0,
            born: now,
            promises: Vec::new(),
            aliases: Aliases::default(),
            openings: Openings::default(),
            host_flows: HostFlows::default(),
            must_flush: false,
        }
    }
}
