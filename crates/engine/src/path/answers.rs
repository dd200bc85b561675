//! Answers to questions about a worker. Each covers at most a piece of one table, so packets wait no
//! longer than for a batch.

use std::time::Duration;

use conntrack::Connection;
use defrag::QueueView;
use flow::{Counters, DropReason, FlowKey, KeyedPacket, Timestamp, Zone};
use netio::PortId;
use steer::{BucketId, WorkerId};
use wire::Network;

use crate::egress::outputs::Sent;
use crate::egress::stations::StationUpdate;
use crate::path::PacketPath;
use crate::path::bucket::Bucket;
use crate::path::host_flows::Sign;
use crate::path::reassembly::DatagramStatus;
use crate::path::recent_drops::RecentDrop;
use crate::path::rules::worker_rules::RuleCounts;

/// Places of the table of incomplete datagrams, or of that of stations, that one question covers.
/// They take about as long as a batch of packets.
const PIECE: u32 = 1024;

impl PacketPath {
    /// The number of the worker.
    pub(crate) fn worker(&self) -> WorkerId {
        self.buckets.worker()
    }

    /// The counters.
    pub(crate) fn counters(&self) -> &Counters {
        &self.counters
    }

    /// The buckets that are here.
    pub(crate) fn owned(&self) -> impl Iterator<Item = (BucketId, &Bucket)> {
        self.buckets.owned()
    }

    /// True if the bucket of such packets in zone 0 is here.
    pub(crate) fn owns(&self, network: &Network) -> bool {
        let steered = self.hasher.steer(network, Zone::default(), None);
        self.buckets.get(steered.bucket()).is_some()
    }

    /// The connections that the worker tracks, without those inside tunnels.
    pub(crate) fn connections(&self) -> usize {
        self.buckets.owned().map(|(_, bucket)| bucket.connections.len()).sum()
    }

    /// Connections of each known zone except 0.
    pub(crate) fn zones(&self) -> impl Iterator<Item = (Zone, u64)> {
        self.tracking.limits().zones()
    }

    /// The frames that were sent by each port.
    pub(crate) fn sent(&self) -> Vec<Sent> {
        self.forwarder.outputs().sent()
    }

    /// The router, for its tests.
    #[cfg(test)]
    pub(crate) fn router(&self) -> Option<&crate::egress::router::Router> {
        self.forwarder.router()
    }

    /// The number of expected connections of the gateway, for tests.
    #[cfg(test)]
    pub(crate) fn expected(&self) -> usize {
        self.tracking.expectations().len()
    }

    /// Items of other workers that wait.
    pub(crate) fn backlog(&self) -> u64 {
        self.buckets.backlog()
    }

    /// The incomplete datagrams, summed up.
    pub(crate) fn datagrams(&self) -> DatagramStatus {
        self.reassembly.status()
    }

    /// A piece of the incomplete datagrams, and the start of the next piece.
    pub(crate) fn list_datagrams(
        &self,
        from: defrag::Cursor,
        now: Timestamp,
    ) -> (Vec<QueueView>, Option<defrag::Cursor>) {
        self.reassembly.list(from, PIECE, &self.tracking.settings().defrag, now)
    }

    /// Forgets at most this many expectations of the gateway. Returns how many of them were listed,
    /// and whether there may be more.
    pub(crate) fn forget_expectations(&mut self, most: usize, now: Timestamp) -> (usize, bool) {
        let context = self.tracking.context(now, &mut self.counters);
        context.expectations.flush(most, now, &mut { context.expectation_events })
    }

    /// A piece of the counts of rules, from this counter on. `None` without rules.
    pub(crate) fn rule_counts(&self, from: usize) -> Option<RuleCounts> {
        self.rules.as_ref().map(|rules| rules.counts(from))
    }

    /// A piece of the stations that a bridge knows, and the start of the next piece.
    pub(crate) fn stations(&self, from: usize) -> (Vec<StationUpdate>, Option<usize>) {
        self.forwarder.outputs().known_stations(from, PIECE as usize)
    }

    /// True if a packet like this one would belong to a flow of this bucket that was left to the
    /// host.
    pub(crate) fn has_left_to_host(
        &self,
        bucket: BucketId,
        keyed: &KeyedPacket,
        sign: Sign,
        now: Timestamp,
    ) -> bool {
        let hash = self.hasher.table_hash(&keyed.key);
        let bucket = self.buckets.get(bucket);
        bucket.is_some_and(|it| it.host_flows.knows(keyed, hash, sign, now))
    }

    /// The zone of packets that arrive on a port with this VLAN tag, 0 without one.
    pub(crate) fn link_zone(&self, port: PortId, vlan: u16) -> Zone {
        self.tracking.zones().origin(port, vlan).zone
    }

    /// The connection of packets with this key, if it is here.
    pub(crate) fn connection(&self, key: &FlowKey, now: Timestamp) -> Option<Connection> {
        let bucket = self.buckets.get(self.hasher.bucket_of_key(key))?;
        bucket.connections.get(key, self.hasher.table_hash(key), now)
    }

    /// Counts a packet that did not get as far as the worker.
    pub(crate) fn count_drop(&mut self, reason: DropReason) {
        self.counters.drop_packet(reason);
    }

    /// The packets that were dropped last, each with the time since the drop.
    pub(crate) fn recent_drops(&self, now: Timestamp) -> Vec<(Duration, RecentDrop)> {
        let aged = |dropped: RecentDrop| (now.since(dropped.at), dropped);
        self.recent_drops.kept().into_iter().map(aged).collect()
    }

    /// True if a replay has dropped packets that were not taken.
    pub(crate) fn has_drops(&self) -> bool {
        self.recent_drops.has_untaken()
    }

    /// Takes out the packets that a replay has dropped, in order.
    pub(crate) fn take_drops(&mut self) -> Vec<RecentDrop> {
        self.recent_drops.take()
    }
}
