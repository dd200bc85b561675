//! Waking a worker that sleeps, once per burst.
//!
//! A wake-up is a system call, so it must happen only when the worker sleeps; and
//! a wake-up that is lost stalls a flow for ever. Producer and consumer each write
//! one thing and then read what the other wrote, with a sequentially consistent
//! fence between (Dekker's pattern), so at least one of them sees the other:
//! either the producer sees that the worker sleeps, or the worker sees the work.

#[cfg(loom)]
use loom::sync::atomic::{AtomicBool, Ordering, fence};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicBool, Ordering, fence};

/// Says whether a worker sleeps. Shared by the worker and all who send to it.
///
/// The worker changes the flag by exchanges, never by plain stores: an exchange
/// takes its place behind whatever a sender has just written. They cost something
/// only around a sleep; a sender that finds the worker awake only reads.
#[derive(Debug, Default)]
pub struct Doorbell {
    sleeping: AtomicBool,
}

impl Doorbell {
    /// A doorbell of a worker that is awake.
    pub fn new() -> Self {
        Self { sleeping: AtomicBool::new(false) }
    }

    /// For the sender, after its work is visible in the ring: true when the
    /// worker sleeps and the caller is the one who has to wake it.
    #[must_use]
    pub fn ring(&self) -> bool {
        fence(Ordering::SeqCst);
        self.sleeping.load(Ordering::Acquire) && self.sleeping.swap(false, Ordering::AcqRel)
    }

    /// For the worker: announces that it is about to sleep. It must look at all
    /// its rings once more after this, and sleep only if they are empty.
    pub fn prepare_to_sleep(&self) {
        self.sleeping.swap(true, Ordering::AcqRel);
        fence(Ordering::SeqCst);
    }

    /// For the worker: it is awake again.
    pub fn awake(&self) {
        self.sleeping.swap(false, Ordering::AcqRel);
    }
}
