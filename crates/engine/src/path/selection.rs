//! The pieces of an operation on the connections that a filter chooses: list, delete, change.

use std::sync::Arc;

use conntrack::{Action, Changes, Connection, Cursor, Filter, TupleTransport};
use flow::{FlowKey, Timestamp};
use ruleset::{Forwarded, address_bits};
use steer::BucketId;
use wire::protocol;

use crate::path::PacketPath;
use crate::path::host_flows::HostFlows;

/// Places of a connection table that one question covers. They take about as long as a batch of
/// packets, whether many or few connections match.
const PIECE: u32 = 8192;

/// A part of an operation: a piece of a bucket.
pub struct Selection {
    /// The connections that match it are chosen.
    pub filter: Arc<Filter>,
    /// The operation on them.
    pub what: Operation,
    /// The place to look at.
    pub place: Part,
}

/// The operation on the connections that match.
#[derive(Clone)]
pub enum Operation {
    Show,
    Delete,
    Update(Changes),
    /// Deletes connections whose packets the kernel would take for its own.
    DeleteLed(Arc<[Forwarded]>),
}

/// The place to look at.
#[derive(Clone, Copy)]
pub enum Part {
    Piece(Cursor),
    Flow(FlowKey),
}

/// The result of a [`Selection`].
#[derive(Default)]
pub struct Selected {
    /// The connections, if they were to be shown.
    pub shown: Vec<Connection>,
    /// How many connections were deleted or changed.
    pub affected: u64,
    /// The start of the next piece; `None` if this was the last.
    pub rest: Option<Cursor>,
}

impl PacketPath {
    pub(crate) fn select(
        &mut self,
        bucket: BucketId,
        selection: &Selection,
        now: Timestamp,
    ) -> Selected {
        let mut selected = Selected::default();
        let Some(bucket) = self.buckets.get_mut(bucket) else { return selected };
        if selection.is_of_all() {
            self.tracking.flush_inside(bucket, now, &mut self.counters);
            bucket.host_flows = HostFlows::default();
        }
        let mut context = self.tracking.context(now, &mut self.counters);
        let Selection { filter, what, place } = selection;
        let mut led = Vec::new();
        let mut show = |connection| selected.shown.push(connection);
        let mut note = |connection: Connection| {
            if let Operation::DeleteLed(left) = what
                && is_led(&connection, left)
            {
                led.push(connection.key);
            }
        };
        let action = match what {
            Operation::Show => Action::Show(&mut show),
            Operation::Delete => Action::Delete,
            Operation::Update(changes) => Action::Update(*changes),
            Operation::DeleteLed(_) => Action::Show(&mut note),
        };
        let connections = &mut bucket.connections;
        (selected.affected, selected.rest) = match place {
            Part::Piece(from) => connections.select(filter, action, (*from, PIECE), &mut context),
            Part::Flow(key) => {
                let hash = self.hasher.table_hash(key);
                let found = connections.select_flow(key, hash, filter, action, &mut context);
                (found.into(), None)
            }
        };
        if let Operation::DeleteLed(_) = what {
            let mut delete = |key: &FlowKey| {
                let hash = self.hasher.table_hash(key);
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
    let ends = (address_bits(original.source), address_bits(original.destination));
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
        let what = Operation::DeleteLed(left.clone());
        Self { filter: filter.clone(), what, place: Part::Piece(from) }
    }
}

impl Selection {
    /// True for the first piece of a bucket whose connections are all to be deleted. The
    /// connections inside tunnels, which no filter chooses, end with it, and so do flows that were left
    /// to the host.
    fn is_of_all(&self) -> bool {
        matches!((&self.what, self.place), (Operation::Delete, Part::Piece(from)) if from == Cursor::default())
            && *self.filter == Filter::default()
    }
}
