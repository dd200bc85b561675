//! The invariants, and what is said about one that does not hold.

use std::fmt;

/// Something that holds at all times.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Invariant {
    /// A standby has all that the active gateway has had for longer than the staleness that it
    /// announces.
    NothingLost,
    /// A standby never goes back to an older state of a connection.
    NoRollBack,
    /// No two live connections have one outside tuple towards one destination.
    OneTupleOneConnection,
    /// Both gateways have equal tables when nothing has happened for a while.
    EqualAfterQuiet,
    /// A gateway never has a packet overtake another one of its flow.
    NoReordering,
    /// A gateway never holds a packet back.
    NoDelay,
    /// Queues and tables stay within their limits.
    MemoryBounded,
    /// A datagram that is refused changes nothing, and none is accepted twice.
    BadFrameChangesNothing,
    /// A connection that the new active gateway has goes on: no end of it sees a reset.
    NoReset,
    /// Such a connection keeps its address and port outside.
    OutsideStays,
    /// Hosts get what their peers have sent, and nothing else.
    NothingMixed,
    /// Such a connection comes to its end.
    NoStall,
    /// Each zone counts its connections.
    ZonesCount,
    /// Peers that would steer packets to different buckets exchange no connections.
    UnlikeStayApart,
    /// A standby that is full keeps what is assured, and counts what it refuses.
    FullKeepsAssured,
    /// The gateway answers its owner.
    Responsive,
    /// Nothing panics.
    NoPanic,
}

impl fmt::Display for Invariant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NothingLost => "nothing is lost that was inserted longer ago than the staleness",
            Self::NoRollBack => "no roll-back",
            Self::OneTupleOneConnection => "no two live connections with one outside tuple",
            Self::EqualAfterQuiet => "equal tables after quiet",
            Self::NoReordering => "no packet reordered",
            Self::NoDelay => "no packet delayed",
            Self::MemoryBounded => "memory bounded",
            Self::BadFrameChangesNothing => "a bad frame changes nothing",
            Self::NoReset => "no connection reset",
            Self::OutsideStays => "a connection keeps its outside tuple",
            Self::NothingMixed => "hosts get what was sent to them",
            Self::NoStall => "a connection goes on to its end",
            Self::ZonesCount => "zones count their connections",
            Self::UnlikeStayApart => "unlike peers stay apart",
            Self::FullKeepsAssured => "a full standby keeps what is assured",
            Self::Responsive => "a gateway answers",
            Self::NoPanic => "nothing panics",
        })
    }
}

/// An invariant that did not hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The invariant.
    pub invariant: Invariant,
    /// Facts about it.
    pub what: String,
}

impl Violation {
    /// An invariant that does not hold.
    pub fn new(invariant: Invariant, what: impl Into<String>) -> Self {
        Self { invariant, what: what.into() }
    }
}

/// A seed that has failed.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The seed.
    pub seed: u64,
    /// When, in microseconds of virtual time.
    pub at: u64,
    /// The invariant that did not hold.
    pub violation: Violation,
    /// The last events before, if a trace was wanted.
    pub trace: Vec<String>,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for line in &self.trace {
            writeln!(f, "{line}")?;
        }
        let Self { seed, at, violation: Violation { invariant, what }, .. } = self;
        let (s, us) = (at / 1_000_000, at % 1_000_000);
        write!(f, "seed {seed} at {s}.{us:06} s: violated: {invariant}\n  {what}")
    }
}
