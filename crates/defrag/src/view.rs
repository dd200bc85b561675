//! Incomplete datagrams as operators see them.

use std::time::Duration;

use flow::Timestamp;

use crate::queue::{Queue, Stage};
use crate::reassembler::{Buffer, Reassembler};
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
        (end < self.queues.slots()).then_some(Cursor(end))
    }
}

impl Queue {
    fn view(&self, settings: &Settings, now: Timestamp) -> QueueView {
        let Queue { identity, state } = self;
        let age = now.since(identity.created);
        let held = |count: u16| if identity.stage.is_dead() { 0 } else { u32::from(count) };
        QueueView {
            key: identity.key,
            bucket: identity.bucket,
            stage: identity.stage,
            pieces: held(state.pieces),
            received: held(state.received),
            total: (state.total != 0).then(|| state.total.into()),
            charged: state.charged.into(),
            age,
            remaining: settings.family(identity.key.family).timeout().saturating_sub(age),
        }
    }
}
