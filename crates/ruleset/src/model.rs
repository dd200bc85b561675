//! A ruleset that can not be wrong: names are resolved, types fit, jumps end.
//!
//! [`import`](crate::import()) is the only way to make one.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use wire::Family;

use crate::attached::{Helper, SynProxy, TimeoutPolicy};
use crate::elements::Elements;
use crate::field::{Field, Typed};
use crate::kind::{Interval, Kind};
use crate::stage::{Stage, TableFamily};

/// Declares an index into a list of the ruleset.
macro_rules! ids {
    ($($(#[$meta:meta])* $name:ident;)*) => {$(
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(pub(crate) u32);

        impl $name {
            /// The position in its list.
            pub const fn index(self) -> usize {
                self.0 as usize
            }
        }
    )*};
}

ids! {
    /// A chain.
    ChainId;
    /// A rule, counted over all chains.
    RuleId;
    /// A set or map, anonymous ones included.
    SetId;
    /// A counter.
    CounterId;
    /// A rate limit.
    LimitId;
    /// A quota.
    QuotaId;
    /// A log statement.
    LogId;
    /// A translation.
    NatId;
    /// A connection tracking helper.
    HelperId;
    /// A timeout policy.
    TimeoutId;
    /// A SYN proxy.
    SynProxyId;
}

/// A ruleset that was validated. Its copies are one.
#[derive(Clone, Debug, PartialEq)]
pub struct ValidRuleset(Arc<Parts>);

impl ValidRuleset {
    /// Of parts that were validated.
    pub(crate) fn new(parts: Parts) -> Self {
        Self(Arc::new(parts))
    }
}

impl Deref for ValidRuleset {
    type Target = Parts;

    fn deref(&self) -> &Parts {
        &self.0
    }
}

/// What a ruleset is made of.
#[derive(Debug, Default, PartialEq)]
pub struct Parts {
    pub(crate) chains: Vec<Chain>,
    pub(crate) rules: Vec<Rule>,
    pub(crate) sets: Vec<Set>,
    pub(crate) counters: Vec<Counter>,
    pub(crate) limits: Vec<Limit>,
    pub(crate) quotas: Vec<Quota>,
    pub(crate) logs: Vec<Log>,
    pub(crate) nats: Vec<Nat>,
    pub(crate) helpers: Vec<Helper>,
    pub(crate) timeouts: Vec<TimeoutPolicy>,
    pub(crate) syn_proxies: Vec<SynProxy>,
    /// Chains of hooks that only the kernel has.
    pub(crate) host_chains: Vec<HostChain>,
    /// Base chains of each stage in the order in which they are asked.
    pub(crate) bases: [Vec<ChainId>; Stage::ALL.len()],
}

impl ValidRuleset {
    /// The chains.
    pub fn chains(&self) -> &[Chain] {
        &self.chains
    }

    /// The rules, those of one chain in a row.
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// Sets and maps, anonymous ones included.
    pub fn sets(&self) -> &[Set] {
        &self.sets
    }

    /// Counters, those of rules included.
    pub fn counters(&self) -> &[Counter] {
        &self.counters
    }

    /// The counters with their numbers.
    pub fn counter_ids(&self) -> impl Iterator<Item = (CounterId, &Counter)> {
        self.counters.iter().zip(0..).map(|(counter, id)| (CounterId(id), counter))
    }

    /// The sets with their numbers.
    pub fn set_ids(&self) -> impl Iterator<Item = (SetId, &Set)> {
        self.sets.iter().zip(0..).map(|(set, id)| (SetId(id), set))
    }

    /// The first rule that counts with a counter.
    pub fn counting_rule(&self, counter: CounterId) -> Option<&Rule> {
        self.rules.iter().find(|rule| rule.items.contains(&Item::Counter(counter)))
    }

    /// Chains about the host's own traffic that refuse or change some of it. Only the kernel can
    /// run them.
    pub fn host_chains(&self) -> &[HostChain] {
        &self.host_chains
    }

    /// Rate limits, those of rules included.
    pub fn limits(&self) -> &[Limit] {
        &self.limits
    }

    /// Quotas, those of rules included.
    pub fn quotas(&self) -> &[Quota] {
        &self.quotas
    }
}

/// A chain.
#[derive(Clone, Debug, PartialEq)]
pub struct Chain {
    /// Family of its table.
    pub family: TableFamily,
    /// Table.
    pub table: String,
    /// Name.
    pub name: String,
    /// The kernel's handle, for people.
    pub handle: Option<u64>,
    /// For a base chain: where it is asked, and what becomes of packets that no rule decides.
    pub base: Option<Base>,
    /// Its rules as a range of the ruleset's.
    pub(crate) rules: std::ops::Range<u32>,
}

/// What makes a chain a base chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Base {
    /// Where it is asked.
    pub stage: Stage,
    /// Lower is earlier.
    pub priority: i32,
    /// Accept what no rule decides; else drop it.
    pub accepts: bool,
}

