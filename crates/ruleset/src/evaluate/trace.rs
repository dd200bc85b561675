//! Listeners to an evaluation.

use crate::model::{ChainId, RuleId};

/// Something that happened to a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Every condition of a rule matched.
    Rule(RuleId),
    /// The policy of a base chain decided.
    Policy(ChainId),
}

/// A listener to the steps of an evaluation.
pub(super) trait Trace {
    /// True if the packet uses up rates and quotas and changes sets.
    const USES: bool = true;
    /// True if rules may set fields of headers.
    const WRITES: bool = true;

    fn tell(&mut self, step: Step);
}

/// A listener that ignores all steps.
pub(super) struct Silent;

impl Trace for Silent {
    #[inline]
    fn tell(&mut self, _step: Step) {}
}

/// A listener that ignores all steps, where no rule sets a field of a header.
pub(super) struct Reading;

impl Trace for Reading {
    const WRITES: bool = false;

    #[inline]
    fn tell(&mut self, _step: Step) {}
}

/// A listener that ignores all steps, for a packet that uses nothing up.
pub(super) struct Asking;

impl Trace for Asking {
    const USES: bool = false;

    #[inline]
    fn tell(&mut self, _step: Step) {}
}

/// A listener that passes each step on.
pub(super) struct Telling<'a>(pub &'a mut dyn FnMut(Step));

impl Trace for Telling<'_> {
    fn tell(&mut self, step: Step) {
        (self.0)(step);
    }
}
