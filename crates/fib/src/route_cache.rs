//! A cache of the routes found last.

use crate::fib::{Fib, Query, RouteResult};

/// Remembers the answers of a [`Fib`], so that only the first packet between two hosts takes
/// the look-up in rules and tables. A flow has one place in it; flows with the same place
/// replace each other.
#[derive(Debug)]
pub struct RouteCache {
    places: Box<[Option<(Query, RouteResult)>]>,
}

impl RouteCache {
    /// A cache with `places` places, rounded up to a power of two.
    pub fn new(places: usize) -> Self {
        Self { places: vec![None; places.next_power_of_two()].into() }
    }

    /// Forgets everything. Must be called when the [`Fib`] changes.
    pub fn forget(&mut self) {
        self.places.fill(None);
    }

    /// The answer of `fib` for a packet. `fib` must not have changed since [`RouteCache::forget`].
    #[inline]
    pub fn look_up(&mut self, fib: &Fib, query: &Query) -> RouteResult {
        let asked = fib.route_key(query);
        let at = asked.flow_hash as usize & (self.places.len() - 1);
        match &self.places[at] {
            Some((known, result)) if *known == asked => *result,
            _ => self.places[at].insert((asked, fib.look_up(&asked))).1,
        }
    }
}
