//! The reassembly stage: the owner of a bucket keeps fragments until their datagram is complete.
//!
//! The whole datagram is put together in a buffer of its own, which takes one copy of each byte.
//! It is tracked and judged. The gateway then sends the fragments as they came.

use std::ops::ControlFlow;

use defrag::{
    Buffer, Context, Cursor, Memory, Outcome, Parcel, Phase, Piece, QueueView, Reassembler, Summary,
};
use flow::{DefragCounters, DropReason, HashKey, Timestamp};
use netio::{Checksum, Frame, FramePool};
use steer::BucketId;
use wire::icmp_error::Message;
use wire::{Dissected, Family, Network, Transport};

use crate::path::PacketPath;
use crate::path::packet::Packet;
use crate::path::scratch::Scratch;
use crate::path::step::{End, OrDrop, Step, Wait, dropped};
use crate::path::zones::Origin;

/// Most datagrams that one turn checks for their timeout, so that expiry never holds up a batch of
/// packets.
pub const EXPIRE_DATAGRAMS: usize = 64;
/// Most empty [`Pieces`] that a worker keeps for later datagrams.
const SPARE_PIECES: usize = 256;

/// Most fragments for which spare [`Pieces`] have room: those of the longest datagram over a link
/// of 1500 bytes.
const SPARE_CAPACITY: usize = 64;

/// A fragment that waits for its datagram.
#[derive(Debug)]
pub struct Fragment {
    frame: Frame,
    /// The first byte of its payload in the frame, and the byte behind the last.
    payload: (u16, u32),
}

impl Fragment {
    fn payload(&self) -> &[u8] {
        let (start, end) = self.payload;
        // The range is valid: a frame does not change while it waits.
        self.frame.bytes().get(start.into()..end as usize).unwrap_or_default()
    }
}

impl Buffer for Fragment {
    fn footprint(&self) -> usize {
        self.frame.footprint()
    }
}

/// The fragments of a complete datagram, in the order of their offsets.
#[derive(Debug, Default)]
pub struct Pieces {
    fragments: Vec<Fragment>,
}

impl Pieces {
    #[cfg(test)]
    pub fn of(frames: impl IntoIterator<Item = Frame>) -> Box<Self> {
        let fragment = |frame| Fragment { frame, payload: (0, 0) };
        Box::new(Self { fragments: frames.into_iter().map(fragment).collect() })
    }

    /// Copies the transport header of `whole` back into the first fragment, where all of it lies
    /// (RFC 7112 section 5). `network` describes `whole`, whose header has changed since the
    /// datagram was put together.
    pub fn copy_header(&mut self, whole: &[u8], network: &Network) {
        let Transport::Tcp(tcp) = network.transport else { return };
        let from = usize::from(network.transport_offset);
        let header = whole.get(from..from + usize::from(tcp.header_len));
        if let Some(first) = self.fragments.first_mut()
            && let Ok(Dissected { network: Some(described), .. }) =
                wire::dissect(first.frame.bytes())
            && let Some(header) = header
            && let Some(place) = first
                .frame
                .bytes_mut()
                .get_mut(described.transport_offset.into()..)
                .and_then(|rest| rest.get_mut(..header.len()))
        {
            place.copy_from_slice(header);
        }
    }

    /// The frames as they came from outside.
    pub fn frames(&self) -> impl ExactSizeIterator<Item = &Frame> {
        self.fragments.iter().map(|fragment| &fragment.frame)
    }

    /// The frames as they came from outside, to be changed.
    pub fn frames_mut(&mut self) -> impl Iterator<Item = &mut Frame> {
        self.fragments.iter_mut().map(|fragment| &mut fragment.frame)
    }

    /// Replaces the frames of the datagram.
    pub fn replace(&mut self, frames: Vec<Frame>, pool: &mut FramePool) {
        self.fragments.drain(..).for_each(|fragment| pool.give_back(fragment.frame));
        // Only reassembly needs to know where a payload lies, and that is done.
        let fragment = |frame| Fragment { frame, payload: (0, 0) };
        self.fragments.extend(frames.into_iter().map(fragment));
    }
}

