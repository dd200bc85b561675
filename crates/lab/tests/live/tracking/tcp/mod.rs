//! TCP.

mod generate;
mod speaker;

use lab::Random;
use wire::TcpFlags;

use super::compare::{A_SECOND_IS_OVER, Comparison, Told};
use super::said::Class;

pub const TCP: Comparison = Comparison {
    name: "tcp",
    seeds: 4000,
    pause: |_| A_SECOND_IS_OVER,
    turns_after: None,
    tunables,
    generate: generate::generate,
    rule,
    rules: &[CLOSING],
    lists_alike: |_| true,
    expected: None,
};

/// Every switch both ways; timers that differ, so that each shows which rule has set it.
fn tunables(batch: u64) -> Vec<(String, u64)> {
    const TIMERS: [(&str, u64); 8] = [
        ("timeout_syn_sent", 140),
        ("timeout_syn_recv", 60),
        ("timeout_established", 432_000),
        ("timeout_fin_wait", 110),
        ("timeout_close_wait", 70),
        ("timeout_last_ack", 40),
        ("timeout_time_wait", 130),
        ("timeout_max_retrans", 300),
    ];
    let mut random = Random::new(batch);
    let mut times = TIMERS.map(|(_, time)| time);
    // The usual order, and any.
    let usual = batch % 3 != 2;
    if !usual {
        random.shuffle(&mut times);
    }
    let mut tunables: Vec<_> = TIMERS.iter().map(|(name, _)| *name).zip(times).collect();
    tunables.extend([
        ("timeout_unacknowledged", if usual { 280 } else { 50 }),
        ("timeout_close", if batch % 4 == 3 { 0 } else { 30 }),
        ("loose", u64::from(batch % 4 != 1)),
        ("be_liberal", u64::from(batch % 5 == 3)),
        ("ignore_invalid_rst", u64::from(batch % 3 == 1)),
        ("max_retrans", [3, 3, 0, 1, 255][(batch % 5) as usize]),
    ]);
    let prefixed = |(name, value)| (format!("nf_conntrack_tcp_{name}"), value);
    tunables.into_iter().map(prefixed).collect()
}

/// Ends that close with numbers which fit neither window have lost us, and their entry need
/// not live for days. The kernel lowers no timer that is under two minutes, even if the
/// tunable is.
const CLOSING: &str = "closing out of window lowers any timer to the tunable";
const TWO_MINUTES_S: u64 = 120;

fn rule(told: &[Told<'_>]) -> Option<&'static str> {
    let last = told.last()?;
    let closes = |told: &Told<'_>| {
        let header = if told.frame[12] == 8 { 34 } else { 54 };
        let flags = TcpFlags(told.frame[header + 13]);
        flags.contains(TcpFlags::FIN) || flags.contains(TcpFlags::RST)
    };
    let both_close = closes(last) && told.iter().any(|told| told.from != last.from && closes(told));
    let (kernel, ours) = (last.kernel, last.ours);
    let (kernels, own) = (kernel.entry?, ours.entry?);
    let lowered = own.timeout_s < kernels.timeout_s && kernels.timeout_s < TWO_MINUTES_S;
    let rest_agrees = kernel.with_timeout(0) == ours.with_timeout(0);
    let refused = kernel.class == Class::Invalid;
    (both_close && lowered && rest_agrees && refused).then_some(CLOSING)
}
