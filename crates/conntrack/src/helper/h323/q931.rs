//! Call signalling: messages of Q.931 that carry a message of H.225.0 in a user-user
//! information element (H.225.0 section 7.2 and Annex H).

use super::elements::{Target, alias, endpoint_type, non_standard, transport_address};
use super::h245::{self, Channel};
use super::per::{Choice, Per, Read, Unreadable};

/// Protocol discriminators: of the message (Q.931 section 4.2), and of ASN.1 in the user-user
/// element (section 4.5.30).
const CALL_CONTROL: u8 = 8;
const ASN1: u8 = 5;
/// Information elements with this bit are one octet long (Q.931 section 4.5.1); the others have
/// their length in the second octet.
const SINGLE_OCTET: u8 = 0x80;
/// Shift: the following elements are of another codeset.
const SHIFT: u8 = 0x90;
const USER_USER: u8 = 0x7e;

/// Most channels of a message; further ones are skipped.
const MOST_CHANNELS: usize = 32;

/// The announcements of a call signalling message.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Signalling {
    /// The address at which the sender waits for an H.245 connection.
    pub h245: Option<Target>,
    /// The channels that it will receive on.
    pub channels: Vec<Channel>,
}

/// Reads a message of Q.931.
pub(super) fn read(message: &[u8]) -> Read<Signalling> {
    let (element, start) = user_user(message).ok_or(Unreadable)?;
    let mut said = Signalling::default();
    user_information(&mut Per::new(element, start), &mut said)?;
    Ok(said)
}

/// The contents of the user-user element behind the discriminator, and their offset.
fn user_user(message: &[u8]) -> Option<(&[u8], usize)> {
    let &[CALL_CONTROL, reference, ..] = message else { return None };
    // The first four bits are spare; the message type follows.
    let mut at = 2 + usize::from(reference & 0xf) + 1;
    loop {
        let rest = message.get(at..)?;
        at += match *rest {
            [SHIFT..0xa0, ..] => return None,
            [SINGLE_OCTET..=u8::MAX, ..] => 1,
            [USER_USER, high, low, ASN1, ..] => {
                let length = usize::from(u16::from_be_bytes([high, low]));
                return Some((rest.get(4..3 + length)?, at + 4));
            }
            [USER_USER, ..] => return None,
            [_, length, ..] => 2 + usize::from(length),
            _ => return None,
        };
    }
}

/// H323-UserInformation, up to h323-uu-pdu.
fn user_information(per: &mut Per<'_>, said: &mut Signalling) -> Read {
    let [_extended, _user_data] = per.flags()?;
    let extended = per.bit()?;
    let parameter = per.bit()?;
    match per.choice(7)? {
        Choice::Root(0) => setup(per, said)?,
        // The two are alike up to the last field that is read: callProceeding and alerting.
        Choice::Root(1 | 3) => proceeding(per, said)?,
        Choice::Root(2) => connect(per, said)?,
        Choice::Root(6) => facility(per, said)?,
        Choice::Added(0, mut added) => progress(&mut added, said)?,
        Choice::Added(..) => {}
        // information and releaseComplete.
        Choice::Root(_) => return Ok(()),
    }
    if parameter {
        non_standard(per)?;
    }
    per.additions(extended, |index, mut added| match index {
        // h245Control: H.245 without a connection of its own.
        2 => added.list(|per| {
            let mut message = per.contained()?;
            said.add(h245::control_message, &mut message);
            Ok(())
        }),
        _ => Ok(()),
    })
}

