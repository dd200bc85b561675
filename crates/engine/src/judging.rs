//! Judging packets by the operator's rules: the stages around tracking and routing.
//!
//! All stages of a packet are asked by the owner of its bucket in one go, and rulesets are
//! exchanged between two batches, so each packet is judged by one of them.

use conntrack::{ConnectionId, Direction, Labels, Table, Tracked, TupleTransport, Why};
use flow::{Class, DropReason, Timestamp};
use netio::{Checksum, Frame, PortId};
use ruleset::{
    Connection, CtState, Decider, Decision, Details, ElementUpdate, Known, Outcome, PacketView,
    Reject, SegmentSize, Stage, evaluate, name_bits,
};
use wire::control_segment::{ControlSegment, MAX_FRAME};
use wire::icmp_error::Message;
use wire::{ETHERNET_LEN, Family, TcpFlags, Transport};

use crate::command::Notice;
use crate::output::Manner;
use crate::packet::{Item, Packet, TrackedFlow};
use crate::recent_drops::RecentDrop;
use crate::router::Course;
use crate::translating::Half;
use crate::worker::Worker;

/// Status bits (`enum ip_conntrack_status` of the kernel's interface).
const EXPECTED: u32 = 1;
const SEEN_REPLY: u32 = 1 << 1;
const ASSURED: u32 = 1 << 2;
const CONFIRMED: u32 = 1 << 3;

/// A packet that goes on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Passed {
    /// Where, if that was found out already.
    pub course: Option<Course>,
    /// It has to wait until replies to its connection find it.
    pub waits: bool,
}

impl Passed {
    /// For the host, which has its own copy.
    pub const TO_HOST: Self = Self { course: Some(Course::Host), waits: false };
}

/// A packet on its way through the stages.
struct Journey {
    tracked: Tracked,
    state: CtState,
    mark: u32,
    priority: u32,
    input: u128,
    output: u128,
    passed: Passed,
    output_port: Option<PortId>,
    /// It is for the host, and no rule translates it.
    is_hosts: bool,
    /// It was announced by a translated connection and is translated as that: no rule is asked.
    follows: bool,
}

/// A connection as rules ask for it.
struct Asked<'a> {
    table: &'a Table,
    id: ConnectionId,
    now: Timestamp,
}

impl Asked<'_> {
    fn connection(&self) -> Option<conntrack::Connection> {
        self.table.connection(self.id, self.now)
    }
}

impl Details for Asked<'_> {
    fn tuple(&self, reply: bool) -> ruleset::Tuple {
        let tuple = self.connection().map(|it| if reply { it.reply } else { it.original });
        let Some(tuple) = tuple else {
            let nobody = [0; 16];
            return ruleset::Tuple {
                source: nobody,
                destination: nobody,
                source_port: 0,
                destination_port: 0,
            };
        };
        let bytes = |address| match address {
            std::net::IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
            std::net::IpAddr::V6(address) => address.octets(),
        };
        let (source_port, destination_port) = match tuple.transport {
            TupleTransport::Ports { source, destination } => (source, destination),
            _ => (0, 0),
        };
        let (source, destination) = (bytes(tuple.source), bytes(tuple.destination));
        ruleset::Tuple { source, destination, source_port, destination_port }
    }

    fn counts(&self) -> Option<[(u64, u64); 2]> {
        let counters = self.connection()?.counters?;
        Some(counters.map(|counts| (counts.packets, counts.bytes)))
    }

    fn expiration_ms(&self) -> u64 {
        self.connection().map_or(0, |connection| connection.timeout_s * 1000)
    }

    fn helper(&self) -> u128 {
        let name = self.connection().and_then(|connection| connection.helper);
        name.and_then(name_bits).unwrap_or(0)
    }

    fn label(&self) -> u128 {
        self.connection().map_or(0, |connection| connection.labels.bits())
    }
}

impl Journey {
    fn new(packet: &Packet, tracked: Tracked, input: u128) -> Self {
        let state = tracked.class.into();
        Self {
            tracked,
            state,
            mark: packet.mark,
            priority: 0,
            input,
            output: 0,
            passed: Passed::default(),
            output_port: None,
            is_hosts: false,
            follows: false,
        }
    }

