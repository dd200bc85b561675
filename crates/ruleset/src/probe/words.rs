//! The words behind the addresses, with their values.

use std::net::{IpAddr, SocketAddr};

use wire::{TcpFlags, protocol};

use super::{ProbeError, USAGE};
use crate::evaluate::CtState;
use crate::names::{self, Names};

/// The longest name of an interface.
const MAX_INTERFACE_NAME: usize = 15;

/// Properties of a packet beside its addresses.
#[derive(Clone, Debug, Default)]
pub(super) struct Words {
    pub input: Option<String>,
    pub output: Option<String>,
    pub state: Option<CtState>,
    pub reply: bool,
    pub status: u32,
    pub mark: u32,
    pub ct_mark: u32,
    pub zone: u16,
    pub flags: Option<TcpFlags>,
    pub code: Option<u8>,
    pub id: Option<u16>,
    pub vlan: Option<u16>,
    pub ttl: Option<u8>,
    pub dscp: u8,
    pub length: Option<u16>,
    kind: Option<String>,
    /// Words about header fields, which a question about a frame may not use.
    of_headers: Vec<&'static str>,
}

impl Words {
    pub fn parse(words: &[&str]) -> Result<Self, ProbeError> {
        let mut read = Self::default();
        // The documentation puts optional parts in brackets, and people may copy them.
        let mut words =
            words.iter().map(|word| word.trim_matches(['[', ']'])).filter(|word| !word.is_empty());
        let mut seen = Vec::new();
        while let Some(word) = words.next() {
            let name = match word {
                "iif" | "iifname" => "in",
                "oif" | "oifname" => "out",
                "ctmark" => "ct-mark",
                "hoplimit" => "ttl",
                word => word,
            };
            if seen.contains(&name) {
                return Err(ProbeError(format!("{word:?} appears twice")));
            }
            seen.push(name);
            if name == "reply" {
                read.reply = true;
                continue;
            }
            let mut value = || {
                let missing = || ProbeError(format!("{word:?} without its value"));
                words.next().ok_or_else(missing)
            };
            match name {
                "in" => read.input = Some(interface(value()?)?),
                "out" => read.output = Some(interface(value()?)?),
                "state" => read.state = Some(state(value()?)?),
                "status" => read.status = bits(value()?, names::CT_STATUS)?,
                "mark" => read.mark = number(word, value()?, u32::MAX.into())? as u32,
                "ct-mark" => read.ct_mark = number(word, value()?, u32::MAX.into())? as u32,
                "zone" => read.zone = number(word, value()?, u16::MAX.into())? as u16,
                "flags" => {
                    read.flags = Some(TcpFlags(bits(value()?, names::TCP_FLAGS)? as u8));
                    read.of_headers.push("flags");
                }
                "type" => {
                    read.kind = Some(value()?.to_owned());
                    read.of_headers.push("type");
                }
                "code" => {
                    read.code = Some(number(word, value()?, u8::MAX.into())? as u8);
                    read.of_headers.push("code");
                }
                "id" => {
                    read.id = Some(number(word, value()?, u16::MAX.into())? as u16);
                    read.of_headers.push("id");
                }
                "vlan" => {
                    read.vlan = Some(number(word, value()?, 4094)? as u16);
                    read.of_headers.push("vlan");
                }
                "ttl" => {
                    read.ttl = Some(number(word, value()?, u8::MAX.into())? as u8);
                    read.of_headers.push("ttl");
                }
                "dscp" => {
                    read.dscp = named("dscp", value()?, names::DSCPS, 63)? as u8;
                    read.of_headers.push("dscp");
                }
                "length" => {
                    read.length = Some(number(word, value()?, u16::MAX.into())? as u16);
                    read.of_headers.push("length");
                }
                other => {
                    return Err(ProbeError(format!("{other:?} is not understood; write {USAGE}")));
                }
            }
        }
        Ok(read)
    }

    /// True for a packet that opens a connection.
    pub fn is_open(&self) -> bool {
        !self.reply && matches!(self.state, None | Some(CtState::New))
    }

