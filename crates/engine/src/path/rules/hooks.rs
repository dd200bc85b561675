//! The stages that ask the operator's rules: the hooks of Netfilter, around tracking and routing.
//!
//! The owner of a packet's bucket asks all hooks in one go, and rulesets are exchanged between two
//! batches, so one ruleset judges each packet. There is one exception: where the rules in front of
//! tracking have been asked and the packet then goes to another worker or waits, the rules of that
//! later time judge the rest. In the kernel every hook asks the rules of its own time.

use std::ops::ControlFlow;

use conntrack::Tracked;
use flow::{DropReason, ZonePair};
use netio::PortId;
use ruleset::{Connection, Decision, Hook, NatKind, NatRequest, Outcome, PacketView, Routes};
use wire::{Family, IcmpError, Network, Transport};

use crate::egress::bridge::OutputPorts;
use crate::egress::original_ends::original_ends;
use crate::egress::port_set::PortSet;
use crate::egress::route_decision::RouteDecision;
use crate::path::packet::{Packet, route_of};
use crate::path::rules::connection::ConnectionDetails;
use crate::path::rules::routes::RuleRoutes;
use crate::path::scratch::{Progress, Scratch};
use crate::path::step::{End, OrDrop, Reply, Step, dropped};
use crate::path::{PacketPath, TimeSource};
use conntrack::nat::TranslatedEnd;

/// True for an ICMP redirect that quotes a packet.
const fn is_redirect(network: &Network) -> bool {
    let Transport::IcmpError(IcmpError { kind, .. }) = network.transport else { return false };
    matches!(network.family, Family::V4) && kind == IcmpError::REDIRECT
}

impl PacketPath {
    /// Asks the rules in front of tracking. They may give the packet a zone, or leave it untracked.
    pub(in crate::path) fn ask_raw_rules(
        &mut self,
        packet: &mut Packet,
        scratch: &mut Scratch,
    ) -> Step {
        let Some(rules) = self.rules.as_ref().filter(|_| !packet.passed_raw) else {
            return ControlFlow::Continue(());
        };
        if !rules.has_chains(Hook::Untracked) {
            return ControlFlow::Continue(());
        }
        let asked = self.ask(Hook::Untracked, packet, scratch);
        packet.mark = scratch.mark;
        packet.per_packet = scratch.per_packet;
        // As with a packet that another worker has asked the rules about.
        scratch.priority = 0;
        if asked.is_break()
            && self.is_untracked_local(packet, scratch.now)
            && self.host_has_copy(packet)
        {
            return ControlFlow::Break(End::Host);
        }
        let wanted = asked?;
        packet.untracked = wanted.notrack;
        packet.passed_raw = true;
        let left = if wanted.is_rewritten { self.steer_rewritten(packet) } else { None };
        if let Some(zones) = wanted.zone {
            self.change_zone(packet, zones, scratch.now);
        }
        match left {
            Some(left) => ControlFlow::Break(End::Steer(Some(left))),
            None => ControlFlow::Continue(()),
        }
    }

    /// Asks the rules before routing, and gives the packet its new destination.
    pub(in crate::path) fn find_destination(
        &mut self,
        packet: &mut Packet,
        scratch: &mut Scratch,
    ) -> Step {
        if scratch.tracked.is_translated() {
            // As in the kernel: the two ends would talk past the gateway, without translation.
            if is_redirect(&packet.network) {
                return dropped(DropReason::NatIcmpRedirect);
            }
            scratch.set_address_changes(self.address_changes(packet, &scratch.tracked));
        }
        let found = if scratch.proxy.skips_early_chains {
            ControlFlow::Continue(())
        } else {
            self.ask_prerouting(packet, scratch)
        };
        match found {
            // The host's kernel is kept from what rules would lead elsewhere.
            ControlFlow::Break(End::Drop(..)) if !self.host_has_copy(packet) => found,
            // It judges its own copy, and nobody else answers for it.
            _ if scratch.ends_at_host => ControlFlow::Break(End::Host),
            _ => found,
        }
    }

