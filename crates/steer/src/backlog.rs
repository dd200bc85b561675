//! The limit on packets that wait between two workers.
//!
//! The kernel keeps one backlog queue per CPU, and every producer locks it. Here each pair of
//! workers has a ring of its own. Its producer alone adds to it and does the accounting: one
//! [`Backlog`] per (producer, consumer), with nothing shared. So `netdev_max_backlog` bounds
//! each ring, and a flow limit sees the packets of one producer. That is as exact as the
//! kernel's in the case that matters, because one direction of a flow arrives at one receive
//! queue and therefore from one producer.

use flow::DropReason;

/// Length of the flow limit's history, packets.
const HISTORY: usize = 128;
/// A flow with more than this share of the history is over its limit.
const SHARE: u8 = (HISTORY / 2) as u8;
/// Marks a place in the history that was never filled.
const NEVER: u16 = u16::MAX;

/// The limits of a backlog.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BacklogLimits {
    /// Most packets that may wait (`netdev_max_backlog`); a datagram that came in
    /// fragments counts as many.
    pub max_backlog: u32,
    /// Entries of the table of flows (`flow_limit_table_len`): a power of two up to
    /// 8192; any other number is rounded up. `None` switches the flow limit off.
    pub flow_limit_table_len: Option<u16>,
}

impl Default for BacklogLimits {
    fn default() -> Self {
        Self { max_backlog: 1000, flow_limit_table_len: Some(4096) }
    }
}

/// Numbers of refused packets, under the names of `/proc/net/softnet_stat`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BacklogCounters {
    /// Packets refused because the backlog was full.
    pub dropped: u64,
    /// Packets refused because their flow held too large a share of the backlog.
    pub flow_limit_count: u64,
}

/// Decides for the producer of one ring which packets may enter it.
#[derive(Clone, Debug)]
pub struct Backlog {
    max_backlog: usize,
    flow_limit: Option<FlowLimit>,
    counters: BacklogCounters,
}

impl Backlog {
    /// An empty backlog. Allocates the table of flows, one byte per entry.
    pub fn new(limits: BacklogLimits) -> Self {
        Self {
            max_backlog: limits.max_backlog as usize,
            flow_limit: limits.flow_limit_table_len.map(FlowLimit::new),
            counters: BacklogCounters::default(),
        }
    }

    /// Decides whether a packet may enter while `queue_length` packets wait; a datagram in fragments
    /// counts as many. `flow_hash` returns any hash that the packets of one flow share; it is
    /// called only while the flow limit applies.
    ///
    /// # Errors
    /// [`DropReason::BacklogFull`] or [`DropReason::FlowLimit`]; the packet has
    /// been counted.
    #[inline]
    pub fn admit(
        &mut self,
        queue_length: usize,
        flow_hash: impl FnOnce() -> u64,
    ) -> Result<(), DropReason> {
        if queue_length >= self.max_backlog {
            self.counters.dropped += 1;
            return Err(DropReason::BacklogFull);
        }
        if queue_length < self.max_backlog / 2 {
            return Ok(());
        }
        if self.flow_limit.as_mut().is_some_and(|limit| limit.exceeded(flow_hash())) {
            self.counters.flow_limit_count += 1;
            return Err(DropReason::FlowLimit);
        }
        Ok(())
    }

    /// Numbers of packets refused since the start.
    pub fn counters(&self) -> BacklogCounters {
        self.counters
    }

    /// Puts new limits in force. The flow limit forgets its history only if the length of its
    /// table changes.
    pub fn set_limits(&mut self, limits: BacklogLimits) {
        self.max_backlog = limits.max_backlog as usize;
        let flow_limit = limits.flow_limit_table_len.map(FlowLimit::new);
        if self.flow_limit.as_ref().map(FlowLimit::table_len)
            != flow_limit.as_ref().map(FlowLimit::table_len)
        {
            self.flow_limit = flow_limit;
        }
    }
}

/// The last packets that came while the backlog was half full, and the number of them from each
/// flow. Refused packets count too, so a flow has to fall below its share before its packets
/// enter again.
#[derive(Clone, Debug)]
struct FlowLimit {
    /// Packets of the history, by hash of their flow.
    table: Box<[u8]>,
    history: [u16; HISTORY],
    oldest: usize,
}

impl FlowLimit {
    fn new(table_len: u16) -> Self {
        let table_len = usize::from(table_len).clamp(1, 8192).next_power_of_two();
        Self { table: vec![0; table_len].into(), history: [NEVER; HISTORY], oldest: 0 }
    }

    fn table_len(&self) -> usize {
        self.table.len()
    }

    /// Notes a packet and says whether its flow now has more than its share.
    fn exceeded(&mut self, flow_hash: u64) -> bool {
        // Both halves, because the high bits of all packets of a bucket are equal.
        let entry = (flow_hash ^ (flow_hash >> 32)) as usize & (self.table.len() - 1);
        let forgotten = std::mem::replace(&mut self.history[self.oldest], entry as u16);
        self.oldest = (self.oldest + 1) % HISTORY;
        if forgotten != NEVER {
            self.table[usize::from(forgotten)] -= 1;
        }
        self.table[entry] += 1;
        self.table[entry] > SHARE
    }
}

#[cfg(test)]
#[path = "backlog_tests.rs"]
mod tests;
