//! The actions of rules beside their verdict, and the replies to the senders of refused packets.

use conntrack::Labels;
use flow::{DropReason, Timestamp};
use netio::{Checksum, Frame, PortId};
use ruleset::{Decider, Decision, Outcome, Reject, SegmentSize};
use wire::control_segment::{ControlSegment, MAX_FRAME};
use wire::icmp_error::Message;
use wire::{Family, Transport};

use crate::egress::icmp_errors::Speaker;
use crate::egress::original_ends::{answer_between, original_ends};
use crate::egress::route_decision::RouteDecision;
use crate::path::drop_cause::DropCause;
use crate::path::host_questions::length_of_text;
use crate::path::packet::Packet;
use crate::path::recent_drops::RecentDrop;
use crate::path::scratch::Scratch;
use crate::path::step::{End, Reply};
use crate::path::{PacketPath, TimeSource};

impl PacketPath {
    /// Carries out what rules ask for beside their verdict.
    #[cold]
    pub(in crate::path) fn apply_outcome(
        &mut self,
        outcome: &Outcome,
        packet: &mut Packet,
        scratch: &mut Scratch,
    ) {
        let (tracked, now) = (&mut scratch.tracked, scratch.now);
        if let Some(bucket) = self.buckets.get_mut(packet.bucket) {
            let table = &mut bucket.connections;
            if let Some(rules) = &mut self.rules {
                rules.take_joined().for_each(|tallied| table.tally(tracked, tallied));
            }
            let mut context =
                self.tracking.context_of(Some(packet.origin.zone), now, &mut self.counters);
            if let Some(mark) = outcome.ct_mark {
                table.set_mark(tracked, mark, &mut context);
            }
            if outcome.label != 0 {
                table.add_labels(tracked, Labels::of_bits(outcome.label), &mut context);
            }
            let kind = self.rules.as_ref().zip(outcome.helper);
            if let Some(kind) = kind.and_then(|(rules, id)| rules.helper(id)) {
                table.set_helper(tracked, kind);
            }
            let policy = self.rules.as_ref().zip(outcome.timeout);
            if let Some(policy) = policy.and_then(|(rules, id)| rules.timeouts(id)) {
                table.set_policy(tracked, policy, now);
            }
        }
        if let Some(size) = outcome.segment_size {
            self.lower_segment_size(size, packet, scratch);
        }
        if outcome.is_rewritten {
            self.rewrite(packet, scratch.has_taken_hop());
        }
        self.log(outcome, packet, scratch.output_port, now);
    }

    /// Lowers the maximum segment size that a SYN announces.
    fn lower_segment_size(&mut self, size: SegmentSize, packet: &mut Packet, scratch: &Scratch) {
        let size = match size {
            SegmentSize::AtMost(size) => size,
            SegmentSize::PathMtu => {
                // The MTUs of both directions count, as in the kernel.
                let ports = [Some(packet.frame.port), scratch.output_port];
                let mtus = ports
                    .into_iter()
                    .flatten()
                    .filter_map(|port| self.forwarder.outputs().mtu(port));
                let of_route = match scratch.exit.route {
                    Some(RouteDecision::Forward { mtu, .. }) => mtu,
                    _ => None,
                };
                let back = self.forwarder.router().and_then(|it| it.mtu_back(&packet.network));
                let Some(mtu) = mtus.chain(of_route).chain(back).min() else { return };
                let headers = if packet.network.family == Family::V4 { 40 } else { 60 };
                u16::try_from(mtu.saturating_sub(headers)).unwrap_or(u16::MAX)
            }
        };
        self.edit(packet, |segment| segment.lower_segment_size(size));
    }

    /// Notes a bounded number of packets that are to be logged, with the port that they are to leave
    /// by, if that is known.
    pub(in crate::path) fn log(
        &mut self,
        outcome: &Outcome,
        packet: &Packet,
        output: Option<PortId>,
        now: Timestamp,
    ) {
        let Self { rules: Some(rules), tracking, .. } = self else { return };
        let line =
            |why| RecentDrop::new(&packet.frame, why, now, tracking.zones()).with_output(output);
        rules.log(&outcome.logs, now, line);
    }

