//! The tracking stage: how a packet relates to the connections of its bucket.

use std::ops::ControlFlow;

use conntrack::nat::Edit;
use conntrack::syn_proxy::{Pressure, Screening};
use conntrack::{
    ConnectionId, Context, Cursor, Ended, Event, ExpectationEvent, Expectations, KnownTunnels,
    Limits, Replication, Shortage, Tracked, TrackedPacket, Verdict,
};
use flow::{Class, Counters, DropReason, HashKey, KeyedPacket, Timestamp, Zone};
use netio::{Checksum, Frame, PortId};
use steer::{BucketId, WorkerId};

use crate::Bucket;
use crate::path::PacketPath;
use crate::path::events::{EventSender, Subscribers};
use crate::path::inner_packets::InsideTracking;
use crate::path::packet::{Packet, TrackedFlow};
use crate::path::scratch::{Progress, Scratch};
use crate::path::settings::Settings;
use crate::path::step::{End, Step, dropped};
use crate::path::zones::Zones;

/// The number of no worker's generation.
const NO_GENERATION: u64 = 0;
/// Bits of a generation that count; those above are the worker's.
const GENERATION_BITS: u32 = 48;

/// The part of tracking that is not in the bucket, one for each worker.
pub struct Tracking {
    /// Tunables. Connections are also counted here if only rules ask for it.
    settings: Settings,
    /// True if the tunable has connections counted (`nf_conntrack_acct`).
    counts_by_tunable: bool,
    /// True if rules ask for the packets or bytes of connections.
    counts_for_rules: bool,
    /// The settings of each zone.
    zones: Zones,
    /// How many connections there may be.
    limits: Limits,
    /// Connections that others have announced; shared by all workers.
    expectations: Expectations,
    /// Tunnels whose packets come to many buckets; shared by all workers.
    tunnels: KnownTunnels,
    /// For what is inside tunnels, where that is judged.
    inside: Option<Box<InsideTracking>>,
    /// For each port, true if it accepts no new connections.
    refuses_new: Vec<bool>,
    /// Until when somebody may come back for what the SYN proxy has promised in any zone,
    /// also where it was switched off meanwhile.
    promised_until: Timestamp,
    /// The listeners to events of connections.
    subscribers: Subscribers<Event>,
    /// The listeners to events of expectations.
    expectation_subscribers: Subscribers<ExpectationEvent>,
    /// The collection of changes for a peer.
    replication: Replication,
    /// Translated connections that have ended, until their aliases are removed.
    ended: Vec<Ended>,
    /// Names what recorded decisions were made from: no other worker has the same number, and
    /// this one another after each change.
    generation: u64,
    /// The bucket that was asked last to make room for another.
    evict_at: u16,
}

impl Tracking {
    /// The part of the worker with this number, which tracks nothing yet. `zones` have no settings
    /// applied to them.
    pub fn new(
        worker: WorkerId,
        settings: Settings,
        mut zones: Zones,
        limits: Limits,
        expectations: Expectations,
        tunnels: KnownTunnels,
    ) -> Self {
        zones.apply(&settings.conntrack);
        Self {
            counts_by_tunable: settings.conntrack.accounting,
            counts_for_rules: false,
            settings,
            zones,
            limits,
            expectations,
            tunnels,
            inside: None,
            refuses_new: Vec::new(),
            promised_until: Timestamp::ZERO,
            subscribers: Subscribers::default(),
            expectation_subscribers: Subscribers::default(),
            replication: Replication::default(),
            ended: Vec::new(),
            generation: (u64::from(worker.0) + 1) << GENERATION_BITS,
            evict_at: 0,
        }
    }

    /// Tracks what is inside tunnels too.
    pub fn look_inside(&mut self, secret: HashKey) {
        let inside = InsideTracking::new(&self.settings.conntrack, &self.limits, secret);
        self.inside = Some(Box::new(inside));
    }

    /// How many connections there may be.
    pub const fn limits(&self) -> &Limits {
        &self.limits
    }

    /// The same, to be changed.
    pub const fn limits_mut(&mut self) -> &mut Limits {
        &mut self.limits
    }

    /// Connections that others have announced.
    #[inline]
    pub const fn expectations(&self) -> &Expectations {
        &self.expectations
    }

    /// Tunnels whose packets come to many buckets.
    pub const fn tunnels(&self) -> &KnownTunnels {
        &self.tunnels
    }

    /// The part inside tunnels, where that is judged.
    pub fn inside_mut(&mut self) -> Option<&mut InsideTracking> {
        self.inside.as_deref_mut()
    }

