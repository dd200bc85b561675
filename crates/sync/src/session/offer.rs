//! Records for the peer: changes, and bulk transfers.

use flow::Timestamp;

use super::{AWAY_AFTER, NotTaken, Session};
use crate::bulk::{Outflow, OutflowInput, Pace, Progress};
use crate::message::{Message, RECORDS_HEADER_BYTES_MAX};
use crate::outbox::FRAME_COST_BYTES;
use crate::record::{Part, RECORD_HEADER_BYTES_MAX, Record};

/// Most bytes of the queue that a record takes besides its body.
pub const RECORD_COST_BYTES: usize =
    RECORD_HEADER_BYTES_MAX + RECORDS_HEADER_BYTES_MAX + FRAME_COST_BYTES;

impl Session {
    /// Bytes of the queue that are left. A record is taken in if its body and
    /// [`RECORD_COST_BYTES`] fit, so an owner with less than that keeps its flags. Nothing is kept
    /// for a peer that does not follow. Then all is left, and [`Session::offer`] tells the owner
    /// to forget its changes.
    pub fn room(&self) -> usize {
        match self.outflow {
            Outflow::Unfollowed | Outflow::Asked(_) => self.settings.queue_bytes,
            Outflow::Bulk(_) | Outflow::Live(_) => self.left(),
        }
    }

    fn left(&self) -> usize {
        self.settings.queue_bytes.saturating_sub(self.outbox.bytes())
    }

    /// When a queue without room for the longest record is given up: the peer has acknowledged
    /// nothing for so long, though it may still speak.
    pub(super) fn gives_up_at(&self) -> Timestamp {
        match self.left() < RECORD_COST_BYTES + self.settings.record_bytes() {
            true => self.outbox.waits_since().after(AWAY_AFTER),
            false => Timestamp::NEVER,
        }
    }

    /// Takes in a change of a connection, to be sent with the next datagrams.
    ///
    /// # Errors
    /// [`NotTaken`] says what becomes of the change. The call never waits.
    pub fn offer(&mut self, now: Timestamp, record: &Record<'_>) -> Result<(), NotTaken> {
        if record.body.len() > self.settings.record_bytes() {
            return Err(NotTaken::TooLong);
        }
        if !self.is_followed() {
            return Err(NotTaken::NotFollowed);
        }
        if self.left() < RECORD_COST_BYTES + record.body.len() {
            if self.is_away(now) || now >= self.gives_up_at() {
                self.forget_queue();
                return Err(NotTaken::NotFollowed);
            }
            return Err(NotTaken::Full);
        }
        self.push(now, Part::Live, record);
        Ok(())
    }

    fn push(&mut self, now: Timestamp, part: Part, record: &Record<'_>) {
        self.outbox.push_record(now, part, record, self.settings.message_bytes());
        self.counters.sent_records += 1;
    }

    /// The owner has a change that it can not keep until there is room: an end, whose connection
    /// and its flag are gone, or a change that was too long. Another bulk transfer makes it good.
    /// One that is under way is finished before, so that transfers come to an end however often
    /// this happens.
    pub fn lost_change(&mut self) {
        self.counters.lost_changes += 1;
        self.has_hole |= matches!(self.outflow, Outflow::Bulk(_) | Outflow::Live(_));
        self.mend_hole();
    }

    /// Begins another stream, for which the peer asks for all, once it has the last transfer.
    pub(super) fn mend_hole(&mut self) {
        if self.has_hole && self.is_sent_whole() && !self.faults.keeps_holes() {
            self.drop_queue();
        }
    }

    /// Gives up the frames that a peer does not take, because no more fit.
    pub(super) fn forget_queue(&mut self) {
        self.counters.forgotten_queues += 1;
        self.drop_queue();
    }

    fn drop_queue(&mut self) {
        self.has_hole = false;
        self.counters.forgotten_records += self.outbox.records();
        self.outflow(OutflowInput::Apart);
        self.restart_stream();
    }

