//! Judging packets by the operator's rules: the stages around tracking and routing.
//!
//! All stages of a packet are asked by the owner of its bucket in one go, and rulesets are
//! exchanged between two batches, so each packet is judged by one of them.

use conntrack::nat::Halves;
use conntrack::syn_proxy::Screening;
use conntrack::{DropCause, Tracked};
use flow::{Class, DropReason, Timestamp, ZonePair};
use netio::{Frame, PortId};
use ruleset::{CtState, Decision, NatKind, NatRequest, Outcome, PacketView, Stage, evaluate};
use wire::{ETHERNET_LEN, TcpFlags, Transport};

use crate::bridge::Way;
use crate::journey::{Asked, Journey};
use crate::packet::Packet;
use crate::port_set::PortSet;
use crate::router::Course;
use crate::translating::Half;
use crate::worker::{TimeSource, Worker};

/// A packet that goes on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Passed {
    /// Where, if that was found out already.
    pub course: Option<Course>,
    /// By which ports a bridge sends it, if they were chosen already.
    pub way: Option<Way>,
    /// It has to wait until replies to its connection find it.
    pub waits: bool,
}

impl Passed {
    /// For the host, which has its own copy.
    pub const TO_HOST: Self = Self { course: Some(Course::Host), way: None, waits: false };
}

impl Worker {
    /// Asks the rules before tracking. Returns the zones that they say, if they say any.
    pub(crate) fn judge_untracked(
        &mut self,
        packet: &mut Packet,
        now: Timestamp,
    ) -> Result<Option<ZonePair>, DropCause> {
        let Some(rules) = &self.rules else { return Ok(None) };
        if rules.shared.program.is_empty(Stage::Untracked) {
            return Ok(None);
        }
        let input = rules.interface(packet.frame.port);
        let mut journey = Journey::new(packet, Tracked::alone(Class::Untracked), input);
        // What was not tracked yet is invalid to the kernel's rules.
        journey.state = CtState::Invalid;
        let asked = self.judge_stage(Stage::Untracked, packet, &mut journey, now);
        packet.mark = journey.mark;
        packet.per_packet = journey.per_packet;
        let wanted = asked?;
        packet.untracked = wanted.notrack;
        packet.judged = true;
        Ok(wanted.zone)
    }

    /// Tracks a packet and judges it by the rules. If it is refused, what it has opened is
    /// withdrawn.
    ///
    /// Of what the SYN proxy is to be asked about, it answers SYNs when the rules have accepted
    /// them, and decides about all else before, since an ACK that returns a cookie is not the
    /// packet that opens the connection.
    #[inline(never)]
    pub(crate) fn admit_by_rules(
        &mut self,
        packet: &mut Packet,
        screening: Screening,
        now: Timestamp,
    ) -> Result<Passed, DropCause> {
        let mut tracked = if packet.untracked {
            Tracked::alone(Class::Untracked)
        } else {
            self.track(packet, screening, now)
        };
        let mut answers = false;
        if let Some(DropCause::SynProxy { .. }) = tracked.refusal()
            && let Transport::Tcp(tcp) = packet.network.transport
            && tcp.flags.contains(TcpFlags::SYN)
        {
            (tracked, answers) = self.track_syn(packet, now);
        }
        self.admit_tracked_by_rules(packet, tracked, answers, now)
    }

