//! GRE: a flow for each pair of addresses and key, or for each call of PPTP.

use super::{Before, Step};

/// `timeout` until a reply is seen, `stream` from then on, seconds.
pub(super) fn advance((timeout, stream): (u32, u32), before: Before) -> Step {
    if before.seen_reply {
        Step::Accept { timeout: stream, assure: true, changed: false }
    } else {
        Step::refresh(timeout)
    }
}