    fn connection<'a>(&self, zone: u16, details: Option<&'a dyn Details>) -> Connection<'a> {
        let tracked = &self.tracked;
        let bit = |is_set, bit| if is_set { bit } else { 0 };
        let known = tracked.direction.map(|direction| Known {
            reply: direction == Direction::Reply,
            status: bit(!tracked.fresh, CONFIRMED)
                | bit(tracked.is_expected(), EXPECTED)
                | bit(tracked.has_seen_reply(), SEEN_REPLY)
                | bit(tracked.is_assured(), ASSURED),
            mark: tracked.mark,
            zone,
            details,
        });
        Connection { state: self.state, known }
    }
}

impl Worker {
    /// Asks the rules before tracking.
    pub(crate) fn judge_untracked(
        &mut self,
        packet: &mut Packet,
        now: Timestamp,
    ) -> Result<(), Why> {
        let Some(rules) = &self.rules else { return Ok(()) };
        if rules.shared.program.is_empty(Stage::Untracked) {
            return Ok(());
        }
        let input = rules.shared.interface(packet.frame.port);
        let mut journey = Journey::new(packet, Tracked::alone(Class::Untracked), input);
        // What was not tracked yet is invalid to the kernel's rules.
        journey.state = CtState::Invalid;
        let outcome = self.judge_stage(Stage::Untracked, packet, &mut journey, now);
        packet.mark = journey.mark;
        packet.untracked = outcome?.is_some_and(|outcome| outcome.notrack);
        Ok(())
    }

    /// Tracks a packet and judges it by the rules. If it is refused, what it has opened is
    /// withdrawn.
    ///
    /// Of what the SYN proxy is to be asked about, it is asked about SYNs when the rules have
    /// accepted them, and about all else before, since an ACK that returns a cookie is not the
    /// packet that opens the connection.
    #[inline(never)]
    pub(crate) fn admit_by_rules(
        &mut self,
        packet: &mut Packet,
        screened: bool,
        now: Timestamp,
    ) -> Result<Passed, Why> {
        let is_syn = matches!(packet.network.transport, Transport::Tcp(tcp)
            if tcp.flags.contains(TcpFlags::SYN) && !tcp.flags.contains(TcpFlags::ACK));
        let tracked = if packet.untracked {
            Tracked::alone(Class::Untracked)
        } else {
            self.track(packet, screened && !is_syn, now)
        };
        let is_news = packet.is_own && (tracked.fresh || tracked.connection.is_none());
        if let Some(why) = tracked.refusal() {
            return if is_news { Ok(Passed::TO_HOST) } else { Err(why) };
        }
        let input = self.rules.as_ref().map_or(0, |it| it.shared.interface(packet.frame.port));
        let mut journey = Journey::new(packet, tracked, input);
        journey.is_hosts = is_news;
        let mut judged = self.take_stages(packet, &mut journey, now);
        if journey.is_hosts {
            self.withdraw(packet, &journey.tracked, now);
            return Ok(Passed::TO_HOST);
        }
        if is_syn
            && screened
            && judged.is_ok()
            && journey.tracked.fresh
            && self.halves(packet, &journey.tracked).is_identity()
            && self.screens(packet, now)
        {
            judged = Err(DropReason::SynCookie.into());
        } else {
            self.counters.classify(journey.tracked.class);
        }
        match judged {
            Ok(()) => {
                self.confirm(packet, journey.tracked, now)?;
                self.passed(packet, &journey.tracked, journey.passed, now)
            }
            Err(why) => {
                self.withdraw(packet, &journey.tracked, now);
                Err(why)
            }
        }
    }

    /// The stages behind tracking.
    fn take_stages(
        &mut self,
        packet: &mut Packet,
        journey: &mut Journey,
        now: Timestamp,
    ) -> Result<(), Why> {
        self.judge_stage(Stage::Prerouting, packet, journey, now)?;
        journey.follows = self.follow(packet, &journey.tracked, now)?;
        self.judge_translation(Stage::DestinationNat, packet, journey, now)?;
        let halves = self.halves(packet, &journey.tracked);
        if journey.is_hosts && halves.destination.is_none() {
            return Ok(());
        }
        journey.is_hosts = false;
        self.readdress(packet, &halves, Half::Destination);
        self.judge_stage(Stage::PreroutingTranslated, packet, journey, now)?;
        let Some(hop) = self.find_way(packet, journey, now)? else { return Ok(()) };
        let judged = self.take_last_stages(packet, journey, now);
        hop.restore(&mut packet.frame);
        judged
    }

