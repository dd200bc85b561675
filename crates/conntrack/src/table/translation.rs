//! Connections whose packets leave with other addresses or ports than they came with.
//!
//! Such a connection has two keys: that of its originator's packets, under which every
//! connection is filed, and that of its replies. Each of them is the key of one direction only,
//! so a packet with the first key that comes from the other end belongs to another connection.
//! The second key is stored beside the entries, and the index contains the slot twice.

use std::net::IpAddr;

use flow::{DropReason, Endpoint, KeyedPacket, Prefetch};
use wire::{TransportAddress, mapped};

use super::port_eviction::{Claimant, reply_to};
use super::slab::SECOND;
use super::{Cursor, Table, report};
use crate::nat::Translation;
use crate::nat::{
    AddressChanges, Candidates, Ends, Pool, PortChange, Request, Subject, Supply, TranslatedEnd,
};
use crate::{ConnectionId, Context, Direction, EventKind, Tracked};

/// Most ports of a range that are tried for a new destination. A free one is no guarantee,
/// because the source is chosen later.
const DESTINATION_TRIES: usize = 128;
/// Most sources that are tried before a connection is refused: each try is a look-up, and other
/// packets wait. They are all ports of a bucket if there are 32 buckets or more.
const SOURCE_TRIES: usize = 2048;

/// The new source of a connection that was translated again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Again {
    /// Key and sender of its replies now.
    pub reply: KeyedPacket,
    /// The source.
    pub source: TransportAddress,
    /// The position from which the search can continue.
    pub reached: Reached,
    /// The claimant of this source, if other connections may be evicted for it.
    pub claimant: Option<Claimant>,
}

/// The result of one step of a search for another source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextSource {
    /// The connection has this source now.
    Found(Again),
    /// The request allows no other source that is free or can be made free.
    UsedUp,
    /// The connection can have no other source: it has ended, it must keep its address, or the
    /// index has no place for it.
    Refused,
}

/// The progress of a search for another source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reached {
    /// Number of candidates that were tried.
    pub tried: usize,
    /// True if no candidate was free, so that other connections are evicted.
    pub may_evict: bool,
}

impl Table {
    /// Chooses a new source or destination for a connection whose first packet is being judged:
    /// first the destination, if a rule changes it, then the source. Between the two
    /// [`Table::translation`] returns the new destination already, for routing.
    ///
    /// After the last rule the caller must call [`Table::make_reply_unique`], unless a rule has changed
    /// the source.
    ///
    /// # Errors
    /// [`DropReason::PortPoolFull`] if each port that the request allows is in use
    /// towards this destination, or 2048 of them in a row, and no connection can be evicted;
    /// [`DropReason::NatSourceLimit`] if the originator has its share of them
    /// ([`Settings::nat_source_share`](crate::Settings)); [`DropReason::NatClash`] for a
    /// protocol without ports whose replies would look like those of another connection;
    /// [`DropReason::TableFull`] if the index has no place. Then the packet has to be dropped
    /// and its connection withdrawn.
    pub fn translate(
        &mut self,
        ConnectionId(slot): ConnectionId,
        request: &Request,
        supply: Supply<'_>,
        context: &mut Context<'_>,
    ) -> Result<(), DropReason> {
        let original = self.original(slot);
        self.take_back(slot, context);
        let leaves = self.leaves_as(slot);
        let ends = Ends::of(&leaves.key, leaves.sender);
        // As `Self::outside` has it.
        let outside = original.in_zone(leaves.key.zone);
        let known_port = self.known_port(slot, request, context);
        let subject = Subject { key: original.key, hash: self.whole_hash(slot), ends, known_port };
        let mut wanted = Candidates::new(0, request, &subject, supply);
        if request.end == TranslatedEnd::Source {
            let (mut free, mut announced) = (None, None);
            for (_, ends) in wanted.take(SOURCE_TRIES) {
                let leaves_as = ends.keyed(&outside);
                let Some(hash) = self.free(slot, &leaves_as, supply, context) else { continue };
                // A source takes the port that a helper has announced for another only if there is
                // no other port.
                let is_own = ends.source == subject.ends.source;
                if is_own || !context.expectations.may_expect(&reply_to(leaves_as)) {
                    free = Some((leaves_as, hash));
                    break;
                }
                announced.get_or_insert((leaves_as, hash));
            }
            let free = free.or(announced);
            let (granted, pool) = self.grant(slot, request, free, supply, context)?;
            return self.file(slot, granted, (request.interface, pool), context);
        }
        let first = wanted.next().map_or(ends, |(_, ends)| ends);
        let wanted = wanted.map(|(_, ends)| ends);
        let tries = std::iter::once(first).chain(wanted).take(DESTINATION_TRIES);
        let mut free = tries.map(|ends| ends.keyed(&outside)).filter_map(|leaves_as| {
            let hash = self.free(slot, &leaves_as, supply, context)?;
            Some((leaves_as, hash))
        });
        // The choice of the source may still make the replies unique.
        let (leaves_as, hash) = free.next().unwrap_or_else(|| {
            let leaves_as = first.keyed(&outside);
            (leaves_as, (supply.hash)(&leaves_as.key) as u32)
        });
        let interface = request.interface;
        let translation = Translation::new(leaves_as, hash, interface, context.now);
        self.slab.set_translation(slot, Some(translation));
        Ok(())
    }

