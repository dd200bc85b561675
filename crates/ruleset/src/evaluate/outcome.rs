//! What rules decided of a packet.

use flow::ZonePair;

use crate::kind::Interval;
use crate::model::{
    ChainId, HelperId, LogId, NatFlags, NatKind, Reject, RuleId, SynProxyId, TimeoutId,
};

/// What becomes of a packet in a stage, and what else is to be done.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Outcome {
    /// The verdict.
    pub decision: Decision,
    /// Who decided; `None` if no base chain was asked.
    pub decided_by: Option<Decider>,
    /// The packet's mark is to be this.
    pub mark: Option<u32>,
    /// Its traffic control handle is to be this.
    pub priority: Option<u32>,
    /// The mark of its connection is to be this.
    pub ct_mark: Option<u32>,
    /// It is tracked in these zones (only in the stage before tracking).
    pub zone: Option<ZonePair>,
    /// These bits are added to the labels of its connection.
    pub label: u128,
    /// It is not tracked.
    pub notrack: bool,
    /// Its connection gets this helper.
    pub helper: Option<HelperId>,
    /// Its connection gets these timeouts.
    pub timeout: Option<TimeoutId>,
    /// Its connection is translated so.
    pub nat: Option<NatRequest>,
    /// The maximum segment size that it announces is lowered.
    pub segment_size: Option<SegmentSize>,
    /// What is to be logged of it.
    pub logs: Logs,
    /// A rule was asked that has to see every packet of a flow: the next one may have another
    /// outcome.
    pub per_packet: bool,
}

/// A verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Decision {
    /// Goes on.
    Accept,
    /// Ends here.
    Drop,
    /// Ends here, and its sender is told.
    Reject(Reject),
    /// Is taken by the SYN proxy.
    SynProxy(SynProxyId),
}

/// Who decided.
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
    /// Which.
    pub kind: NatKind,
    /// The addresses to choose from; `None`: the packet's own, or that of the interface.
    /// IPv4 addresses are numbers of 32 bits.
    pub address: Option<Interval>,
    /// The ports to choose from; `None`: the packet's own if it is free.
    pub ports: Option<(u16, u16)>,
    /// The bits of the packet's address that are no part of the interval's common prefix
    /// stay as they are.
    pub netmap: bool,
    /// How to choose.
    pub flags: NatFlags,
}

/// A lower maximum segment size. It is never raised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SegmentSize {
    /// This, bytes.
    AtMost(u16),
    /// What the path takes.
    PathMtu,
}

/// Log lines that rules ask for: the first few, and how many there were.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Logs {
    lines: [(LogId, RuleId); Logs::MOST],
    asked: u16,
}

impl Logs {
    /// Lines of one packet that are kept.
    pub const MOST: usize = 4;

    pub(crate) fn push(&mut self, log: LogId, rule: RuleId) {
        if let Some(line) = self.lines.get_mut(usize::from(self.asked)) {
            *line = (log, rule);
        }
        self.asked = self.asked.saturating_add(1);
    }

    /// The lines that are kept, with the rules that asked.
    pub fn lines(&self) -> impl Iterator<Item = (LogId, RuleId)> {
        self.lines.iter().copied().take(usize::from(self.asked))
    }

    /// How many were asked for.
    pub fn asked(&self) -> u16 {
        self.asked
    }
}

impl Outcome {
    pub(crate) const NOTHING: Self = Self {
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
        logs: Logs { lines: [(LogId(0), RuleId(0)); Logs::MOST], asked: 0 },
        per_packet: false,
    };
}
