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

/// Why a packet waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cause {
    /// It has opened its connection, of which the peer has to know.
    Opening,
    /// The peer owns its connection, and has to know the state into which it has brought that.
    Handshake,
    /// Another packet of its flow and sender waits in front of it.
    Order,
}

/// A packet that waits. Everything is done except sending it.
struct Deferred {
    keyed: KeyedPacket,
    opener: Opener,
    cause: Cause,
    /// When it leaves in any case.
    until: Timestamp,
    /// The receipt that it waits for. No later packet of its flow waits for an earlier one.
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
    /// Those that wait for the [order](Cause::Order) of their flow.
    followers: usize,
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
            followers: 0,
        }
    }

    /// The last packet of a flow and sender that waits.
    fn last_of(&self, keyed: &KeyedPacket, hash: u64) -> Option<&Deferred> {
        let places = self.hashes.iter().zip(&self.waiting).rev();
        let mut of_flow = places.filter(|(other, it)| **other == hash && it.keyed == *keyed);
        of_flow.next().map(|(_, deferred)| deferred)
    }

    fn has_room_for(&self, bytes: usize) -> bool {
        self.waiting.len() < DEFERRED_MAX && self.bytes + bytes <= DEFERRED_BYTES_MAX
    }

    fn push(&mut self, deferred: Deferred, hash: u64) {
        self.bytes += deferred.bytes;
        self.followers += usize::from(deferred.cause == Cause::Order);
        self.waiting.push_back(deferred);
        self.hashes.push_back(hash);
    }

    fn remove(&mut self, place: usize) -> Option<Deferred> {
        self.hashes.remove(place)?;
        let deferred = self.waiting.remove(place)?;
        self.bytes -= deferred.bytes;
        self.followers -= usize::from(deferred.cause == Cause::Order);
        Some(deferred)
    }

    /// The highest number of the receipts that came back.
    fn last_returned(&self) -> u64 {
        self.returned.last.load(Ordering::Acquire)
    }

    /// The peer has the connection of the oldest packet.
    fn is_returned(&self) -> bool {
        self.waiting.front().is_some_and(|first| first.receipt <= self.last_returned())
    }
}

impl PacketPath {
    /// Has a packet wait that is to be sent, if the peer has to know its connection first. False if
    /// it leaves now.
    #[cold]
    #[inline(never)]
    pub(super) fn defer(&mut self, packet: &mut Packet, scratch: &Scratch) -> bool {
        let Scratch { tracked, exit, now, .. } = scratch;
        let cause = match tracked.fresh {
            true => Some(Cause::Opening),
            false => (is_of_handshake(packet) && self.owes_news(packet, tracked))
                .then_some(Cause::Handshake),
        };
        self.defer_exit(packet, exit, cause, *now)
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
        self.defer_exit(packet, exit, Some(Cause::Opening), now)
    }

    /// `cause`: why the packet waits, if not for the order of its flow alone.
    fn defer_exit(
        &mut self,
        packet: &mut Packet,
        exit: &Exit,
        cause: Option<Cause>,
        now: Timestamp,
    ) -> bool {
        // The host has its own copy of what is for it.
        if exit.route == Some(RouteDecision::Host) {
            return false;
        }
        let generation = self.tracking.generation();
        let Self { deferrals: Some(deferrals), buckets, counters, hasher, .. } = self else {
            return false;
        };
        let Some(flow) = &mut packet.flow else { return false };
        let (keyed, hash) = (flow.keyed, flow.table_hash(hasher));
        // To look for a flow takes a while, and a packet that opens one has none in front of it.
        let before = match cause {
            Some(Cause::Opening) => None,
            _ => deferrals.last_of(&keyed, hash).map(|it| it.receipt),
        };
        // A bucket that leaves takes nothing along that waits here.
        let is_awaited = deferrals.awaited.get() && buckets.is_routed_here(packet.bucket);
        let (cause, receipt) = match (cause.filter(|_| is_awaited), before) {
            (Some(cause), _) => (cause, deferrals.receipts + 1),
            (None, Some(receipt)) => (Cause::Order, receipt),
            (None, None) => return false,
        };
        let pieces = packet.pieces.iter().flat_map(|pieces| pieces.frames());
        let bytes = packet.frame.footprint() + pieces.map(|it| it.footprint()).sum::<usize>();
        if !deferrals.has_room_for(bytes) {
            counters.deferral.not_deferred += 1;
            if before.is_some() {
                let _ = self.send_deferred_if(now, |it| it.keyed == keyed);
            }
            return false;
        }
        counters.deferral.deferred += 1;
        deferrals.wants_receipt |= cause != Cause::Order;
        let deferred = Deferred {
            keyed,
            opener: Opener {
                packet: packet.take(),
                exit: *exit,
                generation,
                search: Search::new(None, 0),
            },
            cause,
            until: now.after(deferrals.limit),
            receipt,
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
        deferrals.last_of(&flow.keyed, hash).is_some()
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
            let (is_returned, last) = (deferrals.is_returned(), deferrals.last_returned());
            let Some(deferred) = deferrals.remove(0) else { break };
            let (keyed, last) = (deferred.keyed, deferred.receipt.max(last));
            let has_followers = deferrals.followers > 0;
            self.send_late(deferred, now);
            let mut sent = 1;
            if has_followers {
                // They do not wait for the connections of others.
                sent += self.send_deferred_if(now, |it| it.keyed == keyed && it.receipt <= last);
            }
            match is_returned {
                true => self.counters.deferral.acknowledged += sent,
                false => self.counters.deferral.timed_out += sent,
            }
            has_sent = true;
        }
        has_sent
    }

    /// Sends the packets whose buckets leave.
    pub(super) fn send_deferred_of_leaving(&mut self, now: Timestamp) {
        let Some(deferrals) = &self.deferrals else { return };
        let mut leaving: Vec<_> = deferrals
            .waiting
            .iter()
            .map(|it| it.opener.packet.bucket)
            .filter(|bucket| !self.buckets.is_routed_here(*bucket))
            .collect();
        leaving.sort_unstable();
        leaving.dedup();
        if !leaving.is_empty() {
            self.send_deferred_if(now, |it| leaving.contains(&it.opener.packet.bucket));
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

    /// Sends packets out of their turn, those of each flow in their order. Returns how many.
    fn send_deferred_if(&mut self, now: Timestamp, is_meant: impl Fn(&Deferred) -> bool) -> u64 {
        let (mut place, mut sent) = (0, 0);
        while let Some(deferrals) = &mut self.deferrals
            && let Some(deferred) = deferrals.waiting.get(place)
        {
            match is_meant(deferred) {
                true => {
                    let Some(deferred) = deferrals.remove(place) else { break };
                    self.send_late(deferred, now);
                    sent += 1;
                }
                false => place += 1,
            }
        }
        sent
    }

    fn send_late(&mut self, deferred: Deferred, now: Timestamp) {
        let Deferred { mut opener, cause, .. } = deferred;
        match self.renew_route(&mut opener) {
            Ok(()) => self.send_out(&mut opener.packet, &opener.exit, now),
            Err(why) => {
                if cause == Cause::Opening {
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
