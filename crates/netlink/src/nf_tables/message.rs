//! Messages of nf_tables and of connection tracking: a header, and attributes that may hold others (netlink(7)).

use netlink_packet_core::{NLM_F_ACK, NLM_F_DUMP, NLM_F_REQUEST};

/// Headers of netlink and of netfilter, in bytes.
const HEADER: usize = 20;
/// Header of an attribute, in bytes.
const ATTRIBUTE: usize = 4;
/// Flag of an attribute that holds others.
const NESTED: u16 = 1 << 15;
/// The part of netfilter that nf_tables is.
pub const NF_TABLES: u16 = 10;
/// The message that asks connection tracking for a connection.
const GET_CONNECTION: u16 = 1 << 8 | 1;
/// Messages that enclose a transaction.
const BEGIN: u16 = 16;
const END: u16 = 17;
/// Address families (linux/netfilter.h).
const UNSPECIFIED: u8 = 0;
const INET: u8 = 1;

/// A message to nf_tables.
pub struct Message(Vec<u8>);

impl Message {
    /// A message of this kind about an object of family `inet`.
    pub fn new(kind: u16, flags: u16) -> Self {
        Self::with(NF_TABLES << 8 | kind, flags, INET, 0)
    }

    /// Asks for everything of this kind, of all families.
    pub fn asking_for_all(kind: u16) -> Self {
        Self::with(NF_TABLES << 8 | kind, NLM_F_DUMP, UNSPECIFIED, 0)
    }

    /// Asks for the one thing of this kind that there is.
    pub fn asking_for(kind: u16) -> Self {
        Self::with(NF_TABLES << 8 | kind, 0, UNSPECIFIED, 0)
    }

    /// Asks connection tracking for a connection of this address family.
    pub fn asking_for_connection(family: u8) -> Self {
        Self::with(GET_CONNECTION, 0, family, 0)
    }

    /// The message that begins a transaction.
    pub fn begin() -> Self {
        Self::with(BEGIN, 0, UNSPECIFIED, NF_TABLES)
    }

    /// The message that ends a transaction.
    pub fn end() -> Self {
        Self::with(END, 0, UNSPECIFIED, NF_TABLES)
    }

    fn with(kind: u16, flags: u16, family: u8, resource: u16) -> Self {
        let mut bytes = vec![0; HEADER];
        bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
        bytes[6..8].copy_from_slice(&(NLM_F_REQUEST | flags).to_ne_bytes());
        bytes[16] = family;
        bytes[18..20].copy_from_slice(&resource.to_be_bytes());
        Self(bytes)
    }

    /// Makes the kernel answer success too.
    pub fn ask_for_answer(&mut self) {
        let flags = u16::from_ne_bytes([self.0[6], self.0[7]]) | NLM_F_ACK;
        self.0[6..8].copy_from_slice(&flags.to_ne_bytes());
    }

    /// Length, in bytes.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Appends the message to `to`, under this number.
    pub fn write(&self, sequence: u32, to: &mut Vec<u8>) {
        // Attributes are padded to a multiple of four. No message is near 4 GiB.
        let length = self.0.len() as u32;
        to.extend_from_slice(&length.to_ne_bytes());
        to.extend_from_slice(&self.0[4..8]);
        to.extend_from_slice(&sequence.to_ne_bytes());
        to.extend_from_slice(&self.0[12..]);
    }

    /// Adds an attribute of bytes.
    pub fn bytes(&mut self, kind: u16, value: &[u8]) {
        self.attribute(kind, |message| message.0.extend_from_slice(value));
    }

    /// Adds an attribute with a number, most significant byte first.
    pub fn number(&mut self, kind: u16, value: u32) {
        self.bytes(kind, &value.to_be_bytes());
    }

    /// Adds an attribute with a text, which ends with a zero.
    pub fn text(&mut self, kind: u16, value: &str) {
        self.attribute(kind, |message| {
            message.0.extend_from_slice(value.as_bytes());
            message.0.push(0);
        });
    }

    /// Adds an attribute that holds others.
    pub fn nest(&mut self, kind: u16, fill: impl FnOnce(&mut Self)) {
        self.attribute(kind | NESTED, fill);
    }

    fn attribute(&mut self, kind: u16, fill: impl FnOnce(&mut Self)) {
        let begin = self.0.len();
        self.0.resize(begin + ATTRIBUTE, 0);
        fill(self);
        // Attributes of rules and sets are far shorter than 64 KiB.
        let length = (self.0.len() - begin) as u16;
        self.0[begin..begin + 2].copy_from_slice(&length.to_ne_bytes());
        self.0[begin + 2..begin + 4].copy_from_slice(&kind.to_ne_bytes());
        self.0.resize(self.0.len().next_multiple_of(4), 0);
    }
}
