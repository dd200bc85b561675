//! Opening of connections by their first packet.

use flow::DropReason;
use wire::Transport;

use super::entry::Entry;
use super::inspection::release;
use super::{Table, deadline, input_of, invalid};
use crate::capacity::Shortage;
use crate::connection::Status;
use crate::expect::Claim;
use crate::proto::State;
use crate::syn_proxy::{Screening, screens};
use crate::{Context, Direction, Settings, Tracked, TrackedPacket};

impl Table {
    /// Opens a connection with its first packet, in the place of one that has ended.
    pub(super) fn open_in_place_of(
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
    pub(super) fn open(
        &mut self,
        packet: &TrackedPacket<'_>,
        context: &mut Context<'_>,
    ) -> Tracked {
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
            && screens(tcp.flags)
        {
            return Tracked::to_screen();
        }
        if packet.keyed.key.is_of_calls() {
            return self.track_call(packet, context);
        }
        let opened = match State::open(&input_of(packet, context)) {
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
    pub(super) fn enlist(
        &mut self,
        packet: &TrackedPacket<'_>,
        (state, timeout): (State, u32),
        expected: Option<Box<Claim>>,
        context: &mut Context<'_>,
    ) -> Tracked {
        let hash = packet.hash as u32;
        let admitted = match self.admit(packet, context) {
            Ok(admitted) => admitted,
            Err(shortage) => {
                release(expected.as_deref(), context);
                return Tracked::no_room(shortage);
            }
        };
        let mut entry = Entry::open(packet.keyed.key, hash, packet.keyed.sender, state);
        entry.body.map_epoch = packet.map_epoch;
        entry.head.deadline = deadline(context.now, timeout);
        entry.head.note_filed(entry.head.deadline);
        let keeps = keeps(context);
        entry.head.status.set(admitted.with(Status::FRESH).with(keeps));
        let Some(slot) = self.put(entry, packet.screening, context) else {
            release(expected.as_deref(), context);
            return Tracked::no_room(Shortage::Table);
        };
        self.opened = (slot, packet.hash);
        if let Some(zones) = packet.zones {
            self.part(slot, zones, packet.hash, context.now);
        }
        if keeps != Status::NONE {
            self.slab.begin_side(slot, context.now);
            self.account(slot, packet, Direction::Original);
        }
        let class = self.assign_helper(slot, packet, expected, context);
        let head = &self.slab[slot].head;
        Tracked::of_connection(class, Direction::Original, head).at(slot, head)
    }

    /// Adds an admitted entry to slab, index and wheel; `None` if the index has no place for
    /// it.
    pub(super) fn put(
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
            self.occupancy.leave(slot, &self.slab[slot].head, context.limits);
            self.slab.remove(slot);
            context.counters.chaintoolong += 1;
            return None;
        }
        self.wheel.insert(slot, deadline);
        Some(slot)
    }
}

/// The flags of the facts that a new connection keeps in the side array.
pub(super) fn keeps(context: &Context<'_>) -> Status {
    let Settings { accounting, timestamps, .. } = *context.settings;
    let counts = Status::when(accounting, Status::ACCOUNTED);
    counts.with(Status::when(timestamps, Status::STAMPED))
}
