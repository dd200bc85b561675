//! The rules of one worker with its part of their state, and their counts.

use std::sync::Arc;

use conntrack::TimeoutPolicy;
use conntrack::helper::Kind;
use conntrack::syn_proxy::Promise;
use flow::{Tallied, Timestamp};
use netio::PortId;
use ruleset::{
    Counted, CounterMoves, CtState, HelperId, Hook, HostCopies, Interface, LogId, Logs, Outcome,
    PacketView, RuleState, TimeoutId, evaluate_into,
};
use wire::FieldWrite;

use crate::egress::allowance::Allowance;
use crate::path::drop_cause::DropCause;
use crate::path::recent_drops::RecentDrop;
use crate::path::rules::ruleset::Rules;

/// Most log lines per second that one worker writes for rules.
const LINES_PER_SECOND: u64 = 100;
/// Most log lines that it may write at once after a pause.
const LINE_BURST: u64 = 50;
/// Most TCP resets per second that one worker sends for rules.
const RESETS_PER_SECOND: u64 = 10_000;
/// Most TCP resets that it may send at once after a pause.
const RESET_BURST: u64 = 500;

/// The rules and the state of one worker.
#[derive(Debug)]
pub struct WorkerRules {
    /// The rules, which all workers share.
    shared: Arc<Rules>,
    /// The interfaces of the ports.
    interfaces: Arc<[Interface]>,
    /// The state that changes while packets are judged.
    state: RuleState,
    /// The log lines that may still be written.
    lines: Allowance,
    /// Packets that are to be logged, until the end of the turn.
    logged: Vec<(LogId, Box<RecentDrop>)>,
    /// Log lines that were not written, because too many were asked for.
    unwritten: u64,
    /// The TCP resets that may still be sent.
    resets: Allowance,
}

/// Most counters that one question covers.
const PIECE: usize = 4096;

/// The counts of the rules, of one worker or of all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuleCounts {
    /// The counters, by number.
    pub counters: Vec<Counted>,
    /// Bytes that were counted for each quota, by number.
    pub quotas: Vec<u64>,
    /// Additions to sets that failed because the set was full.
    pub refused_elements: u64,
    /// Log lines that were not written, because too many were asked for.
    pub unwritten_lines: u64,
}

impl RuleCounts {
    /// Adds the counts of another worker.
    pub fn add(&mut self, other: &Self) {
        grow(&mut self.counters, other.counters.len());
        for (sum, counted) in self.counters.iter_mut().zip(&other.counters) {
            sum.packets += counted.packets;
            sum.bytes += counted.bytes;
        }
        grow(&mut self.quotas, other.quotas.len());
        self.quotas.iter_mut().zip(&other.quotas).for_each(|(sum, used)| *sum += used);
        self.refused_elements += other.refused_elements;
        self.unwritten_lines += other.unwritten_lines;
    }

    /// The counts since `before`.
    #[must_use]
    pub fn since(mut self, before: &Self) -> Self {
        for (counted, before) in self.counters.iter_mut().zip(&before.counters) {
            counted.packets = counted.packets.saturating_sub(before.packets);
            counted.bytes = counted.bytes.saturating_sub(before.bytes);
        }
        for (used, before) in self.quotas.iter_mut().zip(&before.quotas) {
            *used = used.saturating_sub(*before);
        }
        self
    }
}

fn grow<T: Clone + Default>(values: &mut Vec<T>, length: usize) {
    if values.len() < length {
        values.resize(length, T::default());
    }
}

impl WorkerRules {
    /// A worker's part of these rules, between ports of these names and groups.
    pub fn new(shared: Arc<Rules>, interfaces: Arc<[Interface]>, mut state: RuleState) -> Self {
        state.set_interfaces(interfaces.clone());
        Self {
            shared,
            interfaces,
            state,
            lines: Allowance::new(LINES_PER_SECOND, LINE_BURST),
            logged: Vec::new(),
            unwritten: 0,
            resets: Allowance::new(RESETS_PER_SECOND, RESET_BURST),
        }
    }

    /// Judges by rules that differ only in elements of sets, and goes on counting.
    pub fn go_on_with(&mut self, rules: &Arc<Rules>, moves: &CounterMoves) {
        if self.shared.revision == rules.revision {
            self.state.go_on_with(moves);
            self.shared = rules.clone();
        }
    }

    /// The name of a port, as rules compare it.
    #[inline]
    pub fn interface(&self, port: PortId) -> u128 {
        self.interfaces.get(usize::from(port.0)).map_or(0, |interface| interface.name)
    }

    /// The packets for the host that reach its kernel although rules translate destinations.
    pub fn host_copies(&self) -> &HostCopies {
        self.shared.host_copies()
    }

    /// The revision of the rules.
    #[inline]
    pub fn revision(&self) -> u32 {
        self.shared.revision
    }

