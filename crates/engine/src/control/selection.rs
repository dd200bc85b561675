//! Operations on the connections that a filter chooses: list, delete, change.
//!
//! For a filter that names a flow, the flow is looked up in its bucket. Any other filter needs a
//! walk over the first cache line of each entry, a piece of one bucket at a time.

use std::net::IpAddr;
use std::ops::ControlFlow;
use std::sync::Arc;

use conntrack::{Action, Changes, Connection, Cursor, Filter, TupleTransport};
use flow::{FlowKey, Timestamp, Zone};
use ruleset::Forwarded;
use steer::BucketId;
use wire::protocol;

use crate::Gateway;
use crate::control::coordinator::Coordinator;
use crate::control::worker_handle::Unresponsive;
use crate::worker::Worker;
use crate::worker::command::Question;

/// Places of a connection table that one question covers. They take about as long as a batch of
/// packets, whether many or few connections match.
const PIECE: u32 = 8192;

/// A part of an operation: a piece of a bucket.
pub struct Selection {
    filter: Arc<Filter>,
    what: What,
    place: Place,
}

/// The operation on the connections that match.
#[derive(Clone)]
enum What {
    Show,
    Delete,
    Update(Changes),
    /// Deletes connections whose packets the kernel would take for its own.
    DeleteLed(Arc<[Forwarded]>),
}

/// The place to look at.
#[derive(Clone, Copy)]
enum Place {
    Piece(Cursor),
    Flow(FlowKey),
}

/// The result of a [`Selection`].
#[derive(Default)]
pub struct Selected {
    shown: Vec<Connection>,
    affected: u64,
    rest: Option<Cursor>,
}

impl Worker {
    pub(crate) fn select(
        &mut self,
        bucket: BucketId,
        selection: &Selection,
        now: Timestamp,
    ) -> Selected {
        let mut selected = Selected::default();
        let Some(bucket) = self.path.ownership.get_mut(bucket) else { return selected };
        if selection.is_of_all() {
            self.path.tracking.flush_inside(bucket, now, &mut self.path.counters);
        }
        let mut context = self.path.tracking.context(now, &mut self.path.counters);
        let Selection { filter, what, place } = selection;
        let mut led = Vec::new();
        let mut show = |connection| selected.shown.push(connection);
        let mut note = |connection: Connection| {
            if let What::DeleteLed(left) = what
                && is_led(&connection, left)
            {
                led.push(connection.key);
            }
        };
        let action = match what {
            What::Show => Action::Show(&mut show),
            What::Delete => Action::Delete,
            What::Update(changes) => Action::Update(*changes),
            What::DeleteLed(_) => Action::Show(&mut note),
        };
        let connections = &mut bucket.connections;
        (selected.affected, selected.rest) = match place {
            Place::Piece(from) => connections.select(filter, action, (*from, PIECE), &mut context),
            Place::Flow(key) => {
                let hash = self.path.hasher.table_hash(key);
                let found = connections.select_flow(key, hash, filter, action, &mut context);
                (found.into(), None)
            }
        };
        if let What::DeleteLed(_) = what {
            let mut delete = |key: &FlowKey| {
                let hash = self.path.hasher.table_hash(key);
                connections.select_flow(key, hash, filter, Action::Delete, &mut context)
            };
            selected.affected = led.iter().filter(|key| delete(key)).count() as u64;
        }
        selected
    }
}

/// True for a connection whose packets the kernel would take for its own. TCP is excepted: there
/// the kernel takes no segment of a connection that it has not seen open.
fn is_led(connection: &Connection, left: &[Forwarded]) -> bool {
    let Connection { family, protocol, original, .. } = connection;
    let number = |address: IpAddr| match address {
        IpAddr::V4(address) => address.to_bits().into(),
        IpAddr::V6(address) => address.to_bits(),
    };
    let ends = (number(original.source), number(original.destination));
    let port = match original.transport {
        TupleTransport::Ports { destination, .. } => Some(destination),
        _ => None,
    };
    *protocol != protocol::TCP
        && left.iter().any(|packets| packets.may_be((*family, *protocol), ends, port))
}

impl Selection {
    /// Deletes the matching connections in a piece of a bucket whose packets the kernel would take
    /// for its own.
    pub fn led(filter: &Arc<Filter>, left: &Arc<[Forwarded]>, from: Cursor) -> Self {
        let what = What::DeleteLed(left.clone());
        Self { filter: filter.clone(), what, place: Place::Piece(from) }
    }
}

