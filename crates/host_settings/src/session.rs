//! Policies of a device: planned, applied, verified and taken back.

use netpolicy::{
    Difference, Failure, Host, Journal, LeftAlone, Plan, PlanError, Policy, Request, Setting,
    Value, carry_out,
};

use crate::device::{Device, DeviceError};
use crate::generic_netlink::Refusal;
use crate::store::{Found, Lock, Store, StoreError};

/// How often a plan is made anew because another program has written meanwhile.
const ATTEMPTS: usize = 5;

/// Why a policy was not applied, or not taken back.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The device.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The journal.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The request.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The kernel refuses a write.
    #[error(
        "{setting} = {value}: the kernel answers: {answer}; {}",
        match trouble {
            None => format!("all settings are as they were before this command. Leave it out by \
                             `--without {setting}`, or all that are refused by `--skip-refused`"),
            Some(trouble) => format!("some settings could not be put back ({trouble}); \
                                      `stateway policy rollback` tries that again"),
        }
    )]
    Refused {
        /// The setting.
        setting: Setting,
        /// The value, as text.
        value: String,
        /// The kernel's answer.
        answer: String,
        /// Why the settings are not as they were.
        trouble: Option<String>,
    },
    /// Another program keeps writing.
    #[error("another program keeps changing {0}; find and stop it, or leave it out")]
    Restless(Setting),
}

/// The result of a plan that was carried out.
#[derive(Debug)]
pub struct Done {
    /// The plan.
    pub plan: Plan,
    /// The values that its writes have left, in their order.
    pub values: Vec<Value>,
}

/// A device with its journal.
#[derive(Debug)]
pub struct Session {
    device: Device,
    store: Store,
    /// The journal; empty if there is none.
    journal: Journal,
    /// Why a journal in its place is not used.
    stale: Option<Difference>,
    /// The right to change settings, once it was needed.
    lock: Option<Lock>,
    /// Called before each write, of settings or of the journal, and after it.
    at_each_step: fn(),
}

impl Session {
    /// Finds a device and its journal.
    ///
    /// # Errors
    /// [`Error`]
    pub fn open(name: &str, store: Store) -> Result<Self, Error> {
        let device = Device::open(name)?;
        let fresh = Journal::new(device.identity().clone(), Request::new(Policy::None));
        let mut it =
            Self { device, store, journal: fresh, stale: None, lock: None, at_each_step: || () };
        it.load()?;
        Ok(it)
    }

    fn load(&mut self) -> Result<(), Error> {
        let device = self.device.identity();
        let fresh = Journal::new(device.clone(), Request::new(Policy::None));
        (self.journal, self.stale) = match self.store.find(device)? {
            Found::Nothing => (fresh, None),
            Found::Journal(journal) => (*journal, None),
            Found::Stale(difference) => (fresh, Some(difference)),
        };
        Ok(())
    }

    /// Has a function called before and after each write. A test ends the process there.
    pub fn at_each_step(&mut self, step: fn()) {
        self.at_each_step = step;
    }

    /// The device.
    pub const fn device(&self) -> &Device {
        &self.device
    }

    /// The request that applies; one for [`Policy::None`] if there is none.
    pub const fn request(&self) -> &Request {
        &self.journal.request
    }

    /// Why a journal in the place of the device's is not used.
    pub const fn stale(&self) -> Option<Difference> {
        self.stale
    }

    /// The writes that a request needs now. [`Self::apply`] makes these, if nothing changes before.
    ///
    /// # Errors
    /// [`Error`]
    pub fn plan(&mut self, request: &Request) -> Result<Plan, Error> {
        Ok(Plan::new(&self.device.snapshot()?, request, &self.journal)?)
    }

    /// Brings the device to a policy. Settings that the kernel refuses are left out of the request
    /// on demand; then the plan names them with its answers.
    ///
    /// # Errors
    /// [`Error`]. If the kernel refuses a write, those before it were taken back.
    pub fn apply(&mut self, request: &Request, skips_refused: bool) -> Result<Done, Error> {
        self.take_lock()?;
        let mut request = request.clone();
        let mut refused = Vec::new();
        loop {
            let before = self.journal.request.clone();
            match self.bring_to(&request) {
                Err(Error::Refused { setting, value, answer, .. }) => {
                    let trouble = self.bring_to(&before).err().map(|error| match error {
                        Error::Refused { setting, answer, .. } => format!("{setting}: {answer}"),
                        error => error.to_string(),
                    });
                    if !skips_refused || trouble.is_some() || !request.without.insert(setting) {
                        return Err(Error::Refused { setting, value, answer, trouble });
                    }
                    let reason = format!("the kernel refuses {value}: {answer}");
                    refused.push(LeftAlone::new(setting, reason));
                }
                Ok(mut done) => {
                    done.plan.left.retain(|left| refused.iter().all(|it| it.id != left.id));
                    done.plan.left.append(&mut refused);
                    return Ok(done);
                }
                Err(error) => return Err(error),
            }
        }
    }

    fn take_lock(&mut self) -> Result<(), Error> {
        if self.lock.is_none() {
            self.lock = Some(self.store.lock()?);
            // Another process may have written it meanwhile.
            self.load()?;
        }
        Ok(())
    }

    fn bring_to(&mut self, request: &Request) -> Result<Done, Error> {
        let mut attempts = 0;
        loop {
            let plan = self.plan(request)?;
            self.journal.request = request.clone();
            let Self { device, store, at_each_step, .. } = self;
            let mut writer = Writer { device, store, at_each_step: *at_each_step };
            let result = carry_out(&plan, &mut self.journal, &mut writer);
            match result {
                Ok(values) => {
                    self.finish()?;
                    return Ok(Done { plan, values });
                }
                Err(Failure::Changed(setting)) => {
                    attempts += 1;
                    if attempts == ATTEMPTS {
                        return Err(Error::Restless(setting));
                    }
                }
                Err(Failure::Refused { action, refusal }) => {
                    return Err(Error::Refused {
                        setting: action.setting,
                        value: action.new.to_string(),
                        answer: refusal.to_string(),
                        trouble: None,
                    });
                }
                Err(Failure::NotKept(error)) => return Err(error.into()),
            }
        }
    }

    /// Keeps or removes the journal.
    fn finish(&mut self) -> Result<(), Error> {
        self.journal.tidy(&self.device.snapshot()?);
        if self.journal.is_empty() && self.journal.request.policy == Policy::None {
            self.store.remove(&self.journal.device)?;
        } else {
            self.store.save(&self.journal)?;
        }
        Ok(())
    }
}

/// Writes settings and the journal.
struct Writer<'a> {
    device: &'a mut Device,
    store: &'a Store,
    at_each_step: fn(),
}

impl Host for Writer<'_> {
    type Refusal = Refusal;
    type NotKept = StoreError;

    fn read(&mut self, setting: Setting) -> Result<Option<Value>, Refusal> {
        self.device.read(setting)
    }

    fn write(&mut self, setting: Setting, value: Value) -> Result<(), Refusal> {
        (self.at_each_step)();
        let written = self.device.write(setting, value);
        (self.at_each_step)();
        written
    }

    fn save(&mut self, journal: &Journal) -> Result<(), StoreError> {
        (self.at_each_step)();
        self.store.save(journal)
    }
}