    fn take_last_stages(
        &mut self,
        packet: &mut Packet,
        journey: &mut Journey,
        now: Timestamp,
    ) -> Result<(), Why> {
        self.judge_stage(Stage::Forward, packet, journey, now)?;
        self.judge_stage(Stage::Postrouting, packet, journey, now)?;
        if !self.judge_translation(Stage::SourceNat, packet, journey, now)? {
            self.settle_translation(packet, &journey.tracked, now)?;
        }
        let halves = self.halves(packet, &journey.tracked);
        self.readdress(packet, &halves, Half::Source);
        self.judge_stage(Stage::PostroutingTranslated, packet, journey, now)?;
        Ok(())
    }

    /// Finds out by which port a packet goes on; `None` if it is for the host. Rules see it
    /// as it is sent on, with a hop less to live if this is a router.
    fn find_way(
        &mut self,
        packet: &mut Packet,
        journey: &mut Journey,
        now: Timestamp,
    ) -> Result<Option<Hop>, Why> {
        let (port, hop) = match &mut self.router {
            None => (self.outputs.way_of(&packet.frame), Hop::default()),
            Some(router) => {
                let course = router.course_of(packet, journey.mark);
                journey.passed.course = Some(course);
                match course {
                    Course::Host if packet.frame.before().destination.is_some() => {
                        return Err(DropReason::NatToHost.into());
                    }
                    Course::Host => return Ok(None),
                    Course::Refuse { reason, told } => {
                        if let Some(message) = told {
                            self.tell(&packet.frame, message, now);
                        }
                        return Err(reason.into());
                    }
                    Course::By(..) => (router.port_of(&course), Hop::take(&mut packet.frame)),
                }
            }
        };
        if let (Some(port), Some(rules)) = (port, &self.rules) {
            journey.output = rules.shared.interface(port);
        }
        journey.output_port = port;
        Ok(Some(hop))
    }

    /// Asks a stage of translation about a packet that has opened a connection. True if a
    /// rule has asked for one, or none is to be asked.
    fn judge_translation(
        &mut self,
        stage: Stage,
        packet: &mut Packet,
        journey: &mut Journey,
        now: Timestamp,
    ) -> Result<bool, Why> {
        if !journey.tracked.fresh || journey.follows {
            return Ok(journey.follows);
        }
        let outcome = self.judge_stage(stage, packet, journey, now)?;
        let Some(request) = outcome.and_then(|outcome| outcome.nat) else { return Ok(false) };
        let course = journey.passed.course;
        self.translate(&request, packet, &journey.tracked, course, now).map(|()| true)
    }

    /// Asks one stage, and does what it decides.
    #[inline]
    fn judge_stage(
        &mut self,
        stage: Stage,
        packet: &mut Packet,
        journey: &mut Journey,
        now: Timestamp,
    ) -> Result<Option<Outcome>, Why> {
        let Some(rules) = &mut self.rules else { return Ok(None) };
        let program = &rules.shared.program;
        if program.is_empty(stage) {
            return Ok(None);
        }
        let table = self.ownership.get(packet.bucket).map(|bucket| &bucket.connections);
        let asked = table.zip(journey.tracked.connection);
        let asked = asked.map(|(table, id)| Asked { table, id, now });
        let zone = packet.origin.zone.0;
        let bytes = packet.frame.bytes();
        let view = PacketView {
            frame: bytes,
            network: &packet.network,
            vlan: vlan(bytes),
            packet_type: packet_type(bytes),
            input: journey.input,
            output: journey.output,
            mark: journey.mark,
            priority: journey.priority,
            connection: journey.connection(zone, asked.as_ref().map(|asked| asked as _)),
        };
        let outcome = evaluate(program, stage, &view, &mut rules.state, now);
        journey.mark = outcome.mark.unwrap_or(journey.mark);
        journey.priority = outcome.priority.unwrap_or(journey.priority);
        let has_effects = outcome.ct_mark.is_some()
            || outcome.label != 0
            || outcome.helper.is_some()
            || outcome.segment_size.is_some()
            || outcome.logs.asked() > 0;
        if has_effects {
            self.carry_out(&outcome, packet, journey, now);
        }
        match outcome.decision {
            Decision::Accept => Ok(Some(outcome)),
            refused => Err(self.refuse_by_rule(refused, &outcome, packet, journey, now)),
        }
    }