    /// Gives a new connection another source, because its replies would look like those of a
    /// connection of another bucket. It tries the sources that `request` allows, behind those
    /// tried before, and takes the first free one. If there is none, it evicts a connection for
    /// the first source for which it can. `packet` is one of the originator's packets. The
    /// first such call reports the end of the connection, also if it fails; the caller reports
    /// the connection anew with [`Table::tell_again`] when the search is over.
    pub fn translate_again(
        &mut self,
        (packet, packet_hash): (&KeyedPacket, u64),
        request: &Request,
        reached: Reached,
        supply: Supply<'_>,
        context: &mut Context<'_>,
    ) -> NextSource {
        let Some(slot) = self.slot_of_packet(packet, packet_hash) else {
            return NextSource::Refused;
        };
        let (original, leaves) = (self.original(slot), self.leaves_as(slot));
        if reached == Reached::default() {
            report(&self.slab, slot, EventKind::Destroy, context);
        }
        let source = Ends::of(&original.key, original.sender).source;
        let leaves_from = Ends::of(&leaves.key, leaves.sender).source;
        if request.addresses.is_none() && leaves_from.address != source.address {
            // The other end has learned its present address.
            count_refused(context);
            return NextSource::Refused;
        }
        self.take_back(slot, context);
        let ends = Ends { source, ..Ends::of(&leaves.key, leaves.sender) };
        let mut found = self.next_source(slot, request, ends, reached, supply, context);
        if found.is_none() && !reached.may_evict {
            let again = Reached { tried: 0, may_evict: true };
            found = self.next_source(slot, request, ends, again, supply, context);
        }
        let Some((reached, source, free)) = found else {
            // The index no longer contains its second key.
            self.slab.set_translation(slot, None);
            count_refused(context);
            return NextSource::UsedUp;
        };
        let pool = self.pool(slot, request, &free.0, supply, context);
        let claimant = pool.filter(|_| reached.may_evict);
        let claimant = claimant.map(|pool| self.claimant(slot, pool, context));
        if self.file(slot, free, (request.interface, pool), context).is_err() {
            return NextSource::Refused;
        }
        let source = TransportAddress { address: source.address, port: source.port };
        let reply = self.reply(ConnectionId(slot));
        NextSource::Found(Again { reply, source, reached, claimant })
    }

