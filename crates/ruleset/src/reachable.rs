//! The rules that packets can reach.

use crate::model::{Item, Parts, Rule, RuleId, Verdict};

impl Parts {
    /// The rules that packets can reach, with the elements that sets have now. Others wait for an
    /// element that leads to their chain.
    pub(crate) fn reachable_rules(&self) -> impl Iterator<Item = (RuleId, &Rule)> {
        let mut is_reachable = vec![false; self.chains.len()];
        let mut open: Vec<_> = self.bases.iter().flatten().copied().collect();
        while let Some(chain) = open.pop() {
            if std::mem::replace(&mut is_reachable[chain.index()], true) {
                continue;
            }
            let mut follow = |verdict| match verdict {
                Verdict::Jump(to) | Verdict::Goto(to) => open.push(to),
                Verdict::Accept | Verdict::Drop | Verdict::Continue | Verdict::Return => {}
            };
            let rules = self.chains[chain.index()].rules.clone();
            for rule in &self.rules[rules.start as usize..rules.end as usize] {
                for item in &rule.items {
                    match item {
                        Item::Verdict(verdict) => follow(*verdict),
                        Item::VerdictMap { map, .. } => {
                            let elements = self.sets[map.index()].elements.iter();
                            elements.filter_map(|element| element.verdict()).for_each(&mut follow);
                        }
                        _ => {}
                    }
                }
            }
        }
        let rules = (0..).map(RuleId).zip(&self.rules);
        rules.filter(move |(_, rule)| is_reachable[rule.chain.index()])
    }
}
