//! NAPIs and their settings: the family netdev of generic netlink (linux/netdev.h).

use std::io;

use netpolicy::{Deferral, Napi, NapiSetting};

use crate::generic_netlink::{Answer, Attributes, Family, Refusal};

const QUEUE_GET: u8 = 10;
const NAPI_GET: u8 = 11;
const NAPI_SET: u8 = 14;

mod napi {
    pub const INTERFACE: u16 = 1;
    pub const ID: u16 = 2;
    pub const INTERRUPT: u16 = 3;
    pub const THREAD: u16 = 4;
    pub const DEFER_HARD_IRQS: u16 = 5;
    pub const GRO_FLUSH_TIMEOUT: u16 = 6;
    pub const THREADED: u16 = 8;
}

mod queue {
    pub const ID: u16 = 1;
    pub const INTERFACE: u16 = 2;
    pub const KIND: u16 = 3;
    pub const NAPI: u16 = 4;
    pub const RECEIVE: u64 = 0;
}

/// The NAPIs of this network namespace.
#[derive(Debug)]
pub struct Napis(Family);

/// A NAPI with the values of its settings.
#[derive(Clone, Debug)]
pub struct NapiState {
    /// The NAPI.
    pub napi: Napi,
    answer: Answer,
}

/// The attribute of a setting.
const fn attribute(setting: NapiSetting) -> Option<u16> {
    match setting {
        NapiSetting::Deferral(Deferral::DeferHardIrqs) => Some(napi::DEFER_HARD_IRQS),
        NapiSetting::Deferral(Deferral::GroFlushTimeout) => Some(napi::GRO_FLUSH_TIMEOUT),
        NapiSetting::Threaded => Some(napi::THREADED),
        NapiSetting::ThreadCpus => None,
    }
}

impl NapiState {
    fn new(answer: Answer) -> Option<Self> {
        let napi = Napi {
            id: answer.small(napi::ID)?,
            interrupt: answer.small(napi::INTERRUPT),
            rx_queue: None,
            thread: answer.small(napi::THREAD),
        };
        Some(Self { napi, answer })
    }

    /// The value of a setting that the kernel lists.
    pub fn value(&self, setting: NapiSetting) -> Option<u64> {
        self.answer.number(attribute(setting)?)
    }
}

impl Napis {
    /// Prepares to ask.
    ///
    /// # Errors
    /// The kernel's answer: kernels before 6.8 do not list NAPIs.
    pub fn new() -> Result<Self, Refusal> {
        Family::new("netdev", 1).map(Self)
    }

    /// The NAPIs of an interface, lowest id first.
    ///
    /// # Errors
    /// The kernel's answer.
    pub fn list(&mut self, interface: u32) -> Result<Vec<NapiState>, Refusal> {
        let attributes = Attributes::default().number(napi::INTERFACE, interface);
        let napis = self.0.list(NAPI_GET, &attributes)?;
        let mut napis: Vec<NapiState> = napis.into_iter().filter_map(NapiState::new).collect();
        napis.sort_by_key(|it| it.napi.id);
        let attributes = Attributes::default().number(queue::INTERFACE, interface);
        for answer in self.0.list(QUEUE_GET, &attributes)? {
            let id = answer.small::<u32>(queue::NAPI);
            let owner = napis.iter_mut().find(|it| Some(it.napi.id) == id);
            if answer.number(queue::KIND) == Some(queue::RECEIVE)
                && let Some(owner) = owner
            {
                owner.napi.rx_queue = answer.small(queue::ID);
            }
        }
        Ok(napis)
    }

    /// The NAPI of this id; `None` if there is none.
    ///
    /// # Errors
    /// The kernel's answer.
    pub fn get(&mut self, id: u32) -> Result<Option<NapiState>, Refusal> {
        match self.0.ask(NAPI_GET, &Attributes::default().number(napi::ID, id)) {
            Ok(answers) => Ok(answers.into_iter().next().and_then(NapiState::new)),
            Err(refusal) if refusal.error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(refusal) => Err(refusal),
        }
    }

    /// Changes a setting.
    ///
    /// # Errors
    /// The kernel's answer.
    pub fn set(&mut self, id: u32, setting: NapiSetting, value: u64) -> Result<(), Refusal> {
        let attributes = Attributes::default().number(napi::ID, id);
        let kind = attribute(setting).ok_or(io::Error::from(io::ErrorKind::Unsupported))?;
        let attributes = match (setting, u32::try_from(value)) {
            (NapiSetting::Deferral(Deferral::GroFlushTimeout), _) => attributes.long(kind, value),
            (_, Ok(value)) => attributes.number(kind, value),
            (_, Err(_)) => return Err(io::Error::from(io::ErrorKind::InvalidInput).into()),
        };
        self.0.ask(NAPI_SET, &attributes).map(drop)
    }
}
