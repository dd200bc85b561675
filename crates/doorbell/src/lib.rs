//! Wakes a worker that sleeps, once per burst.
//!
//! A wake-up is a system call, so it must happen only while the worker sleeps. But a wake-up that
//! is lost would stall a flow for ever. So producer and consumer each write one thing and then
//! read what the other wrote, with a sequentially consistent fence between (Dekker's pattern). At
//! least one of them sees the other: either the producer sees that the worker sleeps, or the
//! worker sees the work.
//!
//! The flag has a crate of its own so that its model (`tests/loom.rs`) builds without the gateway.

#[cfg(loom)]
use loom::sync::atomic::{AtomicBool, Ordering, fence};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicBool, Ordering, fence};

/// Tells whether a worker sleeps. The worker and all its senders share it.
///
/// The worker changes the flag by exchanges, never by plain stores: an exchange comes after
/// everything that a sender has written before. Exchanges happen only around a sleep. A sender
/// that finds the worker awake only reads.
#[derive(Debug, Default)]
pub struct Doorbell {
    sleeping: AtomicBool,
}

impl Doorbell {
    /// Creates the doorbell of a worker that is awake.
    pub fn new() -> Self {
        Self { sleeping: AtomicBool::new(false) }
    }

    /// Called by a sender, after its work is visible in the ring. True if the worker sleeps and
    /// this caller has to wake it.
    #[must_use]
    pub fn ring(&self) -> bool {
        fence(Ordering::SeqCst);
        self.sleeping.load(Ordering::Acquire) && self.sleeping.swap(false, Ordering::AcqRel)
    }

    /// Called by the worker before it sleeps. It must then look at all its rings once more, and
    /// sleep only if they are empty.
    pub fn prepare_to_sleep(&self) {
        self.sleeping.swap(true, Ordering::AcqRel);
        fence(Ordering::SeqCst);
    }

    /// Called by the worker after it has slept.
    pub fn awake(&self) {
        self.sleeping.swap(false, Ordering::AcqRel);
    }
}
