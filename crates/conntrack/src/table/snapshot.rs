//! Copies of connections for listings and events.

use flow::{KeyedPacket, Timestamp};

use super::entry::Entry;
use super::slab::Slab;
use crate::connection::Status;
use crate::view::{seconds_left, zone_number};
use crate::{Connection, Direction, Tuple};

impl Connection {
    /// The direction of a packet whose key is that of the connection.
    pub fn direction_of(&self, packet: &KeyedPacket) -> Direction {
        let sent = Tuple::of(&packet.key, packet.sender, Direction::Original);
        if sent == self.original { Direction::Original } else { Direction::Reply }
    }

    /// The connection in a slot.
    pub(crate) fn of(slab: &Slab, slot: u32, now: Timestamp) -> Self {
        let Entry { head, body } = &slab[slot];
        let side = slab.side(slot);
        let key = &head.key;
        let untranslated = KeyedPacket { key: *key, sender: head.originator() };
        let leaves_as = slab.translation(slot).map_or(untranslated, |it| it.leaves_as);
        let part = slab.part(slot);
        let (status, mark) = part.map_or((head.status, head.mark), |part| part.facts(head));
        let has = |bit| status.has(bit);
        let (zone, reply_zone) = (zone_number(key.zone), zone_number(leaves_as.key.zone));
        let (zone, original_zone, reply_zone) =
            if zone == reply_zone { (zone, 0, 0) } else { (0, zone, reply_zone) };
        Self {
            family: key.family,
            protocol: key.protocol,
            zone,
            original_zone,
            reply_zone,
            original: Tuple::of(key, head.originator(), Direction::Original),
            reply: Tuple::of(&leaves_as.key, leaves_as.sender, Direction::Reply),
            key: *key,
            state: body.state.name(),
            timeout_s: seconds_left(head.deadline, now),
            seen_reply: has(Status::SEEN_REPLY),
            assured: has(Status::ASSURED),
            expected: has(Status::EXPECTED),
            part: part.is_some_and(|part| part.tunnel.is_shared()),
            helper: slab.helper(slot).map(|helper| helper.kind.name()),
            mark,
            labels: slab.labels(slot),
            counters: side.filter(|_| has(Status::ACCOUNTED)).map(|side| side.counts),
            age_s: side.filter(|_| has(Status::STAMPED)).map(|side| side.age(now).as_secs()),
        }
    }
}