    /// Asks the rules before routing. It finds out whether the packet ends at the host.
    fn ask_prerouting(&mut self, packet: &mut Packet, scratch: &mut Scratch) -> Step {
        self.pass(Hook::Prerouting, packet, scratch)?;
        if scratch.tracked.fresh {
            scratch.is_announced = self.translate_announced(packet, scratch)?;
            match self.ask_for_destination(packet, scratch)? {
                DestinationChange::Redirected => {
                    self.pass(Hook::PreroutingTranslated, packet, scratch)?;
                    return self.leave_to_host(packet, scratch);
                }
                DestinationChange::Translated => {
                    scratch.set_address_changes(self.address_changes(packet, &scratch.tracked))
                }
                DestinationChange::None => {}
            }
        }
        if scratch.ends_at_host && scratch.address_changes.destination.is_none() {
            scratch.host_may_refuse = true;
            return ControlFlow::Continue(());
        }
        scratch.ends_at_host = false;
        if scratch.address_changes.destination.is_some() {
            self.readdress(packet, &scratch.address_changes, TranslatedEnd::Destination);
        }
        self.pass(Hook::PreroutingTranslated, packet, scratch)?;
        ControlFlow::Continue(())
    }

    /// Finds out by which port a packet goes on. Rules see it as it is sent on, with a hop less to
    /// live if this is a router.
    pub(in crate::path) fn find_route(
        &mut self,
        packet: &mut Packet,
        scratch: &mut Scratch,
    ) -> Step {
        let port = match route_of(&mut self.forwarder, packet, scratch.mark) {
            None => {
                match self.forwarder.outputs().output_ports(&packet.frame, scratch.now.as_nanos()) {
                    Ok(ports) => {
                        scratch.exit.ports = Some(ports);
                        if let OutputPorts::One(port) = ports { Some(port) } else { None }
                    }
                    Err(reason) => return dropped(reason),
                }
            }
            Some(route) => {
                (scratch.exit.route, scratch.exit.mark) = (Some(route), scratch.mark);
                match route {
                    RouteDecision::Host if original_ends(&packet.frame).destination.is_some() => {
                        if !scratch.is_determined {
                            return dropped(DropReason::NatToHost);
                        }
                        return self.leave_to_host(packet, scratch);
                    }
                    RouteDecision::Host => return ControlFlow::Continue(()),
                    RouteDecision::Refuse { reason, icmp } => {
                        let end = End::Drop(reason.into(), icmp.map(Reply::Icmp));
                        return ControlFlow::Break(end);
                    }
                    // Only rules look at the packet before it is sent.
                    RouteDecision::Forward { .. } if self.rules.is_none() => {
                        return ControlFlow::Continue(());
                    }
                    RouteDecision::Forward { .. } => {
                        scratch.show_next_hop();
                        self.forwarder.port_of(&route)
                    }
                }
            }
        };
        if let Some(port) = port {
            self.go_out_by(port, scratch);
        }
        ControlFlow::Continue(())
    }

    /// Asks the forward rules about a packet that leaves by one port. If a bridge copies it to
    /// several ports, [`Self::find_source`] asks them for each.
    pub(in crate::path) fn ask_forward_rules(
        &mut self,
        packet: &mut Packet,
        scratch: &mut Scratch,
    ) -> Step {
        match (&scratch.exit.route, scratch.exit.ports) {
            (Some(RouteDecision::Host), _) | (_, Some(OutputPorts::Many(_))) => {
                ControlFlow::Continue(())
            }
            _ if scratch.proxy.skips_early_chains => ControlFlow::Continue(()),
            _ => self.pass(Hook::Forward, packet, scratch),
        }
    }

    /// Asks the postrouting rules, and gives the packet its new source. If a bridge copies the packet
    /// to several ports, it asks the forward rules too, as often as there are ports.
    pub(in crate::path) fn find_source(
        &mut self,
        packet: &mut Packet,
        scratch: &mut Scratch,
    ) -> Step {
        self.ask_behind_routing(packet, scratch)?;
        // No rule looks at it any more.
        scratch.give_hop(&mut packet.frame);
        ControlFlow::Continue(())
    }

    fn ask_behind_routing(&mut self, packet: &mut Packet, scratch: &mut Scratch) -> Step {
        match (&scratch.exit.route, scratch.exit.ports) {
            (Some(RouteDecision::Host), _) => ControlFlow::Continue(()),
            (_, Some(OutputPorts::Many(ports))) if self.rules.is_some() => {
                self.ask_for_each_port(packet, scratch, ports)
            }
            _ => self.ask_postrouting(packet, scratch),
        }
    }

