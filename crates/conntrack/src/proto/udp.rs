//! UDP: a short lifetime until both ends have sent packets for two seconds.

use std::time::Duration;

use flow::Timestamp;

use super::{Before, Input, State, Step};

/// An exchange of this duration is a stream, not a single query with its answer.
pub(super) const STREAM_AFTER: Duration = Duration::from_secs(2);

/// The state of a UDP flow.
#[derive(Debug)]
pub(crate) struct Udp {
    /// From this time on a flow with traffic both ways is a stream.
    pub(super) stream_from: Timestamp,
}

pub(super) fn open(input: &Input<'_>) -> (State, u32) {
    let udp = Udp { stream_from: input.now.after(STREAM_AFTER) };
    (State::Udp(udp), input.timeouts.udp)
}

impl Udp {
    /// True if traffic both ways makes it a stream.
    #[inline]
    pub(super) fn is_stream(&self, now: Timestamp) -> bool {
        now > self.stream_from
    }

    pub(super) fn advance(&self, input: &Input<'_>, before: Before) -> Step {
        let (unreplied, replied) = input.udp_timeouts();
        if before.seen_reply && self.is_stream(input.now) {
            Step::Accept { timeout: replied, assure: true, changed: false }
        } else {
            Step::refresh(unreplied)
        }
    }
}
