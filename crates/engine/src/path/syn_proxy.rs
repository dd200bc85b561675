//! The SYN proxy stages. The gateway answers SYNs in the name of servers, and afterwards shifts the
//! sequence numbers of these connections.
//!
//! A segment that is made here takes the place of the packet from which it is made, so that the
//! counters balance. Only the window update for a client is an additional frame.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::time::Duration;

use conntrack::seqadj::Adjustment;
use conntrack::syn_proxy::{self, Cookies, Pressure, Promise, Proxied, Received, Screening};
use conntrack::{Direction, Tracked};
use flow::{Class, DropReason, HashKey, KeyedPacket, Timestamp, Zone};
use netio::Checksum;
use wire::control_segment::{ControlSegment, MAX_FRAME, Way};
use wire::{TcpEditor, TcpFlags, TcpInfo, Transport};

use crate::egress::original_ends::original_ends;
use crate::path::PacketPath;
use crate::path::drop_cause::DropCause;
use crate::path::packet::{Packet, TrackedFlow};
use crate::path::scratch::{Finish, Progress, Scratch};
use crate::path::step::{Answer, End, Step, dropped};
use conntrack::nat::TranslatedEnd;

/// The time after the start during which the gateway picks up connections that it has not seen
/// open: as long as an end repeats data that nobody acknowledges
/// (`nf_conntrack_tcp_timeout_unacknowledged`).
const PICK_UP: Duration = Duration::from_secs(300);

/// The state that a worker needs to answer SYNs.
#[derive(Debug)]
pub struct SynProxy {
    cookies: Cookies,
    /// The load of each zone in which a connection was to be opened.
    zones: BTreeMap<Zone, Pressure>,
    /// Number of workers that share the threshold. A hash spreads the flows of a zone over them,
    /// and so the connections that a flood opens.
    workers: u32,
}

impl SynProxy {
    /// Creates a part that answers nothing until the settings say so. All workers have the same
    /// secret, because a cookie may come back to another worker.
    pub fn new(secret: HashKey) -> Self {
        Self { cookies: Cookies::new(secret), zones: BTreeMap::new(), workers: 1 }
    }

    /// Sets the number of workers that share the threshold.
    pub fn set_workers(&mut self, workers: u32) {
        self.workers = workers.max(1);
    }

    /// The time of the last promise of each zone, if a client may still take it up. A bucket that
    /// leaves the worker takes them along.
    pub fn promises(&self, now: Timestamp) -> Vec<(Zone, Timestamp)> {
        let last =
            |(&zone, pressure): (&Zone, &Pressure)| Some((zone, pressure.last_promise(now)?));
        self.zones.iter().filter_map(last).collect()
    }

    fn pressure(&mut self, zone: Zone) -> &mut Pressure {
        self.zones.entry(zone).or_default()
    }
}

impl PacketPath {
    /// Takes over the promises of another worker.
    pub(super) fn learn_promises(&mut self, promises: impl IntoIterator<Item = (Zone, Timestamp)>) {
        for (zone, promised) in promises {
            self.syn_proxy.pressure(zone).learn(promised);
            self.tracking.has_promised(promised);
        }
    }

    /// Decides about a packet that would open a connection while too many are half open, or that
    /// may return a cookie. The packet goes on as it was tracked again, if it goes on.
    #[cold]
    pub(super) fn screen(&mut self, packet: &mut Packet, scratch: &mut Scratch) -> Step<Tracked> {
        let now = scratch.now;
        let (Some(TrackedFlow { keyed, .. }), Transport::Tcp(tcp)) =
            (packet.flow, packet.network.transport)
        else {
            return refused();
        };
        let answers = self.answers(packet, now);
        if tcp.flags.contains(TcpFlags::SYN) {
            if !answers {
                return ControlFlow::Continue(self.track(packet, Screening::Off, now));
            }
            if self.rules.is_none() && !packet.is_local {
                return match self.promise_for_zone(packet, scratch) {
                    Some(end) => ControlFlow::Break(end),
                    None => ControlFlow::Continue(self.track(packet, Screening::Off, now)),
                };
            }
            // Rules have to accept it first.
            scratch.proxy.is_to_answer = true;
            return ControlFlow::Continue(self.track(packet, Screening::Answer, now));
        }
        // A packet that comes in fragments opens no connection.
        if packet.pieces.is_none()
            && self.syn_proxy.pressure(keyed.key.zone).redeems(now)
            && let Some(proxied) = self.redeem(packet, &keyed, &tcp, &self.promise_of(packet), now)
        {
            return ControlFlow::Break(self.take_up(packet, scratch, proxied));
        }
        if answers && !self.picks_up(packet, &tcp, now) {
            if packet.is_local {
                // The packet may belong to a connection of the host itself.
                return ControlFlow::Break(End::Host);
            }
            self.counters.syn_proxy.cookie_invalid += 1;
            return refused();
        }
        ControlFlow::Continue(self.track(packet, Screening::Off, now))
    }

