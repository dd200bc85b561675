//! The way of connections from this gateway to the peer.

use std::collections::VecDeque;

use conntrack::{Change, Cursor, encode_flow};
use flow::{HashKey, Timestamp};
use steer::BucketId;
use sync::{Identity, NotTaken, Outflow, Record, RecordKind, Session};

use crate::control::worker_handle::Unresponsive;
use crate::path::change_ring::ChangeStream;
use crate::path::deferred::Receipt;

use super::{Connections, name_of};

/// Lots of changes that one turn takes in at most, so that datagrams leave meanwhile.
const LOTS_A_TURN: usize = 64;

/// Counts of changes that were offered to a peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SupplyCounters {
    /// Connections that can not be sent, because their records are longer than a datagram.
    pub too_long: u64,
    /// How often ends of connections were lost, so that the peer needs all connections once more.
    pub lost_ends: u64,
}

/// The connections that a bulk transfer has still to read.
struct Scan {
    bucket: u16,
    /// Where it goes on; `None` at the start of the bucket.
    from: Cursor,
    /// Connections that were read and not taken in yet.
    read: VecDeque<Change>,
}

/// The connections for the peer.
pub(super) struct Supply {
    names: HashKey,
    stream: Option<ChangeStream>,
    /// Changes that were taken from a worker and not taken in yet.
    waiting: VecDeque<Change>,
    /// Receipts that came behind changes which were not taken in yet.
    receipts: Vec<Receipt>,
    /// Receipts of changes that the session has taken in, with the time.
    owed: VecDeque<(Timestamp, Receipt)>,
    is_asked: bool,
    scan: Option<Scan>,
    counters: SupplyCounters,
    /// All that the workers had sent was taken in.
    is_drained: bool,
    bytes: Vec<u8>,
}

impl Supply {
    pub fn new(names: HashKey) -> Self {
        Self {
            names,
            stream: None,
            waiting: VecDeque::new(),
            receipts: Vec::new(),
            owed: VecDeque::new(),
            is_asked: false,
            scan: None,
            counters: SupplyCounters::default(),
            is_drained: false,
            bytes: Vec::new(),
        }
    }

    pub fn counters(&self) -> SupplyCounters {
        self.counters
    }

    pub fn is_followed(&self) -> bool {
        self.stream.is_some()
    }

    /// True if the session has taken in all that the workers had sent at the last look.
    pub fn is_drained(&self) -> bool {
        self.is_drained
    }

    /// The peer wants all connections.
    pub fn ask_bulk(&mut self) {
        (self.is_asked, self.scan) = (true, None);
    }