    /// Judges a packet that was tracked already, in front of which the SYN proxy `answers`.
    pub(crate) fn admit_tracked_by_rules(
        &mut self,
        packet: &mut Packet,
        tracked: Tracked,
        answers: bool,
        now: Timestamp,
    ) -> Result<Passed, DropCause> {
        self.stay_with(packet, &tracked);
        let is_news = packet.is_own && (tracked.fresh || tracked.connection.is_none());
        if let Some(why) = tracked.refusal() {
            // What may return a cookie is not the host's before that was looked at.
            let is_hosts = is_news && !matches!(why, DropCause::SynProxy { .. });
            return if is_hosts { Ok(Passed::TO_HOST) } else { Err(why) };
        }
        let input = self.rules.as_ref().map_or(0, |it| it.interface(packet.frame.port));
        let mut journey = Journey::new(packet, tracked, input);
        journey.is_hosts = is_news;
        let mut judged = self.take_stages(packet, &mut journey, now);
        if journey.is_hosts {
            self.withdraw(packet, &journey.tracked, now);
            return Ok(Passed::TO_HOST);
        }
        // One look at both, as nearly no packet is either.
        if (answers | packet.carries) && judged.is_ok() {
            judged = self.take_last_step(answers, packet, &mut journey, now);
        }
        if !matches!(judged, Err(DropCause::SynProxy { .. })) {
            self.counters.classify(journey.tracked.class);
        }
        match judged {
            Ok(()) => {
                self.confirm(packet, journey.tracked, now)?;
                if !journey.per_packet {
                    let Journey { tracked, passed, .. } = &journey;
                    self.record(packet, tracked, passed.course, passed.way, now);
                }
                self.passed(packet, &journey.tracked, journey.passed, now)
            }
            Err(why) => {
                self.withdraw(packet, &journey.tracked, now);
                Err(why)
            }
        }
    }

    /// Tracks a SYN about which the SYN proxy was to be asked. True if that answers it, should the
    /// rules accept it.
    #[cold]
    fn track_syn(&mut self, packet: &Packet, now: Timestamp) -> (Tracked, bool) {
        let answers = self.answers(packet, now);
        let screening = if answers { Screening::Answer } else { Screening::Off };
        (self.track(packet, screening, now), answers)
    }

    /// What comes of a packet that the rules have accepted, and that the SYN proxy answers or that
    /// carries another which is to be judged.
    #[cold]
    #[inline(never)]
    fn take_last_step(
        &mut self,
        answers: bool,
        packet: &mut Packet,
        journey: &mut Journey,
        now: Timestamp,
    ) -> Result<(), DropCause> {
        if answers && journey.tracked.fresh {
            self.restore_addresses(packet);
            return Err(DropCause::SynProxy { proxy: None });
        }
        // What is for the host is the kernel's to judge.
        if packet.carries && journey.passed.course != Some(Course::Host) {
            self.judge_inside(packet, journey, now)?;
        }
        Ok(())
    }

    /// The stages behind tracking.
    fn take_stages(
        &mut self,
        packet: &mut Packet,
        journey: &mut Journey,
        now: Timestamp,
    ) -> Result<(), DropCause> {
        let mut halves = self.halves(packet, &journey.tracked);
        journey.set_translated(&halves);
        if self.syn_proxy.opens() {
            let Some(hop) = self.find_way(packet, journey, now)? else { return Ok(()) };
            let judged = self.take_last_stages(packet, journey, halves, now);
            hop.restore(&mut packet.frame);
            return judged;
        }
        self.judge_stage(Stage::Prerouting, packet, journey, now)?;
        if journey.tracked.fresh {
            journey.follows = self.follow(packet, &journey.tracked, now)?;
            if self.judge_destination(packet, journey, now)? == Led::Redirected {
                self.judge_stage(Stage::PreroutingTranslated, packet, journey, now)?;
                self.leave_to_host(packet, journey, now);
                return Ok(());
            }
            halves = self.halves(packet, &journey.tracked);
            journey.set_translated(&halves);
        }
        if journey.is_hosts && halves.destination.is_none() {
            return Ok(());
        }
        journey.is_hosts = false;
        self.readdress(packet, &halves, Half::Destination);
        self.judge_stage(Stage::PreroutingTranslated, packet, journey, now)?;
        let Some(hop) = self.find_way(packet, journey, now)? else { return Ok(()) };
        let judged = self.take_last_stages(packet, journey, halves, now);
        hop.restore(&mut packet.frame);
        judged
    }

    fn take_last_stages(
        &mut self,
        packet: &mut Packet,
        journey: &mut Journey,
        halves: Halves,
        now: Timestamp,
    ) -> Result<(), DropCause> {
        if let Some(Way::Ports(ports)) = journey.passed.way {
            return self.judge_each_port(packet, journey, (halves, ports), now);
        }
        if !self.syn_proxy.opens() {
            self.judge_stage(Stage::Forward, packet, journey, now)?;
        }
        self.leave(packet, journey, halves, now)
    }