    /// Asks the forward and postrouting rules for each of some ports, as the kernel does for the
    /// copies that its bridge sends. The packet leaves by those that accept it. The rules see for each the marks
    /// that it came with.
    #[cold]
    #[inline(never)]
    fn ask_for_each_port(
        &mut self,
        packet: &mut Packet,
        scratch: &mut Scratch,
        ports: PortSet,
    ) -> Step {
        let (mark, priority) = (scratch.mark, scratch.priority);
        let (mut why, mut reply) = (DropReason::NoOutputPort.into(), None);
        let mut accepted = PortSet::default();
        for port in ports.iter() {
            (scratch.mark, scratch.priority) = (mark, priority);
            self.go_out_by(port, scratch);
            let asked = match self.pass(Hook::Forward, packet, scratch) {
                // Rules have the SYN proxy open this connection.
                ControlFlow::Break(End::SynProxy(_)) if scratch.proxy.skips_early_chains => {
                    self.ask_postrouting(packet, scratch)
                }
                ControlFlow::Break(end) => ControlFlow::Break(end),
                ControlFlow::Continue(_) => self.ask_postrouting(packet, scratch),
            };
            match asked {
                ControlFlow::Continue(()) => accepted.insert(port),
                ControlFlow::Break(End::Drop(refused, answer)) => {
                    (why, reply) = (refused, answer.or(reply));
                }
                ControlFlow::Break(end) => return ControlFlow::Break(end),
            }
        }
        if accepted.is_empty() {
            return ControlFlow::Break(End::Drop(why, reply));
        }
        scratch.exit.ports = Some(OutputPorts::Many(accepted));
        ControlFlow::Continue(())
    }

    /// Notes the port by which a packet leaves, for the next hooks to see.
    pub(in crate::path) fn go_out_by(&self, port: PortId, scratch: &mut Scratch) {
        scratch.output = self.rules.as_ref().map_or(0, |rules| rules.interface(port));
        scratch.output_port = Some(port);
    }

    fn ask_postrouting(&mut self, packet: &mut Packet, scratch: &mut Scratch) -> Step {
        self.pass(Hook::Postrouting, packet, scratch)?;
        if scratch.tracked.fresh {
            let is_translated = self.ask_for_source(packet, scratch)?
                || self.finish_translation(packet, scratch)?;
            if is_translated {
                scratch.set_address_changes(self.address_changes(packet, &scratch.tracked));
            }
        }
        if scratch.address_changes.source.is_some() {
            if !scratch.tracked.fresh && self.has_left_masquerade(packet, scratch) {
                return dropped(DropReason::RouteChanged);
            }
            self.readdress(packet, &scratch.address_changes, TranslatedEnd::Source);
        }
        self.pass(Hook::PostroutingTranslated, packet, scratch)?;
        ControlFlow::Continue(())
    }

    /// Ends a masqueraded connection whose packet leaves by another interface than before. True if it
    /// was one: the next packet opens another connection.
    fn has_left_masquerade(&mut self, packet: &Packet, scratch: &mut Scratch) -> bool {
        let Some(RouteDecision::Forward { next: (link, _), .. }) = scratch.exit.route else {
            return false;
        };
        let Some(bucket) = self.buckets.get_mut(packet.bucket) else { return false };
        let zone = bucket.connections.zones(&scratch.tracked).original;
        let mut context = self.tracking.context_of(Some(zone), scratch.now, &mut self.counters);
        bucket.connections.end_masquerade_elsewhere(&mut scratch.tracked, link.0, &mut context)
    }

    /// Asks the hook that translates destinations about a packet that has opened a connection.
    fn ask_for_destination(
        &mut self,
        packet: &mut Packet,
        scratch: &mut Scratch,
    ) -> Step<DestinationChange> {
        if scratch.is_announced {
            return ControlFlow::Continue(DestinationChange::Translated);
        }
        let Some(request) = self.ask(Hook::DestinationNat, packet, scratch)?.nat else {
            return ControlFlow::Continue(DestinationChange::None);
        };
        if request.kind == NatKind::Redirect {
            self.redirect_to_host(&request, packet);
            scratch.set_redirected();
            return ControlFlow::Continue(DestinationChange::Redirected);
        }
        scratch.is_determined =
            request.address.is_none_or(|addresses| addresses.is_one() || request.netmap);
        self.translate(&request, packet, scratch)?;
        ControlFlow::Continue(DestinationChange::Translated)
    }