    /// Answers a SYN that the rules have accepted while too many connections are half open.
    #[inline]
    pub(super) fn promise_if_accepted(
        &mut self,
        packet: &mut Packet,
        scratch: &mut Scratch,
    ) -> Step {
        if !(scratch.proxy.is_to_answer && scratch.tracked.fresh) {
            return ControlFlow::Continue(());
        }
        self.restore_addresses(packet);
        // A SYN that can not be answered opens its connection itself.
        ControlFlow::Break(self.promise_for_zone(packet, scratch).unwrap_or(End::Retrack))
    }

    /// Answers a SYN with the promise of its zone. `None` if it can not be answered.
    fn promise_for_zone(&mut self, packet: &Packet, scratch: &mut Scratch) -> Option<End> {
        // A packet that comes in fragments or from no single host opens no connection.
        let is_whole = packet.pieces.is_none();
        if !(is_whole && wire::is_single_host(packet.network.source_ip())) {
            return Some(REFUSED);
        }
        let promise = self.promise_of(packet);
        self.promise(packet, scratch, &promise)
    }

    /// Decides about a packet that rules give to the proxy of this number. A SYN gets a promise,
    /// and a valid cookie opens a connection.
    #[cold]
    pub(super) fn take_by_rule(
        &mut self,
        packet: &mut Packet,
        scratch: &mut Scratch,
        proxy: u32,
    ) -> End {
        let rules = self.rules.as_ref();
        let promise = rules.and_then(|rules| rules.syn_proxy(proxy)).copied();
        let (Some(promise), Some(TrackedFlow { keyed, hash: Some(hash) }), Transport::Tcp(tcp)) =
            (promise, packet.flow, packet.network.transport)
        else {
            return REFUSED;
        };
        // The proxy does not answer in the name of a server whose address was translated either.
        let is_whole = packet.pieces.is_none()
            && !scratch.proxy.is_made
            // The numbers of a connection that the proxy has joined are shifted by now.
            && scratch.proxy.finish.is_none()
            && original_ends(&packet.frame).destination.is_none()
            && wire::is_single_host(packet.network.source_ip());
        let has = |flags| tcp.flags.contains(flags);
        let now = scratch.now;
        match (has(TcpFlags::SYN), has(TcpFlags::ACK)) {
            (true, false) if is_whole => {
                let Some(end) = self.promise(packet, scratch, &promise) else { return REFUSED };
                if let Some(bucket) = self.buckets.get_mut(packet.bucket) {
                    let zone = packet.origin.zone;
                    let mut context = self.tracking.context_of(Some(zone), now, &mut self.counters);
                    bucket.connections.end_closed(&keyed.key, hash, &mut context);
                }
                end
            }
            (false, true) if is_whole => {
                self.redeem_or_refuse(packet, scratch, (&keyed, &tcp), &promise)
            }
            _ => REFUSED,
        }
    }

    /// The promise of the zone of a packet.
    fn promise_of(&self, packet: &Packet) -> Promise {
        let settings = self.tracking.settings_of(packet.origin.zone);
        Promise::of_zone(&settings.syn_proxy, packet.network.family)
    }

