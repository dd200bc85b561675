//! The messages of pfsync, and their numbers in each dialect.

use super::dialect::{Dialect, StateForm};
use super::identity::{CreatorId, InterfaceName, StateId};
use super::progress::Timeout;
use super::refusal::Refusal;
use super::state::{State, StateFlags};
use super::state_codec::{self, Inexpressible, RawPeer, whole};
use crate::cursor::Reader;

/// A message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// CLR: all states of a creator have ended, or those of one interface.
    Clear {
        /// The interface, empty for all.
        interface: InterfaceName,
        /// The creator of the states.
        creator: CreatorId,
    },
    /// INS: a new state.
    Insert(Box<State>),
    /// INS_ACK: the sender has a state that was inserted with a wish for an acknowledgment.
    InsertAck(StateId),
    /// UPD: a whole state.
    Update(Box<State>),
    /// UPD_C: the parts of a state that change.
    UpdateCompressed(Box<CompressedUpdate>),
    /// UPD_REQ: the sender wants UPD messages.
    UpdateRequest(Request),
    /// DEL with a whole state: it has ended.
    Delete(Box<State>),
    /// DEL_C: a state has ended.
    DeleteCompressed(StateId),
    /// BUS: a bulk update begins or ends.
    BulkStatus(BulkStatus),
}

/// The states that a gateway asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// All: a bulk update.
    All,
    /// One.
    One(StateId),
}

/// The parts of a state that change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompressedUpdate {
    /// Name of the state.
    pub id: StateId,
    /// Both ends, first the one that has begun the connection. The protocol is that of the state.
    pub peers: [RawPeer; 2],
    /// Time left, seconds. It is sent as 0, which tells nothing.
    pub left: u32,
    /// The timeout that runs.
    pub timeout: Timeout,
    /// The low flags of the state. Only [`Dialect::Version6`] carries them.
    pub flags: StateFlags,
}

/// News of a bulk update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BulkStatus {
    /// The gateway that sends the states.
    pub creator: CreatorId,
    /// Seconds since the sender got the request.
    pub elapsed: u32,
    /// Its beginning or its end.
    pub edge: BulkEdge,
}

/// An edge of a bulk update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum BulkEdge {
    /// Its start.
    Start = 1,
    /// Its end.
    End = 2,
}

/// The meaning of a message's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Clear,
    Insert(StateForm),
    InsertAck,
    Update(StateForm),
    UpdateCompressed,
    UpdateRequest,
    Delete(StateForm),
    DeleteCompressed,
    BulkStatus,
    /// A replay counter of IPsec, which is known and left out.
    Tdb,
    /// A full deletion where there is none.
    NoDelete,
    EndOfPacket,
    Unknown,
}

impl Kind {
    pub fn of_number(dialect: Dialect, number: u8) -> Self {
        const V6: StateForm = StateForm::OpenBsd;
        match (dialect, number) {
            (_, 0) => Self::Clear,
            (_, 2) => Self::InsertAck,
            (_, 4) => Self::UpdateCompressed,
            (_, 5) => Self::UpdateRequest,
            (Dialect::Version1301, 6) => Self::Delete(StateForm::V1301),
            (Dialect::Version6, 6) => Self::Delete(V6),
            (Dialect::Version1400 | Dialect::Version1500, 6) => Self::NoDelete,
            (_, 7) => Self::DeleteCompressed,
            (_, 10) => Self::BulkStatus,
            // Other numbers of version 6 are skipped by the length that their group tells.
            (Dialect::Version6, 13) => Self::Insert(V6),
            (Dialect::Version6, 14) => Self::Update(V6),
            (Dialect::Version6, _) => Self::Unknown,
            (_, 1) => Self::Insert(StateForm::V1301),
            (_, 3) => Self::Update(StateForm::V1301),
            (_, 11) => Self::Tdb,
            (_, 12) => Self::EndOfPacket,
            (_, 13) => Self::Insert(StateForm::V1400),
            (_, 14) => Self::Update(StateForm::V1400),
            (_, 15) => Self::Insert(StateForm::V1500),
            (_, 16) => Self::Update(StateForm::V1500),
            _ => Self::Unknown,
        }
    }

    /// Length of a message, bytes; `None` if only its sender knows.
    pub const fn bytes(self) -> Option<usize> {
        match self {
            Self::Clear => Some(20),
            Self::Insert(form) | Self::Update(form) | Self::Delete(form) => Some(form.bytes()),
            Self::InsertAck | Self::UpdateRequest | Self::DeleteCompressed | Self::BulkStatus => {
                Some(12)
            }
            Self::UpdateCompressed => Some(84),
            Self::Tdb => Some(48),
            Self::EndOfPacket => Some(0),
            Self::NoDelete | Self::Unknown => None,
        }
    }
}

/// The number of the message that ends a packet of header version 5.
pub(super) const END_OF_PACKET: u8 = 12;

impl Message {
    /// The number of this kind of message in a dialect.
    pub(super) const fn number(&self, dialect: Dialect) -> u8 {
        match (self, dialect) {
            (Self::Clear { .. }, _) => 0,
            (Self::InsertAck(_), _) => 2,
            (Self::UpdateCompressed(_), _) => 4,
            (Self::UpdateRequest(_), _) => 5,
            (Self::Delete(_), _) => 6,
            (Self::DeleteCompressed(_), _) => 7,
            (Self::BulkStatus(_), _) => 10,
            (Self::Insert(_), Dialect::Version1301) => 1,
            (Self::Update(_), Dialect::Version1301) => 3,
            (Self::Insert(_), Dialect::Version1400 | Dialect::Version6) => 13,
            (Self::Update(_), Dialect::Version1400 | Dialect::Version6) => 14,
            (Self::Insert(_), Dialect::Version1500) => 15,
            (Self::Update(_), Dialect::Version1500) => 16,
        }
    }

