//! UDP-Lite (RFC 3828): it has UDP's timeouts, but is a stream from the first answer on, as
//! with the kernel.

use super::{Before, Step, Timeouts};

pub(super) fn advance(timeouts: &Timeouts, before: Before) -> Step {
    if before.seen_reply {
        Step::Accept { timeout: timeouts.udp_stream, assure: true, changed: false }
    } else {
        Step::refresh(timeouts.udp)
    }
}
