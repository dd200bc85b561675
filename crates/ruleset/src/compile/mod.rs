//! Compiles a validated ruleset to instructions.

mod at_once;
mod index;
mod lookup;
mod per_packet;
mod table;

use crate::CtState;
use crate::field::{CtField, Field, HeaderBits};
use crate::hook::{Hook, TableFamily};
use crate::kind::Interval;
use crate::model::{
    ChainId, Counter, CounterId, Item, Key, LimitId, LogId, NatId, QuotaId, Reject, RuleId, SetId,
    ValidRuleset, Verdict,
};

use self::at_once::{FirstRules, States};
pub(crate) use self::index::{Candidates, Dimension, Index};
pub(crate) use self::lookup::{Lookup, PackedKey, Shape, is_dynamic};
pub use self::per_packet::PerPacket;

/// How a ruleset is compiled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompileOptions {
    /// Builds an index for long chains; without it, the rules are evaluated one by one.
    pub index: bool,
    /// A secret for hash tables, drawn once per process.
    pub seed: u64,
}

/// The reasons why a valid ruleset can not be compiled.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CompileError {
    /// The ranges of a set of concatenations come to too many prefixes.
    #[error(
        "the ranges of set {name} in table {table} come to more than {} prefixes: use fewer or \
         aligned ranges",
        crate::limits::MAX_TUPLES
    )]
    TooManyTuples {
        /// Table.
        table: String,
        /// Set.
        name: String,
    },
}

/// A ruleset that packets can be judged by. A program does not change: the
/// [`RuleState`](crate::RuleState) of each worker holds everything that does.
#[derive(Clone, Debug)]
pub struct Program {
    pub(crate) ruleset: ValidRuleset,
    pub(crate) chains: Vec<ChainCode>,
    /// By rule.
    pub(crate) spans: Vec<Span>,
    pub(crate) code: Vec<Instruction>,
    pub(crate) sets: Vec<Lookup>,
    /// The sets that the state holds.
    pub(crate) dynamic: Vec<SetId>,
    /// Counters of rules, then those of elements of sets that do not change.
    pub(crate) counters: Vec<Counter>,
    pub(crate) seed: u64,
    /// True if rules set fields of headers.
    pub(crate) writes: bool,
    /// By hook: the states whose packets it accepts without evaluation.
    at_once: Vec<States>,
    touches_headers: bool,
}

/// A chain.
#[derive(Clone, Debug)]
pub(crate) struct ChainCode {
    pub family: TableFamily,
    /// Its first rule; `end` is one behind its last.
    pub begin: u32,
    pub end: u32,
    /// The policy of a base chain: true accepts packets that no rule decides, false drops them.
    pub accepts: bool,
    pub index: Option<Box<[Index; 2]>>,
    pub first_rules: FirstRules,
}

/// The instructions of a rule.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    /// Its first instruction; `end` is one behind its last.
    pub begin: u32,
    pub end: u32,
    /// The first that has to see every packet of a flow, `u32::MAX` if there is none.
    pub per_packet: u32,
}

/// A step of a rule. An instruction for a rare item points to the item in the rule.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Instruction {
    /// The field has a value between the ends, or (`negated`) one outside. The ends have 64 bits.
    Narrow {
        field: Field,
        low: u64,
        high: u64,
        negated: bool,
    },
    /// The field has this value, or (`negated`) another; high half first. Names of interfaces have
    /// more than 64 bits.
    Is {
        field: Field,
        value: [u64; 2],
        negated: bool,
    },
    /// Some of the low 64 bits of the field are set: any of them, or (`any` is false) none.
    Bits {
        field: Field,
        mask: u64,
        any: bool,
    },
    /// The connection has one of these states, or (`any` is false) none of them.
    State {
        mask: u64,
        any: bool,
    },
    /// The item with this number: a rare test or statement.
    Item {
        rule: RuleId,
        item: u16,
    },
    /// One value is in a set.
    MemberOne {
        field: Field,
        set: SetId,
        negated: bool,
    },
    /// The verdict that a map holds for one value.
    MapOne {
        field: Field,
        map: SetId,
    },
    Counter(CounterId),
    Limit(LimitId),
    Quota(QuotaId),
    Log(LogId),
    Nat(NatId),
    Reject(Reject),
    Verdict(Verdict),
}

