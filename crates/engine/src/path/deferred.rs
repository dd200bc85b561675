//! First packets of connections that wait until the peer has the connections.
//!
//! If answers come to the other gateway, they may be there before it knows the connection. So the
//! first packet of a connection can wait for the peer, if the operator wants that: everything is
//! done with it except sending it. Later packets of the same sender wait behind it. They wait for a
//! short time at most, and then leave all the same.
//!
//! An answer that a handshake can not go on without waits in the same way, if it comes to the
//! gateway that does not own the connection: the owner would refuse what the client says next.
//!
//! A worker that has told all its changes sends a [`Receipt`] behind them, and the owner of the
//! session gives it back when the peer has what came before it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use conntrack::Tracked;
use flow::{KeyedPacket, Timestamp};
use wire::{TcpFlags, Transport};

use crate::egress::route_decision::RouteDecision;
use crate::path::PacketPath;
use crate::path::alias_table::Opener;
use crate::path::nat::port_search::Search;
use crate::path::packet::Packet;
use crate::path::scratch::{Exit, Scratch};
use crate::rings::link::Wakeup;

/// Packets that wait at a worker at most. Others leave at once.
pub const DEFERRED_MAX: usize = 256;
/// Bytes of their frames at most.
pub const DEFERRED_BYTES_MAX: usize = 1 << 20;

/// A flag: new packets wait for the peer. The workers and the owner of the session share it.
#[derive(Clone, Debug, Default)]
pub struct Awaited(Arc<AtomicBool>);

impl Awaited {
    /// Sets whether new packets wait for the peer.
    pub fn set(&self, is_awaited: bool) {
        self.0.store(is_awaited, Ordering::Relaxed);
    }

