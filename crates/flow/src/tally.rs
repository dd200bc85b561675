//! Numbers of connections that are alive, over all workers.
//!
//! A rule may ask how many connections an address has. The connections are in the buckets of
//! several workers, so the number is beside them. A connection that is counted holds a [`Tallied`],
//! and the number goes down when the connection lets go of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// A number of connections. Nobody asks for it any more once it is dropped.
#[derive(Debug, Default)]
pub struct Tally(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    count: AtomicU32,
    is_over: AtomicBool,
}

/// The place of a connection in a [`Tally`]. It is free again once this is dropped.
#[derive(Debug)]
pub struct Tallied(Arc<Shared>);

impl Tally {
    /// The number of connections now.
    pub fn count(&self) -> u32 {
        // Relaxed: the number guards no other memory.
        self.0.count.load(Ordering::Relaxed)
    }

    /// Counts one more connection, and returns their number with it.
    pub fn join(&self) -> (Tallied, u32) {
        let count = self.0.count.fetch_add(1, Ordering::Relaxed) + 1;
        (Tallied(self.0.clone()), count)
    }

    /// Counts one more connection if there are `most` then at most, and returns their number with it.
    pub fn join_within(&self, most: u32) -> Option<(Tallied, u32)> {
        let more = |count: u32| (count < most).then_some(count + 1);
        let before = self.0.count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok()?;
        Some((Tallied(self.0.clone()), before + 1))
    }
}

/// A clone is a tally of its own that begins with the same number.
impl Clone for Tally {
    fn clone(&self) -> Self {
        let count = AtomicU32::new(self.count());
        Self(Arc::new(Shared { count, is_over: AtomicBool::new(false) }))
    }
}

impl Drop for Tally {
    fn drop(&mut self) {
        self.0.is_over.store(true, Ordering::Relaxed);
    }
}

impl Tallied {
    /// True if it is a place in this tally.
    pub fn is_of(&self, tally: &Tally) -> bool {
        Arc::ptr_eq(&self.0, &tally.0)
    }

    /// True if nobody asks for the number any more.
    pub fn is_over(&self) -> bool {
        self.0.is_over.load(Ordering::Relaxed)
    }
}

impl Drop for Tallied {
    fn drop(&mut self) {
        self.0.count.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_is_counted_until_it_lets_go() {
        let (tally, other) = (Tally::default(), Tally::default());
        let (first, _) = tally.join();
        let (second, count) = tally.join();
        assert_eq!((count, tally.count(), other.count()), (2, 2, 0));
        assert!(first.is_of(&tally) && !first.is_of(&other));
        assert!(tally.join_within(2).is_none());
        assert_eq!(tally.join_within(3).map(|(_, count)| count), Some(3), "it lets go at once");
        assert_eq!(tally.count(), 2);
        let copy = tally.clone();
        drop(first);
        assert_eq!((tally.count(), copy.count()), (1, 2));
        assert!(!second.is_over());
        drop(tally);
        assert!(second.is_over());
    }
}