    /// Asks the hook that translates sources about a packet that has opened a connection. True
    /// if a rule has asked for a translation, or none is to be asked.
    fn ask_for_source(&mut self, packet: &mut Packet, scratch: &mut Scratch) -> Step<bool> {
        if scratch.is_announced {
            return ControlFlow::Continue(true);
        }
        let Some(request) = self.ask(Hook::SourceNat, packet, scratch)?.nat else {
            return ControlFlow::Continue(false);
        };
        if scratch.proxy.skips_early_chains {
            // The proxy knows of one address of each end.
            return dropped(DropReason::NatSynProxy);
        }
        self.translate(&request, packet, scratch)?;
        ControlFlow::Continue(true)
    }

    /// Asks one hook, and does what it decides, where rules can ask for nothing else.
    #[inline]
    fn pass(&mut self, hook: Hook, packet: &mut Packet, scratch: &mut Scratch) -> Step {
        match &self.rules {
            Some(rules) if !rules.accepts_at_once(hook, scratch.state) => {
                match self.ask_rules(hook, packet, scratch) {
                    ControlFlow::Continue(_) => ControlFlow::Continue(()),
                    ControlFlow::Break(end) => ControlFlow::Break(end),
                }
            }
            _ => ControlFlow::Continue(()),
        }
    }

    /// The same for a hook whose rules may ask for a translation or a zone.
    #[inline]
    fn ask(
        &mut self,
        hook: Hook,
        packet: &mut Packet,
        scratch: &mut Scratch,
    ) -> Step<RuleRequests> {
        match &self.rules {
            Some(rules) if !rules.accepts_at_once(hook, scratch.state) => {
                self.ask_rules(hook, packet, scratch)
            }
            _ => ControlFlow::Continue(RuleRequests::default()),
        }
    }

    #[inline(never)]
    fn ask_rules(
        &mut self,
        hook: Hook,
        packet: &mut Packet,
        scratch: &mut Scratch,
    ) -> Step<RuleRequests> {
        let Some(rules) = &mut self.rules else {
            return ControlFlow::Continue(RuleRequests::default());
        };
        if rules.touches_headers() {
            scratch.take_hop(&mut packet.frame);
        }
        let table = self.buckets.get(packet.bucket).map(|bucket| &bucket.connections);
        let keyed = packet.flow.as_ref().map(|flow| &flow.keyed);
        let now = scratch.now;
        let asked =
            table.and_then(|table| ConnectionDetails::of(table, keyed, &scratch.tracked, now));
        let zones = match table {
            Some(table) if scratch.tracked.is_translated() => table.zones(&scratch.tracked),
            _ => ZonePair::both(packet.origin.zone),
        };
        let routes = self.forwarder.router().map(|router| RuleRoutes {
            routing: router.routing(),
            input: Some(packet.frame.port),
            output: scratch.output_port,
            route: scratch.exit.route.as_ref(),
            mtus: self.forwarder.outputs(),
        });
        let connection = scratch.connection(zones, asked.as_ref().map(|asked| asked as _));
        let routes = routes.as_ref().map(|routes| routes as _);
        let view = view(packet, &packet.network, scratch, connection, routes);
        let mut outcome = Outcome::NOTHING;
        rules.evaluate(&mut outcome, hook, &view, now);
        // Behind this packet rules see another mark, and may decide otherwise.
        let marks_anew = outcome.ct_mark.is_some_and(|mark| mark != scratch.tracked.mark);
        scratch.per_packet |= outcome.per_packet || marks_anew;
        scratch.mark = outcome.mark.unwrap_or(scratch.mark);
        scratch.priority = outcome.priority.unwrap_or(scratch.priority);
        let has_effects = outcome.ct_mark.is_some()
            || outcome.label != 0
            || outcome.helper.is_some()
            || outcome.timeout.is_some()
            || outcome.segment_size.is_some()
            || outcome.is_rewritten
            || outcome.logs.asked() > 0
            || rules.has_joined();
        if has_effects {
            scratch.take_hop(&mut packet.frame);
            self.apply_outcome(&outcome, packet, scratch);
        }
        match outcome.decision {
            Decision::Accept => ControlFlow::Continue(RuleRequests::of(&outcome)),
            // A capture holds no cookies.
            Decision::SynProxy(_) if self.time == TimeSource::Frame => {
                ControlFlow::Continue(RuleRequests::of(&outcome))
            }
            refused => {
                // Its sender is told of the packet as the rules have seen it.
                scratch.take_hop(&mut packet.frame);
                ControlFlow::Break(self.refusal(refused, &outcome, packet, scratch))
            }
        }
    }

