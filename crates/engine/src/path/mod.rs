//! The way of a packet through a worker: [`stages`] is the list.

pub mod alias_messages;
pub mod alias_table;
pub mod arrival;
pub mod bucket;
pub mod bucket_moves;
pub mod buckets;
pub mod disposal;
pub mod drop_cause;
pub mod events;
pub mod eviction;
pub mod fast_path;
pub mod host_flows;
pub mod inner_packets;
pub mod nat;
pub mod packet;
pub mod pass_list;
pub mod peers;
pub mod prefetch;
pub mod reassembly;
pub mod recent_drops;
pub mod refragment;
pub mod rules;
pub mod scratch;
pub mod settings;
pub mod stages;
pub mod steering;
pub mod step;
pub mod syn_proxy;
pub mod to_host;
pub mod tracking;
pub mod zone_config;
pub mod zone_rules;
pub mod zones;

use flow::{Counters, Timestamp};
use netio::{Frame, FramePool};
use steer::SteeringHasher;

use crate::egress::forwarder::Forwarder;
use crate::path::buckets::Buckets;
use crate::path::drop_cause::DropCause;
use crate::path::nat::translation::Translator;
use crate::path::packet::Packet;
use crate::path::pass_list::PassList;
use crate::path::reassembly::Reassembly;
use crate::path::recent_drops::RecentDrops;
use crate::path::rules::ruleset::WorkerRules;
use crate::path::syn_proxy::SynProxy;
use crate::path::tracking::Tracking;

/// The time at which a packet is processed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimeSource {
    /// The time of the turn.
    Turn,
    /// The capture time of the frame: replay.
    Frame,
}

/// The packet path of one worker: the stages and what they own.
pub struct PacketPath {
    pub(crate) hasher: SteeringHasher,
    pub(crate) pass: PassList,
    pub(crate) time: TimeSource,
    pub(crate) reassembly: Reassembly,
    pub(crate) tracking: Tracking,
    pub(crate) syn_proxy: SynProxy,
    pub(crate) translator: Translator,
    pub(crate) buckets: Buckets,
    pub(crate) forwarder: Forwarder,
    /// The rules that judge packets.
    pub(crate) rules: Option<Box<WorkerRules>>,
    pub(crate) pool: FramePool,
    pub(crate) counters: Counters,
    pub(crate) recent_drops: RecentDrops,
    /// When the turn began.
    pub(crate) now: Timestamp,
    pub(crate) batch: Vec<Packet>,
}

impl PacketPath {
    /// Drops what no output takes.
    #[inline]
    pub(crate) fn drop_refused(&mut self) {
        while let Some((frame, reason)) = self.forwarder.take_refused() {
            self.drop_frame(frame, reason.into());
        }
    }

    pub(crate) fn drop_frame(&mut self, frame: Frame, why: DropCause) {
        self.counters.drop_packet(why.reason());
        self.recent_drops.see(&frame, why, self.now, &self.tracking.zones);
        self.pool.give_back(frame);
    }
}
