//! The connections of one bucket.

mod admin;
mod calls;
mod candidates;
mod followed;
mod giving_way;
mod inside;
mod judged;
mod ordinary;
mod proxied;
mod recorded;
mod room;
mod ruled;
mod translated;
mod tunnelled;
mod watched;
mod zoned;

use flow::{Class, DropReason, KeyedPacket, Prefetch, SlotIndex, TimerWheel, Timestamp, ZonePair};
use wire::Transport;
use wire::checksum::verify_transport;

use self::room::Room;
use self::tunnelled::leave;
use self::watched::release;
use crate::entry::{Body, Entry, Status};
use crate::expect::Claim;
use crate::limits::Stake;
use crate::nat::{Block, Edit, Halves};
use crate::packet::{Guess, is_fragment};
use crate::proto::{Before, Input, State, Step};
use crate::slab::{SECOND, Slab};
use crate::syn_proxy::Screening;
use crate::{
    Checksum, Connection, Context, Direction, Ended, Event, EventKind, Settings, TimeoutPolicy,
    Tracked, TrackedPacket, Why, syn_proxy,
};

pub use admin::{Action, CHOSEN_COST, Changes, Cursor};
pub use calls::CALLS_OF_A_PAIR;
pub use giving_way::Claimant;
pub use inside::{Inside, Passage};
pub use room::Shortage;
pub use translated::{Again, Reached};
pub(crate) use zoned::zone_of;

/// The connections of one bucket. It belongs to one worker at a time and can be given to
/// another as a whole.
///
/// Connections hold units of the limits in the [`Context`]. So the worker that gives the table
/// away calls [`Table::surrender`], its new owner calls [`Table::adopt`], and a worker that
/// drops a table flushes it first.
#[derive(Debug)]
pub struct Table {
    index: SlotIndex,
    slab: Slab,
    wheel: TimerWheel,
    room: Room,
    /// The translation of the connection that ended last, for the packet that ended it.
    parting: Halves,
    /// The zones of that connection.
    parting_zones: ZonePair,
    /// The ports that helpers may announce.
    block: Block,
    /// The changes that helpers want in the payload of the last packet that passed.
    edits: Vec<Edit>,
}

impl Table {
    /// An empty table.
    pub fn new(now: Timestamp) -> Self {
        Self {
            index: SlotIndex::new(),
            slab: Slab::new(),
            wheel: TimerWheel::new(now),
            room: Room::default(),
            parting: Halves::default(),
            parting_zones: ZonePair::default(),
            block: Block::ALL,
            edits: Vec::new(),
        }
    }

    /// Number of connections that hold memory, including expired ones that [`Table::expire`]
    /// has not removed yet.
    pub fn len(&self) -> usize {
        self.slab.len()
    }

    /// True when no connection holds memory.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Memory held, bytes.
    pub fn memory_bytes(&self) -> usize {
        size_of::<Self>()
            + self.index.memory_bytes()
            + self.slab.memory_bytes()
            + self.wheel.memory_bytes()
            + self.room.memory_bytes()
    }

    /// First stage of a batch: prefetches the index line of a flow.
    #[inline]
    pub fn prefetch_index(&self, hash: u64, prefetch: impl Prefetch) {
        self.index.prefetch(hash as u32, prefetch);
    }

    /// Second stage of a batch, when the index lines have come: prefetches the entry of a flow,
    /// or the place of a new one. Returns the slot in which it found the flow.
    #[inline]
    pub fn prefetch_entry(&self, hash: u64, prefetch: impl Prefetch) -> Guess {
        let guess = self.index.guess(hash as u32);
        let entry = match guess {
            Some(filed) => {
                self.prefetch_translation(filed & !SECOND, prefetch);
                self.slab.recorded.prefetch(filed & !SECOND, prefetch);
                Some(&self.slab[filed & !SECOND])
            }
            // In a full table a new connection takes the place of the one that it evicts.
            None => match self.room.prefetch_victim(prefetch) {
                Some(victim) => {
                    self.wheel.prefetch(victim, prefetch);
                    Some(&self.slab[victim])
                }
                None => self.slab.next_free(),
            },
        };
        if let Some(entry) = entry {
            prefetch.prefetch(&entry.head);
            prefetch.prefetch(&entry.body);
        }
        guess.map_or(Guess::NONE, Guess)
    }

