//! The operator's rules in the form in which a gateway uses them.

use std::sync::{Arc, Mutex, PoisonError};

use conntrack::helper::Kind;
use conntrack::proto::tcp::{TcpState, TcpTimeouts};
use conntrack::syn_proxy::Promise;
use conntrack::{Settings, TimeoutPolicy, Timeouts};
use flow::{Timestamp, Zone};
use netio::PortId;
use ruleset::listing::LiveElement;
use ruleset::{
    CompileError, CompileOptions, Counted, CounterMoves, CtState, ElementProblem, HelperId, Hook,
    Interface, LogId, Logs, NamedElements, Need, Outcome, PacketView, Problem, Program, RuleState,
    SetId, Severity, SharedState, SynProxy, TimeoutId, TimeoutState, Translations, ValidRuleset,
    name_bits,
};
use wire::protocol;

use crate::egress::Mode;
use crate::egress::allowance::Allowance;
use crate::path::drop_cause::DropCause;
use crate::path::recent_drops::RecentDrop;

/// Most log lines per second that one worker writes for rules.
const LINES_PER_SECOND: u64 = 100;
/// Most log lines that it may write at once after a pause.
const LINE_BURST: u64 = 50;
/// Most TCP resets per second that one worker sends for rules.
const RESETS_PER_SECOND: u64 = 10_000;
/// Most TCP resets that it may send at once after a pause.
const RESET_BURST: u64 = 500;

/// The reason why a ruleset can not be used.
#[derive(Debug, thiserror::Error)]
pub enum PrepareRulesError {
    /// Rules ask for something that the gateway does not do.
    #[error(
        "{} rules ask for something that this gateway does not do; the first: {}",
        .0.len(),
        .0.first().map(ToString::to_string).unwrap_or_default()
    )]
    Unsupported(Vec<Problem>),
    /// The ruleset can not be compiled.
    #[error(transparent)]
    Compile(#[from] CompileError),
}

/// Lists the parts of a ruleset that a gateway in this mode does not support, each with its place.
/// The list is empty for a ruleset that can be loaded.
pub fn check_rules(ruleset: &ValidRuleset, mode: Mode) -> Vec<Problem> {
    let what = |need| match need {
        Need::Translation(_) if mode == Mode::Bridge => {
            Some("a bridge translates no addresses: mode = \"routed\" would".to_owned())
        }
        Need::Translation(_) => None,
        Need::Routes if mode == Mode::Bridge => {
            Some("a bridge has no routes that rules could ask for (`fib`, `rt`)".to_owned())
        }
        Need::Routes => None,
        Need::Helper(helper) => {
            let kind = &ruleset.helpers()[helper.index()].kind;
            helper_kind(kind).is_none().then(|| format!("there is no helper {kind}"))
        }
    };
    let problem = |(rule, need): (ruleset::RuleId, Need)| {
        Some(Problem {
            severity: Severity::Unsupported,
            place: ruleset.place_of_rule(rule.index())?,
            path: String::new(),
            what: what(need)?,
            effect: None,
        })
    };
    ruleset.needs().filter_map(problem).collect()
}

fn helper_kind(name: &str) -> Option<Kind> {
    // As in the kernel, H.323 call signalling and gatekeepers have names of their own.
    Kind::ALL.iter().copied().find(|kind| kind.name().eq_ignore_ascii_case(name))
}

/// The promise that a SYN proxy of the ruleset makes to clients.
const fn promise(proxy: &SynProxy) -> Promise {
    let &SynProxy { mss, wscale, timestamp, sack } = proxy;
    Promise {
        segment_size: mss,
        window_scale: wscale,
        timestamps: timestamp,
        sack,
        ecn: false,
        by_rule: true,
    }
}

