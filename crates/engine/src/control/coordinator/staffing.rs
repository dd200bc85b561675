//! Hires, pins and dismisses workers.

use steer::{BucketMove, WorkerId, WorkerSet};

use super::{Coordinator, HOPS};
use crate::Bucket;
use crate::control::blueprint::Post;
use crate::control::config::{StartError, SteerError, WorkerCount};
use crate::control::worker_handle::{Unresponsive, WorkerHandle, introduce};
use crate::egress::stations::StationUpdate;
use crate::worker::Worker;
use crate::worker::command::{Command, Question};
use crate::worker::report::WorkerReport;

/// Stations that a new worker gets with one command.
const STATIONS_AT_ONCE: usize = 1024;

impl Coordinator {
    /// Starts one more worker and connects it to the others. A worker that is hired at the start
    /// gets its buckets at once; buckets have to be moved to a later one.
    pub(super) fn hire(&mut self) -> Result<(), StartError> {
        let id = WorkerId(self.workers.len() as u16);
        let cpu = self.cpu_of(id);
        let (mut handle, inbox) = WorkerHandle::new(id, cpu).map_err(StartError::Thread)?;
        let refuses_new = self.ports.refuse_new();
        let post = Post {
            id,
            hasher: &self.hasher,
            routes: self.table.iter().map(|(_, owner)| owner).collect(),
            zones: &self.zones,
            outputs: refuses_new.len(),
            refuses_new,
            workers: u32::from(id.0) + 1,
            resolver: self.resolver.clone(),
            host_questions: self.host_asker.as_ref().map(|it| it.of_worker(&handle.wakeup)),
        };
        let tools = (inbox, &handle.wakeup);
        let mut worker = Worker::new(self.blueprint.equipment(&self.config, post, tools));
        let now = self.execution.now();
        for bucket in self.table.buckets_of(id) {
            worker.install(bucket, Box::new(Bucket::new(now)));
        }
        handle.start(worker, &self.execution).map_err(StartError::Thread)?;
        if let Err(error) = self.introduce_to_all(&mut handle) {
            let forgotten = self.tell_all(|| Command::Disconnect(id));
            if let Err(error) = forgotten.and(handle.stop()) {
                tracing::error!("{error}");
            }
            return Err(error.into());
        }
        self.workers.push(handle);
        self.give_rules(id)?;
        Ok(self.share_limits()?)
    }

    /// Connects a new worker to the others, and tells it what they know of the gateway.
    fn introduce_to_all(&mut self, handle: &mut WorkerHandle) -> Result<(), Unresponsive> {
        let id = handle.id;
        if let Some(cpu) = handle.cpu {
            handle.tell(Command::Pin(cpu))?;
        }
        for other in &mut self.workers {
            introduce(other, handle, &self.config.settings.steer)?;
        }
        for sender in self.subscriptions.iter().filter_map(|reader| reader.connect(id)) {
            handle.tell(Command::Subscribe(sender))?;
        }
        for sender in self.expectation_subscriptions.iter().filter_map(|it| it.connect(id)) {
            handle.tell(Command::SubscribeExpectations(sender))?;
        }
        self.replication.introduce(handle)?;
        handle.tell(Command::Policies(self.ports.policies()))?;
        handle.tell(Command::SetMtus(self.ports.mtus()))?;
        if let Some(routing) = &self.routing {
            handle.tell(Command::Routing(routing.clone()))?;
        }
        for (port, queue) in self.ports.transmit_queues(id) {
            handle.tell(Command::SetOutput(port, Some(queue)))?;
        }
        Ok(())
    }

    /// Gives a new worker the stations that the others know, before it gets packets: it would flood
    /// the frames for them. The others tell it of news by now. Each of them is asked, because news
    /// may be on their way between two of them.
    fn give_stations(&mut self, worker: WorkerId) -> Result<(), Unresponsive> {
        let all = self.stations_of((0..worker.0).map(WorkerId))?;
        let mut pieces = all.chunks(STATIONS_AT_ONCE);
        pieces.try_for_each(|piece| self.tell(worker, Command::Stations(piece.to_vec())))
    }

    /// The stations that all workers know, in the order in which they were heard.
    pub fn stations(&mut self) -> Result<Vec<StationUpdate>, Unresponsive> {
        self.stations_of((0..self.workers.len() as u16).map(WorkerId))
    }

    fn stations_of(
        &mut self,
        workers: impl Iterator<Item = WorkerId>,
    ) -> Result<Vec<StationUpdate>, Unresponsive> {
        let mut all = Vec::new();
        for other in workers {
            let mut next = Some(0);
            while let Some(from) = next {
                let answer = self.ask_worker(other, |reply| Question::Stations(from, reply));
                let Some(answer) = answer else { break };
                let (heard, rest) = answer?;
                all.extend(heard);
                next = rest;
            }
        }
        // The stations of a port stand in the order in which they were heard.
        all.sort_unstable_by_key(|heard| heard.seen_ns);
        Ok(all)
    }

