//! All that a gateway knows, on its way to a new process.

use conntrack::Cursor;
use flow::Timestamp;
use flow::codec::Millis;
use steer::{BucketId, WorkerId};

use super::items::{
    HeardStation, RULES_PART_BYTES, rules_bytes, write_change, write_rules_part, write_shared,
    write_stations,
};
use super::standing::Fixed;
use super::{FreezeError, HandedQueue, Standing, Tenure};
use crate::Gateway;
use crate::control::config::SteerError;
use crate::control::offers::TRIES;
use crate::control::shared_copies::{SharedCursor, SharedThings};
use crate::control::worker_handle::Unresponsive;
use crate::egress::stations::StationUpdate;
use crate::path::change_ring::{ChangeStream, ChangeTap};
use crate::worker::command::{Command, Question};

/// Lots of changes that are taken in one go at most, so that a piece does not become long.
const LOTS_AT_ONCE: usize = 16;

/// Bytes of a piece, about.
const PIECE_BYTES: usize = 128 << 10;

/// Stations of an item.
const STATIONS_AT_ONCE: usize = 1024;
/// Most stations that are handed over, counting each once for each worker: 16 MiB.
const STATIONS_MAX: usize = 1 << 20;

/// Why a hand-over does not go on.
#[derive(Debug, thiserror::Error)]
pub enum OutflowError {
    /// A hand-over is under way.
    #[error("the gateway hands over to another process already")]
    UnderWay,
    /// Ends of connections were lost.
    #[error("more connections ended at once than can be told; try again at a quieter time")]
    LostEnds,
    /// Rules, zones or interfaces have changed meanwhile.
    #[error("{0} have changed meanwhile; try again")]
    Changed(&'static str),
    /// Queues can not be handed over.
    #[error(transparent)]
    Freeze(#[from] FreezeError),
    /// A worker hangs.
    #[error(transparent)]
    Unresponsive(#[from] Unresponsive),
}

/// The place that is read next.
enum Place {
    Bucket(u16, Cursor),
    Shared(SharedCursor),
    Stations,
    End,
}

/// The state of a gateway for a new process: first all, then changes, until nothing differs. Dropping it
/// has the gateway go on as before.
pub struct Outflow<'g> {
    gateway: &'g Gateway,
    stream: ChangeStream,
    next: Place,
    /// All that the new process has looked at, and that may not change.
    fixed: Fixed,
    /// The bytes about the rules that are left, once they were asked for.
    rules: Option<Vec<u8>>,
    /// The new process may read the queues.
    is_read: bool,
    has_left: bool,
}

impl<'g> Outflow<'g> {
    /// Begins to follow all changes. A reader from before gets none from now on. This gateway
    /// owns the connections of a peer from now on, because the new process tells the peer anew. The new
    /// process has the rules and zones of `standing`.
    ///
    /// # Errors
    /// [`OutflowError::UnderWay`], [`OutflowError::Unresponsive`].
    pub fn begin(gateway: &'g Gateway, standing: &Standing) -> Result<Self, OutflowError> {
        let (tap, stream) = {
            let mut coordinator = gateway.shared.lock();
            if coordinator.tenure != Tenure::Own {
                return Err(OutflowError::UnderWay);
            }
            coordinator.tenure = Tenure::Copied;
            let (tap, stream) = ChangeTap::new(coordinator.execution.now());
            (tap.exact(), stream)
        };
        let (next, fixed) = (Place::Bucket(0, Cursor::default()), standing.fixed.clone());
        let outflow =
            Self { gateway, stream, next, fixed, rules: None, is_read: false, has_left: false };
        gateway.adopt_all()?;
        gateway.follow_shared(true);
        if let Some(rules) = gateway.rules_now().0 {
            rules.shared().follow_elements_exactly();
        }
        let mut coordinator = gateway.shared.lock();
        coordinator.replication.tap = Some(tap.clone());
        coordinator.for_each_worker(|handle| match tap.connect(&handle.wakeup) {
            Some(sender) => handle.tell(Command::SendChanges(Some(Box::new(sender)))),
            None => Ok(()),
        })?;
        drop(coordinator);
        Ok(outflow)
    }

    /// Appends what comes next to `to`: changes that wait, and then a piece of what was there before.
    /// Returns true while there is more of the latter.
    ///
    /// # Errors
    /// [`OutflowError`].
    pub fn copy(&mut self, to: &mut Vec<u8>) -> Result<bool, OutflowError> {
        self.take_changes(to)?;
        match self.next {
            Place::Bucket(bucket, from) => {
                let piece = self.gateway.tell_connections(BucketId(bucket), from)?;
                self.next = match piece {
                    Some(piece) => {
                        piece.changes.iter().for_each(|change| write_change(change, to));
                        match piece.rest {
                            Some(rest) => Place::Bucket(bucket, rest),
                            None => Place::Bucket(bucket + 1, Cursor::default()),
                        }
                    }
                    None => Place::Shared(SharedCursor::default()),
                };
                Ok(true)
            }
            Place::Shared(from) => {
                let piece = self.gateway.tell_shared(from)?;
                piece.things.iter().for_each(|told| write_shared(told, to));
                self.next = piece.rest.map_or(Place::Stations, Place::Shared);
                Ok(true)
            }
            Place::Stations => {
                self.stations(to)?;
                self.next = Place::End;
                Ok(true)
            }
            Place::End => Ok(false),
        }
    }

    fn stations(&self, to: &mut Vec<u8>) -> Result<(), OutflowError> {
        let (all, now) = {
            let mut coordinator = self.gateway.shared.lock();
            (coordinator.stations()?, coordinator.execution.now())
        };
        let heard = |it: &StationUpdate| {
            let age = now.since(Timestamp::from_nanos(it.seen_ns));
            HeardStation { station: it.station, port: it.port, age: Millis::of(age) }
        };
        // Those that were heard last are the ones that are kept.
        let latest = &all[all.len().saturating_sub(STATIONS_MAX)..];
        for piece in latest.chunks(STATIONS_AT_ONCE) {
            write_stations(&piece.iter().map(heard).collect::<Vec<_>>(), to);
        }
        Ok(())
    }

    /// Appends changes that wait. Returns their number.
    ///
    /// # Errors
    /// [`OutflowError`].
    pub fn take_changes(&mut self, to: &mut Vec<u8>) -> Result<usize, OutflowError> {
        let (mut count, mut has_lost) = (0, false);
        for _ in 0..LOTS_AT_ONCE {
            let has_taken = self.stream.take(|lot| {
                has_lost |= lot.has_lost;
                count += lot.changes.len();
                lot.changes.iter().for_each(|change| write_change(change, to));
            });
            if !has_taken || to.len() >= PIECE_BYTES {
                break;
            }
        }
        if self.gateway.has_shared_changes() {
            has_lost |= self.gateway.take_shared(&mut |told| {
                count += 1;
                write_shared(&told, to);
            })?;
        }
        if has_lost { Err(OutflowError::LostEnds) } else { Ok(count) }
    }

    /// Stops receiving. Returns the time of the stop, and the queues.
    ///
    /// # Errors
    /// [`OutflowError`]; the gateway receives.
    pub fn freeze(&mut self) -> Result<(Timestamp, Vec<HandedQueue>), OutflowError> {
        let now = self.gateway.shared.lock().fixed();
        for (is_other, what) in [
            (now.rules != self.fixed.rules, "the rules"),
            (now.zones != self.fixed.zones, "the zones"),
            (now.open != self.fixed.open, "the interfaces"),
        ] {
            if is_other {
                return Err(OutflowError::Changed(what));
            }
        }
        Ok(self.gateway.freeze()?)
    }

    /// Appends some changes that are left after [`Outflow::freeze`]. Returns true while there may be
    /// more.
    ///
    /// # Errors
    /// [`OutflowError`].
    pub fn rest(&mut self, to: &mut Vec<u8>) -> Result<bool, OutflowError> {
        let mut is_told = true;
        let workers = self.gateway.shared.lock().worker_count() as u16;
        for worker in (0..workers).map(WorkerId) {
            let answer = self.gateway.shared.lock().ask_worker(worker, Question::TellRest);
            is_told &= answer.transpose()?.unwrap_or(true);
        }
        let count = self.take_changes(to)?;
        Ok(!is_told || count > 0)
    }

    /// Appends a part of what says how far rules have come, behind all changes. Returns true while there
    /// is more.
    ///
    /// # Errors
    /// [`OutflowError::Unresponsive`].
    pub fn rules(&mut self, to: &mut Vec<u8>) -> Result<bool, OutflowError> {
        let mut left = match self.rules.take() {
            Some(left) => left,
            None => match self.gateway.shared.lock().rule_progress()? {
                Some(progress) => rules_bytes(&progress),
                None => return Ok(false),
            },
        };
        let rest = left.split_off(left.len().min(RULES_PART_BYTES));
        let is_last = rest.is_empty();
        write_rules_part(&left, is_last, to);
        self.rules = Some(rest).filter(|_| !is_last);
        Ok(!is_last)
    }

    /// The new process may read the queues from now on. If it ends all the same, nobody knows how far it
    /// has read.
    pub fn let_read(&mut self) {
        self.is_read = true;
    }

    /// The new process has all, and this gateway receives nothing any more.
    pub fn leave(&mut self) {
        self.has_left = true;
    }

    fn go_on(&self) -> Result<(), SteerError> {
        self.gateway.thaw(self.is_read)?;
        self.gateway.follow_shared(false);
        self.gateway.unfollow_changes()?;
        self.gateway.shared.lock().tenure = Tenure::Own;
        Ok(())
    }
}

impl Drop for Outflow<'_> {
    fn drop(&mut self) {
        if self.has_left {
            return;
        }
        let went_on = (0..TRIES).find_map(|_| self.go_on().ok());
        if went_on.is_none() {
            tracing::error!("workers hang, and the gateway does not go on after a hand-over");
        }
    }
}