/// A fragment that reassembly has given up, and why.
pub type Discarded = (Fragment, defrag::DiscardCause);

/// The state that a worker needs to reassemble.
#[derive(Debug)]
pub struct Reassembly {
    queues: Reassembler<Fragment>,
    memory: Memory,
    #[expect(clippy::vec_box, reason = "what is reused are the boxes, which travel in packets")]
    spare: Vec<Box<Pieces>>,
}

/// The incomplete datagrams of a worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DatagramStatus {
    /// Datagrams of both families, including those that were given up and are still remembered.
    pub count: u64,
    /// Memory of IPv4 datagrams.
    pub v4: DatagramMemory,
    /// Memory of IPv6 datagrams.
    pub v6: DatagramMemory,
}

/// Memory charged for incomplete datagrams, bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DatagramMemory {
    /// For datagrams of which one fragment has come.
    pub newcomers: u64,
    /// For datagrams of which several fragments have come.
    pub in_progress: u64,
    /// For datagrams that were given up and are still remembered.
    pub given_up: u64,
}

impl DatagramMemory {
    /// The sum of all parts.
    pub fn total(&self) -> u64 {
        self.newcomers + self.in_progress + self.given_up
    }
}

impl Reassembly {
    /// Creates a part that holds nothing.
    pub fn new(secret: HashKey, memory: Memory) -> Self {
        Self { queues: Reassembler::new(secret), memory, spare: Vec::new() }
    }

    /// Takes the share of one of this many workers of the memory for fragments.
    pub fn share_limits(&mut self, workers: u32) {
        self.memory.set_workers(workers);
    }

    /// The incomplete datagrams in this many places of the table, and the start of the next places.
    pub fn list(
        &self,
        from: Cursor,
        places: u32,
        settings: &defrag::Settings,
        now: Timestamp,
    ) -> (Vec<QueueView>, Option<Cursor>) {
        let mut found = Vec::new();
        let next = self.queues.list(from, places, settings, now, |view| found.push(view));
        (found, next)
    }

    /// The datagrams and the memory that are held.
    pub fn status(&self) -> DatagramStatus {
        let memory = |family| DatagramMemory {
            newcomers: self.queues.charged(family, Phase::Newcomer),
            in_progress: self.queues.charged(family, Phase::Progress),
            // The reason does not matter: all reasons are charged together.
            given_up: self.queues.charged(family, Phase::Dead(DropReason::FragOverlap)),
        };
        let count = self.queues.len() as u64;
        DatagramStatus { count, v4: memory(Family::V4), v6: memory(Family::V6) }
    }