    /// Finds the connection of a packet, and opens, changes or ends one. A connection that it
    /// opens is reported only by [`Table::confirm`]; helpers read the packet later
    /// ([`Table::inspect`]).
    ///
    /// If there is no room for a new connection and no candidate for eviction here, the packet
    /// is refused and nothing has changed. The caller may make room elsewhere ([`Table::evict`]
    /// of another table with the same limits) and try again.
    pub fn track(&mut self, packet: &TrackedPacket<'_>, context: &mut Context<'_>) -> Tracked {
        if is_fragment(packet.network) {
            return Tracked::alone(Class::Untracked);
        }
        if packet.checksum == Checksum::Verify
            && context.settings.verify_checksums
            && !verify_transport(packet.frame, packet.network)
        {
            context.counters.error += 1;
            return invalid(DropReason::BadChecksum.into(), context);
        }
        if matches!(packet.network.transport, Transport::IcmpError(_)) {
            return self.relate(packet, context);
        }
        let found = match packet.zones {
            None => match self.guessed(packet.guess, packet.keyed) {
                Some(met) => self.if_live(met, context),
                None => self.find(packet.keyed, packet.hash, context),
            },
            Some(zones) => self.find_in(zones, packet.keyed, packet.hash, context),
        };
        match found {
            Some(met) => match self.keep_up(met, packet, context) {
                Some(tracked) => tracked,
                None => self.advance(met, packet, context),
            },
            None => self.open(packet, context),
        }
    }

    /// Returns the memory of expired connections; looks at most at `budget` entries. Returns
    /// the number of entries that it looked at.
    pub fn expire(&mut self, budget: usize, context: &mut Context<'_>) -> usize {
        let Self { index, slab, wheel, room, .. } = self;
        let looked_at = wheel.advance(context.now, budget, |slot| {
            let head = &mut slab[slot].head;
            if head.is_expired(context.now) {
                retire(index, slab, room, slot, context);
                return None;
            }
            head.note_filed(head.deadline);
            Some(head.deadline)
        });
        index.shrink(|filed| slab.hash_of(filed));
        slab.shrink();
        room.shrink();
        looked_at
    }

    /// The guessed connection, if it is that of the packet. It may have expired.
    #[inline]
    fn guessed(&self, Guess(filed): Guess, packet: &KeyedPacket) -> Option<Met> {
        let KeyedPacket { key, sender } = packet;
        if filed & SECOND != 0 {
            // This also covers a packet without a guess: no connection has that number.
            let is_reply = self.slab.second(filed)?.reply() == *packet;
            return is_reply.then_some(Met { slot: filed & !SECOND, direction: Direction::Reply });
        }
        let head = &self.slab.live(filed)?.head;
        (head.key == *key && head.admits(*sender))
            .then(|| Met { slot: filed, direction: head.direction(*sender) })
    }

    /// The connection of a packet if it is live. An expired one ends here.
    #[inline]
    fn find(&mut self, packet: &KeyedPacket, hash: u64, context: &mut Context<'_>) -> Option<Met> {
        let met = self.look_up(packet, hash)?;
        self.if_live(met, context)
    }

    #[inline]
    fn if_live(&mut self, met: Met, context: &mut Context<'_>) -> Option<Met> {
        if self.slab[met.slot].head.is_expired(context.now) {
            self.close(met.slot, context);
            return None;
        }
        context.counters.found += 1;
        Some(met)
    }

    /// The connection of a packet, which may have expired.
    #[inline]
    fn look_up(&self, packet: &KeyedPacket, hash: u64) -> Option<Met> {
        let slab = &self.slab;
        let filed = self.index.find(hash as u32, |filed| slab.names(filed, packet))?;
        let slot = filed & !SECOND;
        let direction = match filed == slot {
            true => slab[slot].head.direction(packet.sender),
            false => Direction::Reply,
        };
        Some(Met { slot, direction })
    }

