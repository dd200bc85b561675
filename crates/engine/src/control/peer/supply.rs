//! The way of connections from this gateway to the peer.

use std::collections::VecDeque;
use std::time::Duration;

use conntrack::{Change, Cursor, encode_flow};
use flow::replica::Told;
use flow::{HashKey, Timestamp};
use steer::BucketId;
use sync::{Identity, NotTaken, Outflow, Record, RecordKind, Session};

use crate::control::record::SharedRecord;
use crate::control::shared_copies::SharedCursor;
use crate::control::worker_handle::Unresponsive;
use crate::path::change_ring::ChangeStream;
use crate::path::deferred::Receipt;

use super::{Connections, name_of, name_of_shared};

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

/// The longest time for which an end of something that the peer owns is told again. Later the peer may
/// have another one of that name.
const ENDS_KEPT: Duration = Duration::from_secs(1);

/// Something that a peer hears of.
#[derive(Clone)]
enum Telling {
    /// A connection.
    Connection(Change),
    /// Something that workers share.
    Shared(Told<SharedRecord>),
}

impl Telling {
    /// True if it is news of what the peer owns.
    const fn is_news(&self) -> bool {
        match self {
            Self::Connection(change) => change.is_news(),
            Self::Shared(told) => told.is_news(),
        }
    }

    const fn is_end(&self) -> bool {
        matches!(self, Self::Connection(Change::End { .. }) | Self::Shared(Told::End { .. }))
    }
}

/// The place that a bulk transfer reads next. Announcements come behind connections.
#[derive(Clone, Copy)]
enum Place {
    /// In a bucket.
    Bucket(u16, Cursor),
    /// In what workers share.
    Shared(SharedCursor),
    End,
}

/// The part of a bulk transfer that is still to be read.
struct Scan {
    next: Place,
    /// Things that were read and not taken in yet.
    read: VecDeque<Telling>,
}

/// The connections for the peer.
pub(super) struct Supply {
    names: HashKey,
    stream: Option<ChangeStream>,
    /// Changes that were taken from a worker and not taken in yet.
    waiting: VecDeque<Change>,
    /// The same of what workers share.
    shared: VecDeque<Told<SharedRecord>>,
    /// News that the peer may not have got, with the time at which they were taken in or came here. No
    /// table tells of them once more.
    unheard: VecDeque<(Timestamp, Telling)>,
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
            shared: VecDeque::new(),
            unheard: VecDeque::new(),
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
                    Err(NotTaken::NotFollowed) => return self.end(gateway, now).map(|()| false),
                    Err(NotTaken::TooLong) => self.counters.too_long += 1,
                    Ok(()) => {}
                }
                let change = self.waiting.pop_front();
                self.unheard.extend(kept(change.map(Telling::Connection), now));
            }
            self.owed.extend(self.receipts.drain(..).map(|receipt| (now, receipt)));
            let Some(stream) = &mut self.stream else {
                self.is_drained = true;
                return Ok(false);
            };
            let Self { waiting, unheard, receipts, counters, bytes, names, .. } = self;
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
                let news = lot.changes.iter().filter(|change| change.is_news());
                unheard.extend(news.map(|it| (now, Telling::Connection(it.clone()))));
            });
            if has_lost {
                counters.lost_ends += 1;
                session.lost_change();
            }
            if !has_taken {
                return self.take_shared(gateway, session, now);
            }
        }
        // Workers that never pause must not keep what they share from the peer.
        self.take_shared(gateway, session, now)?;
        self.is_drained = false;
        Ok(true)
    }

    /// Takes in changes of what workers share, when the session has taken in all changes of
    /// connections that came before. True if there are more, for which there is room.
    fn take_shared(
        &mut self,
        gateway: &dyn Connections,
        session: &mut Session,
        now: Timestamp,
    ) -> Result<bool, Unresponsive> {
        while let Some(told) = self.shared.front() {
            match offer_shared(&mut self.bytes, self.names, told, |it| session.offer(now, it)) {
                Err(NotTaken::Full) => return Ok(false),
                Err(NotTaken::NotFollowed) => return self.end(gateway, now).map(|()| false),
                Err(NotTaken::TooLong) => self.counters.too_long += 1,
                Ok(()) => {}
            }
            let told = self.shared.pop_front();
            self.unheard.extend(kept(told.map(Telling::Shared), now));
        }
        let things = gateway.shared_things().filter(|it| it.has_shared_changes());
        let Some(things) = things else {
            self.is_drained = true;
            return Ok(false);
        };
        let Self { shared, counters, .. } = self;
        if things.take_shared(&mut |told| shared.push_back(told))? {
            counters.lost_ends += 1;
            session.lost_change();
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
        // In a stream that has just begun nothing waits for its acknowledgment.
        if session.is_followed() {
            let oldest = session.oldest_unacknowledged();
            let is_heard = |(at, _): &mut (Timestamp, _)| oldest.is_none_or(|oldest| *at < oldest);
            while self.unheard.pop_front_if(is_heard).is_some() {}
        }
    }

    /// Nobody follows, so changes cost nothing from now on. A peer that has asked for all is about to
    /// follow again.
    fn end(&mut self, gateway: &dyn Connections, now: Timestamp) -> Result<(), Unresponsive> {
        if self.is_asked {
            return Ok(());
        }
        let Some(former) = self.stream.take() else {
            self.leave_stream(None, now);
            return Ok(());
        };
        follow_shared(gateway, false);
        let unfollowed = gateway.unfollow_changes();
        self.leave_stream(Some(former), now);
        unfollowed
    }

    /// Changes of the streams from before are part of what is read, or nobody wants them. Only news
    /// are kept.
    fn leave_stream(&mut self, former: Option<ChangeStream>, now: Timestamp) {
        self.scan = None;
        self.receipts.clear();
        self.owed.clear();
        let Self { waiting, shared, .. } = self;
        if let Some(mut stream) = former {
            while stream.take(|lot| waiting.extend(lot.changes.drain(..))) {}
        }
        let left = waiting.drain(..).map(Telling::Connection);
        let left = left.chain(shared.drain(..).map(Telling::Shared));
        self.unheard.extend(left.filter_map(|it| kept(Some(it), now)));
    }

    /// This node owns all that the peer owned, so there is no news.
    pub fn forget_news(&mut self) {
        self.unheard.clear();
    }

    /// The peer hears of all news once more that it may not have got.
    fn repeat_news(&mut self, now: Timestamp) {
        for (at, telling) in self.unheard.drain(..) {
            if telling.is_end() && now.since(at) > ENDS_KEPT {
                continue;
            }
            match telling {
                Telling::Connection(change) => self.waiting.push_back(change),
                Telling::Shared(told) => self.shared.push_back(told),
            }
        }
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
            let former = self.stream.replace(gateway.follow_changes()?);
            follow_shared(gateway, true);
            // A worker that answers tells the former reader nothing more.
            let total = gateway.connection_count();
            self.leave_stream(former, now);
            match session.begin_bulk(now, total?) {
                Ok(()) => {
                    self.repeat_news(now);
                    let next = Place::Bucket(0, Cursor::default());
                    self.scan = Some(Scan { next, read: VecDeque::new() });
                }
                Err(NotTaken::Full) => return Ok(false),
                Err(NotTaken::NotFollowed | NotTaken::TooLong) => {}
            }
            self.is_asked = false;
        }
        let Some(scan) = &mut self.scan else {
            if self.stream.is_some() && session.status(now).outflow == Outflow::Unfollowed {
                self.end(gateway, now)?;
            }
            return Ok(false);
        };
        while let Some(telling) = scan.read.front() {
            let (bytes, names) = (&mut self.bytes, self.names);
            let taken = match telling {
                Telling::Connection(it) => {
                    offer(bytes, names, it, |it| session.offer_bulk(now, it))
                }
                Telling::Shared(it) => {
                    offer_shared(bytes, names, it, |it| session.offer_bulk(now, it))
                }
            };
            match taken {
                Err(NotTaken::Full) => return Ok(false),
                Err(NotTaken::NotFollowed) => return self.end(gateway, now).map(|()| false),
                Err(NotTaken::TooLong) => self.counters.too_long += 1,
                Ok(()) => {}
            }
            self.unheard.extend(kept(scan.read.pop_front(), now));
        }
        scan.read_more(gateway)?;
        if let Place::End = scan.next
            && scan.read.is_empty()
        {
            self.scan = None;
            // The peers may have come apart meanwhile.
            let _ = session.end_bulk(now);
        }
        Ok(true)
    }
}