    pub fn refuse_for_frame(&self) -> Result<(), ProbeError> {
        match self.of_headers.first() {
            Some(word) => Err(ProbeError(format!("{word:?}: the frame has a value of its own"))),
            None => Ok(()),
        }
    }

    pub fn refuse_for_protocol(&self, number: u8) -> Result<(), ProbeError> {
        for word in &self.of_headers {
            let fits = match *word {
                "flags" => number == protocol::TCP,
                "type" | "code" | "id" => matches!(number, protocol::ICMP | protocol::ICMPV6),
                _ => true,
            };
            if !fits {
                return Err(ProbeError(format!("{word:?} does not apply to this protocol")));
            }
        }
        Ok(())
    }

    pub fn icmp_type(&self, is_v4: bool) -> Result<Option<u8>, ProbeError> {
        let known = if is_v4 { names::ICMP_TYPES } else { names::ICMPV6_TYPES };
        let kind = self.kind.as_deref();
        Ok(kind
            .map(|kind| named("type", kind, known, u8::MAX.into()))
            .transpose()?
            .map(|n| n as u8))
    }
}

/// The number of a protocol, by its name or as a number.
pub fn protocol_number(word: &str) -> Option<u8> {
    let lower = word.to_ascii_lowercase();
    let name = match lower.as_str() {
        "icmp6" => "ipv6-icmp",
        "udp-lite" => "udplite",
        name => name,
    };
    let known = names::number(names::PROTOCOLS, name).or_else(|| name.parse().ok());
    known.and_then(|number| u8::try_from(number).ok())
}

/// A protocol by name or number.
pub(super) fn protocol(word: &str) -> Result<u8, ProbeError> {
    protocol_number(word).ok_or_else(|| {
        ProbeError(format!("{word:?} is neither a protocol nor a frame; write {USAGE}"))
    })
}

/// An address, with a port or without.
pub(super) fn place(word: &str) -> Option<(IpAddr, Option<u16>)> {
    let bare = word.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(word);
    if let Ok(address) = bare.parse::<IpAddr>() {
        return Some((address, None));
    }
    let with_port: SocketAddr = word.parse().ok()?;
    Some((with_port.ip(), Some(with_port.port())))
}

fn interface(word: &str) -> Result<String, ProbeError> {
    if word.is_empty() || word.len() > MAX_INTERFACE_NAME {
        return Err(ProbeError(format!("{word:?} can not name an interface")));
    }
    Ok(word.to_owned())
}

fn state(word: &str) -> Result<CtState, ProbeError> {
    let states = [
        CtState::New,
        CtState::Established,
        CtState::Related,
        CtState::Invalid,
        CtState::Untracked,
    ];
    let state = states.into_iter().find(|state| state.name() == word.to_ascii_lowercase());
    state.ok_or_else(|| {
        let known = states.map(CtState::name).join(", ");
        ProbeError(format!("{word:?} is no state; there are: {known}"))
    })
}

/// Names with commas or bars between them.
fn bits(word: &str, names: Names) -> Result<u32, ProbeError> {
    if let Ok(number) = word.parse::<u32>() {
        return Ok(number);
    }
    word.split([',', '|']).try_fold(0, |bits, name| {
        let name = name.trim().to_ascii_lowercase();
        let number = names::number(names, &name).ok_or_else(|| {
            let known: Vec<&str> = names.iter().map(|(name, _)| *name).collect();
            ProbeError(format!("{name:?} is unknown; there are: {}", known.join(", ")))
        })?;
        Ok(bits | number as u32)
    })
}

fn named(key: &str, word: &str, names: Names, most: u64) -> Result<u64, ProbeError> {
    match names::number(names, &word.to_ascii_lowercase()) {
        Some(number) => Ok(number),
        None => number(key, word, most),
    }
}

fn number(key: &str, word: &str, most: u64) -> Result<u64, ProbeError> {
    let number = match word.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => word.parse().ok(),
    };
    number.filter(|number| *number <= most).ok_or_else(|| {
        ProbeError(format!("{key} {word:?}: write a name or a number from 0 to {most}"))
    })
}