    /// Takes one more packet of a connection.
    #[inline(never)]
    fn advance(
        &mut self,
        Met { slot, direction }: Met,
        packet: &TrackedPacket<'_>,
        context: &mut Context<'_>,
    ) -> Tracked {
        if !self.learn(slot, context) {
            return self.open_in_place_of(slot, packet, context);
        }
        let policy = self.slab.policy(slot).copied();
        let Entry { head, body } = &mut self.slab[slot];
        let before = Before {
            direction,
            seen_reply: head.status.has(Status::SEEN_REPLY),
            assured: head.status.has(Status::ASSURED),
        };
        let replied = before.seen_reply || before.direction == Direction::Reply;
        let class = if replied {
            Class::Established
        } else if head.status.has(Status::EXPECTED) {
            Class::Related
        } else {
            Class::New
        };
        let tracked = Tracked::of_connection(class, before.direction, head);
        if class == Class::New && !packet.may_open {
            return tracked.dropped(DropReason::NewRefused);
        }
        match advance_or_start_over(body, policy.as_ref(), packet, before, context) {
            Step::Accept { timeout, assure, changed } => {
                let old = head.status;
                head.status.set(Status::when(replied, Status::SEEN_REPLY));
                head.status.set(Status::when(assure, Status::ASSURED));
                let news = changed || head.status != old;
                head.deadline = deadline(context.now, timeout);
                if let State::Tunnel(part) = &body.state {
                    part.tell(head);
                }
                self.refile(slot);
                if old.has(Status::ACCOUNTED) {
                    self.account(slot, packet, before.direction);
                }
                if news {
                    self.rank(slot, context);
                    report(&self.slab, slot, EventKind::Update, context);
                }
                tracked.at(slot, &self.slab[slot].head)
            }
            Step::Pass => {
                if replied && !before.seen_reply {
                    head.status.set(Status::SEEN_REPLY);
                    self.rank(slot, context);
                    report(&self.slab, slot, EventKind::Update, context);
                }
                tracked.at(slot, &self.slab[slot].head)
            }
            Step::End => {
                if head.status.has(Status::ACCOUNTED) {
                    self.account(slot, packet, before.direction);
                }
                self.parting = self.halves(slot, direction);
                self.parting_zones = self.zones_of(slot);
                self.close(slot, context);
                tracked
            }
            Step::Reopen => self.open_in_place_of(slot, packet, context),
            Step::Invalid { why, cap } => {
                if let Some(cap) = cap {
                    head.deadline = head.deadline.min(deadline(context.now, cap));
                    self.refile(slot);
                }
                invalid(why, context)
            }
        }
    }

    /// Opens a connection with its first packet, in the place of one that has ended.
    fn open_in_place_of(
        &mut self,
        slot: u32,
        packet: &TrackedPacket<'_>,
        context: &mut Context<'_>,
    ) -> Tracked {
        self.close(slot, context);
        // The packet replaces a connection, so it is no part of a flood.
        self.open(&TrackedPacket { screening: Screening::Off, ..*packet }, context)
    }

    /// Handles a packet without a connection, which may open one.
    #[cold]
    #[inline(never)]
    fn open(&mut self, packet: &TrackedPacket<'_>, context: &mut Context<'_>) -> Tracked {
        if packet.keyed.key.is_tunnel()
            && let Some(tracked) = self.join(packet, context)
        {
            return tracked;
        }
        if let Some(zones) = packet.zones
            && zones.original != packet.keyed.key.zone
        {
            // The connection that it replied to has gone.
            let (keyed, hash) = packet.keyed.moved(packet.hash, zones.original);
            return self.track(&TrackedPacket { keyed: &keyed, hash, ..*packet }, context);
        }
        if packet.screening == Screening::Ask
            && let Transport::Tcp(tcp) = packet.network.transport
            && syn_proxy::screens(tcp.flags)
        {
            return Tracked::refused(Why::SynProxy { proxy: None });
        }
        if packet.keyed.key.is_of_calls() {
            return self.track_call(packet, context);
        }
        let opened = match State::open(&Input::of(packet, context)) {
            Ok(opened) => opened,
            Err(why) => return invalid(why, context),
        };
        let now = context.now;
        let (expectations, mut listener) = context.expecting();
        let expected = expectations.claim(packet.keyed, now, &mut listener);
        if expected.is_none() && !packet.may_open {
            return Tracked::refused(DropReason::NewRefused);
        }
        self.enlist(packet, opened, expected, context)
    }