    /// Makes the connection visible to all, and has a helper read the packet. The packet goes on,
    /// unless the helper waits for the rest of it.
    pub(in crate::path) fn confirm(&mut self, packet: &mut Packet, scratch: &mut Scratch) -> Step {
        scratch.tracking = Progress::Confirmed;
        let Self { buckets, tracking, counters, .. } = self;
        let tracked = &scratch.tracked;
        if !tracked.fresh && !tracked.has_helper() {
            return ControlFlow::Continue(());
        }
        let Some(bucket) = buckets.get_mut(packet.bucket) else {
            return ControlFlow::Continue(());
        };
        if let Some(id) = tracked.connection.filter(|_| !tracked.has_helper()) {
            let zone = packet.flow.as_ref().map(|flow| flow.keyed.key.zone);
            return tracking.confirm(bucket, id, zone, scratch.now, counters).or_drop();
        }
        let mut edits = Vec::new();
        let passed = tracking.accept(bucket, packet, *tracked, &mut edits, scratch.now, counters);
        if let Some(why) = passed.refusal() {
            return dropped(why);
        }
        if edits.is_empty() {
            return ControlFlow::Continue(());
        }
        self.edit_payload(packet, &edits)
    }

    /// Withdraws the connection that a packet has opened.
    pub(in crate::path) fn withdraw(
        &mut self,
        packet: &Packet,
        tracked: &Tracked,
        now: flow::Timestamp,
    ) {
        if let (true, Some(id)) = (tracked.fresh, tracked.connection)
            && let Some(bucket) = self.buckets.get_mut(packet.bucket)
        {
            let mut context = self.tracking.context(now, &mut self.counters);
            bucket.connections.withdraw(id, &mut context);
        }
    }
}

/// The destination that rules have given a packet that has opened a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DestinationChange {
    /// It keeps its destination.
    None,
    /// It goes to the destination that its connection is translated to.
    Translated,
    /// It goes to the address of the interface that it came in by.
    Redirected,
}

/// The requests of rules for a packet that goes on, except those that are met at once.
#[derive(Default)]
struct RuleRequests {
    nat: Option<NatRequest>,
    zone: Option<ZonePair>,
    notrack: bool,
    /// They have set fields of headers.
    is_rewritten: bool,
}

impl RuleRequests {
    #[inline]
    const fn of(outcome: &Outcome) -> Self {
        Self {
            nat: outcome.nat,
            zone: outcome.zone,
            notrack: outcome.notrack,
            is_rewritten: outcome.is_rewritten,
        }
    }
}

/// A packet as rules see it: the packet itself, or one inside it, which `network` describes. In line,
/// because a view is copied when it is handed on.
#[inline(always)]
pub(in crate::path) fn view<'a>(
    packet: &'a Packet,
    network: &'a Network,
    scratch: &Scratch,
    connection: Connection<'a>,
    routes: Option<&'a dyn Routes>,
) -> PacketView<'a> {
    let frame = packet.frame.bytes();
    PacketView {
        frame,
        network,
        vlan: packet.origin.vlan,
        packet_type: packet_type(frame),
        input: scratch.input,
        output: scratch.output,
        mark: scratch.mark,
        priority: scratch.priority,
        connection,
        routes,
    }
}

/// To whom the link carried a frame, as rules number it.
fn packet_type(frame: &[u8]) -> u8 {
    const TO_US: u8 = 0;
    const BROADCAST: u8 = 1;
    const MULTICAST: u8 = 2;
    match frame.first_chunk::<6>() {
        Some([0xff, 0xff, 0xff, 0xff, 0xff, 0xff]) => BROADCAST,
        Some([first, ..]) if first & 1 != 0 => MULTICAST,
        _ => TO_US,
    }
}

#[cfg(test)]
#[path = "hooks_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "flooding_tests.rs"]
mod flooding_tests;

#[cfg(test)]
#[path = "meters_tests.rs"]
mod meters_tests;