/// A base chain of the hooks `input` or `output`, which are about the host's own traffic.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct HostChain {
    /// Family of its table, as nftables writes it.
    pub family: String,
    /// Table.
    pub table: String,
    /// Name.
    pub name: String,
    /// `input` or `output`.
    pub hook: String,
    /// What becomes of packets that no rule decides: `accept` or `drop`.
    pub policy: String,
}

/// A rule.
#[derive(Clone, Debug, PartialEq)]
pub struct Rule {
    /// Chain.
    pub chain: ChainId,
    /// The kernel's handle.
    pub handle: Option<u64>,
    /// The operator's comment.
    pub comment: Option<String>,
    /// Its place in the document's list of objects, from 0.
    pub position: usize,
    /// What it does, in order. What does not match ends it.
    pub(crate) items: Vec<Item>,
}

/// A part of a rule.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Item {
    /// Goes on only if `load` is in the interval (`negated`: and has a value outside).
    Within { load: Load, interval: Interval, negated: bool },
    /// Goes on only if any of these bits is set (not `any`: none).
    Bits { load: Load, mask: u128, any: bool },
    /// Goes on only if the set holds the key (`negated`: and the key exists).
    Member { key: Key, set: SetId, negated: bool },
    /// Counts.
    Counter(CounterId),
    /// Goes on within the limit.
    Limit(LimitId),
    /// Goes on within the quota.
    Quota(QuotaId),
    /// Asks for a log line.
    Log(LogId),
    /// Changes a mark or the like.
    Assign { target: Target, value: Operand },
    /// Adds to, refreshes in or takes from a set what the packet has.
    Update(Update),
    /// The connection gets a helper.
    Helper(HelperId),
    /// The connection gets timeouts.
    Timeout(TimeoutId),
    /// The packet is not tracked.
    Notrack,
    /// The verdict that a map holds for the key; goes on if it holds none.
    VerdictMap { key: Key, map: SetId },
    /// Translates; ends the chain.
    Nat(NatId),
    /// Answers SYNs for the server.
    SynProxy(SynProxyId),
    /// Refuses; ends everything.
    Reject(Reject),
    /// Decides.
    Verdict(Verdict),
}

impl Item {
    /// What it reads of a packet.
    pub fn loads(&self) -> &[Load] {
        match self {
            Self::Within { load, .. } | Self::Bits { load, .. } => std::slice::from_ref(load),
            Self::Assign { value: Operand::Computed(load), .. } => std::slice::from_ref(load),
            Self::Member { key, .. }
            | Self::VerdictMap { key, .. }
            | Self::Assign { value: Operand::Mapped { key, .. }, .. } => &key.loads,
            Self::Update(update) => &update.key.loads,
            _ => &[],
        }
    }
}

/// A value of a packet: `(field & and) ^ xor`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Load {
    pub field: Field,
    pub and: u128,
    pub xor: u128,
}

impl Load {
    pub const fn of(field: Field) -> Self {
        Self { field, and: u128::MAX, xor: 0 }
    }

    pub const fn is_plain(&self) -> bool {
        self.and == u128::MAX && self.xor == 0
    }
}

/// A key with the types of its parts.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Key {
    pub loads: Vec<Load>,
}

/// What a mark is set to.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Operand {
    Constant(u128),
    Computed(Load),
    /// What a map holds for the key; the rule ends if it holds nothing.
    Mapped {
        key: Key,
        map: SetId,
    },
    /// The path MTU less headers.
    PathMtu,
}

/// What can be assigned to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    Mark,
    Priority,
    CtMark,
    /// Of the original or the reply direction only (true), or of both.
    CtZone(Option<bool>),
    CtLabel,
    SegmentSize,
}

/// A statement that changes a set.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Update {
    pub set: SetId,
    pub op: UpdateOp,
    pub key: Key,
    /// Of the element; without one, that of the set.
    pub timeout: Option<Duration>,
}

/// How a statement changes a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UpdateOp {
    Add,
    Refresh,
    Delete,
}

/// What an element of a set holds beside its data.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Part {
    Counter,
    Limit(Rate),
    Quota { bytes: u64, over: bool },
}

/// How a rule ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// Leaves the base chain; the packet goes on.
    Accept,
    /// Ends the packet.
    Drop,
    /// To the next rule.
    Continue,
    /// Back to the chain that jumped here; in a base chain to its policy.
    Return,
    /// To another chain, and back.
    Jump(ChainId),
    /// To another chain, and not back.
    Goto(ChainId),
}

