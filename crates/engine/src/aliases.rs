//! Aliases: where a packet finds its connection when that lives in another bucket than the one
//! that the packet is steered to.
//!
//! A translated connection has two keys. Mostly both lead to one bucket (see
//! [`steer::Translated`]); where they can not, the bucket of the second key has an *alias*, the
//! key and its sender with the number of the bucket that has the connection. How aliases come and go is in
//! [`crate::aliasing`].

use std::collections::VecDeque;

use conntrack::Claimant;
use flow::{KeyedPacket, SlotIndex};
use steer::BucketId;

use crate::judging::Passed;
use crate::packet::Packet;
use crate::seeking::Search;

/// Packets of one bucket that may wait for the aliases of their connections: an answer takes
/// microseconds.
pub const MAX_WAITING: usize = 64;

/// What became of a wish for an alias.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Filing {
    /// It is there.
    Filed,
    /// The key belongs to another connection.
    Taken,
    /// There are too many.
    Full,
    /// Too many packets wait for theirs already, so it was not asked for.
    Crowded,
}

/// What the owners of two buckets tell each other about an alias.
#[derive(Clone, Copy, Debug)]
pub enum AliasMessage {
    /// To the bucket that the packets of a key are steered to: file an alias.
    File {
        /// What packets that follow the alias have, and its hash.
        alias: (KeyedPacket, u64),
        /// The bucket that has the connection.
        owner: BucketId,
        /// What packets of the originator have, which wait for the answer, and its hash.
        connection: (KeyedPacket, u64),
        /// For whom the connection that has the key may have to give way.
        claimant: Option<Claimant>,
    },
    /// To the bucket that has the connection: what became of that.
    Answer {
        /// What packets of the originator have, and its hash.
        connection: (KeyedPacket, u64),
        /// The answer.
        filing: Filing,
    },
    /// To the bucket that the packets of a key are steered to: the connection has ended.
    Remove {
        /// What packets that follow the alias have, and its hash.
        alias: (KeyedPacket, u64),
        /// The bucket that had the connection.
        owner: BucketId,
    },
}

/// The aliases of one bucket; without any it holds no memory.
#[derive(Debug, Default)]
pub struct Aliases(Option<Box<Filed>>);

#[derive(Debug)]
struct Filed {
    index: SlotIndex,
    places: Vec<Option<Alias>>,
    free: Vec<u32>,
}

#[derive(Clone, Copy, Debug)]
struct Alias {
    key: KeyedPacket,
    hash: u32,
    owner: BucketId,
}

impl Aliases {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.as_ref().map_or(0, |filed| filed.places.len() - filed.free.len())
    }

    /// True where there are none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// The bucket that has the connection of a key, or of what packets
    /// [name](KeyedPacket::named).
    #[inline]
    pub fn owner(&self, key: &KeyedPacket, hash: u64) -> Option<BucketId> {
        let filed = self.0.as_ref()?;
        filed.find(key, hash as u32).and_then(|place| Some(filed.places[place as usize]?.owner))
    }

    /// Files an alias, if there are fewer than `limit`.
    pub fn file(&mut self, key: &KeyedPacket, hash: u64, owner: BucketId, limit: usize) -> Filing {
        if let Some(other) = self.owner(key, hash) {
            return if other == owner { Filing::Filed } else { Filing::Taken };
        }
        if self.len() >= limit || key.key.is_call() && self.is_crowded(key, hash as u32) {
            return Filing::Full;
        }
        let filed = self.0.get_or_insert_with(Filed::new);
        let place = filed.free.pop().unwrap_or(filed.places.len() as u32);
        if place as usize == filed.places.len() {
            filed.places.push(None);
        }
        filed.places[place as usize] = Some(Alias { key: *key, hash: hash as u32, owner });
        let Filed { index, places, free } = &mut **filed;
        if index.insert(hash as u32, place, hash_in(places)).is_err() {
            places[place as usize] = None;
            free.push(place);
            self.tidy();
            return Filing::Full;
        }
        Filing::Filed
    }

    /// True if there are as many calls between two hosts as there may be: they have one hash.
    fn is_crowded(&self, key: &KeyedPacket, hash: u32) -> bool {
        let Some(filed) = &self.0 else { return false };
        let mut calls = 0;
        filed.index.find(hash, |place| {
            let other = filed.places[place as usize].as_ref();
            calls +=
                usize::from(other.is_some_and(|it| it.key.key.of_calls() == key.key.of_calls()));
            false
        });
        calls >= conntrack::CALLS_OF_A_PAIR
    }

    /// Removes an alias for a connection of `owner`.
    pub fn remove(&mut self, key: &KeyedPacket, hash: u64, owner: BucketId) {
        let Some(filed) = &mut self.0 else { return };
        let Some(place) = filed.find(key, hash as u32) else { return };
        if filed.places[place as usize].is_none_or(|alias| alias.owner != owner) {
            return;
        }
        let Filed { index, places, free } = &mut **filed;
        index.remove(hash as u32, place);
        places[place as usize] = None;
        free.push(place);
        index.shrink(hash_in(places));
        self.tidy();
    }

    fn tidy(&mut self) {
        self.0.take_if(|filed| filed.places.len() == filed.free.len());
    }
}