    /// The collection of changes for a peer.
    #[inline]
    pub const fn replication(&self) -> &Replication {
        &self.replication
    }

    /// The same, to be changed.
    #[inline]
    pub const fn replication_mut(&mut self) -> &mut Replication {
        &mut self.replication
    }

    /// Sets which ports accept no new connections.
    pub fn refuse_new(&mut self, refuses: Vec<bool>) {
        self.refuses_new = refuses;
    }

    /// True if a packet that came in by this port may open a connection.
    #[inline]
    pub fn may_open(&self, port: PortId) -> bool {
        !self.refuses_new[usize::from(port.0)]
    }

    /// The tunables.
    #[inline]
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The settings of each zone.
    #[inline]
    pub fn zones(&self) -> &Zones {
        &self.zones
    }

    /// The number under which decisions are recorded now.
    #[inline]
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Recorded decisions no longer hold.
    pub fn begin_generation(&mut self) {
        self.generation += 1;
    }

    /// Sends events of connections to one more listener.
    pub fn subscribe(&mut self, sender: EventSender<Event>) {
        self.subscribers.add(sender);
    }

    /// Sends events of expectations to one more listener.
    pub fn subscribe_expectations(&mut self, sender: EventSender<ExpectationEvent>) {
        self.expectation_subscribers.add(sender);
    }

    /// The clock of the events of connections.
    pub fn event_clock(&self) -> u64 {
        self.subscribers.clock()
    }

    /// Lets later events have later times than this one, which comes from another worker.
    pub fn advance_event_clock(&mut self, clock: u64) {
        self.subscribers.advance_clock(clock);
    }

    /// The bucket whose connection gives way next for this shortage, each in its turn. `None` if no
    /// bucket has one that may.
    pub fn next_to_give_way(&mut self, shortage: Shortage) -> Option<BucketId> {
        self.evict_at = self.limits.table_with_candidate(shortage, self.evict_at)?;
        Some(BucketId(self.evict_at))
    }

    /// The same for the connections inside tunnels.
    pub fn next_inside_to_give_way(&mut self) -> Option<BucketId> {
        let limits = &self.inside.as_ref()?.limits;
        self.evict_at = limits.table_with_candidate(Shortage::Table, self.evict_at)?;
        Some(BucketId(self.evict_at))
    }

    /// Takes over changed tunables.
    pub fn apply(&mut self, mut settings: Settings) {
        self.counts_by_tunable = settings.conntrack.accounting;
        settings.conntrack.accounting |= self.counts_for_rules;
        self.zones.apply(&settings.conntrack);
        if let Some(inside) = &mut self.inside {
            inside.apply(&settings.conntrack);
        }
        self.settings = settings;
    }

    /// Counts packets and bytes of connections that open from now on, whatever the tunable says, if
    /// rules ask for them.
    pub fn count_for_rules(&mut self, asked: bool) {
        if asked == self.counts_for_rules {
            return;
        }
        self.counts_for_rules = asked;
        let mut settings = self.settings.clone();
        settings.conntrack.accounting = self.counts_by_tunable;
        self.apply(settings);
    }

    /// Takes the share of one of this many workers of the limits.
    pub fn share_limits(&mut self, workers: u32) {
        self.limits.sources.set_workers(workers);
        self.limits.share(workers);
        if let Some(inside) = &mut self.inside {
            inside.limits.follow();
        }
    }

    /// Takes over changed zones.
    pub fn set_zones(&mut self, mut zones: Zones) {
        zones.apply(&self.settings.conntrack);
        self.zones = zones;
    }

    /// The parts of the worker that the connection table needs for work that is not about a packet
    /// of one zone.
    pub fn context<'a>(&'a mut self, now: Timestamp, counters: &'a mut Counters) -> Context<'a> {
        self.context_of(None, now, counters)
    }

