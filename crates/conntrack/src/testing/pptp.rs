//! Messages of PPTP (RFC 2637).

/// A message as RFC 2637 draws it: the width of each field behind the header in bytes, and its
/// value; `0` for fields that the helper does not read.
pub fn message(kind: u16, fields: &[(usize, u64)]) -> Vec<u8> {
    let length = 12 + fields.iter().map(|(width, _)| width).sum::<usize>();
    let header = [(2, length as u64), (2, 1), (4, 0x1A2B_3C4D), (2, u64::from(kind)), (2, 0)];
    let mut bytes = Vec::new();
    for &(width, value) in header.iter().chain(fields) {
        let value = value.to_be_bytes();
        bytes.extend(vec![0; width.saturating_sub(value.len())]);
        bytes.extend(&value[value.len().saturating_sub(width)..]);
    }
    bytes
}

/// The messages of an end, field by field.
#[derive(Clone, Copy, Debug)]
pub enum Says {
    /// Start-Control-Connection-Request, and the Reply with its result.
    Start,
    Started(u64),
    /// Stop-Control-Connection-Request and -Reply.
    Stop,
    Stopped(u64),
    /// Echo-Request.
    Echo,
    /// Outgoing-Call-Request: call id.
    Outgoing(u16),
    /// Outgoing-Call-Reply: call id, that of the peer, result.
    OutgoingReply(u16, u16, u64),
    /// Incoming-Call-Request: call id.
    Incoming(u16),
    /// Incoming-Call-Reply: call id, that of the peer, result.
    IncomingReply(u16, u16, u64),
    /// Incoming-Call-Connected: the peer's call id.
    Connected(u16),
    /// Call-Clear-Request: call id.
    Clear(u16),
    /// Call-Disconnect-Notify: call id.
    Disconnect(u16),
    /// WAN-Error-Notify and Set-Link-Info: the peer's call id.
    WanError(u16),
    LinkInfo(u16),
}

use Says::*;

impl Says {
    pub fn bytes(self) -> Vec<u8> {
        let host = [(2, 0), (64, u64::MAX), (64, 0)];
        match self {
            Start => {
                let capabilities = [(2, 0x100), (2, 0), (4, 3), (4, 3), (2, 0)];
                message(1, &[&capabilities[..], &host].concat())
            }
            Started(result) => {
                let capabilities = [(2, 0x100), (1, result), (1, 0), (4, 3), (4, 3), (2, 9)];
                message(2, &[&capabilities[..], &host].concat())
            }
            Stop => message(3, &[(1, 1), (1, 0), (2, 0)]),
            Stopped(result) => message(4, &[(1, result), (1, 0), (2, 0)]),
            Echo => message(5, &[(4, 77)]),
            Outgoing(id) => {
                let speeds = [(2, id.into()), (2, 1), (4, 300), (4, 100_000_000), (4, 3), (4, 3)];
                let rest = [(2, 64), (2, 0), (2, 0), (2, 0), (64, 0), (64, 0)];
                message(7, &[speeds, rest].concat())
            }
            OutgoingReply(id, peer, result) => {
                let result = [(2, id.into()), (2, peer.into()), (1, result), (1, 0), (2, 0)];
                message(8, &[&result[..], &[(4, 64000), (2, 64), (2, 0), (4, 0)]].concat())
            }
            Incoming(id) => {
                let numbers = [(4, 3), (4, 0), (2, 0), (2, 0), (64, 0), (64, 0), (64, 0)];
                message(9, &[&[(2, id.into()), (2, 1)][..], &numbers].concat())
            }
            IncomingReply(id, peer, result) => {
                let result = [(2, id.into()), (2, peer.into()), (1, result), (1, 0)];
                message(10, &[&result[..], &[(2, 64), (2, 0), (2, 0)]].concat())
            }
            Connected(peer) => {
                message(11, &[(2, peer.into()), (2, 0), (4, 64000), (2, 64), (2, 0), (4, 1)])
            }
            Clear(id) => message(12, &[(2, id.into()), (2, 0)]),
            Disconnect(id) => {
                message(13, &[(2, id.into()), (1, 4), (1, 0), (2, 0), (2, 0), (128, 0)])
            }
            WanError(peer) => {
                let errors = [(4, 0), (4, 0), (4, 0), (4, 0), (4, 0), (4, 0)];
                message(14, &[&[(2, peer.into()), (2, 0)][..], &errors].concat())
            }
            LinkInfo(peer) => message(15, &[(2, peer.into()), (2, 0), (4, 0), (4, 0)]),
        }
    }
}