    /// True if the peer has got all of the last bulk transfer.
    fn is_sent_whole(&self) -> bool {
        let is_live = matches!(self.outflow, Outflow::Live(_));
        is_live && self.outbox.is_acknowledged(self.bulk_end)
    }

    /// When the oldest record was offered that the peer's owner has not taken, as far as this node
    /// knows. `None` if there is none.
    pub fn oldest_unacknowledged(&self) -> Option<Timestamp> {
        self.outbox.oldest()
    }

    /// True if the peer lacks nothing but changes that wait for its acknowledgment.
    pub fn is_level(&self) -> bool {
        self.is_sent_whole() && !self.has_hole
    }

    /// True while changes are taken in, so that all that was offered before and is not acknowledged
    /// waits here.
    pub fn is_followed(&self) -> bool {
        matches!(self.outflow, Outflow::Bulk(_) | Outflow::Live(_))
    }

    /// Begins the bulk transfer that the peer has asked for. `total` is about how many connections
    /// there are. A transfer is not begun twice: what was sent of it could not be told from the
    /// rest. An owner that has missed a connection ends it and calls [`Session::lost_change`].
    ///
    /// # Errors
    /// [`NotTaken::NotFollowed`] if nobody has asked since the last beginning, [`NotTaken::Full`]
    /// if it has to be tried again later.
    pub fn begin_bulk(&mut self, now: Timestamp, total: u64) -> Result<(), NotTaken> {
        let Outflow::Asked(bulk) = self.outflow else { return Err(NotTaken::NotFollowed) };
        self.flush_owed(now);
        if !self.outbox.takes_control() {
            return Err(NotTaken::Full);
        }
        self.outbox.push_control(now, &Message::BeginBulk(bulk, total));
        self.outflow(OutflowInput::Begin(total));
        self.has_hole = false;
        self.pace = Pace::new(now, self.settings.bulk_records_per_s);
        Ok(())
    }

    /// Records that the owner may offer to a bulk transfer now. Half of the queue is kept for
    /// changes.
    pub fn bulk_room(&self, now: Timestamp) -> u64 {
        match self.outflow {
            Outflow::Bulk(_) if self.outbox.bytes() < self.settings.queue_bytes / 2 => {
                self.pace.allowed(now)
            }
            _ => 0,
        }
    }

    /// Takes in a connection for the bulk transfer.
    ///
    /// # Errors
    /// [`NotTaken`]; the owner offers the connection again if it is [`NotTaken::Full`]. The peer's
    /// copy of a connection that is [`NotTaken::TooLong`] ends with the transfer.
    pub fn offer_bulk(&mut self, now: Timestamp, record: &Record<'_>) -> Result<(), NotTaken> {
        if record.body.len() > self.settings.record_bytes() {
            return Err(NotTaken::TooLong);
        }
        let Outflow::Bulk(Progress { bulk, .. }) = self.outflow else {
            return Err(NotTaken::NotFollowed);
        };
        if self.bulk_room(now) == 0 {
            return Err(NotTaken::Full);
        }
        self.pace.spend(now);
        self.outflow(OutflowInput::Sent(1));
        self.push(now, Part::Bulk(bulk), record);
        Ok(())
    }

    /// Ends the bulk transfer: the owner has offered all its connections. There is always room for
    /// that, since there is one end for each beginning.
    ///
    /// # Errors
    /// [`NotTaken::NotFollowed`] if there is no transfer.
    pub fn end_bulk(&mut self, now: Timestamp) -> Result<(), NotTaken> {
        let Outflow::Bulk(progress) = self.outflow else { return Err(NotTaken::NotFollowed) };
        if !self.faults.loses_bulk_end() {
            self.outbox.push_control(now, &Message::EndBulk(progress.bulk, progress.done));
        }
        self.bulk_end = self.outbox.end();
        self.counters.bulks_sent += 1;
        self.outflow(OutflowInput::End);
        Ok(())
    }
}
