//! Timeouts that a rule gives to connections in place of those of the gateway.

use conntrack::TimeoutPolicy;
use conntrack::proto::tcp::{TcpState, TcpTimeouts};
use lab::Result;

use super::{datagrams, tcp};
use crate::scenario::trackers::Comparison;
use crate::scenario::trackers::kernel::Kernel;
use crate::scenario::trackers::stateway::Given;

/// All differ; some are longer and some shorter than the usual ones.
const TCP: &str = "syn_sent : 150, syn_recv : 80, established : 1000, fin_wait : 90, \
    close_wait : 210, last_ack : 55, time_wait : 160, close : 25, syn_sent2 : 65, \
    retrans : 310, unack : 290";

pub fn tcp() -> Result<()> {
    let kernel = Kernel::new()?;
    kernel.set_timeouts("tcp", TCP)?;
    let mut timeouts = TcpTimeouts::default();
    (timeouts.retransmitted, timeouts.unacknowledged) = (310, 290);
    for (state, seconds) in [
        (TcpState::SynSent, 150),
        (TcpState::SynRecv, 80),
        (TcpState::Established, 1000),
        (TcpState::FinWait, 90),
        (TcpState::CloseWait, 210),
        (TcpState::LastAck, 55),
        (TcpState::TimeWait, 160),
        (TcpState::Close, 25),
        (TcpState::SynSent2, 65),
    ] {
        timeouts.set(state, seconds);
    }
    let comparison =
        Comparison { name: "tcp, timeouts by a rule", seeds: 1000, rules: &[], ..tcp::TCP };
    comparison.run_with(&kernel, Given::timeouts(TimeoutPolicy::Tcp(timeouts)))
}

/// The timeout that the rule leaves out has the kernel's default.
pub fn udp() -> Result<()> {
    let kernel = Kernel::new()?;
    kernel.set_timeouts("udp", "unreplied : 45")?;
    let policy = TimeoutPolicy::Udp { unreplied: 45, replied: 120 };
    let comparison = Comparison {
        name: "datagrams, timeouts by a rule",
        seeds: 500,
        rules: &[],
        ..datagrams::DATAGRAMS
    };
    comparison.run_with(&kernel, Given::timeouts(policy))
}