    /// True for a segment of a connection that may be older than the gateway: it has data, and the
    /// gateway has not run for long. Such connections go on after a restart even while the proxy
    /// answers, unless `nf_conntrack_tcp_loose` is off.
    fn picks_up(&self, packet: &Packet, tcp: &TcpInfo, now: Timestamp) -> bool {
        let zone = packet.origin.zone;
        let start = u32::from(packet.network.transport_offset) + u32::from(tcp.header_len);
        let bucket = self.buckets.get(packet.bucket);
        self.tracking.settings_of(zone).tcp.loose
            && packet.network.end > start
            && bucket.is_some_and(|bucket| now.since(bucket.born) < PICK_UP)
    }

    /// True while the gateway answers SYNs in the zone in which a packet would open a connection.
    pub(super) fn answers(&mut self, packet: &Packet, now: Timestamp) -> bool {
        let zone = packet.zones.map_or(packet.origin.zone, |zones| zones.original);
        let threshold = self.tracking.settings_of(zone).syn_proxy.half_open;
        if threshold == 0 {
            self.syn_proxy.pressure(zone).end();
            return false;
        }
        // A share of 1 means "always", so only a threshold of 1 may have it.
        let least = threshold.min(2);
        let share = threshold.div_ceil(self.syn_proxy.workers).max(least);
        let half_open = self.tracking.limits.half_open.get(zone);
        self.syn_proxy.pressure(zone).answers(half_open, share.into(), now)
    }

    /// Looks whether the proxy has opened the connection of a packet.
    #[inline(always)]
    pub(super) fn take_proxied(&mut self, packet: &mut Packet, scratch: &mut Scratch) -> Step {
        if !packet.untracked
            && let Some(TrackedFlow { keyed, hash: Some(hash) }) = &packet.flow
            && let Some(bucket) = self.buckets.get(packet.bucket)
            && let Some((direction, proxied)) =
                bucket.connections.proxied(keyed, *hash, scratch.now)
        {
            let (adjustment, proxied) = (proxied.adjustment().copied(), *proxied);
            scratch.screening = Screening::Off;
            return match adjustment {
                Some(adjustment) => {
                    self.handle_joined(packet, scratch, direction, proxied, &adjustment)
                }
                None => self.handle_half_open(packet, scratch, direction, proxied),
            };
        }
        ControlFlow::Continue(())
    }

    /// Decides about a packet of a connection whose server has not answered yet.
    fn handle_half_open(
        &mut self,
        packet: &mut Packet,
        scratch: &mut Scratch,
        direction: Direction,
        proxied: Proxied,
    ) -> Step {
        let (Some(TrackedFlow { keyed, .. }), Transport::Tcp(tcp)) =
            (packet.flow, packet.network.transport)
        else {
            // It is an ICMP error about the SYN.
            return ControlFlow::Continue(());
        };
        let has = |flags| tcp.flags.contains(flags);
        ControlFlow::Break(match direction {
            _ if packet.pieces.is_some() => REFUSED,
            // The server does not know the number that this packet acknowledges.
            Direction::Original if has(TcpFlags::RST) => {
                self.become_segment(packet, &proxied.abort(&tcp))
            }
            Direction::Original if !has(TcpFlags::ACK) => match has(TcpFlags::SYN) {
                true => self.promise(packet, scratch, proxied.promise()).unwrap_or(REFUSED),
                false => REFUSED,
            },
            Direction::Original if proxied.is_from_opening(&tcp) => {
                self.counters.syn_proxy.cookie_retrans += 1;
                self.open_at_server(packet, scratch, proxied)
            }
            Direction::Original => {
                self.redeem_or_refuse(packet, scratch, (&keyed, &tcp), proxied.promise())
            }
            Direction::Reply => return self.handle_server_reply(packet, scratch, proxied, &tcp),
        })
    }

    /// Decides about the server's answer to the SYN.
    fn handle_server_reply(
        &mut self,
        packet: &mut Packet,
        scratch: &mut Scratch,
        proxied: Proxied,
        tcp: &TcpInfo,
    ) -> Step {
        scratch.proxy.finish = Some(if tcp.flags.contains(TcpFlags::RST) {
            Finish::Refusal(proxied.refusal_sequence())
        } else if !tcp.flags.contains(TcpFlags::ACK) {
            return refused();
        } else {
            match self.join(packet, proxied) {
                Some(_) if packet.pieces.is_some() => return refused(),
                Some(finish) => finish,
                None => Finish::Reset(proxied.reset(tcp)),
            }
        });
        ControlFlow::Continue(())
    }

