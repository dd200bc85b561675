//! The way of a packet through a worker: [`stages`] is the list.

pub mod alias_messages;
pub mod alias_table;
pub mod announcement_copies;
pub mod answers;
pub mod arrival;
pub mod bucket;
pub mod bucket_moves;
pub mod buckets;
pub mod calls;
pub mod change_ring;
pub mod changes;
pub mod deferred;
pub mod disposal;
pub mod drop_cause;
pub mod equipment;
pub mod events;
pub mod eviction;
pub mod fast_path;
pub mod fit;
pub mod host_flows;
pub mod host_questions;
pub mod inner_packets;
pub mod nat;
pub mod packet;
pub mod pass_list;
pub mod peers;
pub mod prefetch;
mod proxied;
pub mod reassembly;
pub mod recent_drops;
pub mod records;
pub mod refragment;
pub mod replication;
mod resteering;
pub mod rules;
pub mod scratch;
mod segments;
pub mod selection;
pub mod settings;
pub mod stages;
pub mod steering;
pub mod step;
pub mod syn_proxy;
pub mod to_host;
pub mod tracking;
pub mod turn;
pub mod upkeep;
pub mod zone_config;
pub mod zone_rules;
pub mod zones;

use flow::Counters;
use netio::{Frame, FramePool};
use steer::SteeringHasher;

use crate::egress::forwarder::Forwarder;
use crate::path::buckets::Buckets;
use crate::path::change_ring::ChangeSender;
use crate::path::deferred::Deferrals;
use crate::path::drop_cause::DropCause;
use crate::path::host_questions::HostQuestions;
use crate::path::nat::translation::Translator;
use crate::path::packet::Packet;
use crate::path::pass_list::PassList;
use crate::path::reassembly::{Discarded, Reassembly};
use crate::path::recent_drops::RecentDrops;
use crate::path::records::LateImports;
use crate::path::rules::worker_rules::WorkerRules;
use crate::path::syn_proxy::SynProxy;
use crate::path::tracking::Tracking;
use crate::path::upkeep::Upkeep;

/// The time at which a packet is processed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimeSource {
    /// The time of the turn.
    Turn,
    /// The capture time of the frame: replay.
    Frame,
}

/// The packet path of one worker: the stages and what they own.
///
/// Its fields are for the files of this room. Others call its methods: [`turn`], [`peers`] and
/// [`upkeep`] have those for the steps of a turn, [`changes`] those for commands, and [`answers`]
/// those for questions.
pub struct PacketPath {
    /// How packets find their flow and bucket.
    hasher: SteeringHasher,
    /// How they will find it soon, see [`resteering`].
    hasher_to_come: Option<Box<SteeringHasher>>,
    /// The protocols other than IP that pass.
    pass: PassList,
    /// The clock that counts.
    time: TimeSource,
    /// Steered packets that are not processed yet.
    batch: Vec<Packet>,
    buckets: Buckets,
    reassembly: Reassembly,
    /// The frames of a datagram that is sent or dropped as the fragments it came in; empty between
    /// packets, and kept for its memory.
    apart: Vec<Frame>,
    /// The fragments that reassembly has given up, until the driver drops them; empty between
    /// packets, and kept for its memory.
    discarded: Vec<Discarded>,
    tracking: Tracking,
    syn_proxy: SynProxy,
    /// The rules that judge packets.
    rules: Option<Box<WorkerRules>>,
    /// The CPU on which it runs, which rules may ask for; `None` where it has no thread of its own.
    cpu: Option<u32>,
    translator: Translator,
    forwarder: Forwarder,
    /// Packets that the host may refuse; `None` where nobody can be asked.
    host_questions: Option<Box<HostQuestions>>,
    /// Free buffers.
    pool: FramePool,
    counters: Counters,
    recent_drops: RecentDrops,
    upkeep: Upkeep,
    late_imports: LateImports,
    /// Where changes of connections go that a peer has to hear of; `None` if nobody wants them.
    change_sender: Option<Box<ChangeSender>>,
    /// Packets that wait until the peer has their connections; `None` unless the operator wants that.
    deferrals: Option<Box<Deferrals>>,
}

impl PacketPath {
    /// Drops what no output takes.
    #[inline]
    fn drop_refused(&mut self) {
        while let Some((frame, reason)) = self.forwarder.take_refused() {
            self.drop_frame(frame, reason.into());
        }
    }

    fn drop_frame(&mut self, frame: Frame, why: DropCause) {
        self.counters.drop_packet(why.reason());
        self.recent_drops.see(&frame, why, self.tracking.zones());
        self.pool.give_back(frame);
    }
}