impl Signalling {
    /// Adds the channels of a message inside this one, all or none: a message that can not be
    /// read does not affect the others.
    pub fn add(
        &mut self,
        read: fn(&mut Per<'_>, &mut Vec<Channel>) -> Read,
        message: &mut Per<'_>,
    ) {
        let before = self.channels.len();
        if before < MOST_CHANNELS && read(message, &mut self.channels).is_err() {
            self.channels.truncate(before);
        }
    }

    /// fastStart: the channels that the sender offers or has chosen.
    fn fast_start(&mut self, per: &mut Per<'_>) -> Read {
        per.list(|per| {
            let mut channel = per.contained()?;
            self.add(h245::open_channel, &mut channel);
            Ok(())
        })
    }
}

/// Setup-UUIE.
fn setup(per: &mut Per<'_>, said: &mut Signalling) -> Read {
    let extended = per.bit()?;
    let [h245, source, destination, signal, extra_info, extra_references, services] =
        per.flags()?;
    per.contained()?;
    if h245 {
        said.h245 = transport_address(per)?;
    }
    if source {
        per.list(alias)?;
    }
    endpoint_type(per)?;
    if destination {
        per.list(alias)?;
    }
    if signal {
        transport_address(per)?;
    }
    if extra_info {
        per.list(alias)?;
    }
    if extra_references {
        per.list(|per| per.whole(0, 65535).map(drop))?;
    }
    let [_active_mc] = per.flags()?;
    conference_identifier(per)?;
    per.choice(3)?;
    if services {
        supplementary_services(per)?;
    }
    per.choice(4)?;
    per.additions(extended, |index, mut added| match index {
        6 => said.fast_start(&mut added),
        _ => Ok(()),
    })
}

fn conference_identifier(per: &mut Per<'_>) -> Read {
    per.octets(16).map(drop)
}

/// QseriesOptions with its Q954Details.
fn supplementary_services(per: &mut Per<'_>) -> Read {
    let extended = per.bit()?;
    per.flags::<7>()?;
    let details_extended = per.bit()?;
    per.flags::<2>()?;
    per.skip_additions(details_extended)?;
    per.skip_additions(extended)
}

/// CallProceeding-UUIE, Alerting-UUIE.
fn proceeding(per: &mut Per<'_>, said: &mut Signalling) -> Read {
    let [extended, h245] = per.flags()?;
    per.contained()?;
    endpoint_type(per)?;
    if h245 {
        said.h245 = transport_address(per)?;
    }
    answer_additions(per, extended, said)
}

/// Connect-UUIE.
fn connect(per: &mut Per<'_>, said: &mut Signalling) -> Read {
    let [extended, h245] = per.flags()?;
    per.contained()?;
    if h245 {
        said.h245 = transport_address(per)?;
    }
    endpoint_type(per)?;
    conference_identifier(per)?;
    answer_additions(per, extended, said)
}

fn answer_additions(per: &mut Per<'_>, extended: bool, said: &mut Signalling) -> Read {
    per.additions(extended, |index, mut added| match index {
        4 => said.fast_start(&mut added),
        _ => Ok(()),
    })
}

/// Facility-UUIE.
fn facility(per: &mut Per<'_>, said: &mut Signalling) -> Read {
    let extended = per.bit()?;
    let [alternative, aliases, conference] = per.flags()?;
    per.contained()?;
    if alternative {
        transport_address(per)?;
    }
    if aliases {
        per.list(alias)?;
    }
    if conference {
        conference_identifier(per)?;
    }
    per.choice(4)?;
    per.additions(extended, |index, mut added| {
        match index {
            6 => said.h245 = transport_address(&mut added)?,
            7 => said.fast_start(&mut added)?,
            _ => {}
        }
        Ok(())
    })
}

/// Progress-UUIE, up to fastStart.
fn progress(per: &mut Per<'_>, said: &mut Signalling) -> Read {
    let [_extended, h245, security, tokens, crypto_tokens, fast_start] = per.flags()?;
    per.contained()?;
    endpoint_type(per)?;
    if h245 {
        said.h245 = transport_address(per)?;
    }
    let call_extended = per.bit()?;
    per.octets(16)?;
    per.skip_additions(call_extended)?;
    if security {
        security_mode(per)?;
    }
    if tokens || crypto_tokens {
        return Err(Unreadable);
    }
    if fast_start {
        said.fast_start(per)?;
    }
    Ok(())
}

/// H245Security.
fn security_mode(per: &mut Per<'_>) -> Read {
    match per.choice(4)? {
        Choice::Root(0) => non_standard(per),
        Choice::Root(1) | Choice::Added(..) => Ok(()),
        // SecurityCapabilities.
        Choice::Root(_) => Err(Unreadable),
    }
}
