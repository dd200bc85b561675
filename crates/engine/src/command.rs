//! What the coordinator tells workers and what they answer.

use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::time::Duration;

use conntrack::{Event, ExpectationEvent, LimitPools};
use defrag::QueueView;
use flow::{Counters, DropReason, KeyedPacket, Zone};
use netio::{PortId, RxQueue, TxQueue};
use ruleset::{ElementUpdate, LogId};
use steer::{BucketId, Translated, WorkerId};

use crate::events::EventSender;
use crate::host_flows::Sign;
use crate::output::Sent;
use crate::ownership::Move;
use crate::peers::Link;
use crate::recent_drops::RecentDrop;
use crate::routing::Routing;
use crate::rules::{RuleCounts, WorkerRules};
use crate::selection::{Selected, Selection};
use crate::settings::Settings;
use crate::views::{BucketStatus, DatagramStatus, Received};
use crate::zones::Zones;

/// A receive queue with its name.
pub struct Queue {
    /// Number of the queue, unique in the gateway.
    pub id: usize,
    /// The port that it belongs to.
    pub port: PortId,
    /// The interface supplies the symmetric Toeplitz hash, and it may be used.
    pub supplies_hash: bool,
    /// What came through it.
    pub received: Received,
    /// The queue itself.
    pub source: Box<dyn RxQueue>,
}

impl Queue {
    /// Counts what has not become a frame since it was asked last.
    pub fn count_missing(&mut self, counters: &mut Counters) {
        self.received.lost += self.source.take_lost();
        let too_long = self.source.take_too_long();
        self.received.frames += too_long;
        counters.drop_packets(DropReason::FrameTooLong, too_long);
    }
}

impl std::fmt::Debug for Queue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Queue({} of port {})", self.id, self.port.0)
    }
}

/// An order to a worker, taken between two batches.
pub enum Command {
    /// Buckets change their owners.
    Switch(Vec<Move>),
    /// A new worker: its rings.
    Connect(WorkerId, Box<Link>),
    /// A worker is gone; nothing is in its rings any more.
    Disconnect(WorkerId),
    /// Poll this queue from now on.
    AddQueue(Queue),
    /// Stop polling a queue, report it with [`Notice::Released`], and send a
    /// marker to every peer.
    ReleaseQueue {
        /// Number of the queue.
        id: usize,
        /// Number of the marker.
        marker: u64,
    },
    /// Send through this queue from now on; `None` closes the port.
    SetOutput(PortId, Option<Box<dyn TxQueue>>),
    /// The longest packet that each port takes behind the link header, bytes, where
    /// that is known.
    SetMtus(Vec<Option<u32>>),
    /// What the ports are called, as rules compare names.
    SetNames(Arc<[u128]>),
    /// What the kernel's routes, neighbours and links are now.
    Routing(Arc<Routing>),
    /// Which addresses connections are translated to.
    Translated(Translated),
    /// Changed tunables.
    Settings(Box<Settings>),
    /// Zones that have become known, before any packet of them comes.
    LearnZones(Box<LimitPools>),
    /// Which packets belong to which zone, and what is different there.
    Zones(Box<Zones>),
    /// Judge packets by these rules from now on, or by none; the worker sends those before
    /// back with [`Notice::Rules`].
    Rules(Option<Box<WorkerRules>>),
    /// Quotas of the rules have begun anew.
    ResetQuotas,
    /// What rules of this revision have put into sets.
    Elements(u32, Vec<ElementUpdate>),
    /// How many workers share the limits that are divided: memory of fragments, half-open
    /// connections of a source.
    ShareLimits(u32),
    /// Send a marker to every peer.
    Mark(u64),
    /// Run on this CPU.
    Pin(usize),
    /// Send events to a subscriber too.
    Subscribe(EventSender<Event>),
    /// The same for what is expected.
    SubscribeExpectations(EventSender<ExpectationEvent>),
    /// A question.
    Ask(Question),
    /// End; nothing is in any ring.
    Stop,
}

