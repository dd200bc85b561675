//! Connections as values that mean the same at another gateway.
//!
//! A table makes a [`ConnectionRecord`] of a connection ([`Table::record_of`](crate::Table)), and
//! another table makes the connection of it again. So it has no slots, no numbers of interfaces, no
//! hashes and no points in time: only keys, names, and spans of time. A record that exists is
//! possible: only the table, [`ConnectionRecord::decode`] and [`ConnectionRecord::of_outline`] make one,
//! and the last two refuse what no table would make.

mod announcement;
mod announcement_validity;
mod encoding;
mod file;
mod outline;
mod validity;

use std::net::IpAddr;

use flow::{FlowKey, KeyedPacket, ZonePair};

use crate::connection::ip_address;
use crate::helper::RecordedHelper;
use crate::proto::RecordedState;
use crate::seqadj::Shift;
use crate::syn_proxy::Proxied;
use crate::{Counts, InterfaceName, Labels, TimeoutPolicy};
use flow::codec::Millis;

pub use self::announcement::{decode_flow, encode_flow};
pub use self::file::{
    Batch, LONGEST_RECORD, RecordFileError, RecordFileReader, RecordFileWriter, end_of_export,
    push_to_batch, whole_records,
};
pub use self::outline::{Outline, OutlineState, Untold};

/// A connection, as another gateway can take it over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectionRecord {
    /// Key and sender of the originator's packets.
    pub(crate) original: KeyedPacket,
    /// Its translation.
    pub(crate) translation: Option<RecordedTranslation>,
    pub(crate) state: RecordedState,
    pub(crate) facts: Facts,
    /// The time until it ends unless a packet comes.
    pub(crate) left: Millis,
    pub(crate) mark: u32,
    pub(crate) labels: Labels,
    pub(crate) policy: Option<TimeoutPolicy>,
    pub(crate) helper: Option<RecordedHelper>,
    pub(crate) shifts: Option<[Shift; 2]>,
    pub(crate) proxied: Option<Box<Proxied>>,
    pub(crate) counts: Option<[Counts; 2]>,
    /// The time since it was opened, if it keeps that.
    pub(crate) age: Option<Millis>,
    /// It says nothing of marks, labels, helpers, own timeouts and what packets are changed by,
    /// because a gateway of another make has told of it.
    pub(crate) is_outline: bool,
}

/// The facts about a connection that are one bit each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Facts {
    pub seen_reply: bool,
    pub assured: bool,
    /// Another connection has announced it.
    pub expected: bool,
    /// It is a call of GRE version 1 that another connection has announced.
    pub call: bool,
}

/// How the packets of a connection change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RecordedTranslation {
    /// Key and sender of the originator's packets as they leave.
    pub leaves_as: KeyedPacket,
    /// The interface whose address it uses, for a masquerade.
    pub interface: Option<InterfaceName>,
    /// Its port counts in the share of its source.
    pub is_counted: bool,
}

impl ConnectionRecord {
    /// A record of a connection that has only what each one has.
    fn bare(original: KeyedPacket, (state, facts): (RecordedState, Facts), left: Millis) -> Self {
        Self {
            original,
            translation: None,
            state,
            facts,
            left,
            mark: 0,
            labels: Labels::NONE,
            policy: None,
            helper: None,
            shifts: None,
            proxied: None,
            counts: None,
            age: None,
            is_outline: false,
        }
    }

    /// Key and sender of the originator's packets.
    pub const fn original(&self) -> KeyedPacket {
        self.original
    }

    /// Key and sender of the replies.
    pub fn reply(&self) -> KeyedPacket {
        let leaves = self.translation.as_ref().map_or(self.original, |it| it.leaves_as);
        KeyedPacket { sender: leaves.sender.opposite(), ..leaves }
    }

    /// The key by which its bucket is chosen.
    pub const fn key(&self) -> &FlowKey {
        &self.original.key
    }

    /// The zones of both directions.
    pub fn zones(&self) -> ZonePair {
        ZonePair { original: self.original.key.zone, reply: self.reply().key.zone }
    }

    /// The interface whose address it uses, if it is masqueraded.
    pub fn interface(&self) -> Option<&InterfaceName> {
        self.translation.as_ref()?.interface.as_ref()
    }

