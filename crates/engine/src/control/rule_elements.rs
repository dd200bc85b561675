//! Changes the elements of sets while the rules run.

use std::sync::Arc;

use ruleset::{CounterMoves, ElementProblem, NamedElements, SetId, ValidRuleset};
use steer::WorkerId;

use crate::Gateway;
use crate::control::coordinator::Coordinator;
use crate::control::rule_loading::LoadRulesError;
use crate::control::worker_handle::Unresponsive;
use crate::path::rules::ruleset::Rules;
use crate::path::rules::worker_rules::RuleCounts;
use crate::worker::command::{Command, Question};

/// The reason why elements did not change. All sets are as before.
#[derive(Debug, thiserror::Error)]
pub enum ChangeElementsError {
    /// The rules with these elements can not be used.
    #[error(transparent)]
    Rules(#[from] LoadRulesError),
    /// The rules differ in more than elements, or there are none.
    #[error(
        "the rules would differ in more than elements, as where an element leads to a chain that \
         could not be read when the rules were loaded"
    )]
    Exchanged,
}

impl From<Unresponsive> for ChangeElementsError {
    fn from(error: Unresponsive) -> Self {
        Self::Rules(error.into())
    }
}

impl Gateway {
    /// Changes elements of a set that rules fill, for all workers at once. Returns how many were
    /// added, put off or deleted; `None` if there are no rules, or they do not fill the set.
    ///
    /// # Errors
    /// All elements that do not allow it; nothing changes.
    pub fn change_elements(
        &self,
        set: SetId,
        named: &NamedElements,
    ) -> Option<Result<usize, Vec<ElementProblem>>> {
        let (rules, now) = {
            let coordinator = self.shared.lock();
            (coordinator.rules.clone()?, coordinator.execution.now())
        };
        rules.change_elements(set, named, now)
    }

    /// Goes on with rules that differ from the present ones only in the elements of sets that
    /// packets do not change. Counts, rates, quotas and all other sets stay. Each worker changes
    /// over between two batches.
    ///
    /// # Errors
    /// [`ChangeElementsError`].
    pub fn go_on_with_elements(&self, ruleset: ValidRuleset) -> Result<(), ChangeElementsError> {
        let (mode, secret, interfaces) = {
            let coordinator = self.shared.lock();
            (coordinator.config.mode, coordinator.config.secret, coordinator.ports.names())
        };
        // The lock is not held here, because long chains take a while to compile.
        let unloaded = Rules::prepare(ruleset, mode, secret.0, &interfaces);
        let unloaded = unloaded.map_err(LoadRulesError::from)?;
        let mut coordinator = self.shared.lock();
        let before = coordinator.rules.clone().ok_or(ChangeElementsError::Exchanged)?;
        let rules = before.with_elements(unloaded).ok_or(ChangeElementsError::Exchanged)?;
        coordinator.exchange_elements(&before, rules)
    }
}

impl Coordinator {
    fn exchange_elements(
        &mut self,
        before: &Rules,
        rules: Arc<Rules>,
    ) -> Result<(), ChangeElementsError> {
        let workers: Vec<WorkerId> = (0..self.worker_count() as u16).map(WorkerId).collect();
        // Steps that can fail come first. A worker that has not taken the present rules yet would
        // mistake these for others.
        self.tend_rules();
        let hangs = |id: &&WorkerId| !self.has_room(**id) || self.lags_behind_rules(**id);
        if let Some(id) = workers.iter().find(hangs) {
            return Err(Unresponsive(*id).into());
        }
        self.adopt(&rules)?;
        let moves = Arc::new(CounterMoves::between(&before.program, &rules.program));
        self.retired_rules = moved(&self.retired_rules, &moves);
        self.rules_reset_at = self.rules_reset_at.as_ref().map(|counts| moved(counts, &moves));
        self.rules = Some(rules.clone());
        for id in &workers {
            self.tell_worker(id.index(), Command::RuleElements(rules.clone(), moves.clone()))?;
        }
        for id in workers {
            // A worker that answers has obeyed what it was told before. One that hangs will.
            let answer = self.ask_worker(id, |reply| Question::Rules(0, reply));
            if let Some(Err(error)) = answer {
                tracing::error!("{error}; it judges by the changed sets when it answers again");
            }
        }
        self.end_adoption(&rules);
        Ok(())
    }
}

/// The counts in the places that counters have in other rules.
fn moved(counts: &RuleCounts, moves: &CounterMoves) -> RuleCounts {
    RuleCounts { counters: moves.apply(&counts.counters), ..counts.clone() }
}
