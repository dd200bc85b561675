//! Tunnels: connections whose packets come to many buckets.
//!
//! Steering looks into tunnels, so that the flows inside spread over the workers. So the packets
//! of one connection, the tunnel, come to many buckets. Each of them has an entry of its own for
//! the tunnel, a *part*, which is tracked as any other connection. Here is what the parts have
//! to know of each other to be one connection: who has opened it, what it is translated to,
//! whether it was answered, its mark and its labels.
//!
//! This is the second table that all workers share, and of the same kind as that of the
//! [expectations](crate::Expectations): only a packet of a tunnel that finds no part in its
//! bucket looks at it, and a part that begins or ends. A tunnel lives as long as one of its
//! parts. Each part writes down its own deadline where others can read it, so nothing that all
//! of them share changes with every packet.

use std::collections::HashMap;
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use flow::{HashKey, KeyedPacket, Timestamp, Zone, ZonePair};
use siphasher::sip::SipHasher13;

use crate::entry::{Head, Status};
use crate::nat::{Ends, Halves};
use crate::slab::Translation;
use crate::table::zone_of;
use crate::{Direction, Labels};

/// The tunnels of a gateway; clones share them.
#[derive(Clone, Debug)]
pub struct KnownTunnels {
    /// By what packets of each direction have.
    book: Arc<Mutex<HashMap<KeyedPacket, Arc<Tunnel>, Secret>>>,
}

/// Hashes with a secret: nobody can choose tunnels that collide.
#[derive(Clone, Copy, Debug)]
struct Secret(HashKey);

impl BuildHasher for Secret {
    type Hasher = SipHasher13;

    fn build_hasher(&self) -> SipHasher13 {
        SipHasher13::new_with_keys(self.0.0, self.0.1)
    }
}

/// What the parts of a tunnel have in common.
#[derive(Debug)]
pub(crate) struct Tunnel {
    /// What packets of the originator have.
    pub original: KeyedPacket,
    /// The low half of the hash of that key.
    pub hash: u32,
    /// What it is translated to.
    pub translation: Option<Translation>,
    replied: AtomicBool,
    assured: AtomicBool,
    /// Somebody has ended it as a whole.
    over: AtomicBool,
    mark: AtomicU32,
    labels: Mutex<Labels>,
    parts: Mutex<Parts>,
}

#[derive(Debug, Default)]
struct Parts {
    /// When each of them ends, in nanoseconds.
    deadlines: Vec<Arc<AtomicU64>>,
    /// Listeners were told that the tunnel has ended.
    is_told: bool,
}

/// The part of a tunnel that one bucket has.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    pub tunnel: Arc<Tunnel>,
    /// When it ends: its bucket writes it, and who looks for the tunnel reads it.
    deadline: Arc<AtomicU64>,
}

/// The packets of one of its directions are those of another tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Clash;

type Book<'a> = MutexGuard<'a, HashMap<KeyedPacket, Arc<Tunnel>, Secret>>;

impl KnownTunnels {
    /// There are none. The secret is that of the process.
    pub fn new(secret: HashKey) -> Self {
        Self { book: Arc::new(Mutex::new(HashMap::with_hasher(Secret(secret)))) }
    }

    /// True if no bucket knows a tunnel.
    pub fn is_empty(&self) -> bool {
        self.book().is_empty()
    }

    /// True if such packets belong to a tunnel that some bucket knows.
    pub fn has(&self, packet: &KeyedPacket, now: Timestamp) -> bool {
        packet.key.is_tunnel() && self.find(packet, now).is_some()
    }

    /// True if such packets belong to a tunnel that some bucket knows, and not to the one with this
    /// original: another bucket may have opened the very same meanwhile.
    pub(crate) fn have_anothers(
        &self,
        packet: &KeyedPacket,
        original: &KeyedPacket,
        now: Timestamp,
    ) -> bool {
        packet.key.is_tunnel()
            && self.find(packet, now).is_some_and(|(tunnel, _)| tunnel.original != *original)
    }

