//! Faults that tests plant, to see that the simulation catches them. A build without tests and
//! without the feature `faults` has none of them.

/// A fault that tests plant.
#[cfg(any(test, feature = "faults"))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The message that ends a bulk transfer is lost for good.
    LostBulkEnd,
    /// Datagrams and frames that have been accepted before are accepted again.
    ReplayedFrame,
    /// The end of a connection ends a newer connection of the same key.
    OldEnd,
    /// A change is applied although a later one has been.
    StaleUpdate,
    /// Each end decides alone whether the other one is another process, and begins anew alone.
    LonelyRestart,
    /// Answers to greetings stay valid when keys come into force.
    OldConfirm,
    /// A change that the owner could not keep leads to no other bulk transfer.
    KeptHole,
    /// A node that asks for a bulk transfer drops the changes that arrive meanwhile.
    DroppedChanges,
    /// Records are acknowledged when they are taken, though the owner has still to apply them.
    EarlyAck,
    /// A standby expires a connection that its owner keeps. The test's own gateways plant it.
    EarlyExpiry,
}

/// The fault that is planted, if any.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    #[cfg(any(test, feature = "faults"))]
    planted: Option<Fault>,
}

macro_rules! questions {
    ($($question:ident: $fault:ident),*) => {
        impl Faults {
            $(pub(crate) fn $question(self) -> bool {
                #[cfg(any(test, feature = "faults"))]
                return self.planted == Some(Fault::$fault);
                #[cfg(not(any(test, feature = "faults")))]
                false
            })*
        }
    };
}

questions! {
    loses_bulk_end: LostBulkEnd,
    takes_replays: ReplayedFrame,
    takes_old_ends: OldEnd,
    takes_stale_updates: StaleUpdate,
    restarts_alone: LonelyRestart,
    keeps_answers: OldConfirm,
    keeps_holes: KeptHole,
    drops_while_asking: DroppedChanges,
    takes_taken_for_applied: EarlyAck
}

#[cfg(any(test, feature = "faults"))]
impl Faults {
    /// True if this one is planted.
    pub fn is(self, fault: Fault) -> bool {
        self.planted == Some(fault)
    }

    /// Plants one.
    #[must_use]
    pub const fn planted(fault: Fault) -> Self {
        Self { planted: Some(fault) }
    }
}