    /// True if the rules put packets into zones.
    #[inline]
    pub fn sets_zones(&self) -> bool {
        self.shared.sets_zones()
    }

    /// True if the rules ask for the packets or bytes of connections.
    pub fn asks_for_counts(&self) -> bool {
        self.shared.asks_for_counts()
    }

    /// True if the rules translate anything.
    pub fn translates(&self) -> bool {
        self.shared.translates()
    }

    /// The helper that a rule names.
    pub fn helper(&self, id: HelperId) -> Option<Kind> {
        self.shared.helper(id)
    }

    /// The timeouts that a rule names.
    pub fn timeouts(&self, id: TimeoutId) -> Option<&TimeoutPolicy> {
        self.shared.timeouts(id)
    }

    /// The promise of the SYN proxy of this number.
    pub fn syn_proxy(&self, number: u32) -> Option<&Promise> {
        self.shared.syn_proxy(number)
    }

    /// True if a hook accepts packets of this state whatever else they are.
    #[inline]
    pub fn accepts_at_once(&self, hook: Hook, state: CtState) -> bool {
        self.shared.program.accepts_at_once(hook, state)
    }

    /// True if a hook has base chains.
    #[inline]
    pub fn has_chains(&self, hook: Hook) -> bool {
        !self.shared.program.is_empty(hook)
    }

    /// True if rules read or write fields of headers as bytes.
    #[inline]
    pub fn touches_headers(&self) -> bool {
        self.shared.program.touches_headers()
    }

    /// Asks a hook about a packet. The outcome is written to its place, because it is large.
    #[inline(always)]
    pub fn evaluate(
        &mut self,
        outcome: &mut Outcome,
        hook: Hook,
        view: &PacketView<'_>,
        now: Timestamp,
    ) {
        evaluate_into(outcome, &self.shared.program, hook, view, &mut self.state, now);
    }

    /// True if the connection of the packet has joined counts since a hook was asked last.
    #[inline]
    pub fn has_joined(&self) -> bool {
        self.state.has_joined()
    }

    /// Takes these counts.
    pub fn take_joined(&mut self) -> impl Iterator<Item = Tallied> {
        self.state.take_joined()
    }

    /// The fields of headers that rules have just set.
    pub fn writes(&self) -> &[FieldWrite] {
        self.state.writes()
    }

    /// Notes the CPU on which the worker runs.
    #[inline]
    pub const fn set_cpu(&mut self, cpu: u32) {
        self.state.set_cpu(cpu);
    }

    /// The rules that all workers share, for tests.
    #[cfg(test)]
    pub fn shared(&self) -> &Rules {
        &self.shared
    }

    /// The packets and bytes that rules have counted, for tests.
    #[cfg(test)]
    pub fn all_counted(&self) -> Vec<Counted> {
        self.state.all_counted().to_vec()
    }

    /// Asks a hook about a packet, and leaves rates, quotas and sets as they are.
    #[inline]
    pub fn consult(&mut self, hook: Hook, view: &PacketView<'_>, now: Timestamp) -> Outcome {
        ruleset::consult(&self.shared.program, hook, view, &mut self.state, now)
    }

    /// Uses these interfaces of the ports.
    pub fn know_interfaces(&mut self, interfaces: Arc<[Interface]>) {
        self.state.set_interfaces(interfaces.clone());
        self.interfaces = interfaces;
    }

    /// True if one more TCP reset may be sent.
    pub fn may_reset(&mut self, now: Timestamp) -> bool {
        self.resets.take(now.as_nanos())
    }

    /// Notes a bounded number of the log lines that rules ask for about a packet. `line` makes one
    /// from its cause.
    pub fn log(
        &mut self,
        logs: &Logs,
        now: Timestamp,
        mut line: impl FnMut(DropCause) -> RecentDrop,
    ) {
        let mut left = u64::from(logs.asked());
        for (log, rule) in logs.lines() {
            if !self.lines.take(now.as_nanos()) {
                break;
            }
            left -= 1;
            let revision = self.shared.revision;
            let why = DropCause::Rule { rule: rule.index() as u32, revision, invalid: None };
            self.logged.push((log, Box::new(line(why))));
        }
        self.unwritten += left;
    }

    /// Takes the noted log lines.
    pub fn take_logged(&mut self) -> impl Iterator<Item = (LogId, Box<RecentDrop>)> {
        self.logged.drain(..)
    }

    /// The counts with the counters from number `from` on, at most [`PIECE`] of them. All other
    /// counts are only in the answer from number 0 on.
    pub fn counts(&self, from: usize) -> RuleCounts {
        let all = self.state.all_counted();
        let counters = all.iter().skip(from).take(PIECE).copied().collect();
        if from > 0 {
            return RuleCounts { counters, ..RuleCounts::default() };
        }
        RuleCounts {
            counters,
            quotas: self.state.quotas_used(),
            refused_elements: self.state.refused_elements(),
            unwritten_lines: self.unwritten,
        }
    }
}
