//! RAS: messages between endpoints and gatekeepers (H.225.0 section 7.7 ff., Annex H).

use super::elements::{
    Target, alias, endpoint_type, identifier, non_standard, transport_address, vendor_identifier,
};
use super::per::{Choice, Per, Read};

/// Most addresses of an endpoint that are read.
const MOST_ADDRESSES: usize = 16;

/// The content of a message.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum RasMessage {
    /// gatekeeperConfirm: the address at which the receiver shall register.
    Gatekeeper(Target),
    /// registrationRequest: the addresses at which the sender accepts calls, and for how many
    /// seconds it wants to be registered.
    Register { signal: Vec<Target>, seconds: Option<u32> },
    /// registrationConfirm: for how many seconds the receiver is registered.
    Registered { seconds: Option<u32> },
    /// unregistrationRequest.
    Unregister,
    /// admissionConfirm: the address that the receiver shall call, or its own one if it may
    /// answer a call.
    Admitted(Target),
    /// locationConfirm: the address to call.
    Located(Target),
    /// Any other message.
    Other,
}

/// Reads a RasMessage that is at the start of a datagram.
pub(super) fn read(datagram: &[u8]) -> Read<RasMessage> {
    let mut per = Per::new(datagram, 0);
    let Choice::Root(alternative) = per.choice(25)? else { return Ok(RasMessage::Other) };
    match alternative {
        1 => gatekeeper_confirm(&mut per),
        3 => registration_request(&mut per),
        4 => registration_confirm(&mut per),
        6 => unregistration_request(&mut per),
        10 => admission_confirm(&mut per),
        19 => location_confirm(&mut per),
        _ => Ok(RasMessage::Other),
    }
}

fn target(per: &mut Per<'_>, said: fn(Target) -> RasMessage) -> Read<RasMessage> {
    Ok(transport_address(per)?.map_or(RasMessage::Other, said))
}

fn sequence_number(per: &mut Per<'_>) -> Read {
    per.whole(1, 65535).map(drop)
}

/// GatekeeperConfirm, up to rasAddress.
fn gatekeeper_confirm(per: &mut Per<'_>) -> Read<RasMessage> {
    let [_extended, parameter, has_identifier] = per.flags()?;
    sequence_number(per)?;
    per.contained()?;
    if parameter {
        non_standard(per)?;
    }
    if has_identifier {
        identifier(per)?;
    }
    target(per, RasMessage::Gatekeeper)
}

/// RegistrationRequest, up to timeToLive.
fn registration_request(per: &mut Per<'_>) -> Read<RasMessage> {
    let [extended, parameter, aliases, gatekeeper] = per.flags()?;
    sequence_number(per)?;
    per.contained()?;
    if parameter {
        non_standard(per)?;
    }
    let [_discovery_complete] = per.flags()?;
    let mut signal = Vec::new();
    per.list(|per| {
        let target = transport_address(per)?;
        signal.extend(target.filter(|_| signal.len() < MOST_ADDRESSES));
        Ok(())
    })?;
    per.list(|per| transport_address(per).map(drop))?;
    endpoint_type(per)?;
    if aliases {
        per.list(alias)?;
    }
    if gatekeeper {
        identifier(per)?;
    }
    vendor_identifier(per)?;
    let seconds = time_to_live(per, extended)?;
    Ok(RasMessage::Register { signal, seconds })
}

/// RegistrationConfirm, up to timeToLive.
fn registration_confirm(per: &mut Per<'_>) -> Read<RasMessage> {
    let [extended, parameter, aliases, gatekeeper] = per.flags()?;
    sequence_number(per)?;
    per.contained()?;
    if parameter {
        non_standard(per)?;
    }
    per.list(|per| transport_address(per).map(drop))?;
    if aliases {
        per.list(alias)?;
    }
    if gatekeeper {
        identifier(per)?;
    }
    identifier(per)?;
    Ok(RasMessage::Registered { seconds: time_to_live(per, extended)? })
}

/// UnregistrationRequest, up to callSignalAddress.
fn unregistration_request(per: &mut Per<'_>) -> Read<RasMessage> {
    let [_extended, _aliases, _parameter, _identifier] = per.flags()?;
    sequence_number(per)?;
    per.list(|per| transport_address(per).map(drop))?;
    Ok(RasMessage::Unregister)
}

/// The second addition to both registration messages.
fn time_to_live(per: &mut Per<'_>, extended: bool) -> Read<Option<u32>> {
    let mut seconds = None;
    per.additions(extended, |index, mut added| {
        if index == 1 {
            seconds = Some(added.whole(1, u32::MAX.into())? as u32);
        }
        Ok(())
    })?;
    Ok(seconds)
}

/// AdmissionConfirm, up to destCallSignalAddress.
fn admission_confirm(per: &mut Per<'_>) -> Read<RasMessage> {
    let [_extended, _irr_frequency, _parameter] = per.flags()?;
    sequence_number(per)?;
    let _bandwidth = per.whole(0, u32::MAX.into())?;
    let _call_model = per.choice(2)?;
    target(per, RasMessage::Admitted)
}

/// LocationConfirm, up to rasAddress.
fn location_confirm(per: &mut Per<'_>) -> Read<RasMessage> {
    let [_extended, _parameter] = per.flags()?;
    sequence_number(per)?;
    let located = target(per, RasMessage::Located)?;
    transport_address(per)?;
    Ok(located)
}
