//! For tests: records the stages of packets.

use std::cell::RefCell;
use std::ops::ControlFlow;

use crate::path::step::{End, Stage};

thread_local! {
    static SEEN: RefCell<Vec<(Stage, Option<End>)>> = const { RefCell::new(Vec::new()) };
}

/// Notes a stage, and the end of the packet if that was its last.
pub fn note<E: Copy + Into<End>, T>(stage: Stage, step: &ControlFlow<E, T>) {
    let end = if let ControlFlow::Break(end) = step { Some((*end).into()) } else { None };
    SEEN.with_borrow_mut(|seen| seen.push((stage, end)));
}

/// The stages since the last call, in order.
pub fn take() -> Vec<(Stage, Option<End>)> {
    SEEN.take()
}
