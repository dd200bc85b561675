//! Sending on a datagram that came in fragments after its payload was changed.

use netio::{Checksum, Frame, FramePool};
use wire::fragment::Fragments;
use wire::{CameIn, Dissected, checksum};

use crate::icmp_answers::IcmpAnswers;
use crate::path_mtu::{Refused, TOO_LONG, come_from, refuse};
use crate::reassembly::Pieces;

/// Appends to `out` what a datagram that was put together leaves as, now that its payload is
/// another: fragments that are no longer than the largest of those in which it came
/// (`pieces`), nor than a link of this MTU takes, or itself if that fits. Each has the link
/// header of the first that came, with its tags, and their identification; "don't fragment"
/// stays where the largest had it.
///
/// The frames that it came in stay in `pieces`.
///
/// # Errors
/// [`Refused`] where the link takes less than the largest that came and no router may cut it,
/// with an answer to its sender if there are `answers`, at this time in nanoseconds. The
/// datagram stays in `whole` then.
pub fn refragment(
    whole: &mut Frame,
    pieces: &Pieces,
    mtu: u32,
    answers: Option<(&mut IcmpAnswers, u64)>,
    pool: &mut FramePool,
    out: &mut Vec<Frame>,
) -> Result<(), Refused> {
    let (first, link, came_in) = fragments_of(pieces).ok_or(TOO_LONG)?;
    let Ok(cut) = came_in.cut(mtu) else {
        return Err(refuse(first, mtu, answers, pool));
    };
    if let Checksum::Partial { start, offset } = whole.offload.checksum {
        checksum::complete(whole.bytes_mut(), start, offset);
        whole.offload.checksum = Checksum::Verified;
    }
    let mut fragments = Fragments::behind(link, whole.bytes(), &cut).map_err(|_| TOO_LONG)?;
    // They are no longer than other frames: there are buffers of their size.
    while let Some(mut piece) = fragments.next_len().and_then(|length| pool.take(length)) {
        fragments.write_next(piece.bytes_mut());
        come_from(first, &mut piece, pool);
        out.push(piece);
    }
    pool.give_back(std::mem::take(whole));
    Ok(())
}

/// The first fragment, the link header that it has, and what all of them are like; `None` where
/// one of them is none.
fn fragments_of(pieces: &Pieces) -> Option<(&Frame, &[u8], CameIn)> {
    let first = pieces.frames().next()?;
    let described = |frame: &Frame| match wire::dissect(frame.bytes()) {
        Ok(Dissected { network: Some(network), .. }) => Some((CameIn::of(&network)?, network)),
        _ => None,
    };
    let (of_first, network) = described(first)?;
    let all = pieces
        .frames()
        .try_fold(of_first, |all, frame| described(frame).map(|(one, _)| all.and(one)))?;
    Some((first, first.bytes().get(..network.offset.into())?, all))
}

#[cfg(test)]
#[path = "refragment_tests.rs"]
mod tests;
