//! The program by which the kernel chooses the socket of a packet.
//!
//! The sockets of a device with lanes are a fan-out group (packet(7), `PACKET_FANOUT_CBPF`): the
//! kernel runs the program once for each packet and gives the packet to one socket. So none is lost or
//! doubled between two sockets. The first sockets are those of bulk, and the last is that of latency. A
//! program that can not read what it wants, because the packet is cut short, ends with 0.
//!
//! The offsets of a program count from the network header, with or without a link header in front.

use std::net::IpAddr;

use wire::{Dissected, protocol};

use crate::selectors::WITH_PORTS;
use crate::{Selector, Selectors, Service};

/// Loads and stores, in the words of bpf(4).
mod op {
    pub(super) const LD_WORD: u16 = 0x20;
    pub(super) const LD_HALF: u16 = 0x28;
    pub(super) const LD_BYTE: u16 = 0x30;
    pub(super) const LD_HALF_AT_X: u16 = 0x48;
    pub(super) const LD_BYTE_AT_X: u16 = 0x50;
    pub(super) const LD_WORD_AT_X: u16 = 0x40;
    pub(super) const LD_IMMEDIATE: u16 = 0x00;
    pub(super) const LD_MEMORY: u16 = 0x60;
    pub(super) const LDX_IMMEDIATE: u16 = 0x01;
    pub(super) const LDX_MEMORY: u16 = 0x61;
    /// Four times the low half of a byte: the length of an IPv4 header.
    pub(super) const LDX_HEADER: u16 = 0xb1;
    pub(super) const STORE: u16 = 0x02;
    pub(super) const ADD: u16 = 0x04;
    pub(super) const ADD_X: u16 = 0x0c;
    pub(super) const MULTIPLY: u16 = 0x24;
    pub(super) const AND: u16 = 0x54;
    pub(super) const SHIFT_LEFT: u16 = 0x64;
    pub(super) const SHIFT_RIGHT: u16 = 0x74;
    pub(super) const MODULO: u16 = 0x94;
    pub(super) const XOR_X: u16 = 0xac;
    pub(super) const JUMP: u16 = 0x05;
    pub(super) const IF_EQUAL: u16 = 0x15;
    pub(super) const IF_GREATER: u16 = 0x25;
    pub(super) const IF_AT_LEAST: u16 = 0x35;
    pub(super) const IF_ANY_BIT: u16 = 0x45;
    pub(super) const RETURN: u16 = 0x06;
    pub(super) const RETURN_A: u16 = 0x16;
    pub(super) const TO_X: u16 = 0x07;
}

/// Where the kernel gives out the protocol of the packet (`SKF_AD_OFF + SKF_AD_PROTOCOL`).
const LINK_PROTOCOL: u32 = (libc::SKF_AD_OFF + libc::SKF_AD_PROTOCOL).cast_unsigned();
/// Memory of the program: protocol, ports (source in the upper half), and 1 if it has ports.
const PROTOCOL: u32 = 0;
const PORTS: u32 = 1;
const HAS_PORTS: u32 = 2;
/// An offset that is kept for a moment.
const OFFSET: u32 = 3;
/// A golden ratio of 32 bits: spreads what differs in low bits over the high ones.
const SPREAD: u32 = 0x9e37_79b1;

/// Where the addresses are in a header, in bytes, and how many words each has.
#[derive(Clone, Copy)]
struct Family {
    is_v4: bool,
    source: u32,
    destination: u32,
    address_words: u32,
}

const V4: Family = Family { is_v4: true, source: 12, destination: 16, address_words: 1 };
const V6: Family = Family { is_v4: false, source: 8, destination: 24, address_words: 4 };
/// Length of an IPv6 header, in bytes.
const V6_HEADER: u32 = 40;

/// A place in the program that jumps lead to.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Label(usize);

/// The way of a jump: on to the next instruction, or to a label behind it.
#[derive(Clone, Copy)]
enum To {
    Next,
    Label(Label),
}

/// A program in the making.
#[derive(Default)]
struct Assembler {
    code: Vec<libc::sock_filter>,
    /// The places of labels, once they are known.
    labels: Vec<Option<usize>>,
    jumps: Vec<(usize, [To; 2])>,
}

impl Assembler {
    fn label(&mut self) -> Label {
        self.labels.push(None);
        Label(self.labels.len() - 1)
    }

    fn place(&mut self, label: Label) {
        self.labels[label.0] = Some(self.code.len());
    }

    fn put(&mut self, code: u16, k: u32) {
        self.code.push(libc::sock_filter { code, jt: 0, jf: 0, k });
    }

    fn jump_if(&mut self, code: u16, k: u32, ways: [To; 2]) {
        self.jumps.push((self.code.len(), ways));
        self.put(code, k);
    }

    fn jump(&mut self, to: Label) {
        self.jump_if(op::JUMP, 0, [To::Label(to), To::Next]);
    }

