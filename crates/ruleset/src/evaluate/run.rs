//! The way of one packet through the chains of a hook.

use flow::{Timestamp, Zone, ZonePair};
use wire::{Family, Network, TcpFlags, Transport, protocol};

use super::load::{port, state, value};
use super::outcome::{Decider, Decision, NatRequest, Outcome, SegmentSize};
use super::routes::{looked_up, next_hop, route_segment_size};
use super::state::{PacketFacts, RuleState};
use super::trace::{Step, Trace};
use super::view::PacketView;
use crate::compile::{Candidates, Dimension, Instruction, Lookup, PackedKey, Program, Shape, Span};
use crate::elements::Element;
use crate::field::{Field, Guard};
use crate::hook::Hook;
use crate::kind::ObjectKind;
use crate::model::{
    ChainId, CounterId, HelperId, Item, Key, Load, NatId, NatOperand, Operand, Reject, RuleId,
    SetId, SynProxyId, Target, TimeoutId, Update, Verdict,
};

/// The end of a rule.
enum Ended {
    /// It did not match, or decides nothing.
    GoesOn,
    Verdict(Verdict),
    Decision(Decision),
}

/// The end of a chain.
enum Left {
    /// The packet goes back to the chain that jumped here.
    Returned,
    Accepted(RuleId),
    Decided(Decision, RuleId),
}

pub(super) struct Run<'a, 'v, T> {
    pub(super) program: &'a Program,
    pub(super) view: &'a PacketView<'v>,
    pub(super) state: &'a mut RuleState,
    pub(super) now: Timestamp,
    pub(super) outcome: &'a mut Outcome,
    /// Length of the packet, in bytes.
    bytes: u64,
    pub(super) hook: Hook,
    trace: &'a mut T,
}

impl<'a, 'v, T: Trace> Run<'a, 'v, T> {
    #[inline]
    pub fn new(
        program: &'a Program,
        view: &'a PacketView<'v>,
        state: &'a mut RuleState,
        now: Timestamp,
        outcome: &'a mut Outcome,
        trace: &'a mut T,
    ) -> Self {
        let bytes = u64::from(view.network.end - u32::from(view.network.offset));
        Self { program, view, state, now, outcome, bytes, hook: Hook::Untracked, trace }
    }

    /// Evaluates the base chains in order. A packet that one chain accepts goes on to the next;
    /// every other decision is final.
    #[inline]
    pub fn hook(&mut self, hook: Hook) {
        self.hook = hook;
        self.state.forget_joined();
        for &base in self.program.bases(hook) {
            let chain = &self.program.chains[base.index()];
            if !chain.family.sees(self.view.network.family) {
                continue;
            }
            match self.chain(base) {
                Left::Accepted(rule) => {
                    self.outcome.decided_by = Some(Decider::Rule(rule));
                    // Only the first translation counts.
                    if self.outcome.nat.is_some() {
                        break;
                    }
                }
                Left::Decided(decision, rule) => {
                    self.outcome.decision = decision;
                    self.outcome.decided_by = Some(Decider::Rule(rule));
                    break;
                }
                Left::Returned => {
                    self.trace.tell(Step::Policy(base));
                    self.outcome.decided_by = Some(Decider::Policy(base));
                    if !chain.accepts {
                        self.outcome.decision = Decision::Drop;
                        break;
                    }
                }
            }
        }
    }