    /// The same for a packet of one zone.
    #[inline]
    pub fn context_of<'a>(
        &'a mut self,
        zone: Option<Zone>,
        now: Timestamp,
        counters: &'a mut Counters,
    ) -> Context<'a> {
        let settings = zone.and_then(|zone| self.zones.settings(zone));
        Context {
            now,
            settings: settings.unwrap_or(&self.settings.conntrack),
            limits: &mut self.limits,
            counters: &mut counters.conntrack,
            expectations: &self.expectations,
            tunnels: &self.tunnels,
            events: self.subscribers.sink(),
            expectation_events: self.expectation_subscribers.sink(),
            replication: &mut self.replication,
            ended: Some(&mut self.ended),
        }
    }

    /// True if translated connections have ended whose aliases are not removed yet.
    #[inline]
    pub const fn has_ended(&self) -> bool {
        !self.ended.is_empty()
    }

    /// Takes these connections out, in the order in which they have ended.
    pub fn take_ended(&mut self) -> Vec<Ended> {
        std::mem::take(&mut self.ended)
    }

    /// Gives back the memory of the connections that were taken out.
    pub fn reuse(&mut self, mut memory: Vec<Ended>) {
        memory.clear();
        self.ended = memory;
    }

    /// Notes that the SYN proxy has answered in the name of a server, here or elsewhere.
    pub fn note_promise(&mut self, at: Timestamp) {
        self.promised_until = self.promised_until.max(at.after(Pressure::PROMISED));
    }

    /// A bucket has come. From now on its connections count in the limits of this worker.
    pub fn count_in(&mut self, bucket: BucketId, content: &mut Bucket) {
        // A worker that has ended may have recorded decisions under the numbers of this one.
        content.connections.begin_generation(NO_GENERATION);
        content.connections.count_in(&mut self.limits, bucket.0);
        content.connections.join_replication(&mut self.replication, bucket.0);
        if let (Some(tracking), Some(inside)) = (&mut self.inside, &mut content.inside) {
            inside.connections.count_in(&mut tracking.limits, bucket.0);
        }
    }

    /// The other half of [`Tracking::count_in`].
    pub fn count_out(&mut self, content: &Bucket) {
        content.connections.count_out(&mut self.limits);
        if let (Some(tracking), Some(inside)) = (&mut self.inside, &content.inside) {
            inside.connections.count_out(&mut tracking.limits);
        }
    }

    /// A bucket is about to leave: nobody there gives way any more.
    pub fn forget_table(&mut self, bucket: BucketId) {
        self.limits.forget_table(bucket.0);
        if let Some(inside) = &mut self.inside {
            inside.limits.forget_table(bucket.0);
        }
    }

    /// Gives back the memory of connections whose time is over, at most `budget` of them and as
    /// many inside tunnels.
    pub fn expire(
        &mut self,
        bucket: &mut Bucket,
        budget: usize,
        now: Timestamp,
        counters: &mut Counters,
    ) {
        bucket.connections.expire(budget, &mut self.context(now, counters));
        if bucket.inside.is_some() {
            self.expire_inside(bucket, budget, now, counters);
        }
    }

    /// Gives back the memory of connections inside tunnels whose time is over.
    #[cold]
    fn expire_inside(
        &mut self,
        bucket: &mut Bucket,
        budget: usize,
        now: Timestamp,
        counters: &mut Counters,
    ) {
        let (Some(tracking), Some(inside)) = (&mut self.inside, &mut bucket.inside) else { return };
        inside.connections.expire(budget, &mut tracking.context(now, &mut counters.conntrack));
        if inside.connections.is_empty() {
            inside.connections.count_out(&mut tracking.limits);
            bucket.inside = None;
        }
    }

    /// Ends the connections inside tunnels; returns how many.
    pub fn flush_inside(
        &mut self,
        bucket: &mut Bucket,
        now: Timestamp,
        counters: &mut Counters,
    ) -> usize {
        let (Some(tracking), Some(inside)) = (&mut self.inside, &mut bucket.inside) else {
            return 0;
        };
        let mut context = tracking.context(now, &mut counters.conntrack);
        let (ended, _) =
            inside.connections.flush(Cursor::default(), u32::MAX, |_| true, &mut context);
        ended
    }

    /// The tunables of tracking in a zone.
    pub fn settings_of(&self, zone: Zone) -> &conntrack::Settings {
        self.zones.settings(zone).unwrap_or(&self.settings.conntrack)
    }

    /// Says how a packet relates to the connections of its bucket. A connection that it has opened
    /// is not confirmed. `screening` is the task of the SYN proxy if it is on.
    #[inline]
    pub fn track(
        &mut self,
        bucket: &mut Bucket,
        packet: &Packet,
        screening: Screening,
        now: Timestamp,
        counters: &mut Counters,
    ) -> Tracked {
        let Some(TrackedFlow { keyed, hash: Some(hash) }) = &packet.flow else {
            return match conntrack::class_without_flow(&packet.network) {
                Class::Invalid(reason) => Tracked::invalid(reason.into()),
                class => Tracked::alone(class),
            };
        };
        let may_open = self.may_open(packet.frame.port);
        let has_promised = now < self.promised_until;
        // Replies may be in another zone than what they reply to.
        let zone = match self.zones.differ() && bucket.connections.has_translated() {
            true => bucket.connections.original_zone(keyed, *hash),
            false => keyed.key.zone,
        };
        let mut context = self.context_of(Some(zone), now, counters);
        let may_screen = has_promised || context.settings.syn_proxy.half_open != 0;
        let screening = if may_open && may_screen { screening } else { Screening::Off };
        let offered = offered(packet, keyed, *hash, may_open, screening);
        bucket.connections.track(&offered, &mut context)
    }

    /// A packet that has opened a connection goes on, and the connection stays.
    ///
    /// # Errors
    /// See [`conntrack::Table::confirm`].
    pub fn confirm(
        &mut self,
        bucket: &mut Bucket,
        connection: ConnectionId,
        zone: Option<Zone>,
        now: Timestamp,
        counters: &mut Counters,
    ) -> Result<(), DropReason> {
        let mut context = self.context_of(zone, now, counters);
        bucket.connections.confirm(connection, &mut context)
    }

    /// A packet goes on, as far as anybody but a helper is concerned. The changes that the helper
    /// wants in its payload go to `edits`.
    pub fn accept(
        &mut self,
        bucket: &mut Bucket,
        packet: &Packet,
        tracked: Tracked,
        edits: &mut Vec<Edit>,
        now: Timestamp,
        counters: &mut Counters,
    ) -> Tracked {
        let Some(TrackedFlow { keyed, hash: Some(hash) }) = &packet.flow else { return tracked };
        let mut context = self.context_of(Some(keyed.key.zone), now, counters);
        let offered = offered(packet, keyed, *hash, true, Screening::Off);
        bucket.connections.accept_with_edits(tracked, &offered, edits, &mut context)
    }
}