    /// As [`Table::zone_of`](crate::Table::zone_of), of tunnels that other buckets know.
    pub fn zone_of(&self, zones: ZonePair, packet: &KeyedPacket, now: Timestamp) -> Option<Zone> {
        if !packet.key.is_tunnel() {
            return None;
        }
        zone_of(zones, |zone| self.find(&packet.in_zone(zone), now).map(|(_, direction)| direction))
    }

    /// The tunnel of a packet, and which way that goes.
    pub(crate) fn find(
        &self,
        packet: &KeyedPacket,
        now: Timestamp,
    ) -> Option<(Arc<Tunnel>, Direction)> {
        let tunnel = self.book().get(packet).filter(|it| it.lives(now)).cloned()?;
        let direction = tunnel.direction(packet);
        Some((tunnel, direction))
    }

    /// A new part of the tunnel of a packet, and which way the packet goes.
    pub(crate) fn join(&self, packet: &KeyedPacket, now: Timestamp) -> Option<(Part, Direction)> {
        let book = self.book();
        let tunnel = book.get(packet).filter(|it| it.lives(now))?;
        Some((tunnel.part(now), tunnel.direction(packet)))
    }

    /// Files a tunnel with its first part, which lives until `deadline`. If another bucket has
    /// filed the very same meanwhile, it becomes a part of that. True if it is the first.
    ///
    /// # Errors
    /// [`Clash`] if packets of one direction are those of another tunnel that lives.
    pub(crate) fn enter(
        &self,
        tunnel: Tunnel,
        deadline: Timestamp,
        now: Timestamp,
    ) -> Result<(Part, bool), Clash> {
        let mut book = self.book();
        let names = tunnel.names();
        let known = names.map(|name| book.get(&name).filter(|it| it.lives(now)).cloned());
        match known {
            [None, None] => {}
            [Some(first), Some(second)]
                if Arc::ptr_eq(&first, &second) && first.names() == names =>
            {
                return Ok((first.part(deadline), false));
            }
            _ => return Err(Clash),
        }
        for name in names {
            if let Some(dead) = book.remove(&name) {
                forget(&mut book, &dead);
            }
        }
        let tunnel = Arc::new(tunnel);
        for name in names {
            book.insert(name, tunnel.clone());
        }
        Ok((tunnel.part(deadline), true))
    }

    /// A part has ended. True if listeners are to be told that the tunnel has: it was the last
    /// part, or the tunnel was ended as a whole, and nobody has told them yet.
    pub(crate) fn leave(&self, Part { tunnel, deadline }: &Part) -> bool {
        let mut book = self.book();
        let mut parts = tunnel.parts();
        parts.deadlines.retain(|it| !Arc::ptr_eq(it, deadline));
        let has_ended = parts.deadlines.is_empty() || tunnel.over.load(Ordering::Acquire);
        if has_ended {
            forget(&mut book, tunnel);
        }
        has_ended && !std::mem::replace(&mut parts.is_told, true)
    }

    fn book(&self) -> Book<'_> {
        // Whoever panicked has left nothing half done: each step leaves the book whole.
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Takes a tunnel out of the book.
fn forget(book: &mut Book<'_>, tunnel: &Arc<Tunnel>) {
    for name in tunnel.names() {
        if book.get(&name).is_some_and(|it| Arc::ptr_eq(it, tunnel)) {
            book.remove(&name);
        }
    }
}

impl Tunnel {
    /// A tunnel that one bucket has opened.
    pub fn new(
        original: KeyedPacket,
        head: &Head,
        translation: Option<Translation>,
        labels: Labels,
    ) -> Self {
        Self {
            original,
            hash: head.hash,
            translation,
            replied: AtomicBool::new(false),
            assured: AtomicBool::new(false),
            over: AtomicBool::new(false),
            mark: AtomicU32::new(head.mark),
            labels: Mutex::new(labels),
            parts: Mutex::default(),
        }
    }

