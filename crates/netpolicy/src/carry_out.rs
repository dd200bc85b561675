//! Carrying out a plan, write by write.

use crate::journal::Journal;
use crate::plan::{Action, Plan};
use crate::setting::{Setting, Value};

/// The device to which a plan is applied.
pub trait Host {
    /// The kernel's answer to what it refuses.
    type Refusal;
    /// The reason why a journal can not be kept.
    type NotKept;

    /// Reads a setting; `None` if there is none.
    ///
    /// # Errors
    /// The kernel's answer.
    fn read(&mut self, setting: Setting) -> Result<Option<Value>, Self::Refusal>;

    /// Writes a setting.
    ///
    /// # Errors
    /// The kernel's answer.
    fn write(&mut self, setting: Setting, value: Value) -> Result<(), Self::Refusal>;

    /// Keeps the journal, so that it is there even if the machine's power fails right after.
    ///
    /// # Errors
    /// The system's answer.
    fn save(&mut self, journal: &Journal) -> Result<(), Self::NotKept>;
}

/// Why a write was not made.
#[derive(Debug, PartialEq, Eq)]
pub enum Failure<R, N> {
    /// Another program has changed a setting since the plan was made. The plan has not written it.
    Changed(Setting),
    /// The kernel refuses a write, or the setting can not be read.
    Refused {
        /// The write.
        action: Box<Action>,
        /// Its answer.
        refusal: R,
    },
    /// The journal can not be kept. Nothing was written.
    NotKept(N),
}

/// A failure on this host.
pub type HostFailure<H> = Failure<<H as Host>::Refusal, <H as Host>::NotKept>;

/// Makes the writes of a plan in their order, and returns the values that they left: a driver may
/// have rounded them. A journal of all of them is kept before the first. The caller keeps the
/// journal once more after the last.
///
/// # Errors
/// [`Failure`]. The writes after it are not made. The journal knows all that were made, and the next
/// plan continues or takes back.
pub fn carry_out<H: Host>(
    plan: &Plan,
    journal: &mut Journal,
    host: &mut H,
) -> Result<Vec<Option<Value>>, HostFailure<H>> {
    journal.begin(plan);
    keep(plan, journal, host).map_err(Failure::NotKept)?;
    let mut left = Vec::new();
    for _ in &plan.actions {
        left.push(Some(step(plan, &left, journal, host)?));
    }
    Ok(left)
}

/// As [`carry_out`], but makes all writes that it can, and returns the failures of the others. The
/// values that were there first are in the journal that was kept last, so that no write waits for
/// another one. A death on the way is no harm if it can be kept.
pub fn put_back<H: Host>(
    plan: &Plan,
    journal: &mut Journal,
    host: &mut H,
) -> (Vec<Option<Value>>, Vec<HostFailure<H>>) {
    journal.begin(plan);
    // The caller keeps the journal at the end, and tells of it if that fails.
    let _ = keep(plan, journal, host);
    let (mut left, mut failures) = (Vec::new(), Vec::new());
    for _ in &plan.actions {
        let made = step(plan, &left, journal, host);
        left.push(made.map_err(|failure| failures.push(failure)).ok());
    }
    (left, failures)
}

/// Keeps the journal as if the process would die in each of the writes.
fn keep<H: Host>(plan: &Plan, journal: &Journal, host: &mut H) -> Result<(), H::NotKept> {
    if plan.actions.is_empty() {
        return Ok(());
    }
    let mut intended = journal.clone();
    plan.actions.iter().for_each(|action| intended.intend(action));
    host.save(&intended)
}

/// Makes the write that follows those that have left these values, and returns the value it leaves.
fn step<H: Host>(
    plan: &Plan,
    left: &[Option<Value>],
    journal: &mut Journal,
    host: &mut H,
) -> Result<Value, HostFailure<H>> {
    let action = &plan.actions[left.len()];
    let refused = |refusal| Failure::Refused { action: Box::new(action.clone()), refusal };
    // The device's values come first. They may overwrite only what the plan has seen.
    for (&setting, &before) in &plan.overwritten {
        let is_next = setting.overwritten_by() == Some(action.setting);
        if is_next && host.read(setting).map_err(refused)? != Some(before) {
            return Err(Failure::Changed(setting));
        }
    }
    let overwriter = action.setting.overwritten_by();
    let mut made = plan.actions.iter().zip(left).filter(|(_, left)| left.is_some());
    let by_device = made.find(|(it, _)| Some(it.setting) == overwriter);
    let expected = by_device.map_or(action.old, |(device, _)| Some(device.new));
    if expected.is_some() && host.read(action.setting).map_err(refused)? != expected {
        return Err(Failure::Changed(action.setting));
    }
    let before = journal.clone();
    journal.intend(action);
    if let Err(refusal) = host.write(action.setting, action.new) {
        let now = host.read(action.setting);
        if expected.is_some() && now.is_ok_and(|now| now == expected) {
            *journal = before;
        }
        return Err(refused(refusal));
    }
    // The write was made. A reading that fails takes nothing of that back.
    let read = host.read(action.setting);
    let value = read.map_err(refused)?.unwrap_or(action.new);
    // Another value than a driver may choose is that of another program, which was quicker.
    let is_own = action.setting.may_round();
    journal.settle(action.setting, if is_own { value } else { action.new });
    Ok(value)
}
