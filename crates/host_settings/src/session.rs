//! Policies of a device: planned, applied, verified and taken back.

use netpolicy::{
    Difference, Failure, Host, Journal, LeftAlone, Plan, PlanError, Policy, Request, Setting,
    Snapshot, Value, carry_out, put_back,
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
    #[error("{setting} = {value}: the kernel answers: {answer}")]
    Refused {
        /// The setting.
        setting: Setting,
        /// The value, as text.
        value: String,
        /// The kernel's answer.
        answer: String,
    },
    /// Settings that are to go back can not be read.
    #[error("{0}: can not be read now, as settings of NAPIs while the device is down")]
    Hidden(String),
    /// Another program keeps writing.
    #[error("another program keeps changing {0}; find and stop it")]
    Restless(Setting),
    /// A policy was begun, and taken back.
    #[error("{cause}; {}", end_of(cause, rest))]
    TakenBack {
        /// The reason.
        cause: Box<Self>,
        /// The failures on the way back.
        rest: Vec<Self>,
    },
}

/// The state in which a policy that has failed has left the device, and advice.
fn end_of(cause: &Error, rest: &[Error]) -> String {
    if !rest.is_empty() {
        return format!(
            "not all settings could be put back as they were before this command: {}; `stateway \
             policy rollback` puts back what was there before the first policy",
            Error::list(rest)
        );
    }
    let mut end = "all settings are as they were before this command".to_owned();
    if let Error::Refused { setting, .. } = cause {
        end += &format!(
            ". Leave it out by `--without {setting}`, or all that are refused by `--skip-refused`"
        );
    }
    end
}

impl Error {
    /// Errors in one line.
    pub fn list(errors: &[Self]) -> String {
        errors.iter().map(Self::to_string).collect::<Vec<_>>().join("; ")
    }
}

impl From<Failure<Refusal, StoreError>> for Error {
    fn from(failure: Failure<Refusal, StoreError>) -> Self {
        match failure {
            Failure::Changed(setting) => Self::Restless(setting),
            Failure::Refused { action, refusal } => Self::Refused {
                setting: action.setting,
                value: action.new.to_string(),
                answer: refusal.to_string(),
            },
            Failure::NotKept(error) => error.into(),
        }
    }
}

