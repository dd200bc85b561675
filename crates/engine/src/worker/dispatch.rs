//! Carries out the coordinator's commands and answers its questions.

use flow::Timestamp;

use crate::worker::Worker;
use crate::worker::command::{Command, Notice, Question};

impl Worker {
    /// Carries out a command, between two batches.
    pub(crate) fn obey(&mut self, command: Command, now: Timestamp) {
        if command.changes_decisions() {
            self.path.forget_decisions();
        }
        match command {
            Command::Switch(moves) => self.path.switch(moves, now),
            Command::Connect(peer, link) => self.path.connect(peer, Some(link)),
            Command::Disconnect(peer) => self.path.connect(peer, None),
            Command::AddQueue(queue) => {
                self.queues.push(queue);
                self.follow_policies();
            }
            Command::ReleaseQueue { id, marker } => self.release_queue(id, marker),
            Command::SetOutput(port, queue) => self.path.set_output(port, queue),
            Command::SetMtus(mtus) => self.path.set_mtus(&mtus),
            Command::SetInterfaces(interfaces) => self.path.set_interfaces(interfaces),
            Command::Routing(routing) => self.path.set_routing(routing, now),
            Command::Inside(inside) => self.path.set_inside(inside),
            Command::PrepareInside(inside) => self.path.prepare_inside(inside),
            Command::Pin(cpu) => self.pin = Some(cpu),
            Command::Settings(settings) => {
                self.waits.set_figures(&settings);
                self.follow_policies();
                self.path.set_settings(*settings);
            }
            Command::Policies(policies) => {
                self.waits.set_policies(policies);
                self.follow_policies();
            }
            Command::LearnZones(pools) => self.path.learn_zones(&pools),
            Command::Zones(zones) => self.path.set_zones(*zones),
            Command::ShareLimits(workers) => self.path.share_limits(workers),
            Command::Rules(rules) => {
                let before = self.path.exchange_rules(rules);
                self.notify(Notice::Rules(self.path.worker(), before));
            }
            Command::RuleElements(rules, moves) => self.path.change_elements(&rules, &moves),
            Command::Stations(heard) => {
                heard.into_iter().for_each(|heard| self.path.learn_from_peer(heard));
            }
            Command::Mark(marker) => self.path.mark(marker),
            Command::Subscribe(sender) => self.path.subscribe(sender),
            Command::SubscribeExpectations(sender) => self.path.subscribe_expectations(sender),
            Command::SendChanges(sender) => self.path.set_change_sender(sender, now),
            Command::StandBy(stands_by) => self.path.set_stands_by(stands_by),
            Command::DividePorts(part) => self.path.divide_ports(part),
            Command::Ask(question) => self.answer(question, now),
            // `Worker::turn` ends before it comes to this.
            Command::Stop => {}
        }
    }

    fn release_queue(&mut self, id: usize, marker: u64) {
        let Some(index) = self.queues.iter().position(|queue| queue.id == id) else { return };
        let mut queue = self.queues.swap_remove(index);
        self.path.count_too_long(queue.count_missing());
        self.path.mark(marker);
        self.follow_policies();
        self.notify(Notice::Released(queue));
    }

    fn answer(&mut self, question: Question, now: Timestamp) {
        // The receiver of the answer may have given up waiting, which is no error here.
        match question {
            Question::Report(reply) => {
                let _ = reply.try_send(self.report(now));
            }
            Question::Select(bucket, selection, reply) => {
                let _ = reply.try_send(self.path.select(bucket, &selection, now));
            }
            Question::Resteer(bucket, from, reply) => {
                let _ = reply.try_send(self.path.resteer(bucket, from, now));
            }
            Question::Export(bucket, from, reply) => {
                let _ = reply.try_send(self.path.export(bucket, from, now));
            }
            Question::Import(records, needs_addresses, reply) => {
                let _ = reply.try_send(self.path.import(records, needs_addresses, now));
            }
            Question::SettledImports(reply) => {
                let _ = reply.try_send(self.path.settled_imports());
            }
            Question::ExportAnnouncements(from, reply) => {
                let _ = reply.try_send(self.path.export_announcements(from, now));
            }
            Question::ImportAnnouncements(records, reply) => {
                let _ = reply.try_send(self.path.import_announcements(records, now));
            }
            Question::TellAll(bucket, from, reply) => {
                let _ = reply.try_send(self.path.tell_all(bucket, from, now));
            }
            Question::TellRest(reply) => {
                let _ = reply.try_send(self.path.tell_rest(now));
            }
            Question::Adopt(bucket, from, reply) => {
                let _ = reply.try_send(self.path.adopt(bucket, from, now));
            }
            Question::GiveAway(bucket, from, reply) => {
                let _ = reply.try_send(self.path.give_away(bucket, from, now));
            }
            Question::Apply(changes, reply) => {
                let _ = reply.try_send(self.path.apply(changes, now));
            }
            Question::TakeAnnouncements(reply) => {
                let _ = reply.try_send(self.path.take_announcements(now));
            }
            Question::TellAnnouncements(from, reply) => {
                let _ = reply.try_send(self.path.tell_announcements(from, now));
            }
            Question::GiveAnnouncementsAway(from, reply) => {
                let _ = reply.try_send(self.path.give_announcements_away(from, now));
            }
            Question::ApplyAnnouncements(changes, reply) => {
                let _ = reply.try_send(self.path.apply_announcements(changes, now));
            }
            Question::ForgetExpectations(most, reply) => {
                let _ = reply.try_send(self.path.forget_expectations(most, now));
            }
            Question::Datagrams(from, reply) => {
                let _ = reply.try_send(self.path.list_datagrams(from, now));
            }
            Question::Rules(from, reply) => {
                let _ = reply.try_send(self.path.rule_counts(from));
            }
            Question::Stations(from, reply) => {
                let _ = reply.try_send(self.path.stations(from));
            }
            Question::IsLeftToHost(bucket, keyed, sign, reply) => {
                let _ = reply.try_send(self.path.has_left_to_host(bucket, &keyed, sign, now));
            }
            Question::RecentDrops(reply) => {
                let _ = reply.try_send(self.path.recent_drops(now));
            }
        }
    }
}
