//! The ruleset that the gateway runs, and one that is being tried.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use engine::{Gateway, LoadRulesError};
use ruleset::ValidRuleset;

use super::RuleBook;

/// Who judges packets by rules.
pub(crate) trait Judge {
    /// Judges by these from now on, `None`: by none; a worker that hangs does when it goes on.
    ///
    /// # Errors
    /// [`LoadRulesError`]: those before stay.
    fn judge_by(&self, ruleset: Option<&ValidRuleset>) -> Result<(), LoadRulesError>;
}

impl Judge for Gateway {
    fn judge_by(&self, ruleset: Option<&ValidRuleset>) -> Result<(), LoadRulesError> {
        match ruleset {
            Some(ruleset) => self.load_rules(ruleset.clone()),
            None => self.unload_rules(),
        }
        .map(drop)
    }
}

/// What is loaded, and what was before while that is being tried. One change at a time.
#[derive(Debug, Default)]
pub(crate) struct Keeper(Mutex<Kept>);

#[derive(Debug, Default)]
struct Kept {
    active: Option<Arc<RuleBook>>,
    trial: Option<Trial>,
    /// Trials there have been.
    trials: u64,
}

/// What is loaded, and for how long it is still tried.
pub(crate) type Active = (Option<Arc<RuleBook>>, Option<Duration>);

/// Until it is confirmed.
#[derive(Debug)]
struct Trial {
    number: u64,
    before: Option<Arc<RuleBook>>,
    ends: Instant,
}

/// Why a ruleset was not loaded.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TryError {
    #[error("another ruleset is being tried for {} more seconds", .0.as_secs())]
    Waits(Duration),
    #[error(transparent)]
    Load(#[from] LoadRulesError),
}

impl Keeper {
    /// With what the gateway was started with.
    pub fn new(active: Option<RuleBook>) -> Self {
        let active = active.map(Arc::new);
        Self(Mutex::new(Kept { active, ..Kept::default() }))
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        // What is kept is whole between any two statements.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is loaded now.
    pub fn active(&self, now: Instant) -> Active {
        let kept = self.lock();
        let left = kept.trial.as_ref().map(|trial| trial.ends.saturating_duration_since(now));
        (kept.active.clone(), left)
    }

    /// The same with what the gateway says of it. Nobody waits meanwhile to load, confirm or roll
    /// back: if what is loaded has changed, the gateway is asked again.
    ///
    /// # Errors
    /// That of `ask`.
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

    /// Loads a ruleset, on trial for `confirm` if that is given. Returns the number of the
    /// trial.
    ///
    /// # Errors
    /// [`TryError`]: nothing has changed.
    pub fn load(
        &self,
        judge: &impl Judge,
        book: RuleBook,
        confirm: Option<Duration>,
        now: Instant,
    ) -> Result<Option<u64>, TryError> {
        let mut kept = self.lock();
        if let Some(trial) = &kept.trial {
            return Err(TryError::Waits(trial.ends.saturating_duration_since(now)));
        }
        judge.judge_by(Some(book.ruleset()))?;
        let before = kept.active.replace(Arc::new(book));
        let Some(confirm) = confirm else { return Ok(None) };
        kept.trials += 1;
        let number = kept.trials;
        kept.trial = Some(Trial { number, before, ends: now + confirm });
        Ok(Some(number))
    }

    /// Keeps what is tried; false if nothing is.
    pub fn confirm(&self) -> bool {
        self.lock().trial.take().is_some()
    }

    /// Ends a trial, or whichever there is, with what was before; false if it has ended.
    ///
    /// # Errors
    /// [`LoadRulesError`]: what is tried stays, and the trial with it.
    pub fn roll_back(
        &self,
        judge: &impl Judge,
        number: Option<u64>,
    ) -> Result<bool, LoadRulesError> {
        let mut kept = self.lock();
        let is_meant = |trial: &&Trial| number.is_none_or(|number| trial.number == number);
        let Some(trial) = kept.trial.as_ref().filter(is_meant) else { return Ok(false) };
        judge.judge_by(trial.before.as_ref().map(|book| book.ruleset()))?;
        kept.active = kept.trial.take().and_then(|trial| trial.before);
        Ok(true)
    }
}

#[cfg(test)]
#[path = "../keeper_tests.rs"]
mod tests;
