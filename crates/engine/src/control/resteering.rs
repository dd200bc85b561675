//! Changes of the inside addresses. [`crate::path::resteering`] says what the workers do.

use conntrack::Cursor;
use steer::AddressSet;

use crate::control::config::SteerError;
use crate::control::coordinator::{Coordinator, HOPS};
use crate::control::worker_handle::Unresponsive;
use crate::worker::command::{Command, Question};

impl Coordinator {
    /// Has all workers steer packets by these inside addresses, and returns when they do.
    /// Connections keep their buckets and find their packets. No packet overtakes another.
    ///
    /// # Errors
    /// [`Unresponsive`]: some workers may steer by the addresses before. The next call tells all
    /// workers.
    pub fn change_inside(&mut self, inside: AddressSet) -> Result<(), Unresponsive> {
        if inside == *self.hasher.inside() && self.spread.inside.is_none() {
            return Ok(());
        }
        if self.worker_count() == 0 {
            // Workers begin with what the hasher has.
            self.hasher.set_inside(inside);
            return Ok(());
        }
        // If a worker hangs, this is tried again when all answer.
        self.spread.inside = Some(inside.clone());
        let prepared = self.prepare_inside(&inside);
        let changed = prepared.and_then(|()| self.change_between_packets(inside));
        match changed {
            Ok(()) => self.spread.inside = None,
            Err(_) => {
                // A worker that hangs gets the command later.
                let _ = self.tell_all(|| Command::PrepareInside(None));
            }
        }
        changed
    }

    /// Has aliases filed for all connections whose packets will come to another bucket.
    fn prepare_inside(&mut self, inside: &AddressSet) -> Result<(), Unresponsive> {
        self.tell_all(|| Command::PrepareInside(Some(inside.clone())))?;
        // A worker obeys commands in order, so later connections are filed for both.
        self.reports()?;
        for bucket in self.config.buckets.iter() {
            let mut next = Some(Cursor::default());
            while let Some(from) = next {
                next = self.ask_owner(bucket, |reply| Question::Resteer(bucket, from, reply))?;
            }
        }
        Ok(())
    }

    /// Changes the addresses while no packet is on its way between two workers.
    fn change_between_packets(&mut self, inside: AddressSet) -> Result<(), Unresponsive> {
        let stopped = self.stop_arrivals();
        let outcome = stopped.and_then(|()| {
            self.hasher.set_inside(inside.clone());
            self.has_resteered = true;
            self.tell_all(|| Command::Inside(inside.clone()))?;
            self.reports().map(drop)
        });
        let handed_out = self.hand_out_queues(self.worker_count());
        outcome.and(handed_out)
    }

    /// Takes all receive queues from the workers, and waits until they have processed everything.
    fn stop_arrivals(&mut self) -> Result<(), Unresponsive> {
        if self.worker_count() < 2 {
            // A worker alone has no packet on its way.
            return Ok(());
        }
        for id in self.ports.polled_by(|_| true) {
            self.release_queue(id).map_err(unresponsive)?;
        }
        (0..HOPS).try_for_each(|_| self.drain_rings()).map_err(unresponsive)
    }
}

/// Taking queues away and draining rings fails only because a worker hangs.
fn unresponsive(error: SteerError) -> Unresponsive {
    match error {
        SteerError::Unresponsive(error) => error,
        _ => Unresponsive(steer::WorkerId(0)),
    }
}
