//! The operator's rules as a gateway has them.

use std::sync::{Arc, Mutex, PoisonError};

use conntrack::helper::Kind;
use conntrack::proto::tcp::{TcpState, TcpTimeouts};
use conntrack::syn_proxy::Promise;
use conntrack::{Settings, TimeoutPolicy, Timeouts, TooManyZones};
use flow::{Timestamp, Zone};
use netio::PortId;
use ruleset::{
    CompileError, CompileOptions, Counted, ElementUpdate, HelperId, Need, Problem, Program,
    RuleState, Severity, SharedState, SynProxy, TimeoutId, TimeoutState, Translations,
    ValidRuleset, name_bits,
};
use wire::protocol;

use crate::allowance::Allowance;
use crate::config::Mode;
use crate::crew::Unresponsive;
use crate::why::Why;

/// Log lines that a worker writes for rules per second at most.
const LINES_PER_SECOND: u64 = 100;
/// Log lines that it may write at once after a pause.
const LINE_BURST: u64 = 50;
/// Resets that a worker sends for rules per second at most.
const RESETS_PER_SECOND: u64 = 10_000;
/// Resets that it may send at once after a pause.
const RESET_BURST: u64 = 500;

/// Why a ruleset was not loaded; the one before stays.
#[derive(Debug, thiserror::Error)]
pub enum LoadRulesError {
    /// The gateway does not do what rules ask for.
    #[error(
        "{} of the rules ask for what this gateway does not do; the first: {}",
        .0.len(),
        .0.first().map(ToString::to_string).unwrap_or_default()
    )]
    Unsupported(Vec<Problem>),
    /// It can not be compiled.
    #[error(transparent)]
    Compile(#[from] CompileError),
    /// Rules name more zones than there may be.
    #[error(transparent)]
    TooManyZones(#[from] TooManyZones),
    /// The kernel would answer what is translated.
    #[error("what is translated can not be kept from the host: {0}")]
    HostGuard(String),
    /// A worker hangs, and has to know something before any other judges by them.
    #[error(transparent)]
    Unresponsive(#[from] Unresponsive),
}

/// What of a ruleset a gateway in this mode does not do, each with its place. Empty for one
/// that can be loaded.
pub fn check_rules(ruleset: &ValidRuleset, mode: Mode) -> Vec<Problem> {
    let what = |need| match need {
        Need::Translation(_) if mode == Mode::Bridge => {
            Some("a bridge translates no addresses: mode = \"routed\" would".to_owned())
        }
        Need::Translation(_) => None,
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
    // As in the kernel: call signalling and gatekeepers of H.323 have their own names.
    Kind::ALL.iter().copied().find(|kind| kind.name().eq_ignore_ascii_case(name))
}

/// What a SYN proxy of the ruleset promises.
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

/// Timeouts as tracking has them.
fn timeout_policy(policy: &ruleset::TimeoutPolicy) -> TimeoutPolicy {
    // What nft does not print is as it is by default, whatever the tunables say.
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

/// A ruleset that packets are judged by; all workers look at one.
#[derive(Debug)]
pub struct Rules {
    /// The rules.
    pub program: Program,
    /// How many rulesets were loaded before and with it.
    pub revision: u32,
    /// When it was loaded.
    pub loaded_at: Timestamp,
    /// What the states of all workers have in common.
    shared: SharedState,
    /// What the ports are called, for whoever begins to judge by them.
    interfaces: Mutex<Arc<[u128]>>,
    /// By [`HelperId`].
    helpers: Vec<Option<Kind>>,
    /// By [`TimeoutId`].
    timeouts: Vec<TimeoutPolicy>,
    /// By number of the SYN proxy.
    syn_proxies: Vec<Promise>,
    /// Those that rules put packets in.
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
    ) -> Result<Unloaded, LoadRulesError> {
        let problems = check_rules(&ruleset, mode);
        if !problems.is_empty() {
            return Err(LoadRulesError::Unsupported(problems));
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

    /// The ports are called so now. Returns the names for those who judge by them already.
    pub fn rename(&self, interfaces: &[String]) -> Arc<[u128]> {
        let names = as_compared(interfaces);
        *self.interfaces.lock().unwrap_or_else(PoisonError::into_inner) = names.clone();
        names
    }

    /// Has quotas begin anew behind what all workers have used of them.
    pub fn reset_quotas(&self, used: &[u64]) {
        self.shared.reset_quotas(&self.program, used);
    }

    /// What is translated.
    pub const fn translations(&self) -> &Translations {
        &self.translations
    }

    /// True if anything is translated.
    pub fn translates(&self) -> bool {
        !self.translations.is_empty()
    }

    /// The helper that a rule names.
    pub fn helper(&self, id: HelperId) -> Option<Kind> {
        self.helpers.get(id.index()).copied().flatten()
    }

    /// The timeouts that a rule names.
    pub fn timeouts(&self, id: TimeoutId) -> Option<&TimeoutPolicy> {
        self.timeouts.get(id.index())
    }

    /// True if there are SYN proxies.
    pub fn has_syn_proxies(&self) -> bool {
        !self.syn_proxies.is_empty()
    }

    /// What the SYN proxy of this number promises.
    pub fn syn_proxy(&self, number: u32) -> Option<&Promise> {
        self.syn_proxies.get(number as usize)
    }

    /// True if rules put packets into zones.
    #[inline]
    pub fn sets_zones(&self) -> bool {
        !self.zones.is_empty()
    }

    /// The zones that rules put packets in.
    pub fn zones(&self) -> &[Zone] {
        &self.zones
    }

    /// The state of one worker.
    pub fn for_worker(self: &Arc<Self>) -> Box<WorkerRules> {
        let interfaces = self.interfaces.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Box::new(WorkerRules {
            interfaces,
            state: RuleState::new(&self.program, &self.shared, self.loaded_at),
            shared: self.clone(),
            lines: Allowance::new(LINES_PER_SECOND, LINE_BURST),
            unwritten: 0,
            resets: Allowance::new(RESETS_PER_SECOND, RESET_BURST),
        })
    }
}

/// Names of ports as rules compare them, 0 for one without.
fn as_compared(names: &[String]) -> Arc<[u128]> {
    names.iter().map(|name| name_bits(name).unwrap_or(0)).collect()
}

/// A ruleset that is ready to be loaded.
pub struct Unloaded {
    program: Program,
    interfaces: Arc<[u128]>,
    helpers: Vec<Option<Kind>>,
    timeouts: Vec<TimeoutPolicy>,
    syn_proxies: Vec<Promise>,
    zones: Vec<Zone>,
    translations: Translations,
}

impl Unloaded {
    /// Loads it.
    pub fn load(self, revision: u32, workers: usize, now: Timestamp) -> Arc<Rules> {
        let Self { program, interfaces, helpers, timeouts, syn_proxies, zones, translations } =
            self;
        for rule in &translations.vague {
            let place = program.ruleset().place_of_rule(*rule);
            tracing::warn!(
                "the kernel may answer packets that a rule translates, because the rule names \
                 neither an address nor a port by which they can be kept from it: {}; add \
                 one of them where packets are for this host's own addresses",
                place.map_or_else(|| format!("rule {rule}"), |place| place.to_string())
            );
        }
        let shared = SharedState::new(&program, workers);
        Arc::new(Rules {
            program,
            revision,
            loaded_at: now,
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

/// The rules of one worker.
#[derive(Debug)]
pub struct WorkerRules {
    /// What all workers look at.
    pub shared: Arc<Rules>,
    /// What the ports are called, see [`as_compared`].
    pub interfaces: Arc<[u128]>,
    /// What changes while packets are judged.
    pub state: RuleState,
    /// What may be logged.
    pub lines: Allowance,
    /// Lines that were asked for and not written.
    pub unwritten: u64,
    /// Resets that may be sent.
    pub resets: Allowance,
}

/// Counters or elements that one question covers.
const PIECE: usize = 4096;

/// What the rules of a worker, or of all, have counted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuleCounts {
    /// By number of the counter.
    pub counters: Vec<Counted>,
    /// Bytes, by number of the quota.
    pub quotas: Vec<u64>,
    /// Elements of each set that rules fill.
    pub elements: Vec<usize>,
    /// Additions to sets that found no room.
    pub refused_elements: u64,
    /// Changes of sets that other workers were not told.
    pub untold_elements: u64,
    /// Log lines that were asked for and not written.
    pub unwritten_lines: u64,
}

impl RuleCounts {
    /// Adds what another worker has counted. Of sets each worker has a copy, of which the one
    /// with the most elements counts.
    pub fn add(&mut self, other: &Self) {
        grow(&mut self.counters, other.counters.len());
        for (sum, counted) in self.counters.iter_mut().zip(&other.counters) {
            sum.packets += counted.packets;
            sum.bytes += counted.bytes;
        }
        grow(&mut self.quotas, other.quotas.len());
        self.quotas.iter_mut().zip(&other.quotas).for_each(|(sum, used)| *sum += used);
        grow(&mut self.elements, other.elements.len());
        for (most, count) in self.elements.iter_mut().zip(&other.elements) {
            *most = (*most).max(*count);
        }
        self.refused_elements += other.refused_elements;
        self.untold_elements += other.untold_elements;
        self.unwritten_lines += other.unwritten_lines;
    }
}

impl RuleCounts {
    /// What was counted since there were these counts.
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
    /// The name of a port.
    #[inline]
    pub fn interface(&self, port: PortId) -> u128 {
        self.interfaces.get(usize::from(port.0)).copied().unwrap_or(0)
    }

    /// What was counted, counters from `from` on and a bounded number of them. All else is
    /// told with the first.
    pub fn counts(&self, from: usize, now: Timestamp) -> RuleCounts {
        let all = self.state.all_counted();
        let counters = all.iter().skip(from).take(PIECE).copied().collect();
        if from > 0 {
            return RuleCounts { counters, ..RuleCounts::default() };
        }
        RuleCounts {
            counters,
            quotas: self.state.quotas_used(),
            elements: self.state.element_counts(now),
            refused_elements: self.state.refused_elements(),
            untold_elements: self.state.untold_updates(),
            unwritten_lines: self.unwritten,
        }
    }

    /// A piece of the elements of sets, and where the next begins.
    pub fn elements(&self, from: usize, now: Timestamp) -> (Vec<ElementUpdate>, Option<usize>) {
        let mut found = Vec::new();
        let program = &self.shared.program;
        let next = self.state.tell_elements(program, from, PIECE, now, |it| found.push(it));
        (found, next)
    }
}

impl Rules {
    /// Which rule or policy has decided, as people find it in the ruleset.
    pub fn tell(&self, why: &Why) -> Option<String> {
        let ruleset = self.program.ruleset();
        let Why::Tracking(why) = *why else { return None };
        match why {
            conntrack::Why::Rule { rule, revision } if revision == self.revision => {
                let place = ruleset.place_of_rule(rule as usize)?;
                Some(format!("{place} refuses it"))
            }
            conntrack::Why::Policy { chain, revision } if revision == self.revision => {
                let place = ruleset.place_of_chain(chain as usize)?;
                Some(format!("{place}: no rule decided, and its policy is to drop"))
            }
            conntrack::Why::InsideRule { rule, revision } if revision == self.revision => {
                let place = ruleset.place_of_rule(rule as usize)?;
                Some(format!("{place} refuses the packet inside"))
            }
            conntrack::Why::InsidePolicy { chain, revision } if revision == self.revision => {
                let place = ruleset.place_of_chain(chain as usize)?;
                Some(format!(
                    "{place}: no rule decided about the packet inside, and its policy is to drop"
                ))
            }
            _ => None,
        }
    }
}
