//! The options of a TCP header (RFC 9293 section 3.1).

use crate::{Network, TcpInfo};

/// Option kinds (IANA "TCP Option Kind Numbers") that the gateway reads.
pub mod kind {
    /// End of the list.
    pub const END: u8 = 0;
    /// Padding between options.
    pub const NO_OPERATION: u8 = 1;
    /// Maximum segment size, RFC 9293 section 3.7.1.
    pub const MAX_SEGMENT_SIZE: u8 = 2;
    /// Window scale, RFC 7323 section 2.2.
    pub const WINDOW_SCALE: u8 = 3;
    /// SACK permitted, RFC 2018 section 2.
    pub const SACK_PERMITTED: u8 = 4;
    /// SACK blocks, RFC 2018 section 3.
    pub const SACK: u8 = 5;
    /// Timestamps, RFC 7323 section 3.2.
    pub const TIMESTAMPS: u8 = 8;
}

/// Most bytes of options in a header.
pub const MAX_OPTIONS: usize = 40;

/// The options of a segment. `tcp` is the transport of `network`, and `network` describes
/// `frame`.
pub fn of_segment<'a>(frame: &'a [u8], network: &Network, tcp: &TcpInfo) -> &'a [u8] {
    let header = usize::from(network.transport_offset);
    frame.get(header + 20..header + usize::from(tcp.header_len)).unwrap_or(&[])
}

/// An option that has a length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcpOption<'a> {
    /// Its kind.
    pub kind: u8,
    /// The bytes behind kind and length.
    pub body: &'a [u8],
    /// Offset of `body`, bytes from the first option.
    pub offset: usize,
}

/// Iterates over the options of a header; ends at the first that is cut short.
#[derive(Clone, Copy, Debug)]
pub struct TcpOptions<'a> {
    rest: &'a [u8],
    offset: usize,
}

impl<'a> TcpOptions<'a> {
    /// `options` are the bytes between the fixed header and the payload.
    pub const fn new(options: &'a [u8]) -> Self {
        Self { rest: options, offset: 0 }
    }
}

impl<'a> Iterator for TcpOptions<'a> {
    type Item = TcpOption<'a>;

    fn next(&mut self) -> Option<TcpOption<'a>> {
        loop {
            match *self.rest {
                [kind::NO_OPERATION, ref rest @ ..] => {
                    self.rest = rest;
                    self.offset += 1;
                }
                [kind, length, ..] if kind != kind::END => {
                    let option = self.rest.split_at_checked(usize::from(length));
                    let (option, rest) = option.filter(|(option, _)| option.len() >= 2)?;
                    let found = TcpOption { kind, body: &option[2..], offset: self.offset + 2 };
                    self.rest = rest;
                    self.offset += option.len();
                    return Some(found);
                }
                _ => return None,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_found_where_they_lie() {
        let bytes = [2, 4, 5, 180, 1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2, 4, 2, 0, 3];
        let found: Vec<_> = TcpOptions::new(&bytes).map(|o| (o.kind, o.offset, o.body)).collect();
        assert_eq!(
            found,
            [(2, 2, &[5, 180][..]), (8, 8, &[0, 0, 0, 1, 0, 0, 0, 2]), (4, 18, &[]),]
        );
    }

    #[test]
    fn a_truncated_option_ends_the_list() {
        for bytes in [&[8, 10, 1][..], &[3], &[3, 1, 4, 2], &[3, 0, 4, 2], &[0, 4, 2]] {
            assert_eq!(TcpOptions::new(bytes).next(), None, "{bytes:?}");
        }
    }
}