    /// Does what rules ask for beside their verdict.
    #[cold]
    fn carry_out(
        &mut self,
        outcome: &Outcome,
        packet: &mut Packet,
        journey: &mut Journey,
        now: Timestamp,
    ) {
        let tracked = &mut journey.tracked;
        if let Some(bucket) = self.ownership.get_mut(packet.bucket) {
            let table = &mut bucket.connections;
            let mut context =
                self.tracking.context_of(Some(packet.origin.zone), now, &mut self.counters);
            if let Some(mark) = outcome.ct_mark {
                table.set_mark(tracked, mark, &mut context);
            }
            if outcome.label != 0 {
                table.add_labels(tracked, Labels::of_bits(outcome.label), &mut context);
            }
            let kind = self.rules.as_ref().zip(outcome.helper);
            if let Some(kind) = kind.and_then(|(rules, id)| rules.shared.helper(id)) {
                table.set_helper(tracked, kind);
            }
        }
        if let Some(size) = outcome.segment_size {
            self.lower_segment_size(size, packet, journey);
        }
        self.log(outcome, packet, now);
    }

    /// Lowers the maximum segment size that a SYN announces.
    fn lower_segment_size(&mut self, size: SegmentSize, packet: &mut Packet, journey: &Journey) {
        let size = match size {
            SegmentSize::AtMost(size) => size,
            SegmentSize::PathMtu => {
                // In both directions, as the kernel does.
                let ports = [Some(packet.frame.port), journey.output_port];
                let mtus = ports.into_iter().flatten().filter_map(|port| self.outputs.mtu(port));
                let Some(mtu) = mtus.min() else { return };
                let headers = if packet.network.family == Family::V4 { 40 } else { 60 };
                u16::try_from(mtu.saturating_sub(headers)).unwrap_or(u16::MAX)
            }
        };
        self.edit(packet, |segment| segment.lower_segment_size(size));
    }

    /// Hands what is to be logged to the coordinator, a bounded number of lines.
    fn log(&mut self, outcome: &Outcome, packet: &Packet, now: Timestamp) {
        let Self { rules: Some(rules), notices, tracking, .. } = self else { return };
        let mut left = u64::from(outcome.logs.asked());
        for (log, rule) in outcome.logs.lines() {
            if !rules.lines.take(now.as_nanos()) {
                break;
            }
            left -= 1;
            let revision = rules.shared.revision;
            let why = Why::Rule { rule: rule.index() as u32, revision };
            let line = RecentDrop::new(&packet.frame, why.into(), now, &tracking.zones);
            // A coordinator that is gone writes no lines.
            let _ = notices.send(Notice::Logged(log, Box::new(line)));
        }
        rules.unwritten += left;
    }

    /// Tells the sender of a refused packet, if a rule says so, and names who has refused it.
    #[cold]
    fn refuse_by_rule(
        &mut self,
        decision: Decision,
        outcome: &Outcome,
        packet: &Packet,
        journey: &Journey,
        now: Timestamp,
    ) -> Why {
        if let Decision::Reject(reject) = decision {
            self.reject(reject, packet, journey, now);
        }
        let revision = self.rules.as_ref().map_or(0, |rules| rules.shared.revision);
        match outcome.decided_by {
            Some(Decider::Rule(rule)) => Why::Rule { rule: rule.index() as u32, revision },
            Some(Decider::Policy(chain)) => Why::Policy { chain: chain.index() as u32, revision },
            None => DropReason::RuleRefused.into(),
        }
    }

    fn reject(&mut self, reject: Reject, packet: &Packet, journey: &Journey, now: Timestamp) {
        let code = match reject {
            Reject::TcpReset => return self.reset(packet, journey, now),
            Reject::Icmp(code) | Reject::Icmpv6(code) => code,
            Reject::Icmpx(what) => what.code(packet.network.family),
        };
        self.tell(&packet.frame, Message::Unreachable { code }, now);
    }

    fn tell(&mut self, frame: &Frame, message: Message, now: Timestamp) {
        let Self { outputs, pool, counters, .. } = self;
        outputs.tell(frame, message, now.as_nanos(), pool, counters);
    }

