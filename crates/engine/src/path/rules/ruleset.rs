//! The operator's rules in the form in which a gateway uses them.

use std::sync::{Arc, Mutex, PoisonError};

use conntrack::helper::Kind;
use conntrack::proto::tcp::{TcpState, TcpTimeouts};
use conntrack::syn_proxy::Promise;
use conntrack::{Settings, TimeoutPolicy, Timeouts};
use flow::{Timestamp, Zone};
use ruleset::listing::LiveElement;
use ruleset::{
    CompileError, CompileOptions, ElementProblem, HelperId, HostCopies, Interface, NamedElements,
    Need, Problem, Program, RuleState, SetId, Severity, SharedState, SynProxy, TimeoutId,
    TimeoutState, Translations, ValidRuleset, name_bits,
};
use wire::protocol;

use crate::egress::Mode;
use crate::path::drop_cause::DropCause;
use crate::path::rules::worker_rules::WorkerRules;

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
            position: None,
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
fn timeout_policy(policy: &ruleset::TimeoutObject) -> TimeoutPolicy {
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
    services: Services,
}

/// The services that a ruleset needs of a gateway.
#[derive(Debug)]
struct Services {
    /// The kinds of the helpers, by [`HelperId`].
    helpers: Vec<Option<Kind>>,
    /// The timeout policies, by [`TimeoutId`].
    timeouts: Vec<TimeoutPolicy>,
    /// The promises of the SYN proxies, by number of the SYN proxy.
    syn_proxies: Vec<Promise>,
    /// The zones that rules put packets in.
    zones: Vec<Zone>,
    /// True if the rules ask for the packets or bytes of connections.
    asks_for_counts: bool,
    translations: Translations,
    host_copies: HostCopies,
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
        let translations = ruleset.translations();
        let services = Services {
            helpers: ruleset.helpers().iter().map(|helper| helper_kind(&helper.kind)).collect(),
            timeouts: ruleset.timeouts().iter().map(timeout_policy).collect(),
            syn_proxies: ruleset.syn_proxies().iter().map(promise).collect(),
            zones: ruleset.zones_set().into_iter().map(Zone).collect(),
            asks_for_counts: ruleset.asks_for_counts(),
            host_copies: HostCopies::new(&translations),
            translations,
        };
        let program = Program::compile(ruleset, CompileOptions { index: true, seed })?;
        let interfaces = as_compared(interfaces);
        Ok(Unloaded { program, interfaces, services })
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
        &self.services.translations
    }

    /// The packets for the host that reach its kernel although rules translate destinations.
    pub const fn host_copies(&self) -> &HostCopies {
        &self.services.host_copies
    }

    /// Warnings about packets that rules translate and that can not be kept from the kernel.
    pub fn warnings(&self) -> Vec<String> {
        self.program.ruleset().warnings_of(&self.services.translations)
    }

    /// True if the rules translate anything.
    pub fn translates(&self) -> bool {
        !self.services.translations.is_empty()
    }

    /// True if rules assign helpers to connections.
    pub fn has_helpers(&self) -> bool {
        self.services.helpers.iter().any(Option::is_some)
    }

    /// The helper that a rule names.
    pub fn helper(&self, id: HelperId) -> Option<Kind> {
        self.services.helpers.get(id.index()).copied().flatten()
    }

    /// The timeouts that a rule names.
    pub fn timeouts(&self, id: TimeoutId) -> Option<&TimeoutPolicy> {
        self.services.timeouts.get(id.index())
    }

    /// True if the rules ask for the packets or bytes of connections.
    pub const fn asks_for_counts(&self) -> bool {
        self.services.asks_for_counts
    }

    /// True if the rules have SYN proxies.
    pub fn has_syn_proxies(&self) -> bool {
        !self.services.syn_proxies.is_empty()
    }

    /// The promise of the SYN proxy of this number.
    pub fn syn_proxy(&self, number: u32) -> Option<&Promise> {
        self.services.syn_proxies.get(number as usize)
    }

    /// True if the rules put packets into zones.
    #[inline]
    pub fn sets_zones(&self) -> bool {
        !self.services.zones.is_empty()
    }

    /// The zones that the rules put packets in.
    pub fn zones(&self) -> &[Zone] {
        &self.services.zones
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
        let state = RuleState::new(&self.program, &self.shared, self.loaded_at);
        Box::new(WorkerRules::new(self.clone(), self.interfaces(), state))
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
    services: Services,
}

impl Unloaded {
    /// Gives the rules their revision, and the state that workers share.
    pub fn load(self, revision: u32, now: Timestamp) -> Arc<Rules> {
        for warning in self.program.ruleset().warnings_of(&self.services.translations) {
            tracing::warn!("{warning}");
        }
        let shared = SharedState::new(&self.program, now);
        self.into_rules(revision, now, shared)
    }

    fn into_rules(self, revision: u32, loaded_at: Timestamp, shared: SharedState) -> Arc<Rules> {
        let Self { program, interfaces, services } = self;
        Arc::new(Rules {
            program,
            revision,
            loaded_at,
            shared,
            interfaces: Mutex::new(interfaces),
            services,
        })
    }
}

impl Rules {
    /// The rule or policy that decided, by its place in the ruleset, and the check that an INVALID
    /// packet failed. `None` if it is not of these rules.
    pub fn tell(&self, why: &DropCause) -> Option<String> {
        let mut text = self.tell_decider(why)?;
        if let Some(invalid) = why.invalid() {
            text = format!("{text}; it is INVALID: {invalid}");
        }
        Some(text)
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