/// A set or map.
#[derive(Clone, Debug, PartialEq)]
pub struct Set {
    /// Family of its table.
    pub family: TableFamily,
    /// Table.
    pub table: String,
    /// Name; `None` for one that a rule holds.
    pub name: Option<String>,
    /// The place of a declared one in the document's list of objects, from 0.
    pub position: Option<usize>,
    /// Types of the parts of its key.
    pub key: Vec<Kind>,
    /// What it maps to.
    pub(crate) data: Data,
    /// Rules add to it, or take from it.
    pub dynamic: bool,
    /// How long an element stays that says nothing else.
    pub timeout: Option<Duration>,
    /// Most elements, if packets may add some.
    pub size: u32,
    /// What each element holds.
    pub(crate) parts: Vec<Part>,
    pub(crate) elements: Elements,
}

impl Set {
    /// Elements that it is loaded with.
    pub fn element_count(&self) -> usize {
        self.elements.len()
    }
}

/// What a map maps to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Data {
    None,
    Values(Vec<Kind>),
    Verdicts,
}

/// A counter and what it begins with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counter {
    /// Table and name; `None` for that of a rule.
    pub name: Option<(String, String)>,
    /// The place of a named one in the document's list of objects, from 0.
    pub position: Option<usize>,
    /// Packets.
    pub packets: u64,
    /// Bytes.
    pub bytes: u64,
}

/// A rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// Packets or bytes in each period.
    pub amount: u64,
    /// The period.
    pub period: Duration,
    /// More of them at once.
    pub burst: u64,
    /// It counts bytes.
    pub in_bytes: bool,
    /// Matches what is over the limit, instead of what is under it.
    pub over: bool,
}

/// A rate limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limit {
    /// Table and name; `None` for that of a rule.
    pub name: Option<(String, String)>,
    /// The rate.
    pub rate: Rate,
}

/// A quota.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quota {
    /// Table and name; `None` for that of a rule.
    pub name: Option<(String, String)>,
    /// The place of a named one in the document's list of objects, from 0.
    pub position: Option<usize>,
    /// How many bytes.
    pub bytes: u64,
    /// How many of them were used.
    pub used: u64,
    /// Matches when it is used up, instead of before.
    pub over: bool,
}

/// A log statement.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Log {
    /// What the line begins with.
    pub prefix: String,
    /// Severity, 0 (emergency) to 7 (debug).
    pub level: u8,
    /// Group of subscribers, instead of the system's log.
    pub group: Option<u16>,
    /// Bytes of the packet for subscribers; 0 for all.
    pub snaplen: u32,
}

/// A translation.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Nat {
    pub kind: NatKind,
    /// Packets of which family; none: both.
    pub family: Option<Family>,
    pub address: NatOperand,
    pub port: NatOperand,
    /// The host part of the address stays.
    pub netmap: bool,
    pub flags: NatFlags,
}

/// Which translation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NatKind {
    /// Source address, and port if need be.
    Source,
    /// Destination address.
    Destination,
    /// Source address to that of the interface it goes out by.
    Masquerade,
    /// Destination address to that of the interface it came in by.
    Redirect,
}

/// Where an address or port comes from.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum NatOperand {
    None,
    Fixed(Interval),
    Mapped {
        key: Key,
        map: SetId,
    },
    /// The second part of what the map for the address holds.
    WithAddress,
}

/// How a port or address is chosen from several.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct NatFlags {
    /// Ports at random.
    pub random: bool,
    /// Ports at random, independent of the flow.
    pub fully_random: bool,
    /// The same address for the same client.
    pub persistent: bool,
}

/// How a packet is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reject {
    /// A TCP reset, which also closes the connection as far as tracking goes; what is no TCP
    /// just ends.
    TcpReset,
    /// ICMP "destination unreachable" with this code; packets of IPv4 only.
    Icmp(u8),
    /// ICMPv6 "destination unreachable" with this code; packets of IPv6 only.
    Icmpv6(u8),
    /// The one that fits the packet.
    Icmpx(Unreachable),
}

/// What is unreachable, for either family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Unreachable {
    /// No route: code 0 of either.
    NoRoute,
    /// Port: code 3 of ICMP, 4 of ICMPv6.
    Port,
    /// Host: code 1 of ICMP, 3 of ICMPv6.
    Host,
    /// Prohibited: code 13 of ICMP, 1 of ICMPv6.
    Prohibited,
}

impl Unreachable {
    /// The code of ICMP or ICMPv6.
    pub const fn code(self, family: Family) -> u8 {
        match (self, family) {
            (Self::NoRoute, _) => 0,
            (Self::Port, Family::V4) => 3,
            (Self::Port, Family::V6) => 4,
            (Self::Host, Family::V4) => 1,
            (Self::Host, Family::V6) => 3,
            (Self::Prohibited, Family::V4) => 13,
            (Self::Prohibited, Family::V6) => 1,
        }
    }
}

/// The loads of a key with their types, before they are stripped.
pub(crate) type TypedKey = Vec<(Load, Kind)>;

pub(crate) const fn plain((field, kind): Typed) -> (Load, Kind) {
    (Load::of(field), kind)
}