    fn get(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// The receipts of a worker that came back, and how it hears of them.
#[derive(Debug)]
struct Returned {
    /// The highest number of those that came back.
    last: AtomicU64,
    wakeup: Wakeup,
}

/// Comes back to its worker when the peer has all changes that were sent before it.
#[derive(Debug)]
pub struct Receipt {
    returned: Arc<Returned>,
    number: u64,
}

impl Receipt {
    /// The peer has them.
    pub fn give_back(self) {
        self.returned.last.fetch_max(self.number, Ordering::Release);
        self.returned.wakeup.ring();
    }
}

/// A packet that waits. Everything is done except sending it.
struct Deferred {
    keyed: KeyedPacket,
    opener: Opener,
    /// It has opened its connection.
    has_opened: bool,
    /// When it leaves in any case.
    until: Timestamp,
    /// The receipt that it waits for.
    receipt: u64,
    bytes: usize,
}

/// The packets of a worker that wait, the oldest first.
pub struct Deferrals {
    limit: Duration,
    awaited: Awaited,
    returned: Arc<Returned>,
    /// Receipts that were sent.
    receipts: u64,
    /// A packet waits for a receipt that was not sent yet.
    wants_receipt: bool,
    waiting: VecDeque<Deferred>,
    /// Hashes of their flow keys, in the same order. To look for one is fast.
    hashes: VecDeque<u64>,
    bytes: usize,
}

impl Deferrals {
    /// None yet, for a worker that is woken so. Packets wait no longer than `limit`.
    pub fn new(limit: Duration, awaited: Awaited, wakeup: Wakeup) -> Self {
        Self {
            limit,
            awaited,
            returned: Arc::new(Returned { last: AtomicU64::new(0), wakeup }),
            receipts: 0,
            wants_receipt: false,
            waiting: VecDeque::new(),
            hashes: VecDeque::new(),
            bytes: 0,
        }
    }

    /// The place of the first packet of a flow and sender that waits.
    fn place_of(&self, keyed: &KeyedPacket, hash: u64) -> Option<usize> {
        let mut places = self.hashes.iter().zip(&self.waiting);
        places.position(|(other, it)| *other == hash && it.keyed == *keyed)
    }

    fn has_room_for(&self, bytes: usize) -> bool {
        self.waiting.len() < DEFERRED_MAX && self.bytes + bytes <= DEFERRED_BYTES_MAX
    }

    fn push(&mut self, deferred: Deferred, hash: u64) {
        self.bytes += deferred.bytes;
        self.waiting.push_back(deferred);
        self.hashes.push_back(hash);
    }

    fn remove(&mut self, place: usize) -> Option<Deferred> {
        self.hashes.remove(place)?;
        let deferred = self.waiting.remove(place)?;
        self.bytes -= deferred.bytes;
        Some(deferred)
    }

    /// The peer has the connection of the oldest packet.
    fn is_returned(&self) -> bool {
        let last = self.returned.last.load(Ordering::Acquire);
        self.waiting.front().is_some_and(|first| first.receipt <= last)
    }
}

impl PacketPath {
    /// Has a packet wait that is to be sent, if the peer has to know its connection first. False if
    /// it leaves now.
    #[cold]
    #[inline(never)]
    pub(super) fn defer(&mut self, packet: &mut Packet, scratch: &Scratch) -> bool {
        let Scratch { tracked, exit, now, .. } = scratch;
        let waits = tracked.fresh || is_of_handshake(packet) && self.owes_news(packet, tracked);
        // The host has its own copy of what is for it.
        exit.route != Some(RouteDecision::Host)
            && self.defer_exit(packet, exit, (waits, tracked.fresh), *now)
    }

    /// True if the peer owns the connection of a packet and has not heard of the state that the packet
    /// has brought it into.
    fn owes_news(&self, packet: &Packet, tracked: &Tracked) -> bool {
        let bucket = self.buckets.get(packet.bucket);
        let place = bucket.zip(tracked.connection);
        place.is_some_and(|(bucket, id)| bucket.connections.owes_news(id))
    }

    /// Has the first packet of a connection wait that has waited for an alias before.
    pub(super) fn defer_opener(
        &mut self,
        packet: &mut Packet,
        exit: &Exit,
        now: Timestamp,
    ) -> bool {
        self.deferrals.is_some() && self.defer_exit(packet, exit, (true, true), now)
    }

    fn defer_exit(
        &mut self,
        packet: &mut Packet,
        exit: &Exit,
        (waits, has_opened): (bool, bool),
        now: Timestamp,
    ) -> bool {
        let generation = self.tracking.generation();
        let Self { deferrals: Some(deferrals), buckets, counters, hasher, .. } = self else {
            return false;
        };
        let Some(flow) = &mut packet.flow else { return false };
        let (keyed, hash) = (flow.keyed, flow.table_hash(hasher));
        // To look for a flow takes a while, and a packet that opens one has none in front of it.
        let before = if waits { None } else { deferrals.place_of(&keyed, hash) };
        // A bucket that leaves takes nothing along that waits here.
        let waits = waits && deferrals.awaited.get() && buckets.is_routed_here(packet.bucket);
        if before.is_none() && !waits {
            return false;
        }
        let pieces = packet.pieces.iter().flat_map(|pieces| pieces.frames());
        let bytes = packet.frame.footprint() + pieces.map(|it| it.footprint()).sum::<usize>();
        if !deferrals.has_room_for(bytes) {
            counters.deferral.not_deferred += 1;
            if before.is_some() {
                self.send_deferred_if(now, |it| it.keyed == keyed);
            }
            return false;
        }
        counters.deferral.deferred += 1;
        let receipt = before.and_then(|place| deferrals.waiting.get(place)).map(|it| it.receipt);
        deferrals.wants_receipt |= receipt.is_none();
        let deferred = Deferred {
            keyed,
            opener: Opener {
                packet: packet.take(),
                exit: *exit,
                generation,
                search: Search::new(None, 0),
            },
            has_opened,
            until: now.after(deferrals.limit),
            receipt: receipt.unwrap_or(deferrals.receipts + 1),
            bytes,
        };
        deferrals.push(deferred, hash);
        true
    }

    /// True if a packet of this flow and sender waits, so that no other may overtake it.
    #[inline]
    pub(super) fn has_deferred(&mut self, packet: &mut Packet) -> bool {
        self.deferrals.as_ref().is_some_and(|it| !it.waiting.is_empty())
            && self.has_deferred_of(packet)
    }

    #[cold]
    fn has_deferred_of(&mut self, packet: &mut Packet) -> bool {
        let (Some(deferrals), Some(flow)) = (&self.deferrals, &mut packet.flow) else {
            return false;
        };
        let hash = flow.table_hash(&self.hasher);
        deferrals.place_of(&flow.keyed, hash).is_some()
    }

    /// Asks to hear when the peer has all changes that were sent, if packets wait for that and
    /// nothing is left that is urgent.
    pub(super) fn send_receipt(&mut self) {
        let Self { deferrals: Some(deferrals), change_sender: Some(sender), tracking, .. } = self
        else {
            return;
        };
        if !deferrals.wants_receipt || tracking.replication().has_news() {
            return;
        }
        let number = deferrals.receipts + 1;
        if sender.send_receipt(Receipt { returned: deferrals.returned.clone(), number }) {
            (deferrals.receipts, deferrals.wants_receipt) = (number, false);
        }
    }

    /// True if the peer has the connection of a packet that waits.
    pub(super) fn has_returned_receipt(&self) -> bool {
        self.deferrals.as_ref().is_some_and(|it| it.is_returned())
    }

    /// True if a packet has waited long enough, or the peer has its connection.
    fn has_deferred_to_send(&self, now: Timestamp) -> bool {
        let Some(deferrals) = &self.deferrals else { return false };
        let is_over = deferrals.waiting.front().is_some_and(|first| first.until <= now);
        is_over || deferrals.is_returned()
    }

    /// When the next packet has waited long enough; `None` while none waits.
    pub(crate) fn next_deferred(&self) -> Option<Timestamp> {
        let first = self.deferrals.as_ref()?.waiting.front()?;
        Some(first.until)
    }

    /// Sends the packets of which the peer has the connections, and those that have waited long
    /// enough. True if there was one.
    pub(crate) fn send_deferred(&mut self, now: Timestamp) -> bool {
        let mut has_sent = false;
        while self.has_deferred_to_send(now) {
            let Some(deferrals) = &mut self.deferrals else { break };
            let counter = match deferrals.is_returned() {
                true => &mut self.counters.deferral.acknowledged,
                false => &mut self.counters.deferral.timed_out,
            };
            *counter += 1;
            let Some(deferred) = deferrals.remove(0) else { break };
            self.send_late(deferred, now);
            has_sent = true;
        }
        has_sent
    }

    /// Sends the packets whose buckets leave.
    pub(super) fn send_deferred_of_leaving(&mut self, now: Timestamp) {
        let Some(deferrals) = &self.deferrals else { return };
        let routes_here = |it: &Deferred| self.buckets.is_routed_here(it.opener.packet.bucket);
        let leaving: Vec<_> =
            deferrals.waiting.iter().filter(|it| !routes_here(it)).map(|it| it.keyed).collect();
        if !leaving.is_empty() {
            self.send_deferred_if(now, |it| leaving.contains(&it.keyed));
        }
    }

    /// Sends all, because nobody waits for the peer any more.
    pub(super) fn send_all_deferred(&mut self, now: Timestamp) {
        self.send_deferred_if(now, |_| true);
    }

    /// The worker ends, so no packet waits for the peer any more.
    pub(crate) fn stop_deferring(&mut self, now: Timestamp) {
        self.send_all_deferred(now);
        self.deferrals = None;
        self.forwarder.flush(&mut self.pool, &mut self.counters);
        self.drop_refused();
    }

    /// Sends packets out of their turn, those of each flow in their order.
    fn send_deferred_if(&mut self, now: Timestamp, is_meant: impl Fn(&Deferred) -> bool) {
        let mut place = 0;
        while let Some(deferrals) = &mut self.deferrals
            && let Some(deferred) = deferrals.waiting.get(place)
        {
            match is_meant(deferred) {
                true => {
                    let Some(deferred) = deferrals.remove(place) else { return };
                    self.send_late(deferred, now);
                }
                false => place += 1,
            }
        }
    }

    fn send_late(&mut self, deferred: Deferred, now: Timestamp) {
        let Deferred { mut opener, has_opened, .. } = deferred;
        match self.renew_route(&mut opener) {
            Ok(()) => self.send_out(&mut opener.packet, &opener.exit, now),
            Err(why) => {
                if has_opened {
                    self.end_connection(&opener.packet, now);
                }
                self.drop_frames(opener.packet.frame, opener.packet.pieces, why);
            }
        }
    }
}

/// True for a packet without which the state of a new connection does not go on: SYN+ACK of TCP, and
/// any of SCTP and DCCP.
fn is_of_handshake(packet: &Packet) -> bool {
    match packet.network.transport {
        Transport::Tcp(tcp) => tcp.flags.contains(TcpFlags::SYN),
        Transport::Sctp { .. } | Transport::Dccp { .. } => true,
        _ => false,
    }
}
