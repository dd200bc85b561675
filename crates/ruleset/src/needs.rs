//! The services that a ruleset needs of a gateway, and the places of its rules and chains.

use crate::attached::{Helper, SynProxy, TimeoutObject};
use crate::elements::Element;
use crate::field::{CtField, Field, HeaderBits};
use crate::kind::ObjectKind;
use crate::model::{
    HelperId, Item, Load, Log, NatKind, NatOperand, Operand, RuleId, Target, ValidRuleset,
};
use crate::problem::Location;

/// True for a value that comes from the routes.
const fn is_of_routes(field: Field) -> bool {
    matches!(field, Field::Route(_) | Field::NextHop(_) | Field::RouteSegmentSize)
}

/// A service that a rule needs of a gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Need {
    /// Translation of addresses.
    Translation(NatKind),
    /// A helper for the connection.
    Helper(HelperId),
    /// Routes, to look addresses up.
    Routes,
}

impl ValidRuleset {
    /// The services that its rules need, in the order of the rules.
    pub fn needs(&self) -> impl Iterator<Item = (RuleId, Need)> {
        let need = |item: &Item| {
            let mut needs: Vec<Need> = match item {
                Item::Nat(nat) => vec![Need::Translation(self.nats[nat.index()].kind)],
                Item::Helper(helper) => vec![Need::Helper(*helper)],
                Item::Object { what: ObjectKind::Helper, map, .. } => {
                    let held = self.sets[map.index()].elements.iter();
                    let helper = |it: Element<'_>| Some(HelperId(it.value(0)?.low as u32));
                    held.filter_map(helper).map(Need::Helper).collect()
                }
                _ => Vec::new(),
            };
            if item.loads().iter().any(|load| self.is_read(load, is_of_routes)) {
                needs.push(Need::Routes);
            }
            needs
        };
        self.reachable_rules()
            .flat_map(move |(id, rule)| rule.items.iter().flat_map(need).map(move |it| (id, it)))
    }

    /// True if a value is such a field, or a number made of one.
    fn is_read(&self, load: &Load, wanted: fn(Field) -> bool) -> bool {
        match load.field {
            Field::Generated(id) => {
                self.generators[id.index()].hashed().any(|load| self.is_read(load, wanted))
            }
            field => wanted(field),
        }
    }

    /// True if a rule reads such a field.
    fn reads(&self, wanted: fn(Field) -> bool) -> bool {
        let keys = self.nats.iter().flat_map(|nat| [&nat.address, &nat.port]);
        let of_nats = keys.flat_map(|operand| match operand {
            NatOperand::Mapped { key, .. } => key.loads.as_slice(),
            NatOperand::None | NatOperand::Fixed(_) | NatOperand::WithAddress => &[],
        });
        let items = self.reachable_rules().flat_map(|(_, rule)| &rule.items);
        let of_rules = items.flat_map(Item::loads);
        of_rules.chain(of_nats).any(|load| self.is_read(load, wanted))
    }

    /// True if a rule asks which CPU judges the packet.
    pub fn asks_for_cpu(&self) -> bool {
        self.reads(|field| field == Field::Cpu)
    }

    /// True if a rule asks how many packets or bytes a connection has had (`ct packets`, `ct bytes`,
    /// `ct avgpkt`).
    pub fn asks_for_counts(&self) -> bool {
        self.reads(|field| {
            matches!(
                field,
                Field::Connection(CtField::Packets(_) | CtField::Bytes(_) | CtField::Average(_))
            )
        })
    }

    /// True if a rule looks at bytes of headers beside addresses, ports and the options of TCP, or
    /// sets them.
    pub(crate) fn touches_headers(&self) -> bool {
        let sets = |item: &Item| match item {
            Item::Assign { target, .. } => match target {
                Target::Header(_) => true,
                Target::Mark
                | Target::Priority
                | Target::CtMark
                | Target::CtZone(_)
                | Target::CtLabel
                | Target::SegmentSize => false,
            },
            _ => false,
        };
        let mut items = self.reachable_rules().flat_map(|(_, rule)| &rule.items);
        items.any(sets)
            || self.reads(|field| {
                matches!(field, Field::Header(_) | Field::LinkHeader { .. } | Field::Has(_))
            })
    }

    /// Helpers.
    pub fn helpers(&self) -> &[Helper] {
        &self.helpers
    }

    /// Timeout policies for connections.
    pub fn timeouts(&self) -> &[TimeoutObject] {
        &self.timeouts
    }

    /// SYN proxies, those of rules included.
    pub fn syn_proxies(&self) -> &[SynProxy] {
        &self.syn_proxies
    }

    /// The zones that its rules set, each listed once.
    pub fn zones_set(&self) -> Vec<u16> {
        let mut zones = Vec::new();
        for item in self.reachable_rules().flat_map(|(_, rule)| &rule.items) {
            let Item::Assign { target: Target::CtZone(_), value } = item else { continue };
            match value {
                Operand::Constant(zone) => zones.push(*zone as u16),
                Operand::Mapped { map, .. } => {
                    let elements = &self.sets[map.index()].elements;
                    zones.extend(
                        elements
                            .iter()
                            .filter_map(|element| element.value(0).map(|zone| zone.low as u16)),
                    );
                }
                // Import refuses these.
                Operand::Computed(_) | Operand::PathMtu => {}
            }
        }
        zones.sort_unstable();
        zones.dedup();
        zones
    }

    /// The fields of headers that its rules set.
    pub(crate) fn written(&self) -> impl Iterator<Item = HeaderBits> {
        let items = self.reachable_rules().flat_map(|(_, rule)| &rule.items);
        items.filter_map(|item| match item {
            Item::Assign { target: Target::Header(field), .. } => Some(*field),
            _ => None,
        })
    }

    /// Log statements.
    pub fn logs(&self) -> &[Log] {
        &self.logs
    }

    /// The place of the rule with this number; `None` if there is none.
    pub fn place_of_rule(&self, number: usize) -> Option<Location> {
        let rule = self.rules.get(number)?;
        let place = self.place_of_chain(rule.chain.index())?;
        Some(Location { object: "rule", handle: rule.handle, ..place })
    }

    /// The place of the chain with this number; `None` if there is none.
    pub fn place_of_chain(&self, number: usize) -> Option<Location> {
        let chain = self.chains.get(number)?;
        Some(Location {
            family: chain.family.name().to_owned(),
            table: chain.table.clone(),
            object: "chain",
            name: chain.name.clone(),
            handle: chain.handle,
        })
    }
}
