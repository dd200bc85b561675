//! The check of what tunnels carry, where the operator wants that.
//!
//! The tunnel's packet has been judged as any other and goes on. Now the rules of the forward stage
//! judge the packet inside, and all they can do is refuse both: nothing inside is changed, nobody is
//! answered, and the rates, quotas and sets of the rules stay as they are. The connections inside
//! lie [apart](Inside), and nothing that they announce is expected anywhere.

use conntrack::helper::Helpers;
use conntrack::syn_proxy::Screening;
use conntrack::{
    ConnectionId, Context, Expectations, Guess, Inside, KnownTunnels, Labels, Limits, Passage,
    Replication, Settings, Shortage, Tracked, TrackedPacket, Verdict, class_without_flow,
};
use flow::{
    Class, ConntrackCounters, DropReason, FlowKey, HashKey, KeyedPacket, Timestamp, Zone, ZonePair,
};
use ruleset::{Decider, Decision, Hook, Outcome};
use steer::BucketId;
use wire::{Carried, IcmpError, Network, Transport, carried};

use crate::Bucket;
use crate::egress::bridge::OutputPorts;
use crate::egress::port_set::PortSet;
use crate::egress::route_decision::RouteDecision;
use crate::path::drop_cause::DropCause;
use crate::path::packet::Packet;
use crate::path::rules::connection::ConnectionDetails;
use crate::path::rules::hooks::view;
use crate::path::scratch::{Progress, Scratch};
use crate::path::step::{OrDrop, Step, dropped};
use crate::path::tracking::checksum_of;
use crate::path::{PacketPath, TimeSource};
use std::ops::ControlFlow;

/// The part of tracking inside tunnels that is not in the bucket, one for each worker.
pub struct InsideTracking {
    settings: Settings,
    /// How many connections there may be, within the limit of the gateway.
    pub limits: Limits,
    /// Nothing is ever expected here.
    expectations: Expectations,
    /// Tunnels inside tunnels are refused.
    tunnels: KnownTunnels,
    /// Nobody hears of them.
    replication: Replication,
}

impl InsideTracking {
    /// Beside what a worker tracks outside.
    pub fn new(settings: &Settings, limits: &Limits, secret: HashKey) -> Self {
        Self {
            settings: inside(settings),
            limits: limits.for_inside(),
            expectations: Expectations::new(secret),
            tunnels: KnownTunnels::new(secret),
            replication: Replication::default(),
        }
    }

    /// Takes over changed tunables.
    pub fn apply(&mut self, settings: &Settings) {
        self.settings = inside(settings);
    }

    pub fn context<'a>(
        &'a mut self,
        now: Timestamp,
        counters: &'a mut ConntrackCounters,
    ) -> Context<'a> {
        Context {
            now,
            settings: &self.settings,
            limits: &mut self.limits,
            counters,
            expectations: &self.expectations,
            tunnels: &self.tunnels,
            events: None,
            expectation_events: None,
            replication: &mut self.replication,
            ended: None,
        }
    }
}

/// The tunables of the gateway for what is inside: no helper reads it, and its sources, which
/// anybody may have written, are not counted.
fn inside(settings: &Settings) -> Settings {
    Settings { half_open_per_source: 0, helpers: Helpers::default(), ..settings.clone() }
}

/// The answer of the connections inside a tunnel to a packet.
enum InsideAnswer {
    /// It was tracked.
    Tracked(Tracked),
    /// The limit of the gateway or of the tunnel leaves no room for its connection.
    NoRoom,
    /// It is refused.
    Refused(DropCause),
}

/// A packet that a tunnel carries.
struct Inner {
    network: Network,
    /// Its flow, or that which it quotes, in zone 0.
    keyed: Option<KeyedPacket>,
    passage: Passage,
}

impl Inner {
    /// `None` as of [`flow_inside`].
    fn of((network, vlan): (Network, u16), tunnel: FlowKey) -> Option<Self> {
        let keyed = flow_inside(&network)?;
        Some(Self { network, keyed, passage: (tunnel, vlan) })
    }
}

/// The flow of a packet that a tunnel carries, or that which it quotes, in zone 0. `None`, and its
/// tunnel's packet is refused, if it can not be read to its ports, or is of a tunnel again.
pub fn flow_inside(network: &Network) -> Option<Option<KeyedPacket>> {
    let is_whole = network.fragment.is_none_or(|fragment| fragment.is_atomic());
    let keyed = match &network.transport {
        Transport::IcmpError(IcmpError { quoted, .. }) => {
            quoted.map(|quoted| FlowKey::of_quoted(&quoted, network.family, Zone(0)))
        }
        _ => FlowKey::of_packet(network, Zone(0)),
    };
    let is_tunnel = keyed.is_some_and(|keyed| keyed.key.is_tunnel());
    (is_whole && !is_tunnel).then_some(keyed)
}

