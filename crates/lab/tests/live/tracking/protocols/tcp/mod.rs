//! TCP.

mod generate;
mod speaker;

use lab::Random;
use wire::TcpFlags;

use crate::scenario::trackers::outcome::Class;
use crate::scenario::trackers::{A_SECOND_IS_OVER, Comparison, Observation};

pub const TCP: Comparison = Comparison {
    name: "tcp",
    seeds: 4000,
    pause: |_| A_SECOND_IS_OVER,
    turns_after: None,
    tunables,
    generate: generate::generate,
    rule,
    rules: &[CLOSING, GUESSED_RESET, GUESSED_ANSWER],
    lists_alike: |_| true,
    expected: None,
};

/// The tunables of a batch. Switches take both values. The timers differ, so that each shows which
/// rule has set it.
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
    // The timers in their usual order, or shuffled.
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

/// If the ends close with numbers outside both windows, the tracker has lost the connection, and
/// its entry need not live for days. The kernel shortens no timer that is below two minutes, even
/// if the tunable is lower.
const CLOSING: &str = "closing segments outside the window shorten any timer to the tunable";
const TWO_MINUTES_S: u64 = 120;

/// If the windows do not decide, the kernel believes every RST: as long as an end has sent nothing,
/// and after one has closed. Ours also forwards such a RST.
const GUESSED_RESET: &str = "a RST with a guessed number closes nothing";
/// The kernel learns the numbers of a SYN+ACK before it finds that it answers another SYN, and
/// learns those of a second SYN. So it does not recognise the real answer.
const GUESSED_ANSWER: &str = "a SYN+ACK that answers no SYN teaches no numbers";

/// The TCP header of a packet.
fn header<'a>(observation: &Observation<'a>) -> &'a [u8] {
    &observation.frame[if observation.frame[12] == 8 { 34 } else { 54 }..]
}

fn has(observation: &Observation<'_>, flags: TcpFlags) -> bool {
    TcpFlags(header(observation)[13]).contains(flags)
}

/// The rule for a last segment, or an earlier one, that may be a guess and to which we give less
/// effect than the kernel.
fn guessed(observations: &[Observation<'_>]) -> Option<&'static str> {
    let state = |it: &Observation<'_>| it.ours.entry.and_then(|entry| entry.state);
    let (last, before) = observations.split_last()?;
    let (had, stays) =
        (before.last().and_then(state)?, before.last().and_then(state) == state(last));
    let is_unknown =
        ["SYN_SENT", "SYN_SENT2", "FIN_WAIT", "CLOSE_WAIT", "LAST_ACK", "TIME_WAIT", "CLOSE"];
    let goes_on = last.ours.class == last.kernel.class || last.ours.class == Class::Invalid;
    if has(last, TcpFlags::RST) && is_unknown.contains(&had) && stays && goes_on {
        return Some(GUESSED_RESET);
    }
    // For the kernel such a RST was the last segment. Its sender may open the connection again, and
    // a later segment that does not fit leaves less time.
    let was_reset =
        |pair: &[Observation<'_>]| state(&pair[0]) == Some("CLOSE") && has(&pair[1], TcpFlags::RST);
    if had == "CLOSE" && before.windows(2).any(was_reset) {
        return Some(GUESSED_RESET);
    }
    let sequence = |it: &Observation<'_>| header(it)[4..8].to_vec();
    let answers_nothing = |at: usize| {
        let (before, answer) = (&observations[..at], &observations[at]);
        let is_syn = |it: &&Observation<'_>| it.from == answer.from && has(it, TcpFlags::SYN);
        let is_answer = has(answer, TcpFlags::SYN.with(TcpFlags::ACK));
        match before.last().and_then(state) {
            Some("SYN_SENT") => {
                (is_answer || has(answer, TcpFlags::RST)) && state(answer) == Some("SYN_SENT")
            }
            Some("SYN_SENT2") => {
                let syn = before.iter().rev().find(is_syn);
                is_answer && syn.is_some_and(|syn| sequence(syn) != sequence(answer))
            }
            _ => false,
        }
    };
    (1..observations.len()).any(answers_nothing).then_some(GUESSED_ANSWER)
}

fn rule(observations: &[Observation<'_>]) -> Option<&'static str> {
    let last = observations.last()?;
    if let Some(guessed) = guessed(observations) {
        return Some(guessed);
    }
    let closes = |it: &Observation<'_>| has(it, TcpFlags::FIN) || has(it, TcpFlags::RST);
    let both_close =
        closes(last) && observations.iter().any(|it| it.from != last.from && closes(it));
    let (kernel, ours) = (last.kernel, last.ours);
    let (kernels, own) = (kernel.entry?, ours.entry?);
    let lowered = own.timeout_s < kernels.timeout_s && kernels.timeout_s < TWO_MINUTES_S;
    let rest_agrees = kernel.with_timeout(0) == ours.with_timeout(0);
    let refused = kernel.class == Class::Invalid;
    (both_close && lowered && rest_agrees && refused).then_some(CLOSING)
}