    /// What packets of either direction have.
    fn names(&self) -> [KeyedPacket; 2] {
        let KeyedPacket { key, sender } = self.original;
        let answer = KeyedPacket { key, sender: sender.opposite() };
        [self.original, self.translation.map_or(answer, |it| it.reply())]
    }

    fn direction(&self, packet: &KeyedPacket) -> Direction {
        if *packet == self.original { Direction::Original } else { Direction::Reply }
    }

    fn lives(&self, now: Timestamp) -> bool {
        let is_live = |it: &Arc<AtomicU64>| it.load(Ordering::Relaxed) > now.as_nanos();
        !self.over.load(Ordering::Acquire) && self.parts().deadlines.iter().any(is_live)
    }

    fn part(self: &Arc<Self>, deadline: Timestamp) -> Part {
        let deadline = Arc::new(AtomicU64::new(deadline.as_nanos()));
        self.parts().deadlines.push(deadline.clone());
        Part { tunnel: self.clone(), deadline }
    }

    /// What it does to packets of a direction.
    pub fn halves(&self, direction: Direction) -> Halves {
        let Some(translation) = self.translation else { return Halves::default() };
        let ends = |it: KeyedPacket| Ends::of(&it.key, it.sender);
        Halves::between(&ends(self.original), &ends(translation.leaves_as), direction)
    }

    /// The zones of both directions.
    pub fn zones(&self) -> ZonePair {
        let original = self.original.key.zone;
        let reply = self.translation.map_or(original, |it| it.leaves_as.key.zone);
        ZonePair { original, reply }
    }

    /// What it has in common with all its parts, of the status of an entry.
    pub fn status(&self) -> Status {
        let replied = Status::when(self.replied.load(Ordering::Acquire), Status::SEEN_REPLY);
        let assured = Status::when(self.assured.load(Ordering::Acquire), Status::ASSURED);
        replied.with(assured).with(Status::when(self.translation.is_some(), Status::TRANSLATED))
    }

    /// An entry of it has this status. What nobody knew yet is all that is written, so no part
    /// takes the others' cache lines away with every packet.
    pub fn note(&self, status: Status) {
        for (flag, bit) in [(&self.replied, Status::SEEN_REPLY), (&self.assured, Status::ASSURED)] {
            if status.has(bit) && !flag.load(Ordering::Relaxed) {
                flag.store(true, Ordering::Release);
            }
        }
    }

    /// Its mark.
    pub fn mark(&self) -> u32 {
        self.mark.load(Ordering::Relaxed)
    }

    /// Gives it a mark.
    pub fn set_mark(&self, mark: u32) {
        self.mark.store(mark, Ordering::Relaxed);
    }

    /// Its labels.
    pub fn labels(&self) -> Labels {
        *self.labels.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives it these labels and no others.
    pub fn set_labels(&self, labels: Labels) {
        *self.labels.lock().unwrap_or_else(PoisonError::into_inner) = labels;
    }

    /// Ends it, wherever its parts are: each sees it when it looks next.
    pub fn end(&self) {
        self.over.store(true, Ordering::Release);
    }

    /// Somebody has ended it.
    pub fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }

    /// Other buckets have parts too.
    pub fn is_shared(&self) -> bool {
        self.parts().deadlines.len() > 1
    }

    fn parts(&self) -> MutexGuard<'_, Parts> {
        self.parts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Part {
    /// What an entry has learned from a packet: others are to know it.
    pub fn tell(&self, head: &Head) {
        self.deadline.store(head.deadline.as_nanos(), Ordering::Relaxed);
        self.tunnel.note(head.status);
    }

    /// The status and the mark of an entry, with what others have learned.
    pub fn facts(&self, head: &Head) -> (Status, u32) {
        (head.status.with(self.tunnel.status()), self.tunnel.mark())
    }
}