impl PacketPath {
    /// Evaluates the rules for the packet that a tunnel carries, after they have accepted the packet
    /// of the tunnel. The kernel does so for a packet for the host.
    #[inline]
    pub(super) fn check_inner(&mut self, packet: &mut Packet, scratch: &mut Scratch) -> Step {
        if !packet.carries || self.rules.is_none() {
            return ControlFlow::Continue(());
        }
        if scratch.exit.route == Some(RouteDecision::Host) {
            return ControlFlow::Continue(());
        }
        self.check_inside(packet, scratch)
    }

    #[cold]
    #[inline(never)]
    pub(super) fn check_inside(&mut self, packet: &Packet, outer: &mut Scratch) -> Step {
        let now = outer.now;
        let bytes = packet.frame.bytes();
        let bucket = self.buckets.get(packet.bucket);
        // A packet without a flow, or of a bucket that is elsewhere, can not be checked.
        let (bucket, flow) =
            bucket.zip(packet.flow).ok_or(DropReason::InsideUnreadable).or_drop()?;
        // Of a translated tunnel both directions have the key of the first.
        let known = outer.tracked.connection.map(|id| bucket.connections.flow_of(id));
        let inner = match carried(bytes, &packet.network) {
            Some(Carried::Frame(start)) => {
                let end = packet.network.end as usize;
                let is_listed = self.pass.takes(&bytes[usize::from(start)..end]);
                return is_listed.then_some(()).ok_or(DropReason::InsideUnreadable).or_drop();
            }
            Some(Carried::Packet { network, vlan }) => {
                Inner::of((network, vlan), known.unwrap_or(flow.keyed.key))
            }
            None => None,
        };
        let inner = inner.ok_or(DropReason::InsideUnreadable).or_drop()?;
        let mut tracked = self.track_inside(packet, &inner, now)?;
        outer.opened_inside = tracked.connection.filter(|_| tracked.fresh);
        let Some(OutputPorts::Many(ports)) = outer.exit.ports else {
            return self.consult_rules(packet, &inner, &mut tracked, outer);
        };
        let mut refused = dropped(DropReason::InsideRefused);
        let mut accepted = PortSet::default();
        for port in ports.iter() {
            self.go_out_by(port, outer);
            match self.consult_rules(packet, &inner, &mut tracked, outer) {
                ControlFlow::Continue(()) => accepted.insert(port),
                ControlFlow::Break(end) => refused = ControlFlow::Break(end),
            }
        }
        if accepted.is_empty() {
            return refused;
        }
        outer.exit.ports = Some(OutputPorts::Many(accepted));
        ControlFlow::Continue(())
    }

    /// The driver's part: confirms the connection inside that a packet of a tunnel has opened if the
    /// packet goes on, and withdraws it otherwise.
    #[cold]
    #[inline(never)]
    pub(super) fn settle_inside(
        &mut self,
        id: ConnectionId,
        goes_on: bool,
        packet: &Packet,
        now: Timestamp,
    ) {
        let Some((inside, mut context)) = self.inside_of(packet.bucket, now) else { return };
        if goes_on {
            let confirmed = inside.connections.confirm(id, &mut context);
            debug_assert_eq!(confirmed, Ok(()), "nothing inside is a tunnel, and only these clash");
        } else {
            inside.connections.withdraw(id, &mut context);
        }
    }

    /// The connections inside tunnels of a bucket, made when there are none.
    fn inside_of(
        &mut self,
        bucket: BucketId,
        now: Timestamp,
    ) -> Option<(&mut Inside, Context<'_>)> {
        let Self { buckets, tracking, counters, .. } = self;
        let content = buckets.get_mut(bucket)?;
        let tracking = tracking.inside_mut()?;
        let inside = content.inside.get_or_insert_with(|| {
            let mut inside = Box::new(Inside::new(now));
            inside.connections.count_in(&mut tracking.limits, bucket.0);
            inside
        });
        Some((inside, tracking.context(now, &mut counters.conntrack)))
    }

    /// Says how a packet inside relates to the connections inside the same tunnel.
    fn track_inside(&mut self, packet: &Packet, inner: &Inner, now: Timestamp) -> Step<Tracked> {
        let Some(keyed) = inner.keyed else {
            return ControlFlow::Continue(match class_without_flow(&inner.network) {
                Class::Invalid(reason) => Tracked::invalid(reason.into()),
                class => Tracked::alone(class),
            });
        };
        let mut answer = self.offer_inside(packet, inner, &keyed, now);
        if matches!(answer, InsideAnswer::NoRoom)
            && self.time == TimeSource::Turn
            && self.evict_inside(now)
        {
            answer = self.offer_inside(packet, inner, &keyed, now);
        }
        match answer {
            InsideAnswer::Tracked(tracked) => ControlFlow::Continue(tracked),
            InsideAnswer::Refused(why) => dropped(why),
            InsideAnswer::NoRoom => {
                self.counters.conntrack.insert_failed += 1;
                self.counters.conntrack.drop += 1;
                dropped(DropReason::TableFull)
            }
        }
    }

