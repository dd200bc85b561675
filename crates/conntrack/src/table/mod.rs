//! The connections of one bucket.

mod admin;
mod admission;
mod amendment;
mod announcement_records;
mod calls;
mod catching_up;
mod confirmation;
mod entry;
mod established;
mod expected_translation;
mod fast_path;
mod inside;
mod inspection;
mod opening;
mod packet;
mod planted;
mod port_eviction;
mod records;
mod replication;
mod resteering;
mod rule_actions;
mod slab;
mod snapshot;
mod syn_proxy;
mod translation;
mod tunnels;
mod zones;

use flow::{Class, DropReason, KeyedPacket, Prefetch, SlotIndex, TimerWheel, Timestamp};
use wire::Transport;
use wire::checksum::verify_transport;

use self::entry::Entry;
use self::inspection::release;
use self::packet::{Detached, is_fragment};
use self::replication::note_end;
use self::slab::{SECOND, Slab};
use self::tunnels::leave;
use crate::capacity::Occupancy;
use crate::connection::Status;
use crate::expect::COPY_KEPT;
use crate::proto::{Before, Input, State, Step};
use crate::{Connection, Direction, Event, EventKind, Settings, TrackingCause};

pub use self::admin::{Action, CHOSEN_COST, Changes, Cursor};
pub use self::calls::CALLS_OF_A_PAIR;
pub use self::inside::{Inside, Passage};
pub use self::packet::{
    Checksum, ConnectionId, Context, Ended, Guess, Tracked, TrackedPacket, Verdict,
    class_without_flow,
};
pub use self::port_eviction::Claimant;
pub use self::records::{Imported, Importing};
pub use self::replication::Owner;
pub use self::translation::{Again, NextSource, Reached};

/// The connections of one bucket. It belongs to one worker at a time and can be given to
/// another as a whole.
///
/// Connections hold units of the limits in the [`Context`]. So the worker that gives the table
/// away calls [`Table::count_out`], its new owner calls [`Table::count_in`], and a worker that
/// drops a table flushes it first.
#[derive(Debug)]
pub struct Table {
    index: SlotIndex,
    slab: Slab,
    wheel: TimerWheel,
    occupancy: Occupancy,
    /// The slot of the connection that was opened last, with the hash of its key.
    opened: (u32, u64),
}

impl Table {
    /// An empty table.
    pub fn new(now: Timestamp) -> Self {
        Self {
            index: SlotIndex::new(),
            slab: Slab::new(),
            wheel: TimerWheel::new(now),
            occupancy: Occupancy::default(),
            opened: (u32::MAX, 0),
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
            + self.occupancy.memory_bytes()
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
                self.slab.forwardings.prefetch(filed & !SECOND, prefetch);
                Some(&self.slab[filed & !SECOND])
            }
            // In a full table a new connection takes the place of the one that it evicts.
            None => match self.occupancy.prefetch_victim(prefetch) {
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
            return self.track_error(packet, context);
        }
        let found = match packet.zones {
            None => match self.guessed(packet.guess, packet.keyed) {
                Some(hit) => self.if_live(hit, context),
                None => self.find(packet.keyed, packet.hash, context),
            },
            Some(zones) => self.find_in(zones, packet.keyed, packet.hash, context),
        };
        match found {
            Some(hit) => match self.track_established(hit, packet, context) {
                Some(tracked) => tracked,
                None => self.advance(hit, packet, context),
            },
            None => self.open(packet, context),
        }
    }

    /// Returns the memory of expired connections; looks at most at `budget` entries. Returns
    /// the number of entries that it looked at.
    pub fn expire(&mut self, budget: usize, context: &mut Context<'_>) -> usize {
        let Self { index, slab, wheel, occupancy, .. } = self;
        let looked_at = wheel.advance(context.now, budget, |slot| {
            let entry = &mut slab[slot];
            let is_over = match context.settings.faults.expires_copies() {
                true => entry.head.is_expired(context.now),
                false => entry.is_over(context.now),
            };
            if is_over {
                retire(index, slab, occupancy, slot, context);
                return None;
            }
            let head = &mut entry.head;
            if head.is_expired(context.now) {
                head.deadline = context.now.after(COPY_KEPT);
            }
            head.note_filed(head.deadline);
            Some(head.deadline)
        });
        // Most tables are empty most of the time, and then there is nothing to give back.
        if slab.slots() > 0 {
            index.shrink(|filed| slab.hash_of(filed));
            slab.shrink();
            occupancy.shrink();
        }
        looked_at
    }

