//! Cuts a datagram that came in fragments into fragments again after its payload was changed.

use flow::DropReason;
use netio::{Checksum, Frame, FramePool};
use wire::fragment::Fragments;
use wire::{CameIn, Dissected, checksum};

use crate::egress::path_mtu::come_from;
use crate::path::reassembly::Pieces;

/// Appends the frames in which a reassembled datagram leaves after its payload was changed to
/// `out`. No frame is longer than the largest fragment in which it came (`pieces`). If the datagram
/// fits it leaves whole. Each frame has the link header of the first fragment, with its tags, and
/// the identification of the datagram. "Don't fragment" stays set if the largest fragment had it.
///
/// The fragments that came in stay in `pieces`.
///
/// # Errors
/// [`DropReason::OutputTooLong`] if a frame in `pieces` is no fragment or the datagram can not be
/// cut. It stays in `whole` then.
pub fn refragment(
    whole: &mut Frame,
    pieces: &Pieces,
    pool: &mut FramePool,
    out: &mut Vec<Frame>,
) -> Result<(), DropReason> {
    let (first, link, came_in) = fragments_of(pieces).ok_or(DropReason::OutputTooLong)?;
    if let Checksum::Partial { start, offset } = whole.offload.checksum {
        checksum::complete(whole.bytes_mut(), start, offset);
        whole.offload.checksum = Checksum::Verified;
    }
    let mut fragments = Fragments::behind(link, whole.bytes(), &came_in.cut())
        .map_err(|_| DropReason::OutputTooLong)?;
    // The fragments are no longer than other frames, so there are buffers of their size.
    while let Some(mut piece) = fragments.next_len().and_then(|length| pool.take(length)) {
        fragments.write_next(piece.bytes_mut());
        come_from(first, &mut piece, pool);
        out.push(piece);
    }
    pool.give_back(std::mem::take(whole));
    Ok(())
}

/// The first fragment, its link header, and the combined properties of all fragments. `None` if
/// one of the frames is no fragment.
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