    /// Asks the last stages for each of some ports, as the kernel does for the copies that its
    /// bridge sends. The packet leaves by those that accept it; the rules see for each the marks
    /// that it came with.
    #[cold]
    #[inline(never)]
    fn judge_each_port(
        &mut self,
        packet: &mut Packet,
        journey: &mut Journey,
        (halves, ports): (Halves, PortSet),
        now: Timestamp,
    ) -> Result<(), DropCause> {
        let (mark, priority) = (journey.mark, journey.priority);
        let mut proxied = None;
        let accepted = ports.accepted(DropReason::NoOutputPort.into(), |port| {
            (journey.mark, journey.priority) = (mark, priority);
            self.go_out_by(port, journey);
            match self.judge_stage(Stage::Forward, packet, journey, now) {
                // Rules have the SYN proxy open this connection.
                Err(DropCause::SynProxy { .. }) if self.syn_proxy.opens() => {}
                Err(why @ DropCause::SynProxy { .. }) => {
                    proxied = Some(why);
                    return Err(why);
                }
                judged => judged.map(drop)?,
            }
            self.leave(packet, journey, halves, now)
        });
        if let Some(why) = proxied {
            return Err(why);
        }
        let rejected = journey.rejected.filter(|_| accepted.is_err());
        if let Some(reject) = rejected {
            self.reject(reject, packet, journey, now);
        }
        journey.passed.way = Some(Way::Ports(accepted?));
        Ok(())
    }

    /// Has the stages that come see a packet that leaves by this port.
    pub(crate) fn go_out_by(&self, port: PortId, journey: &mut Journey) {
        journey.output = self.rules.as_ref().map_or(0, |rules| rules.interface(port));
        journey.output_port = Some(port);
    }

    fn leave(
        &mut self,
        packet: &mut Packet,
        journey: &mut Journey,
        mut halves: Halves,
        now: Timestamp,
    ) -> Result<(), DropCause> {
        self.judge_stage(Stage::Postrouting, packet, journey, now)?;
        if journey.tracked.fresh {
            if !self.judge_source(packet, journey, now)? {
                self.settle_translation(packet, &journey.tracked, now)?;
            }
            halves = self.halves(packet, &journey.tracked);
            journey.set_translated(&halves);
        }
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
    ) -> Result<Option<Hop>, DropCause> {
        let (port, hop) = match &mut self.router {
            None => {
                let way = self.outputs.ways_of(&packet.frame, now.as_nanos())?;
                journey.passed.way = Some(way);
                let port = if let Way::Port(port) = way { Some(port) } else { None };
                (port, Hop::default())
            }
            Some(router) => {
                let course = router.course_of(packet, journey.mark);
                journey.passed.course = Some(course);
                match course {
                    Course::Host if packet.frame.before().destination.is_some() => {
                        if !journey.is_determined {
                            return Err(DropReason::NatToHost.into());
                        }
                        self.leave_to_host(packet, journey, now);
                        return Ok(None);
                    }
                    Course::Host => return Ok(None),
                    Course::Refuse { reason, told } => {
                        if let Some(message) = told {
                            self.tell(&packet.frame, message, now);
                        }
                        return Err(reason.into());
                    }
                    Course::By { .. } => (router.port_of(&course), Hop::take(&mut packet.frame)),
                }
            }
        };
        if let Some(port) = port {
            self.go_out_by(port, journey);
        }
        Ok(Some(hop))
    }

    /// Asks the stage that translates destinations about a packet that has opened a connection.
    fn judge_destination(
        &mut self,
        packet: &mut Packet,
        journey: &mut Journey,
        now: Timestamp,
    ) -> Result<Led, DropCause> {
        if journey.follows {
            return Ok(Led::Onward);
        }
        let Some(request) = self.judge_stage(Stage::DestinationNat, packet, journey, now)?.nat
        else {
            return Ok(Led::Onward);
        };
        if request.kind == NatKind::Redirect {
            self.redirect_to_host(&request, packet);
            journey.set_redirected();
            return Ok(Led::Redirected);
        }
        journey.is_determined =
            request.address.is_none_or(|addresses| addresses.is_one() || request.netmap);
        self.translate(&request, packet, &journey.tracked, None, now).map(|()| Led::Onward)
    }