    /// The next source for a connection with these ends: a free one, or one for which another
    /// connection was evicted.
    fn next_source(
        &mut self,
        slot: u32,
        request: &Request,
        ends: Ends,
        Reached { tried, may_evict }: Reached,
        supply: Supply<'_>,
        context: &mut Context<'_>,
    ) -> Option<(Reached, Endpoint, (KeyedPacket, u32))> {
        let (original, outside) = (self.original(slot), self.outside(slot));
        let known_port = self.known_port(slot, request, context);
        let subject = Subject { key: original.key, hash: None, ends, known_port };
        let wanted = Candidates::new(tried, request, &subject, supply);
        wanted.take(SOURCE_TRIES).find_map(|(tried, ends)| {
            let leaves_as = ends.keyed(&outside);
            let hash = self.free(slot, &leaves_as, supply, context);
            let got = match hash {
                None if may_evict => {
                    self.evict_owner_of(slot, request, leaves_as, supply, context)?
                }
                hash => (leaves_as, hash?),
            };
            Some((Reached { tried, may_evict }, ends.source, got))
        })
    }

    /// Reports a connection that was translated again, as a new one.
    pub fn tell_again(&mut self, packet: &KeyedPacket, hash: u64, context: &mut Context<'_>) {
        if let Some(slot) = self.slot_of_packet(packet, hash) {
            report(&self.slab, slot, EventKind::New, context);
            self.note_change(slot, context);
        }
    }

    /// Makes sure that the replies of a new connection are unique if no rule has changed its
    /// source: they might look like those of a translated connection. Then it gets another
    /// source port, as with the kernel.
    ///
    /// # Errors
    /// The errors of [`Table::translate`].
    pub fn make_reply_unique(
        &mut self,
        id: ConnectionId,
        supply: Supply<'_>,
        context: &mut Context<'_>,
    ) -> Result<(), DropReason> {
        let ConnectionId(slot) = id;
        if !self.slab.has_translated() {
            return Ok(());
        }
        self.take_back(slot, context);
        let translation = self.slab.translation(slot);
        let interface = translation.and_then(|it| it.interface);
        let hash = translation.map_or(self.slab.hash_of(slot), |it| it.hash);
        let leaves_as = self.leaves_as(slot);
        match self.is_free(slot, &leaves_as, hash, context) {
            true => self.file(slot, (leaves_as, hash), (interface, None), context),
            false => self.translate(id, &Request::of(TranslatedEnd::Source), supply, context),
        }
    }

    /// The translation for a packet, also for one that has ended its connection and for an ICMP
    /// error. Costs one test of the tracking result if there is no translation.
    #[inline]
    pub fn translation(&self, tracked: &Tracked) -> AddressChanges {
        let Some(direction) = tracked.direction else { return AddressChanges::default() };
        match tracked.connection {
            // The connection may have got one after tracking.
            Some(ConnectionId(slot)) if tracked.fresh || tracked.is_translated() => {
                self.address_changes(slot, direction)
            }
            None if tracked.is_translated() => {
                tracked.detached.map_or_else(AddressChanges::default, |it| it.address_changes)
            }
            _ => AddressChanges::default(),
        }
    }

    /// Ends the masqueraded connections that use an address of an interface, or only those with
    /// `address`, because the address is gone and their replies go elsewhere. Looks at most at
    /// `budget` slots. Returns the number that it ended and the position to continue from,
    /// `None` at the end.
    pub fn end_masqueraded(
        &mut self,
        (interface, address): (u32, Option<IpAddr>),
        from: Cursor,
        budget: u32,
        context: &mut Context<'_>,
    ) -> (usize, Option<Cursor>) {
        if !self.slab.has_translated() {
            return (0, None);
        }
        let address = address.map(mapped);
        let end = from.0.saturating_add(budget).min(self.slab.slots());
        let before = self.len();
        for slot in from.0..end {
            let is_doomed = self.slab.translation(slot).is_some_and(|it| {
                let KeyedPacket { key, sender } = it.leaves_as;
                let is_it = |address| key.endpoint(sender).address == address;
                let of_interface = it.interface == Some(interface)
                    || context.settings.faults.ends_what_names_lost_addresses();
                of_interface && address.is_none_or(is_it)
            });
            // The peer may have the address.
            let is_doomed = is_doomed && !self.slab[slot].body.note.is_copy();
            if is_doomed {
                self.end_whole(slot, context);
            }
        }
        (before - self.len(), (end < self.slab.slots()).then_some(Cursor(end)))
    }