    /// Evaluates a chain and the chains that it jumps to. Validation bounds the depth.
    fn chain(&mut self, mut id: ChainId) -> Left {
        let program = self.program;
        'chain: loop {
            let chain = &program.chains[id.index()];
            let mut rules = match &chain.index {
                Some(indexes) => {
                    let index = &indexes[usize::from(self.view.network.family == Family::V6)];
                    Rules::Indexed(index.candidates(|dimension| self.dimension(dimension)))
                }
                None => {
                    let first = chain.first_rules.of_state(state(self.view, self.outcome));
                    Rules::All(first..chain.end - chain.begin)
                }
            };
            while let Some(offset) = rules.next() {
                let rule = RuleId(chain.begin + offset);
                match self.rule(rule) {
                    Ended::GoesOn | Ended::Verdict(Verdict::Continue) => {}
                    Ended::Verdict(Verdict::Accept) => return Left::Accepted(rule),
                    Ended::Verdict(Verdict::Drop) => return Left::Decided(Decision::Drop, rule),
                    Ended::Verdict(Verdict::Return) => return Left::Returned,
                    Ended::Verdict(Verdict::Goto(to)) => {
                        id = to;
                        continue 'chain;
                    }
                    Ended::Verdict(Verdict::Jump(to)) => match self.chain(to) {
                        Left::Returned => {}
                        left => return left,
                    },
                    Ended::Decision(decision) => return Left::Decided(decision, rule),
                }
            }
            return Left::Returned;
        }
    }

    /// The packet's value of a field of the index.
    #[inline]
    fn dimension(&self, dimension: Dimension) -> Option<u128> {
        let network = self.view.network;
        let field = match dimension {
            Dimension::Protocol => Field::L4Protocol,
            Dimension::Source => Field::Source(network.family),
            Dimension::Destination => Field::Destination(network.family),
            Dimension::SourcePort => return port(self.view, Guard::Any, 0),
            Dimension::DestinationPort => return port(self.view, Guard::Any, 2),
            Dimension::Input => Field::Input,
            Dimension::Output => Field::Output,
        };
        value(field, self.view, self.outcome)
    }

    #[inline]
    fn rule(&mut self, rule: RuleId) -> Ended {
        let program = self.program;
        let Span { begin, end, per_packet } = program.spans[rule.index()];
        for (at, instruction) in (begin..).zip(&program.code[begin as usize..end as usize]) {
            self.outcome.per_packet |= at == per_packet;
            let goes_on = match *instruction {
                Instruction::Narrow { field, low, high, negated } => {
                    self.value(field).is_some_and(|value| is_within(value, low, high) != negated)
                }
                Instruction::Is { field, value: wanted, negated } => {
                    self.value(field).is_some_and(|value| (value == whole(wanted)) != negated)
                }
                Instruction::Bits { field, mask, any } => {
                    self.value(field).is_some_and(|value| (value as u64 & mask != 0) == any)
                }
                Instruction::State { mask, any } => self.is_in_state(mask) == any,
                Instruction::MemberOne { field, set, negated } => self
                    .value(field)
                    .is_some_and(|value| self.find_one(set, value).is_some() != negated),
                Instruction::MapOne { field, map } => {
                    let found = self.value(field).and_then(|value| self.find_one(map, value));
                    match self.verdict_of(map, found) {
                        Some(Verdict::Continue) => true,
                        Some(verdict) => {
                            self.trace.tell(Step::Rule(rule));
                            return Ended::Verdict(verdict);
                        }
                        None => false,
                    }
                }
                Instruction::Counter(counter) => {
                    self.state.count(counter, self.bytes);
                    true
                }
                Instruction::Limit(limit) => {
                    self.state.within_rate(limit.index(), self.bytes, self.now, T::USES)
                }
                Instruction::Quota(quota) => {
                    self.state.within_quota(quota.index(), self.bytes, T::USES)
                }
                Instruction::Log(log) => {
                    self.outcome.logs.push(log, rule);
                    true
                }
                Instruction::Verdict(verdict) => {
                    self.trace.tell(Step::Rule(rule));
                    return Ended::Verdict(verdict);
                }
                Instruction::Reject(reject) if self.fits(reject) => {
                    self.trace.tell(Step::Rule(rule));
                    return Ended::Decision(Decision::Reject(reject));
                }
                Instruction::Reject(_) => false,
                Instruction::Nat(nat) => match self.translation(nat) {
                    Some(request) => {
                        self.outcome.nat = Some(request);
                        self.trace.tell(Step::Rule(rule));
                        return Ended::Verdict(Verdict::Accept);
                    }
                    None => false,
                },
                Instruction::Item { rule: of, item } => {
                    let item = &program.ruleset.rules[of.index()].items[usize::from(item)];
                    match self.item(item) {
                        Ok(goes_on) => goes_on,
                        Err(ended) => {
                            self.trace.tell(Step::Rule(rule));
                            return ended;
                        }
                    }
                }
            };
            if !goes_on {
                return Ended::GoesOn;
            }
        }
        self.trace.tell(Step::Rule(rule));
        Ended::GoesOn
    }

    /// True if the connection has one of these states.
    #[inline]
    fn is_in_state(&self, states: u64) -> bool {
        state(self.view, self.outcome) as u64 & states != 0
    }

    #[inline]
    fn value(&mut self, field: Field) -> Option<u128> {
        if let Field::Generated(id) = field {
            return self.generated(id);
        }
        if T::WRITES && self.outcome.is_rewritten {
            return self.value_after_writes(field);
        }
        self.value_in(field, self.view)
    }

    /// The value of a field that the rule does not make itself, in this view of the packet.
    #[inline(always)]
    pub(super) fn value_in(&self, field: Field, view: &PacketView<'_>) -> Option<u128> {
        match field {
            Field::Route(lookup) => looked_up(lookup, self.hook, view, self.outcome),
            Field::NextHop(family) => next_hop(family, view),
            Field::RouteSegmentSize => route_segment_size(view),
            Field::Cpu => self.state.cpu.map(u128::from),
            Field::Clock(field) => self.state.wall.value(field, self.now),
            Field::Group(side) => self.state.group(side, self.view),
            Field::LinkType(side) => self.state.link_type(side, self.hook, self.view),
            Field::LinkHeader { offset, bits, raw } => {
                self.state.link_header((offset, bits, raw), self.hook, self.view)
            }
            field => value(field, view, self.outcome),
        }
    }

    #[inline]
    pub(super) fn load(&mut self, load: &Load) -> Option<u128> {
        self.value(load.field).map(|value| (value & load.and) ^ load.xor)
    }

    /// Evaluates a rare item. An error says how the rule ends.
    fn item(&mut self, item: &Item) -> Result<bool, Ended> {
        Ok(match item {
            Item::Within { load, interval, negated } => {
                self.load(load).is_some_and(|value| interval.holds(value) != *negated)
            }
            Item::Bits { load, mask, any } => {
                self.load(load).is_some_and(|value| (value & mask != 0) == *any)
            }
            Item::Member { key, set, negated } => match self.find(key, *set) {
                Some(found) => found.is_some() != *negated,
                None => false,
            },
            Item::VerdictMap { key, map } => {
                let found = self.find(key, *map).flatten();
                match self.verdict_of(*map, found) {
                    Some(Verdict::Continue) => true,
                    Some(verdict) => return Err(Ended::Verdict(verdict)),
                    None => false,
                }
            }
            Item::Object { what, key, map } => {
                let object = self.mapped(key, *map).and_then(|held| held.value(0));
                match object.map(|object| object.low as u32) {
                    Some(object) => return self.use_object(*what, object),
                    None => false,
                }
            }
            Item::Assign { target, value } => self.assign(*target, value),
            Item::Update(update) => self.update(update),
            Item::Connections(bound) => {
                let facts = self.facts();
                self.state.within_bound(bound.index(), facts, T::USES)
            }
            Item::Helper(helper) => return self.use_object(ObjectKind::Helper, helper.0),
            Item::Timeout(timeout) => return self.use_object(ObjectKind::Timeout, timeout.0),
            Item::Notrack => {
                self.outcome.notrack |= self.outcome.zone.is_none();
                true
            }
            Item::SynProxy(proxy) => return self.use_object(ObjectKind::SynProxy, proxy.0),
            // These have instructions of their own.
            Item::Counter(_)
            | Item::Limit(_)
            | Item::Quota(_)
            | Item::Log(_)
            | Item::Nat(_)
            | Item::Reject(_)
            | Item::Verdict(_) => true,
        })
    }

    /// ICMP errors are for packets of their own family. A reset also ends packets of other
    /// protocols, without an answer.
    fn fits(&self, reject: Reject) -> bool {
        let network = self.view.network;
        match reject {
            Reject::Icmp(_) => network.family == Family::V4,
            Reject::Icmpv6(_) => network.family == Family::V6,
            Reject::TcpReset | Reject::Icmpx(_) => true,
        }
    }

    /// The element of a key of one value.
    #[inline]
    fn find_one(&mut self, set: SetId, value: u128) -> Option<u32> {
        let lookup = &self.program.sets[set.index()];
        if let Shape::Dynamic(at) = lookup.shape {
            let mut key = PackedKey::EMPTY;
            key.push(value, usize::from(lookup.words[0]));
            return self.find_dynamic(at, &key);
        }
        let found = lookup.find_one(value);
        self.counted(lookup, found)
    }

    /// The element of a key. The outer `None` says that the packet has no such key.
    fn find(&mut self, key: &Key, set: SetId) -> Option<Option<u32>> {
        if let [load] = key.loads.as_slice() {
            let value = self.load(load)?;
            return Some(self.find_one(set, value));
        }
        let lookup = &self.program.sets[set.index()];
        let key = self.packed(key, lookup)?;
        if let Shape::Dynamic(at) = lookup.shape {
            return Some(self.find_dynamic(at, &key));
        }
        let found = lookup.find(&key);
        Some(self.counted(lookup, found))
    }

    fn packed(&mut self, key: &Key, lookup: &Lookup) -> Option<PackedKey> {
        let mut packed = PackedKey::EMPTY;
        for (load, words) in key.loads.iter().zip(&lookup.words) {
            packed.push(self.load(load)?, usize::from(*words));
        }
        Some(packed)
    }

    /// The packet for statements that have a state.
    fn facts(&self) -> PacketFacts<'a> {
        let details = self.view.connection.known.and_then(|known| known.details);
        PacketFacts { bytes: self.bytes, now: self.now, details }
    }

    /// The element of a set that packets change. Only presence counts, as it holds no data.
    fn find_dynamic(&mut self, at: u32, key: &PackedKey) -> Option<u32> {
        let facts = self.facts();
        self.state.meet(at as usize, key, facts, T::USES).then_some(0)
    }

    /// Counts for the element that was found, or for `*` if none was found or it has expired.
    #[inline]
    fn counted(&mut self, lookup: &Lookup, found: Option<u32>) -> Option<u32> {
        let lives = |it: &u32| {
            lookup.expires.get(*it as usize).is_none_or(|end| self.state.age(self.now) < *end)
        };
        let found = found.filter(lives).or_else(|| lookup.catch_all.filter(lives))?;
        if let Some(first) = lookup.counters {
            self.state.count(CounterId(first + found), self.bytes);
        }
        Some(found)
    }

    fn verdict_of(&self, map: SetId, found: Option<u32>) -> Option<Verdict> {
        self.program.ruleset.sets[map.index()].elements.get(found? as usize)?.verdict()
    }

    /// The value that a map holds for the packet's key.
    fn mapped(&mut self, key: &Key, map: SetId) -> Option<Element<'a>> {
        let found = self.find(key, map).flatten()?;
        self.program.ruleset.sets[map.index()].elements.get(found as usize)
    }

    /// Counts, gives the connection a helper or timeouts, hands the packet to a SYN proxy, or says
    /// whether it is within the limit or quota of this number.
    fn use_object(&mut self, what: ObjectKind, object: u32) -> Result<bool, Ended> {
        Ok(match what {
            ObjectKind::Counter => {
                self.state.count(CounterId(object), self.bytes);
                true
            }
            ObjectKind::Limit => {
                self.state.within_rate(object as usize, self.bytes, self.now, T::USES)
            }
            ObjectKind::Quota => self.state.within_quota(object as usize, self.bytes, T::USES),
            ObjectKind::Helper => {
                let known = &self.program.ruleset.helpers[object as usize];
                let Network { protocol, family, .. } = self.view.network;
                let fits =
                    known.protocol == *protocol && known.family.is_none_or(|of| of == *family);
                // The first helper that fits stays.
                if fits {
                    self.outcome.helper.get_or_insert(HelperId(object));
                }
                true
            }
            ObjectKind::Timeout => {
                // The last timeout policy for the packet's protocol stays.
                let policy = &self.program.ruleset.timeouts[object as usize];
                if policy.protocol == self.view.network.protocol {
                    self.outcome.timeout = Some(TimeoutId(object));
                }
                true
            }
            ObjectKind::SynProxy => match self.view.network.transport {
                Transport::Tcp(tcp)
                    if tcp.flags.contains(TcpFlags::SYN) || tcp.flags.contains(TcpFlags::ACK) =>
                {
                    return Err(Ended::Decision(Decision::SynProxy(SynProxyId(object))));
                }
                Transport::Tcp(_) => true,
                _ => false,
            },
        })
    }

    /// True in the hook before tracking.
    fn is_untracked(&self) -> bool {
        self.hook == Hook::Untracked
    }

    fn assign(&mut self, target: Target, operand: &Operand) -> bool {
        let value = match operand {
            Operand::Constant(value) => Some(*value),
            Operand::Computed(load) => self.load(load),
            Operand::Mapped { key, map } => {
                self.mapped(key, *map).and_then(|held| held.value(0)).map(|value| value.low)
            }
            Operand::PathMtu => {
                self.outcome.segment_size = Some(SegmentSize::PathMtu);
                return self.view.network.protocol == protocol::TCP;
            }
        };
        let Some(value) = value else { return false };
        match target {
            Target::Mark => self.outcome.mark = Some(value as u32),
            Target::Priority => self.outcome.priority = Some(value as u32),
            // In the kernel a zone attaches a connection template to the packet. So a second zone
            // changes nothing, and a zone undoes an earlier `notrack`.
            Target::CtZone(_) if self.outcome.zone.is_some() || !self.is_untracked() => {}
            Target::CtZone(way) => {
                let zone = Zone(value as u16);
                // The other direction stays in the default zone, as in the kernel.
                self.outcome.zone = Some(match way {
                    None => ZonePair::both(zone),
                    Some(false) => ZonePair { original: zone, ..ZonePair::default() },
                    Some(true) => ZonePair { reply: zone, ..ZonePair::default() },
                });
                self.outcome.notrack = false;
            }
            Target::SegmentSize => {
                // Only a packet that announces a size changes; other TCP packets go on as they are.
                if self.value(Field::SegmentSize).is_some() {
                    let most = match self.outcome.segment_size {
                        Some(SegmentSize::AtMost(most)) => most.min(value as u16),
                        _ => value as u16,
                    };
                    self.outcome.segment_size = Some(SegmentSize::AtMost(most));
                }
                return self.view.network.protocol == protocol::TCP;
            }
            // There is no connection to mark.
            Target::CtMark | Target::CtLabel if self.view.connection.known.is_none() => {}
            Target::CtMark => self.outcome.ct_mark = Some(value as u32),
            Target::CtLabel => self.outcome.label |= value,
            Target::Header(field) => return T::WRITES && self.write(field, value),
        }
        true
    }

    fn update(&mut self, update: &Update) -> bool {
        let lookup = &self.program.sets[update.set.index()];
        let Shape::Dynamic(at) = lookup.shape else { return false };
        match self.packed(&update.key, lookup) {
            Some(key) if T::USES => {
                let facts = self.facts();
                self.state.update(at as usize, update, &key, facts)
            }
            Some(key) => {
                let facts = self.facts();
                self.state.would_update(at as usize, update, &key, facts)
            }
            None => false,
        }
    }

    /// The translation that a statement asks for; `None` if it does not apply to the packet.
    fn translation(&mut self, id: NatId) -> Option<NatRequest> {
        let program = self.program;
        let nat = &program.ruleset.nats[id.index()];
        let mut with_address = None;
        let address = match &nat.address {
            NatOperand::None | NatOperand::WithAddress => None,
            NatOperand::Fixed(interval) => Some(*interval),
            NatOperand::Mapped { key, map } => {
                let held = self.mapped(key, *map)?;
                with_address = held.value(1);
                Some(held.value(0)?)
            }
        };
        let ports = match &nat.port {
            NatOperand::None => None,
            NatOperand::Fixed(interval) => Some(*interval),
            NatOperand::WithAddress => Some(with_address?),
            NatOperand::Mapped { key, map } => Some(self.mapped(key, *map)?.value(0)?),
        };
        let ports = ports.map(|ports| (ports.low as u16, ports.high as u16));
        // As in the kernel, a packet of another family uses a number of the key up.
        if nat.family.is_some_and(|family| family != self.view.network.family) {
            return None;
        }
        Some(NatRequest { kind: nat.kind, address, ports, netmap: nat.netmap, flags: nat.flags })
    }
}

fn is_within(value: u128, low: u64, high: u64) -> bool {
    u128::from(low) <= value && value <= u128::from(high)
}

const fn whole([high, low]: [u64; 2]) -> u128 {
    (high as u128) << 64 | low as u128
}

/// The rules of a chain to evaluate, as offsets from its first.
enum Rules<'p> {
    All(std::ops::Range<u32>),
    Indexed(Candidates<'p>),
}

impl Rules<'_> {
    #[inline]
    fn next(&mut self) -> Option<u32> {
        match self {
            Self::All(rules) => rules.next(),
            Self::Indexed(candidates) => candidates.next().map(|rule| rule as u32),
        }
    }
}
