//! The work of the host behind the gateway, as a parameter.
//!
//! The experiment of 2009 measured a host. A request went through the TCP/IP stack and woke a
//! server process, and steering mostly spread this work. One CPU that took all packets of a network
//! card came to 90,000 to 139,000 transactions per second, that is 7 to 11 microseconds each, on
//! the processors of that time. A gateway alone does far less for a packet. So the work is modelled
//! as arithmetic of a given length, on the CPU of the worker that owns the flow.

use std::hint::black_box;

use netio::clock;

/// Work for each request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stack {
    rounds: u32,
}

impl Stack {
    /// No work: the gateway by itself.
    pub const NONE: Self = Self { rounds: 0 };

    /// About `nanos` nanoseconds of CPU time on this machine when nothing else runs. From then on
    /// it is a fixed amount of work, the same for all variants.
    pub fn lasting(nanos: u32) -> Self {
        const PROBE: u32 = 100_000;
        const TRIES: usize = 20;
        let probe = || {
            let begun = clock::thread_nanoseconds();
            Self { rounds: PROBE }.work();
            (clock::thread_nanoseconds() - begun).max(1)
        };
        // The shortest try was disturbed least.
        let shortest = (0..TRIES).map(|_| probe()).min().unwrap_or(1);
        let rounds = u64::from(PROBE) * u64::from(nanos) / shortest;
        Self { rounds: u32::try_from(rounds).unwrap_or(u32::MAX) }
    }

    /// Does the work.
    pub fn work(self) {
        let mut value = u64::from(self.rounds);
        for _ in 0..self.rounds {
            value = (value ^ (value >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9).rotate_left(31);
        }
        black_box(value);
    }
}
