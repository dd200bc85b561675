//! Reads a capture on a thread of its own, ahead of the packets that are played, and finds their
//! flows.

use std::collections::BTreeMap;
use std::io;
use std::panic::resume_unwind;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::thread::{Builder, JoinHandle};

use netio::capture::{
    CaptureReader, Captured, CapturedPacket, Stored, StoredPacket, name_of_link_type,
};
use netio::{Frame, FramePool, PortId};

use crate::path::packet::Packet;

/// Most packets of a batch.
const PACKETS: usize = 256;
/// A batch ends with the packet that reaches this many bytes. All batches should stay in the cache.
const BYTES: usize = 64 << 10;
/// Batches between the two threads.
const BATCHES: usize = 4;
/// Free buffers for frames that are kept, small ones and large ones.
const BUFFERS: [usize; 2] = [64, 16];

/// A capture that is read ahead.
///
/// A batch ends early where the next packet is still on its way, so that a packet of a stream is
/// played as soon as it is there. If a replay ends before its capture, the reader ends with its next
/// packet, and nobody waits for that.
#[derive(Debug)]
pub struct ReadAhead {
    full: Receiver<Batch>,
    empty: SyncSender<Batch>,
    thread: Option<JoinHandle<()>>,
    batch: Batch,
    /// The place of the next packet in the batch.
    next: usize,
    taken: Taken,
    pool: FramePool,
}

/// The packets that were taken so far.
#[derive(Clone, Debug, Default)]
pub struct Taken {
    /// All of them.
    pub packets: u64,
    /// Those that the capturing program had cut off.
    pub truncated: u64,
    /// Those whose headers were mended.
    pub mended: u64,
    /// Those of link types that are not read, by the name of the link type.
    pub foreign: BTreeMap<String, u64>,
}

/// Packets on their way to the replay.
#[derive(Debug, Default)]
struct Batch {
    packets: Vec<Entry>,
    /// Their bytes.
    bytes: Vec<u8>,
    /// Names of their interfaces.
    interfaces: Vec<String>,
    /// No packet follows, and this is why if the capture could not be read to its end.
    end: Option<Option<String>>,
}

#[derive(Debug)]
struct Entry {
    stored: StoredPacket,
    /// The place of the name of its interface.
    interface: usize,
    /// The packet without its frame, if it was found.
    found: Option<Packet>,
}

impl ReadAhead {
    /// Begins to read. `finder` finds the packet of a frame that came in by a port, if it can.
    ///
    /// # Errors
    /// The system's error if there is no thread.
    pub fn new(
        input: CaptureReader,
        finder: impl Fn(&[u8], PortId) -> Option<Packet> + Send + 'static,
    ) -> io::Result<Self> {
        let (to_replay, full) = sync_channel(BATCHES);
        let (empty, to_reader) = sync_channel(BATCHES);
        for _ in 0..BATCHES {
            // There is room for all of them.
            let _ = empty.try_send(Batch::default());
        }
        let reader = move || read(input, finder, &to_reader, &to_replay);
        let thread = Some(Builder::new().name("reader".into()).spawn(reader)?);
        let (batch, taken) = (Batch::default(), Taken::default());
        let pool = FramePool::new(BUFFERS[0], BUFFERS[1]);
        Ok(Self { full, empty, thread, batch, next: 0, taken, pool })
    }

    /// True if [`ReadAhead::next_packet`] does not have to wait.
    pub fn is_ready(&mut self) -> bool {
        if self.next < self.batch.packets.len() || self.batch.end.is_some() {
            return true;
        }
        match self.full.try_recv() {
            Ok(batch) => self.begin(batch),
            Err(TryRecvError::Empty) => return false,
            // The reader has ended, and there is nothing to wait for.
            Err(TryRecvError::Disconnected) => {}
        }
        true
    }

    /// The next packet; `None` at the end.
    pub fn next_packet(&mut self) -> Option<Captured> {
        while self.next == self.batch.packets.len() {
            if self.batch.end.is_some() {
                return None;
            }
            self.exchange();
        }
        let packet = &self.batch.packets[self.next].stored;
        self.next += 1;
        self.taken.packets += 1;
        self.taken.truncated += u64::from(packet.is_truncated());
        self.taken.mended += u64::from(packet.is_mended);
        let captured = packet.take(&self.batch.bytes, &mut self.pool);
        if let Captured::Foreign = captured {
            let name = name_of_link_type(packet.link_type);
            *self.taken.foreign.entry(name).or_default() += 1;
        }
        Some(captured)
    }

