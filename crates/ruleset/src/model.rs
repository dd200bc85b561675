//! A ruleset that can not be wrong: names are resolved, types fit, jumps end.
//!
//! [`import`](crate::import()) is the only way to make one.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use wire::Family;

use crate::attached::{Helper, SynProxy, TimeoutObject};
use crate::elements::Elements;
use crate::field::{Field, HeaderBits, Typed};
use crate::generator::Generator;
use crate::hook::{Hook, TableFamily};
use crate::kind::{Interval, Kind, ObjectKind};

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
    /// A bound for the number of connections.
    BoundId;
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
    /// A source of numbers.
    GeneratorId;
}

/// A validated ruleset. Clones share its parts.
#[derive(Clone, Debug, PartialEq)]
pub struct ValidRuleset(Arc<Parts>);

impl ValidRuleset {
    /// Takes parts that were validated.
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

/// The parts of a ruleset.
#[derive(Debug, Default, PartialEq)]
pub struct Parts {
    pub(crate) chains: Vec<Chain>,
    pub(crate) rules: Vec<Rule>,
    pub(crate) sets: Vec<Set>,
    pub(crate) counters: Vec<Counter>,
    pub(crate) limits: Vec<Limit>,
    pub(crate) quotas: Vec<Quota>,
    pub(crate) bounds: Vec<Bound>,
    pub(crate) logs: Vec<Log>,
    pub(crate) nats: Vec<Nat>,
    pub(crate) helpers: Vec<Helper>,
    pub(crate) timeouts: Vec<TimeoutObject>,
    pub(crate) syn_proxies: Vec<SynProxy>,
    pub(crate) generators: Vec<Generator>,
    /// Chains that only the kernel can run for the host.
    pub(crate) host_chains: Vec<HostChain>,
    /// Base chains of each hook in the order of evaluation.
    pub(crate) bases: [Vec<ChainId>; Hook::ALL.len()],
}

impl ValidRuleset {
    /// The chains.
    pub fn chains(&self) -> &[Chain] {
        &self.chains
    }

    /// The rules; those of one chain are consecutive.
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

    /// Chains about the host's own traffic that refuse or change some of it. Only the kernel can
    /// run them for the host. Those of prerouting are judged here too, for what is forwarded.
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
    /// The kernel's handle, for messages.
    pub handle: Option<u64>,
    /// Hook, priority and policy; `None` for a chain that only jumps reach.
    pub base: Option<Base>,
    /// Its rules, as a range of the ruleset's list.
    pub(crate) rules: std::ops::Range<u32>,
}

/// The properties of a base chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Base {
    /// The hook in which it is evaluated.
    pub hook: Hook,
    /// Priority; chains with a lower one come first.
    pub priority: i32,
    /// Policy: true accepts packets that no rule decides, false drops them.
    pub accepts: bool,
}

/// A base chain of the hooks `input` or `output`, which are about the host's own traffic, or of
/// `prerouting`, which is about that too.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct HostChain {
    /// Family of its table, as nftables writes it.
    pub family: String,
    /// Table.
    pub table: String,
    /// Name.
    pub name: String,
    /// `input`, `output` or `prerouting`.
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
    /// Its items in order. The rule ends at the first that does not match.
    pub(crate) items: Vec<Item>,
}

