//! Newer records of connections that are in the table.

use super::Table;
use super::entry::Entry;
use super::records::Importing;
use crate::connection::Status;
use crate::proto::RecordedState;
use crate::{ConnectionId, ConnectionRecord, Context, ImportRefusal};

/// The effect of a record on a connection.
struct Amended {
    id: ConnectionId,
    /// The record says less than was known.
    says_less: bool,
    /// The record says more than was known.
    says_more: bool,
}

impl Table {
    /// Changes a connection to what a newer record of it says, and keeps its slot. It is not
    /// reported. If it is further than was known, the peer hears of the connection once more.
    ///
    /// If packets of it may have come here that the sender of the record has not seen, the state
    /// of the protocol does not go back, nor does its end come earlier. If the sender owns it, what
    /// its helper and the SYN proxy know stays then, too.
    ///
    /// # Errors
    /// [`ImportRefusal::Clash`] if such packets belong to no connection or to one with other keys.
    pub fn amend(
        &mut self,
        record: &ConnectionRecord,
        importing: Importing<'_>,
        context: &mut Context<'_>,
    ) -> Result<ConnectionId, ImportRefusal> {
        let Amended { id, says_more, .. } = self.amended(record, importing, context)?;
        // The sender may have given its copy up meanwhile for an older state than this one.
        if says_more {
            self.note_change(id.0, context);
        }
        Ok(id)
    }

    /// Changes a connection to what its owner, the peer, says. If packets of it have come here that
    /// the peer has not seen, the peer hears of them.
    ///
    /// # Errors
    /// As with [`Table::amend`].
    pub fn amend_copy(
        &mut self,
        record: &ConnectionRecord,
        importing: Importing<'_>,
        context: &mut Context<'_>,
    ) -> Result<ConnectionId, ImportRefusal> {
        let Amended { id, says_less, .. } = self.amended(record, importing, context)?;
        self.set_copy(id, context);
        if says_less {
            self.note_change(id.0, context);
        }
        Ok(id)
    }

    fn amended(
        &mut self,
        record: &ConnectionRecord,
        importing: Importing<'_>,
        context: &mut Context<'_>,
    ) -> Result<Amended, ImportRefusal> {
        let original = record.original;
        let hash = (importing.hash)(&original.key);
        let slot = self.live_owner(&original, hash, record, context);
        let is_it = |slot: &u32| {
            let id = ConnectionId(*slot);
            self.original(*slot) == original && self.reply(id) == record.reply()
        };
        let slot = slot.filter(is_it).ok_or(ImportRefusal::Clash)?;
        if record.state == RecordedState::Tunnel {
            return match self.join_record(slot, record, context) {
                Ok(_) | Err(ImportRefusal::Known) => {
                    Ok(Amended { id: ConnectionId(slot), says_less: false, says_more: false })
                }
                Err(refusal) => Err(refusal),
            };
        }
        let state = record.state.restore(&original.key, context.now);
        let deadline = Self::deadline_of(record, &state, context);
        let Entry { head, body } = &mut self.slab[slot];
        let is_ahead = body.note.may_be_ahead();
        let keeps_own = is_ahead && body.note.is_copy();
        let facts = record.facts;
        let says_less = head.status.has(Status::SEEN_REPLY) && !facts.seen_reply
            || head.status.has(Status::ASSURED) && !facts.assured;
        let goes_back = is_ahead && body.state.is_further_than(&state);
        let says_more = !head.status.has(Status::SEEN_REPLY) && facts.seen_reply
            || !head.status.has(Status::ASSURED) && facts.assured
            || state.is_further_than(&body.state);
        head.deadline = match (goes_back, is_ahead && !state.is_closing()) {
            (true, _) => head.deadline,
            (_, true) => head.deadline.max(deadline),
            _ => deadline,
        };
        if !goes_back {
            body.state = state;
        }
        for (is_so, bit) in
            [(record.facts.seen_reply, Status::SEEN_REPLY), (record.facts.assured, Status::ASSURED)]
        {
            head.status.clear(if is_ahead { Status::NONE } else { bit });
            head.status.set(Status::when(is_so, bit));
        }
        self.set_behind(slot, importing.map_epoch, context.settings.faults);
        self.refile(slot);
        self.dress_anew(slot, record, keeps_own, context);
        self.count_no_more(slot);
        self.rank(slot, context);
        let says_less = goes_back || is_ahead && says_less;
        Ok(Amended { id: ConnectionId(slot), says_less, says_more })
    }

    /// Gives an entry what a record says beside its state. `keeps_own`: only mark and labels.
    fn dress_anew(
        &mut self,
        slot: u32,
        record: &ConnectionRecord,
        keeps_own: bool,
        context: &Context<'_>,
    ) {
        if record.is_outline {
            self.raise_counts(slot, record);
            return;
        }
        self.slab.set_mark(slot, record.mark);
        self.slab.set_labels(slot, record.labels);
        if keeps_own {
            return;
        }
        self.slab.undress(slot);
        for (is_so, bit) in
            [(record.counts.is_some(), Status::ACCOUNTED), (record.age.is_some(), Status::STAMPED)]
        {
            let status = &mut self.slab[slot].head.status;
            status.clear(bit);
            status.set(Status::when(is_so, bit));
        }
        self.dress(slot, record, context);
    }
}
