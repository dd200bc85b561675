//! The commands and questions of the coordinator, and the answers and notices of workers.

use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::time::Duration;

use conntrack::{
    AnnouncementCursor, AnnouncementRecord, ConnectionRecord, Event, ExpectationEvent, LimitPools,
};
use defrag::QueueView;
use flow::{KeyedPacket, PortPart};
use netio::{PortId, TxQueue};
use netpolicy::Policy;
use ruleset::{CounterMoves, Interface, LogId};
use steer::{AddressSet, BucketId, WorkerId};

use crate::egress::routing::Routing;
use crate::egress::stations::StationUpdate;
use crate::path::announcement_copies::{
    AnnouncementChange, AppliedAnnouncements, TakenAnnouncements, ToldAnnouncements,
};
use crate::path::change_ring::ChangeSender;
use crate::path::events::EventSender;
use crate::path::host_flows::Sign;
use crate::path::packet::Link;
use crate::path::recent_drops::RecentDrop;
use crate::path::records::{Exported, ExportedAnnouncements, Filed, ImportedLot, SettledImports};
use crate::path::replication::{AppliedLot, CopyChange, Passed, ReplicationPiece};
use crate::path::rules::ruleset::Rules;
use crate::path::rules::worker_rules::{RuleCounts, WorkerRules};
use crate::path::selection::{Selected, Selection};
use crate::path::settings::Settings;
use crate::path::zones::Zones;
use crate::rings::ownership::Move;
use crate::worker::queue::Queue;
use crate::worker::report::WorkerReport;

/// An order to a worker, taken between two batches.
pub enum Command {
    /// Move buckets to other owners.
    Switch(Vec<Move>),
    /// Use these rings to a new worker.
    Connect(WorkerId, Box<Link>),
    /// Give up the rings to a worker that has left. They are empty.
    Disconnect(WorkerId),
    /// Poll this queue from now on.
    AddQueue(Queue),
    /// Stop polling a queue, report it with [`Notice::Released`], and send a marker to every peer.
    ReleaseQueue {
        /// Number of the queue.
        id: usize,
        /// Number of the marker.
        marker: u64,
    },
    /// Send through this queue from now on; `None` closes the port.
    SetOutput(PortId, Option<Box<dyn TxQueue>>),
    /// Use these MTUs: the longest packet that each port takes behind the link header, bytes;
    /// `None`: no known limit.
    SetMtus(Vec<Option<u32>>),
    /// Use these names and groups of the ports, in the form in which rules compare them.
    SetInterfaces(Arc<[Interface]>),
    /// Use these routes, neighbours and links.
    Routing(Arc<Routing>),
    /// Steer packets by these inside addresses.
    Inside(AddressSet),
    /// File the aliases that connections which open will need when packets are steered by these
    /// inside addresses; `None`: no longer.
    PrepareInside(Option<AddressSet>),
    /// Use these tunables.
    Settings(Box<Settings>),
    /// Wait for packets by these policies, one for each port.
    Policies(Arc<[Policy]>),
    /// Count the connections of these zones, before any packet of them comes.
    LearnZones(Box<LimitPools>),
    /// Use these zones and their settings.
    Zones(Box<Zones>),
    /// Judge packets by these rules, or by none. The worker sends its rules before back with
    /// [`Notice::Rules`].
    Rules(Option<Box<WorkerRules>>),
    /// Judge by these rules, which differ only in elements of sets, and keep the counts.
    RuleElements(Arc<Rules>, Arc<CounterMoves>),
    /// Take over what the other workers know of the stations of a bridge.
    Stations(Vec<StationUpdate>),
    /// Take the share of one of this many workers of everything that is divided, such as the
    /// memory for fragments, the limits on connections, and the threshold of the SYN proxy.
    ShareLimits(u32),
    /// Send a marker to every peer.
    Mark(u64),
    /// Run on this CPU.
    Pin(usize),
    /// Send events of connections to one more subscriber.
    Subscribe(EventSender<Event>),
    /// Send events of expectations to one more subscriber.
    SubscribeExpectations(EventSender<ExpectationEvent>),
    /// Send changes of connections to this reader, or to none.
    SendChanges(Option<Box<ChangeSender>>),
    /// A bridge forwards nothing, or forwards again.
    StandBy(bool),
    /// Give this part of all ports and identifications away.
    DividePorts(PortPart),
    /// Answer a question.
    Ask(Question),
    /// End. All rings are empty.
    Stop,
}

impl Command {
    /// True if this may change how packets of established flows are forwarded. Decisions that were
    /// recorded for them no longer hold then.
    pub const fn changes_decisions(&self) -> bool {
        match self {
            Self::SetOutput(..)
            | Self::SetMtus(_)
            | Self::SetInterfaces(_)
            | Self::Routing(_)
            | Self::Inside(_)
            | Self::Settings(_)
            | Self::LearnZones(_)
            | Self::Zones(_)
            | Self::Rules(_)
            | Self::RuleElements(..) => true,
            Self::Switch(_)
            | Self::Connect(..)
            | Self::Disconnect(_)
            | Self::Stations(_)
            | Self::AddQueue(_)
            | Self::ReleaseQueue { .. }
            | Self::ShareLimits(_)
            | Self::Mark(_)
            | Self::PrepareInside(_)
            | Self::Pin(_)
            | Self::Policies(_)
            | Self::Subscribe(_)
            | Self::SubscribeExpectations(_)
            | Self::SendChanges(_)
            | Self::StandBy(_)
            | Self::DividePorts(_)
            | Self::Ask(_)
            | Self::Stop => false,
        }
    }
}

