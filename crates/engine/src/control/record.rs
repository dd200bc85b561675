//! All that another gateway can take over, as one type.

use conntrack::{AnnouncementRecord, ConnectionRecord, DecodeError, ImportRefusal};
use ruleset::{ElementRecord, ElementRefusal};

/// A piece of the state of a gateway, as another one can take it over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// A connection.
    Connection(Box<ConnectionRecord>),
    /// Something that connections have announced. The connections come first.
    Announcement(AnnouncementRecord),
    /// An element that a set of the rules holds.
    Element(ElementRecord),
}

impl Record {
    /// Appends the bytes of the record.
    pub fn encode(&self, to: &mut Vec<u8>) {
        match self {
            Self::Connection(record) => record.encode(to),
            Self::Announcement(record) => record.encode(to),
            Self::Element(record) => record.encode(to),
        }
    }

    /// Reads a record that fills `bytes`.
    ///
    /// # Errors
    /// [`DecodeError`]: no gateway makes such a record, or this program does not know what it
    /// contains.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        if AnnouncementRecord::is_kind_of(bytes) {
            AnnouncementRecord::decode(bytes).map(Self::Announcement)
        } else if ElementRecord::is_kind_of(bytes) {
            ElementRecord::decode(bytes).map(Self::Element)
        } else {
            ConnectionRecord::decode(bytes).map(|record| Self::Connection(Box::new(record)))
        }
    }
}

/// Something that all workers share, and of which a peer has a copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SharedRecord {
    /// Something that connections have announced.
    Announcement(AnnouncementRecord),
    /// An element that a set of the rules holds.
    Element(ElementRecord),
}

impl SharedRecord {
    /// True if these bytes are of a kind that [`SharedRecord::decode`] knows.
    pub fn is_kind_of(bytes: &[u8]) -> bool {
        AnnouncementRecord::is_kind_of(bytes) || ElementRecord::is_kind_of(bytes)
    }

    /// Appends the bytes of the record.
    pub fn encode(&self, to: &mut Vec<u8>) {
        match self {
            Self::Announcement(record) => record.encode(to),
            Self::Element(record) => record.encode(to),
        }
    }

    /// Reads a record that fills `bytes`.
    ///
    /// # Errors
    /// [`DecodeError`]: no gateway makes such a record, or this program does not know what it
    /// contains.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        match AnnouncementRecord::is_kind_of(bytes) {
            true => AnnouncementRecord::decode(bytes).map(Self::Announcement),
            false => ElementRecord::decode(bytes).map(Self::Element),
        }
    }

    /// The record that names the same thing in any state of it.
    #[must_use]
    pub fn name(&self) -> Self {
        match self {
            Self::Announcement(record) => Self::Announcement(record.name()),
            Self::Element(record) => Self::Element(record.name()),
        }
    }
}

/// Why a gateway has not taken over a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum RecordRefusal {
    /// Of a connection, or of what one has announced.
    Tracking(ImportRefusal),
    /// Of an element.
    Element(ElementRefusal),
}

impl RecordRefusal {
    /// The name of the reason that the gateway has it already. Nothing is lost then.
    pub const KNOWN: &'static str = ImportRefusal::Known.name();

    /// The name for programs. Two that say the same have one name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tracking(refusal) => refusal.name(),
            Self::Element(refusal) => refusal.name(),
        }
    }

    /// The reason of this name in words; `None` if there is no such reason.
    pub fn text_of(name: &str) -> Option<&'static str> {
        let tracking = ImportRefusal::ALL.iter().map(|it| (it.name(), it.text()));
        let element = ElementRefusal::ALL.iter().map(|it| (it.name(), it.text()));
        tracking.chain(element).find(|(known, _)| *known == name).map(|(_, text)| text)
    }
}