    /// The guessed connection, if it is that of the packet. It may have expired.
    #[inline]
    fn guessed(&self, Guess(filed): Guess, packet: &KeyedPacket) -> Option<Hit> {
        let KeyedPacket { key, sender } = packet;
        if filed & SECOND != 0 {
            // This also covers a packet without a guess: no connection has that number.
            let is_reply = self.slab.second(filed)?.reply() == *packet;
            return is_reply.then_some(Hit { slot: filed & !SECOND, direction: Direction::Reply });
        }
        let head = &self.slab.live(filed)?.head;
        (head.key == *key && head.admits(*sender))
            .then(|| Hit { slot: filed, direction: head.direction(*sender) })
    }

    /// The connection of a packet if it is live. An expired one ends here.
    #[inline]
    fn find(&mut self, packet: &KeyedPacket, hash: u64, context: &mut Context<'_>) -> Option<Hit> {
        let hit = self.look_up(packet, hash)?;
        self.if_live(hit, context)
    }

    #[inline]
    fn if_live(&mut self, hit: Hit, context: &mut Context<'_>) -> Option<Hit> {
        if self.slab[hit.slot].is_over(context.now) {
            self.close(hit.slot, context);
            return None;
        }
        context.counters.found += 1;
        Some(hit)
    }

    /// The connection of a packet, which may have expired.
    #[inline]
    fn look_up(&self, packet: &KeyedPacket, hash: u64) -> Option<Hit> {
        let slab = &self.slab;
        let filed = self.index.find(hash as u32, |filed| slab.names(filed, packet))?;
        let slot = filed & !SECOND;
        let direction = match filed == slot {
            true => slab[slot].head.direction(packet.sender),
            false => Direction::Reply,
        };
        Some(Hit { slot, direction })
    }

    /// Takes one more packet of a connection.
    #[inline(never)]
    fn advance(
        &mut self,
        Hit { slot, direction }: Hit,
        packet: &TrackedPacket<'_>,
        context: &mut Context<'_>,
    ) -> Tracked {
        if !self.learn(slot, context) {
            return self.open_in_place_of(slot, packet, context);
        }
        let policy = self.slab.policy(slot).copied();
        let head = &self.slab[slot].head;
        let status = head.status;
        let (seen_reply, assured) = (status.has(Status::SEEN_REPLY), status.has(Status::ASSURED));
        let before = Before { direction, seen_reply, assured };
        let replied = before.seen_reply || direction == Direction::Reply;
        let class = class_of(replied, status);
        let tracked = Tracked::of_connection(class, before.direction, head);
        if class == Class::New && !packet.may_open {
            return tracked.dropped(DropReason::NewRefused);
        }
        let was_open = status.has(Status::HAS_HELPER) && !self.slab[slot].body.state.is_opening();
        let step = self.step(slot, policy.as_ref(), packet, before, context);
        let Entry { head, body } = &mut self.slab[slot];
        match step {
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
                    if was_open {
                        self.forget_if_opened_anew(slot, packet, direction);
                    }
                    self.count_no_more(slot);
                    self.rank(slot, context);
                    self.report_change(slot, context);
                } else {
                    self.note_refresh(slot, context);
                }
                tracked.at(slot, &self.slab[slot].head)
            }
            Step::Pass => {
                if replied && !before.seen_reply {
                    head.status.set(Status::SEEN_REPLY);
                    self.rank(slot, context);
                    self.report_change(slot, context);
                }
                tracked.at(slot, &self.slab[slot].head)
            }
            Step::Hold { at_least } => {
                head.deadline = head.deadline.max(deadline(context.now, at_least));
                self.hold(slot, packet, before, context);
                tracked.at(slot, &self.slab[slot].head)
            }
            Step::End => Tracked {
                detached: Some(self.end_with(slot, packet, direction, context)),
                ..tracked
            },
            Step::Reopen => self.open_in_place_of(slot, packet, context),
            Step::Invalid { why, cap } => {
                if let Some(cap) = cap {
                    head.deadline = head.deadline.min(deadline(context.now, cap));
                    self.refile(slot);
                    self.note_change(slot, context);
                }
                invalid(why, context)
            }
        }
    }

    /// Counts a packet that passes while the numbers of its connection are learnt.
    fn hold(
        &mut self,
        slot: u32,
        packet: &TrackedPacket<'_>,
        before: Before,
        context: &mut Context<'_>,
    ) {
        let status = &mut self.slab[slot].head.status;
        let is_first_reply = before.direction == Direction::Reply && !before.seen_reply;
        status.set(Status::when(is_first_reply, Status::SEEN_REPLY));
        if status.has(Status::ACCOUNTED) {
            self.account(slot, packet, before.direction);
        }
        if is_first_reply {
            self.rank(slot, context);
            self.report_change(slot, context);
        } else {
            self.note_refresh(slot, context);
        }
    }

    /// Ends a connection with its last packet.
    fn end_with(
        &mut self,
        slot: u32,
        packet: &TrackedPacket<'_>,
        direction: Direction,
        context: &mut Context<'_>,
    ) -> Detached {
        if self.slab[slot].head.status.has(Status::ACCOUNTED) {
            self.account(slot, packet, direction);
        }
        let address_changes = self.address_changes(slot, direction);
        let detached = Detached { address_changes, zones: self.zones_of(slot) };
        self.close(slot, context);
        detached
    }

    /// Finds the connection of an ICMP error: it belongs to the flow that it quotes, and goes
    /// to the sender of the quoted packet. It changes nothing.
    fn track_error(&mut self, packet: &TrackedPacket<'_>, context: &mut Context<'_>) -> Tracked {
        let sender = packet.keyed.sender;
        // It travels in the direction of an answer to the quoted packet.
        let answer = KeyedPacket { sender: sender.opposite(), ..*packet.keyed };
        let found = match packet.zones {
            None => self.find(&answer, packet.hash, context),
            Some(zones) => self.find_in(zones, &answer, packet.hash, context),
        };
        let found = found.filter(|hit| self.learn(hit.slot, context));
        let found = found.or_else(|| self.quoted_call(packet, &answer, context));
        let related = match found {
            Some(hit) => {
                let head = &self.slab[hit.slot].head;
                let related = Tracked::of_connection(Class::Related, hit.direction, head);
                Some(related.at(hit.slot, head))
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
        retire(&mut self.index, &mut self.slab, &mut self.occupancy, slot, context);
    }
}

/// The connection of a packet, and the direction of the packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Hit {
    slot: u32,
    direction: Direction,
}

