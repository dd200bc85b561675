//! Messages of H.245 (its Annex A): the destinations of the media of logical channels.

use super::elements::{Target, V4, V6, target};
use super::per::{Choice, Per, Read, Unreadable};

/// A channel that one end will receive on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Channel {
    /// RTP or RTCP over UDP.
    Media(Target),
    /// T.120 over TCP.
    Data(Target),
}

/// MultimediaSystemControlMessage: OpenLogicalChannel and its acknowledgement are read.
pub(super) fn control_message(per: &mut Per<'_>, found: &mut Vec<Channel>) -> Read {
    match per.choice(4)? {
        Choice::Root(0) => match per.choice(11)? {
            Choice::Root(3) => open_channel(per, found),
            _ => Ok(()),
        },
        Choice::Root(1) => match per.choice(19)? {
            Choice::Root(5) => acknowledgement(per, found),
            _ => Ok(()),
        },
        _ => Ok(()),
    }
}

/// OpenLogicalChannel.
pub(super) fn open_channel(per: &mut Per<'_>, found: &mut Vec<Channel>) -> Read {
    let extended = per.bit()?;
    let reverse = per.bit()?;
    channel_number(per)?;
    let is_t120 = forward_parameters(per, found)?;
    if reverse {
        reverse_parameters(per, found)?;
    }
    per.additions(extended, |index, mut added| match index {
        0 if is_t120 => network_access(&mut added, found),
        _ => Ok(()),
    })
}

/// OpenLogicalChannelAck.
fn acknowledgement(per: &mut Per<'_>, found: &mut Vec<Channel>) -> Read {
    let extended = per.bit()?;
    let reverse = per.bit()?;
    channel_number(per)?;
    if reverse {
        let extended = per.bit()?;
        let [port, multiplex] = per.flags()?;
        channel_number(per)?;
        if port {
            port_number(per)?;
        }
        if multiplex {
            multiplex_parameters(per, 1, found)?;
        }
        per.skip_additions(extended)?;
    }
    per.additions(extended, |index, mut added| match index {
        0 => network_access(&mut added, found),
        1 => match added.choice(1)? {
            Choice::Root(_) => acknowledged_parameters(&mut added, found),
            Choice::Added(..) => Ok(()),
        },
        _ => Ok(()),
    })
}

fn channel_number(per: &mut Per<'_>) -> Read {
    per.whole(1, 65535).map(drop)
}

fn port_number(per: &mut Per<'_>) -> Read {
    per.whole(0, 65535).map(drop)
}

/// True if the channel is for T.120 on a stack of its own.
fn forward_parameters(per: &mut Per<'_>, found: &mut Vec<Channel>) -> Read<bool> {
    let extended = per.bit()?;
    if per.bit()? {
        port_number(per)?;
    }
    let is_t120 = data_type(per)?;
    multiplex_parameters(per, 3, found)?;
    per.skip_additions(extended)?;
    Ok(is_t120)
}

fn reverse_parameters(per: &mut Per<'_>, found: &mut Vec<Channel>) -> Read {
    let extended = per.bit()?;
    let multiplex = per.bit()?;
    data_type(per)?;
    if multiplex {
        multiplex_parameters(per, 2, found)?;
    }
    per.skip_additions(extended)
}

/// The alternatives in front of the extension marker are for networks other than IP.
fn multiplex_parameters(per: &mut Per<'_>, others: u64, found: &mut Vec<Channel>) -> Read {
    match per.choice(others)? {
        Choice::Root(_) => Err(Unreadable),
        Choice::Added(0, mut added) => channel_parameters(&mut added, found),
        Choice::Added(..) => Ok(()),
    }
}

/// H2250LogicalChannelParameters, up to mediaControlChannel.
fn channel_parameters(per: &mut Per<'_>, found: &mut Vec<Channel>) -> Read {
    per.bit()?;
    let [parameters, associated, media, guaranteed, control, _, _, _, _, _] = per.flags()?;
    if parameters {
        per.list(non_standard)?;
    }
    per.whole(0, 255)?;
    if associated {
        per.whole(1, 255)?;
    }
    if media {
        media_address(per, found)?;
    }
    if guaranteed {
        per.bit()?;
    }
    if control {
        media_address(per, found)?;
    }
    Ok(())
}

/// H2250LogicalChannelAckParameters, up to mediaControlChannel.
fn acknowledged_parameters(per: &mut Per<'_>, found: &mut Vec<Channel>) -> Read {
    per.bit()?;
    let [parameters, session, media, control, _] = per.flags()?;
    if parameters {
        per.list(non_standard)?;
    }
    if session {
        per.whole(1, 255)?;
    }
    if media {
        media_address(per, found)?;
    }
    if control {
        media_address(per, found)?;
    }
    Ok(())
}

fn media_address(per: &mut Per<'_>, found: &mut Vec<Channel>) -> Read {
    found.extend(transport_address(per)?.map(Channel::Media));
    Ok(())
}

/// NetworkAccessParameters, up to networkAddress.
fn network_access(per: &mut Per<'_>, found: &mut Vec<Channel>) -> Read {
    per.bit()?;
    let [distribution, _] = per.flags()?;
    if distribution {
        per.choice(2)?;
    }
    if let Choice::Root(2) = per.choice(3)? {
        found.extend(transport_address(per)?.map(Channel::Data));
    }
    Ok(())
}