/// Converts a timeout policy of the ruleset to one of connection tracking.
fn timeout_policy(policy: &ruleset::TimeoutPolicy) -> TimeoutPolicy {
    // nft prints no state that has its default, so the tunables do not count here.
    let Timeouts { udp: mut unreplied, udp_stream: mut replied, .. } = Settings::default().timeouts;
    let mut tcp = TcpTimeouts::default();
    for &(state, seconds) in &policy.seconds {
        let state = match state {
            TimeoutState::SynSent => TcpState::SynSent,
            TimeoutState::SynRecv => TcpState::SynRecv,
            TimeoutState::Established => TcpState::Established,
            TimeoutState::FinWait => TcpState::FinWait,
            TimeoutState::CloseWait => TcpState::CloseWait,
            TimeoutState::LastAck => TcpState::LastAck,
            TimeoutState::TimeWait => TcpState::TimeWait,
            TimeoutState::Close => TcpState::Close,
            TimeoutState::SynSent2 => TcpState::SynSent2,
            TimeoutState::Retransmitted => {
                tcp.retransmitted = seconds;
                continue;
            }
            TimeoutState::Unacknowledged => {
                tcp.unacknowledged = seconds;
                continue;
            }
            TimeoutState::Unreplied => {
                unreplied = seconds;
                continue;
            }
            TimeoutState::Replied => {
                replied = seconds;
                continue;
            }
        };
        tcp.set(state, seconds);
    }
    match policy.protocol {
        protocol::UDP => TimeoutPolicy::Udp { unreplied, replied },
        _ => TimeoutPolicy::Tcp(tcp),
    }
}

/// The rules that judge packets. All workers share one.
#[derive(Debug)]
pub struct Rules {
    /// The compiled rules.
    pub program: Program,
    /// The revision: how often rules were loaded or unloaded, including this time.
    pub revision: u32,
    /// When it was loaded.
    pub loaded_at: Timestamp,
    /// The part of the state that all workers share.
    shared: SharedState,
    /// The interfaces of the ports, for workers that begin to judge by these rules.
    interfaces: Mutex<Arc<[Interface]>>,
    /// The kinds of the helpers, by [`HelperId`].
    helpers: Vec<Option<Kind>>,
    /// The timeout policies, by [`TimeoutId`].
    timeouts: Vec<TimeoutPolicy>,
    /// The promises of the SYN proxies, by number of the SYN proxy.
    syn_proxies: Vec<Promise>,
    /// The zones that rules put packets in.
    zones: Vec<Zone>,
    translations: Translations,
}

impl Rules {
    /// Compiles a ruleset for a gateway in this mode with ports of these names.
    pub fn prepare(
        ruleset: ValidRuleset,
        mode: Mode,
        seed: u64,
        interfaces: &[String],
    ) -> Result<Unloaded, PrepareRulesError> {
        let problems = check_rules(&ruleset, mode);
        if !problems.is_empty() {
            return Err(PrepareRulesError::Unsupported(problems));
        }
        let helpers = ruleset.helpers().iter().map(|helper| helper_kind(&helper.kind)).collect();
        let timeouts = ruleset.timeouts().iter().map(timeout_policy).collect();
        let syn_proxies = ruleset.syn_proxies().iter().map(promise).collect();
        let zones = ruleset.zones_set().into_iter().map(Zone).collect();
        let translations = ruleset.translations();
        let program = Program::compile(ruleset, CompileOptions { index: true, seed })?;
        let interfaces = as_compared(interfaces);
        Ok(Unloaded { program, interfaces, helpers, timeouts, syn_proxies, zones, translations })
    }

    /// Sets the interfaces of the ports, for workers that begin to judge by these rules from now
    /// on.
    pub fn know_interfaces(&self, interfaces: Arc<[Interface]>) {
        *self.interfaces.lock().unwrap_or_else(PoisonError::into_inner) = interfaces;
    }