    fn finish(mut self) -> Vec<libc::sock_filter> {
        for (from, ways) in self.jumps {
            let distance = |to| match to {
                To::Next => 0,
                // Every label is placed behind all jumps to it.
                To::Label(Label(at)) => self.labels[at].map_or(0, |at| at - from - 1),
            };
            let [yes, no] = ways.map(distance);
            let jump = &mut self.code[from];
            if jump.code == op::JUMP {
                jump.k = yes as u32;
            } else {
                debug_assert!(yes.max(no) <= usize::from(u8::MAX), "a block is shorter than that");
                (jump.jt, jump.jf) = (yes as u8, no as u8);
            }
        }
        self.code
    }
}

/// The program for `bulk_queues` sockets of bulk and one of latency behind them.
pub(super) fn program(selectors: &Selectors, bulk_queues: u16) -> Vec<libc::sock_filter> {
    let mut to = Assembler::default();
    let [not_v4, other] = [to.label(), to.label()];
    to.put(op::LD_WORD, LINK_PROTOCOL);
    let v4 = to.label();
    to.jump_if(op::IF_EQUAL, libc::ETH_P_IP as u32, [To::Label(v4), To::Next]);
    to.jump(not_v4);
    to.place(v4);
    read_v4(&mut to);
    judge(&mut to, selectors, V4, bulk_queues);
    to.place(not_v4);
    let v6 = to.label();
    to.jump_if(op::IF_EQUAL, libc::ETH_P_IPV6 as u32, [To::Label(v6), To::Next]);
    to.jump(other);
    to.place(v6);
    read_v6(&mut to);
    judge(&mut to, selectors, V6, bulk_queues);
    to.place(other);
    to.put(op::RETURN, 0);
    to.finish()
}

/// Reads protocol and ports. Fragments have none, because only the first could tell.
fn read_v4(to: &mut Assembler) {
    const FRAGMENT_FIELD: u32 = 6;
    const PROTOCOL_FIELD: u32 = 9;
    /// More fragments, and the offset.
    const IS_FRAGMENT: u32 = 0x3fff;
    let done = to.label();
    forget_ports(to);
    to.put(op::LD_BYTE, PROTOCOL_FIELD);
    to.put(op::STORE, PROTOCOL);
    to.put(op::LD_HALF, FRAGMENT_FIELD);
    to.jump_if(op::IF_ANY_BIT, IS_FRAGMENT, [To::Label(done), To::Next]);
    to.put(op::LDX_HEADER, 0);
    read_ports(to, done);
    to.place(done);
}

/// The same behind extension headers, as many as a packet may have.
fn read_v6(to: &mut Assembler) {
    const PROTOCOL_FIELD: u32 = 6;
    /// More fragments, and the offset.
    const IS_FRAGMENT: u32 = 0xfff9;
    let [done, transport] = [to.label(), to.label()];
    forget_ports(to);
    to.put(op::LDX_IMMEDIATE, V6_HEADER);
    to.put(op::LD_BYTE, PROTOCOL_FIELD);
    to.put(op::STORE, PROTOCOL);
    for _ in 0..Dissected::MAX_EXTENSION_HEADERS {
        let [header, fragment, ended] = [(); 3].map(|()| to.label());
        for number in [protocol::HOP_BY_HOP, protocol::ROUTING, protocol::DESTINATION_OPTIONS] {
            to.jump_if(op::IF_EQUAL, number.into(), [To::Label(header), To::Next]);
        }
        to.jump_if(op::IF_EQUAL, protocol::FRAGMENT.into(), [To::Label(fragment), To::Next]);
        to.jump(transport);
        to.place(fragment);
        to.put(op::LD_HALF_AT_X, 2);
        to.jump_if(op::IF_ANY_BIT, IS_FRAGMENT, [To::Label(ended), To::Next]);
        to.put(op::LD_IMMEDIATE, 0);
        let length = to.label();
        to.jump(length);
        to.place(ended);
        to.put(op::LD_BYTE_AT_X, 0);
        to.put(op::STORE, PROTOCOL);
        to.jump(done);
        to.place(header);
        to.put(op::LD_BYTE_AT_X, 1);
        to.place(length);
        // The length is in units of 8 bytes, without the first one.
        to.put(op::ADD, 1);
        to.put(op::SHIFT_LEFT, 3);
        to.put(op::ADD_X, 0);
        to.put(op::STORE, OFFSET);
        to.put(op::LD_BYTE_AT_X, 0);
        to.put(op::STORE, PROTOCOL);
        to.put(op::LDX_MEMORY, OFFSET);
    }
    to.place(transport);
    read_ports(to, done);
    to.place(done);
}

/// The kernel refuses a program that may read memory to which it has not written.
fn forget_ports(to: &mut Assembler) {
    to.put(op::LD_IMMEDIATE, 0);
    to.put(op::STORE, HAS_PORTS);
    to.put(op::STORE, PORTS);
}

