//! The ends of a packet before translation changed them. They travel with the frame as its note. So
//! an ICMP error can show the sender its packet as it sent it.

use netio::{Frame, FramePool, NOTE_LEN};
use wire::{ChecksumCovers, Dissected, Readdress, TransportAddress};

/// Bytes of one end: a flag, address and port.
const END_LEN: usize = NOTE_LEN / 2;

/// The ends that a frame's packet came with, as far as they were changed.
pub fn original_ends(frame: &Frame) -> Readdress {
    let Some(note) = frame.note() else { return Readdress::default() };
    let (source, destination) = note.split_at(END_LEN);
    Readdress { source: read(source), destination: read(destination) }
}

/// Stores the ends that a frame's packet came with.
pub fn keep_original_ends(pool: &mut FramePool, frame: &mut Frame, ends: &Readdress) {
    let mut note = [0; NOTE_LEN];
    let (source, destination) = note.split_at_mut(END_LEN);
    write(ends.source, source);
    write(ends.destination, destination);
    pool.keep_note(frame, &note);
}

/// Has an answer leave between the ends that its packet came with.
pub fn answer_between(answer: &mut Frame, ends: &Readdress) {
    let change = Readdress { source: ends.destination, destination: ends.source };
    if change == Readdress::default() {
        return;
    }
    if let Ok(Dissected { network: Some(mut network), .. }) = wire::dissect(answer.bytes()) {
        let length = (network.end as usize).saturating_sub(network.transport_offset.into());
        change.apply(answer.bytes_mut(), &mut network, length, ChecksumCovers::All);
    }
}

fn read(bytes: &[u8]) -> Option<TransportAddress> {
    let (&is_there, bytes) = bytes.split_first()?;
    let (&address, port) = bytes.split_first_chunk()?;
    (is_there != 0)
        .then_some(TransportAddress { address, port: u16::from_ne_bytes(*port.first_chunk()?) })
}

fn write(end: Option<TransportAddress>, bytes: &mut [u8]) {
    bytes[0] = end.is_some().into();
    if let Some(TransportAddress { address, port }) = end {
        bytes[1..17].copy_from_slice(&address);
        bytes[17..].copy_from_slice(&port.to_ne_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ends_come_back_as_they_were_kept() {
        let mut pool = FramePool::new(1, 1);
        let end = |n: u8| {
            (n > 0).then_some(TransportAddress { address: [n; 16], port: u16::from(n) << 8 })
        };
        for (source, destination) in [(1, 2), (1, 0), (0, 2), (0, 0)] {
            let ends = Readdress { source: end(source), destination: end(destination) };
            let mut frame = pool.take(60).unwrap();
            assert_eq!(original_ends(&frame), Readdress::default());
            keep_original_ends(&mut pool, &mut frame, &ends);
            assert_eq!(original_ends(&frame), ends);
        }
    }
}
