//! Evaluates rules for packets.
//!
//! [`evaluate`] is a function of the program, the packet, the time and the state of its worker. It
//! allocates nothing, and it ends: chains lead at most
//! [`MAX_JUMP_DEPTH`](crate::limits::MAX_JUMP_DEPTH) deep into one another and never back.

mod dynamic;
mod element_record;
mod extension;
mod generate;
mod interface;
mod limit;
mod load;
mod outcome;
mod rewriting;
mod routes;
mod run;
mod shared_elements;
mod shared_set;
mod state;
mod trace;
mod view;
mod wall;

use flow::Timestamp;

pub use self::element_record::{ElementCursor, ElementRecord, ElementRefusal};
pub use self::interface::Interface;
pub use self::outcome::{Decider, Decision, Logs, NatRequest, Outcome, SegmentSize};
pub use self::routes::{RouteQuestion, Routes, Side};

pub use self::limit::QuotaProgress;
pub use self::state::{Counted, CounterMoves, NamedElements, Progress, RuleState, SharedState};
pub use self::trace::Step;
pub use self::view::{Connection, CtState, Details, Known, PacketView, Place, Tuple};
use crate::compile::Program;
use crate::hook::Hook;

/// Evaluates the rules of a hook for a packet.
#[inline]
pub fn evaluate(
    program: &Program,
    hook: Hook,
    view: &PacketView<'_>,
    state: &mut RuleState,
    now: Timestamp,
) -> Outcome {
    let mut outcome = Outcome::NOTHING;
    evaluate_into(&mut outcome, program, hook, view, state, now);
    outcome
}

/// As [`evaluate`], but fills [`Outcome::NOTHING`] in its place, because an outcome is large.
#[inline]
pub fn evaluate_into(
    outcome: &mut Outcome,
    program: &Program,
    hook: Hook,
    view: &PacketView<'_>,
    state: &mut RuleState,
    now: Timestamp,
) {
    if program.writes {
        run::Run::new(program, view, state, now, outcome, &mut trace::Silent).hook(hook);
    } else {
        run::Run::new(program, view, state, now, outcome, &mut trace::Reading).hook(hook);
    }
}

/// As [`evaluate`], but leaves rates, quotas and sets as they are. A rate or a quota says whether
/// the packet would be within it, and a rule that changes a set goes on as if it had. Counters
/// count.
pub fn consult(
    program: &Program,
    hook: Hook,
    view: &PacketView<'_>,
    state: &mut RuleState,
    now: Timestamp,
) -> Outcome {
    let mut outcome = Outcome::NOTHING;
    let mut nobody = trace::Asking;
    run::Run::new(program, view, state, now, &mut outcome, &mut nobody).hook(hook);
    outcome
}

/// As [`evaluate`]. Also reports every rule that matched and every chain whose policy decided, in
/// order.
pub fn explain(
    program: &Program,
    hook: Hook,
    view: &PacketView<'_>,
    state: &mut RuleState,
    now: Timestamp,
    tell: &mut dyn FnMut(Step),
) -> Outcome {
    let mut somebody = trace::Telling(tell);
    let mut outcome = Outcome::NOTHING;
    run::Run::new(program, view, state, now, &mut outcome, &mut somebody).hook(hook);
    outcome
}

#[cfg(test)]
#[path = "../evaluate_tests.rs"]
mod tests;
