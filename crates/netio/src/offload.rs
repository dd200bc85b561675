//! Work that a sender has left to the next one who sends its frame: a checksum, and cutting.

use wire::segment::{Segments, SuperPacket, inner_transport};
use wire::{ChecksumCovers, Family, Network, checksum, dissect, protocol};

use crate::Frame;

/// `gso_type` of the virtio header (virtio 1.2 section 5.1.6).
pub(crate) const GSO_TCP4: u8 = 1;
pub(crate) const GSO_TCP6: u8 = 4;
pub(crate) const GSO_UDP: u8 = 5;
/// Set beside the TCP kinds for segments with CWR.
pub(crate) const GSO_ECN: u8 = 0x80;

/// The state that PACKET_VNET_HDR carries beside a frame (virtio 1.2 section
/// 5.1.6): frames between local kernels are not yet checksummed or cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Offload {
    /// State of the transport checksum.
    pub checksum: Checksum,
    /// Set for a super-packet that is still to be segmented.
    pub segmentation: Option<Segmentation>,
}

/// State of the transport checksum of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Checksum {
    /// Complete in the packet and not verified.
    #[default]
    Complete,
    /// Verified by the interface (VIRTIO_NET_HDR_F_DATA_VALID).
    Verified,
    /// The end of the packet was not captured and is zero here: nobody can verify the checksum,
    /// and nobody may read the payload.
    Cut,
    /// Only the pseudo header is summed. The device that sends the frame out of the
    /// machine completes it (VIRTIO_NET_HDR_F_NEEDS_CSUM).
    Partial {
        /// Frame offset where summing starts.
        start: u16,
        /// Offset of the checksum field from `start`.
        offset: u16,
    },
}

impl Checksum {
    /// The part of the packet that the checksum field covers, for code that changes the packet.
    pub const fn covers(self) -> ChecksumCovers {
        match self {
            Self::Partial { .. } => ChecksumCovers::PseudoHeader,
            Self::Complete | Self::Verified | Self::Cut => ChecksumCovers::All,
        }
    }
}

/// How a super-packet is to be segmented.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segmentation {
    /// `gso_type` of the virtio header, with its ECN bit.
    pub kind: u8,
    /// Payload bytes of each segment.
    pub segment_size: u16,
    /// Length of all headers up to and including the transport header, bytes.
    pub header_length: u16,
}

impl Segmentation {
    /// True for a super-packet of TCP (VIRTIO_NET_HDR_GSO_TCPV4 and _TCPV6).
    pub fn is_tcp(&self) -> bool {
        matches!(self.kind & !GSO_ECN, GSO_TCP4 | GSO_TCP6)
    }

    /// True for a super-packet of UDP datagrams (VIRTIO_NET_HDR_GSO_UDP_L4).
    pub fn is_udp(&self) -> bool {
        self.kind == GSO_UDP
    }
}

impl Offload {
    /// True if nothing is left to do.
    #[inline]
    pub const fn is_done(&self) -> bool {
        !matches!(self.checksum, Checksum::Partial { .. }) && self.segmentation.is_none()
    }
}

impl Frame {
    /// Makes sure that the checksum and the segmentation that the sender has left to others belong
    /// to the packet, before rules inspect it. The sender chooses the places, and the one who
    /// forwards the frame writes there.
    /// `network` is what [`wire::dissect`] found. False if it does not belong to it.
    ///
    /// The checksum has to be that of the outermost transport, or of the packet inside a tunnel;
    /// the latter is completed here, unless the packet is to be cut. A super-packet has to
    /// reach to the end of the frame, and to be of the protocol that its kind says.
    #[inline]
    pub fn admit_offload(&mut self, network: Option<&Network>) -> bool {
        self.offload.is_done() || network.is_some_and(|network| self.offload_fits(network))
    }

