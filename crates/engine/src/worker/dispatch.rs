//! Carries out the coordinator's commands and answers its questions.

use flow::Timestamp;
use steer::WorkerId;

use crate::path::packet::{Item, Link};
use crate::path::recent_drops::RecentDrop;
use crate::path::settings::Settings;
use crate::worker::Worker;
use crate::worker::command::{Command, Notice, Question};

/// Places of the table of incomplete datagrams, or of that of stations, that one question covers.
/// They take about as long as a batch of packets.
const PIECE: u32 = 1024;

impl Worker {
    /// Carries out a command, between two batches.
    pub(crate) fn obey(&mut self, command: Command, now: Timestamp) {
        if command.changes_decisions() {
            self.path.generation += 1;
        }
        match command {
            Command::Switch(moves) => {
                self.path.remove_aliases(now);
                moves.into_iter().for_each(|order| self.switch(order));
            }
            Command::Connect(peer, link) => self.set_link(peer, Some(link)),
            Command::Disconnect(peer) => self.set_link(peer, None),
            Command::AddQueue(queue) => self.queues.push(queue),
            Command::ReleaseQueue { id, marker } => self.release_queue(id, marker),
            Command::SetOutput(port, queue) => self.path.outputs.set(port, queue),
            Command::SetMtus(mtus) => self.path.outputs.set_mtus(&mtus),
            Command::SetNames(names) => {
                if let Some(rules) = &mut self.path.rules {
                    rules.interfaces = names;
                }
            }
            Command::Routing(routing) => {
                let now_ns = now.as_nanos();
                self.path.end_masquerades(&routing, now);
                self.path.with_router(|router, exits| router.take(routing, now_ns, exits));
            }
            Command::Translated(translated) => self.path.hasher.set_translated(translated),
            Command::Pin(cpu) => self.pin = Some(cpu),
            Command::Settings(settings) => self.apply(*settings),
            Command::LearnZones(pools) => self.path.tracking.limits.learn(&pools),
            Command::Zones(zones) => self.path.tracking.set_zones(*zones),
            Command::ShareLimits(workers) => {
                self.path.reassembly.memory.set_workers(workers);
                self.path.tracking.limits.sources.set_workers(workers);
                self.path.tracking.limits.share(workers);
                if let Some(inside) = &mut self.path.tracking.inside {
                    inside.limits.follow();
                }
                self.path.syn_proxy.set_workers(workers);
                self.path.translator.identifications.set_workers(workers);
                if let Some(rules) = &mut self.path.rules {
                    rules.state.set_workers(workers as usize);
                }
            }
            Command::Rules(rules) => {
                let translates = rules.as_ref().is_some_and(|rules| rules.shared.translates());
                if let Some(router) = self.path.router.as_mut().filter(|_| translates) {
                    router.take_own();
                }
                let before = std::mem::replace(&mut self.path.rules, rules);
                self.notify(Notice::Rules(self.path.id, before));
            }
            Command::ResetQuotas => {
                if let Some(rules) = &mut self.path.rules {
                    rules.state.reset_quotas();
                }
            }
            Command::Elements(revision, elements) => {
                elements
                    .into_iter()
                    .for_each(|element| self.path.learn_element(revision, element, now));
            }
            Command::Stations(heard) => {
                heard.into_iter().for_each(|heard| self.path.outputs.learn_from_peer(heard));
            }
            Command::Mark(marker) => self.mark(marker),
            Command::Subscribe(sender) => self.path.tracking.subscribers.add(sender),
            Command::SubscribeExpectations(sender) => {
                self.path.tracking.expectation_subscribers.add(sender);
            }
            Command::Ask(question) => self.answer(question, now),
            // `Worker::turn` ends before it comes to this.
            Command::Stop => {}
        }
    }

    fn set_link(&mut self, peer: WorkerId, link: Option<Box<Link>>) {
        if self.path.links.len() <= peer.index() {
            self.path.links.resize_with(peer.index() + 1, || None);
        }
        self.path.links[peer.index()] = link;
    }

    fn release_queue(&mut self, id: usize, marker: u64) {
        let Some(index) = self.queues.iter().position(|queue| queue.id == id) else { return };
        let mut queue = self.queues.swap_remove(index);
        queue.count_missing(&mut self.path.counters);
        self.mark(marker);
        self.notify(Notice::Released(queue));
    }

    fn mark(&mut self, marker: u64) {
        for link in self.path.links.iter_mut().flatten() {
            link.stage(Item::Marker(marker));
        }
    }

    fn apply(&mut self, settings: Settings) {
        for (peer, link) in self.path.links.iter_mut().enumerate() {
            if let Some(link) = link {
                link.set_limits(settings.steer.backlog_limits(WorkerId(peer as u16)));
            }
        }
        let translated = self.path.hasher.translated().with_ports(settings.steer.nat_ports());
        self.path.hasher.set_translated(translated);
        self.path.ownership.set_keep_limit(settings.steer.netdev_max_backlog());
        self.path.tracking.apply(settings);
    }

    fn answer(&mut self, question: Question, now: Timestamp) {
        // The receiver of the answer may have given up waiting, which is no error here.
        match question {
            Question::Report(reply) => {
                let _ = reply.try_send(self.report());
            }
            Question::Select(bucket, selection, reply) => {
                let _ = reply.try_send(self.select(bucket, &selection, now));
            }
            Question::ForgetExpectations(budget, reply) => {
                let context = self.path.tracking.context(now, &mut self.path.counters);
                let forgotten =
                    context.expectations.flush(budget, now, &mut { context.expectation_events });
                let _ = reply.try_send(forgotten);
            }
            Question::Datagrams(from, reply) => {
                let mut found = Vec::new();
                let settings = &self.path.tracking.settings.defrag;
                let queues = &self.path.reassembly.queues;
                let next = queues.list(from, PIECE, settings, now, |view| found.push(view));
                let _ = reply.try_send((found, next));
            }
            Question::Rules(from, reply) => {
                let counts = self.path.rules.as_ref().map(|rules| rules.counts(from, now));
                let _ = reply.try_send(counts);
            }
            Question::RuleElements(from, reply) => {
                let elements = self.path.rules.as_ref().map(|rules| rules.elements(from, now));
                let _ = reply.try_send(elements.unwrap_or_default());
            }
            Question::Stations(from, reply) => {
                let _ = reply.try_send(self.path.outputs.heard(from, PIECE as usize));
            }
            Question::IsLeftToHost(bucket, keyed, sign, reply) => {
                let hash = self.path.hasher.table_hash(&keyed.key);
                let bucket = self.path.ownership.get(bucket);
                let is_left = bucket.is_some_and(|it| it.host_flows.knows(&keyed, hash, sign, now));
                let _ = reply.try_send(is_left);
            }
            Question::RecentDrops(reply) => {
                let aged = |dropped: RecentDrop| (now.since(dropped.at), dropped);
                let kept = self.path.recent_drops.kept();
                let _ = reply.try_send(kept.into_iter().map(aged).collect());
            }
        }
    }
}
