//! TCP segments without payload that a gateway makes from a packet of their connection: answers
//! to its sender, and segments in its sender's name.

use crate::{
    Dissected, Network, TcpFlags, TcpInfo, Transport, checksum, dissect,
    icmp_error::is_single_host,
    ip_writer::{IpHeader, TTL},
    link,
    link::ethertype,
    protocol,
    tcp_option::{MAX_OPTIONS, kind},
};

/// Longest frame that [`ControlSegment::write`] writes, bytes: Ethernet, the most VLAN tags
/// that are read, PPPoE, IPv6, and TCP with options.
pub const MAX_FRAME: usize = 14 + 4 * Dissected::MAX_VLAN_TAGS + 8 + 40 + 20 + MAX_OPTIONS;

/// The ECN field of a traffic class (RFC 3168 section 5).
const ECN: u8 = 3;

/// The direction of a segment, relative to the packet that it is made from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// To the sender, in the name of the receiver.
    Back,
    /// To the receiver, in the name of the sender.
    Along,
}

/// A segment to make. It has the addresses and ports of the packet that it is made from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ControlSegment {
    /// The direction.
    pub way: Way,
    /// Sequence number.
    pub sequence: u32,
    /// Acknowledgment number.
    pub acknowledgment: u32,
    /// Control bits.
    pub flags: TcpFlags,
    /// Window, unscaled.
    pub window: u16,
    /// Options.
    pub options: OptionList,
}

impl ControlSegment {
    /// The reset that answers a segment (RFC 9293 section 3.5.2); `None` if the segment is a
    /// reset. `length` is the length of its text in bytes.
    pub fn reset(to: &TcpInfo, length: u32) -> Option<Self> {
        let has = |flag| to.flags.contains(flag);
        if has(TcpFlags::RST) {
            return None;
        }
        let (sequence, acknowledgment, flags) = if has(TcpFlags::ACK) {
            (to.acknowledgment, 0, TcpFlags::RST)
        } else {
            let controls = u32::from(has(TcpFlags::SYN)) + u32::from(has(TcpFlags::FIN));
            let next = to.sequence.wrapping_add(controls).wrapping_add(length);
            (0, next, TcpFlags::RST.with(TcpFlags::ACK))
        };
        let options = OptionList::default();
        Some(Self { way: Way::Back, sequence, acknowledgment, flags, window: 0, options })
    }

    /// True if a segment can be made from this frame. None can if it is no TCP packet by itself, if
    /// it comes through a tunnel or along MPLS labels, which lead one way only, or if one of its
    /// addresses is not that of a single host.
    pub fn can_be_made_from(frame: &[u8]) -> bool {
        source(frame).is_some()
    }

    /// Writes the segment for the link from which `frame`, a TCP packet, came: with the same
    /// tags, and with Ethernet addresses for `way`. It leaves out IP options and extension
    /// headers.
    ///
    /// Returns the length, at most [`MAX_FRAME`]; `None` if `out` is too short or no segment
    /// [can be made](Self::can_be_made_from).
    pub fn write(&self, frame: &[u8], out: &mut [u8]) -> Option<usize> {
        let (network, tcp) = source(frame)?;
        let start = usize::from(network.offset);
        let header_len = IpHeader::length(network.family);
        let segment_len = 20 + self.options.bytes().len();
        let length = start + header_len + segment_len;
        let out = out.get_mut(..length)?;

        let (link, packet) = out.split_at_mut(start);
        link.copy_from_slice(&frame[..start]);
        let (mut from, mut to) = (network.source_ip(), network.destination_ip());
        let (mut from_port, mut to_port) = (tcp.source_port, tcp.destination_port);
        let mut ttl = network.ttl;
        if self.way == Way::Back {
            link[..12].rotate_left(6);
            (from, to) = (to, from);
            (from_port, to_port) = (to_port, from_port);
            ttl = TTL;
        }
        link::fit(link, packet.len());
        let (header, segment) = packet.split_at_mut(header_len);
        let traffic_class = network.traffic_class & !ECN;
        IpHeader { from, to, protocol: protocol::TCP, traffic_class, ttl }
            .write(header, segment_len)?;
        segment[..2].copy_from_slice(&from_port.to_be_bytes());
        segment[2..4].copy_from_slice(&to_port.to_be_bytes());
        segment[4..8].copy_from_slice(&self.sequence.to_be_bytes());
        segment[8..12].copy_from_slice(&self.acknowledgment.to_be_bytes());
        segment[12..14].copy_from_slice(&[(segment_len as u8) << 2, self.flags.0]);
        segment[14..16].copy_from_slice(&self.window.to_be_bytes());
        segment[16..20].fill(0);
        segment[20..].copy_from_slice(self.options.bytes());
        let made = dissect(out).ok()?.network?;
        checksum::fill_transport(out, &made);
        Some(length)
    }
}

/// The headers of a frame from which a segment can be made.
fn source(frame: &[u8]) -> Option<(Network, TcpInfo)> {
    let Dissected { network: Some(network), ethertype, .. } = dissect(frame).ok()? else {
        return None;
    };
    let Transport::Tcp(tcp) = network.transport else { return None };
    let is_labelled = matches!(ethertype, ethertype::MPLS | ethertype::MPLS_UPSTREAM);
    (!is_labelled && is_between_hosts(frame, &network)).then_some((network, tcp))
}

fn is_between_hosts(frame: &[u8], network: &Network) -> bool {
    const GROUP: u8 = 1;
    frame[0] & GROUP == 0
        && frame[6] & GROUP == 0
        && is_single_host(network.source_ip())
        && is_single_host(network.destination_ip())
}

/// Options in the order in which they are pushed, each padded to a multiple of 4 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OptionList {
    bytes: [u8; MAX_OPTIONS],
    length: u8,
}

impl Default for OptionList {
    fn default() -> Self {
        Self { bytes: [0; MAX_OPTIONS], length: 0 }
    }
}

impl OptionList {
    /// The options, a multiple of 4 bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.length)]
    }

    /// Maximum segment size, bytes.
    #[must_use]
    pub fn max_segment_size(self, size: u16) -> Self {
        let [s0, s1] = size.to_be_bytes();
        self.push([kind::MAX_SEGMENT_SIZE, 4, s0, s1])
    }

    /// SACK permitted.
    #[must_use]
    pub fn sack_permitted(self) -> Self {
        self.push([kind::NO_OPERATION, kind::NO_OPERATION, kind::SACK_PERMITTED, 2])
    }

    /// Timestamps: the sender's own value, and the last value of the other end.
    #[must_use]
    pub fn timestamps(self, value: u32, echo: u32) -> Self {
        self.push([kind::NO_OPERATION, kind::NO_OPERATION, kind::TIMESTAMPS, 10])
            .push(value.to_be_bytes())
            .push(echo.to_be_bytes())
    }

    /// Window scale: the shift of the windows that the sender announces.
    #[must_use]
    pub fn window_scale(self, shift: u8) -> Self {
        self.push([kind::NO_OPERATION, kind::WINDOW_SCALE, 3, shift])
    }

    /// Adds a word; without effect if the list is full. One option of each kind fits.
    fn push(mut self, word: [u8; 4]) -> Self {
        let length = usize::from(self.length);
        if let Some(place) = self.bytes.get_mut(length..length + 4) {
            place.copy_from_slice(&word);
            self.length += 4;
        }
        self
    }
}

#[cfg(test)]
#[path = "control_segment_tests.rs"]
mod tests;
