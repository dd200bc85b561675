//! GRE: a flow for each pair of addresses and key.

use super::{Before, Step};
use crate::settings::Timeouts;

pub(super) fn advance(timeouts: &Timeouts, before: Before) -> Step {
    if before.seen_reply {
        Step::Accept { timeout: timeouts.gre_stream, assure: true, changed: false }
    } else {
        Step::refresh(timeouts.gre)
    }
}
