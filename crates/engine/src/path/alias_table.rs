//! Aliases: they lead a packet to its connection if that lives in another bucket than the one that
//! the packet is steered to.
//!
//! A translated connection has two keys. Mostly both lead to one bucket (see
//! [`steer::SteeringHasher`]). If they do not, the bucket of the second key has an *alias*: the key
//! and its sender, with the number of the bucket that has the connection. [`crate::path::alias_messages`]
//! tells how aliases come and go.

use std::collections::VecDeque;

use conntrack::Claimant;
use flow::{DropReason, KeyedPacket, SlotIndex};
use steer::BucketId;

use crate::path::nat::port_search::Search;
use crate::path::packet::Packet;
use crate::path::scratch::Exit;

/// Most packets of one bucket that may wait for the aliases of their connections, those of all its
/// connections together; each fragment counts. An answer takes microseconds, but a burst may come
/// whole before it: as many wait as for a next hop.
pub const MAX_WAITING: usize = 256;

/// The result of a request for an alias.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Filing {
    /// The alias is filed.
    Filed,
    /// The key belongs to another connection.
    Taken,
    /// The bucket has as many aliases as it may have.
    Full,
    /// Too many packets wait for aliases already, so this one was not asked for.
    Crowded,
}

impl Filing {
    /// The reason to refuse the connection; `None` if its replies find it. `taken` is the reason
    /// where the key belongs to another connection.
    pub const fn refusal(self, taken: DropReason) -> Option<DropReason> {
        match self {
            Self::Filed => None,
            Self::Taken => Some(taken),
            Self::Full => Some(DropReason::AliasTableFull),
            Self::Crowded => Some(DropReason::AliasQueueFull),
        }
    }
}

/// A message between the owners of two buckets about an alias.
#[derive(Clone, Copy, Debug)]
pub enum AliasMessage {
    /// File an alias. It goes to the bucket that the packets of the key are steered to.
    File {
        /// The key of packets that are to follow the alias, and its hash.
        alias: (KeyedPacket, u64),
        /// The bucket that has the connection.
        owner: BucketId,
        /// The key of the originator's packets, which wait for the answer, and its hash.
        connection: (KeyedPacket, u64),
        /// The claimant that the connection which has the key may have to give way to.
        claimant: Option<Claimant>,
    },
    /// File an alias, without an answer. It goes to the bucket that the packets of the key will be
    /// steered to.
    Lead {
        /// The key of packets that are to follow the alias, and its hash.
        alias: (KeyedPacket, u64),
        /// The bucket that has the connection.
        owner: BucketId,
    },
    /// The answer. It goes to the bucket that has the connection.
    Answer {
        /// The key of the originator's packets, and its hash.
        connection: (KeyedPacket, u64),
        /// The result.
        filing: Filing,
    },
    /// Remove the alias, because the connection has ended. It goes to the bucket that the packets
    /// of the key are steered to.
    Remove {
        /// The key of packets that follow the alias, and its hash.
        alias: (KeyedPacket, u64),
        /// The bucket that had the connection.
        owner: BucketId,
    },
}

/// The aliases of one bucket. It holds no memory while there are none.
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
    /// The number of aliases.
    pub fn len(&self) -> usize {
        self.0.as_ref().map_or(0, |filed| filed.places.len() - filed.free.len())
    }

    /// True if there are no aliases.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// The bucket that has the connection of a key. The key may be one that a packet only
    /// [names](KeyedPacket::named).
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

    /// True if two hosts have as many calls as they may have. All their calls have one hash.
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

    /// Removes the aliases whose keys `keep` refuses.
    pub fn retain(&mut self, keep: impl Fn(&KeyedPacket) -> bool) {
        let Some(filed) = &mut self.0 else { return };
        let Filed { index, places, free } = &mut **filed;
        for (number, place) in (0..).zip(places.iter_mut()) {
            if let Some(alias) = place.take_if(|alias| !keep(&alias.key)) {
                index.remove(alias.hash, number);
                free.push(number);
            }
        }
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
    // Every place that is in the index is filled.
    |place| places[place as usize].map_or(0, |alias| alias.hash)
}

/// A packet that waits for the alias of its connection.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "few packets wait, and a box would be an allocation for each"
)]
pub enum Waiting {
    /// The packet that has opened the connection.
    Opener(Opener),
    /// A later packet of the connection.
    Follower(Packet),
}

impl Waiting {
    const fn packet(&self) -> &Packet {
        let (Self::Opener(Opener { packet, .. }) | Self::Follower(packet)) = self;
        packet
    }

    /// The packet.
    pub fn into_packet(self) -> Packet {
        let (Self::Opener(Opener { packet, .. }) | Self::Follower(packet)) = self;
        packet
    }
}

/// The packet that has opened a connection. Everything is done except sending it.
#[derive(Debug)]
pub struct Opener {
    /// The packet, translated.
    pub packet: Packet,
    /// How it leaves.
    pub exit: Exit,
    /// The generation of decisions in which that was found.
    pub generation: u64,
    /// The search for another source, which goes on if its source is taken.
    pub search: Search,
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
    /// True if no packet waits.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// True if packets of this connection wait.
    pub fn awaits(&self, connection: &KeyedPacket) -> bool {
        self.0.iter().any(|opening| opening.connection == *connection)
    }

    /// True if one more packet may wait.
    pub fn has_room(&self) -> bool {
        let waiting = self.0.iter().flat_map(|opening| &opening.packets);
        waiting.map(|it| it.packet().weight()).sum::<usize>() < MAX_WAITING
    }

    /// Adds a packet behind the others of its connection.
    pub fn push(&mut self, connection: &KeyedPacket, packet: Waiting) {
        match self.0.iter_mut().find(|opening| opening.connection == *connection) {
            Some(opening) => opening.packets.push_back(packet),
            None => {
                let packets = VecDeque::from([packet]);
                self.0.push(Opening { connection: *connection, packets });
            }
        }
    }

    /// Puts packets back that were taken out.
    pub fn put_back(&mut self, connection: &KeyedPacket, packets: VecDeque<Waiting>) {
        self.0.push(Opening { connection: *connection, packets });
    }

    /// Takes out the packets of a connection, in order.
    pub fn take(&mut self, connection: &KeyedPacket) -> VecDeque<Waiting> {
        let found = self.0.iter().position(|opening| opening.connection == *connection);
        found.map_or_else(VecDeque::new, |at| self.0.swap_remove(at).packets)
    }

    /// Takes out all packets.
    pub fn take_all(&mut self) -> impl Iterator<Item = Waiting> {
        std::mem::take(&mut self.0).into_iter().flat_map(|opening| opening.packets)
    }
}

#[cfg(test)]
#[path = "alias_table_tests.rs"]
mod tests;
