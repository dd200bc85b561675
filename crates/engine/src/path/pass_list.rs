//! The list of protocols other than IP that a bridge passes.
//!
//! Rules judge IP alone. So other frames pass only if their protocol is on a list: some host may
//! find an IP packet in a frame of a protocol that is not known here.

use wire::LinkProtocol::{self, EtherType, Llc, Snap};
use wire::{FIRST_ETHERTYPE, is_read_behind};

/// The names of protocols.
const WORDS: [(&str, &[LinkProtocol]); 13] = [
    ("arp", &[EtherType(0x0806)]),
    ("cfm", &[EtherType(0x8902)]),
    // The discovery, trunk and spanning tree protocols of one vendor's switches.
    ("cisco", &[Snap([0, 0, 0x0c])]),
    ("eapol", &[EtherType(0x888e)]),
    ("isis", &[Llc(0xfe)]),
    ("lldp", &[EtherType(0x88cc)]),
    ("macsec", &[EtherType(0x88e5)]),
    ("mpls", &[EtherType(0x8847), EtherType(0x8848)]),
    ("pppoe", &[EtherType(0x8863), EtherType(0x8864)]),
    ("ptp", &[EtherType(0x88f7)]),
    ("rarp", &[EtherType(0x8035)]),
    ("stp", &[Llc(0x42)]),
    ("wol", &[EtherType(0x0842)]),
];

/// The protocols that pass without being judged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PassList(Vec<LinkProtocol>);

/// Why a protocol can not be on the list.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PassListError {
    /// No protocol has this name.
    #[error(
        "{given:?} is no protocol with a name here; allowed: {}, and EtherTypes such as 0x88cc",
        words()
    )]
    Unknown {
        /// The name.
        given: String,
    },
    /// The number is out of range.
    #[error("{given:#x} is no EtherType; allowed: from {FIRST_ETHERTYPE:#06x} to 0xffff")]
    NoEtherType {
        /// The number.
        given: u64,
    },
    /// A frame with this EtherType is read further, so the list is never asked about it.
    #[error(
        "{given:#06x} can not be on the list: the rules judge IP, and what follows a tag counts; take it out"
    )]
    ReadBehind {
        /// The number.
        given: u16,
    },
}

fn words() -> String {
    WORDS.map(|(word, _)| format!("{word:?}")).join(", ")
}

/// ARP and the spanning tree protocol. Without ARP hosts do not find each other, and without
/// spanning tree every second way around the bridge would be a loop.
impl Default for PassList {
    fn default() -> Self {
        Self(vec![EtherType(0x0806), Llc(0x42)])
    }
}

impl PassList {
    /// An empty list.
    pub const fn empty() -> Self {
        Self(Vec::new())
    }

    /// Adds a protocol by its name, or by its EtherType after `0x`.
    ///
    /// # Errors
    /// [`PassListError`].
    pub fn add(&mut self, given: &str) -> Result<(), PassListError> {
        if let Some((_, protocols)) = WORDS.iter().find(|(word, _)| *word == given) {
            self.0.extend(*protocols);
            return Ok(());
        }
        let number = given.strip_prefix("0x").and_then(|hex| u64::from_str_radix(hex, 16).ok());
        match number {
            Some(number) => self.add_ethertype(number),
            None => Err(PassListError::Unknown { given: given.to_owned() }),
        }
    }

    /// Adds a protocol by its EtherType.
    ///
    /// # Errors
    /// [`PassListError`].
    pub fn add_ethertype(&mut self, given: u64) -> Result<(), PassListError> {
        match u16::try_from(given) {
            Ok(number) if is_read_behind(number) => {
                Err(PassListError::ReadBehind { given: number })
            }
            Ok(number) if number >= FIRST_ETHERTYPE => {
                self.0.push(EtherType(number));
                Ok(())
            }
            _ => Err(PassListError::NoEtherType { given }),
        }
    }

    /// True if the protocol of a frame is on the list. It is only for frames that are not IP.
    pub fn takes(&self, frame: &[u8]) -> bool {
        LinkProtocol::of(frame).is_some_and(|protocol| self.0.contains(&protocol))
    }
}

#[cfg(test)]
#[path = "pass_list_tests.rs"]
mod tests;