/// A part of a rule.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Item {
    /// Goes on only if `load` is in the interval (`negated`: if it has a value outside).
    Within { load: Load, interval: Interval, negated: bool },
    /// Goes on only if one of these bits is set (without `any`: if none is).
    Bits { load: Load, mask: u128, any: bool },
    /// Goes on only if the set holds the key (`negated`: if the packet has a key that it does not
    /// hold).
    Member { key: Key, set: SetId, negated: bool },
    /// Counts.
    Counter(CounterId),
    /// Goes on within the limit.
    Limit(LimitId),
    /// Goes on within the quota.
    Quota(QuotaId),
    /// Counts the packet's connection, and goes on within the bound.
    Connections(BoundId),
    /// Counts, goes on within the limit or quota, or gives the connection the helper or timeouts,
    /// with the object that a map holds for the key. The rule ends if there is none.
    Object { what: ObjectKind, key: Key, map: SetId },
    /// Asks for a log line.
    Log(LogId),
    /// Sets a mark or another property.
    Assign { target: Target, value: Operand },
    /// Adds, refreshes or deletes an element of a set.
    Update(Update),
    /// Gives the connection a helper.
    Helper(HelperId),
    /// Gives the connection a timeout policy.
    Timeout(TimeoutId),
    /// Exempts the packet from tracking.
    Notrack,
    /// Ends with the verdict that a map holds for the key; goes on if there is none.
    VerdictMap { key: Key, map: SetId },
    /// Translates, and ends the chain.
    Nat(NatId),
    /// Lets the SYN proxy answer for the server.
    SynProxy(SynProxyId),
    /// Refuses the packet; this is final.
    Reject(Reject),
    /// Ends the rule with a verdict.
    Verdict(Verdict),
}

impl Item {
    /// True if it asks for something and does nothing.
    pub const fn compares(&self) -> bool {
        matches!(self, Self::Within { .. } | Self::Bits { .. } | Self::Member { .. })
    }

    /// The values that it reads of a packet.
    pub fn loads(&self) -> &[Load] {
        match self {
            Self::Within { load, .. } | Self::Bits { load, .. } => std::slice::from_ref(load),
            Self::Assign { value: Operand::Computed(load), .. } => std::slice::from_ref(load),
            Self::Member { key, .. }
            | Self::VerdictMap { key, .. }
            | Self::Object { key, .. }
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

/// The values that make a key, in order.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Key {
    pub loads: Vec<Load>,
}

/// The value of an assignment.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Operand {
    Constant(u128),
    Computed(Load),
    /// The value that a map holds for the key; the rule ends if there is none.
    Mapped {
        key: Key,
        map: SetId,
    },
    /// The path MTU less headers.
    PathMtu,
}

/// The property that an assignment sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    Mark,
    Priority,
    CtMark,
    /// The zone of the original (false) or reply direction (true), or (`None`) of both.
    CtZone(Option<bool>),
    CtLabel,
    SegmentSize,
    /// A field of a header.
    Header(HeaderBits),
}

/// A statement that changes a set.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Update {
    pub set: SetId,
    pub op: UpdateOp,
    pub key: Key,
    /// Timeout of the element; `None` for that of the set.
    pub timeout: Option<Duration>,
}

/// How a statement changes a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UpdateOp {
    Add,
    Refresh,
    Delete,
}

/// A statement that each element of a set holds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Part {
    Counter,
    Limit(Rate),
    Quota { bytes: u64, over: bool },
    Connections(Bound),
}

/// A bound for the number of connections that are alive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bound {
    /// The largest number.
    pub most: u32,
    /// Matches beyond the bound, instead of within it.
    pub over: bool,
}

impl Bound {
    /// True if the rule goes on at this number of connections.
    pub const fn lets_on(&self, connections: u32) -> bool {
        (connections > self.most) == self.over
    }
}

/// How a rule ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// The packet leaves the base chain and goes on.
    Accept,
    /// The packet is dropped.
    Drop,
    /// Goes on with the next rule.
    Continue,
    /// Goes back to the chain that jumped here; in a base chain, to its policy.
    Return,
    /// Goes to another chain, which may return.
    Jump(ChainId),
    /// Goes to another chain, which returns to the caller of this one.
    Goto(ChainId),
}