    /// The end of a packet that rules refuse.
    #[cold]
    pub(in crate::path) fn refusal(
        &self,
        decision: Decision,
        outcome: &Outcome,
        packet: &Packet,
        scratch: &Scratch,
    ) -> End {
        let revision = self.rules.as_ref().map_or(0, |rules| rules.revision());
        let reply = match decision {
            Decision::SynProxy(proxy) => return End::SynProxy(proxy.index() as u32),
            Decision::Reject(Reject::TcpReset) => Some(Reply::Reset),
            Decision::Reject(Reject::Icmp(code) | Reject::Icmpv6(code)) => {
                Some(Reply::Icmp(Message::Unreachable { code }))
            }
            Decision::Reject(Reject::Icmpx(what)) => {
                let code = what.code(packet.network.family);
                Some(Reply::Icmp(Message::Unreachable { code }))
            }
            Decision::Accept | Decision::Drop => None,
        };
        let why = match outcome.decided_by {
            Some(Decider::Rule(rule)) => {
                let invalid = scratch.tracked.why;
                DropCause::Rule { rule: rule.index() as u32, revision, invalid }
            }
            Some(Decider::Policy(chain)) => {
                let invalid = scratch.tracked.why;
                DropCause::Policy { chain: chain.index() as u32, revision, invalid }
            }
            None => DropReason::RuleRefused.into(),
        };
        End::Drop(why, reply)
    }

    /// Tells the sender of a packet that it is refused.
    pub(in crate::path) fn reply(&mut self, reply: Reply, packet: &Packet, scratch: &Scratch) {
        match reply {
            Reply::Reset => self.reset(packet, scratch),
            Reply::Icmp(message) => {
                let Self { forwarder, pool, counters, .. } = self;
                let (speaker, now_ns) = (refuser(packet), scratch.now.as_nanos());
                forwarder.tell(&packet.frame, message, speaker, now_ns, pool, counters);
            }
        }
    }

    /// Sends an ICMP error to the sender of a packet.
    pub(in crate::path) fn tell(&mut self, frame: &Frame, message: Message, now: Timestamp) {
        let Self { forwarder, pool, counters, .. } = self;
        forwarder.tell(frame, message, Speaker::Gateway, now.as_nanos(), pool, counters);
    }

    /// Sends a TCP reset in the name of the packet's receiver, and ends the connection.
    fn reset(&mut self, packet: &Packet, scratch: &Scratch) {
        let now = scratch.now;
        let Transport::Tcp(tcp) = packet.network.transport else { return };
        let length = length_of_text(packet, &tcp);
        let Some(segment) = ControlSegment::reset(&tcp, length) else { return };
        if let Some(bucket) = self.buckets.get_mut(packet.bucket) {
            // The timeouts are those of the originator's zone, even if a reply is reset.
            let zone = bucket.connections.zones(&scratch.tracked).original;
            let mut context = self.tracking.context_of(Some(zone), now, &mut self.counters);
            bucket.connections.reset(&scratch.tracked, &mut context);
        }
        // The sender of a captured packet is not there.
        if self.time == TimeSource::Frame {
            return;
        }
        let mut bytes = [0; MAX_FRAME];
        let allowed = self.rules.as_mut().is_some_and(|rules| rules.may_reset(now));
        if let Some(length) = segment.write(packet.frame.bytes(), &mut bytes).filter(|_| allowed)
            && let Some(mut frame) = self.pool.copy_of(&bytes[..length])
        {
            let port = packet.frame.port;
            frame.port = port;
            answer_between(&mut frame, &original_ends(&packet.frame));
            frame.offload.checksum = Checksum::Verified;
            self.counters.output.tcp_resets += 1;
            let Self { forwarder, pool, counters, .. } = self;
            forwarder.send_made(port, frame, pool, counters);
        }
    }
}

/// In whose name a refused packet is answered. The kernel speaks of a packet for an address of its
/// own from that address if it is one of IPv6, and from the address of its interface if it is one of
/// IPv4.
fn refuser(packet: &Packet) -> Speaker {
    let is_for_host = packet.is_local && original_ends(&packet.frame).destination.is_none();
    match packet.network.family {
        Family::V6 if is_for_host => Speaker::Receiver,
        _ => Speaker::Gateway,
    }
}