    /// The address from which its packets leave.
    pub(crate) fn leaves_from(&self) -> IpAddr {
        let KeyedPacket { key, sender } = self.reply();
        ip_address(key.endpoint(sender.opposite()).address, key.family)
    }

    /// Adds a record of another part of the same [tunnel](FlowKey::is_tunnel): one record stands
    /// for all parts of it that buckets have.
    pub fn join(&mut self, other: &Self) {
        self.left = self.left.max(other.left);
        self.age = self.age.max(other.age);
        self.facts.seen_reply |= other.facts.seen_reply;
        self.facts.assured |= other.facts.assured;
        if let (Some(counts), Some(more)) = (&mut self.counts, other.counts) {
            for (own, Counts { packets, bytes }) in counts.iter_mut().zip(more) {
                own.packets = own.packets.saturating_add(packets);
                own.bytes = own.bytes.saturating_add(bytes);
            }
        }
    }

    /// True if replies have another way to find it than by their key: tunnels, and calls that
    /// nobody has announced.
    pub const fn needs_no_alias(&self) -> bool {
        let key = &self.original.key;
        key.is_tunnel() || key.is_call() && !self.facts.call
    }
}

/// Why a record did not become a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ImportRefusal {
    /// The connection is there already.
    Known,
    /// Packets of one of its directions belong to another connection.
    Clash,
    /// The gateway has no such interface.
    Interface,
    /// The interface no longer has the address that the connection borrows.
    Address,
    /// The gateway has no such zone.
    Zone,
    /// The table is full.
    TableFull,
    /// The zone has as many connections as it may have.
    ZoneFull,
    /// The source has as many half-open connections as it may have.
    SourceFull,
    /// The two hosts have as many calls as they may have.
    CallsFull,
    /// The index has no place for it.
    Index,
    /// A packet has just opened a connection in its place, and is still being judged.
    Opening,
    /// An announcement of a connection that is not there, or does not have this helper.
    Master,
    /// There are as many announcements as there may be.
    AnnouncementsFull,
}

impl ImportRefusal {
    /// All reasons.
    pub const ALL: [Self; 13] = [
        Self::Known,
        Self::Clash,
        Self::Interface,
        Self::Address,
        Self::Zone,
        Self::TableFull,
        Self::ZoneFull,
        Self::SourceFull,
        Self::CallsFull,
        Self::Index,
        Self::Opening,
        Self::Master,
        Self::AnnouncementsFull,
    ];

    /// The name for programs.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Known => "known",
            Self::Clash => "clash",
            Self::Interface => "interface_unknown",
            Self::Address => "address_gone",
            Self::Zone => "zone_unknown",
            Self::TableFull => "table_full",
            Self::ZoneFull => "zone_full",
            Self::SourceFull => "source_full",
            Self::CallsFull => "calls_full",
            Self::Index => "index_full",
            Self::Opening => "being_opened",
            Self::Master => "no_such_connection",
            Self::AnnouncementsFull => "announcements_full",
        }
    }

    /// The reason in words.
    pub const fn text(self) -> &'static str {
        match self {
            Self::Known => "the gateway has it already",
            Self::Clash => "packets of one direction belong to another connection",
            Self::Interface => "the gateway has no interface of this name",
            Self::Address => "the interface no longer has the address that it is masqueraded with",
            Self::Zone => "the gateway has no zone of this number",
            Self::TableFull => "the table is full (nf_conntrack_max)",
            Self::ZoneFull => "the limit of the zone is reached",
            Self::SourceFull => "the limit of half-open connections of the source is reached",
            Self::CallsFull => "the two hosts have as many calls as they may have",
            Self::Index => "the index has no place",
            Self::Opening => "a packet opens another connection in its place",
            Self::Master => "the connection that has announced it is not there",
            Self::AnnouncementsFull => "as much is announced as may be (nf_conntrack_expect_max)",
        }
    }
}

impl std::fmt::Display for ImportRefusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.text())
    }
}

impl std::error::Error for ImportRefusal {}

#[cfg(test)]
#[path = "record_tests.rs"]
mod tests;