impl Program {
    /// Compiles a ruleset.
    ///
    /// # Errors
    /// [`CompileError`] if the ranges of a set make too many prefixes.
    pub fn compile(ruleset: ValidRuleset, options: CompileOptions) -> Result<Self, CompileError> {
        let CompileOptions { index, seed } = options;
        // An index looks at the ends of a packet once for each chain.
        let index = index && !ruleset.written().any(HeaderBits::is_end);
        let writes = ruleset.written().next().is_some();
        let (mut spans, mut code) = (Vec::with_capacity(ruleset.rules.len()), Vec::new());
        code.reserve_exact(ruleset.rules.iter().map(|rule| rule.items.len()).sum());
        for (rule, id) in ruleset.rules.iter().zip(0..) {
            let begin = code.len() as u32;
            let first =
                rule.items.iter().position(|it| per_packet::of_item(it, &ruleset).is_some());
            let per_packet = first.map_or(u32::MAX, |first| begin + first as u32);
            let items = rule.items.iter().zip(0..);
            code.extend(items.map(|(item, number)| instruction(item, RuleId(id), number)));
            spans.push(Span { begin, end: code.len() as u32, per_packet });
        }
        let chain = |chain: &crate::model::Chain| ChainCode {
            family: chain.family,
            begin: chain.rules.start,
            end: chain.rules.end,
            accepts: chain.base.is_none_or(|base| base.accepts),
            index: if index { index::build(&ruleset, chain.rules.clone()) } else { None },
            first_rules: FirstRules::of(
                &ruleset.rules[chain.rules.start as usize..chain.rules.end as usize],
            ),
        };
        let chains = ruleset.chains.iter().map(chain).collect();
        let (mut sets, mut dynamic) = (Vec::with_capacity(ruleset.sets.len()), Vec::new());
        let mut counters = ruleset.counters.clone();
        for (set, id) in ruleset.sets.iter().zip(0..) {
            let lookup = Lookup::new(set, seed);
            let mut lookup = lookup.map_err(|_| CompileError::TooManyTuples {
                table: set.table.clone(),
                name: set.name.clone().unwrap_or_else(|| "without a name".to_owned()),
            })?;
            if lookup::is_dynamic(set) {
                lookup.shape = Shape::Dynamic(dynamic.len() as u32);
                dynamic.push(SetId(id));
            } else if !set.parts.is_empty() {
                lookup.counters = Some(counters.len() as u32);
                counters.extend(set.elements.iter().map(|element| {
                    let (packets, bytes) = element.counted();
                    Counter { name: None, position: None, packets, bytes }
                }));
            }
            sets.push(lookup);
        }
        let at_once = Hook::ALL.map(|hook| States::accepted(&ruleset, hook)).into();
        let touches_headers = ruleset.touches_headers();
        Ok(Self {
            ruleset,
            chains,
            spans,
            code,
            sets,
            dynamic,
            counters,
            seed,
            writes,
            at_once,
            touches_headers,
        })
    }

    /// The ruleset that it was compiled from.
    pub fn ruleset(&self) -> &ValidRuleset {
        &self.ruleset
    }

    /// True if a hook has no base chain, so that it need not be evaluated.
    pub fn is_empty(&self, hook: Hook) -> bool {
        self.bases(hook).is_empty()
    }

    /// True if a hook accepts every packet in this state and does nothing else with it, so that it
    /// need not be evaluated. This holds for a hook without base chains, and where the first rules
    /// accept the state, such as `ct state established accept`.
    #[inline]
    pub fn accepts_at_once(&self, hook: Hook, state: CtState) -> bool {
        self.at_once[hook as usize].holds(state)
    }

    /// True if a rule may look at bytes of headers beside addresses, ports and the options of TCP,
    /// such as the time to live, or sets them.
    #[inline]
    pub const fn touches_headers(&self) -> bool {
        self.touches_headers
    }

    /// The sets that rules change. All workers share them.
    pub fn dynamic_sets(&self) -> &[SetId] {
        &self.dynamic
    }

    /// Memory of the indexes, in bytes.
    pub fn index_bytes(&self) -> usize {
        let indexes = self.chains.iter().filter_map(|chain| chain.index.as_deref()).flatten();
        indexes.map(Index::memory_bytes).sum()
    }

    pub(crate) fn bases(&self, hook: Hook) -> &[ChainId] {
        &self.ruleset.bases[hook as usize]
    }
}

fn instruction(item: &Item, rule: RuleId, number: u16) -> Instruction {
    match item {
        Item::Within { load, interval, negated } if load.is_plain() => match narrow(*interval) {
            Some((low, high)) => {
                Instruction::Narrow { field: load.field, low, high, negated: *negated }
            }
            None if interval.low == interval.high => Instruction::Is {
                field: load.field,
                value: [(interval.low >> 64) as u64, interval.low as u64],
                negated: *negated,
            },
            None => Instruction::Item { rule, item: number },
        },
        Item::Bits { load, mask, any } if load.is_plain() => match u64::try_from(*mask) {
            Ok(mask) if load.field == Field::Connection(CtField::State) => {
                Instruction::State { mask, any: *any }
            }
            Ok(mask) => Instruction::Bits { field: load.field, mask, any: *any },
            Err(_) => Instruction::Item { rule, item: number },
        },
        Item::Member { key, set, negated } => match plain(key) {
            Some(field) => Instruction::MemberOne { field, set: *set, negated: *negated },
            None => Instruction::Item { rule, item: number },
        },
        Item::VerdictMap { key, map } => match plain(key) {
            Some(field) => Instruction::MapOne { field, map: *map },
            None => Instruction::Item { rule, item: number },
        },
        Item::Counter(id) => Instruction::Counter(*id),
        Item::Limit(id) => Instruction::Limit(*id),
        Item::Quota(id) => Instruction::Quota(*id),
        Item::Log(id) => Instruction::Log(*id),
        Item::Nat(id) => Instruction::Nat(*id),
        Item::Reject(reject) => Instruction::Reject(*reject),
        Item::Verdict(verdict) => Instruction::Verdict(*verdict),
        _ => Instruction::Item { rule, item: number },
    }
}

fn narrow(interval: Interval) -> Option<(u64, u64)> {
    Some((u64::try_from(interval.low).ok()?, u64::try_from(interval.high).ok()?))
}

/// The field of a key of one part, if the key is its plain value.
fn plain(key: &Key) -> Option<Field> {
    match key.loads.as_slice() {
        [load] if load.is_plain() => Some(load.field),
        _ => None,
    }
}
