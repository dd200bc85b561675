//! The ways that were found last.

use crate::fib::{Fib, Query, Way};

/// Remembers what a [`Fib`] has said about packets, so that all but the first between two
/// hosts are spared the rules and tables. A packet's flow has one place in it, which the flow
/// that came last holds.
#[derive(Debug)]
pub struct Ways {
    places: Box<[Option<(Query, Way)>]>,
}

impl Ways {
    /// For as many flows as fit into `places`, a power of two (anything else is made the next
    /// larger one).
    pub fn new(places: usize) -> Self {
        Self { places: vec![None; places.next_power_of_two()].into() }
    }

    /// Forgets everything: to be called when the [`Fib`] is another.
    pub fn forget(&mut self) {
        self.places.fill(None);
    }

    /// What `fib` says about a packet, the same one as since [`Ways::forget`].
    #[inline]
    pub fn way(&mut self, fib: &Fib, query: &Query) -> Way {
        let asked = fib.essence(query);
        let at = asked.flow_hash as usize & (self.places.len() - 1);
        match &self.places[at] {
            Some((known, way)) if *known == asked => *way,
            _ => self.places[at].insert((asked, fib.way(&asked))).1,
        }
    }
}
