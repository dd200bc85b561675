//! Changes that the coordinator orders, between two batches.

use std::sync::Arc;

use conntrack::{Event, ExpectationEvent, LimitPools};
use flow::Timestamp;
use netio::{PortId, TxQueue};
use ruleset::{CounterMoves, Interface};
use steer::WorkerId;

use crate::egress::routing::Routing;
use crate::egress::stations::StationUpdate;
use crate::path::PacketPath;
use crate::path::events::EventSender;
use crate::path::packet::{Item, Link};
use crate::path::rules::ruleset::Rules;
use crate::path::rules::worker_rules::WorkerRules;
use crate::path::settings::Settings;
use crate::path::zones::Zones;

impl PacketPath {
    /// Recorded decisions no longer hold, because something changes that they were made from.
    pub(crate) fn forget_decisions(&mut self) {
        self.tracking.begin_generation();
    }

    /// Uses these rings to another worker, or gives them up.
    pub(crate) fn connect(&mut self, peer: WorkerId, link: Option<Box<Link>>) {
        self.buckets.connect(peer, link);
    }

    /// Sends a marker to every other worker.
    pub(crate) fn mark(&mut self, marker: u64) {
        self.buckets.tell_all(|| Item::Marker(marker));
    }

    /// Sends through this queue of a port from now on. `None` closes the port.
    pub(crate) fn set_output(&mut self, port: PortId, queue: Option<Box<dyn TxQueue>>) {
        self.forwarder.set_output(port, queue);
    }

    /// Uses these MTUs of the ports, bytes behind the link header; `None`: no known limit.
    pub(crate) fn set_mtus(&mut self, mtus: &[Option<u32>]) {
        self.forwarder.set_mtus(mtus);
    }

    /// Uses these names and groups of the ports, in the form in which rules compare them.
    pub(crate) fn set_interfaces(&mut self, interfaces: Arc<[Interface]>) {
        if let Some(rules) = &mut self.rules {
            rules.know_interfaces(interfaces);
        }
    }

    /// Uses these routes, neighbours and links. Masqueraded connections end whose address is gone,
    /// and packets leave that have waited for their next hop.
    pub(crate) fn set_routing(&mut self, routing: Arc<Routing>, now: Timestamp) {
        self.end_masquerades(&routing, now);
        let Self { forwarder, pool, counters, .. } = self;
        forwarder.take_routing(routing, now.as_nanos(), pool, counters);
        self.drop_refused();
    }

    /// Uses these tunables.
    pub(crate) fn set_settings(&mut self, settings: Settings) {
        self.buckets.set_limits(&settings.steer);
        self.forwarder.set_waiting_bytes(settings.next_hops.unres_qlen_bytes);
        self.tracking.apply(settings);
    }

    /// Counts the connections of these zones, before any packet of them comes.
    pub(crate) fn learn_zones(&mut self, pools: &LimitPools) {
        self.tracking.limits_mut().learn(pools);
    }

    /// Uses these zones and their settings.
    pub(crate) fn set_zones(&mut self, zones: Zones) {
        self.tracking.set_zones(zones);
    }

    /// Takes the share of one of this many workers of everything that is divided.
    pub(crate) fn share_limits(&mut self, workers: u32) {
        self.reassembly.share_limits(workers);
        self.tracking.share_limits(workers);
        self.syn_proxy.set_workers(workers);
        self.translator.set_workers(workers);
    }

    /// Judges packets by these rules, or by none. Returns the rules before.
    pub(crate) fn exchange_rules(
        &mut self,
        mut rules: Option<Box<WorkerRules>>,
    ) -> Option<Box<WorkerRules>> {
        if let (Some(rules), Some(cpu)) = (&mut rules, self.cpu) {
            rules.set_cpu(cpu);
        }
        if rules.as_ref().is_some_and(|rules| rules.translates()) {
            self.forwarder.take_own();
        }
        self.tracking.count_for_rules(rules.as_ref().is_some_and(|rules| rules.asks_for_counts()));
        std::mem::replace(&mut self.rules, rules)
    }

    /// Judges by rules that differ only in elements of sets.
    pub(crate) fn change_elements(&mut self, rules: &Arc<Rules>, moves: &CounterMoves) {
        if let Some(before) = &mut self.rules {
            before.go_on_with(rules, moves);
            self.tracking.count_for_rules(before.asks_for_counts());
        }
    }

    /// Judges by these rules from now on. This is for workers without a coordinator.
    pub(crate) fn set_rules(&mut self, rules: &Arc<Rules>) {
        self.tracking.count_for_rules(rules.asks_for_counts());
        self.rules = Some(rules.for_worker());
    }

    /// Notes the CPU on which the worker runs in the next turn, for rules that ask for it.
    #[inline]
    pub(crate) const fn runs_on(&mut self, cpu: u32) {
        self.cpu = Some(cpu);
        if let Some(rules) = &mut self.rules {
            rules.set_cpu(cpu);
        }
    }

    /// Takes over what another worker knows of a station of a bridge.
    pub(crate) fn learn_from_peer(&mut self, heard: StationUpdate) {
        self.forwarder.learn_from_peer(heard);
    }

    /// Sends events of connections to one more subscriber.
    pub(crate) fn subscribe(&mut self, sender: EventSender<Event>) {
        self.tracking.subscribe(sender);
    }

    /// Sends events of expectations to one more subscriber.
    pub(crate) fn subscribe_expectations(&mut self, sender: EventSender<ExpectationEvent>) {
        self.tracking.subscribe_expectations(sender);
    }
}