    /// Resets a connection in the name of the receiver.
    fn reset(&mut self, packet: &Packet, journey: &Journey, now: Timestamp) {
        let Transport::Tcp(tcp) = packet.network.transport else { return };
        let text = u32::from(packet.network.transport_offset) + u32::from(tcp.header_len);
        let length = packet.network.end.saturating_sub(text);
        let Some(segment) = ControlSegment::reset(&tcp, length) else { return };
        if let Some(bucket) = self.ownership.get_mut(packet.bucket) {
            let mut context =
                self.tracking.context_of(Some(packet.origin.zone), now, &mut self.counters);
            bucket.connections.reset(&journey.tracked, &mut context);
        }
        let mut bytes = [0; MAX_FRAME];
        let allowed = self.rules.as_mut().is_some_and(|rules| rules.resets.take(now.as_nanos()));
        if let Some(length) = segment.write(packet.frame.bytes(), &mut bytes).filter(|_| allowed)
            && let Some(mut frame) = self.pool.copy_of(&bytes[..length])
        {
            let port = packet.frame.port;
            frame.port = port;
            frame.offload.checksum = Checksum::Verified;
            self.counters.output.tcp_resets += 1;
            let Self { outputs, pool, counters, .. } = self;
            outputs.send_by(port, frame, Manner::default(), pool, counters);
        }
    }

    /// A packet goes on, unless a helper waits for the rest of it.
    fn confirm(
        &mut self,
        packet: &mut Packet,
        tracked: Tracked,
        now: Timestamp,
    ) -> Result<(), Why> {
        if !tracked.fresh && !tracked.is_watched() {
            return Ok(());
        }
        let Self { ownership, tracking, counters, .. } = self;
        let Some(bucket) = ownership.get_mut(packet.bucket) else { return Ok(()) };
        let passed = tracking.pass(bucket, packet, tracked, now, counters);
        passed.refusal().map_or(Ok(()), Err)?;
        if tracked.is_watched() { self.edit_payload(packet) } else { Ok(()) }
    }

    pub(crate) fn withdraw(&mut self, packet: &Packet, tracked: &Tracked, now: Timestamp) {
        if let (true, Some(id)) = (tracked.fresh, tracked.connection)
            && let Some(bucket) = self.ownership.get_mut(packet.bucket)
        {
            let mut context = self.tracking.context(now, &mut self.counters);
            bucket.connections.withdraw(id, &mut context);
        }
    }

    /// True if the SYN proxy answers a SYN.
    fn screens(&mut self, packet: &Packet, now: Timestamp) -> bool {
        let Some(TrackedFlow { keyed, .. }) = packet.flow else { return false };
        let zone = keyed.key.zone;
        self.tracking.settings_of(zone).syn_proxy.half_open != 0 && self.answers(zone, now)
    }
}

impl Worker {
    /// Tells the others what rules have changed in sets.
    #[inline]
    pub(crate) fn tell_elements(&mut self) {
        let Self { rules: Some(rules), links, .. } = self else { return };
        let revision = rules.shared.revision;
        rules.state.take_updates(|update| {
            for link in links.iter_mut().flatten() {
                link.stage_control(Item::Element(revision, update));
            }
        });
    }

    /// Takes over what another worker's rules have changed in a set.
    pub(crate) fn learn_element(&mut self, revision: u32, update: ElementUpdate, now: Timestamp) {
        let Some(rules) = &mut self.rules else { return };
        if rules.shared.revision == revision {
            rules.state.apply(&rules.shared.program, update, now);
        }
    }
}

/// What a router has changed of a packet for the rules to see.
#[derive(Default)]
struct Hop {
    taken: bool,
}

impl Hop {
    /// Takes a hop off a packet that has one.
    fn take(frame: &mut Frame) -> Self {
        Self { taken: packet_in(frame).is_some_and(wire::take_hop) }
    }

    /// Gives it back: who sends the packet takes it, from each fragment if it came in some.
    fn restore(self, frame: &mut Frame) {
        if let (true, Some(packet)) = (self.taken, packet_in(frame)) {
            wire::give_hop(packet);
        }
    }
}

fn packet_in(frame: &mut Frame) -> Option<&mut [u8]> {
    frame.bytes_mut().get_mut(usize::from(ETHERNET_LEN)..)
}

/// The outermost VLAN identifier of a frame, 0 for none.
fn vlan(frame: &[u8]) -> u16 {
    const TAGS: [[u8; 2]; 2] = [[0x81, 0x00], [0x88, 0xa8]];
    match frame.get(12..16) {
        Some(&[a, b, c, d]) if TAGS.contains(&[a, b]) => u16::from_be_bytes([c, d]) & 0x0fff,
        _ => 0,
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
#[path = "judging_tests.rs"]
mod tests;