impl Filed {
    fn new() -> Box<Self> {
        Box::new(Self { index: SlotIndex::new(), places: Vec::new(), free: Vec::new() })
    }

    fn find(&self, key: &KeyedPacket, hash: u32) -> Option<u32> {
        let name = key.name();
        self.index.find(hash, |place| {
            self.places[place as usize].is_some_and(|alias| alias.key.is_named_by(&name))
        })
    }
}

/// The hash of an alias by its place.
fn hash_in(places: &[Option<Alias>]) -> impl Fn(u32) -> u32 {
    // What is in the index has its place.
    |place| places[place as usize].map_or(0, |alias| alias.hash)
}

/// A packet that waits for the alias of its connection.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "few packets wait, and a box would be an allocation for each"
)]
pub enum Waiting {
    /// The one that has opened the connection. All has been done to it but sending. Where its
    /// source is taken, the search goes on.
    Opener(Packet, Passed, Search),
    /// One that came behind it.
    Follower(Packet),
}

/// The packets of a bucket that wait for aliases.
#[derive(Debug, Default)]
pub struct Openings(Vec<Opening>);

#[derive(Debug)]
struct Opening {
    connection: KeyedPacket,
    packets: VecDeque<Waiting>,
}

impl Openings {
    /// True where nothing waits.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// True if packets of a connection wait.
    pub fn awaits(&self, connection: &KeyedPacket) -> bool {
        self.0.iter().any(|opening| opening.connection == *connection)
    }

    /// True while there is room for one more packet.
    pub fn has_room(&self) -> bool {
        self.0.iter().map(|opening| opening.packets.len()).sum::<usize>() < MAX_WAITING
    }

    /// Has a packet wait behind the others of its connection.
    pub fn push(&mut self, connection: &KeyedPacket, packet: Waiting) {
        match self.0.iter_mut().find(|opening| opening.connection == *connection) {
            Some(opening) => opening.packets.push_back(packet),
            None => {
                let packets = VecDeque::from([packet]);
                self.0.push(Opening { connection: *connection, packets });
            }
        }
    }

    /// Has what was taken out wait again.
    pub fn put_back(&mut self, connection: &KeyedPacket, packets: VecDeque<Waiting>) {
        self.0.push(Opening { connection: *connection, packets });
    }

    /// Takes out what has waited for a connection, in order.
    pub fn take(&mut self, connection: &KeyedPacket) -> VecDeque<Waiting> {
        let found = self.0.iter().position(|opening| opening.connection == *connection);
        found.map_or_else(VecDeque::new, |at| self.0.swap_remove(at).packets)
    }

    /// Takes out everything.
    pub fn take_all(&mut self) -> impl Iterator<Item = Waiting> {
        std::mem::take(&mut self.0).into_iter().flat_map(|opening| opening.packets)
    }
}

#[cfg(test)]
#[path = "aliases_tests.rs"]
mod tests;
