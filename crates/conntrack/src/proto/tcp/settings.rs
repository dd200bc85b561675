//! The switches and timers of the tracker.

use flow::declared::LONGEST_TIMEOUT;
use flow::{SetTunableError, Tunable, declare_tunables};

use super::TcpState;

/// Settings of the TCP tracker, with the kernel's defaults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcpSettings {
    /// The timers.
    pub timeouts: TcpTimeouts,
    /// Repetitions of one ACK segment from which the timer is cut; 0 cuts always.
    pub max_retransmissions: u8,
    /// Pick up connections from the middle.
    pub loose: bool,
    /// Accept segments outside the windows, except a RST.
    pub be_liberal: bool,
    /// Accept a RST below the acknowledgment of its receiver.
    pub ignore_invalid_rst: bool,
}

/// The timers of the TCP tracker, seconds; the default is the kernel's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcpTimeouts {
    /// By discriminant of [`TcpState`].
    by_state: [u32; TcpState::ALL.len()],
    /// Longest timer after `max_retransmissions` repetitions or with a closed window.
    pub retransmitted: u32,
    /// Longest timer while data is unacknowledged.
    pub unacknowledged: u32,
}

impl TcpTimeouts {
    /// The kernel's timer for a simultaneous open, seconds; it has no setting.
    const SYN_SENT2: u32 = 120;

    /// Timer of a state, seconds.
    pub const fn of(&self, state: TcpState) -> u32 {
        self.by_state[state as usize]
    }

    /// Sets the timer of a state, seconds.
    pub const fn set(&mut self, state: TcpState, seconds: u32) {
        self.by_state[state as usize] = seconds;
    }
}

impl Default for TcpTimeouts {
    fn default() -> Self {
        TcpSettings::default().timeouts
    }
}

impl TcpSettings {
    /// The value of a tunable, `None` if there is none of that name.
    pub fn get(&self, name: &str) -> Option<u64> {
        DECLARED.get(self, name)
    }

    /// Changes a tunable.
    ///
    /// # Errors
    /// An unknown name or a value out of range; nothing is changed then.
    pub fn set(&mut self, name: &str, value: u64) -> Result<(), SetTunableError> {
        DECLARED.set(self, name, value)
    }
}

impl Default for TcpSettings {
    fn default() -> Self {
        let mut settings = Self {
            timeouts: TcpTimeouts {
                by_state: [TcpTimeouts::SYN_SENT2; TcpState::ALL.len()],
                retransmitted: 0,
                unacknowledged: 0,
            },
            max_retransmissions: 0,
            loose: false,
            be_liberal: false,
            ignore_invalid_rst: false,
        };
        DECLARED.apply_defaults(&mut settings);
        settings
    }
}

/// The tunables of the TCP tracker, under the kernel's names.
pub const TUNABLES: &[Tunable] = DECLARED.tunables;

declare_tunables! {
    TcpSettings;
    "nf_conntrack_tcp_be_liberal", Switch, 0, 0..=1,
        "Accept TCP segments outside the windows, except resets.",
        [be_liberal];
    "nf_conntrack_tcp_ignore_invalid_rst", Switch, 0, 0..=1,
        "Accept TCP resets below what their receiver has acknowledged.",
        [ignore_invalid_rst];
    "nf_conntrack_tcp_loose", Switch, 1, 0..=1,
        "Pick up TCP connections whose opening was not seen.",
        [loose];
    "nf_conntrack_tcp_max_retrans", Count, 3, 0..=255,
        "Repetitions of a TCP segment after which its connection is kept for less time.",
        [max_retransmissions];
    "nf_conntrack_tcp_timeout_close", Seconds, 10, 0..=LONGEST_TIMEOUT,
        "How long a reset TCP connection is kept.",
        [timeouts.by_state[TcpState::Close as usize]];
    "nf_conntrack_tcp_timeout_close_wait", Seconds, 60, 0..=LONGEST_TIMEOUT,
        "How long a TCP connection with one acknowledged FIN is kept.",
        [timeouts.by_state[TcpState::CloseWait as usize]];
    "nf_conntrack_tcp_timeout_established", Seconds, 432_000, 0..=LONGEST_TIMEOUT,
        "How long an idle TCP connection is kept.",
        [timeouts.by_state[TcpState::Established as usize]];
    "nf_conntrack_tcp_timeout_fin_wait", Seconds, 120, 0..=LONGEST_TIMEOUT,
        "How long a TCP connection with one FIN is kept.",
        [timeouts.by_state[TcpState::FinWait as usize]];
    "nf_conntrack_tcp_timeout_last_ack", Seconds, 30, 0..=LONGEST_TIMEOUT,
        "How long a TCP connection with a FIN of both ends is kept.",
        [timeouts.by_state[TcpState::LastAck as usize]];
    "nf_conntrack_tcp_timeout_max_retrans", Seconds, 300, 0..=LONGEST_TIMEOUT,
        "How long a TCP connection is kept at most after repetitions or with a closed window.",
        [timeouts.retransmitted];
    "nf_conntrack_tcp_timeout_syn_recv", Seconds, 60, 0..=LONGEST_TIMEOUT,
        "How long a TCP connection with an answered SYN is kept.",
        [timeouts.by_state[TcpState::SynRecv as usize]];
    "nf_conntrack_tcp_timeout_syn_sent", Seconds, 120, 0..=LONGEST_TIMEOUT,
        "How long a TCP connection with an unanswered SYN is kept.",
        [timeouts.by_state[TcpState::SynSent as usize]];
    "nf_conntrack_tcp_timeout_time_wait", Seconds, 120, 0..=LONGEST_TIMEOUT,
        "How long a closed TCP connection is kept.",
        [timeouts.by_state[TcpState::TimeWait as usize]];
    "nf_conntrack_tcp_timeout_unacknowledged", Seconds, 300, 0..=LONGEST_TIMEOUT,
        "How long a TCP connection is kept at most while data is unacknowledged.",
        [timeouts.unacknowledged];
}

#[cfg(test)]
#[path = "settings_tests.rs"]
mod tests;