    /// Ends the masqueraded connection whose originator has sent a packet that leaves by this interface,
    /// if it uses an address of another one: replies would come there. True if it has ended. The kernel
    /// does the same, and drops the packet.
    pub fn end_masquerade_elsewhere(
        &mut self,
        tracked: &mut Tracked,
        interface: u32,
        context: &mut Context<'_>,
    ) -> bool {
        let Some(ConnectionId(slot)) = tracked.connection else { return false };
        let of = self.slab.translation(slot).and_then(|it| it.interface);
        let is_elsewhere = of.is_some_and(|it| it != interface)
            && tracked.direction == Some(Direction::Original)
            // The peer may have another interface.
            && !self.slab[slot].body.note.is_copy();
        if is_elsewhere {
            self.end_whole(slot, context);
            tracked.connection = None;
        }
        is_elsewhere
    }

    /// True if a connection of the table is translated.
    #[inline]
    pub const fn has_translated(&self) -> bool {
        self.slab.has_translated()
    }

    /// Key and sender of the replies to a connection. Their bucket may be another one; then an
    /// alias there has to lead to this one.
    pub fn reply(&self, ConnectionId(slot): ConnectionId) -> KeyedPacket {
        let KeyedPacket { key, sender } = self.leaves_as(slot);
        KeyedPacket { key, sender: sender.opposite() }
    }

    /// The same for the connection of a packet; `None` if there is none.
    pub fn reply_of(&self, packet: &KeyedPacket, hash: u64) -> Option<KeyedPacket> {
        Some(self.reply(ConnectionId(self.slot_of_packet(packet, hash)?)))
    }

    #[inline]
    pub(super) fn address_changes(&self, slot: u32, direction: Direction) -> AddressChanges {
        match self.slab.translation(slot) {
            Some(translation) => self.address_changes_of(slot, translation, direction),
            None => AddressChanges::default(),
        }
    }

    #[inline(never)]
    fn address_changes_of(
        &self,
        slot: u32,
        translation: &Translation,
        direction: Direction,
    ) -> AddressChanges {
        let (head, leaves) = (&self.slab[slot].head, &translation.leaves_as);
        let original = Ends::of(&head.key, head.originator());
        AddressChanges::between(&original, &Ends::of(&leaves.key, leaves.sender), direction)
    }

    /// Prefetches a translation.
    #[inline]
    pub(super) fn prefetch_translation(&self, slot: u32, prefetch: impl Prefetch) {
        if self.slab.has_translated()
            && let Some(translation) = self.slab.translation_to_come(slot)
        {
            prefetch.prefetch(translation);
        }
    }

    pub(super) fn original(&self, slot: u32) -> KeyedPacket {
        let head = &self.slab[slot].head;
        KeyedPacket { key: head.key, sender: head.originator() }
    }

    /// The whole hash of the key of a connection, if it was opened last.
    fn whole_hash(&self, slot: u32) -> Option<u64> {
        let (opened, hash) = self.opened;
        (opened == slot && hash as u32 == self.slab.hash_of(slot)).then_some(hash)
    }

    pub(super) fn leaves_as(&self, slot: u32) -> KeyedPacket {
        self.slab.translation(slot).map_or_else(|| self.original(slot), |it| it.leaves_as)
    }

    /// Removes the second key of a connection from the index.
    pub(super) fn take_back(&mut self, slot: u32, context: &mut Context<'_>) {
        if let Some(translation) = self.slab.translation(slot) {
            self.index.remove(translation.hash, slot | SECOND);
            context.limits.give_port_back(self.original(slot), translation);
            self.slab.set_uncounted(slot);
        }
    }

    /// The port that the source of a connection has in place of its own, if a rule leaves it that.
    fn known_port(&self, slot: u32, request: &Request, context: &Context<'_>) -> Option<u16> {
        let wants_one = request.addresses.is_some() && !request.random && !request.netmap;
        let is_source = request.end == TranslatedEnd::Source;
        let looks = is_source && wants_one && self.slab[slot].head.key.is_identified();
        if looks { context.limits.changed_ports.of_source(&self.original(slot)) } else { None }
    }

