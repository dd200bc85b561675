//! The ruleset that the gateway runs, and the trial of a new one.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use engine::{Gateway, LoadRulesError};
use ruleset::ValidRuleset;

use super::RuleBook;

/// A gateway that a ruleset is for.
pub(crate) trait RuleTarget {
    /// Applies this ruleset to packets from now on; `None`: no rules. A worker that hangs follows
    /// when it goes on.
    ///
    /// # Errors
    /// [`LoadRulesError`]: the previous ruleset stays.
    fn apply(&self, ruleset: Option<&ValidRuleset>) -> Result<(), LoadRulesError>;

    /// The running ruleset with the elements that its sets have now; `None` if it has them already.
    ///
    /// # Errors
    /// The text says why they are not known.
    fn with_current_elements(&self, running: &RuleBook) -> Result<Option<RuleBook>, String>;
}

impl RuleTarget for Gateway {
    fn apply(&self, ruleset: Option<&ValidRuleset>) -> Result<(), LoadRulesError> {
        match ruleset {
            Some(ruleset) => self.load_rules(ruleset.clone()),
            None => self.unload_rules(),
        }
        .map(drop)
    }

    fn with_current_elements(&self, running: &RuleBook) -> Result<Option<RuleBook>, String> {
        running.with_current_elements(self)
    }
}

/// The loaded ruleset, and during a trial the one before. Changes happen one at a time.
pub(crate) struct Keeper {
    kept: Mutex<Kept>,
    listener: Box<Listener>,
}

/// Hears of each change of the loaded ruleset, in their order.
pub(crate) type Listener = dyn Fn(Option<&RuleBook>) + Send + Sync;

#[derive(Debug, Default)]
struct Kept {
    active: Option<Arc<RuleBook>>,
    trial: Option<Trial>,
    /// The number of trials so far.
    trials: u64,
}

/// The loaded ruleset, and the time that its trial still lasts.
pub(crate) type Active = (Option<Arc<RuleBook>>, Option<Duration>);

/// A ruleset that was not confirmed yet.
#[derive(Debug)]
struct Trial {
    number: u64,
    /// The ruleset before, with the elements that its sets had when the trial began.
    before: Option<Arc<RuleBook>>,
    begun: Instant,
    ends: Instant,
}

impl Trial {
    /// The ruleset before, as it is now.
    fn before(&self) -> Option<Arc<RuleBook>> {
        let before = self.before.clone()?;
        let aged = before.with_age(self.begun.elapsed()).unwrap_or_else(|error| {
            tracing::warn!("elements of the ruleset before stay as long as at first: {error}");
            None
        });
        Some(aged.map_or(before, Arc::new))
    }
}

/// The reasons why a ruleset was not loaded.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TryError {
    #[error("another ruleset is being tried for {} more seconds", .0.as_secs())]
    Waits(Duration),
    #[error(transparent)]
    Load(#[from] LoadRulesError),
}

impl Keeper {
    /// A keeper of the ruleset that the gateway was started with.
    pub fn new(active: Option<RuleBook>, listener: Box<Listener>) -> Self {
        let active = active.map(Arc::new);
        Self { kept: Mutex::new(Kept { active, ..Kept::default() }), listener }
    }

    fn tell(&self, kept: &Kept) {
        (self.listener)(kept.active.as_deref());
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        // The fields are consistent between any two statements.
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The ruleset that is loaded now.
    pub fn active(&self, now: Instant) -> Active {
        let kept = self.lock();
        let left = kept.trial.as_ref().map(|trial| trial.ends.saturating_duration_since(now));
        (kept.active.clone(), left)
    }

    /// The loaded ruleset with the gateway's answer about it. Loads, confirmations and roll-backs
    /// do not wait meanwhile. If the ruleset has changed, the gateway is asked again.
    ///
    /// # Errors
    /// The error of `ask`.
    pub fn active_and<T, E>(
        &self,
        mut ask: impl FnMut() -> Result<T, E>,
    ) -> Result<(T, Active), E> {
        let (mut before, _) = self.active(Instant::now());
        loop {
            let answer = ask()?;
            let (active, left) = self.active(Instant::now());
            if active.as_ref().map(Arc::as_ptr) == before.as_ref().map(Arc::as_ptr) {
                return Ok((answer, (active, left)));
            }
            before = active;
        }
    }

    /// Loads a ruleset, on trial for `confirm` if that is given. Returns the number of the trial.
    ///
    /// # Errors
    /// [`TryError`]; nothing changes.
    pub fn load(
        &self,
        target: &impl RuleTarget,
        book: RuleBook,
        confirm: Option<Duration>,
        now: Instant,
    ) -> Result<Option<u64>, TryError> {
        let mut kept = self.lock();
        if let Some(trial) = &kept.trial {
            return Err(TryError::Waits(trial.ends.saturating_duration_since(now)));
        }
        // The rules that follow know nothing of these elements.
        let current = kept.active.as_ref().filter(|_| confirm.is_some()).and_then(|running| {
            target.with_current_elements(running).unwrap_or_else(|error| {
                tracing::warn!(
                    "elements that packets have added are lost if the trial fails: {error}"
                );
                None
            })
        });
        target.apply(Some(book.ruleset()))?;
        let before = kept.active.replace(Arc::new(book));
        self.tell(&kept);
        let Some(confirm) = confirm else { return Ok(None) };
        let before = current.map(Arc::new).or(before);
        kept.trials += 1;
        let number = kept.trials;
        kept.trial = Some(Trial { number, before, begun: now, ends: now + confirm });
        Ok(Some(number))
    }

    /// Lets `change` change the loaded ruleset, which nobody exchanges meanwhile. It returns the
    /// ruleset with the change, if that is another one. `None` if no ruleset is loaded.
    pub fn change<T, E>(
        &self,
        change: impl FnOnce(&RuleBook) -> Result<(T, Option<RuleBook>), E>,
    ) -> Option<Result<T, E>> {
        let mut kept = self.lock();
        let active = kept.active.clone()?;
        Some(change(&active).map(|(answer, changed)| {
            if let Some(changed) = changed {
                kept.active = Some(Arc::new(changed));
                self.tell(&kept);
            }
            answer
        }))
    }

    /// Keeps the ruleset on trial; false if there is none.
    pub fn confirm(&self) -> bool {
        self.lock().trial.take().is_some()
    }

    /// Ends the trial with this number, or any trial without one, and restores the ruleset before.
    /// False if the trial has ended.
    ///
    /// # Errors
    /// [`LoadRulesError`]: the ruleset on trial stays, and so does the trial.
    pub fn roll_back(
        &self,
        target: &impl RuleTarget,
        number: Option<u64>,
    ) -> Result<bool, LoadRulesError> {
        let mut kept = self.lock();
        let is_meant = |trial: &&Trial| number.is_none_or(|number| trial.number == number);
        let Some(trial) = kept.trial.as_ref().filter(is_meant) else { return Ok(false) };
        let before = trial.before();
        target.apply(before.as_ref().map(|book| book.ruleset()))?;
        kept.active = before;
        kept.trial = None;
        self.tell(&kept);
        Ok(true)
    }
}

#[cfg(test)]
#[path = "../keeper_tests.rs"]
mod tests;