impl Scan {
    /// Reads the next piece.
    fn read_more(&mut self, gateway: &dyn Connections) -> Result<(), Unresponsive> {
        self.next = match self.next {
            Place::Bucket(bucket, from) => {
                match gateway.tell_connections(BucketId(bucket), from)? {
                    Some(piece) => {
                        self.read.extend(piece.changes.into_iter().map(Telling::Connection));
                        match piece.rest {
                            Some(rest) => Place::Bucket(bucket, rest),
                            None => Place::Bucket(bucket + 1, Cursor::default()),
                        }
                    }
                    None => Place::Shared(SharedCursor::default()),
                }
            }
            Place::Shared(from) => match gateway.shared_things() {
                Some(things) => {
                    let piece = things.tell_shared(from)?;
                    self.read.extend(piece.things.into_iter().map(Telling::Shared));
                    piece.rest.map_or(Place::End, Place::Shared)
                }
                None => Place::End,
            },
            Place::End => Place::End,
        };
        Ok(())
    }
}

/// News, with the time from which on they are kept.
fn kept(telling: Option<Telling>, now: Timestamp) -> Option<(Timestamp, Telling)> {
    telling.filter(Telling::is_news).map(|it| (now, it))
}

fn follow_shared(gateway: &dyn Connections, follows: bool) {
    if let Some(things) = gateway.shared_things() {
        things.follow_shared(follows);
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

/// Writes a change of something that workers share as a record and offers it.
fn offer_shared(
    bytes: &mut Vec<u8>,
    names: HashKey,
    told: &Told<SharedRecord>,
    take: impl FnOnce(&Record<'_>) -> Result<(), NotTaken>,
) -> Result<(), NotTaken> {
    bytes.clear();
    let (kind, stamp, name) = match told {
        Told::State { is_copy, stamp, record } => {
            let kind = if *is_copy { RecordKind::News } else { RecordKind::Change };
            (kind, *stamp, record.name())
        }
        Told::End { is_copy, stamp, name } => {
            let kind = if *is_copy { RecordKind::EndNews } else { RecordKind::End };
            (kind, *stamp, name.name())
        }
    };
    name.encode(bytes);
    let key = name_of_shared(names, bytes);
    match told {
        Told::State { record, .. } => {
            bytes.clear();
            record.encode(bytes);
        }
        Told::End { is_copy: false, .. } => bytes.clear(),
        // The owner does not know things of its own by their names.
        Told::End { is_copy: true, .. } => {}
    }
    let identity = Identity { key, incarnation: stamp, version: 0 };
    take(&Record { identity, kind, body: bytes })
}