impl PacketPath {
    /// Says how a packet relates to the connections of its bucket. The SYN proxy looks at a packet
    /// that would open a connection while too many are half open.
    pub(super) fn track_packet(&mut self, packet: &mut Packet, scratch: &mut Scratch) -> Step {
        // It is written to its place: a copy costs more than the decision.
        scratch.tracked = match scratch.tracking {
            Progress::InFastPath(tracked) => tracked,
            _ if packet.untracked => Tracked::alone(Class::Untracked),
            _ => self.track(packet, scratch.screening, scratch.now),
        };
        if scratch.tracked.verdict == Verdict::Screen {
            scratch.tracked = Tracked::alone(Class::Untracked);
            scratch.tracked = self.screen(packet, scratch)?;
        }
        let tracked = &scratch.tracked;
        self.follow_zone_of_connection(packet, tracked);
        let is_news = packet.is_local && (tracked.fresh || tracked.connection.is_none());
        if let Some(why) = tracked.refusal() {
            return if is_news { ControlFlow::Break(End::Host) } else { dropped(why) };
        }
        scratch.accept_tracked();
        scratch.ends_at_host = is_news;
        match scratch.tracked.why {
            // Without rules, all passes that is not INVALID.
            Some(why) if self.rules.is_none() && !packet.is_local => dropped(why),
            _ => ControlFlow::Continue(()),
        }
    }

    /// Tracks a packet; if there is no room for its connection, another may give way.
    #[inline]
    pub(super) fn track(
        &mut self,
        packet: &Packet,
        screening: Screening,
        now: Timestamp,
    ) -> Tracked {
        let Some(bucket) = self.buckets.get_mut(packet.bucket) else {
            debug_assert!(false, "only the owner of a bucket judges its packets");
            return Tracked::alone(Class::Untracked);
        };
        let mut tracked = self.tracking.track(bucket, packet, screening, now, &mut self.counters);
        if let Verdict::NoRoom(shortage) = tracked.verdict {
            tracked = self.make_room_for(packet, tracked, shortage, now);
        }
        tracked
    }
}

/// Says whether the table has to verify the checksum of a packet's transport.
#[inline]
pub(super) fn checksum_of(frame: &Frame) -> conntrack::Checksum {
    match frame.offload.checksum {
        Checksum::Complete => conntrack::Checksum::Verify,
        Checksum::Verified | Checksum::Partial { .. } => conntrack::Checksum::Trust,
        Checksum::Cut => conntrack::Checksum::Cut,
    }
}

/// A packet as the table takes it.
#[inline]
fn offered<'a>(
    packet: &'a Packet,
    keyed: &'a KeyedPacket,
    hash: u64,
    may_open: bool,
    screening: Screening,
) -> TrackedPacket<'a> {
    TrackedPacket {
        network: &packet.network,
        frame: packet.frame.bytes(),
        keyed,
        hash,
        guess: packet.guess,
        checksum: checksum_of(&packet.frame),
        segments: packet.frame.segments(),
        may_open,
        screening,
        map_epoch: packet.origin.map_epoch,
        zones: packet.zones,
    }
}