impl Selection {
    /// True for the first piece of a bucket whose connections are all to be deleted. The
    /// connections inside tunnels, which no filter chooses, end with it.
    fn is_of_all(&self) -> bool {
        matches!((&self.what, self.place), (What::Delete, Place::Piece(from)) if from == Cursor::default())
            && *self.filter == Filter::default()
    }
}

impl Selected {
    /// The start of the next piece; `None` if this was the last.
    pub const fn rest(&self) -> Option<Cursor> {
        self.rest
    }
}

impl Coordinator {
    /// Ends the matching connections whose packets the kernel would take for its own, except those
    /// of TCP. A connection that is opened meanwhile may stay.
    pub fn end_led(&mut self, filter: Filter, left: &[Forwarded]) -> Result<(), Unresponsive> {
        let (filter, left) = (Arc::new(filter), left.into());
        let buckets: Vec<BucketId> = self.config.buckets.iter().collect();
        for bucket in buckets {
            let mut next = Some(Cursor::default());
            while let Some(from) = next {
                let selection = Selection::led(&filter, &left, from);
                let question = |reply| Question::Select(bucket, selection, reply);
                next = self.ask_owner(bucket, question)?.rest();
            }
        }
        Ok(())
    }
}

impl Gateway {
    /// Calls `each` for every connection that matches, until it breaks off. It reads a piece of
    /// one bucket at a time, so it may miss connections that come or go meanwhile. It calls `each`
    /// at most once for a connection that stays, and exactly once if it comes to the end.
    ///
    /// # Errors
    /// [`Unresponsive`].
    pub fn connections(
        &self,
        filter: &Filter,
        each: &mut dyn FnMut(Connection) -> ControlFlow<()>,
    ) -> Result<(), Unresponsive> {
        let found = |selected: Selected| selected.shown.into_iter().try_for_each(&mut *each);
        self.select(filter, &What::Show, found)
    }

    /// Deletes every connection that matches, and returns how many it deleted.
    ///
    /// # Errors
    /// [`Unresponsive`]; connections that were deleted before stay deleted.
    pub fn delete_connections(&self, filter: &Filter) -> Result<u64, Unresponsive> {
        self.affect(filter, What::Delete)
    }

    /// Changes every connection that matches. Returns the number of those that it had to change.
    ///
    /// # Errors
    /// [`Unresponsive`]; changes that were made before stay.
    pub fn update_connections(
        &self,
        filter: &Filter,
        changes: Changes,
    ) -> Result<u64, Unresponsive> {
        self.affect(filter, What::Update(changes))
    }

    fn affect(&self, filter: &Filter, what: What) -> Result<u64, Unresponsive> {
        let mut affected = 0;
        self.select(filter, &what, |selected| {
            affected += selected.affected;
            ControlFlow::Continue(())
        })?;
        Ok(affected)
    }

    fn select(
        &self,
        filter: &Filter,
        what: &What,
        mut each: impl FnMut(Selected) -> ControlFlow<()>,
    ) -> Result<(), Unresponsive> {
        let filter = Arc::new(filter.clone());
        for (bucket, mut place) in self.places(&filter) {
            loop {
                let what = what.clone();
                let selection = Selection { filter: filter.clone(), what, place };
                let question = |reply| Question::Select(bucket, selection, reply);
                let selected = self.shared.lock().ask_owner(bucket, question)?;
                let rest = selected.rest;
                if each(selected).is_break() {
                    return Ok(());
                }
                match rest {
                    Some(from) => place = Place::Piece(from),
                    None => break,
                }
            }
        }
        Ok(())
    }

    /// The places where matching connections can be.
    fn places(&self, filter: &Filter) -> Vec<(BucketId, Place)> {
        let coordinator = self.shared.lock();
        // Connections of removed zones live on, so these zones count too.
        let zones = coordinator.limit_pools.zones().map(|(zone, _)| zone);
        let keys: Option<Vec<_>> = zones.chain([Zone(0)]).map(|zone| filter.flows(zone)).collect();
        let keys = keys.map(|keys| keys.into_iter().flatten().collect::<Vec<_>>());
        match keys {
            // Every bucket may have a part of a tunnel.
            Some(keys) if !keys.iter().any(FlowKey::is_tunnel) => {
                let place = |key| (coordinator.bucket_of(&key), Place::Flow(key));
                keys.into_iter().map(place).collect()
            }
            _ => {
                let buckets = coordinator.config.buckets.iter();
                buckets.map(|bucket| (bucket, Place::Piece(Cursor::default()))).collect()
            }
        }
    }
}