/// A set or map.
#[derive(Clone, Debug, PartialEq)]
pub struct Set {
    /// Family of its table.
    pub family: TableFamily,
    /// Table.
    pub table: String,
    /// Name; `None` for the anonymous set of a rule.
    pub name: Option<String>,
    /// The place of a declared set in the document's list of objects, from 0.
    pub position: Option<usize>,
    /// Types of the parts of its key.
    pub key: Vec<Kind>,
    /// The type of its data.
    pub(crate) data: Data,
    /// True if rules add or delete elements.
    pub dynamic: bool,
    /// Time that an element stays unless it says otherwise.
    pub timeout: Option<Duration>,
    /// The largest number of elements, if packets may add any.
    pub size: u32,
    /// The statements that elements hold.
    pub(crate) parts: Vec<Part>,
    /// True if its declaration names them, so that all elements have them. Otherwise rules give them
    /// to the elements that they add.
    pub(crate) declares_parts: bool,
    pub(crate) elements: Elements,
}

impl Set {
    /// True if packets change it, or the state of its elements.
    pub fn changes_with_packets(&self) -> bool {
        crate::compile::is_dynamic(self)
    }

    /// The number of elements that it is loaded with.
    pub fn element_count(&self) -> usize {
        self.elements.len()
    }
}

/// The type of a map's data; `None` for a set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Data {
    None,
    Values(Vec<Kind>),
    Verdicts,
}

/// A counter with its initial values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counter {
    /// Table and name; `None` for the counter of a rule.
    pub name: Option<(String, String)>,
    /// The place of a named counter in the document's list of objects, from 0.
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
    /// Packets or bytes that may pass at once beyond the rate.
    pub burst: u64,
    /// True if it limits bytes, false for packets.
    pub in_bytes: bool,
    /// Matches packets over the limit, instead of those within it.
    pub over: bool,
}

/// A rate limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limit {
    /// Table and name; `None` for the limit of a rule.
    pub name: Option<(String, String)>,
    /// The rate.
    pub rate: Rate,
}

/// A quota.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quota {
    /// Table and name; `None` for the quota of a rule.
    pub name: Option<(String, String)>,
    /// The place of a named quota in the document's list of objects, from 0.
    pub position: Option<usize>,
    /// Its size, in bytes.
    pub bytes: u64,
    /// Bytes that were used when the ruleset was printed.
    pub used: u64,
    /// Matches once it is used up, instead of before.
    pub over: bool,
}

/// A log statement.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Log {
    /// Text at the beginning of the line.
    pub prefix: String,
    /// Severity, 0 (emergency) to 7 (debug).
    pub level: u8,
    /// Netlink group that gets the packets, instead of the system's log.
    pub group: Option<u16>,
    /// Bytes of the packet for the group; 0 for all.
    pub snaplen: u32,
}

/// A translation.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Nat {
    pub kind: NatKind,
    /// Family of its packets; `None` for both.
    pub family: Option<Family>,
    pub address: NatOperand,
    pub port: NatOperand,
    /// True if only the prefix of the address changes and the host part stays.
    pub netmap: bool,
    pub flags: NatFlags,
}

/// The kind of a translation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NatKind {
    /// Source address, and port if need be.
    Source,
    /// Destination address.
    Destination,
    /// Source address, to that of the output interface.
    Masquerade,
    /// Destination address, to that of the input interface.
    Redirect,
}

/// The source of an address or port.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum NatOperand {
    None,
    Fixed(Interval),
    Mapped {
        key: Key,
        map: SetId,
    },
    /// The second part of the address map's value.
    WithAddress,
}

/// The choice among several ports or addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct NatFlags {
    /// Ports at random.
    pub random: bool,
    /// Ports at random, independent of the flow.
    pub fully_random: bool,
    /// The same address for each connection of a client.
    pub persistent: bool,
}

/// The answer to a refused packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reject {
    /// A TCP reset, which also closes the connection for tracking. Packets of other protocols end
    /// without an answer.
    TcpReset,
    /// ICMP "destination unreachable" with this code; packets of IPv4 only.
    Icmp(u8),
    /// ICMPv6 "destination unreachable" with this code; packets of IPv6 only.
    Icmpv6(u8),
    /// ICMP or ICMPv6, as the packet's family asks.
    Icmpx(Unreachable),
}

/// The reason of a refusal, for either family.
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
