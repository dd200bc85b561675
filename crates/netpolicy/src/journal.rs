//! The record of what was there before, so that it can be put back.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use steer::CpuSet;

use crate::plan::{Action, Plan};
use crate::policy::{Policy, Request};
use crate::setting::{NapiSetting, Setting, Value};
use crate::snapshot::Snapshot;

/// Version of the format.
const VERSION: u32 = 1;
/// The first words of a journal; its version and its digest follow.
const TITLE: &str = "stateway policy journal";

/// A device, so that no other one is taken for it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Identity {
    /// The kernel's id of this run of the machine.
    pub boot: String,
    /// The kernel's number of the network namespace, which no other gets while the machine runs.
    pub network: u64,
    /// Number of the interface, which may change when it moves to another network namespace.
    pub index: u32,
    /// Number of its directory in sysfs, which no other gets while the machine runs.
    pub node: u64,
    /// Its name, which may change.
    pub name: String,
}

/// How a device differs from that of a journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Difference {
    /// The machine was started anew.
    #[error("it is of an earlier run of this machine, whose settings ended with it")]
    Boot,
    /// Another device.
    #[error("it is of another device")]
    Device,
}

impl Identity {
    /// How a device of today differs from this one; `None` if it is the same. Its name, number and
    /// network namespace may have changed since.
    pub fn difference(&self, today: &Self) -> Option<Difference> {
        if self.boot != today.boot {
            Some(Difference::Boot)
        } else if self.node != today.node {
            Some(Difference::Device)
        } else {
            None
        }
    }
}

/// The journal of a device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Journal {
    /// The device.
    pub device: Identity,
    /// The last request.
    pub request: Request,
    settings: BTreeMap<Setting, Entry>,
}

/// A setting that Stateway has written, or is about to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    /// The value before the first write; `None` if there was no such setting.
    original: Option<Value>,
    /// The value that the last plan asked for.
    asked: Value,
    /// The values that are Stateway's: the last that was read back, and those of writes since.
    own: Vec<Value>,
    /// True while it is not known which value a write has left.
    is_open: bool,
    /// True if another program has set the value that counts as the first one. It was written again
    /// where a write of the device's value overwrote it.
    is_anothers: bool,
}

/// The one who has set the value of a setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// It is the value that was there first.
    First,
    /// Stateway.
    Stateway,
    /// Another program.
    Another,
    /// There is no such setting any more.
    Gone,
}

/// A text that is no journal of this program.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// Something else.
    #[error("this is no journal of Stateway")]
    Foreign,
    /// Another version.
    #[error("its format is version {0}; this program reads version {VERSION}")]
    Version(String),
    /// Cut, or changed.
    #[error("it is cut or damaged")]
    Damaged,
    /// Its digest is right, and its content is not.
    #[error("its content makes no sense: {0}")]
    Content(String),
}

impl Journal {
    /// A journal of a device that nothing was written to.
    pub const fn new(device: Identity, request: Request) -> Self {
        Self { device, request, settings: BTreeMap::new() }
    }

    /// True if there is nothing to put back.
    pub fn is_empty(&self) -> bool {
        self.settings.is_empty()
    }

    /// The settings that Stateway has written.
    pub fn settings(&self) -> impl Iterator<Item = Setting> {
        self.settings.keys().copied()
    }

    /// The value that was there first, if there was one. A NAPI that came with a new link has got
    /// the device's value, and would have got the one that was there first.
    pub fn original(&self, setting: Setting, now: Option<&Value>) -> Option<Value> {
        match self.entry(setting) {
            Some(entry) => entry.original,
            None => match self.device_entry(setting, now) {
                Some(device) => device.original,
                None => now.copied(),
            },
        }
    }

    /// The entry of a setting that was written. One that was only going to be is as before.
    fn entry(&self, setting: Setting) -> Option<&Entry> {
        self.settings.get(&setting).filter(|entry| !entry.own.is_empty())
    }

    /// The entry of the device's value that a NAPI has got.
    fn device_entry(&self, setting: Setting, now: Option<&Value>) -> Option<&Entry> {
        let device = self.settings.get(&setting.overwritten_by()?)?;
        device.own.contains(now?).then_some(device)
    }

    /// The one who has set a value.
    pub fn owner(&self, setting: Setting, now: Option<&Value>) -> Owner {
        // The device's value reaches its NAPIs whenever it is written, and with a new link.
        let device = self.device_entry(setting, now);
        let Some(entry) = self.entry(setting) else {
            return if device.is_some() { Owner::Stateway } else { Owner::First };
        };
        let Some(now) = now else {
            return if entry.original.is_none() { Owner::First } else { Owner::Gone };
        };
        if entry.original.as_ref() == Some(now) {
            return if entry.is_anothers { Owner::Another } else { Owner::First };
        }
        let is_own = device.is_some() || entry.own.contains(now);
        if is_own || (entry.is_open && setting.may_round()) {
            return Owner::Stateway;
        }
        // A thread that has just come runs on CPUs of the kernel's choice.
        if entry.original.is_none() && entry.is_open { Owner::First } else { Owner::Another }
    }

    /// True if no CPU of Stateway's value is online. The kernel has chosen others then.
    pub(crate) fn is_displaced(&self, setting: Setting, online: &CpuSet) -> bool {
        let is_moved = matches!(
            setting,
            Setting::Interrupt(_) | Setting::Napi { kind: NapiSetting::ThreadCpus, .. }
        );
        let is_offline = |value: &Value| matches!(value, Value::Cpus(cpus) if cpus.iter().all(|cpu| !online.contains(cpu)));
        is_moved && self.entry(setting).is_some_and(|entry| entry.own.iter().all(is_offline))
    }

