//! A packet's way through a worker: find its bucket, hand it to the owner,
//! reassemble it, track it, send it.

use std::num::NonZeroU32;

use conntrack::syn_proxy::Screening;
use conntrack::{DropCause, Guess, Tracked};
use defrag::Piece;
use flow::{Class, DropReason, Timestamp, Verdict, Zone, ZonePair};
use netio::Frame;
use steer::{BucketId, Steered};
use wire::{ETHERNET_LEN, Network, Transport};

use crate::aliases::{Filing, Waiting};
use crate::bridge::Way;
use crate::eviction::LIMITS;
use crate::fast_path::FastPath;
use crate::judging::Passed;
use crate::packet::{Kept, Packet, TrackedFlow};
use crate::prefetch::Hardware;
use crate::reassembly::Pieces;
use crate::router::{Arrival, Course, Exits, Router};
use crate::seeking::Search;
use crate::translating::Half;
use crate::worker::{TimeSource, Worker};
use crate::zones::Origin;

impl Worker {
    /// Finds the bucket of a frame and hands it to the bucket's owner. In line, although it is
    /// called from two places: a frame is copied when it is handed to a function.
    #[inline(always)]
    pub(crate) fn steer(&mut self, mut frame: Frame, now: Timestamp) {
        if let Some(router) = &self.router
            && let arrival @ (Arrival::Host | Arrival::Drop(_)) = router.arrival(&frame)
        {
            return self.end_arrival(frame, arrival, now);
        }
        let (network, vlan) = match wire::dissect(frame.bytes()) {
            Ok(dissected) => (dissected.network, dissected.vlan),
            Err(malformed) => return self.drop_frame(frame, malformed.into()),
        };
        if !frame.admit_offload(network.as_ref()) {
            return self.drop_frame(frame, DropReason::OffloadMismatch.into());
        }
        let Some(network) = network.filter(|it| it.offset == ETHERNET_LEN || self.router.is_none())
        else {
            return self.take_unrouted(frame, network, now);
        };
        self.learn_station(&frame, now);
        let origin = self.tracking.zones.origin(frame.port, vlan);
        let mut packet = self.packet(frame, network, origin, None);
        if self.ownership.route(packet.bucket) == self.id {
            self.batch.push(packet);
        } else if self.check_arrival(&mut packet, now) {
            self.hand_over(packet);
        }
    }

    /// Sends a frame by the way that the bridge has chosen, or chooses now, or the router has found
    /// for packets of its bucket.
    pub(crate) fn emit(
        &mut self,
        frame: Frame,
        way: Option<Way>,
        course: Option<(BucketId, Course)>,
        now_ns: u64,
    ) {
        let Self { router, outputs, pool, counters, .. } = self;
        match (router, course, way) {
            (Some(router), Some((bucket, course)), _) => {
                let exits = &mut Exits { outputs, pool, counters };
                router.forward(bucket, frame, course, now_ns, exits);
            }
            (_, _, Some(way)) => outputs.send(frame, way, now_ns, pool, counters),
            _ => outputs.forward(frame, now_ns, pool, counters),
        }
    }