    fn offload_fits(&mut self, outer: &Network) -> bool {
        let (start, field) = match self.offload.checksum {
            Checksum::Partial { start, offset } => (start, Some(usize::from(offset))),
            Checksum::Complete | Checksum::Verified | Checksum::Cut => {
                (outer.transport_offset, None)
            }
        };
        let is_outermost = start == outer.transport_offset;
        let found = match is_outermost {
            true => Some((outer.family, outer.protocol)),
            false => inner_transport(self.bytes(), outer, start),
        };
        let is_whole = outer.fragment.is_none_or(|fragment| fragment.is_atomic());
        let Some((family, protocol)) = found.filter(|_| is_whole) else { return false };
        if field.is_some() && field != checksum::field(protocol, family) {
            return false;
        }
        if self.offload.segmentation.is_some() {
            return self.segments_fit(outer, start, (family, protocol));
        }
        if let (false, Some(field)) = (is_outermost, field) {
            self.offload.checksum = Checksum::Complete;
            return checksum::complete(self.bytes_mut(), start, field as u16);
        }
        true
    }

    fn segments_fit(&mut self, outer: &Network, start: u16, transport: (Family, u8)) -> bool {
        let Some(segmentation) = self.offload.segmentation else { return true };
        let Segmentation { kind, segment_size, header_length } = segmentation;
        let is_of_kind = match transport {
            (Family::V4, protocol::TCP) => kind & !GSO_ECN == GSO_TCP4,
            (Family::V6, protocol::TCP) => kind & !GSO_ECN == GSO_TCP6,
            (_, protocol::UDP) => kind == GSO_UDP && self.datagram_ends_here(start),
            _ => false,
        };
        // Bytes behind the packet would become part of it.
        let is_whole = outer.fragment.is_none() && outer.end as usize == self.len();
        let measured = headers(self.bytes(), kind, start);
        let Some(measured) = measured.filter(|&length| usize::from(length) <= self.len()) else {
            return false;
        };
        self.offload.segmentation = Some(Segmentation { header_length: measured, ..segmentation });
        let has_sizes = segment_size > 0 && usize::from(header_length) <= self.len();
        let is_known = start == outer.transport_offset || self.cut_up().is_some();
        is_of_kind && is_whole && has_sizes && is_known
    }

    /// The length field of the UDP header at `start` says that the datagram ends with the frame.
    fn datagram_ends_here(&self, start: u16) -> bool {
        let datagram = self.bytes().get(usize::from(start)..).unwrap_or_default();
        let says = |&[_, _, _, _, l0, l1]: &[u8; 6]| usize::from(u16::from_be_bytes([l0, l1]));
        datagram.first_chunk().map(says) == Some(datagram.len())
    }

    /// The segments of a super-packet, `None` if it is none or can not be cut up.
    pub fn cut_up(&self) -> Option<Segments<'_>> {
        let segmentation = self.offload.segmentation?;
        if !segmentation.is_tcp() && !segmentation.is_udp() {
            return None;
        }
        let (transport_offset, partial_checksum) = match self.offload.checksum {
            Checksum::Partial { start, .. } => (start, true),
            _ => (dissect(self.bytes()).ok()?.network?.transport_offset, false),
        };
        let segment_size = segmentation.segment_size;
        let packet = SuperPacket { transport_offset, segment_size, partial_checksum };
        Segments::new(self.bytes(), &packet)
    }

    /// How many packets the frame stands for on a wire: 1, or the number of
    /// segments of a super-packet.
    pub fn segments(&self) -> u32 {
        match self.offload.segmentation {
            Some(Segmentation { segment_size, header_length, .. }) if segment_size > 0 => {
                let payload = self.length.saturating_sub(u32::from(header_length));
                payload.div_ceil(u32::from(segment_size)).max(1)
            }
            _ => 1,
        }
    }
}

/// Length of all headers of a super-packet of this kind whose transport begins at `start`.
pub(crate) fn headers(frame: &[u8], kind: u8, start: u16) -> Option<u16> {
    const UDP_HEADER: u16 = 8;
    let transport = match kind & !GSO_ECN {
        GSO_TCP4 | GSO_TCP6 => u16::from(frame.get(usize::from(start) + 12)? >> 4) * 4,
        GSO_UDP => UDP_HEADER,
        _ => return None,
    };
    start.checked_add(transport)
}
