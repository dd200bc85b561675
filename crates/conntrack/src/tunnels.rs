//! Tunnels: connections whose packets come to many buckets.
//!
//! Steering looks into tunnels, so that the flows inside spread over the workers. So the
//! packets of one connection, the tunnel, come to many buckets. Each of these has its own entry
//! for the tunnel, a *part*, which is tracked like any other connection. This module holds the
//! facts that the parts share as one connection: its originator, its translation, whether it
//! was answered, its mark and its labels.
//!
//! This is the second table that all workers share, after that of the
//! [expectations](crate::Expectations). It is used only by a packet of a tunnel that finds no
//! part in its bucket, and when a part begins or ends. A tunnel lives as long as one of its
//! parts. Each part writes its own deadline to a place that others can read, so no packet
//! changes memory that all parts share.

use std::collections::HashMap;
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use flow::{HashKey, KeyedPacket, Timestamp, Zone, ZonePair};
use siphasher::sip::SipHasher13;

use crate::connection::zone_of;
use crate::connection::{Head, Status};
use crate::nat::Translation;
use crate::nat::{AddressChanges, Ends};
use crate::{Direction, Labels};

/// The tunnels of a gateway; clones share them.
#[derive(Clone, Debug)]
pub struct KnownTunnels {
    /// By key and sender of the packets of each direction.
    book: Arc<Mutex<HashMap<KeyedPacket, Arc<Tunnel>, Secret>>>,
}

/// A keyed hash, so that nobody can choose tunnels that collide.
#[derive(Clone, Copy, Debug)]
struct Secret(HashKey);

impl BuildHasher for Secret {
    type Hasher = SipHasher13;

    fn build_hasher(&self) -> SipHasher13 {
        SipHasher13::new_with_keys(self.0.0, self.0.1)
    }
}

/// The facts that the parts of a tunnel share.
#[derive(Debug)]
pub(crate) struct Tunnel {
    /// Key and direction of the originator's packets.
    pub original: KeyedPacket,
    /// The low half of the hash of that key.
    pub hash: u32,
    /// Its translation.
    pub translation: Option<Translation>,
    replied: AtomicBool,
    assured: AtomicBool,
    /// True if the tunnel was ended as a whole.
    over: AtomicBool,
    mark: AtomicU32,
    labels: Mutex<Labels>,
    parts: Mutex<Parts>,
}

#[derive(Debug, Default)]
struct Parts {
    /// The deadlines of the parts, in nanoseconds.
    deadlines: Vec<Arc<AtomicU64>>,
    /// True if the end of the tunnel was reported.
    is_reported: bool,
}

/// One bucket's part of a tunnel.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    pub tunnel: Arc<Tunnel>,
    /// Its deadline. Its bucket writes it, and others read it to see whether the tunnel lives.
    deadline: Arc<AtomicU64>,
}

/// The packets of one of its directions belong to another tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Clash;

type Book<'a> = MutexGuard<'a, HashMap<KeyedPacket, Arc<Tunnel>, Secret>>;

impl KnownTunnels {
    /// No tunnels. `secret` is the secret of the process.
    pub fn new(secret: HashKey) -> Self {
        Self { book: Arc::new(Mutex::new(HashMap::with_hasher(Secret(secret)))) }
    }

    /// True if no bucket knows a tunnel.
    pub fn is_empty(&self) -> bool {
        self.book().is_empty()
    }

    /// True if such packets belong to a live tunnel.
    pub fn has(&self, packet: &KeyedPacket, now: Timestamp) -> bool {
        packet.key.is_tunnel() && self.find(packet, now).is_some()
    }

    /// True if such packets belong to a live tunnel other than the one with this original:
    /// another bucket may have opened the same tunnel meanwhile, which does not count.
    pub(crate) fn have_anothers(
        &self,
        packet: &KeyedPacket,
        original: &KeyedPacket,
        now: Timestamp,
    ) -> bool {
        packet.key.is_tunnel()
            && self.find(packet, now).is_some_and(|(tunnel, _)| tunnel.original != *original)
    }

    /// [`Table::zone_of`](crate::Table::zone_of) for the tunnels that other buckets know.
    pub fn zone_of(&self, zones: ZonePair, packet: &KeyedPacket, now: Timestamp) -> Option<Zone> {
        if !packet.key.is_tunnel() {
            return None;
        }
        zone_of(zones, |zone| self.find(&packet.in_zone(zone), now).map(|(_, direction)| direction))
    }