    fn offer_inside(
        &mut self,
        packet: &Packet,
        inner: &Inner,
        keyed: &KeyedPacket,
        now: Timestamp,
    ) -> InsideAnswer {
        let may_open = self.tracking.may_open(packet.frame.port);
        let hash = self.hasher.packet_hash(&keyed.key);
        let Some((inside, mut context)) = self.inside_of(packet.bucket, now) else {
            return InsideAnswer::Refused(DropReason::InsideRefused.into());
        };
        let Some(number) = inside.number(inner.passage) else { return InsideAnswer::NoRoom };
        let (keyed, hash) = keyed.moved(hash, number);
        let offered = TrackedPacket {
            network: &inner.network,
            frame: packet.frame.bytes(),
            keyed: &keyed,
            hash,
            guess: Guess::NONE,
            checksum: checksum_of(&packet.frame),
            segments: packet.frame.segments(),
            may_open,
            screening: Screening::Off,
            map_epoch: 0,
            zones: None,
        };
        let tracked = inside.connections.track(&offered, &mut context);
        match (tracked.verdict, tracked.refusal()) {
            (Verdict::NoRoom(Shortage::Table | Shortage::Reserve), _) => InsideAnswer::NoRoom,
            (_, Some(why)) => InsideAnswer::Refused(why.into()),
            (_, None) => InsideAnswer::Tracked(tracked),
        }
    }

    /// Has a connection inside some tunnel give way; false if none does.
    pub(super) fn evict_inside(&mut self, now: Timestamp) -> bool {
        let Some(id) = self.tracking.next_inside_to_give_way() else { return false };
        let Some((inside, mut context)) = self.inside_of(id, now) else { return false };
        inside.connections.evict(Shortage::Table, &mut context)
    }

    /// If nothing is left of the limit of the gateway, connections inside tunnels give way, at most
    /// so many. Connections outside must not give way to them.
    pub(super) fn make_room_inside(&mut self, most: usize, now: Timestamp) {
        if !self.tracking.inside_mut().is_some_and(|inside| inside.limits.is_used_up()) {
            return;
        }
        for _ in 0..most {
            if !self.evict_inside(now) {
                break;
            }
        }
        if let Some(inside) = self.tracking.inside_mut() {
            inside.limits.give_back();
        }
    }

    fn consult_rules(
        &mut self,
        packet: &Packet,
        inner: &Inner,
        tracked: &mut Tracked,
        outer: &Scratch,
    ) -> Step {
        let now = outer.now;
        let Some(rules) = &mut self.rules else { return ControlFlow::Continue(()) };
        let mut scratch =
            Scratch::new(packet, Progress::Untracked, Screening::Off, outer.input, now);
        scratch.set_tracked(*tracked);
        if rules.accepts_at_once(Hook::Forward, scratch.state) {
            return ControlFlow::Continue(());
        }
        (scratch.output, scratch.mark, scratch.priority) =
            (outer.output, outer.mark, outer.priority);
        let inside = self.buckets.get(packet.bucket).and_then(|it| it.inside.as_ref());
        let asked = inside.and_then(|inside| {
            ConnectionDetails::of(&inside.connections, inner.keyed.as_ref(), tracked, now)
        });
        let zones = ZonePair::both(packet.origin.zone);
        let connection = scratch.connection(zones, asked.as_ref().map(|asked| asked as _));
        let view = view(packet, &inner.network, &scratch, connection, None);
        let outcome = rules.consult(Hook::Forward, &view, now);
        self.mark_inside(packet, &outcome, tracked, now);
        if outcome.logs.asked() > 0 {
            self.log(&outcome, packet, outer.output_port, now);
        }
        match outcome.decision {
            // There is nobody inside to be answered.
            Decision::Accept | Decision::SynProxy(_) => ControlFlow::Continue(()),
            Decision::Drop | Decision::Reject(_) => dropped(self.refused_inside(&outcome)),
        }
    }

    /// Gives the connection inside the mark and labels that rules say.
    fn mark_inside(
        &mut self,
        packet: &Packet,
        outcome: &Outcome,
        tracked: &mut Tracked,
        now: Timestamp,
    ) {
        if outcome.ct_mark.is_none() && outcome.label == 0 {
            return;
        }
        let Some((inside, mut context)) = self.inside_of(packet.bucket, now) else { return };
        if let Some(mark) = outcome.ct_mark {
            inside.connections.set_mark(tracked, mark, &mut context);
        }
        inside.connections.add_labels(tracked, Labels::of_bits(outcome.label), &mut context);
    }

    fn refused_inside(&self, outcome: &Outcome) -> DropCause {
        let revision = self.rules.as_ref().map_or(0, |rules| rules.revision());
        match outcome.decided_by {
            Some(Decider::Rule(rule)) => {
                DropCause::InsideRule { rule: rule.index() as u32, revision }
            }
            Some(Decider::Policy(chain)) => {
                DropCause::InsidePolicy { chain: chain.index() as u32, revision }
            }
            None => DropReason::InsideRefused.into(),
        }
    }
}

impl Bucket {
    /// Connections, those inside tunnels too.
    pub fn all_connections(&self) -> usize {
        let inside = self.inside.as_ref().map_or(0, |inside| inside.connections.len());
        self.connections.len() + inside
    }
}

#[cfg(test)]
#[path = "inner_packets_tests.rs"]
mod tests;
