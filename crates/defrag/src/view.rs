//! Incomplete datagrams as operators see them.

use std::time::Duration;

use flow::Timestamp;

use crate::nursery::Young;
use crate::queue::{Identity, Phase, Queue};
use crate::reassembler::{Buffer, Reassembler};
use crate::tally::Tally;
use crate::{DatagramKey, Settings};

/// A position in a listing. The default is the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Cursor(u32);

/// An incomplete datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueView {
    /// Its key.
    pub key: DatagramKey,
    /// Bucket that owns it.
    pub bucket: u16,
    /// Its phase.
    pub phase: Phase,
    /// Fragments held.
    pub pieces: u32,
    /// Payload held, bytes.
    pub received: u32,
    /// Payload of the whole datagram in bytes, once the last fragment has come.
    pub total: Option<u32>,
    /// Memory charged, bytes.
    pub charged: u64,
    /// Time since the first fragment came.
    pub age: Duration,
    /// Time until its timeout.
    pub remaining: Duration,
}

impl<F: Buffer> Reassembler<F> {
    /// Lists the datagrams in the next `places` slots, and returns the position to continue
    /// from; `None` at the end. Datagrams that come or go between two calls may be missing;
    /// none is listed twice.
    pub fn list(
        &self,
        from: Cursor,
        places: u32,
        settings: &Settings,
        now: Timestamp,
        mut each: impl FnMut(QueueView),
    ) -> Option<Cursor> {
        let end = self.queues.slots().min(from.0.saturating_add(places));
        for queue in (from.0..end).filter_map(|slot| self.queues.get(slot)) {
            each(queue.view(settings, now));
        }
        if end < self.queues.slots() {
            return Some(Cursor(end));
        }
        // The nursery comes last, because datagrams move from it to the table and never back.
        self.nursery.iter().for_each(|young| each(young.view(settings, now)));
        None
    }
}

impl Queue {
    fn view(&self, settings: &Settings, now: Timestamp) -> QueueView {
        let Identity { key, bucket, phase, created, .. } = self.identity;
        let view = self.state.tally.view(key, bucket, phase, settings, now.since(created));
        if phase.is_dead() { QueueView { pieces: 0, received: 0, ..view } } else { view }
    }
}

impl<F> Young<F> {
    fn view(&self, settings: &Settings, now: Timestamp) -> QueueView {
        let age = now.since(self.created);
        self.tally.view(self.key, self.bucket, self.phase(), settings, age)
    }
}

impl Tally {
    fn view(
        &self,
        key: DatagramKey,
        bucket: u16,
        phase: Phase,
        settings: &Settings,
        age: Duration,
    ) -> QueueView {
        QueueView {
            key,
            bucket,
            phase,
            pieces: self.pieces.into(),
            received: self.received.into(),
            total: (self.total != 0).then(|| self.total.into()),
            charged: self.charged.into(),
            age,
            remaining: settings.family(key.family()).timeout().saturating_sub(age),
        }
    }
}
