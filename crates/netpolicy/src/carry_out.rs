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

/// Why a plan was not carried out to its end.
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
    /// The journal can not be kept. The write that was to follow was not made.
    NotKept(N),
}

/// Makes the writes of a plan in their order, and returns the values that they left: a driver may
/// have rounded them. The journal is kept before each write and after the last.
///
/// # Errors
/// [`Failure`]. Then the journal knows all writes that were made, and the next plan continues or
/// takes back.
pub fn carry_out<H: Host>(
    plan: &Plan,
    journal: &mut Journal,
    host: &mut H,
) -> Result<Vec<Value>, Failure<H::Refusal, H::NotKept>> {
    let mut left = Vec::new();
    journal.begin(plan);
    for (at, action) in plan.actions.iter().enumerate() {
        let refused = |refusal| Failure::Refused { action: Box::new(action.clone()), refusal };
        // The device's values come first. They may overwrite only what the plan has seen.
        for (&setting, &before) in &plan.overwritten {
            let is_next = setting.overwritten_by() == Some(action.setting);
            if is_next && host.read(setting).map_err(refused)? != Some(before) {
                return Err(Failure::Changed(setting));
            }
        }
        let overwriter = action.setting.overwritten_by();
        let earlier = &plan.actions[..at];
        let by_device = earlier.iter().find(|it| Some(it.setting) == overwriter);
        let expected = by_device.map_or(action.old, |device| Some(device.new));
        if expected.is_some() && host.read(action.setting).map_err(refused)? != expected {
            return Err(Failure::Changed(action.setting));
        }
        journal.intend(action);
        host.save(journal).map_err(Failure::NotKept)?;
        host.write(action.setting, action.new).map_err(refused)?;
        let value = host.read(action.setting).map_err(refused)?.unwrap_or(action.new);
        // Another value than a driver may choose is that of another program, which was quicker.
        let is_own = action.setting.may_round();
        journal.settle(action.setting, if is_own { value } else { action.new });
        left.push(value);
    }
    host.save(journal).map_err(Failure::NotKept)?;
    Ok(left)
}
