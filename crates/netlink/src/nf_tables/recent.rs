//! Keys of packets that a table remembers for a while.

use netlink_packet_core::NLM_F_CREATE;

use super::message::Message;
use super::number;
use super::rule::Field;

/// A set of keys that rules add, each of which is forgotten after a time. A table without it can
/// not tell a packet that answers from one that nobody has asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecentKeys {
    /// Its name, which no other set of the table has.
    pub name: &'static str,
    /// The time for which a key is remembered, in seconds.
    pub seconds: u64,
    /// Most keys at a time. A packet whose key has no room is not remembered.
    pub most: u32,
    /// Bytes of the first part of a key, a multiple of 4, and of the second part, at most 4.
    pub lengths: (u8, u8),
}

/// The two fields that make the key of a packet. Both are bytes of the packet.
pub type KeyFields = (Field, Field);

impl RecentKeys {
    /// The message that makes the set. `id` is its number in the transaction.
    pub(super) fn message(&self, table: &str, id: u32) -> Message {
        let mut set = Message::new(number::message::NEW_SET, NLM_F_CREATE);
        set.text(number::set::TABLE, table);
        set.text(number::set::NAME, self.name);
        set.number(number::set::FLAGS, number::set::TIMEOUT | number::set::EVALUATED);
        set.number(number::set::KEY_TYPE, number::shown::INTEGER);
        set.number(number::set::KEY_LENGTH, self.key_length());
        set.number(number::set::ID, id);
        set.nest(number::set::DESCRIPTION, |description| {
            description.number(number::set::DESCRIPTION_SIZE, self.most);
        });
        set.bytes(number::set::EXPIRES, &(self.seconds * 1000).to_be_bytes());
        set
    }

    /// Bytes of a key. Each part fills registers of four bytes.
    fn key_length(&self) -> u32 {
        u32::from(self.lengths.0) + 4
    }
}

/// Reads the fields of a key into the first registers.
pub(super) fn read_key(rule: &mut Message, (first, second): KeyFields) {
    first.read(rule);
    second.read_to(rule, number::register::FIRST_WORD + first.length() as u32 / 4);
}
