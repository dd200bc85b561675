//! Loads and exchanges rules, and reads their counts, while the gateway runs.

use std::sync::Arc;
use std::time::Duration;

use conntrack::TooManyZones;
use flow::{Timestamp, Zone};
use netio::{PortId, clock};
use ruleset::listing::LiveElement;
use ruleset::{Counted, CounterId, LogId, Program, QuotaId, RuleState, SetId, ValidRuleset};
use steer::{Steered, WorkerId};
use wire::{Network, Summary};

use crate::Gateway;
use crate::control::coordinator::Coordinator;
use crate::control::hand_over::RuleProgress;
use crate::control::views::RulesStatus;
use crate::control::worker_handle::Unresponsive;
use crate::path::drop_cause::DropCause;
use crate::path::host_flows::Sign;
use crate::path::recent_drops::RecentDrop;
use crate::path::rules::ruleset::{PrepareRulesError, Rules};
use crate::path::rules::worker_rules::{RuleCounts, WorkerRules};
use crate::worker::command::{Command, Notice, Question};

/// The reason why a ruleset was not loaded. The rules before stay.
#[derive(Debug, thiserror::Error)]
pub enum LoadRulesError {
    /// The ruleset can not be used.
    #[error(transparent)]
    Prepare(#[from] PrepareRulesError),
    /// Rules name more zones than there may be.
    #[error(transparent)]
    TooManyZones(#[from] TooManyZones),
    /// The kernel would answer packets that rules translate.
    #[error("translated packets can not be kept from the host: {0}")]
    HostGuard(String),
    /// A worker hangs, and it must learn of zones or addresses before any worker judges by the
    /// rules.
    #[error(transparent)]
    Unresponsive(#[from] Unresponsive),
}

/// The rules of a gateway and their counts.
#[derive(Clone, Debug)]
pub struct RulesView {
    /// How often rules were loaded or unloaded since the start.
    pub revision: u32,
    /// The time since these rules were loaded.
    pub age: Duration,
    /// The counts of all workers since the rules were loaded. Counters and quotas count since the
    /// last reset, if there was one.
    pub counts: RuleCounts,
    /// The counts were reset since the rules were loaded.
    pub is_reset: bool,
    /// When this was read; the elements of sets are told as of then.
    read_at: Timestamp,
    rules: Arc<Rules>,
}

impl RulesView {
    /// The ruleset.
    pub fn ruleset(&self) -> &ValidRuleset {
        self.rules.program.ruleset()
    }

    /// The value of a counter. It begins with the value that the ruleset gives it, until the
    /// counts are reset.
    pub fn counted(&self, counter: CounterId) -> Counted {
        let before = match self.is_reset {
            true => Counted::default(),
            false => RuleState::counted_before(&self.rules.program, counter),
        };
        let since = self.counts.counters.get(counter.index()).copied().unwrap_or_default();
        Counted { packets: before.packets + since.packets, bytes: before.bytes + since.bytes }
    }

    /// Bytes that are used of a quota. They begin with the value that the ruleset gives, until the
    /// counts are reset.
    pub fn used(&self, quota: QuotaId) -> u64 {
        let before = if self.is_reset { 0 } else { self.ruleset().quotas()[quota.index()].used };
        before + self.counts.quotas.get(quota.index()).copied().unwrap_or(0)
    }

    /// The elements that sets which rules fill have now.
    pub fn live_elements(&self) -> Vec<LiveElement> {
        self.rules.elements(self.read_at)
    }

    /// A state for `program`, which was compiled from the same ruleset, with the elements that sets
    /// have now. Its changes stay its own.
    pub fn state_apart(&self, program: &Program) -> RuleState {
        self.rules.state_apart(program, self.read_at)
    }

    /// The number of elements that a set has now.
    pub fn elements(&self, set: SetId) -> usize {
        let changing = self.rules.element_count(set, self.read_at);
        changing.unwrap_or_else(|| self.ruleset().sets()[set.index()].element_count())
    }
}

impl Gateway {
    /// Judges packets by a ruleset from now on, and returns its revision. Each packet is judged
    /// either by the rules before or by these, never by both. Connections stay.
    ///
    /// Once any worker has the rules they hold. If a worker hangs then, it gets them when it goes
    /// on. If the host guard fails, the host does not get the packets that the rules lead to it.
    /// The log and [`Gateway::rule_troubles`] tell of both.
    ///
    /// # Errors
    /// [`LoadRulesError`]: the rules before stay.
    pub fn load_rules(&self, ruleset: ValidRuleset) -> Result<u32, LoadRulesError> {
        let (mode, secret, interfaces) = {
            let coordinator = self.shared.lock();
            (coordinator.config.mode, coordinator.config.secret, coordinator.ports.names())
        };
        // The lock is not held here, because long chains take a while to compile.
        let unloaded = Rules::prepare(ruleset, mode, secret.0, &interfaces)?;
        let mut coordinator = self.shared.lock();
        let guard = coordinator.config.host_guard.clone();
        let revision = coordinator.next_rules_revision();
        let now = coordinator.execution.now();
        let rules = unloaded.load(revision, now);
        rules.set_wall_clock(wall_clock(now));
        coordinator.exchange_rules(Some(rules))?;
        drop(coordinator);
        // The lock is not held here, because the kernel may take a while.
        if let Some(guard) = guard {
            guard.wait_until_applied();
        }
        Ok(revision)
    }

    /// Judges packets by no rules any more, and returns the revision. A worker that hangs is
    /// treated as in [`Gateway::load_rules`].
    ///
    /// # Errors
    /// [`LoadRulesError`]: the rules stay.
    pub fn unload_rules(&self) -> Result<u32, LoadRulesError> {
        let mut coordinator = self.shared.lock();
        let revision = coordinator.next_rules_revision();
        coordinator.exchange_rules(None)?;
        Ok(revision)
    }

    /// Tells why not everything is as the rules say, in words for people: workers that still judge
    /// by the rules before, a host that gets fewer or more packets than the rules leave to it, and
    /// rules whose packets it may get because they can not be described. Interfaces that have another
    /// name now are told as well.
    pub fn rule_troubles(&self) -> Vec<String> {
        let (exchange, guard_failure, guard, of_ports, rules) = {
            let coordinator = self.shared.lock();
            let (exchange, guard) = (&coordinator.rule_exchange, &coordinator.config.host_guard);
            let of_ports = coordinator.ports.troubles();
            let (guard_failure, rules) = (&coordinator.guard_failure, coordinator.rules.clone());
            (exchange.trouble(), guard_failure.clone(), guard.clone(), of_ports, rules)
        };
        let of_host = guard_failure.or_else(|| guard?.trouble());
        let of_rules = rules.iter().flat_map(|rules| rules.warnings());
        exchange.into_iter().chain(of_host).chain(of_ports).chain(of_rules).collect()
    }

    /// The rules and their counts; `None` if there are no rules.
    ///
    /// # Errors
    /// [`Unresponsive`].
    pub fn rules(&self) -> Result<Option<RulesView>, Unresponsive> {
        self.shared.lock().rules_view()
    }

    /// Resets all counters and quotas to zero, including the counters of elements of sets that
    /// rules do not fill. No packet that is counted meanwhile is lost. Returns the number of
    /// counters and quotas; `None` if there are no rules.
    ///
    /// # Errors
    /// [`Unresponsive`].
    pub fn reset_rules(&self) -> Result<Option<usize>, Unresponsive> {
        self.shared.lock().reset_rules()
    }

    /// True if a packet like this one would belong to a flow that rules have led to the host. Such
    /// a flow goes to the host until it ends, even if the rules change.
    ///
    /// # Errors
    /// [`Unresponsive`].
    pub fn is_of_host_flow(&self, network: &Network, zone: Zone) -> Result<bool, Unresponsive> {
        let mut coordinator = self.shared.lock();
        let (Steered::Flow { keyed, bucket, .. } | Steered::Carrying { keyed, bucket, .. }) =
            coordinator.hasher.steer(network, zone, None)
        else {
            return Ok(false);
        };
        let sign = Sign::of(&network.transport);
        coordinator.ask_owner(bucket, |reply| Question::IsLeftToHost(bucket, keyed, sign, reply))
    }
}

/// The part of an exchange of rules that is still open because a worker hangs.
#[derive(Debug, Default)]
pub struct RuleExchange {
    /// Workers that were sent rules and have not confirmed them. A worker that was sent rules
    /// twice is here twice.
    awaited: Vec<WorkerId>,
    /// Workers whose inbox had no room for the rules.
    full_inboxes: Vec<WorkerId>,
    /// The log has told of workers that hang.
    hangs: bool,
    /// The host guard still has to be told what the rules leave to the host. It is told when all
    /// workers have the rules.
    pub owes_host: bool,
}

impl RuleExchange {
    /// Notes that a worker judges by the rules that it was sent. The rules `before` are freed
    /// here, because no packet waits for this thread.
    pub fn note_taken(&mut self, worker: WorkerId, before: Option<Box<WorkerRules>>) {
        drop(before);
        if let Some(at) = self.awaited.iter().position(|awaited| *awaited == worker) {
            self.awaited.swap_remove(at);
        }
    }

    /// The lowest worker that may still judge by other rules.
    fn lags(&self) -> Option<WorkerId> {
        self.full_inboxes.iter().chain(&self.awaited).min().copied()
    }

    fn trouble(&self) -> Option<String> {
        let worker = self.lags()?;
        Some(format!("{}; it judges by these rules when it answers again", Unresponsive(worker)))
    }
}

impl Coordinator {
    fn next_rules_revision(&mut self) -> u32 {
        self.rules_revision += 1;
        self.rules_revision
    }

    /// Loads the rules of the configuration, before any worker is hired.
    pub fn load_first_rules(&mut self) -> Result<(), LoadRulesError> {
        let Some(ruleset) = self.config.rules.clone() else { return Ok(()) };
        let (mode, secret) = (self.config.mode, self.config.secret);
        let ruleset = Arc::unwrap_or_clone(ruleset);
        let unloaded = Rules::prepare(ruleset, mode, secret.0, &self.ports.names())?;
        let revision = self.next_rules_revision();
        let now = self.execution.now();
        let rules = unloaded.load(revision, now);
        rules.set_wall_clock(wall_clock(now));
        rules.know_interfaces(self.ports.for_rules());
        self.know_zones(&rules)?;
        self.warn_of_settings(&rules);
        // No rules were loaded before these, so the host gets its packets at once.
        self.rules = Some(rules.clone());
        self.host_has = self.left_to_host(Some(&rules));
        self.prepare_translations(&rules)
    }

    /// Warns of settings that keep rules from doing what they mean.
    fn warn_of_settings(&self, rules: &Rules) {
        if rules.has_syn_proxies() && self.config.settings.conntrack.tcp.loose {
            tracing::warn!(
                "rules let the SYN proxy answer, but a packet that returns its cookie is taken for \
                 one of a connection that was open before: set nf_conntrack_tcp_loose to 0"
            );
        }
    }

    /// Makes the limits count connections of the zones that rules put packets in. True if workers
    /// have to learn of new zones.
    fn know_zones(&mut self, rules: &Rules) -> Result<bool, TooManyZones> {
        let mut zones: Vec<_> = self.blueprint.limit_pools.zones().collect();
        let known = zones.len();
        let named = rules.zones().iter().filter(|zone| **zone != Zone::default());
        for &zone in named {
            if zones[..known].iter().all(|&(other, _)| other != zone) {
                zones.push((zone, None));
            }
        }
        let has_news = zones.len() > known;
        if has_news {
            self.blueprint.limit_pools.set_zones(&zones)?;
        }
        Ok(has_news)
    }

    /// Has all workers judge by other rules, and returns when all of them do. The steps that can
    /// fail come first. Once one worker has been sent the rules, they hold, and a worker that
    /// hangs gets them when it answers.
    fn exchange_rules(&mut self, rules: Option<Arc<Rules>>) -> Result<(), LoadRulesError> {
        match &rules {
            Some(rules) => {
                self.adopt(rules)?;
                self.warn_of_settings(rules);
            }
            None => self.withhold_from_host()?,
        }
        if let Some(rules) = &rules {
            rules.shared().follow_elements(self.replication.follows_shared);
        }
        // All memory is allocated before the first worker changes.
        let each = || rules.as_ref().map(Rules::for_worker);
        let states: Vec<_> = (0..self.worker_count()).map(|_| each()).collect();
        let before = std::mem::replace(&mut self.rules, rules);
        self.retired_rules = RuleCounts::default();
        self.rules_reset_at = None;
        self.guard_failure = None;
        let all = [before.as_ref(), self.rules.as_ref()];
        self.rule_exchange.owes_host |= all.into_iter().flatten().any(|rules| rules.translates());
        self.rule_exchange.full_inboxes.clear();
        for (worker, state) in (0..).map(WorkerId).zip(states) {
            if self.send_rules(worker, state).is_err() {
                self.rule_exchange.full_inboxes.push(worker);
            }
        }
        while let Some(&worker) = self.rule_exchange.awaited.first() {
            if self.await_rules(worker).is_err() {
                break;
            }
        }
        match self.rule_exchange.trouble() {
            Some(trouble) => {
                tracing::error!("{trouble}");
                self.rule_exchange.hangs = true;
            }
            None => {
                self.give_host_its_share();
                if let Some(before) = before {
                    self.remember_deciders(&before);
                }
            }
        }
        Ok(())
    }

    /// Remembers the names of what has refused packets in the rules `before`, for as long as these
    /// packets are remembered. Their numbers say nothing once the rules are gone.
    fn remember_deciders(&mut self, before: &Rules) {
        let kept = self.inherited_drops.kept().iter();
        let mut causes: Vec<DropCause> = kept.map(|(_, dropped)| dropped.why).collect();
        for worker in (0..).map(WorkerId) {
            match self.ask_worker(worker, Question::RecentDrops) {
                None => break,
                Some(Ok(dropped)) => causes.extend(dropped.iter().map(|(_, dropped)| dropped.why)),
                Some(Err(Unresponsive(_))) => {}
            }
        }
        self.former_deciders.retain(|(cause, _)| causes.contains(cause));
        for cause in causes {
            if let Some(text) = before.tell(&cause)
                && self.former_deciders.iter().all(|(known, _)| *known != cause)
            {
                self.former_deciders.push((cause, format!("{text}, in rules that are gone now")));
            }
        }
    }

    /// The rule or policy that refused a packet, by its place in the rules of then.
    pub fn decider(&self, why: &DropCause) -> Option<String> {
        let now = self.rules.as_ref().and_then(|rules| rules.tell(why));
        let former = || self.former_deciders.iter().find(|(cause, _)| cause == why);
        now.or_else(|| former().map(|(_, text)| text.clone()))
    }

    /// Prepares the gateway for rules, in the steps that can fail.
    pub fn adopt(&mut self, rules: &Rules) -> Result<(), LoadRulesError> {
        // Names and groups may have changed since the rules were prepared.
        rules.know_interfaces(self.ports.for_rules());
        // Rules that are refused for their zones must not change what the host gets.
        let has_news = self.know_zones(rules)?;
        if rules.sets_zones() {
            self.learn_zones(has_news)?;
        }
        self.prepare_translations(rules)
    }

    /// Ends what [`adopt`](Self::adopt) began, once all workers have the rules.
    pub fn end_adoption(&mut self, rules: &Rules) {
        self.rule_exchange.owes_host |= rules.translates();
        self.give_host_its_share();
    }

    /// True if a worker may still judge by rules before the present ones.
    pub fn lags_behind_rules(&self, worker: WorkerId) -> bool {
        let RuleExchange { awaited, full_inboxes, .. } = &self.rule_exchange;
        awaited.contains(&worker) || full_inboxes.contains(&worker)
    }

    fn send_rules(
        &mut self,
        worker: WorkerId,
        state: Option<Box<WorkerRules>>,
    ) -> Result<(), Unresponsive> {
        self.tell_worker(worker.index(), Command::Rules(state))?;
        self.rule_exchange.awaited.push(worker);
        Ok(())
    }

    /// Waits until a worker judges by the rules that it was sent.
    fn await_rules(&mut self, worker: WorkerId) -> Result<(), Unresponsive> {
        while self.rule_exchange.awaited.contains(&worker) {
            let notice = self.await_notice(|notice| matches!(notice, Notice::Rules(..)));
            let Ok(Notice::Rules(taker, before)) = notice else {
                return Err(Unresponsive(worker));
            };
            self.rule_exchange.note_taken(taker, before);
        }
        Ok(())
    }

    /// Sends the rules to workers whose inbox had no room before. After success, any answer of a
    /// worker is about these rules.
    fn send_rules_again(&mut self) -> Result<(), Unresponsive> {
        while let Some(&worker) = self.rule_exchange.full_inboxes.first() {
            if !self.has_room(worker) {
                return Err(Unresponsive(worker));
            }
            let state = self.rules.as_ref().map(Rules::for_worker);
            self.send_rules(worker, state)?;
            self.rule_exchange.full_inboxes.remove(0);
        }
        Ok(())
    }

    /// Tells the rules of the time, which may have been set. Ends an exchange during which a worker
    /// hung, if that worker has the rules now.
    pub fn tend_rules(&mut self) {
        if let Some(rules) = &self.rules {
            rules.set_wall_clock(wall_clock(self.execution.now()));
        }
        if self.send_rules_again().is_ok()
            && self.rule_exchange.lags().is_none()
            && std::mem::take(&mut self.rule_exchange.hangs)
        {
            tracing::info!("every worker judges by the rules again");
            self.give_host_its_share();
        }
    }

    /// Tells the host guard what the rules leave to the host, after all workers have the rules. If
    /// that fails the rules hold all the same: going back would lose the counts of the rules
    /// before.
    fn give_host_its_share(&mut self) {
        if !std::mem::take(&mut self.rule_exchange.owes_host) {
            return;
        }
        let Err(error) = self.leave_to_host() else { return };
        let what = format!(
            "the rules are exchanged, but the kernel still keeps from this host the packets that \
             they lead to it, so these get no answer: {error}; load the rules again"
        );
        tracing::error!("{what}");
        self.guard_failure = Some(what);
    }

    /// Gives the rules to a worker that was just hired, before it gets packets.
    pub fn give_rules(&mut self, worker: WorkerId) -> Result<(), Unresponsive> {
        let Some(rules) = self.rules.clone() else { return Ok(()) };
        self.send_rules(worker, Some(rules.for_worker()))?;
        self.await_rules(worker)
    }

    /// The counts of a worker that is about to leave and gets no packets any more.
    pub fn counts_of_leaver(&mut self, worker: WorkerId) -> Result<RuleCounts, Unresponsive> {
        self.send_rules_again()?;
        self.counts_of(worker)
    }

    /// The state of the rules without their counts.
    pub fn rules_status(&self) -> Option<RulesStatus> {
        let rules = self.rules.as_ref()?;
        Some(RulesStatus {
            revision: rules.revision,
            age: self.execution.now().since(rules.loaded_at),
        })
    }

    fn rules_view(&mut self) -> Result<Option<RulesView>, Unresponsive> {
        let Some(rules) = self.rules.clone() else { return Ok(None) };
        let counts = self.rule_totals()?;
        let (counts, is_reset) = match &self.rules_reset_at {
            Some(before) => (counts.since(before), true),
            None => (counts, false),
        };
        let read_at = self.execution.now();
        let age = read_at.since(rules.loaded_at);
        Ok(Some(RulesView { revision: rules.revision, age, counts, is_reset, read_at, rules }))
    }

    /// The counts of all workers since the rules were loaded.
    fn rule_totals(&mut self) -> Result<RuleCounts, Unresponsive> {
        self.send_rules_again()?;
        let mut counts = self.retired_rules.clone();
        for worker in (0..self.worker_count() as u16).map(WorkerId) {
            counts.add(&self.counts_of(worker)?);
        }
        Ok(counts)
    }

    fn reset_rules(&mut self) -> Result<Option<usize>, Unresponsive> {
        let Some(rules) = self.rules.clone() else { return Ok(None) };
        let totals = self.rule_totals()?;
        rules.reset_quotas(&totals.quotas);
        let count = totals.counters.len() + totals.quotas.len();
        self.rules_reset_at = Some(totals);
        Ok(Some(count))
    }

    /// How far the rules have come, for a process that goes on with the same rules; `None` without
    /// rules. No worker may judge packets meanwhile.
    pub fn rule_progress(&mut self) -> Result<Option<RuleProgress>, Unresponsive> {
        let Some(rules) = self.rules.clone() else { return Ok(None) };
        let counts = self.rule_totals()?;
        let shared = rules.shared().progress(self.execution.now());
        Ok(Some(RuleProgress { counts, reset_at: self.rules_reset_at.clone(), shared }))
    }

    /// Goes on with rules from there. False if these are other rules; then nothing changes.
    pub fn go_on_with_rules(&mut self, progress: RuleProgress) -> bool {
        let Some(rules) = &self.rules else { return false };
        let program = rules.program.ruleset();
        let RuleProgress { counts, reset_at, shared } = progress;
        let is_of_these = |counts: &RuleCounts| {
            // A worker that has judged nothing may have counted nothing.
            counts.counters.len() <= program.counters().len()
                && counts.quotas.len() <= program.quotas().len()
        };
        let is_same = is_of_these(&counts)
            && reset_at.as_ref().is_none_or(is_of_these)
            && rules.shared().go_on_from(&shared, self.execution.now());
        if is_same {
            (self.retired_rules, self.rules_reset_at) = (counts, reset_at);
        }
        is_same
    }

    fn counts_of(&mut self, worker: WorkerId) -> Result<RuleCounts, Unresponsive> {
        let mut all = RuleCounts::default();
        loop {
            let from = all.counters.len();
            let question = |reply| Question::Rules(from, reply);
            let Some(answer) = self.ask_worker(worker, question) else { return Ok(all) };
            let Some(piece) = answer? else { return Ok(all) };
            if from == 0 {
                all = piece;
            } else if piece.counters.is_empty() {
                return Ok(all);
            } else {
                all.counters.extend(piece.counters);
            }
            if all.counters.is_empty() {
                return Ok(all);
            }
        }
    }

    /// Writes the log line that a rule asks for.
    pub fn write_log_line(&self, log: LogId, line: &RecentDrop) {
        let Some(rules) = &self.rules else { return };
        let ruleset = rules.program.ruleset();
        let DropCause::Rule { rule, revision, .. } = line.why else { return };
        let (Some(log), Some(place)) =
            (ruleset.logs().get(log.index()), ruleset.place_of_rule(rule as usize))
        else {
            return;
        };
        if revision != rules.revision {
            return;
        }
        let names = self.ports.names();
        let name = |port: PortId| names.get(usize::from(port.0)).map(String::as_str);
        let input = name(line.port).unwrap_or_default();
        let output = line.output.and_then(name).map(|name| format!("out={name} "));
        let output = output.unwrap_or_default();
        let frame = line.bytes();
        let summary = Summary { frame: &frame };
        tracing::info!(target: "rules", "{}in={input} {output}{summary} ({place})", log.prefix);
    }
}

/// The nanoseconds from this time, which it is now, to the time since 1970-01-01 00:00:00 UTC, and
/// the seconds by which the local time is ahead of UTC: for
/// [`SharedState::set_wall_clock`](ruleset::SharedState::set_wall_clock).
pub fn wall_clock(now: Timestamp) -> (i64, i32) {
    let (unix_ns, zone_s) = clock::wall_clock();
    (unix_ns.saturating_sub_unsigned(now.as_nanos()), zone_s)
}