    fn cpu_of(&self, id: WorkerId) -> Option<usize> {
        (!self.cpus.is_empty()).then(|| self.cpus[id.index() % self.cpus.len()])
    }

    /// Changes the number of workers while traffic runs.
    pub fn set_workers(&mut self, count: usize) -> Result<Vec<BucketMove>, SteerError> {
        let count = WorkerCount::fixed(count)?.resolve(&self.cpus);
        let allowed = self.ports.place(count, &self.cpus, self.config.buckets)?.allowed;
        self.resize(count, allowed)
    }

    /// Hires or dismisses until there are `count` workers, and gives the buckets to the `allowed`
    /// ones.
    fn resize(&mut self, count: usize, allowed: WorkerSet) -> Result<Vec<BucketMove>, SteerError> {
        self.tenure.may_move()?;
        while self.workers.len() < count {
            let id = WorkerId(self.workers.len() as u16);
            let hired = self.ports.open_transmit(id).map_err(StartError::from);
            hired.and_then(|()| self.hire()).map_err(|error| SteerError::Start(Box::new(error)))?;
            self.give_stations(id)?;
        }
        self.allowed = allowed;
        let moves = self.table.moves_to(allowed)?;
        self.order_moves(&moves)?;
        if count < self.workers.len() {
            self.move_queues_below(count)?;
            while self.workers.len() > count {
                self.dismiss_last()?;
            }
        } else {
            self.spread_queues()?;
        }
        Ok(moves)
    }

    /// Takes over a changed set of CPUs. The number of workers follows it unless it is fixed,
    /// every worker is pinned anew, and `rps_cpus` is applied anew. If an interface asks for CPUs
    /// that are gone, all workers may own buckets: traffic on another CPU is better than none.
    pub fn set_cpus(&mut self, cpus: Vec<usize>) -> Result<(), SteerError> {
        if !self.config.pin || cpus.is_empty() || cpus == self.cpus {
            return Ok(());
        }
        tracing::info!("usable CPUs are now {cpus:?}, before {:?}", self.cpus);
        self.cpus = cpus;
        let count = self.config.workers.resolve(&self.cpus);
        let allowed = match self.ports.place(count, &self.cpus, self.config.buckets) {
            Ok(placement) => placement.allowed,
            Err(error) => {
                tracing::warn!("{error}; until that changes, every worker may own buckets");
                WorkerSet::first(count)
            }
        };
        self.resize(count, allowed)?;
        for index in 0..self.workers.len() {
            let cpu = self.cpu_of(WorkerId(index as u16));
            self.workers[index].cpu = cpu;
            if let Some(cpu) = cpu {
                self.workers[index].tell(Command::Pin(cpu))?;
            }
        }
        Ok(())
    }

    /// Stops the last worker, which owns no bucket or queue any more. If it hangs, it stays and
    /// may get buckets again.
    fn dismiss_last(&mut self) -> Result<(), SteerError> {
        self.drain_rings()?;
        let id = WorkerId(self.workers.len() as u16 - 1);
        let counts = self.counts_of_leaver(id)?;
        self.inherit_drops(id)?;
        let Some(mut handle) = self.workers.pop() else { return Ok(()) };
        self.retired_rules.add(&counts);
        let outcome = self.tell_all(|| Command::Disconnect(id));
        self.retire(&handle.stop()?);
        outcome?;
        Ok(self.share_limits()?)
    }

    /// Keeps the last packets that a worker dropped.
    fn inherit_drops(&mut self, worker: WorkerId) -> Result<(), Unresponsive> {
        let Some(dropped) = self.ask_worker(worker, Question::RecentDrops) else { return Ok(()) };
        self.inherited_drops.add(worker, dropped?.into_iter().map(|(_, dropped)| dropped));
        Ok(())
    }

    fn retire(&mut self, report: &WorkerReport) {
        self.retired.add(&report.counters);
        for (total, sent) in self.retired_sent.iter_mut().zip(&report.sent) {
            total.add(sent);
        }
        for (port, service, totals) in &report.queues {
            self.ports.add_received(*port, *service, totals);
        }
    }

    /// Stops polling, processes every packet that was received, and stops the workers.
    pub fn stop(&mut self) -> Result<(), SteerError> {
        for id in self.ports.polled_by(|_| true) {
            self.release_queue(id)?;
        }
        for _ in 0..HOPS {
            self.drain_rings()?;
        }
        self.dismiss_all();
        Ok(())
    }

    pub(super) fn dismiss_all(&mut self) {
        for mut handle in std::mem::take(&mut self.workers) {
            match handle.stop() {
                Ok(report) => self.retire(&report),
                Err(error) => tracing::error!("{error}"),
            }
        }
    }
}

#[cfg(test)]
#[path = "staffing_tests.rs"]
mod tests;
