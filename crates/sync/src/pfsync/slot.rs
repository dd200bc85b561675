//! The one message that waits for each state.

/// The message about a state that waits to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Slot {
    /// None.
    Idle,
    /// INS: the state is new, and no peer has heard of it.
    Insert,
    /// INS_ACK: a peer has inserted it and waits to hear that this gateway has it.
    InsertAck,
    /// UPD.
    Update,
    /// UPD_C.
    UpdateCompressed,
    /// DEL_C: the state has ended.
    Delete,
}

/// Something that happens to a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SlotInput {
    /// This gateway has made it.
    Insert,
    /// A peer wants its insert acknowledged.
    Ack,
    /// It has changed.
    Change,
    /// A peer wants all of it.
    Asked,
    /// It has ended.
    End,
    /// Its message is in a packet.
    Sent,
}

/// The fate of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// It holds this message now.
    To(Slot),
    /// Nobody needs to hear of the state any more: it is forgotten with its slot.
    Forget,
    /// The input does not fit, and changes nothing.
    OutOfPlace,
}

impl Slot {
    /// The fate of the slot.
    pub(super) const fn on(self, input: SlotInput) -> Next {
        use SlotInput::{Ack, Asked, Change, End, Insert, Sent};
        match (self, input) {
            (Self::Idle, Insert) => Next::To(Self::Insert),
            (_, Insert) => Next::OutOfPlace,

            (Self::Idle | Self::InsertAck, Ack) => Next::To(Self::InsertAck),
            // The peer waits 20 ms at most, and the other message tells it as much.
            (Self::Update | Self::UpdateCompressed, Ack) => Next::To(self),
            (Self::Insert | Self::Delete, Ack) => Next::OutOfPlace,

            (Self::Idle | Self::InsertAck, Change) => Next::To(Self::UpdateCompressed),
            (Self::Insert | Self::Update | Self::UpdateCompressed, Change) => Next::To(self),
            (Self::Delete, Change) => Next::OutOfPlace,

            (Self::Idle | Self::InsertAck | Self::UpdateCompressed, Asked) => {
                Next::To(Self::Update)
            }
            // The message that waits tells all there is to tell.
            (Self::Insert | Self::Update | Self::Delete, Asked) => Next::To(self),

            (Self::Insert, End) => Next::Forget,
            (_, End) => Next::To(Self::Delete),

            (Self::Idle, Sent) => Next::OutOfPlace,
            (Self::Delete, Sent) => Next::Forget,
            (_, Sent) => Next::To(Self::Idle),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;

    use super::*;

    #[test]
    fn transitions() {
        use Slot::{Delete, Idle, Insert, InsertAck, Update, UpdateCompressed};
        use SlotInput::{Ack, Asked, Change, End, Insert as New, Sent};
        let mut matrix = String::new();
        for slot in [Idle, Insert, InsertAck, Update, UpdateCompressed, Delete] {
            writeln!(matrix, "{slot:?}").unwrap();
            for input in [New, Ack, Change, Asked, End, Sent] {
                writeln!(matrix, "  {input:?}: {:?}", slot.on(input)).unwrap();
            }
        }
        insta::assert_snapshot!(matrix);
    }
}