    /// Decides about a packet of a connection whose two ends use different sequence numbers.
    fn handle_joined(
        &mut self,
        packet: &mut Packet,
        scratch: &mut Scratch,
        direction: Direction,
        proxied: Proxied,
        adjustment: &Adjustment,
    ) -> Step {
        let Transport::Tcp(tcp) = packet.network.transport else {
            adjustment.quoted(direction, packet.frame.bytes_mut(), &packet.network);
            return ControlFlow::Continue(());
        };
        let is_syn_ack = tcp.flags.contains(TcpFlags::SYN.with(TcpFlags::ACK));
        if direction == Direction::Reply
            && is_syn_ack
            && let Some(finish) = self.join(packet, proxied)
        {
            if packet.pieces.is_some() {
                return refused();
            }
            scratch.proxy.finish = Some(finish);
            return ControlFlow::Continue(());
        }
        self.edit(packet, |segment| adjustment.before_tracking(direction, segment));
        scratch.proxy.finish = Some(Finish::Shift(direction, *adjustment));
        ControlFlow::Continue(())
    }

    /// The answer to the SYN+ACK of a server, which completes the server's handshake and opens the
    /// client's window. `None` if the packet does not fit.
    fn join(&self, packet: &Packet, mut proxied: Proxied) -> Option<Finish> {
        let (Some(TrackedFlow { keyed, .. }), Transport::Tcp(tcp)) =
            (packet.flow, packet.network.transport)
        else {
            return None;
        };
        let joined = proxied.join(&received(packet, &keyed, &tcp))?;
        Some(Finish::Join(proxied, joined))
    }

    /// Does the last of the proxy's work on a packet that goes on.
    #[inline(always)]
    pub(super) fn finish_proxied(&mut self, packet: &mut Packet, scratch: &mut Scratch) -> Step {
        let is_proxied = scratch.proxy.to_server.is_some() || scratch.proxy.finish.is_some();
        if is_proxied { self.finish(packet, scratch) } else { ControlFlow::Continue(()) }
    }

    #[cold]
    fn finish(&mut self, packet: &mut Packet, scratch: &mut Scratch) -> Step {
        if let Some(proxied) = scratch.proxy.to_server {
            self.keep_proxied(packet, proxied, scratch.now);
        }
        let Some(finish) = scratch.proxy.finish else { return ControlFlow::Continue(()) };
        match finish {
            Finish::Shift(direction, adjustment) => {
                self.edit(packet, |segment| adjustment.after_tracking(direction, segment));
                let reopens = |tcp: TcpInfo| {
                    let has = |flags| tcp.flags.contains(flags);
                    has(TcpFlags::SYN) && !has(TcpFlags::ACK)
                };
                if matches!(packet.network.transport, Transport::Tcp(tcp) if reopens(tcp))
                    && !self.is_proxied(packet, scratch.now)
                {
                    self.counters.syn_proxy.conn_reopened += 1;
                }
                ControlFlow::Continue(())
            }
            Finish::Refusal(sequence) => {
                self.edit(packet, |segment| segment.set_sequence(sequence));
                ControlFlow::Continue(())
            }
            Finish::Reset(segment) => {
                scratch.proxy.back = Some(segment);
                ControlFlow::Break(End::Answer(Answer::Back))
            }
            Finish::Join(proxied, joined) => {
                self.keep_proxied(packet, proxied, scratch.now);
                // The packet has the addresses that the client sees by now. Both segments are made
                // from it.
                scratch.proxy.back = Some(joined.to_server);
                scratch.proxy.along = Some(joined.to_client);
                ControlFlow::Break(End::Answer(Answer::BothWays))
            }
        }
    }

    /// Answers a SYN in the name of the server. `None` if no answer can be made from it, as from a
    /// packet behind labels.
    fn promise(
        &mut self,
        packet: &Packet,
        scratch: &mut Scratch,
        promise: &Promise,
    ) -> Option<End> {
        let (Some(TrackedFlow { keyed, .. }), Transport::Tcp(tcp)) =
            (packet.flow, packet.network.transport)
        else {
            return None;
        };
        if !ControlSegment::can_be_made_from(packet.frame.bytes()) {
            return None;
        }
        let now = scratch.now;
        let syn = received(packet, &keyed, &tcp);
        let segment = syn_proxy::answer(&self.syn_proxy.cookies, &syn, now, promise);
        scratch.proxy.back = Some(segment);
        self.counters.syn_proxy.syn_received += 1;
        if !promise.by_rule {
            self.syn_proxy.pressure(keyed.key.zone).promised(now);
            self.tracking.has_promised(now);
        }
        Some(End::Answer(Answer::Promise))
    }