    /// Length in a dialect, bytes.
    pub(super) const fn bytes(&self, dialect: Dialect) -> usize {
        match self {
            Self::Clear { .. } => 20,
            Self::Insert(_) | Self::Update(_) | Self::Delete(_) => dialect.state_bytes(),
            Self::UpdateCompressed(_) => 84,
            Self::InsertAck(_)
            | Self::UpdateRequest(_)
            | Self::DeleteCompressed(_)
            | Self::BulkStatus(_) => 12,
        }
    }

    /// Appends the message without the header of its group.
    ///
    /// # Errors
    /// The dialect can not carry it; nothing is appended then.
    pub(super) fn encode(&self, dialect: Dialect, to: &mut Vec<u8>) -> Result<(), Inexpressible> {
        match self {
            Self::Clear { interface, creator } => {
                to.extend(interface.field());
                to.extend(creator.get().to_be_bytes());
            }
            Self::Insert(state) | Self::Update(state) | Self::Delete(state) => {
                return state_codec::encode(state, dialect.state_form(), to);
            }
            Self::InsertAck(id)
            | Self::DeleteCompressed(id)
            | Self::UpdateRequest(Request::One(id)) => {
                to.extend(id.id.to_be_bytes());
                to.extend(id.creator.get().to_be_bytes());
            }
            Self::UpdateRequest(Request::All) => to.extend([0; 12]),
            Self::UpdateCompressed(update) => update.encode(dialect, to),
            Self::BulkStatus(BulkStatus { creator, elapsed, edge }) => {
                to.extend(creator.get().to_be_bytes());
                to.extend(elapsed.to_be_bytes());
                to.extend([*edge as u8, 0, 0, 0]);
            }
        }
        Ok(())
    }

    /// Reads a message; `None` if it is one that is left out.
    pub(super) fn decode(
        dialect: Dialect,
        kind: Kind,
        from: &mut Reader<'_>,
    ) -> Result<Option<Self>, Refusal> {
        let state = |form, from: &mut Reader<'_>| state_codec::decode(form, from).map(Box::new);
        Ok(Some(match kind {
            Kind::Clear => {
                let interface = InterfaceName::from_field(whole(from.array())?);
                let interface = interface.ok_or(Refusal::BadName)?;
                Self::Clear { interface, creator: creator(from)? }
            }
            Kind::Insert(form) => Self::Insert(state(form, from)?),
            Kind::Update(form) => Self::Update(state(form, from)?),
            Kind::Delete(form) => Self::Delete(state(form, from)?),
            Kind::InsertAck => Self::InsertAck(state_id(from)?),
            Kind::DeleteCompressed => Self::DeleteCompressed(state_id(from)?),
            Kind::UpdateRequest => {
                let both = *from;
                match (whole(from.u64())?, whole(from.u32())?) {
                    (0, 0) => Self::UpdateRequest(Request::All),
                    _ => Self::UpdateRequest(Request::One(state_id(&mut { both })?)),
                }
            }
            Kind::UpdateCompressed => {
                let update = CompressedUpdate::decode(dialect, from)?;
                Self::UpdateCompressed(Box::new(update))
            }
            Kind::BulkStatus => {
                let (creator, elapsed) = (creator(from)?, whole(from.u32())?);
                let edge = match whole(from.array::<4>())? {
                    [1, ..] => BulkEdge::Start,
                    [2, ..] => BulkEdge::End,
                    _ => return Err(Refusal::UnknownStatus),
                };
                Self::BulkStatus(BulkStatus { creator, elapsed, edge })
            }
            Kind::NoDelete => return Err(Refusal::FullDelete),
            Kind::Tdb | Kind::EndOfPacket | Kind::Unknown => return Ok(None),
        }))
    }
}

impl CompressedUpdate {
    fn encode(&self, dialect: Dialect, to: &mut Vec<u8>) {
        to.extend(self.id.id.to_be_bytes());
        self.peers.iter().for_each(|peer| peer.encode(to));
        to.extend(self.id.creator.get().to_be_bytes());
        to.extend(self.left.to_be_bytes());
        let flags = match dialect {
            Dialect::Version6 => self.flags.0 as u8,
            Dialect::Version1301 | Dialect::Version1400 | Dialect::Version1500 => 0,
        };
        to.extend([self.timeout as u8, flags, 0, 0]);
    }

    fn decode(dialect: Dialect, from: &mut Reader<'_>) -> Result<Self, Refusal> {
        let id = whole(from.u64())?;
        let peers = [whole(RawPeer::decode(from))?, whole(RawPeer::decode(from))?];
        let creator = creator(from)?;
        let left = whole(from.u32())?;
        let [timeout, flags, _, _] = whole(from.array())?;
        Ok(Self {
            id: StateId { id, creator },
            peers,
            left,
            timeout: Timeout::of_number(timeout).ok_or(Refusal::UnknownTimeout)?,
            flags: match dialect {
                Dialect::Version6 => StateFlags(flags.into()),
                Dialect::Version1301 | Dialect::Version1400 | Dialect::Version1500 => {
                    StateFlags::default()
                }
            },
        })
    }
}

fn creator(from: &mut Reader<'_>) -> Result<CreatorId, Refusal> {
    CreatorId::new(whole(from.u32())?).ok_or(Refusal::CreatorZero)
}

fn state_id(from: &mut Reader<'_>) -> Result<StateId, Refusal> {
    Ok(StateId { id: whole(from.u64())?, creator: creator(from)? })
}
