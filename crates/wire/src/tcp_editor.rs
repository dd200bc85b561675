//! Changing the numbers of a TCP header in place. The checksum is updated from the change alone
//! (RFC 1624). So the cost does not depend on the packet's length, and a wrong checksum stays
//! wrong.

use std::ops::Range;

use crate::{
    IcmpError, Network, Quoted, TcpFlags, TcpInfo, Transport,
    checksum::{Change, ICMP_FIELD},
    protocol,
    tcp_option::{TcpOptions, kind},
};

/// Offset of the checksum in a TCP header.
const TCP_CHECKSUM: usize = 16;

/// The TCP header of a packet.
pub struct TcpEditor<'a> {
    /// The header with its options.
    header: &'a mut [u8],
    tcp: &'a mut TcpInfo,
    covers_all: bool,
}

impl<'a> TcpEditor<'a> {
    /// The header of `network`, which describes `frame` and is kept up to date; `None` if the
    /// packet is not TCP.
    ///
    /// `covers_all` is false for a packet with a partial checksum. That covers the pseudo
    /// header only, so no change here affects it.
    pub fn new(frame: &'a mut [u8], network: &'a mut Network, covers_all: bool) -> Option<Self> {
        let start = usize::from(network.transport_offset);
        let Transport::Tcp(tcp) = &mut network.transport else { return None };
        let header = frame.get_mut(start..start + usize::from(tcp.header_len))?;
        Some(Self { header, tcp, covers_all })
    }

    /// The fields as they are now.
    pub fn tcp(&self) -> &TcpInfo {
        self.tcp
    }

    /// Changes the sequence number.
    pub fn set_sequence(&mut self, sequence: u32) {
        self.tcp.sequence = sequence;
        self.write(4, &sequence.to_be_bytes());
    }

    /// Changes the window, unscaled.
    pub fn set_window(&mut self, window: u16) {
        self.tcp.window = window;
        self.write(14, &window.to_be_bytes());
    }

    /// Lowers the maximum segment size that the segment announces (RFC 9293 section 3.7.1);
    /// never raises it. Without effect on a segment that announces none.
    pub fn lower_segment_size(&mut self, size: u16) {
        let mut options = TcpOptions::new(&self.header[20..]);
        let found = options.find(|option| option.kind == kind::MAX_SEGMENT_SIZE);
        if let Some(option) = found
            && let Some(announced) = option.body.first_chunk()
            && u16::from_be_bytes(*announced) > size
        {
            self.write(20 + option.offset, &size.to_be_bytes());
        }
    }

    /// Changes the acknowledgment number and the edges of all SACK blocks (RFC 2018 section 3).
    /// Without effect if ACK is not set.
    pub fn map_acknowledged(&mut self, mut map: impl FnMut(u32) -> u32) {
        if !self.tcp.flags.contains(TcpFlags::ACK) {
            return;
        }
        self.tcp.acknowledgment = map(self.tcp.acknowledgment);
        self.write(8, &self.tcp.acknowledgment.to_be_bytes());
        for place in self.options(kind::SACK) {
            for at in place.step_by(4) {
                self.map_word(at, &mut map);
            }
        }
    }

    /// Changes value and echo of the timestamps (RFC 7323 section 3.2), if there are any. The
    /// echo is valid only with ACK.
    pub fn map_timestamps(
        &mut self,
        mut value: impl FnMut(u32) -> u32,
        mut echo: impl FnMut(u32) -> u32,
    ) {
        let has_echo = self.tcp.flags.contains(TcpFlags::ACK);
        for place in self.options(kind::TIMESTAMPS).filter(|place| place.len() == 8) {
            self.map_word(place.start, &mut value);
            if has_echo {
                self.map_word(place.start + 4, &mut echo);
            }
        }
    }

    /// The places in the header of the bodies of the options of a kind: at most four, and more
    /// than one only if the sender repeats itself.
    fn options(&self, kind: u8) -> impl Iterator<Item = Range<usize>> + use<> {
        let mut places: [Range<usize>; 4] = Default::default();
        let found = TcpOptions::new(&self.header[20..]).filter(|option| option.kind == kind);
        for (place, option) in places.iter_mut().zip(found) {
            let start = 20 + option.offset;
            // Whole words: a number does not fit into the rest.
            *place = start..start + (option.body.len() & !3);
        }
        places.into_iter()
    }

    fn map_word(&mut self, at: usize, map: &mut impl FnMut(u32) -> u32) {
        if let Some(word) = self.header.get(at..).and_then(<[u8]>::first_chunk) {
            let word = map(u32::from_be_bytes(*word));
            self.write(at, &word.to_be_bytes());
        }
    }

    fn write(&mut self, at: usize, new: &[u8]) {
        let checksum = self.covers_all.then_some(TCP_CHECKSUM);
        write(self.header, at, new, checksum);
    }
}

/// Changes sequence and acknowledgment number of the TCP header that an ICMP error quotes, as
/// far as the quote reaches. It updates the checksum of the message, but not that of the quoted
/// packet, because nobody can verify that.
pub fn map_quoted(
    frame: &mut [u8],
    network: &Network,
    sequence: impl FnOnce(u32) -> u32,
    acknowledgment: impl FnOnce(u32) -> u32,
) {
    let Transport::IcmpError(IcmpError {
        quoted: Some(Quoted { protocol: protocol::TCP, transport_offset, .. }),
        ..
    }) = network.transport
    else {
        return;
    };
    let start = usize::from(network.transport_offset);
    let quote = usize::from(transport_offset).saturating_sub(start);
    let Some(message) = frame.get_mut(start..network.end as usize) else { return };
    let word = |message: &[u8], at| message.get(at..)?.first_chunk().copied();
    if let Some(old) = word(message, quote + 4) {
        let new = sequence(u32::from_be_bytes(old)).to_be_bytes();
        write(message, quote + 4, &new, Some(ICMP_FIELD));
    }
    if let Some(old) = word(message, quote + 8) {
        let new = acknowledgment(u32::from_be_bytes(old)).to_be_bytes();
        write(message, quote + 8, &new, Some(ICMP_FIELD));
    }
}

/// Writes two or four bytes at `at`, which may be odd, because options need no alignment. The
/// checksum changes by the aligned words that hold these bytes.
fn write(covered: &mut [u8], at: usize, new: &[u8], checksum: Option<usize>) {
    let skew = at % 2;
    let (mut before, mut after) = ([0; 6], [0; 6]);
    let place = &mut covered[at..at + new.len()];
    before[skew..skew + new.len()].copy_from_slice(place);
    after[skew..skew + new.len()].copy_from_slice(new);
    place.copy_from_slice(new);
    if let Some(field) = checksum {
        Change::default().replace(&before, &after).update(covered, field);
    }
}

#[cfg(test)]
#[path = "tcp_editor_tests.rs"]
mod tests;