    /// The tunnel of a packet, and the direction of the packet.
    pub(crate) fn find(
        &self,
        packet: &KeyedPacket,
        now: Timestamp,
    ) -> Option<(Arc<Tunnel>, Direction)> {
        let tunnel = self.book().get(packet).filter(|it| it.lives(now)).cloned()?;
        let direction = tunnel.direction(packet);
        Some((tunnel, direction))
    }

    /// Makes a new part of the tunnel of a packet; returns it with the direction of the packet.
    pub(crate) fn join(&self, packet: &KeyedPacket, now: Timestamp) -> Option<(Part, Direction)> {
        let book = self.book();
        let tunnel = book.get(packet).filter(|it| it.lives(now))?;
        Some((tunnel.part(now), tunnel.direction(packet)))
    }

    /// Files a tunnel with its first part, which lives until `deadline`. If another bucket has
    /// filed the same tunnel meanwhile, the new part belongs to that. True if the tunnel is
    /// new.
    ///
    /// # Errors
    /// [`Clash`] if the packets of one direction belong to another live tunnel.
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

    /// Removes a part that has ended. True if the end of the tunnel has to be reported: it was
    /// the last part, or the tunnel was ended as a whole, and it was not reported yet.
    pub(crate) fn leave(&self, Part { tunnel, deadline }: &Part) -> bool {
        let mut book = self.book();
        let mut parts = tunnel.parts();
        parts.deadlines.retain(|it| !Arc::ptr_eq(it, deadline));
        let has_ended = parts.deadlines.is_empty() || tunnel.over.load(Ordering::Acquire);
        if has_ended {
            forget(&mut book, tunnel);
        }
        has_ended && !std::mem::replace(&mut parts.is_reported, true)
    }

    fn book(&self) -> Book<'_> {
        // After a panic the book is still usable: each step leaves it in a valid state.
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

    /// Key and sender of the packets of either direction.
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

    /// The translation of packets of a direction.
    pub fn address_changes(&self, direction: Direction) -> AddressChanges {
        let Some(translation) = self.translation else { return AddressChanges::default() };
        let ends = |it: KeyedPacket| Ends::of(&it.key, it.sender);
        AddressChanges::between(&ends(self.original), &ends(translation.leaves_as), direction)
    }

    /// The zones of both directions.
    pub fn zones(&self) -> ZonePair {
        let original = self.original.key.zone;
        let reply = self.translation.map_or(original, |it| it.leaves_as.key.zone);
        ZonePair { original, reply }
    }

    /// The flags that all parts share.
    pub fn status(&self) -> Status {
        let replied = Status::when(self.replied.load(Ordering::Acquire), Status::SEEN_REPLY);
        let assured = Status::when(self.assured.load(Ordering::Acquire), Status::ASSURED);
        replied.with(assured).with(Status::when(self.translation.is_some(), Status::TRANSLATED))
    }

    /// Adopts the flags of an entry. It writes only flags that are new, so that no part
    /// invalidates the others' cache lines with every packet.
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

    /// Sets its mark.
    pub fn set_mark(&self, mark: u32) {
        self.mark.store(mark, Ordering::Relaxed);
    }

    /// Its labels.
    pub fn labels(&self) -> Labels {
        *self.labels.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets its labels.
    pub fn set_labels(&self, labels: Labels) {
        *self.labels.lock().unwrap_or_else(PoisonError::into_inner) = labels;
    }

    /// Ends it as a whole: each part sees that when its bucket looks next.
    pub fn end(&self) {
        self.over.store(true, Ordering::Release);
    }

    /// True if it was ended as a whole.
    pub fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }

    /// True if other buckets have parts too.
    pub fn is_shared(&self) -> bool {
        self.parts().deadlines.len() > 1
    }

    fn parts(&self) -> MutexGuard<'_, Parts> {
        self.parts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Part {
    /// Publishes the facts that an entry has learned from a packet.
    pub fn tell(&self, head: &Head) {
        self.deadline.store(head.deadline.as_nanos(), Ordering::Relaxed);
        self.tunnel.note(head.status);
    }

    /// The status and the mark of an entry, with the facts that other parts have learned.
    pub fn facts(&self, head: &Head) -> (Status, u32) {
        (head.status.with(self.tunnel.status()), self.tunnel.mark())
    }
}