    fn redeem(
        &self,
        packet: &Packet,
        keyed: &KeyedPacket,
        tcp: &TcpInfo,
        promise: &Promise,
        now: Timestamp,
    ) -> Option<Proxied> {
        let ack = received(packet, keyed, tcp);
        syn_proxy::redeem(&self.syn_proxy.cookies, &ack, now, promise)
    }

    fn redeem_or_refuse(
        &mut self,
        packet: &mut Packet,
        scratch: &mut Scratch,
        (keyed, tcp): (&KeyedPacket, &TcpInfo),
        promise: &Promise,
    ) -> End {
        match self.redeem(packet, keyed, tcp, promise, scratch.now) {
            Some(proxied) => self.take_up(packet, scratch, proxied),
            None => {
                self.counters.syn_proxy.cookie_invalid += 1;
                REFUSED
            }
        }
    }

    /// Opens a connection for a client that has come back with its cookie.
    fn take_up(&mut self, packet: &mut Packet, scratch: &mut Scratch, mut proxied: Proxied) -> End {
        self.counters.syn_proxy.cookie_valid += 1;
        // The client may be behind a link that takes shorter packets only. An ICMP error about a
        // longer segment would quote numbers that the server does not know.
        let headers = packet.network.offset.abs_diff(packet.network.transport_offset) + 20;
        if let Some(mtu) = self.forwarder.outputs().mtu(packet.frame.port) {
            proxied.limit_segment_size(mtu.saturating_sub(headers.into()));
        }
        if let Some(flow) = packet.flow.filter(|_| !proxied.promise().by_rule) {
            self.syn_proxy.pressure(flow.keyed.key.zone).taken_up();
        }
        self.open_at_server(packet, scratch, proxied)
    }

    /// Puts the client's SYN to the server in the place of a packet.
    fn open_at_server(
        &mut self,
        packet: &mut Packet,
        scratch: &mut Scratch,
        proxied: Proxied,
    ) -> End {
        // A rule that leaves the client's packets untracked does not hold for this SYN.
        packet.untracked = false;
        scratch.proxy.skips_early_chains = proxied.promise().by_rule;
        scratch.proxy.to_server = Some(proxied);
        self.become_segment(packet, &proxied.syn())
    }

    /// Puts a segment in the place of the packet from which it is made.
    fn become_segment(&mut self, packet: &mut Packet, segment: &ControlSegment) -> End {
        let Some(made) = self.make(packet, segment) else { return REFUSED };
        let before = std::mem::replace(packet, made);
        self.pool.give_back(before.frame);
        End::Retrack
    }

    /// Sends the answer to a packet in the place of the packet.
    pub(super) fn answer(&mut self, answer: Answer, packet: &mut Packet, scratch: &Scratch) {
        let back = scratch.proxy.back.and_then(|segment| self.make(packet, &segment));
        let along = scratch.proxy.along.and_then(|segment| self.make(packet, &segment));
        let way_back = self.way_back(packet);
        let (frame, pieces) = (std::mem::take(&mut packet.frame), packet.pieces.take());
        let Some(mut back) = back else {
            return self.drop_frames(frame, pieces, DropReason::SynCookie);
        };
        self.pool.give_back(frame);
        if answer == Answer::Promise {
            self.counters.classify(Class::Untracked);
        } else {
            back.flow = way_back.or(back.flow);
            if let ControlFlow::Break(end) = self.walk_back(&mut back, scratch.now) {
                if let Some(along) = along {
                    self.pool.give_back(along.frame);
                }
                return self.end_at_once(end, &mut back, scratch.now);
            }
        }
        let Self { forwarder, pool, counters, .. } = self;
        forwarder.send_made(back.frame.port, back.frame, pool, counters);
        if let Some(mut along) = along {
            self.counters.output.window_updates += 1;
            self.send_out(&mut along, &scratch.exit, scratch.now);
        }
    }