    fn interfaces(&self) -> Arc<[Interface]> {
        self.interfaces.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The elements of the sets that rules fill.
    pub fn elements(&self, now: Timestamp) -> Vec<LiveElement> {
        self.shared.elements(&self.program, now)
    }

    /// The number of elements of a set that rules fill; `None` for a set that does not change.
    pub fn element_count(&self, set: SetId, now: Timestamp) -> Option<usize> {
        self.shared.element_count(&self.program, set, now)
    }

    /// A state of the same rules as `program` has, with the elements that sets have now. Its
    /// changes stay its own.
    pub fn state_apart(&self, program: &Program, now: Timestamp) -> RuleState {
        let mut state = RuleState::new(program, &self.shared.apart(program, now), now);
        state.set_interfaces(self.interfaces());
        state
    }

    /// Resets the quotas. `used` is what all workers have used of each, bytes.
    pub fn reset_quotas(&self, used: &[u64]) {
        self.shared.reset_quotas(&self.program, used);
    }

    /// Sets the clock on the wall, see [`SharedState::set_wall_clock`].
    pub fn set_wall_clock(&self, (ahead_ns, zone_s): (i64, i32)) {
        self.shared.set_wall_clock(ahead_ns, zone_s);
    }

    /// The packets and addresses that the rules translate.
    pub const fn translations(&self) -> &Translations {
        &self.translations
    }

    /// True if the rules translate anything.
    pub fn translates(&self) -> bool {
        !self.translations.is_empty()
    }

    /// True if rules assign helpers to connections.
    pub fn has_helpers(&self) -> bool {
        self.helpers.iter().any(Option::is_some)
    }

    /// The helper that a rule names.
    pub fn helper(&self, id: HelperId) -> Option<Kind> {
        self.helpers.get(id.index()).copied().flatten()
    }

    /// The timeouts that a rule names.
    pub fn timeouts(&self, id: TimeoutId) -> Option<&TimeoutPolicy> {
        self.timeouts.get(id.index())
    }

    /// True if the rules have SYN proxies.
    pub fn has_syn_proxies(&self) -> bool {
        !self.syn_proxies.is_empty()
    }

    /// The promise of the SYN proxy of this number.
    pub fn syn_proxy(&self, number: u32) -> Option<&Promise> {
        self.syn_proxies.get(number as usize)
    }

    /// True if the rules put packets into zones.
    #[inline]
    pub fn sets_zones(&self) -> bool {
        !self.zones.is_empty()
    }

    /// The zones that the rules put packets in.
    pub fn zones(&self) -> &[Zone] {
        &self.zones
    }

    /// The same rules with other elements in sets that packets do not change. They go on with the
    /// state of these. `None` if the rules differ in more.
    pub fn with_elements(&self, unloaded: Unloaded) -> Option<Arc<Self>> {
        if !self.shared.goes_on_with(&self.program, &unloaded.program) {
            return None;
        }
        let unloaded = Unloaded { interfaces: self.interfaces(), ..unloaded };
        Some(unloaded.into_rules(self.revision, self.loaded_at, self.shared.clone()))
    }

    /// Changes the elements of a set that rules fill; `None` for another set.
    ///
    /// # Errors
    /// All elements that do not allow it; nothing changes.
    pub fn change_elements(
        &self,
        set: SetId,
        named: &NamedElements,
        now: Timestamp,
    ) -> Option<Result<usize, Vec<ElementProblem>>> {
        self.shared.change_elements(&self.program, set, named, now)
    }

    /// The part of the state that all workers share.
    pub const fn shared(&self) -> &SharedState {
        &self.shared
    }

    /// Makes the state of one worker.
    pub fn for_worker(self: &Arc<Self>) -> Box<WorkerRules> {
        let interfaces = self.interfaces();
        let mut state = RuleState::new(&self.program, &self.shared, self.loaded_at);
        state.set_interfaces(interfaces.clone());
        Box::new(WorkerRules {
            interfaces,
            state,
            shared: self.clone(),
            lines: Allowance::new(LINES_PER_SECOND, LINE_BURST),
            logged: Vec::new(),
            unwritten: 0,
            resets: Allowance::new(RESETS_PER_SECOND, RESET_BURST),
        })
    }
}

/// Ethernet interfaces of these names, of no group but `default`, as rules ask for them.
fn as_compared(names: &[String]) -> Arc<[Interface]> {
    let interface = |name: &String| Interface::ethernet(name_bits(name).unwrap_or(0));
    names.iter().map(interface).collect()
}

/// A ruleset that is ready to be loaded.
pub struct Unloaded {
    program: Program,
    interfaces: Arc<[Interface]>,
    helpers: Vec<Option<Kind>>,
    timeouts: Vec<TimeoutPolicy>,
    syn_proxies: Vec<Promise>,
    zones: Vec<Zone>,
    translations: Translations,
}

impl Unloaded {
    /// Gives the rules their revision, and the state that workers share.
    pub fn load(self, revision: u32, now: Timestamp) -> Arc<Rules> {
        for rule in &self.translations.vague {
            let place = self.program.ruleset().place_of_rule(*rule);
            tracing::warn!(
                "the kernel may answer packets that a rule translates, because the rule names \
                 neither an address nor a port by which they can be kept from it: {}; add \
                 one of them where packets are for this host's own addresses",
                place.map_or_else(|| format!("rule {rule}"), |place| place.to_string())
            );
        }
        let shared = SharedState::new(&self.program, now);
        self.into_rules(revision, now, shared)
    }