/// TransportAddress; `None` if it is not a plain unicast IP address.
fn transport_address(per: &mut Per<'_>) -> Read<Option<Target>> {
    match per.choice(2)? {
        Choice::Root(0) => {}
        Choice::Root(_) => return Err(Unreadable),
        Choice::Added(..) => return Ok(None),
    }
    let Choice::Root(alternative) = per.choice(5)? else { return Ok(None) };
    if alternative == 3 {
        per.octets(16)?;
        return Ok(None);
    }
    let extended = per.bit()?;
    let target = match alternative {
        0 => Some(target::<V4>(per)?),
        2 => Some(target::<V6>(per)?),
        1 => {
            // A string of two octets is not aligned, but whole octets precede this one.
            per.octets(6 + 4 + 2)?;
            None
        }
        _ => {
            let _loose = per.bit()?;
            target::<V4>(per)?;
            per.list(|per| per.octets(4).map(drop))?;
            None
        }
    };
    per.skip_additions(extended)?;
    Ok(target)
}

/// NonStandardParameter. Unlike that of H.225.0, its elements can not be extended.
fn non_standard(per: &mut Per<'_>) -> Read {
    if per.bit()? {
        per.octets(1 + 1 + 2)?;
    } else {
        per.contained()?;
    }
    per.contained().map(drop)
}

/// DataType. True for T.120 on a stack of its own.
fn data_type(per: &mut Per<'_>) -> Read<bool> {
    let Choice::Root(alternative) = per.choice(6)? else { return Ok(false) };
    match alternative {
        0 => non_standard(per)?,
        1 => {}
        2 => video(per)?,
        3 => audio(per)?,
        4 => return data_application(per),
        _ => {
            if let Choice::Root(0) = per.choice(2)? {
                non_standard(per)?;
            }
        }
    }
    Ok(false)
}

/// VideoCapability.
fn video(per: &mut Per<'_>) -> Read {
    let Choice::Root(alternative) = per.choice(5)? else { return Ok(()) };
    if alternative == 0 {
        return non_standard(per);
    }
    let extended = per.bit()?;
    match alternative {
        1 => h261(per)?,
        2 => mpeg_video::<11>(per)?,
        3 => h263(per)?,
        _ => mpeg_video::<1>(per)?,
    }
    per.skip_additions(extended)
}

fn h261(per: &mut Per<'_>) -> Read {
    let present: [bool; 2] = per.flags()?;
    for _ in present.into_iter().filter(|&present| present) {
        per.whole(1, 4)?;
    }
    let [_temporal_spatial_trade_off] = per.flags()?;
    per.whole(1, 19_200)?;
    let [_still_image] = per.flags()?;
    Ok(())
}

/// H262VideoCapability and IS11172VideoCapability differ in the number of leading booleans.
fn mpeg_video<const BOOLEANS: usize>(per: &mut Per<'_>) -> Read {
    const HIGHEST: [u64; 6] = [0x3fff_ffff, 0x3_ffff, 0x3fff, 0x3fff, 15, 0xffff_ffff];
    let present: [bool; HIGHEST.len()] = per.flags()?;
    per.flags::<BOOLEANS>()?;
    for (highest, present) in HIGHEST.into_iter().zip(present) {
        if present {
            per.whole(0, highest)?;
        }
    }
    Ok(())
}

fn h263(per: &mut Per<'_>) -> Read {
    let intervals: [bool; 5] = per.flags()?;
    let [hrd_b, bpp_max_kb] = per.flags()?;
    for _ in intervals.into_iter().filter(|&present| present) {
        per.whole(1, 32)?;
    }
    per.whole(1, 192_400)?;
    per.flags::<5>()?;
    if hrd_b {
        per.whole(0, 524_287)?;
    }
    if bpp_max_kb {
        per.whole(0, 65535)?;
    }
    Ok(())
}

/// AudioCapability.
fn audio(per: &mut Per<'_>) -> Read {
    let Choice::Root(alternative) = per.choice(14)? else { return Ok(()) };
    match alternative {
        0 => non_standard(per),
        8 => {
            per.whole(1, 256)?;
            per.bit().map(drop)
        }
        12 => mpeg_audio::<8>(per, 448),
        13 => mpeg_audio::<20>(per, 1130),
        _ => per.whole(1, 256).map(drop),
    }
}

/// IS11172AudioCapability and IS13818AudioCapability.
fn mpeg_audio<const BOOLEANS: usize>(per: &mut Per<'_>, highest_rate: u64) -> Read {
    let extended = per.bit()?;
    per.flags::<BOOLEANS>()?;
    per.whole(1, highest_rate)?;
    per.skip_additions(extended)
}

/// DataApplicationCapability. True for T.120 on a stack of its own.
fn data_application(per: &mut Per<'_>) -> Read<bool> {
    let extended = per.bit()?;
    let mut is_t120 = false;
    if let Choice::Root(application) = per.choice(10)? {
        match application {
            0 => non_standard(per)?,
            // T84Profile.
            4 => return Err(Unreadable),
            8 => {}
            _ => {
                let has_own_stack = has_own_stack(per)?;
                is_t120 = application == 1 && has_own_stack;
                if application == 7 {
                    per.contained()?;
                }
            }
        }
    }
    per.whole(0, 0xffff_ffff)?;
    per.skip_additions(extended)?;
    Ok(is_t120)
}

/// DataProtocolCapability. True for separateLANStack.
fn has_own_stack(per: &mut Per<'_>) -> Read<bool> {
    match per.choice(7)? {
        Choice::Root(0) => non_standard(per).map(|()| false),
        Choice::Root(_) => Ok(false),
        Choice::Added(index, _) => Ok(index == 3),
    }
}
