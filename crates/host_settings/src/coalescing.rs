//! Interrupt coalescing: the family ethtool of generic netlink (linux/ethtool_netlink.h).

use std::io;

use netpolicy::Coalescing;

use crate::generic_netlink::{Answer, Attributes, Family, Refusal};

const GET: u8 = 19;
const SET: u8 = 20;
/// The attribute that names the device, and the one inside with its number.
const HEADER: u16 = 1;
const INTERFACE: u16 = 1;

/// The attribute of a setting.
const fn attribute(setting: Coalescing) -> u16 {
    match setting {
        Coalescing::RxUsecs => 2,
        Coalescing::RxFrames => 3,
        Coalescing::TxUsecs => 6,
        Coalescing::AdaptiveRx => 11,
        Coalescing::AdaptiveTx => 12,
    }
}

/// Coalescing of the devices of this network namespace.
#[derive(Debug)]
pub struct Coalescer(Family);

/// The values of a device.
#[derive(Clone, Debug)]
pub struct Coalesced(Answer);

impl Coalesced {
    /// A value; `None` if the device lacks the setting.
    pub fn value(&self, setting: Coalescing) -> Option<u64> {
        self.0.number(attribute(setting))
    }
}

impl Coalescer {
    /// Prepares to ask.
    ///
    /// # Errors
    /// The kernel's answer.
    pub fn new() -> Result<Self, Refusal> {
        Family::new("ethtool", 1).map(Self)
    }

    /// The values of a device.
    ///
    /// # Errors
    /// The kernel's answer: many devices have no coalescing.
    pub fn get(&mut self, interface: u32) -> Result<Coalesced, Refusal> {
        let answers = self.0.ask(GET, &header(interface))?;
        let answer = answers.into_iter().next();
        Ok(Coalesced(answer.ok_or(io::Error::from(io::ErrorKind::UnexpectedEof))?))
    }

    /// Changes a value.
    ///
    /// # Errors
    /// The kernel's answer.
    pub fn set(&mut self, interface: u32, setting: Coalescing, value: u64) -> Result<(), Refusal> {
        let invalid = |_| io::Error::from(io::ErrorKind::InvalidInput);
        let (kind, attributes) = (attribute(setting), header(interface));
        let attributes = match setting {
            Coalescing::AdaptiveRx | Coalescing::AdaptiveTx => {
                attributes.byte(kind, value.try_into().map_err(invalid)?)
            }
            _ => attributes.number(kind, value.try_into().map_err(invalid)?),
        };
        self.0.ask(SET, &attributes).map(drop)
    }
}

fn header(interface: u32) -> Attributes {
    let inner = Attributes::default().number(INTERFACE, interface);
    Attributes::default().nest(HEADER, &inner)
}