    /// Goes on with another batch, and gives the one before back.
    fn begin(&mut self, batch: Batch) {
        let mut before = std::mem::replace(&mut self.batch, batch);
        before.clear();
        // A reader that has ended needs no batches.
        let _ = self.empty.try_send(before);
        self.next = 0;
    }

    /// Waits for another batch.
    fn exchange(&mut self) {
        match self.full.recv() {
            Ok(batch) => self.begin(batch),
            // The reader sends the end, unless it panics.
            Err(_) => {
                if let Some(Err(panic)) = self.thread.take().map(JoinHandle::join) {
                    resume_unwind(panic);
                }
            }
        }
    }

    /// The packets that were taken so far.
    pub fn taken(&self) -> &Taken {
        &self.taken
    }

    /// The length of the packet that was taken last, bytes, if the capture has only a part of it.
    pub fn length_before_cut(&self) -> Option<u32> {
        let packet = &self.last()?.stored;
        packet.is_truncated().then_some(packet.original_length)
    }

    /// The packet that was taken last, as it was captured.
    pub fn captured(&self) -> Option<CapturedPacket<'_>> {
        let Entry { stored, interface, .. } = self.last()?;
        Some(stored.captured(&self.batch.bytes, self.batch.interfaces.get(*interface)?))
    }

    fn last(&self) -> Option<&Entry> {
        self.batch.packets.get(self.next.checked_sub(1)?)
    }

    /// The packet that was taken last, without its frame, if it was found.
    pub fn found(&mut self) -> Option<&mut Packet> {
        self.batch.packets.get_mut(self.next.checked_sub(1)?)?.found.as_mut()
    }

    /// The packet that will be taken `distance` packets behind the last one, if it is here and was
    /// found.
    pub fn upcoming(&self, distance: usize) -> Option<&Packet> {
        self.batch.packets.get((self.next + distance).checked_sub(1)?)?.found.as_ref()
    }

    /// Takes back the buffer of a frame.
    pub fn give_back(&mut self, frame: Frame) {
        self.pool.give_back(frame);
    }

    /// Why the capture could not be read to its end, once that was reached.
    pub fn problem(&self) -> Option<&str> {
        self.batch.end.as_ref()?.as_deref()
    }
}

impl Batch {
    fn clear(&mut self) {
        self.packets.clear();
        self.bytes.clear();
        self.interfaces.clear();
    }

    /// Adds a packet of `input` whose bytes are here.
    fn add(
        &mut self,
        stored: StoredPacket,
        input: &CaptureReader,
        finder: &impl Fn(&[u8], PortId) -> Option<Packet>,
    ) {
        let interface = input.interface_name(stored.interface);
        if self.interfaces.last().is_none_or(|name| !is_same(name, interface)) {
            self.interfaces.push(interface.to_owned());
        }
        let found = match &stored.frame {
            Stored::Frame { bytes, port, .. } => finder(&self.bytes[bytes.clone()], *port),
            Stored::TooLong(_) | Stored::Foreign => None,
        };
        self.packets.push(Entry { stored, interface: self.interfaces.len() - 1, found });
    }

    fn is_full(&self) -> bool {
        self.packets.len() >= PACKETS || self.bytes.len() >= BYTES
    }
}

/// True if two names are the same. Most captures name no interface. The processor may need 100 ns to
/// compare nothing at the address that an empty string has.
fn is_same(one: &str, other: &str) -> bool {
    one.len() == other.len() && (one.is_empty() || one == other)
}

/// Fills batches until the capture or the replay ends.
fn read(
    mut input: CaptureReader,
    finder: impl Fn(&[u8], PortId) -> Option<Packet>,
    empty: &Receiver<Batch>,
    full: &SyncSender<Batch>,
) {
    while let Ok(mut batch) = empty.recv() {
        loop {
            match input.append_packet(&mut batch.bytes) {
                Ok(Some(packet)) => batch.add(packet, &input, &finder),
                end => {
                    batch.end = Some(end.err().map(|error| error.to_string()));
                    break;
                }
            }
            if batch.is_full() || !input.has_packet() {
                break;
            }
        }
        let is_over = batch.end.is_some();
        if full.send(batch).is_err() || is_over {
            return;
        }
    }
}

#[cfg(test)]
#[path = "read_ahead_tests.rs"]
mod tests;