/// The class of a packet of a connection, of which a reply was seen or is this packet.
const fn class_of(replied: bool, status: Status) -> Class {
    match (replied, status.has(Status::EXPECTED)) {
        (true, _) => Class::Established,
        (false, true) => Class::Related,
        (false, false) => Class::New,
    }
}

/// A packet as input of its tracker.
#[inline]
fn input_of<'a>(packet: &'a TrackedPacket<'_>, context: &'a Context<'_>) -> Input<'a> {
    let Settings { timeouts, tcp, dccp_loose, .. } = context.settings;
    Input {
        now: context.now,
        network: packet.network,
        frame: packet.frame,
        timeouts,
        tcp,
        dccp_loose: *dccp_loose,
        policy: None,
    }
}

/// Ends a connection that is no longer in the wheel.
fn retire(
    index: &mut SlotIndex,
    slab: &mut Slab,
    occupancy: &mut Occupancy,
    slot: u32,
    context: &mut Context<'_>,
) {
    let has_ended = leave(slab, slot, context);
    if has_ended {
        report(slab, slot, EventKind::Destroy, context);
    }
    let was_fresh = slab[slot].head.status.has(Status::FRESH);
    match was_fresh {
        true => release(slab.take_claim(slot).as_deref(), context),
        false if has_ended => note_end(slab, slot, context),
        false => {}
    }
    let head = &slab[slot].head;
    if head.status.has(Status::HAS_HELPER) {
        let now = context.now;
        let (expectations, mut listener) = context.expecting();
        expectations.forget(&head.key, now, &mut listener);
    }
    if head.status.has(Status::CALL) && !was_fresh {
        context.expectations.call_has_ended(&head.key);
    }
    let removed = index.remove(head.hash, slot);
    debug_assert!(removed, "a live entry is in the index");
    if let Some(translation) = slab.translation(slot) {
        index.remove(translation.hash, slot | SECOND);
        let head = &slab[slot].head;
        let original = KeyedPacket { key: head.key, sender: head.originator() };
        context.limits.give_port_back(original, translation);
    }
    // Nobody has heard of a withdrawn connection, and its replies may belong to another. Replies to
    // a tunnel find it without an alias.
    let resteered_in = slab.resteered_in;
    let may_have_alias = slab.translation(slot).is_some_and(|it| it.may_have_alias);
    if (may_have_alias || resteered_in.is_some())
        && let Some(ended) = &mut context.ended
        && !was_fresh
        && !slab[slot].head.key.is_tunnel()
    {
        ended.push(Ended { flows: slab.flows(slot), resteered_in });
    }
    occupancy.leave(slot, &slab[slot].head, context.limits);
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

fn invalid(why: TrackingCause, context: &mut Context<'_>) -> Tracked {
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
#[path = "model_tests.rs"]
mod model_tests;
