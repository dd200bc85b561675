//! The number of TCP connections in their handshake, which decides when the SYN proxy starts.

use flow::Zone;

/// Half-open TCP connections by zone, of one table or of all tables of a worker.
///
/// They are always counted, so a proxy that is switched on during a flood knows the connections
/// that the flood has opened. Only zones with half-open connections have an entry.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HalfOpen(Vec<(Zone, u64)>);

impl HalfOpen {
    /// The number in a zone.
    pub fn get(&self, zone: Zone) -> u64 {
        self.find(zone).map_or(0, |at| self.0[at].1)
    }

    pub(crate) fn enter(&mut self, zone: Zone) {
        self.raise(zone, 1);
    }

    pub(crate) fn leave(&mut self, zone: Zone) {
        self.lower(zone, 1);
    }

    pub(crate) fn add(&mut self, table: &Self) {
        for &(zone, count) in &table.0 {
            self.raise(zone, count);
        }
    }

    pub(crate) fn subtract(&mut self, table: &Self) {
        for &(zone, count) in &table.0 {
            self.lower(zone, count);
        }
    }

    fn raise(&mut self, zone: Zone, by: u64) {
        match self.find(zone) {
            Ok(at) => self.0[at].1 += by,
            Err(at) => self.0.insert(at, (zone, by)),
        }
    }

    fn lower(&mut self, zone: Zone, by: u64) {
        let Ok(at) = self.find(zone) else {
            return debug_assert!(false, "{zone:?} has none");
        };
        self.0[at].1 -= by;
        if self.0[at].1 == 0 {
            self.0.remove(at);
        }
    }

    fn find(&self, zone: Zone) -> Result<usize, usize> {
        self.0.binary_search_by_key(&zone, |&(zone, _)| zone)
    }
}