/// A question and the channel for the answer. A question covers at most a piece of one bucket, so
/// packets wait for an answer no longer than for a batch.
pub enum Question {
    /// The worker's report.
    Report(SyncSender<WorkerReport>),
    /// Show, change or delete the matching connections in a piece of a bucket.
    Select(BucketId, Selection, SyncSender<Selected>),
    /// File the aliases that the connections in a piece of a bucket will need when the prepared
    /// inside addresses hold, and the start of the next piece.
    Resteer(BucketId, conntrack::Cursor, SyncSender<Option<conntrack::Cursor>>),
    /// The records of the connections in a piece of a bucket, and the start of the next piece.
    Export(BucketId, conntrack::Cursor, SyncSender<Option<Exported>>),
    /// Make connections of these records, each in its bucket. Masqueraded ones need their address
    /// if it is true.
    Import(Filed<ConnectionRecord>, bool, SyncSender<ImportedLot<ConnectionRecord>>),
    /// The imported connections that have found out since the last question whether their
    /// replies find them.
    SettledImports(SyncSender<SettledImports>),
    /// A piece of what connections of the gateway have announced, and the start of the next piece.
    ExportAnnouncements(AnnouncementCursor, SyncSender<ExportedAnnouncements>),
    /// File these announcements, each for a connection of its bucket.
    ImportAnnouncements(Filed<AnnouncementRecord>, SyncSender<ImportedLot<AnnouncementRecord>>),
    /// The connections of this node in a piece of a bucket, for a peer, and the start of the next
    /// piece.
    TellAll(BucketId, conntrack::Cursor, SyncSender<Option<ReplicationPiece>>),
    /// Send changes that the reader has to hear of. The answer is true if none is left.
    TellRest(SyncSender<bool>),
    /// Own the connections of the peer in a piece of a bucket from now on.
    Adopt(BucketId, conntrack::Cursor, SyncSender<Option<Passed>>),
    /// Let the peer own the connections of this node in a piece of a bucket from now on.
    GiveAway(BucketId, conntrack::Cursor, SyncSender<Option<Passed>>),
    /// Make these changes of copies of a peer's connections, each in its bucket.
    Apply(Vec<(BucketId, CopyChange)>, SyncSender<AppliedLot>),
    /// Some changes of announcements, for a peer.
    TakeAnnouncements(SyncSender<TakenAnnouncements>),
    /// A piece of the announcements of this node, for a peer, and the start of the next piece.
    TellAnnouncements(AnnouncementCursor, SyncSender<ToldAnnouncements>),
    /// Let the peer own a piece of the announcements of this node from now on.
    GiveAnnouncementsAway(AnnouncementCursor, SyncSender<ExportedAnnouncements>),
    /// Make these changes of copies of a peer's announcements, each for a connection of its bucket.
    ApplyAnnouncements(Vec<(BucketId, AnnouncementChange)>, SyncSender<AppliedAnnouncements>),
    /// Forget at most this many expectations of the gateway, and tell the subscribers of this
    /// worker. The answer: how many of them were listed, and whether there may be more.
    ForgetExpectations(usize, SyncSender<(usize, bool)>),
    /// The incomplete datagrams in a piece of the worker's table, and the start of the next piece.
    Datagrams(defrag::Cursor, SyncSender<(Vec<QueueView>, Option<defrag::Cursor>)>),
    /// A piece of the counts of rules, from this counter on.
    Rules(usize, SyncSender<Option<RuleCounts>>),
    /// A piece of the stations that the bridge of the worker knows, and the start of the next piece.
    Stations(usize, SyncSender<(Vec<StationUpdate>, Option<usize>)>),
    /// True if a packet like this one would belong to a flow of this bucket that was left to the
    /// host.
    IsLeftToHost(BucketId, KeyedPacket, Sign, SyncSender<bool>),
    /// The packets that it dropped last, each with the time since the drop.
    RecentDrops(SyncSender<Vec<(Duration, RecentDrop)>>),
}

/// A message that a worker sends on its own account.
#[derive(Debug)]
pub enum Notice {
    /// A bucket has arrived.
    Arrived(BucketId),
    /// A marker has arrived.
    Marker(u64),
    /// A queue was released and is no longer polled.
    Released(Queue),
    /// A lot of memory was freed since the last time.
    Freed,
    /// This worker judges by the rules that it was sent. Its rules before come back.
    Rules(WorkerId, Option<Box<WorkerRules>>),
    /// A log statement asks for a line about this packet.
    Logged(LogId, Box<RecentDrop>),
    /// A queue has failed and is no longer polled.
    Failed(Queue, netio::PortError),
}