    /// Asks the stage that translates sources about a packet that has opened a connection. True
    /// if a rule has asked for a translation, or none is to be asked.
    fn judge_source(
        &mut self,
        packet: &mut Packet,
        journey: &mut Journey,
        now: Timestamp,
    ) -> Result<bool, DropCause> {
        if journey.follows {
            return Ok(true);
        }
        let Some(request) = self.judge_stage(Stage::SourceNat, packet, journey, now)?.nat else {
            return Ok(false);
        };
        if self.syn_proxy.opens() {
            // The proxy knows of one address of each end.
            return Err(DropReason::SynCookie.into());
        }
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
    ) -> Result<Wanted, DropCause> {
        match &self.rules {
            Some(rules) if !rules.shared.program.accepts_at_once(stage, journey.state) => {
                self.ask_rules(stage, packet, journey, now)
            }
            _ => Ok(Wanted::default()),
        }
    }

    #[inline(never)]
    fn ask_rules(
        &mut self,
        stage: Stage,
        packet: &mut Packet,
        journey: &mut Journey,
        now: Timestamp,
    ) -> Result<Wanted, DropCause> {
        let Some(rules) = &mut self.rules else { return Ok(Wanted::default()) };
        let program = &rules.shared.program;
        let table = self.ownership.get(packet.bucket).map(|bucket| &bucket.connections);
        let keyed = packet.flow.as_ref().map(|flow| &flow.keyed);
        let asked = table.and_then(|table| Asked::of(table, keyed, &journey.tracked, now));
        let zones = match table {
            Some(table) if journey.tracked.is_translated() => table.zones(&journey.tracked),
            _ => ZonePair::both(packet.origin.zone),
        };
        let bytes = packet.frame.bytes();
        let view = PacketView {
            frame: bytes,
            network: &packet.network,
            vlan: packet.origin.vlan,
            packet_type: packet_type(bytes),
            input: journey.input,
            output: journey.output,
            mark: journey.mark,
            priority: journey.priority,
            connection: journey.connection(zones, asked.as_ref().map(|asked| asked as _)),
        };
        let outcome = evaluate(program, stage, &view, &mut rules.state, now);
        // Behind this packet rules see another mark, and may decide otherwise.
        let marks_anew = outcome.ct_mark.is_some_and(|mark| mark != journey.tracked.mark);
        journey.per_packet |= outcome.per_packet || marks_anew;
        journey.mark = outcome.mark.unwrap_or(journey.mark);
        journey.priority = outcome.priority.unwrap_or(journey.priority);
        let has_effects = outcome.ct_mark.is_some()
            || outcome.label != 0
            || outcome.helper.is_some()
            || outcome.timeout.is_some()
            || outcome.segment_size.is_some()
            || outcome.logs.asked() > 0;
        if has_effects {
            self.carry_out(&outcome, packet, journey, now);
        }
        match outcome.decision {
            Decision::Accept => Ok(Wanted::of(&outcome)),
            // A capture holds no cookies.
            Decision::SynProxy(_) if self.time == TimeSource::Frame => Ok(Wanted::of(&outcome)),
            refused => Err(self.refuse_by_rule(refused, &outcome, packet, journey, now)),
        }
    }

    /// A packet goes on, unless a helper waits for the rest of it.
    fn confirm(
        &mut self,
        packet: &mut Packet,
        tracked: Tracked,
        now: Timestamp,
    ) -> Result<(), DropCause> {
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
}

/// Where rules have led a packet that has opened a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Led {
    /// Its destination says it, translated or not.
    Onward,
    /// To the address of the interface that it came in by.
    Redirected,
}

/// What rules want of a packet that goes on, beside what was done at once.
#[derive(Default)]
struct Wanted {
    nat: Option<NatRequest>,
    zone: Option<ZonePair>,
    notrack: bool,
}

impl Wanted {
    #[inline]
    const fn of(outcome: &Outcome) -> Self {
        Self { nat: outcome.nat, zone: outcome.zone, notrack: outcome.notrack }
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

/// To whom the link carried a frame, as rules number it.
pub(crate) fn packet_type(frame: &[u8]) -> u8 {
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

#[cfg(test)]
#[path = "flooding_tests.rs"]
mod flooding_tests;