    /// Works on the incomplete datagrams. Fragments that are given up go to `discarded`.
    fn call<R>(
        &mut self,
        discarded: &mut Vec<Discarded>,
        now: Timestamp,
        settings: &defrag::Settings,
        counters: &mut DefragCounters,
        work: impl FnOnce(&mut Reassembler<Fragment>, &mut Context<'_, Fragment>) -> R,
    ) -> R {
        let mut discard = |fragment, why| discarded.push((fragment, why));
        let mut context =
            Context { now, settings, memory: &mut self.memory, counters, discard: &mut discard };
        work(&mut self.queues, &mut context)
    }

    fn keep(&mut self, pieces: Box<Pieces>) {
        debug_assert!(pieces.fragments.is_empty());
        // Pieces that a datagram of thousands of fragments has made large are not kept.
        let is_small = pieces.fragments.capacity() <= SPARE_CAPACITY;
        if is_small && self.spare.len() < SPARE_PIECES {
            self.spare.push(pieces);
        }
    }
}

impl PacketPath {
    /// Works on the incomplete datagrams, and drops the fragments that are given up.
    fn with_datagrams<R>(
        &mut self,
        now: Timestamp,
        work: impl FnOnce(&mut Reassembler<Fragment>, &mut Context<'_, Fragment>) -> R,
    ) -> R {
        let settings = &self.tracking.settings().defrag;
        let (discarded, counters) = (&mut self.discarded, &mut self.counters.defrag);
        let result = self.reassembly.call(discarded, now, settings, counters, work);
        self.drop_discarded(now);
        result
    }

    /// Takes in a fragment. When its datagram is complete, that takes its place.
    #[inline]
    pub(super) fn reassemble(&mut self, packet: &mut Packet, scratch: &mut Scratch) -> Step {
        match Piece::of(&packet.network, packet.origin.realm()) {
            Some(piece) => self.take_piece(&piece, packet, scratch.now),
            None => ControlFlow::Continue(()),
        }
    }

    fn take_piece(&mut self, piece: &Piece, packet: &mut Packet, now: Timestamp) -> Step {
        let Packet { network, bucket, origin, .. } = *packet;
        let start = network.fragment.map_or(network.transport_offset, |info| info.payload_offset);
        self.pool.compact(&mut packet.frame);
        let frame = std::mem::take(&mut packet.frame);
        let timestamp = frame.timestamp;
        let fragment = Fragment { frame, payload: (start, network.end) };
        let mut pieces = self.reassembly.spare.pop().unwrap_or_default();
        let settings = &self.tracking.settings().defrag;
        let counters = &mut self.counters.defrag;
        let discarded = &mut self.discarded;
        let outcome =
            self.reassembly.call(discarded, now, settings, counters, |queues, context| {
                queues.insert(piece, bucket.0, fragment, &mut pieces.fragments, context)
            });
        match outcome {
            Outcome::Complete(summary) => {
                self.complete(packet, pieces, &summary, origin, timestamp)
            }
            Outcome::Held | Outcome::Refused => {
                self.reassembly.keep(pieces);
                ControlFlow::Break(End::Wait(Wait::Datagram))
            }
        }
    }

    /// Puts a complete datagram in the place of its last fragment, and steers it, now by its flow.
    fn complete(
        &mut self,
        packet: &mut Packet,
        pieces: Box<Pieces>,
        summary: &Summary,
        origin: Origin,
        timestamp: u64,
    ) -> Step {
        let whole = self.put_together(&pieces, summary);
        // The fragments are dropped with the packet if anything is wrong with the whole.
        packet.pieces = Some(pieces);
        packet.frame = whole.or_drop()?;
        packet.frame.timestamp = timestamp;
        let network = match wire::dissect(packet.frame.bytes()) {
            Ok(Dissected { network: Some(network), .. }) => network,
            Ok(_) => return dropped(DropReason::FragHeaderChain),
            Err(malformed) => return dropped(malformed),
        };
        let (frame, pieces) = (std::mem::take(&mut packet.frame), packet.pieces.take());
        *packet = self.steer(frame, &network, origin, pieces);
        if let Some(flow) = &mut packet.flow {
            flow.table_hash(&self.hasher);
        }
        ControlFlow::Break(End::Steer(None))
    }

    /// Drops the fragments that reassembly has given up. As a router of the kernel does, it tells
    /// the sender of an IPv6 datagram whose first fragment has come that its time is over (RFC 8200
    /// section 4.5); for IPv4 only the destination does (RFC 792).
    #[inline]
    pub(super) fn drop_discarded(&mut self, now: Timestamp) {
        if !self.discarded.is_empty() {
            self.drop_all_discarded(now);
        }
    }

    #[cold]
    fn drop_all_discarded(&mut self, now: Timestamp) {
        while let Some((fragment, why)) = self.discarded.pop() {
            let is_late = why.reason() == DropReason::FragTimeout;
            if is_late && self.forwarder.router().is_some() && is_first_of_ipv6(&fragment.frame) {
                self.tell(&fragment.frame, Message::ReassemblyTime, now);
            }
            self.drop_frame(fragment.frame, why.into());
        }
    }

    /// Puts the datagram together in a buffer of its own.
    fn put_together(&mut self, pieces: &Pieces, summary: &Summary) -> Result<Frame, DropReason> {
        let first = &pieces.fragments.first().ok_or(DropReason::FragHeaderChain)?.frame;
        let network = wire::dissect(first.bytes())?.network;
        let network = network.ok_or(DropReason::FragHeaderChain)?;
        let length = wire::whole_header_len(&network).ok_or(DropReason::FragHeaderChain)?;
        let (payload, ecn) = (summary.payload as usize, summary.ecn as u8);
        let mut frame = self.pool.take(length + payload).ok_or(DropReason::FragOversize)?;
        let (header, mut rest) = frame.bytes_mut().split_at_mut(length);
        if wire::whole_header(first.bytes(), &network, payload, ecn, header).is_none() {
            self.pool.give_back(frame);
            return Err(DropReason::FragOversize);
        }
        for fragment in &pieces.fragments {
            let bytes = fragment.payload();
            // The payloads fill the datagram exactly.
            let length = bytes.len().min(rest.len());
            let (place, behind) = std::mem::take(&mut rest).split_at_mut(length);
            place.copy_from_slice(&bytes[..length]);
            rest = behind;
        }
        debug_assert!(rest.is_empty(), "the pieces of a complete datagram leave no gap");
        (frame.port, frame.service) = (first.port, first.service);
        frame.sequence = first.sequence;
        let is_cut = |it: &Fragment| it.frame.offload.checksum == Checksum::Cut;
        if pieces.fragments.iter().any(is_cut) {
            frame.offload.checksum = Checksum::Cut;
        } else if first.offload.checksum != Checksum::Complete {
            frame.offload.checksum = Checksum::Verified;
        }
        Ok(frame)
    }

    /// The fragments of a datagram. The caller empties the vector and gives it back as `apart`.
    pub(super) fn take_apart(&mut self, whole: Frame, mut pieces: Box<Pieces>) -> Vec<Frame> {
        self.pool.give_back(whole);
        let mut frames = std::mem::take(&mut self.apart);
        frames.extend(pieces.fragments.drain(..).map(|fragment| fragment.frame));
        self.reassembly.keep(pieces);
        frames
    }

    /// Gives up a bounded number of datagrams that have timed out. Returns how many it gave up.
    pub(super) fn expire_datagrams(&mut self, now: Timestamp) -> usize {
        self.with_datagrams(now, |queues, context| queues.expire(EXPIRE_DATAGRAMS, context))
    }

    /// Drops the incomplete datagrams, because the worker or the capture has ended.
    pub(super) fn end_datagrams(&mut self) {
        let defrag = self.counters.defrag;
        let expire = |queues: &mut Reassembler<Fragment>, context: &mut Context<'_, Fragment>| {
            queues.expire(EXPIRE_DATAGRAMS, context)
        };
        loop {
            let settings = &self.tracking.settings().defrag;
            let counters = &mut self.counters.defrag;
            let mut discarded = Vec::new();
            let expired =
                self.reassembly.call(&mut discarded, Timestamp::NEVER, settings, counters, expire);
            // They are dropped after each round, because all of them may not fit into memory
            // twice.
            for (fragment, why) in discarded {
                self.drop_frame(fragment.frame, why.at_the_end().into());
            }
            if expired == 0 {
                break;
            }
        }
        // They have not timed out, so they must not count as timeouts.
        self.counters.defrag.reasm_timeout = defrag.reasm_timeout;
    }

    /// Takes out the datagrams of a bucket that leaves.
    pub(super) fn pack_datagrams(&mut self, bucket: BucketId) -> Option<Parcel<Fragment>> {
        let Reassembly { queues, memory, .. } = &mut self.reassembly;
        let parcel = queues.extract(bucket.0, memory);
        (!parcel.is_empty()).then_some(parcel)
    }

    /// Takes over the datagrams of a bucket that has arrived.
    pub(super) fn unpack_datagrams(&mut self, parcel: Parcel<Fragment>, now: Timestamp) {
        self.with_datagrams(now, |queues, context| queues.adopt(parcel, context));
    }
}

fn is_first_of_ipv6(frame: &Frame) -> bool {
    match wire::dissect(frame.bytes()) {
        Ok(Dissected { network: Some(network), .. }) => {
            network.family == Family::V6 && network.fragment.is_some_and(|it| it.offset == 0)
        }
        _ => false,
    }
}

#[cfg(test)]
#[path = "reassembly_tests.rs"]
mod tests;
