//! The part of conversations that H.323 adds: messages of calls, and connections whose ports they
//! may have announced.

use std::net::IpAddr;

use wire::TcpFlags;

use super::conversation::Talk;
use crate::scenario::trackers::dialogue::{Server, Side};

/// The address of the sender in the recorded messages.
const V4: [u8; 4] = [192, 0, 2, 1];
const V6: [u8; 16] = [0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
/// A payload too short for a message.
pub const SOUND: &[u8] = b"\x80\0sound";

/// A connection whose port may have been announced.
pub struct Connection {
    /// By [`Side`].
    ports: [u16; 2],
    next: [u32; 2],
}

impl Connection {
    pub fn open(talk: &mut Talk, opener: Side, port: u16) -> Self {
        let mut ports = [50000, port];
        if opener == Server {
            ports.reverse();
        }
        let mut it = Self { ports, next: [0, 0] };
        it.segment(talk, opener, TcpFlags::SYN, b"");
        it.next[opener as usize] = 1;
        it.segment(talk, opener.other(), TcpFlags::SYN.with(TcpFlags::ACK), b"");
        it.next = [1, 1];
        it.segment(talk, opener, TcpFlags::ACK, b"");
        it
    }

    pub fn say(&mut self, talk: &mut Talk, from: Side, payload: &[u8]) {
        self.segment(talk, from, TcpFlags::ACK, payload);
    }

    fn segment(&mut self, talk: &mut Talk, from: Side, flags: TcpFlags, payload: &[u8]) {
        let both = |numbers: [u16; 2]| (numbers[from as usize], numbers[from.other() as usize]);
        let numbers = (self.next[from as usize], self.next[from.other() as usize]);
        talk.segment(from, both(self.ports), flags, numbers, payload);
        self.next[from as usize] += payload.len() as u32;
    }
}

/// One of the messages, with ports and the address of its sender, rarely with the address of the
/// other end.
pub fn message(talk: &mut Talk, from: Side, messages: &[&str]) -> Vec<u8> {
    let whose = if talk.random.once_in(12) { from.other() } else { from };
    let new = octets(talk.ends.address(whose));
    let old = if new.len() == V4.len() { &V4[..] } else { &V6 };
    let mut message = framed(talk.random.one_of(messages));
    for at in 0..message.len().saturating_sub(old.len() + 1) {
        let end = at + old.len();
        if message[at..end] == *old {
            // RTP keeps an even port and RTCP an odd one.
            let port = talk.any_port() & !1 | u16::from(message[end + 1] & 1);
            let port = if talk.random.once_in(20) { 0 } else { port };
            message[at..end].copy_from_slice(&new);
            message[end..end + 2].copy_from_slice(&port.to_be_bytes());
        }
    }
    message
}

/// A message with its header on TCP.
pub fn framed(message: &str) -> Vec<u8> {
    let digits = message.as_bytes().chunks(2).map(|pair| std::str::from_utf8(pair).unwrap());
    let bytes = digits.map(|pair| u8::from_str_radix(pair, 16).unwrap());
    header(message.len() / 2 + 4).into_iter().chain(bytes).collect()
}

/// The header: the version, and the whole length.
pub fn header(length: usize) -> [u8; 4] {
    let [high, low] = (length as u16).to_be_bytes();
    [3, 0, high, low]
}

pub fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}