    /// Takes in changes of connections. True if there are more, for which there is room.
    pub fn take_changes(
        &mut self,
        gateway: &dyn Connections,
        session: &mut Session,
        now: Timestamp,
    ) -> Result<bool, Unresponsive> {
        self.is_drained = false;
        for _ in 0..LOTS_A_TURN {
            while let Some(change) = self.waiting.front() {
                match offer(&mut self.bytes, self.names, change, |it| session.offer(now, it)) {
                    Err(NotTaken::Full) => return Ok(false),
                    Err(NotTaken::NotFollowed) => return self.end(gateway).map(|()| false),
                    Err(NotTaken::TooLong) => self.counters.too_long += 1,
                    Ok(()) => {}
                }
                self.waiting.pop_front();
            }
            self.owed.extend(self.receipts.drain(..).map(|receipt| (now, receipt)));
            let Some(stream) = &mut self.stream else {
                self.is_drained = true;
                return Ok(false);
            };
            let Self { waiting, receipts, counters, bytes, names, .. } = self;
            let mut has_lost = false;
            let has_taken = stream.take(|lot| {
                has_lost |= lot.has_lost;
                receipts.extend(lot.receipt.take());
                // Changes that wait come first.
                let taken = lot.changes.iter().take_while(|change| {
                    match offer(bytes, *names, change, |it| session.offer(now, it)) {
                        Ok(()) => true,
                        Err(NotTaken::TooLong) => {
                            counters.too_long += 1;
                            true
                        }
                        // The next round of the loop finds out which of them it is.
                        Err(NotTaken::Full | NotTaken::NotFollowed) => false,
                    }
                });
                let taken = if waiting.is_empty() { taken.count() } else { 0 };
                waiting.extend(lot.changes.drain(taken..));
            });
            if has_lost {
                counters.lost_ends += 1;
                session.lost_change();
            }
            if !has_taken {
                self.is_drained = true;
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Gives receipts back to workers of which the peer has all changes. Nobody waits for a peer that
    /// is away, or that lacks more than changes.
    pub fn give_receipts_back(&mut self, session: &Session, now: Timestamp) {
        let is_awaited = session.is_level() && !session.is_away(now);
        if let Some(stream) = &self.stream {
            stream.set_awaited(is_awaited);
        }
        let oldest = session.oldest_unacknowledged().filter(|_| is_awaited);
        let is_safe = |at: &Timestamp| oldest.is_none_or(|oldest| *at < oldest);
        while let Some((_, receipt)) = self.owed.pop_front_if(|(at, _)| is_safe(at)) {
            receipt.give_back();
        }
    }

    /// Nobody follows, so changes cost nothing from now on.
    fn end(&mut self, gateway: &dyn Connections) -> Result<(), Unresponsive> {
        self.waiting.clear();
        self.receipts.clear();
        self.owed.clear();
        self.scan = None;
        if self.stream.take().is_some() {
            gateway.unfollow_changes()?;
        }
        Ok(())
    }

    /// Goes on with a bulk transfer. True if more of it can be done at once.
    pub fn go_on_with_bulk(
        &mut self,
        gateway: &dyn Connections,
        session: &mut Session,
        now: Timestamp,
    ) -> Result<bool, Unresponsive> {
        if self.is_asked {
            // Changes from before are part of what is read. Those that come from now on are not
            // missed, because the workers collect them before the first connection is read.
            self.waiting.clear();
            self.receipts.clear();
            self.owed.clear();
            self.stream = Some(gateway.follow_changes()?);
            match session.begin_bulk(now, gateway.connection_count()?) {
                Ok(()) => {
                    let (from, read) = (Cursor::default(), VecDeque::new());
                    self.scan = Some(Scan { bucket: 0, from, read });
                }
                Err(NotTaken::Full) => return Ok(false),
                Err(NotTaken::NotFollowed | NotTaken::TooLong) => {}
            }
            self.is_asked = false;
        }
        let Some(scan) = &mut self.scan else {
            if self.stream.is_some() && session.status(now).outflow == Outflow::Unfollowed {
                self.end(gateway)?;
            }
            return Ok(false);
        };
        while let Some(change) = scan.read.front() {
            match offer(&mut self.bytes, self.names, change, |it| session.offer_bulk(now, it)) {
                Err(NotTaken::Full) => return Ok(false),
                Err(NotTaken::NotFollowed) => return self.end(gateway).map(|()| false),
                Err(NotTaken::TooLong) => self.counters.too_long += 1,
                Ok(()) => {}
            }
            scan.read.pop_front();
        }
        let (bucket, from) = (BucketId(scan.bucket), scan.from);
        match gateway.tell_connections(bucket, from)? {
            Some(piece) => {
                scan.read.extend(piece.changes);
                match piece.rest {
                    Some(rest) => scan.from = rest,
                    None => (scan.bucket, scan.from) = (scan.bucket + 1, Cursor::default()),
                }
                Ok(true)
            }
            None => {
                self.scan = None;
                // The peers may have come apart meanwhile.
                let _ = session.end_bulk(now);
                Ok(true)
            }
        }
    }
}

/// Writes a change as a record and offers it.
fn offer(
    bytes: &mut Vec<u8>,
    names: HashKey,
    change: &Change,
    take: impl FnOnce(&Record<'_>) -> Result<(), NotTaken>,
) -> Result<(), NotTaken> {
    bytes.clear();
    let (kind, stamp, original) = match change {
        Change::State { is_copy, stamp, record } => {
            record.encode(bytes);
            let kind = if *is_copy { RecordKind::News } else { RecordKind::Change };
            (kind, *stamp, record.original())
        }
        Change::End { is_copy: false, stamp, original } => (RecordKind::End, *stamp, *original),
        Change::End { is_copy: true, stamp, original } => {
            // The owner does not know connections of its own by their names.
            encode_flow(original, bytes);
            (RecordKind::EndNews, *stamp, *original)
        }
    };
    let identity = Identity { key: name_of(names, &original), incarnation: stamp, version: 0 };
    take(&Record { identity, kind, body: bytes })
}
