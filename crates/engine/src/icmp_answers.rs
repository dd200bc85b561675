//! ICMP errors to the senders of packets that do not go on: in whose name, and how many.

use std::net::IpAddr;

use netio::{Frame, FramePool, PortId};
use wire::icmp_error::{self, Message};
use wire::{Dissected, Family, Tunnels};

/// Errors that a worker sends per second at most (RFC 1812 section 4.3.2.8, RFC 4443
/// section 2.4 (f)).
pub const ERRORS_PER_SECOND: u64 = 1000;
/// Errors that it may send at once after a pause.
pub const ERROR_BURST: u64 = 50;

const NANOS_PER_ERROR: u64 = 1_000_000_000 / ERRORS_PER_SECOND;

/// The addresses in whose name errors go out of a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Names {
    /// For IPv4.
    pub v4: Option<IpAddr>,
    /// For IPv6.
    pub v6: Option<IpAddr>,
}

/// A worker's allowance of errors.
#[derive(Debug, Default)]
pub struct IcmpAnswers {
    /// When the allowance is full again, nanoseconds.
    full_at_ns: u64,
    /// By port. A bridge has none, and speaks in the name of a packet's destination.
    names: Option<Vec<Names>>,
}

impl IcmpAnswers {
    /// Speaks in these names from now on, by port.
    pub fn set_names(&mut self, names: impl Iterator<Item = Names>) {
        self.names = Some(names.collect());
    }

    /// The error about a packet, to leave by the port that it came from; `None` where none
    /// may be sent, there is no name to send it in, or the allowance is used up.
    pub fn about(
        &mut self,
        frame: &Frame,
        message: Message,
        now_ns: u64,
        pool: &mut FramePool,
    ) -> Option<Frame> {
        let dissected = wire::dissect(frame.bytes(), Tunnels::Outer).ok()?;
        let Dissected { network: Some(network), .. } = dissected else { return None };
        let from = match &self.names {
            None => network.destination_ip(),
            Some(names) => names.get(usize::from(frame.port.0))?.of(network.family)?,
        };
        if !self.allows(now_ns) {
            return None;
        }
        let mut error = [0; icmp_error::MAX_FRAME];
        let length = icmp_error::write(frame.bytes(), message, from, &mut error)?;
        let mut answer = pool.copy_of(&error[..length])?;
        answer.port = PortId(frame.port.0);
        Some(answer)
    }

    /// Takes one error from the allowance.
    fn allows(&mut self, now_ns: u64) -> bool {
        let full_at_ns = self.full_at_ns.max(now_ns) + NANOS_PER_ERROR;
        let allowed = full_at_ns - now_ns <= ERROR_BURST * NANOS_PER_ERROR;
        if allowed {
            self.full_at_ns = full_at_ns;
        }
        allowed
    }
}

impl Names {
    fn of(&self, family: Family) -> Option<IpAddr> {
        match family {
            Family::V4 => self.v4,
            Family::V6 => self.v6,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_rationed() {
        let mut answers = IcmpAnswers::default();
        let second = 1_000_000_000;
        let mut sent = |from: u64, step: u64, asked: u64| {
            (0..asked).filter(|n| answers.allows(from + n * step)).count() as u64
        };
        assert_eq!(sent(5 * second, 0, 1000), ERROR_BURST);
        assert_eq!(sent(6 * second, 0, 1000), ERROR_BURST, "and not a second's worth");
        // A flood of 100,000 packets in a second, right behind that.
        assert_eq!(sent(6 * second, second / 100_000, 100_000), ERRORS_PER_SECOND - 1);
        assert_eq!(sent(60 * second, second / ERRORS_PER_SECOND, 3000), 3000, "as many as it may");
    }
}
