//! The result of the rules for a packet.

use flow::ZonePair;

use crate::kind::Interval;
use crate::model::{
    ChainId, HelperId, LogId, NatFlags, NatKind, Reject, RuleId, SynProxyId, TimeoutId,
};

/// The decision of a hook about a packet, and the changes that its rules ask for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Outcome {
    /// The verdict.
    pub decision: Decision,
    /// The rule or policy that decided; `None` if the hook has no base chain.
    pub decided_by: Option<Decider>,
    /// The new mark of the packet.
    pub mark: Option<u32>,
    /// The new traffic control handle of the packet.
    pub priority: Option<u32>,
    /// The new mark of the connection.
    pub ct_mark: Option<u32>,
    /// The zones in which the packet is tracked (only in the hook before tracking).
    pub zone: Option<ZonePair>,
    /// Bits to add to the labels of the connection.
    pub label: u128,
    /// True if the packet is not to be tracked.
    pub notrack: bool,
    /// The helper for the connection.
    pub helper: Option<HelperId>,
    /// The timeout policy for the connection.
    pub timeout: Option<TimeoutId>,
    /// The translation of the connection.
    pub nat: Option<NatRequest>,
    /// The new, lower maximum segment size of a TCP header that announces one.
    pub segment_size: Option<SegmentSize>,
    /// Rules have set fields of headers, see [`RuleState::writes`](crate::RuleState::writes).
    pub is_rewritten: bool,
    /// The log lines that rules ask for.
    pub logs: Logs,
    /// A rule was asked that has to see every packet of a flow: the next one may have another
    /// outcome.
    pub per_packet: bool,
}

/// A verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Decision {
    /// The packet goes on.
    Accept,
    /// The packet is dropped.
    Drop,
    /// The packet is dropped, and its sender gets an answer.
    Reject(Reject),
    /// The SYN proxy takes the packet.
    SynProxy(SynProxyId),
}

/// The part of a ruleset that decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Decider {
    /// A rule.
    Rule(RuleId),
    /// The policy of a base chain.
    Policy(ChainId),
}

/// A translation that a rule asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NatRequest {
    /// Its kind.
    pub kind: NatKind,
    /// The addresses to choose from; `None`: the packet's own, or that of the interface.
    /// IPv4 addresses are numbers of 32 bits.
    pub address: Option<Interval>,
    /// The ports to choose from; `None`: the packet's own if it is free.
    pub ports: Option<(u16, u16)>,
    /// True if the interval's common prefix replaces only that part of the packet's address, and
    /// the other bits stay.
    pub netmap: bool,
    /// The way to choose an address and a port.
    pub flags: NatFlags,
}

/// A lower maximum segment size. It is never raised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SegmentSize {
    /// At most this, in bytes.
    AtMost(u16),
    /// The largest segment that fits the path MTU.
    PathMtu,
}

/// Log lines that rules ask for: the first few, and how many there were.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Logs {
    lines: [(LogId, RuleId); Logs::MOST],
    asked: u16,
}

impl Logs {
    /// Log lines that are kept of one packet.
    pub const MOST: usize = 4;

    pub(crate) fn push(&mut self, log: LogId, rule: RuleId) {
        if let Some(line) = self.lines.get_mut(usize::from(self.asked)) {
            *line = (log, rule);
        }
        self.asked = self.asked.saturating_add(1);
    }

    /// The lines that are kept, each with the rule that asked for it.
    pub fn lines(&self) -> impl Iterator<Item = (LogId, RuleId)> {
        self.lines.iter().copied().take(usize::from(self.asked))
    }

    /// The number of lines that rules asked for.
    pub fn asked(&self) -> u16 {
        self.asked
    }
}

impl Outcome {
    /// The packet goes on as it is.
    pub const NOTHING: Self = Self {
        decision: Decision::Accept,
        decided_by: None,
        mark: None,
        priority: None,
        ct_mark: None,
        zone: None,
        label: 0,
        notrack: false,
        helper: None,
        timeout: None,
        nat: None,
        segment_size: None,
        is_rewritten: false,
        logs: Logs { lines: [(LogId(0), RuleId(0)); Logs::MOST], asked: 0 },
        per_packet: false,
    };
}