    /// Has the router do something, if this is one, and drops what comes of it.
    pub(crate) fn with_router(&mut self, act: impl FnOnce(&mut Router, &mut Exits<'_>)) {
        let Self { router: Some(router), outputs, pool, counters, .. } = self else { return };
        act(router, &mut Exits { outputs, pool, counters });
        self.drop_refused();
    }

    /// Drops what waits for its next hop: the worker has come to its end.
    pub(crate) fn end_waiting(&mut self) {
        self.with_router(|router, exits| router.end(exits));
    }

    /// Finds the flow and the bucket of a packet.
    pub(crate) fn packet(
        &self,
        frame: Frame,
        network: Network,
        origin: Origin,
        pieces: Option<Box<Pieces>>,
    ) -> Packet {
        let supplied = NonZeroU32::new(frame.supplied_hash);
        let steered = self.hasher.steer_frame(frame.bytes(), &network, origin.zone, supplied);
        let (flow, bucket, carries) = match steered {
            Steered::Flow { keyed, hash, bucket } | Steered::Quoted { keyed, hash, bucket } => {
                (Some(TrackedFlow { keyed, hash }), bucket, false)
            }
            Steered::Carrying { keyed, hash, bucket } => {
                (Some(TrackedFlow { keyed, hash }), bucket, true)
            }
            Steered::Fragment { bucket } | Steered::Keyless { bucket } => (None, bucket, false),
        };
        Packet {
            frame,
            network,
            flow,
            guess: Guess::NONE,
            bucket,
            origin,
            pieces,
            zones: None,
            mark: 0,
            judged: false,
            per_packet: false,
            untracked: false,
            carries,
            is_checked: false,
            is_own: false,
            alias_in: None,
        }
    }

    /// Puts a packet into the zone that a rule says. Its bucket is that of its flow in any zone.
    #[cold]
    #[inline(never)]
    fn change_zone(&self, packet: &mut Packet, zones: ZonePair, now: Timestamp) {
        packet.zones = Some(zones).filter(|zones| !zones.is_one());
        let zone = self.zone_of(packet, zones, now).unwrap_or(zones.original);
        self.put_into(packet, zone);
    }

    fn put_into(&self, packet: &mut Packet, zone: Zone) {
        if zone == packet.origin.zone {
            return;
        }
        // The map knows nothing of what rules say: what is in its zone was never elsewhere.
        packet.origin = Origin { zone, map_epoch: 0, ..packet.origin };
        if let Some(flow) = &mut packet.flow {
            let (keyed, hash) = flow.keyed.moved(flow.table_hash(&self.hasher), zone);
            *flow = TrackedFlow { keyed, hash: Some(hash) };
        }
    }

    /// A packet with a zone for each direction may have opened a connection where it was taken
    /// for a reply.
    #[inline]
    pub(crate) fn stay_with(&self, packet: &mut Packet, tracked: &Tracked) {
        if let (true, Some(zones)) = (tracked.fresh, packet.zones) {
            self.put_into(packet, zones.original);
        }
    }

    /// The zone in which a packet belongs to a connection, if it has a zone for each direction.
    fn zone_of(&self, packet: &mut Packet, zones: ZonePair, now: Timestamp) -> Option<Zone> {
        let zones = Some(zones).filter(|zones| !zones.is_one())?;
        packet.flow.as_mut()?.table_hash(&self.hasher);
        let (keyed, hash) = packet.looked_up()?;
        let bucket = self.ownership.get(packet.bucket)?;
        let found = bucket.connections.zone_of(zones, &keyed, hash, now).or_else(|| {
            let (reply, hash) = keyed.moved(hash, zones.reply);
            bucket.aliases.owner(&reply, hash).map(|_| zones.reply)
        });
        found.or_else(|| self.tracking.tunnels.zone_of(zones, &keyed, now))
    }

    /// True for a packet that is the host's whatever rules say of it.
    fn is_hosts(&self, packet: &Packet, now: Timestamp) -> bool {
        packet.is_own && !self.may_be_translated(packet, now)
    }

    /// Hands a packet to the owner of its bucket, another worker.
    pub(crate) fn hand_over(&mut self, mut packet: Packet) {
        let owner = self.ownership.route(packet.bucket);
        // A worker without rings has left, and its buckets before it.
        let Some(Some(link)) = self.links.get_mut(owner.index()) else {
            return self.drop_frames(packet.frame, packet.pieces, DropReason::BacklogFull);
        };
        // What names no flow counts as one flow for each bucket, and so does a tunnel, whose packets
        // are not all of one flow.
        let bucket = u64::from(packet.bucket.0);
        let flow_hash = || match &mut packet.flow {
            Some(flow) => flow.table_hash(&self.hasher) ^ bucket,
            None => bucket,
        };
        match link.admit(flow_hash) {
            Ok(()) => link.stage(packet),
            Err(reason) => {
                let softnet = &mut self.counters.softnet;
                *match reason {
                    DropReason::FlowLimit => &mut softnet.flow_limit_count,
                    _ => &mut softnet.dropped,
                } += packet.weight() as u64;
                self.drop_frames(packet.frame, packet.pieces, reason);
            }
        }
    }

    /// Tracks a batch: first the lines of the indices are asked for, then those
    /// of the entries, and when the first packet is looked at, its lines are near.
    pub(crate) fn process_batch(&mut self, now: Timestamp) {
        if self.batch.is_empty() {
            return;
        }
        let mut batch = std::mem::take(&mut self.batch);
        for packet in &mut batch {
            let Some(flow) = &mut packet.flow else { continue };
            let hash = flow.table_hash(&self.hasher);
            if let Some(bucket) = self.ownership.get(packet.bucket) {
                bucket.connections.prefetch_index(hash, Hardware);
            }
        }
        for packet in &mut batch {
            let hash = packet.flow.as_ref().and_then(|flow| flow.hash);
            if let (Some(hash), Some(bucket)) = (hash, self.ownership.get(packet.bucket)) {
                packet.guess = bucket.connections.prefetch_entry(hash, Hardware);
            }
        }
        for packet in &mut batch {
            self.process(packet, now);
        }
        batch.clear();
        self.batch = batch;
    }

    /// Tracks a packet where it lies and sends it on; a fragment waits for its
    /// datagram.
    pub(crate) fn process(&mut self, packet: &mut Packet, now: Timestamp) {
        if self.ownership.get(packet.bucket).is_none() {
            return self.keep(packet);
        }
        let now = match self.time {
            TimeSource::Turn => now,
            TimeSource::Frame => Timestamp::from_nanos(packet.frame.timestamp),
        };
        // A replay does without the SYN proxy: cookies can not be in a capture.
        let screening = match self.time {
            TimeSource::Turn => Screening::Ask,
            TimeSource::Frame => Screening::Off,
        };
        match self.take_fast_path(packet, screening, now) {
            FastPath::Sent => return,
            FastPath::Tracked(tracked) => {
                let judged = self.admit_tracked(packet, tracked, now);
                return self.settle(packet, judged, now);
            }
            FastPath::No => {}
        }
        if !self.check_arrival(packet, now) {
            return;
        }
        // Where rules set zones, whose it is can not be said before they were asked.
        let sets_zones = self.rules.as_ref().is_some_and(|rules| rules.shared.sets_zones());
        if !sets_zones && self.divert(packet, now) {
            return;
        }
        let Some(bucket) = self.ownership.get_mut(packet.bucket) else { return };
        bucket.packets += 1;
        if packet.pieces.is_none() && !packet.judged {
            // Those of a datagram were counted one by one, and what has met an alias since was
            // before.
            self.counters.softnet.processed += 1;
        }
        if let Some(piece) = Piece::of(&packet.network, packet.origin.realm()) {
            return self.reassemble(&piece, packet, now);
        }
        if !sets_zones && (self.is_left_to_host(packet, now) || self.is_hosts(packet, now)) {
            return self.conclude(packet, Ok(Passed::TO_HOST), now);
        }
        if self.rules.is_some() && !packet.judged {
            match self.judge_untracked(packet, now) {
                Err(why) => return self.conclude(packet, Err(why), now),
                Ok(Some(zones)) => self.change_zone(packet, zones, now),
                Ok(None) => {}
            }
        }
        if sets_zones {
            if self.divert(packet, now) {
                return;
            }
            if self.is_left_to_host(packet, now) || self.is_hosts(packet, now) {
                return self.conclude(packet, Ok(Passed::TO_HOST), now);
            }
        }
        if !packet.untracked && self.take_proxied(packet, now) {
            return;
        }
        let judged = self.admit(packet, screening, now);
        self.settle(packet, judged, now);
    }

    /// Asks the SYN proxy about a packet that was refused for it, and disposes of all others.
    #[inline]
    pub(crate) fn settle(
        &mut self,
        packet: &mut Packet,
        judged: Result<Passed, DropCause>,
        now: Timestamp,
    ) {
        match judged {
            Err(DropCause::SynProxy { proxy }) => self.screen(packet, proxy, now),
            judged => self.conclude(packet, judged, now),
        }
    }

    /// Judges a packet; if there is no room for its connection, another may give way. The SYN
    /// proxy is to be asked about what is refused as [`DropCause::SynProxy`].
    pub(crate) fn admit(
        &mut self,
        packet: &mut Packet,
        screening: Screening,
        now: Timestamp,
    ) -> Result<Passed, DropCause> {
        let bucket = self.ownership.get(packet.bucket);
        if bucket.is_some_and(|bucket| bucket.connections.has_adjustments()) {
            return self.admit_adjusted(packet, screening, now);
        }
        self.admit_as_it_is(packet, screening, now)
    }

    #[inline]
    pub(crate) fn admit_as_it_is(
        &mut self,
        packet: &mut Packet,
        screening: Screening,
        now: Timestamp,
    ) -> Result<Passed, DropCause> {
        // What is for an address of the host may be the host's, rules or not.
        if self.rules.is_some() || packet.is_own {
            return self.admit_by_rules(packet, screening, now);
        }
        self.admit_unruled(packet, screening, now)
    }

    /// Judges a packet that no rules are asked about: all passes that is not INVALID.
    #[inline]
    pub(crate) fn admit_unruled(
        &mut self,
        packet: &mut Packet,
        screening: Screening,
        now: Timestamp,
    ) -> Result<Passed, DropCause> {
        let tracked = self.track(packet, screening, now);
        self.admit_unruled_tracked(packet, tracked, now)
    }

    /// The same for a packet that was tracked already.
    #[inline]
    pub(crate) fn admit_unruled_tracked(
        &mut self,
        packet: &mut Packet,
        mut tracked: Tracked,
        now: Timestamp,
    ) -> Result<Passed, DropCause> {
        let fresh = tracked;
        if tracked.fresh && tracked.why.is_none() {
            self.follow(packet, &tracked, now)
                .and_then(|follows| match follows {
                    true => Ok(()),
                    false => self.settle_translation(packet, &tracked, now),
                })
                .inspect_err(|_| self.withdraw(packet, &fresh, now))?;
        }
        if (tracked.fresh || tracked.is_watched())
            && let Some(bucket) = self.ownership.get_mut(packet.bucket)
        {
            tracked = self.tracking.pass(bucket, packet, tracked, now, &mut self.counters);
            if fresh.is_watched() && tracked.why.is_none() {
                self.edit_payload(packet)?;
            }
        }
        if tracked.verdict == Verdict::Accept {
            self.counters.classify(tracked.class);
        }
        match tracked.why {
            Some(why) => Err(why),
            None if fresh.fresh || fresh.is_translated() => {
                let passed = self.pass_translated(packet, &fresh, now);
                self.passed(packet, &fresh, passed, now)
            }
            None => Ok(self.pass_untranslated(packet, &tracked, now)),
        }
    }

    /// Finds the way of a packet that is not translated.
    #[inline]
    fn pass_untranslated(&mut self, packet: &Packet, tracked: &Tracked, now: Timestamp) -> Passed {
        let router = self.router.as_mut();
        let course = router.map(|router| router.course_of(packet, packet.mark));
        self.record(packet, tracked, course, None, now);
        Passed { course, ..Passed::default() }
    }

    /// Translates a packet that no rules are asked about.
    fn pass_translated(
        &mut self,
        packet: &mut Packet,
        tracked: &Tracked,
        now: Timestamp,
    ) -> Passed {
        let halves = self.halves(packet, tracked);
        if halves.is_identity() {
            return Passed::default();
        }
        self.readdress(packet, &halves, Half::Destination);
        let router = self.router.as_mut();
        let course = router.map(|router| router.course_of(packet, packet.mark));
        self.record(packet, tracked, course, None, now);
        self.readdress(packet, &halves, Half::Source);
        Passed { course, ..Passed::default() }
    }

    /// True if a packet for an address of the host may be another's: it belongs to a connection,
    /// or is expected, or a rule may translate it.
    #[cold]
    fn may_be_translated(&self, packet: &Packet, now: Timestamp) -> bool {
        let Some((keyed, hash)) = packet.looked_up() else { return false };
        let Some(bucket) = self.ownership.get(packet.bucket) else { return false };
        let is_asked = || {
            self.rules.as_ref().is_some_and(|rules| {
                !rules.shared.program.is_empty(ruleset::Stage::DestinationNat)
                    && !matches!(packet.network.transport, Transport::IcmpError(_))
            })
        };
        bucket.connections.has(&keyed, hash, now)
            || self.tracking.tunnels.has(&keyed, now)
            || self.tracking.expectations.may_expect(&keyed)
            || is_asked()
    }

    /// Has the first packet of a connection wait until replies find it.
    #[cold]
    fn hold(&mut self, packet: &mut Packet, passed: Passed, now: Timestamp) {
        let mut packet = packet.take();
        let keyed = packet.flow.map(|flow| flow.keyed.named(&packet.network));
        let search = self.translator.search.take().unwrap_or(Search::new(None, 0));
        let bucket = self.ownership.get_mut(packet.bucket);
        match bucket.zip(keyed).filter(|(bucket, _)| bucket.openings.has_room()) {
            Some((bucket, keyed)) => {
                bucket.openings.push(&keyed, Waiting::Opener(packet, passed, search));
            }
            None => {
                self.end_search(&mut packet, &search, Filing::Full, now);
                self.end_connection(&packet, now);
                let pieces = packet.pieces.take();
                self.drop_frames(packet.frame, pieces, DropReason::AliasQueueFull);
            }
        }
    }

    /// Tracks a packet; if there is no room for its connection, another may give way.
    #[inline]
    pub(crate) fn track(
        &mut self,
        packet: &Packet,
        screening: Screening,
        now: Timestamp,
    ) -> Tracked {
        let Some(bucket) = self.ownership.get_mut(packet.bucket) else {
            debug_assert!(false, "only the owner of a bucket judges its packets");
            return Tracked::alone(Class::Untracked);
        };
        let tracked = self.tracking.track(bucket, packet, screening, now, &mut self.counters);
        match tracked.refusal() {
            Some(why) if LIMITS.contains(&why.reason()) => {
                self.make_room_for(packet, tracked, why, now)
            }
            _ => tracked,
        }
    }

    /// Sends a packet on, or drops it.
    pub(crate) fn conclude(
        &mut self,
        packet: &mut Packet,
        judged: Result<Passed, DropCause>,
        now: Timestamp,
    ) {
        match judged {
            Ok(passed) if passed.waits => self.hold(packet, passed, now),
            Ok(passed) => self.send(packet, passed, now),
            Err(why) => {
                let (frame, pieces) = (std::mem::take(&mut packet.frame), packet.pieces.take());
                self.drop_frames(frame, pieces, why);
            }
        }
    }

    /// Keeps a packet until its bucket arrives.
    fn keep(&mut self, packet: &mut Packet) {
        let bucket = packet.bucket;
        let packet = packet.take();
        let weight = packet.weight();
        if let Err(Kept::Packet(packet)) = self.ownership.keep(bucket, Kept::Packet(packet), weight)
        {
            self.drop_frames(packet.frame, packet.pieces, DropReason::MoveBufferFull);
        }
    }
}

#[cfg(test)]
#[path = "pipeline_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "zoning_tests.rs"]
mod zoning_tests;
