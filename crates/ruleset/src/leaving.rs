//! The packets whose sources rules translate, as far as they are known without a packet.

use wire::Family;

use crate::arrivals::of_table;
use crate::elements::Element;
use crate::field::Field;
use crate::kind::Interval;
use crate::model::{Item, Nat, Rule, ValidRuleset};

/// Packets whose source a rule may translate: those that meet all these conditions, and possibly
/// others. Conditions of the rules that jump to its chain are not known here.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Leaving {
    /// Their family; `None`: both.
    pub family: Option<Family>,
    /// The interfaces that they leave by.
    pub outputs: NameConditions,
    /// The interfaces that they came in by.
    pub inputs: NameConditions,
    /// Their sources; empty: any.
    pub sources: Vec<(Family, Interval)>,
}

/// Conditions for the name of an interface, see [`name_bits`](crate::name_bits).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NameConditions(Vec<NameCondition>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct NameCondition {
    names: Vec<Interval>,
    negated: bool,
}

impl NameConditions {
    /// True if there is no condition.
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// True if an interface of this name meets all conditions.
    pub fn allow(&self, name: u128) -> bool {
        self.0.iter().all(|NameCondition { names, negated }| {
            names.iter().any(|it| (it.low..=it.high).contains(&name)) != *negated
        })
    }
}

impl ValidRuleset {
    /// The packets whose source a rule may translate.
    pub(crate) fn leaving(&self, rule: &Rule, nat: &Nat) -> Leaving {
        let of = |field| NameConditions(self.name_conditions(rule, field).collect());
        let mut sources: Vec<_> =
            self.forwarded(rule, nat).into_iter().map(|packets| packets.sources).collect();
        if sources.contains(&None) {
            sources.clear();
        }
        let sources = sources.into_iter().flatten().collect();
        let family = nat.family.or(of_table(self.chains[rule.chain.index()].family));
        Leaving { family, outputs: of(Field::Output), inputs: of(Field::Input), sources }
    }

    fn name_conditions(&self, rule: &Rule, field: Field) -> impl Iterator<Item = NameCondition> {
        rule.items.iter().filter_map(move |item| match item {
            Item::Within { load, interval, negated } if load.is_plain() && load.field == field => {
                Some(NameCondition { names: vec![*interval], negated: *negated })
            }
            Item::Member { key, set, negated } => {
                let set = &self.sets[set.index()];
                let [load] = &key.loads[..] else { return None };
                let is_it = load.is_plain() && load.field == field && !set.dynamic;
                let name = |element: Element<'_>| element.key().next();
                is_it.then(|| NameCondition {
                    names: set.elements.iter().filter_map(name).collect(),
                    negated: *negated,
                })
            }
            _ => None,
        })
    }
}