impl Command {
    /// True if packets of established flows may be forwarded another way behind it: what was
    /// recorded of them before holds no longer.
    pub const fn changes_decisions(&self) -> bool {
        match self {
            Self::SetOutput(..)
            | Self::SetMtus(_)
            | Self::SetNames(_)
            | Self::Routing(_)
            | Self::Translated(_)
            | Self::Settings(_)
            | Self::LearnZones(_)
            | Self::Zones(_)
            | Self::Rules(_) => true,
            // Rules that ask for sets which change, or for quotas, see every packet.
            Self::Elements(..) | Self::ResetQuotas => false,
            Self::Switch(_)
            | Self::Connect(..)
            | Self::Disconnect(_)
            | Self::AddQueue(_)
            | Self::ReleaseQueue { .. }
            | Self::ShareLimits(_)
            | Self::Mark(_)
            | Self::Pin(_)
            | Self::Subscribe(_)
            | Self::SubscribeExpectations(_)
            | Self::Ask(_)
            | Self::Stop => false,
        }
    }
}

/// A question and where to send the answer. A question covers a piece of one
/// bucket at most, so that packets wait for an answer no longer than for a batch.
pub enum Question {
    /// The worker's own state.
    Report(SyncSender<WorkerReport>),
    /// Do something to the connections of a bucket that match, in a piece of it.
    Select(BucketId, Selection, SyncSender<Selected>),
    /// Forget so many expectations of the gateway, and tell those who listen to this worker. The
    /// answer: how many were listed, and whether there may be more.
    ForgetExpectations(usize, SyncSender<(usize, bool)>),
    /// Incomplete datagrams in a piece of the worker's table, and where the next
    /// piece begins.
    Datagrams(defrag::Cursor, SyncSender<(Vec<QueueView>, Option<defrag::Cursor>)>),
    /// A piece of what rules have counted, from this counter on.
    Rules(usize, SyncSender<Option<RuleCounts>>),
    /// A piece of the elements that rules have put into sets, and where the next begins.
    RuleElements(usize, SyncSender<(Vec<ElementUpdate>, Option<usize>)>),
    /// Whether a packet, which has not come, belongs to a flow of this bucket that was left to the
    /// host.
    IsLeftToHost(BucketId, KeyedPacket, Sign, SyncSender<bool>),
    /// The last packets that it dropped, each with the time since then.
    RecentDrops(SyncSender<Vec<(Duration, RecentDrop)>>),
}

/// What a worker says of itself.
#[derive(Debug, Default)]
pub struct WorkerReport {
    /// Counters.
    pub counters: Counters,
    /// Owned buckets.
    pub buckets: Vec<BucketStatus>,
    /// Queues.
    pub queues: Vec<(PortId, Received)>,
    /// What was sent, by port.
    pub sent: Vec<Sent>,
    /// Items that wait in its rings.
    pub backlog: u64,
    /// Nanoseconds spent with packets in hand.
    pub busy_ns: u64,
    /// What is held of incomplete datagrams.
    pub datagrams: DatagramStatus,
    /// Connections of each zone but 0.
    pub zones: Vec<(Zone, u64)>,
}

/// What a worker reports on its own account.
#[derive(Debug)]
pub enum Notice {
    /// A bucket that was on its way has been installed.
    Arrived(BucketId),
    /// A marker was reached.
    Marker(u64),
    /// A queue that is no longer polled.
    Released(Queue),
    /// A lot of memory was freed since the last time.
    Freed,
    /// This worker judges by the rules that it was sent; these were the ones before.
    Rules(WorkerId, Option<Box<WorkerRules>>),
    /// A packet that is to be logged, because of this log statement.
    Logged(LogId, Box<RecentDrop>),
    /// A queue that failed and is no longer polled.
    Failed(Queue, netio::PortError),
}