    /// Adds a connection with its first packet, if there is room.
    fn enlist(
        &mut self,
        packet: &TrackedPacket<'_>,
        (state, timeout): (State, u32),
        expected: Option<Claim>,
        context: &mut Context<'_>,
    ) -> Tracked {
        let hash = packet.hash as u32;
        let admitted = match self.admit(packet, context) {
            Ok(admitted) => admitted,
            Err(reason) => {
                release(expected.as_ref(), context);
                return Tracked::refused(reason);
            }
        };
        let mut entry = Entry::open(packet.keyed.key, hash, packet.keyed.sender, state);
        entry.body.map_epoch = packet.map_epoch;
        entry.head.deadline = deadline(context.now, timeout);
        entry.head.note_filed(entry.head.deadline);
        let keeps = keeps(context);
        entry.head.status.set(admitted.with(Status::FRESH).with(keeps));
        let Some(slot) = self.put(entry, packet.screening, context) else {
            release(expected.as_ref(), context);
            return Tracked::refused(DropReason::TableFull);
        };
        if let Some(zones) = packet.zones {
            self.part(slot, zones, packet.hash, context.now);
        }
        if keeps != Status::NONE {
            self.slab.begin_side(slot, context.now);
            self.account(slot, packet, Direction::Original);
        }
        let class = self.welcome(slot, packet, expected, context);
        let head = &self.slab[slot].head;
        Tracked::of_connection(class, Direction::Original, head).at(slot, head)
    }

    /// Adds an admitted entry to slab, index and wheel; `None` if the index has no place for
    /// it.
    fn put(
        &mut self,
        entry: Entry,
        screening: Screening,
        context: &mut Context<'_>,
    ) -> Option<u32> {
        let (hash, deadline) = (entry.head.hash, entry.head.deadline);
        let slot = self.slab.insert(entry);
        self.enter(slot, screening, context);
        let slab = &self.slab;
        if self.index.insert(hash, slot, |filed| slab.hash_of(filed)).is_err() {
            self.room.leave(slot, &self.slab[slot].head, context.limits);
            self.slab.remove(slot);
            context.counters.chaintoolong += 1;
            return None;
        }
        self.wheel.insert(slot, deadline);
        Some(slot)
    }

    /// Finds the connection of an ICMP error: it belongs to the flow that it quotes, and goes
    /// to the sender of the quoted packet. It changes nothing.
    fn relate(&mut self, packet: &TrackedPacket<'_>, context: &mut Context<'_>) -> Tracked {
        let sender = packet.keyed.sender;
        // It travels in the direction of an answer to the quoted packet.
        let answer = KeyedPacket { sender: sender.opposite(), ..*packet.keyed };
        let found = match packet.zones {
            None => self.find(&answer, packet.hash, context),
            Some(zones) => self.find_in(zones, &answer, packet.hash, context),
        };
        let found = found.filter(|met| self.learn(met.slot, context));
        let found = found.or_else(|| self.quoted_call(packet, &answer, context));
        let related = match found {
            Some(met) => {
                let head = &self.slab[met.slot].head;
                let related = Tracked::of_connection(Class::Related, met.direction, head);
                Some(related.at(met.slot, head))
            }
            None => self.relate_to_tunnel(&answer, context),
        };
        let Some(related) = related else {
            context.counters.error += 1;
            return invalid(DropReason::IcmpErrorUnknown.into(), context);
        };
        if packet.keyed.key.endpoint(sender).address != packet.network.destination {
            context.counters.error += 1;
            return invalid(DropReason::IcmpErrorDirection.into(), context);
        }
        related
    }

    fn account(&mut self, slot: u32, packet: &TrackedPacket<'_>, direction: Direction) {
        let Some(side) = self.slab.side_mut(slot) else { return };
        let counts = &mut side.counts[direction.index()];
        let (packets, bytes) = packet.on_the_wire();
        counts.packets += packets;
        counts.bytes += bytes;
    }

    /// Files a deadline anew that is now before the time at which the wheel would look. The
    /// wheel finds later deadlines by itself.
    #[inline]
    fn refile(&mut self, slot: u32) {
        let head = &mut self.slab[slot].head;
        if head.is_filed_late() {
            head.note_filed(head.deadline);
            self.wheel.insert(slot, head.deadline);
        }
    }

