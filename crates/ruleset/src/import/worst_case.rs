//! The most rules that one packet can meet, so that no ruleset stops a worker.
//!
//! A few chains that each jump several times to the next lead a packet through the last of them
//! more often than anybody waits.

use super::graph::Flaw;
use crate::hook::Hook;
use crate::limits::MAX_RULES_MET;
use crate::model::{ChainId, Item, Parts, Verdict};
use crate::problem::Severity;

/// The rules that packets meet from each chain on; `None` where nobody has looked yet.
struct RuleCounts<'r> {
    ruleset: &'r Parts,
    of_chains: Vec<Option<u64>>,
}

/// The chain from which on a packet may meet too many rules. The chains have to lead back to none
/// of them, and to be few inside one another.
pub(crate) fn check(ruleset: &Parts) -> Option<Flaw> {
    let mut counts = RuleCounts { ruleset, of_chains: vec![None; ruleset.chains.len()] };
    let mut of_hooks = [0_u64; Hook::ALL.len()];
    for (id, chain) in (0..).zip(&ruleset.chains) {
        let Some(base) = chain.base else { continue };
        let here = counts.from(ChainId(id)).map(|here| {
            let of_hook = &mut of_hooks[base.hook as usize];
            *of_hook += here;
            *of_hook <= MAX_RULES_MET
        });
        let chain = match here {
            Ok(true) => continue,
            Ok(false) => ChainId(id),
            Err(chain) => chain,
        };
        let what = format!(
            "a packet may meet more than {MAX_RULES_MET} rules from here on, as often as chains \
             are jumped to: jump from fewer rules, or choose the chain by a verdict map"
        );
        return Some(Flaw { severity: Severity::Invalid, chain, rule: None, what });
    }
    None
}

impl RuleCounts<'_> {
    /// The most rules that a packet meets from a chain on, or the innermost chain of which there
    /// are too many.
    fn from(&mut self, chain: ChainId) -> Result<u64, ChainId> {
        if let Some(known) = self.of_chains[chain.index()] {
            return Ok(known);
        }
        // Those that come back to the next rule, and the most of those that do not.
        let (mut here, mut most) = (0_u64, 0_u64);
        for rule in self.ruleset.chains[chain.index()].rules.clone() {
            let (jump, goto) = self.behind(rule)?;
            here += 1;
            most = most.max(here + goto);
            here += jump;
            most = most.max(here);
            if most > MAX_RULES_MET {
                return Err(chain);
            }
        }
        self.of_chains[chain.index()] = Some(most);
        Ok(most)
    }

    /// The most rules of other chains that a rule leads to by a jump, and by a goto.
    fn behind(&mut self, rule: u32) -> Result<(u64, u64), ChainId> {
        let ruleset = self.ruleset;
        let (mut jump, mut goto) = (0, 0);
        let mut follow = |verdict: Verdict| -> Result<(), ChainId> {
            match verdict {
                Verdict::Jump(to) => jump = jump.max(self.from(to)?),
                Verdict::Goto(to) => goto = goto.max(self.from(to)?),
                _ => {}
            }
            Ok(())
        };
        for item in &ruleset.rules[rule as usize].items {
            match item {
                Item::Verdict(verdict) => follow(*verdict)?,
                Item::VerdictMap { map, .. } => {
                    let elements = ruleset.sets[map.index()].elements.iter();
                    let mut verdicts = elements.filter_map(|element| element.verdict());
                    verdicts.try_for_each(&mut follow)?;
                }
                _ => {}
            }
        }
        Ok((jump, goto))
    }
}
