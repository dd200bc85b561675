//! Incomplete datagrams as operators see them.

use std::time::Duration;

use flow::Timestamp;

use crate::nursery::Young;
use crate::queue::{Identity, Queue, Stage};
use crate::reassembler::{Buffer, Reassembler};
use crate::tally::Tally;
use crate::{DatagramKey, Settings};

/// How far a listing has come. The start is the default.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Cursor(u32);

/// An incomplete datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueView {
    /// Which one.
    pub key: DatagramKey,
    /// Bucket that owns it.
    pub bucket: u16,
    /// Where it stands.
    pub stage: Stage,
    /// Pieces held.
    pub pieces: u32,
    /// Payload held, bytes.
    pub received: u32,
    /// Payload of the whole, bytes, once the last piece has come.
    pub total: Option<u32>,
    /// Memory charged, bytes.
    pub charged: u64,
    /// Time since the first piece came.
    pub age: Duration,
    /// Time that is left.
    pub remaining: Duration,
}

impl<F: Buffer> Reassembler<F> {
    /// Shows the datagrams in the next `places` places, and returns where to go on;
    /// `None` at the end. Datagrams that come or go between two calls may be
    /// missed; none is shown twice.
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
        // Last, because they go to the table and not the other way.
        self.nursery.iter().for_each(|young| each(young.view(settings, now)));
        None
    }
}

impl Queue {
    fn view(&self, settings: &Settings, now: Timestamp) -> QueueView {
        let Identity { key, bucket, stage, created, .. } = self.identity;
        let view = self.state.tally.view(key, bucket, stage, settings, now.since(created));
        if stage.is_dead() { QueueView { pieces: 0, received: 0, ..view } } else { view }
    }
}

impl<F> Young<F> {
    fn view(&self, settings: &Settings, now: Timestamp) -> QueueView {
        let age = now.since(self.created);
        self.tally.view(self.key, self.bucket, self.stage(), settings, age)
    }
}

impl Tally {
    fn view(
        &self,
        key: DatagramKey,
        bucket: u16,
        stage: Stage,
        settings: &Settings,
        age: Duration,
    ) -> QueueView {
        QueueView {
            key,
            bucket,
            stage,
            pieces: self.pieces.into(),
            received: self.received.into(),
            total: (self.total != 0).then(|| self.total.into()),
            charged: self.charged.into(),
            age,
            remaining: settings.family(key.family()).timeout().saturating_sub(age),
        }
    }
}