    fn into_rules(self, revision: u32, loaded_at: Timestamp, shared: SharedState) -> Arc<Rules> {
        let Self { program, interfaces, helpers, timeouts, syn_proxies, zones, translations } =
            self;
        Arc::new(Rules {
            program,
            revision,
            loaded_at,
            shared,
            interfaces: Mutex::new(interfaces),
            helpers,
            timeouts,
            syn_proxies,
            zones,
            translations,
        })
    }
}

/// The rules and the state of one worker. Two fields can be seen in the room `path`, where a stage
/// runs the program of `shared` with `state` while it borrows other parts.
#[derive(Debug)]
pub struct WorkerRules {
    /// The rules, which all workers share.
    pub(in crate::path) shared: Arc<Rules>,
    /// The interfaces of the ports.
    interfaces: Arc<[Interface]>,
    /// The state that changes while packets are judged.
    pub(in crate::path) state: RuleState,
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
}

impl RuleCounts {
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

impl Rules {
    /// The rule or policy that decided, by its place in the ruleset, and the check that an INVALID
    /// packet failed. `None` if it is not of these rules.
    pub fn tell(&self, why: &DropCause) -> Option<String> {
        let mut told = self.tell_decider(why)?;
        if let Some(invalid) = why.invalid() {
            told = format!("{told}; it is INVALID: {invalid}");
        }
        Some(told)
    }

    fn tell_decider(&self, why: &DropCause) -> Option<String> {
        let ruleset = self.program.ruleset();
        match *why {
            DropCause::Rule { rule, revision, .. } if revision == self.revision => {
                let place = ruleset.place_of_rule(rule as usize)?;
                Some(format!("{place} refuses it"))
            }
            DropCause::Policy { chain, revision, .. } if revision == self.revision => {
                let place = ruleset.place_of_chain(chain as usize)?;
                Some(format!("{place}: no rule decided, and its policy is to drop"))
            }
            DropCause::InsideRule { rule, revision } if revision == self.revision => {
                let place = ruleset.place_of_rule(rule as usize)?;
                Some(format!("{place} refuses the packet inside"))
            }
            DropCause::InsidePolicy { chain, revision } if revision == self.revision => {
                let place = ruleset.place_of_chain(chain as usize)?;
                Some(format!(
                    "{place}: no rule decided about the packet inside, and its policy is to drop"
                ))
            }
            _ => None,
        }
    }
}