/// The result of a plan that was carried out.
#[derive(Debug)]
pub struct Done {
    /// The plan.
    pub plan: Plan,
    /// The values that its writes have left, in their order; `None` for those that failed.
    pub values: Vec<Option<Value>>,
    /// The failures of an end of all policies. The journal keeps the values that are not back.
    pub failures: Vec<Error>,
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
    /// The right to change settings while that is done.
    lock: Option<Lock>,
    /// True if a write of a setting was tried.
    has_written: bool,
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
        let (journal, stale) = found(&store, &device)?;
        let (lock, has_written, at_each_step) = (None, false, (|| ()) as fn());
        Ok(Self { device, store, journal, stale, lock, has_written, at_each_step })
    }

    /// Has a function called before and after each write. A test ends the process there.
    pub fn at_each_step(&mut self, step: fn()) {
        self.at_each_step = step;
    }

    /// The device.
    pub const fn device(&self) -> &Device {
        &self.device
    }

    /// The device as it is now.
    ///
    /// # Errors
    /// [`DeviceError`]
    pub fn snapshot(&mut self) -> Result<Snapshot, DeviceError> {
        self.device.snapshot()
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
    /// on demand; then the plan names them with its answers. [`Policy::None`] puts back all that can
    /// be, and the result names the failures.
    ///
    /// # Errors
    /// [`Error`]. Then the device is back at the former policy, or the error names the settings that
    /// are not.
    pub fn apply(&mut self, request: &Request, skips_refused: bool) -> Result<Done, Error> {
        self.take_lock()?;
        let done = self.bring(request, skips_refused);
        self.lock = None;
        done
    }

    fn bring(&mut self, request: &Request, skips_refused: bool) -> Result<Done, Error> {
        if request.policy == Policy::None {
            return self.go_back(request);
        }
        // A request that can not be met ends here.
        self.plan(request)?;
        let mut request = request.clone();
        let mut refused: Vec<LeftAlone> = Vec::new();
        loop {
            let before = self.journal.clone();
            let cause = match self.bring_to(&request) {
                Ok(mut done) => {
                    done.plan.left.retain(|left| refused.iter().all(|it| it.id != left.id));
                    done.plan.left.append(&mut refused);
                    return Ok(done);
                }
                Err(cause) => cause,
            };
            let rest = self.take_back(before);
            match &cause {
                Error::Refused { setting, value, answer }
                    if skips_refused && rest.is_empty() && request.without.insert(*setting) =>
                {
                    let reason = format!("the kernel refuses {value}: {answer}");
                    refused.push(LeftAlone::new(setting, reason));
                }
                _ => return Err(Error::TakenBack { cause: Box::new(cause), rest }),
            }
        }
    }

    /// Returns to the request of a former journal. Returns the failures.
    fn take_back(&mut self, before: Journal) -> Vec<Error> {
        let request = before.request.clone();
        if !self.has_written {
            self.journal = before;
        }
        self.go_back(&request).map_or_else(|error| vec![error], |done| done.failures)
    }

    fn take_lock(&mut self) -> Result<(), Error> {
        self.lock = Some(self.store.lock()?);
        // Another process may have written the journal meanwhile.
        (self.journal, self.stale) = found(&self.store, &self.device)?;
        self.has_written = false;
        Ok(())
    }

    fn bring_to(&mut self, request: &Request) -> Result<Done, Error> {
        let mut attempt = 0;
        loop {
            attempt += 1;
            let plan = self.plan(request)?;
            let (journal, mut writer) = self.begin(request);
            match carry_out(&plan, journal, &mut writer) {
                Ok(values) => {
                    self.finish(&plan)?;
                    return Ok(Done { plan, values, failures: Vec::new() });
                }
                Err(Failure::Changed(_)) if attempt < ATTEMPTS => {}
                Err(failure) => return Err(failure.into()),
            }
        }
    }

    /// As [`Self::bring_to`], but makes all writes that it can.
    fn go_back(&mut self, request: &Request) -> Result<Done, Error> {
        let mut attempt = 0;
        loop {
            attempt += 1;
            let plan = self.plan(request)?;
            let (journal, mut writer) = self.begin(request);
            let (values, failures) = put_back(&plan, journal, &mut writer);
            let has_changed = failures.iter().any(|it| matches!(it, Failure::Changed(_)));
            if has_changed && attempt < ATTEMPTS {
                continue;
            }
            let mut failures: Vec<Error> = failures.into_iter().map(Error::from).collect();
            match self.finish(&plan) {
                Ok(hidden) if hidden.is_empty() => {}
                Ok(hidden) => failures.push(Error::Hidden(hidden.join(", "))),
                Err(error) => failures.push(error),
            }
            return Ok(Done { plan, values, failures });
        }
    }

    fn begin(&mut self, request: &Request) -> (&mut Journal, Writer<'_>) {
        self.journal.request = request.clone();
        let Self { device, store, journal, has_written, at_each_step, .. } = self;
        (journal, Writer { device, store, has_written, at_each_step: *at_each_step })
    }

    /// Keeps or removes the journal. Returns the names of settings that are to go back and can not be
    /// read.
    fn finish(&mut self, plan: &Plan) -> Result<Vec<String>, Error> {
        let snapshot = self.device.snapshot()?;
        self.journal.tidy(&snapshot, plan);
        if self.journal.request.policy != Policy::None {
            self.store.save(&self.journal)?;
            return Ok(Vec::new());
        }
        if self.journal.is_empty() {
            self.store.remove(&self.journal.device)?;
        } else {
            self.store.save(&self.journal)?;
        }
        let hidden = self
            .journal
            .settings()
            .filter(|it| !snapshot.values.contains_key(it) && snapshot.hides(*it));
        Ok(hidden.map(|setting| setting.to_string()).collect())
    }
}

/// The journal of a device, and why one in its place is not used.
fn found(store: &Store, device: &Device) -> Result<(Journal, Option<Difference>), StoreError> {
    let device = device.identity();
    let fresh = || Journal::new(device.clone(), Request::new(Policy::None));
    Ok(match store.find(device)? {
        Found::Nothing => (fresh(), None),
        Found::Journal(journal) => (*journal, None),
        Found::Stale(difference) => (fresh(), Some(difference)),
    })
}

/// Writes settings and the journal.
struct Writer<'a> {
    device: &'a mut Device,
    store: &'a Store,
    has_written: &'a mut bool,
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
        *self.has_written = true;
        let written = self.device.write(setting, value);
        (self.at_each_step)();
        written
    }

    fn save(&mut self, journal: &Journal) -> Result<(), StoreError> {
        (self.at_each_step)();
        self.store.save(journal)
    }
}
