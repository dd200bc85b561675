//! The fields of a segment that the tracker uses.

use wire::tcp_option::{TcpOption, TcpOptions, kind, of_segment};
use wire::{Network, TcpFlags, TcpInfo};

use super::{FlagClass, Invalid, Seq};

/// Largest shift of a window (RFC 7323 section 2.3).
pub(super) const MAX_SCALE: u8 = 14;

/// A TCP segment with a legal set of control bits.
///
/// Options are read only when a rule needs them; for an ordinary data segment that is at most
/// the search for a SACK option.
#[derive(Clone, Copy, Debug)]
pub struct Segment<'a> {
    pub(super) class: FlagClass,
    pub(super) has_ack: bool,
    pub(super) sequence: Seq,
    /// One past the last sequence number that the segment uses: SYN and FIN count one.
    pub(super) end: Seq,
    /// As in the header, also without ACK.
    pub(super) acknowledgment: Seq,
    /// As in the header, unscaled.
    pub(super) window: u16,
    pub(super) options: &'a [u8],
}

/// The options that a SYN offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct SynOptions {
    /// Shift of the windows that the sender will announce, at most 14; `None`
    /// without the option (RFC 7323 section 2.2).
    pub scale: Option<u8>,
    /// True if the sender understands SACK (RFC 2018 section 2).
    pub sack_permitted: bool,
}

impl<'a> Segment<'a> {
    /// NOP, NOP, timestamp: the options of almost every segment (RFC 7323 appendix A).
    const TIMESTAMP_ONLY: [u8; 4] = [1, 1, 8, 10];

    /// Reads a segment. `tcp` is the transport of `network`, and `network` describes `frame`. A
    /// super-packet that the stack will split later (GSO) is one segment with a long payload.
    ///
    /// # Errors
    /// [`Invalid::Flags`] for a set of control bits that no TCP sends.
    #[inline(always)]
    pub fn parse(tcp: &TcpInfo, network: &Network, frame: &'a [u8]) -> Result<Self, Invalid> {
        let class = FlagClass::of(tcp.flags).ok_or(Invalid::Flags { flags: tcp.flags })?;
        let payload = network.transport_len().saturating_sub(u32::from(tcp.header_len));
        let sequence = Seq(tcp.sequence);
        let counted = u32::from(class.is_syn()) + u32::from(class == FlagClass::Fin);
        Ok(Self {
            class,
            has_ack: tcp.flags.contains(TcpFlags::ACK),
            sequence,
            end: sequence.plus(payload).plus(counted),
            acknowledgment: Seq(tcp.acknowledgment),
            window: tcp.window,
            options: of_segment(frame, network, tcp),
        })
    }

    /// The class of the control bits.
    pub const fn class(&self) -> FlagClass {
        self.class
    }

    /// The options of a SYN that the tracker uses.
    pub fn syn_options(&self) -> SynOptions {
        let mut found = SynOptions::default();
        for TcpOption { kind, body, .. } in TcpOptions::new(self.options) {
            match (kind, body) {
                (kind::WINDOW_SCALE, &[shift]) => found.scale = Some(shift.min(MAX_SCALE)),
                (kind::SACK_PERMITTED, &[]) => found.sack_permitted = true,
                _ => {}
            }
        }
        found
    }

    /// The acknowledgment number, or the highest right edge of a SACK block if
    /// that is higher.
    #[inline]
    pub fn highest_ack(&self) -> Seq {
        if self.options.is_empty()
            || (self.options.len() == 12 && self.options.starts_with(&Self::TIMESTAMP_ONLY))
        {
            return self.acknowledgment;
        }
        TcpOptions::new(self.options)
            .find(|TcpOption { kind, body, .. }| {
                *kind == kind::SACK && !body.is_empty() && body.len().is_multiple_of(8)
            })
            .map_or(self.acknowledgment, |option| {
                let (blocks, _) = option.body.as_chunks::<8>();
                blocks
                    .iter()
                    .map(|&[_, _, _, _, a, b, c, d]| Seq(u32::from_be_bytes([a, b, c, d])))
                    .fold(self.acknowledgment, Seq::max)
            })
    }
}

#[cfg(test)]
#[path = "segment_tests.rs"]
mod tests;
