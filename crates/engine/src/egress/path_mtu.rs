//! Frames that are longer than the link ahead takes: they are cut, or their senders are told
//! (RFC 1191, RFC 8201).

use netio::{Checksum, Frame, FramePool, Segmentation};
use wire::fragment::{Cut, Fragments};
use wire::{Dissected, Family, checksum};

/// Bytes of an Ethernet header, which the MTU does not count.
const ETHERNET_LEN: usize = wire::ETHERNET_LEN as usize;
/// Bytes of a VLAN tag, which it does not count either (IEEE 802.3ac), if it is the
/// first and no service tag: so do packet sockets of Linux.
const VLAN_TAG_LEN: usize = 4;
const VLAN: [u8; 2] = [0x81, 0x00];

/// The result for a frame that is too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shortened {
    /// Its pieces go on in its place.
    Pieces,
    /// Its packet may not be cut. The sender may be told how long a packet may be, in bytes.
    MayNotBeCut { mtu: u32 },
    /// It can not be cut, because it is no packet of IP or its headers do not fit one another.
    CanNotBeCut,
}

/// A frame can not be cut.
struct CanNotBeCut;

/// True for a frame that is longer than a link of this MTU takes, and for a
/// super-packet of which a segment is.
pub fn is_exceeded(mtu: u32, frame: &Frame) -> bool {
    let length = match frame.offload.segmentation {
        None => frame.len(),
        Some(Segmentation { segment_size, header_length, .. }) => {
            frame.len().min(usize::from(header_length) + usize::from(segment_size))
        }
    };
    length > mtu as usize + ETHERNET_LEN && length > longest(mtu, frame.bytes())
}

/// The longest frame with the link header of this one.
fn longest(mtu: u32, frame: &[u8]) -> usize {
    let is_tagged = frame.get(12..14) == Some(&VLAN);
    mtu as usize + ETHERNET_LEN + if is_tagged { VLAN_TAG_LEN } else { 0 }
}

/// Appends what is to be sent instead of a frame that exceeds the MTU to `pieces`:
/// fragments, the datagrams of a super-packet and their fragments, or the
/// super-packet of TCP with shorter segments. `pieces` is empty before. The packet is
/// taken from `frame` if it goes on, and stays there otherwise.
pub fn shorten(
    frame: &mut Frame,
    mtu: u32,
    pool: &mut FramePool,
    pieces: &mut Vec<Frame>,
) -> Shortened {
    let longest = longest(mtu, frame.bytes());
    let result = match wire::dissect(frame.bytes()) {
        Ok(Dissected { network: Some(network), .. }) => {
            let mtu = longest.saturating_sub(network.offset.into()) as u32;
            let may_be_cut = network.family == Family::V4 && !network.dont_fragment;
            match frame.offload.segmentation {
                // The packet fits, and bytes behind it do not. Its sender can not help.
                None if network.end as usize <= longest => Err(CanNotBeCut),
                _ if !may_be_cut => return Shortened::MayNotBeCut { mtu },
                None => cut(frame, mtu, pool, pieces),
                Some(segments) if segments.is_tcp() => shorten_segments(frame, segments, longest),
                Some(_) => cut_segments(frame, longest, mtu, pool, pieces),
            }
        }
        _ => Err(CanNotBeCut),
    };
    if let Err(CanNotBeCut) = result {
        return Shortened::CanNotBeCut;
    }
    let frame = std::mem::take(frame);
    if pieces.is_empty() {
        // It goes on itself, with shorter segments.
        pieces.push(frame);
    } else {
        pool.give_back(frame);
    }
    Shortened::Pieces
}

/// Appends the fragments of a packet.
fn cut(
    frame: &mut Frame,
    mtu: u32,
    pool: &mut FramePool,
    pieces: &mut Vec<Frame>,
) -> Result<(), CanNotBeCut> {
    if let Checksum::Partial { start, offset } = frame.offload.checksum {
        checksum::complete(frame.bytes_mut(), start, offset);
    }
    let mut fragments =
        Fragments::new(frame.bytes(), &Cut { mtu, ..Cut::default() }).map_err(|_| CanNotBeCut)?;
    // A piece is shorter than the frame: there are buffers of its size.
    while let Some(mut piece) = fragments.next_len().and_then(|length| pool.take(length)) {
        fragments.write_next(piece.bytes_mut());
        come_from(frame, &mut piece, pool);
        pieces.push(piece);
    }
    Ok(())
}

/// Appends the datagrams of a super-packet of UDP, those that are longer than `longest`
/// with their link header in fragments.
fn cut_segments(
    frame: &Frame,
    longest: usize,
    mtu: u32,
    pool: &mut FramePool,
    pieces: &mut Vec<Frame>,
) -> Result<(), CanNotBeCut> {
    let segments = frame.cut_up().ok_or(CanNotBeCut)?;
    for index in 0..segments.count() {
        // A datagram is no longer than the frame: there are buffers of its size.
        let Some(mut datagram) = pool.take(segments.length(index)) else { break };
        segments.write(index, datagram.bytes_mut());
        come_from(frame, &mut datagram, pool);
        if datagram.len() <= longest {
            pieces.push(datagram);
            continue;
        }
        // All have the same headers: if one can not be cut, that is the first.
        let result = cut(&mut datagram, mtu, pool, pieces);
        pool.give_back(datagram);
        result?;
    }
    Ok(())
}

pub(crate) fn come_from(frame: &Frame, piece: &mut Frame, pool: &mut FramePool) {
    piece.port = frame.port;
    piece.timestamp = frame.timestamp;
    piece.sequence = frame.sequence;
    if let Some(note) = frame.note() {
        pool.keep_note(piece, note);
    }
}

/// Makes the segments of a super-packet of TCP fit: to the receiver they are the same
/// stream, and it is spared the fragments.
fn shorten_segments(
    frame: &mut Frame,
    segments: Segmentation,
    longest: usize,
) -> Result<(), CanNotBeCut> {
    let room = longest.saturating_sub(segments.header_length.into());
    if room == 0 {
        return Err(CanNotBeCut);
    }
    // Less than before, or it would not be too long.
    frame.offload.segmentation = Some(Segmentation { segment_size: room as u16, ..segments });
    Ok(())
}

#[cfg(test)]
#[path = "path_mtu_tests.rs"]
mod tests;
