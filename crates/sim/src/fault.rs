//! The faults that tests plant, to see that the simulation catches each.

/// A fault. The letters are those of docs/internals/simulation.md.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// (a) The peer steers by another number of buckets, and nobody notices.
    OtherBuckets,
    /// (b) A new connection gets the port of an imported one.
    PortOfImported,
    /// (c) Addresses to which sources are translated come with the virtual address, and connections
    /// stay where they were.
    LateAddress,
    /// (d) The old active gateway ends what it has translated when the virtual address leaves it.
    LostAddress,
    /// (e) A record has the number of an interface.
    InterfaceNumber,
    /// (f) A record has a deadline of its sender's clock.
    AbsoluteDeadline,
    /// (g) A standby expires what its owner keeps.
    EarlyExpiry,
    /// (h) A stale update is applied.
    StaleUpdate,
    /// (i) An imported connection does not learn its numbers anew.
    NoRelearning,
    /// (j) The end of an old connection ends the new one with the same ports.
    OldEnd,
    /// (k) The end of a bulk transfer is lost.
    LostBulkEnd,
    /// (l) A datagram that comes again is accepted again.
    ReplayedFrame,
    /// (m) A connection is imported without the shifts of its sequence numbers.
    NoShifts,
    /// (n) A connection of an unknown zone is imported.
    UnknownZone,
    /// (q) A record of a bucket that has moved is lost.
    MovedBucket,
    /// (r) A standby that is full evicts what is assured.
    EvictsAssured,
    /// A connection whose replies come to another bucket gets no alias there when it is imported.
    NoAlias,
}

impl Fault {
    /// All.
    pub const ALL: [Self; 17] = [
        Self::OtherBuckets,
        Self::PortOfImported,
        Self::LateAddress,
        Self::LostAddress,
        Self::InterfaceNumber,
        Self::AbsoluteDeadline,
        Self::EarlyExpiry,
        Self::StaleUpdate,
        Self::NoRelearning,
        Self::OldEnd,
        Self::LostBulkEnd,
        Self::ReplayedFrame,
        Self::NoShifts,
        Self::UnknownZone,
        Self::MovedBucket,
        Self::EvictsAssured,
        Self::NoAlias,
    ];

    /// The fault of this name, as it is written here.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|fault| format!("{fault:?}") == name)
    }
}

/// The fault that is planted, if any.
#[derive(Clone, Copy, Debug, Default)]
pub struct Planted(pub Option<Fault>);

impl Planted {
    /// Plants the part of it that is in tracking and in the engine.
    pub(crate) fn plant_in(self, settings: &mut conntrack::Settings) {
        use conntrack::Fault as In;
        let fault = match self.0 {
            Some(Fault::PortOfImported) => In::PortOfImported,
            Some(Fault::LateAddress) => In::LateAddress,
            Some(Fault::LostAddress) => In::LostAddress,
            Some(Fault::InterfaceNumber) => In::InterfaceNumber,
            Some(Fault::AbsoluteDeadline) => In::AbsoluteDeadline,
            Some(Fault::EarlyExpiry) => In::EarlyExpiry,
            Some(Fault::NoRelearning) => In::NoRelearning,
            Some(Fault::NoShifts) => In::NoShifts,
            Some(Fault::UnknownZone) => In::UnknownZone,
            Some(Fault::MovedBucket) => In::MovedBucket,
            Some(Fault::EvictsAssured) => In::EvictsAssured,
            Some(Fault::NoAlias) => In::NoAlias,
            _ => return,
        };
        settings.faults = conntrack::Faults::planted(fault);
    }

    /// The part of it that is in the session.
    pub(crate) fn of_session(self) -> sync::Faults {
        use sync::Fault as In;
        let fault = match self.0 {
            Some(Fault::OtherBuckets) => In::OtherBuckets,
            Some(Fault::StaleUpdate) => In::StaleUpdate,
            Some(Fault::OldEnd) => In::OldEnd,
            Some(Fault::LostBulkEnd) => In::LostBulkEnd,
            Some(Fault::ReplayedFrame) => In::ReplayedFrame,
            _ => return sync::Faults::default(),
        };
        sync::Faults::planted(fault)
    }
}