    /// Tracks and translates a segment towards the sender of a packet. It is the gateway's own, so
    /// no rule is asked, and it leaves by the port that the packet came in by.
    fn walk_back(&mut self, segment: &mut Packet, now: Timestamp) -> Step {
        let tracked = self.track(segment, Screening::Off, now);
        if let Some(why) = tracked.why {
            return dropped(why);
        }
        self.counters.classify(tracked.class);
        let mut scratch = Scratch::new(segment, Progress::Untracked, Screening::Off, 0, now);
        scratch.set_tracked(tracked);
        self.confirm(segment, &mut scratch)?;
        let address_changes = self.address_changes(segment, &tracked);
        self.readdress(segment, &address_changes, TranslatedEnd::Destination);
        self.readdress(segment, &address_changes, TranslatedEnd::Source);
        ControlFlow::Continue(())
    }

    /// The flow of packets in the direction opposite to a packet.
    fn way_back(&self, packet: &Packet) -> Option<TrackedFlow> {
        let TrackedFlow { keyed, hash: Some(hash) } = packet.flow? else { return None };
        let bucket = self.buckets.get(packet.bucket)?;
        let (keyed, hash) = bucket.connections.way_back(&keyed, hash)?;
        Some(TrackedFlow { keyed, hash: Some(hash) })
    }

    /// Makes a segment from a packet of its connection.
    fn make(&mut self, packet: &Packet, segment: &ControlSegment) -> Option<Packet> {
        let mut bytes = [0; MAX_FRAME];
        let length = segment.write(packet.frame.bytes(), &mut bytes)?;
        let network = wire::dissect(&bytes[..length]).ok()?.network?;
        let mut flow = packet.flow?;
        if segment.way == Way::Back {
            flow.keyed.sender = flow.keyed.sender.opposite();
        }
        let mut frame = self.pool.copy_of(&bytes[..length])?;
        frame.port = packet.frame.port;
        frame.offload.checksum = Checksum::Verified;
        Some(Packet { frame, network, flow: Some(flow), pieces: None, ..*packet })
    }

    /// Changes the header of a segment, and of the fragment that it came in.
    pub(super) fn edit(&mut self, packet: &mut Packet, change: impl FnOnce(&mut TcpEditor<'_>)) {
        let Packet { frame, network, pieces, .. } = packet;
        let covers_all = !matches!(frame.offload.checksum, Checksum::Partial { .. });
        let Some(mut segment) = TcpEditor::new(frame.bytes_mut(), network, covers_all) else {
            return;
        };
        change(&mut segment);
        if let Some(pieces) = pieces {
            pieces.copy_header(frame.bytes(), network);
        }
    }

    fn keep_proxied(&mut self, packet: &Packet, proxied: Proxied, now: Timestamp) {
        let Self { buckets, tracking, counters, .. } = self;
        if let Some(TrackedFlow { keyed, hash: Some(hash) }) = packet.flow
            && let Some(bucket) = buckets.get_mut(packet.bucket)
        {
            let mut context = tracking.context(now, counters);
            bucket.connections.set_proxied(&keyed, hash, proxied, &mut context);
        }
    }

    fn is_proxied(&self, packet: &Packet, now: Timestamp) -> bool {
        let Some(TrackedFlow { keyed, hash: Some(hash) }) = packet.flow else { return false };
        let bucket = self.buckets.get(packet.bucket);
        bucket.is_some_and(|bucket| bucket.connections.proxied(&keyed, hash, now).is_some())
    }
}

/// The end of a packet that the proxy refuses.
const REFUSED: End =
    End::Drop(DropCause::Tracking(conntrack::DropCause::Reason(DropReason::SynCookie)), None);

const fn refused<T>() -> Step<T> {
    ControlFlow::Break(REFUSED)
}

fn received<'a>(packet: &'a Packet, keyed: &'a KeyedPacket, tcp: &'a TcpInfo) -> Received<'a> {
    Received { keyed, network: &packet.network, tcp, frame: packet.frame.bytes() }
}

#[cfg(test)]
#[path = "syn_proxy_tests.rs"]
mod tests;