    fn close(&mut self, slot: u32, context: &mut Context<'_>) {
        self.wheel.remove(slot);
        retire(&mut self.index, &mut self.slab, &mut self.room, slot, context);
    }
}

/// The connection of a packet, and the direction of the packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Met {
    slot: u32,
    direction: Direction,
}

/// Takes a packet of a connection. If it does not fit, but the connection may have continued in
/// another zone, the tracker may start over with it.
#[inline]
fn advance_or_start_over(
    body: &mut Body,
    policy: Option<&TimeoutPolicy>,
    packet: &TrackedPacket<'_>,
    before: Before,
    context: &Context<'_>,
) -> Step {
    let input = Input { policy, ..Input::of(packet, context) };
    let mut step = body.state.advance(&input, before);
    if body.is_behind(packet.map_epoch) {
        if matches!(step, Step::Invalid { .. }) {
            step = body.state.start_over(&input, before.direction).unwrap_or(step);
        }
        if matches!(step, Step::Accept { .. }) {
            body.map_epoch = packet.map_epoch;
        }
    }
    step
}

/// Ends a connection that is no longer in the wheel.
fn retire(
    index: &mut SlotIndex,
    slab: &mut Slab,
    room: &mut Room,
    slot: u32,
    context: &mut Context<'_>,
) {
    if leave(slab, slot, context) {
        report(slab, slot, EventKind::Destroy, context);
    }
    if slab[slot].head.status.has(Status::FRESH) {
        release(slab.take_claim(slot).as_ref(), context);
    }
    let head = &slab[slot].head;
    if head.status.has(Status::WATCHED) {
        let now = context.now;
        let (expectations, mut listener) = context.expecting();
        expectations.forget(&head.key, now, &mut listener);
    }
    let was_fresh = head.status.has(Status::FRESH);
    if head.status.has(Status::CALL) && !was_fresh {
        context.expectations.call_has_ended(&head.key);
    }
    let removed = index.remove(head.hash, slot);
    debug_assert!(removed, "a live entry is in the index");
    if let Some(translation) = slab.translation(slot) {
        index.remove(translation.hash, slot | SECOND);
        let head = &slab[slot].head;
        let original = KeyedPacket { key: head.key, sender: head.originator() };
        if let Some(pool) = translation.pool {
            context.limits.holdings.leave(&Stake::of(pool, original));
        }
        // Nobody has heard of a withdrawn connection, and its replies may belong to another.
        // Replies to a tunnel find it without an alias.
        if let Some(ended) = &mut context.ended
            && !was_fresh
            && !slab[slot].head.key.is_tunnel()
        {
            let (reply, reply_hash) = (translation.reply(), translation.hash);
            ended.push(Ended { original, reply, reply_hash });
        }
    }
    room.leave(slot, &slab[slot].head, context.limits);
    slab.remove(slot);
    context.counters.delete += u64::from(!was_fresh);
}

/// Reports an event to the listener, unless the connection is not confirmed.
fn report(slab: &Slab, slot: u32, kind: EventKind, context: &mut Context<'_>) {
    if let Some(events) = &mut context.events
        && context.settings.events
        && !slab[slot].head.status.has(Status::FRESH)
    {
        let connection = Connection::of(slab, slot, context.now);
        events.event(Event { kind, connection });
    }
}

/// The flags of the facts that a new connection keeps in the side array.
fn keeps(context: &Context<'_>) -> Status {
    let Settings { accounting, timestamps, .. } = *context.settings;
    let counts = Status::when(accounting, Status::ACCOUNTED);
    counts.with(Status::when(timestamps, Status::STAMPED))
}

fn invalid(why: Why, context: &mut Context<'_>) -> Tracked {
    context.counters.invalid += 1;
    Tracked::invalid(why)
}

fn deadline(now: Timestamp, timeout_s: u32) -> Timestamp {
    Timestamp::from_nanos(now.as_nanos().saturating_add(u64::from(timeout_s) * 1_000_000_000))
}

#[cfg(test)]
#[path = "table_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "table_model_tests.rs"]
mod model_tests;