/// Reads the ports at X, if the protocol has any.
fn read_ports(to: &mut Assembler, done: Label) {
    let found = to.label();
    to.put(op::LD_MEMORY, PROTOCOL);
    for number in WITH_PORTS {
        to.jump_if(op::IF_EQUAL, number.into(), [To::Label(found), To::Next]);
    }
    to.jump(done);
    to.place(found);
    to.put(op::LD_WORD_AT_X, 0);
    to.put(op::STORE, PORTS);
    to.put(op::LD_IMMEDIATE, 1);
    to.put(op::STORE, HAS_PORTS);
}

/// Returns the socket by the first selector that the packet meets.
fn judge(to: &mut Assembler, selectors: &Selectors, family: Family, bulk_queues: u16) {
    let bulk = to.label();
    let is_possible =
        |it: &&Selector| it.prefix().is_none_or(|(it, _)| it.is_ipv4() == family.is_v4);
    for selector in selectors.iter().filter(is_possible) {
        let next = to.label();
        if let Some(protocol) = selector.protocol() {
            to.put(op::LD_MEMORY, PROTOCOL);
            to.jump_if(op::IF_EQUAL, protocol.into(), [To::Next, To::Label(next)]);
        }
        if let Some(ports) = selector.ports() {
            let [destination, met] = [to.label(), to.label()];
            let (first, last) = (u32::from(*ports.start()), u32::from(*ports.end()));
            to.put(op::LD_MEMORY, HAS_PORTS);
            to.jump_if(op::IF_EQUAL, 1, [To::Next, To::Label(next)]);
            to.put(op::LD_MEMORY, PORTS);
            to.put(op::SHIFT_RIGHT, 16);
            to.jump_if(op::IF_AT_LEAST, first, [To::Next, To::Label(destination)]);
            to.jump_if(op::IF_GREATER, last, [To::Next, To::Label(met)]);
            to.place(destination);
            to.put(op::LD_MEMORY, PORTS);
            to.put(op::AND, 0xffff);
            to.jump_if(op::IF_AT_LEAST, first, [To::Next, To::Label(next)]);
            to.jump_if(op::IF_GREATER, last, [To::Label(next), To::Next]);
            to.place(met);
        }
        if let Some((address, length)) = selector.prefix() {
            let [destination, met] = [to.label(), to.label()];
            compare(to, family.source, address, length, destination);
            to.jump(met);
            to.place(destination);
            compare(to, family.destination, address, length, next);
            to.place(met);
        }
        match selector.service() {
            Service::Latency => to.put(op::RETURN, bulk_queues.into()),
            Service::Bulk => to.jump(bulk),
        }
        to.place(next);
    }
    to.place(bulk);
    divide(to, family, bulk_queues);
}

/// Goes on if the address at this offset begins like the other one.
fn compare(to: &mut Assembler, offset: u32, address: IpAddr, length: u8, otherwise: Label) {
    let (bits, words) = match address {
        IpAddr::V4(address) => (u128::from(address.to_bits()) << 96, 1),
        IpAddr::V6(address) => (address.to_bits(), 4),
    };
    for word in 0..words {
        let left = u32::from(length).saturating_sub(32 * word).min(32);
        if left == 0 {
            break;
        }
        let mask = u32::MAX << (32 - left);
        let wanted = (bits >> (96 - 32 * word)) as u32 & mask;
        to.put(op::LD_WORD, offset + 4 * word);
        to.put(op::AND, mask);
        to.jump_if(op::IF_EQUAL, wanted, [To::Next, To::Label(otherwise)]);
    }
}

/// Returns one of the sockets of bulk, the same for both directions of a flow.
fn divide(to: &mut Assembler, family: Family, bulk_queues: u16) {
    if bulk_queues <= 1 {
        return to.put(op::RETURN, 0);
    }
    to.put(op::LD_WORD, family.source);
    for word in 1..2 * family.address_words {
        // Source and destination are side by side.
        to.put(op::TO_X, 0);
        to.put(op::LD_WORD, family.source + 4 * word);
        to.put(op::XOR_X, 0);
    }
    let whole = to.label();
    to.put(op::STORE, OFFSET);
    to.put(op::LD_MEMORY, HAS_PORTS);
    to.jump_if(op::IF_EQUAL, 0, [To::Label(whole), To::Next]);
    for half in [16, 0] {
        to.put(op::LDX_MEMORY, OFFSET);
        to.put(op::LD_MEMORY, PORTS);
        to.put(op::SHIFT_RIGHT, half);
        to.put(op::AND, 0xffff);
        to.put(op::XOR_X, 0);
        to.put(op::STORE, OFFSET);
    }
    to.place(whole);
    to.put(op::LD_MEMORY, OFFSET);
    to.put(op::MULTIPLY, SPREAD);
    to.put(op::SHIFT_RIGHT, 16);
    to.put(op::MODULO, bulk_queues.into());
    to.put(op::RETURN_A, 0);
}

#[cfg(test)]
#[path = "lane_program_tests.rs"]
mod tests;