    /// The hash of the key of `leaves_as`, if its replies would belong to no other connection.
    #[inline]
    pub(super) fn free(
        &mut self,
        slot: u32,
        leaves_as: &KeyedPacket,
        supply: Supply<'_>,
        context: &mut Context<'_>,
    ) -> Option<u32> {
        let hash = (supply.hash)(&leaves_as.key) as u32;
        self.is_free(slot, leaves_as, hash, context).then_some(hash)
    }

    /// True if the replies to packets that leave as `leaves_as` would belong to no other
    /// connection. `hash` is that of their key.
    fn is_free(
        &mut self,
        slot: u32,
        leaves_as: &KeyedPacket,
        hash: u32,
        context: &mut Context<'_>,
    ) -> bool {
        let reply = KeyedPacket { sender: leaves_as.sender.opposite(), ..*leaves_as };
        // The replies must differ from its own packets, or the connection would have only one
        // direction.
        let head = &self.slab[slot].head;
        if reply.sender == head.originator() && reply.key == head.key {
            return false;
        }
        if reply.key.is_call() && self.is_crowded(&reply, hash)
            || reply.key.is_tunnel()
                && context.tunnels.have_anothers(&reply, &self.original(slot), context.now)
        {
            return false;
        }
        while let Some(other) = self.owner(&reply, hash, slot) {
            let is_overlooked = context.settings.faults.ignores_ports_of_copies()
                && self.slab[other].body.note.is_copy();
            if !self.slab[other].is_over(context.now) {
                return is_overlooked;
            }
            self.close(other, context);
        }
        true
    }

    /// The connection, other than the one in `slot`, that such packets belong to.
    pub(super) fn owner(&self, packet: &KeyedPacket, hash: u32, slot: u32) -> Option<u32> {
        let is_other = |filed: u32| filed & !SECOND != slot && self.slab.names(filed, packet);
        let found = match packet.key.is_call() {
            true => self.other_call(packet, hash, slot),
            false => self.index.find(hash, is_other),
        };
        found.map(|filed| filed & !SECOND)
    }

    /// Sets the translation of a connection, with an address of this interface and a port of
    /// this pool, and files the key of its replies.
    pub(super) fn file(
        &mut self,
        slot: u32,
        (leaves_as, hash): (KeyedPacket, u32),
        (interface, pool): (Option<u32>, Option<Pool>),
        context: &mut Context<'_>,
    ) -> Result<(), DropReason> {
        let head = &self.slab[slot].head;
        if leaves_as.sender == head.originator() && leaves_as.key == head.key {
            self.slab.set_translation(slot, None);
            return Ok(());
        }
        let change = PortChange::of(self.original(slot), &leaves_as);
        let mut translation = Translation::new(leaves_as, hash, interface, context.now);
        translation.is_port_filed = change.is_some();
        self.slab.set_translation(slot, Some(translation));
        change.inspect(|change| context.limits.changed_ports.enter(change));
        let slab = &self.slab;
        if self.index.insert(hash, slot | SECOND, |filed| slab.hash_of(filed)).is_err() {
            context.counters.chaintoolong += 1;
            return Err(DropReason::TableFull);
        }
        if let Some(pool) = pool {
            context.limits.port_usage.enter(&self.port_share(slot, pool));
            self.slab.set_pool(slot, pool);
        }
        Ok(())
    }
}

pub(super) fn refused(reason: DropReason, context: &mut Context<'_>) -> DropReason {
    count_refused(context);
    reason
}

const fn count_refused(context: &mut Context<'_>) {
    context.counters.insert_failed += 1;
    context.counters.drop += 1;
}

#[cfg(test)]
#[path = "translation_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "changed_port_tests.rs"]
mod changed_port_tests;

#[cfg(test)]
#[path = "translation_packets_tests.rs"]
mod packets_tests;