    /// The story of a value that another program has set.
    pub(crate) fn story(&self, setting: Setting, now: &Value) -> String {
        let mut story = format!("another program has set it to {now}");
        if let Some(entry) = self.entry(setting).filter(|entry| !entry.is_anothers) {
            story += &format!("; Stateway had set it to {}", entry.asked);
            if let Some(original) = &entry.original {
                story += &format!(", and before it was {original}");
            }
        }
        story
    }

    /// True if a driver has already answered this request by this value.
    pub(crate) fn is_rounded(&self, setting: Setting, target: &Value, now: &Value) -> bool {
        self.settings.get(&setting).is_some_and(|entry| {
            !entry.is_open && entry.asked == *target && entry.own.last() == Some(now)
        })
    }

    /// Notes what a plan is going to write, and what it need not write: another program may change that
    /// later. The values that were there first stay noted.
    pub(crate) fn begin(&mut self, plan: &Plan) {
        let before = self.clone();
        let actions = plan.actions.iter().map(|it| (it.setting, it.old, it.new));
        // Each NAPI is noted whose value is overwritten, also if it keeps it.
        let overwritten = plan.overwritten.iter().map(|(it, old)| (*it, Some(*old), *old));
        for (setting, old, new) in overwritten.chain(actions) {
            let fresh = Entry {
                original: before.original(setting, old.as_ref()),
                asked: new,
                own: Vec::new(),
                is_open: true,
                is_anothers: false,
            };
            if before.entry(setting).is_none() {
                self.settings.insert(setting, fresh);
            }
        }
        for (&setting, &value) in &plan.fulfilled {
            if before.entry(setting).is_none() {
                let original = before.original(setting, Some(&value));
                let (own, is_open, is_anothers) = (vec![value], false, false);
                let fresh = Entry { original, asked: value, own, is_open, is_anothers };
                self.settings.insert(setting, fresh);
            }
        }
        for action in plan.actions.iter().filter(|action| action.is_anothers) {
            if let Some(entry) = self.settings.get_mut(&action.setting) {
                (entry.original, entry.is_anothers) = (action.old, true);
            }
        }
    }

    /// Notes a write that follows.
    pub(crate) fn intend(&mut self, action: &Action) {
        for (setting, entry) in &mut self.settings {
            if *setting == action.setting {
                entry.asked = action.new;
                entry.is_open = true;
            } else if setting.overwritten_by() != Some(action.setting) {
                continue;
            }
            if !entry.own.contains(&action.new) {
                entry.own.push(action.new);
            }
        }
    }

    /// Notes the value that a write has left.
    pub(crate) fn settle(&mut self, setting: Setting, value: Value) {
        if let Some(entry) = self.settings.get_mut(&setting) {
            entry.own = vec![value];
            entry.is_open = false;
        }
    }

    /// Forgets what needs no restoration: values that are back and that the plan does not ask for, and
    /// after the end of the policy also those of others and settings that are gone. A setting that can
    /// not be read now is not gone.
    pub fn tidy(&mut self, snapshot: &Snapshot, plan: &Plan) {
        let is_over = self.request.policy == Policy::None;
        let before = self.clone();
        self.settings.retain(|setting, entry| {
            let now = snapshot.values.get(setting);
            match before.owner(*setting, now) {
                // An answer that was rounded to the first value is still an answer.
                Owner::First => {
                    let device = setting.overwritten_by();
                    let is_overwritten = device.is_some_and(|it| before.settings.contains_key(&it));
                    let is_wanted = plan.fulfilled.contains_key(setting);
                    !is_over && (is_wanted || is_overwritten || entry.original != Some(entry.asked))
                }
                // A thread that came with a policy has no first value to return to.
                Owner::Stateway => !is_over || entry.original.is_some(),
                Owner::Another => !is_over,
                Owner::Gone => !is_over || snapshot.hides(*setting),
            }
        });
    }

    /// The journal as a text, with a digest.
    pub fn to_text(&self) -> String {
        // Its types have a form in JSON, and names of settings are keys of an object.
        #[allow(clippy::expect_used, reason = "the line above")]
        let body = serde_json::to_string_pretty(self).expect("a journal has a form in JSON");
        format!("{TITLE} {VERSION} {}\n{body}\n", digest(&body))
    }

    /// Reads the text of a journal.
    ///
    /// # Errors
    /// [`JournalError`]
    pub fn parse(text: &str) -> Result<Self, JournalError> {
        let (title, body) = text.split_once('\n').unwrap_or((text, ""));
        let title = title.strip_prefix(TITLE).ok_or(JournalError::Foreign)?;
        let mut words = title.split_whitespace();
        let version = words.next().ok_or(JournalError::Damaged)?;
        if version != VERSION.to_string() {
            return Err(JournalError::Version(version.to_owned()));
        }
        let body = body.strip_suffix('\n').ok_or(JournalError::Damaged)?;
        if words.next() != Some(&digest(body)) || words.next().is_some() {
            return Err(JournalError::Damaged);
        }
        let content = |error: String| JournalError::Content(error);
        let journal: Self = serde_json::from_str(body).map_err(|it| content(it.to_string()))?;
        for (setting, entry) in &journal.settings {
            let values = entry.original.iter().chain(&entry.own).chain([&entry.asked]);
            if let Some(value) = values.into_iter().find(|value| !setting.takes(value)) {
                return Err(content(format!("{setting} can not be {value}")));
            }
        }
        Ok(journal)
    }
}

fn digest(text: &str) -> String {
    Sha256::digest(text.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect()
}
