//! Operations on the connections that a filter chooses: list, delete, change.
//!
//! For a filter that names a flow, the flow is looked up in its bucket. Any other filter needs a
//! walk over the first cache line of each entry, a piece of one bucket at a time.

use std::ops::ControlFlow;
use std::sync::Arc;

use conntrack::{Changes, Connection, Cursor, Filter};
use flow::{FlowKey, Zone};
use ruleset::Forwarded;
use steer::BucketId;

use crate::Gateway;
use crate::control::coordinator::Coordinator;
use crate::control::worker_handle::Unresponsive;
use crate::path::selection::{Operation, Part, Selected, Selection};
use crate::worker::command::Question;

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
                next = self.ask_owner(bucket, question)?.rest;
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
        self.select(filter, &Operation::Show, found)
    }

    /// Deletes every connection that matches, and returns how many it deleted.
    ///
    /// # Errors
    /// [`Unresponsive`]; connections that were deleted before stay deleted.
    pub fn delete_connections(&self, filter: &Filter) -> Result<u64, Unresponsive> {
        self.affect(filter, Operation::Delete)
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
        self.affect(filter, Operation::Update(changes))
    }

    fn affect(&self, filter: &Filter, what: Operation) -> Result<u64, Unresponsive> {
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
        what: &Operation,
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
                    Some(from) => place = Part::Piece(from),
                    None => break,
                }
            }
        }
        Ok(())
    }

    /// The places where matching connections can be.
    fn places(&self, filter: &Filter) -> Vec<(BucketId, Part)> {
        let coordinator = self.shared.lock();
        // Connections of removed zones live on, so these zones count too.
        let zones = coordinator.blueprint.limit_pools.zones().map(|(zone, _)| zone);
        let keys: Option<Vec<_>> = zones.chain([Zone(0)]).map(|zone| filter.flows(zone)).collect();
        let keys = keys.map(|keys| keys.into_iter().flatten().collect::<Vec<_>>());
        match keys {
            // Every bucket may have a part of a tunnel.
            Some(keys) if !coordinator.has_resteered && !keys.iter().any(FlowKey::is_tunnel) => {
                let place = |key| (coordinator.bucket_of(&key), Part::Flow(key));
                keys.into_iter().map(place).collect()
            }
            _ => {
                let buckets = coordinator.config.buckets.iter();
                buckets.map(|bucket| (bucket, Part::Piece(Cursor::default()))).collect()
            }
        }
    }
}
