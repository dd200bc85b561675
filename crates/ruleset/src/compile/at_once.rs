//! The states of connections that a hook accepts by its first rules. Nearly every ruleset begins
//! with rules that ask only for the state.

use crate::CtState;
use crate::field::{CtField, Field};
use crate::hook::Hook;
use crate::model::{Chain, Item, Rule, ValidRuleset, Verdict};

const STATES: [CtState; 5] =
    [CtState::Invalid, CtState::Established, CtState::Related, CtState::New, CtState::Untracked];

/// States of connections, each a bit of [`CtState`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct States(u8);

impl States {
    fn all() -> Self {
        Self(STATES.iter().fold(0, |all, state| all | *state as u8))
    }

    /// The states whose packets a hook accepts without exception and without doing anything else.
    pub fn accepted(ruleset: &ValidRuleset, hook: Hook) -> Self {
        let chains = ruleset.bases[hook as usize].iter().map(|id| &ruleset.chains[id.index()]);
        // The next chain may still refuse a packet that one chain accepts.
        chains.fold(Self::all(), |accepted, chain| {
            Self(accepted.0 & Self::accepted_by(ruleset, chain).0)
        })
    }

    fn accepted_by(ruleset: &ValidRuleset, chain: &Chain) -> Self {
        let (mut accepted, mut undecided) = (0, Self::all().0);
        let rules = &ruleset.rules[chain.rules.start as usize..chain.rules.end as usize];
        for rule in rules {
            let Some((Self(states), verdict)) = Self::of_rule(rule) else {
                return Self(accepted);
            };
            match verdict {
                Verdict::Accept => accepted |= states & undecided,
                Verdict::Drop => {}
                _ => return Self(accepted),
            }
            undecided &= !states;
        }
        let by_policy = chain.base.is_some_and(|base| base.accepts);
        Self(if by_policy { accepted | undecided } else { accepted })
    }

    /// The states that a rule accepts or drops, if it asks for the state and does nothing else.
    pub fn decided(rule: &Rule) -> Option<Self> {
        let (states, verdict) = Self::of_rule(rule)?;
        matches!(verdict, Verdict::Accept | Verdict::Drop).then_some(states)
    }

    /// The states that a rule asks for, with its verdict; `None` if it asks for or does anything
    /// else.
    fn of_rule(rule: &Rule) -> Option<(Self, Verdict)> {
        let [test, Item::Verdict(verdict)] = rule.items.as_slice() else { return None };
        Some((Self::of_test(test)?, *verdict))
    }

    /// The states for which an item goes on, if it asks for the state.
    fn of_test(test: &Item) -> Option<Self> {
        let [load] = test.loads() else { return None };
        if load.field != Field::Connection(CtField::State) {
            return None;
        }
        let holds = |state: CtState| {
            let value = (state as u128 & load.and) ^ load.xor;
            match test {
                Item::Within { interval, negated, .. } => Some(interval.holds(value) != *negated),
                Item::Bits { mask, any, .. } => Some((value & mask != 0) == *any),
                _ => None,
            }
        };
        let states = STATES
            .iter()
            .try_fold(0, |all, state| Some(if holds(*state)? { all | *state as u8 } else { all }));
        states.map(Self)
    }

    #[inline]
    pub const fn holds(self, state: CtState) -> bool {
        self.0 & state as u8 != 0
    }
}

/// The first rule of a chain to evaluate, as an offset, for each bit of [`CtState`]. The rules in
/// front of it ask for other states before anything else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FirstRules([u32; u8::BITS as usize]);

impl FirstRules {
    pub fn of(rules: &[Rule]) -> Self {
        let first = |bit: usize| {
            let is_for_others = |rule: &Rule| {
                let states = rule.items.first().and_then(States::of_test);
                states.is_some_and(|States(states)| states & 1 << bit == 0)
            };
            rules.iter().take_while(|rule| is_for_others(rule)).count() as u32
        };
        Self(std::array::from_fn(first))
    }

    #[inline]
    pub const fn of_state(&self, state: CtState) -> u32 {
        self.0[(state as u8).trailing_zeros() as usize % self.0.len()]
    }
}

#[cfg(test)]
#[path = "at_once_tests.rs"]
mod tests;
