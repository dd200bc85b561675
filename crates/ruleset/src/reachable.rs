//! The rules that packets can reach.

use crate::model::{ChainId, Item, Parts, Rule, RuleId, Verdict};

impl Parts {
    /// The rules that packets can reach, with the elements that sets have now. Others wait for an
    /// element that leads to their chain.
    pub(crate) fn reachable_rules(&self) -> impl Iterator<Item = (RuleId, &Rule)> {
        let is_reachable = self.chains_from(self.bases.iter().flatten().copied().collect());
        let rules = (0..).map(RuleId).zip(&self.rules);
        rules.filter(move |(_, rule)| is_reachable[rule.chain.index()])
    }

    /// True if packets that come to a base chain may be dropped or refused there, with the elements
    /// that sets have now.
    pub(crate) fn may_drop(&self, base: ChainId) -> bool {
        let drops = |item: &Item| match item {
            Item::Verdict(verdict) => *verdict == Verdict::Drop,
            Item::Reject(_) => true,
            Item::VerdictMap { map, .. } => {
                let mut elements = self.sets[map.index()].elements.iter();
                elements.any(|element| element.verdict() == Some(Verdict::Drop))
            }
            _ => false,
        };
        let chain = &self.chains[base.index()];
        let reached = self.chains_from(vec![base]);
        chain.base.is_some_and(|base| !base.accepts)
            || self
                .rules
                .iter()
                .any(|rule| reached[rule.chain.index()] && rule.items.iter().any(drops))
    }

    /// For each chain, whether packets that come to one of these can reach it.
    fn chains_from(&self, mut open: Vec<ChainId>) -> Vec<bool> {
        let mut is_reachable = vec![false; self.chains.len()];
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
        is_reachable
    }
}
