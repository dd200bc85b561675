//! The number of translated ports that each source uses towards one destination.

use flow::{FlowKey, Side, Zone};

use crate::connection::source_prefix;
use crate::nat::Pool;

/// Lines of the table, 64 bytes each.
const LINES: usize = 1 << 14;
/// Counters of a line.
const CELLS: u32 = 16;
/// Ports of a pool that a source may always have at each worker, because counts may be too
/// high.
const ALWAYS: u64 = 16;

/// An odd factor that spreads the bits of its argument.
const FACTOR: u64 = 0xd6e8_feb8_6659_fd93;

/// The share of a source in a pool.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PortShare {
    pool: Pool,
    pub source: NatSource,
}

/// A source for this count: an IPv4 address, or the first 64 bits of an IPv6 address, in one
/// zone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NatSource {
    prefix: u64,
    zone: Zone,
}

/// The translated connections of a worker, counted for each pool, and for each source in each
/// pool.
///
/// The table has a fixed size of 1 MiB from the first connection on, so no source is left out
/// for lack of room. In return counters are shared: each count is the lesser of two counters,
/// which is never too low (a sketch as that of Cormode and Muthukrishnan, 2005). With half a
/// million connections it is about 8 too high.
#[derive(Debug, Default)]
pub(crate) struct PortUsage {
    lines: Vec<Line>,
    /// Number of tables of the worker, and of the gateway; the latter is 0 if there is only one
    /// table.
    tables: u32,
    all_tables: u32,
}

#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
struct Line([u32; CELLS as usize]);

impl PortShare {
    /// The share of the originator of a connection.
    pub fn of(pool: Pool, key: &FlowKey, originator: Side) -> Self {
        let prefix = source_prefix(key.endpoint(originator), key.family);
        Self { pool, source: NatSource { prefix, zone: key.zone } }
    }

    /// The place of its counter. The pool is a secret, so nobody can aim at another's place.
    fn place(&self) -> u32 {
        let NatSource { prefix, zone } = self.source;
        let salt = u64::from(zone.0) << 32 | u64::from(self.pool.number());
        let mixed = prefix ^ salt.wrapping_mul(FACTOR);
        let mixed = (mixed ^ mixed >> 32).wrapping_mul(FACTOR);
        let mixed = (mixed ^ mixed >> 32).wrapping_mul(FACTOR);
        (mixed >> 32) as u32
    }
}

impl PortUsage {
    /// Sets the number of tables of the gateway, which the workers divide among them.
    pub fn set_all_tables(&mut self, tables: u32) {
        self.all_tables = tables;
    }

    pub fn add_table(&mut self) {
        self.tables += 1;
    }

    pub fn remove_table(&mut self) {
        self.tables = self.tables.saturating_sub(1);
    }

    /// Counts a connection.
    pub fn enter(&mut self, port_share: &PortShare) {
        if self.lines.is_empty() {
            self.lines = vec![Line([0; CELLS as usize]); LINES];
        }
        for place in [port_share.pool.number(), port_share.place()] {
            let (line, cells) = self.cells(place);
            cells.into_iter().for_each(|cell| self.lines[line].0[cell] += 1);
        }
    }

    /// Counts a connection less.
    pub fn leave(&mut self, port_share: &PortShare) {
        debug_assert!(self.held(port_share) > 0, "a connection leaves that nobody has counted");
        for place in [port_share.pool.number(), port_share.place()] {
            let (line, cells) = self.cells(place);
            for cell in cells {
                let count = self.lines.get_mut(line).map(|line| &mut line.0[cell]);
                count.into_iter().for_each(|count| *count = count.saturating_sub(1));
            }
        }
    }

    /// The number of ports that a source has of a pool at this worker.
    pub fn held(&self, port_share: &PortShare) -> u32 {
        self.count(port_share.place())
    }

    /// The share of this worker in `ports` ports, in proportion to its tables.
    pub fn part(&self, ports: u32) -> u32 {
        match self.all_tables {
            0 => ports,
            all => (u64::from(ports) * u64::from(self.tables) / u64::from(all)) as u32,
        }
    }

    /// True if a source may have one more of a pool of `ports` ports. It may while it has less
    /// than `share` percent of the sum of its own and the free ports (a threshold that follows
    /// the free ports, as that of Choudhury and Hahne, 1998), or less than the minimum that
    /// every source may have.
    pub fn allows(&self, port_share: &PortShare, ports: u32, share: u32) -> bool {
        let (held, all, share) =
            (u64::from(self.held(port_share)), u64::from(ports), u64::from(share));
        let free = all.saturating_sub(self.count(port_share.pool.number()).into());
        let few = (all * share.min(100 - share) / 100).max(ALWAYS);
        held < few || held * (100 - share) < share * free
    }

    fn count(&self, place: u32) -> u32 {
        let (line, [one, other]) = self.cells(place);
        self.lines.get(line).map_or(0, |line| line.0[one].min(line.0[other]))
    }

    /// Number of connections that are counted.
    #[cfg(test)]
    pub fn total(&self) -> usize {
        // Each connection counts in two counters for its pool and in two for its source.
        self.lines.iter().flat_map(|line| line.0).map(|count| count as usize).sum::<usize>() / 4
    }

    /// The line of a place, and its two counters there.
    fn cells(&self, place: u32) -> (usize, [usize; 2]) {
        let one = place % CELLS;
        let other = (one + 1 + place / CELLS % (CELLS - 1)) % CELLS;
        (place as usize >> 8 & (LINES - 1), [one as usize, other as usize])
    }
}

#[cfg(test)]
#[path = "port_usage_tests.rs"]
mod tests;
