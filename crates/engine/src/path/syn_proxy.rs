//! The SYN proxy stage, between steering and tracking. The gateway answers SYNs in the name of
//! servers, and afterwards shifts the sequence numbers of these connections.
//!
//! A segment that is made here takes the place of the packet from which it is made, so that the
//! counters balance. Only the window update for a client is an additional frame.

use std::collections::BTreeMap;
use std::time::Duration;

use conntrack::Direction;
use conntrack::seqadj::Adjustment;
use conntrack::syn_proxy::{self, Cookies, Pressure, Promise, Proxied, Received, Screening};
use flow::{Class, DropReason, HashKey, KeyedPacket, Timestamp, Zone};
use netio::Checksum;
use wire::control_segment::{ControlSegment, MAX_FRAME, Way};
use wire::{TcpEditor, TcpFlags, TcpInfo, Transport};

use crate::egress::outputs::Manner;
use crate::path::PacketPath;
use crate::path::packet::{Packet, TrackedFlow};
use crate::path::rules::stages::Passed;

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
    /// The packet that is being judged was made for a rule that has the proxy answer.
    opens: bool,
}

impl SynProxy {
    /// Creates a stage that answers nothing until the settings say so. All workers have the same
    /// secret, because a cookie may come back to another worker.
    pub fn new(secret: HashKey) -> Self {
        Self { cookies: Cookies::new(secret), zones: BTreeMap::new(), workers: 1, opens: false }
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

    /// True for a SYN to a server that only the postrouting chains see. A rule of an earlier chain
    /// has had the proxy answer, and in the kernel this SYN leaves from the host.
    pub const fn opens(&self) -> bool {
        self.opens
    }

    fn pressure(&mut self, zone: Zone) -> &mut Pressure {
        self.zones.entry(zone).or_default()
    }
}

impl PacketPath {
    /// Takes over the promises of another worker.
    pub(crate) fn learn_promises(&mut self, promises: impl IntoIterator<Item = (Zone, Timestamp)>) {
        for (zone, promised) in promises {
            self.syn_proxy.pressure(zone).learn(promised);
            self.tracking.has_promised(promised);
        }
    }

    /// Handles a packet that a rule gives to the proxy. A SYN gets a promise, and a valid cookie
    /// opens a connection.
    #[cold]
    fn take_by_rule(&mut self, packet: &mut Packet, promise: &Promise, now: Timestamp) {
        let (Some(TrackedFlow { keyed, hash: Some(hash) }), Transport::Tcp(tcp)) =
            (packet.flow, packet.network.transport)
        else {
            return self.refuse(packet);
        };
        // The proxy does not answer in the name of a server whose address was translated either.
        let whole = packet.pieces.is_none()
            && packet.frame.before().destination.is_none()
            && wire::is_single_host(packet.network.source_ip());
        let has = |flags| tcp.flags.contains(flags);
        let (bucket, zone) = (packet.bucket, packet.origin.zone);
        match (has(TcpFlags::SYN), has(TcpFlags::ACK)) {
            (true, false) if whole && self.promise(packet, &keyed, &tcp, promise, now) => {
                if let Some(bucket) = self.ownership.get_mut(bucket) {
                    let mut context = self.tracking.context_of(Some(zone), now, &mut self.counters);
                    bucket.connections.end_closed(&keyed.key, hash, &mut context);
                }
            }
            (false, true) if whole => match self.redeem(packet, &keyed, &tcp, promise, now) {
                Some(proxied) => self.take_up(packet, proxied, now),
                None => {
                    self.counters.syn_proxy.cookie_invalid += 1;
                    self.refuse(packet);
                }
            },
            _ => self.refuse(packet),
        }
    }

    /// Decides about a packet that would open a connection, or that a rule gives to a `proxy` of
    /// the ruleset.
    #[cold]
    pub(crate) fn screen(&mut self, packet: &mut Packet, proxy: Option<u32>, now: Timestamp) {
        if let Some(proxy) = proxy {
            let rules = self.rules.as_ref();
            return match rules.and_then(|rules| rules.shared.syn_proxy(proxy)).copied() {
                Some(promise) => self.take_by_rule(packet, &promise, now),
                None => self.refuse(packet),
            };
        }
        let (Some(TrackedFlow { keyed, .. }), Transport::Tcp(tcp)) =
            (packet.flow, packet.network.transport)
        else {
            return;
        };
        let answers = self.answers(packet, now);
        // A packet that comes in fragments or from no single host opens no connection.
        let whole = packet.pieces.is_none();
        if tcp.flags.contains(TcpFlags::SYN) {
            let from_host = wire::is_single_host(packet.network.source_ip());
            if answers && !(whole && from_host) {
                return self.refuse(packet);
            }
            let promise = self.promise_of(packet);
            if answers && self.promise(packet, &keyed, &tcp, &promise, now) {
                return;
            }
        } else if whole
            && self.syn_proxy.pressure(keyed.key.zone).redeems(now)
            && let Some(proxied) = self.redeem(packet, &keyed, &tcp, &self.promise_of(packet), now)
        {
            return self.take_up(packet, proxied, now);
        } else if answers && !self.picks_up(packet, &tcp, now) {
            if packet.is_own {
                // The packet may belong to a connection of the host itself.
                return self.conclude(packet, Ok(Passed::TO_HOST), now);
            }
            self.counters.syn_proxy.cookie_invalid += 1;
            return self.refuse(packet);
        }
        let judged = self.admit(packet, Screening::Off, now);
        self.settle(packet, judged, now);
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
        let bucket = self.ownership.get(packet.bucket);
        self.tracking.settings_of(zone).tcp.loose
            && packet.network.end > start
            && bucket.is_some_and(|bucket| now.since(bucket.born) < PICK_UP)
    }

    /// True while the gateway answers SYNs in the zone in which a packet would open a connection.
    pub(crate) fn answers(&mut self, packet: &Packet, now: Timestamp) -> bool {
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

    /// Handles a packet of a connection that the proxy has opened, up to its sending. False for
    /// any other packet.
    #[inline(always)]
    pub(crate) fn take_proxied(&mut self, packet: &mut Packet, now: Timestamp) -> bool {
        if let Some(TrackedFlow { keyed, hash: Some(hash) }) = packet.flow
            && let Some(bucket) = self.ownership.get(packet.bucket)
            && let Some((direction, proxied)) = bucket.connections.proxied(&keyed, hash, now)
        {
            let (adjustment, proxied) = (proxied.adjustment().copied(), *proxied);
            match adjustment {
                Some(adjustment) => {
                    self.pass_adjusted(packet, direction, proxied, &adjustment, now)
                }
                None => self.pass_opening(packet, direction, proxied, now),
            }
            return true;
        }
        false
    }

    /// Handles a packet of a connection whose server has not answered yet.
    fn pass_opening(
        &mut self,
        packet: &mut Packet,
        direction: Direction,
        proxied: Proxied,
        now: Timestamp,
    ) {
        let (Some(TrackedFlow { keyed, .. }), Transport::Tcp(tcp)) =
            (packet.flow, packet.network.transport)
        else {
            // It is an ICMP error about the SYN.
            let judged = self.admit(packet, Screening::Off, now);
            return self.conclude(packet, judged, now);
        };
        let has = |flags| tcp.flags.contains(flags);
        match direction {
            _ if packet.pieces.is_some() => self.refuse(packet),
            Direction::Original if has(TcpFlags::RST) => {
                // The server does not know the number that this packet acknowledges.
                self.replace(packet, &proxied.abort(&tcp), now);
            }
            Direction::Original if !has(TcpFlags::ACK) => {
                let promise = proxied.promise();
                if !(has(TcpFlags::SYN) && self.promise(packet, &keyed, &tcp, promise, now)) {
                    self.refuse(packet);
                }
            }
            Direction::Original if proxied.is_from_opening(&tcp) => {
                self.counters.syn_proxy.cookie_retrans += 1;
                self.open_at_server(packet, proxied, now);
            }
            Direction::Original => {
                match self.redeem(packet, &keyed, &tcp, proxied.promise(), now) {
                    Some(proxied) => self.take_up(packet, proxied, now),
                    None => {
                        self.counters.syn_proxy.cookie_invalid += 1;
                        self.refuse(packet);
                    }
                }
            }
            Direction::Reply => self.pass_first_reply(packet, proxied, &tcp, now),
        }
    }

    /// Handles the server's answer to the SYN.
    fn pass_first_reply(
        &mut self,
        packet: &mut Packet,
        proxied: Proxied,
        tcp: &TcpInfo,
        now: Timestamp,
    ) {
        if tcp.flags.contains(TcpFlags::RST) {
            let judged = self.admit(packet, Screening::Off, now);
            self.edit(packet, |segment| segment.set_sequence(proxied.refusal_sequence()));
            return self.conclude(packet, judged, now);
        }
        if !tcp.flags.contains(TcpFlags::ACK) {
            return self.refuse(packet);
        }
        if self.join(packet, proxied, now) {
            return;
        }
        match self.admit(packet, Screening::Off, now) {
            Ok(_) => {
                self.replace(packet, &proxied.reset(tcp), now);
            }
            Err(why) => self.conclude(packet, Err(why), now),
        }
    }

    /// Handles a packet of a connection whose two ends use different sequence numbers.
    fn pass_adjusted(
        &mut self,
        packet: &mut Packet,
        direction: Direction,
        proxied: Proxied,
        adjustment: &Adjustment,
        now: Timestamp,
    ) {
        let Transport::Tcp(tcp) = packet.network.transport else {
            adjustment.quoted(direction, packet.frame.bytes_mut(), &packet.network);
            let judged = self.admit(packet, Screening::Off, now);
            return self.conclude(packet, judged, now);
        };
        let is_syn_ack = tcp.flags.contains(TcpFlags::SYN.with(TcpFlags::ACK));
        if direction == Direction::Reply && is_syn_ack && self.join(packet, proxied, now) {
            return;
        }
        self.edit(packet, |segment| adjustment.before_tracking(direction, segment));
        let judged = self.admit(packet, Screening::Off, now);
        self.edit(packet, |segment| adjustment.after_tracking(direction, segment));
        if tcp.flags.contains(TcpFlags::SYN) && !is_syn_ack && !self.is_proxied(packet, now) {
            self.counters.syn_proxy.conn_reopened += 1;
        }
        self.conclude(packet, judged, now);
    }

    /// Takes the SYN+ACK of a server: completes the server's handshake and opens the client's
    /// window. False if it does not fit.
    fn join(&mut self, packet: &mut Packet, mut proxied: Proxied, now: Timestamp) -> bool {
        let (Some(TrackedFlow { keyed, .. }), Transport::Tcp(tcp)) =
            (packet.flow, packet.network.transport)
        else {
            return false;
        };
        let Some(joined) = proxied.join(&received(packet, &keyed, &tcp)) else { return false };
        if packet.pieces.is_some() {
            self.refuse(packet);
            return true;
        }
        let passed = match self.admit(packet, Screening::Off, now) {
            Ok(passed) => passed,
            Err(why) => {
                self.conclude(packet, Err(why), now);
                return true;
            }
        };
        self.keep_proxied(packet, proxied);
        // The packet has the addresses that the client sees by now. Both segments are made from
        // it, and the first is for the client.
        let update = self.make(packet, &joined.to_client);
        if self.replace(packet, &joined.to_server, now)
            && let Some(mut update) = update
        {
            self.counters.output.window_updates += 1;
            self.send(&mut update, passed, now);
        }
        true
    }

    /// Answers a SYN in the name of the server. False if the SYN can not be answered.
    fn promise(
        &mut self,
        packet: &mut Packet,
        keyed: &KeyedPacket,
        tcp: &TcpInfo,
        promise: &Promise,
        now: Timestamp,
    ) -> bool {
        let syn = received(packet, keyed, tcp);
        let segment = syn_proxy::answer(&self.syn_proxy.cookies, &syn, now, promise);
        let Some(made) = self.make(packet, &segment) else { return false };
        self.counters.syn_proxy.syn_received += 1;
        if !promise.by_rule {
            self.syn_proxy.pressure(keyed.key.zone).promised(now);
            self.tracking.has_promised(now);
        }
        self.counters.classify(Class::Untracked);
        self.pool.give_back(std::mem::take(&mut packet.frame));
        self.send_made(made, segment.way, Passed::default(), now);
        true
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

    /// Opens a connection for a client that has come back with its cookie.
    fn take_up(&mut self, packet: &mut Packet, mut proxied: Proxied, now: Timestamp) {
        self.counters.syn_proxy.cookie_valid += 1;
        // The client may be behind a link that takes shorter packets only. An ICMP error about a
        // longer segment would quote numbers that the server does not know.
        let headers = packet.network.offset.abs_diff(packet.network.transport_offset) + 20;
        if let Some(mtu) = self.outputs.mtu(packet.frame.port) {
            proxied.limit_segment_size(mtu.saturating_sub(headers.into()));
        }
        if let Some(flow) = packet.flow.filter(|_| !proxied.promise().by_rule) {
            self.syn_proxy.pressure(flow.keyed.key.zone).taken_up();
        }
        self.open_at_server(packet, proxied, now);
    }

    /// Sends the client's SYN to the server.
    fn open_at_server(&mut self, packet: &mut Packet, proxied: Proxied, now: Timestamp) {
        // A rule that leaves the client's packets untracked does not hold for this SYN.
        packet.untracked = false;
        self.syn_proxy.opens = proxied.promise().by_rule;
        if self.replace(packet, &proxied.syn(), now) {
            self.keep_proxied(packet, proxied);
        }
        self.syn_proxy.opens = false;
    }

    /// Tracks and sends a segment in place of the packet from which it is made. False if it was
    /// dropped.
    fn replace(&mut self, packet: &mut Packet, segment: &ControlSegment, now: Timestamp) -> bool {
        let Some(mut made) = self.make(packet, segment) else {
            self.refuse(packet);
            return false;
        };
        self.pool.give_back(std::mem::take(&mut packet.frame));
        // A segment towards the sender is the gateway's own and came in by no port.
        let judged = match segment.way {
            Way::Along => self.admit(&mut made, Screening::Off, now),
            Way::Back => {
                made.flow = self.way_back(packet).or(made.flow);
                self.admit_unruled(&mut made, Screening::Off, now)
            }
        };
        match judged {
            Ok(passed) => {
                self.send_made(made, segment.way, passed, now);
                true
            }
            Err(why) => {
                self.drop_frame(made.frame, why.into());
                false
            }
        }
    }

    /// The flow of packets in the direction opposite to a packet.
    fn way_back(&self, packet: &Packet) -> Option<TrackedFlow> {
        let TrackedFlow { keyed, hash: Some(hash) } = packet.flow? else { return None };
        let bucket = self.ownership.get(packet.bucket)?;
        let (keyed, hash) = bucket.connections.way_back(&keyed, hash)?;
        Some(TrackedFlow { keyed, hash: Some(hash) })
    }

    fn send_made(&mut self, mut made: Packet, way: Way, passed: Passed, now: Timestamp) {
        match way {
            Way::Along => self.conclude(&mut made, Ok(passed), now),
            Way::Back => {
                let port = made.frame.port;
                self.outputs.send_by(
                    port,
                    made.frame,
                    Manner::default(),
                    &mut self.pool,
                    &mut self.counters,
                );
            }
        }
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
    pub(crate) fn edit(&mut self, packet: &mut Packet, change: impl FnOnce(&mut TcpEditor<'_>)) {
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

    fn keep_proxied(&mut self, packet: &Packet, proxied: Proxied) {
        if let Some(TrackedFlow { keyed, hash: Some(hash) }) = packet.flow
            && let Some(bucket) = self.ownership.get_mut(packet.bucket)
        {
            bucket.connections.set_proxied(&keyed, hash, proxied);
        }
    }

    fn is_proxied(&self, packet: &Packet, now: Timestamp) -> bool {
        let Some(TrackedFlow { keyed, hash: Some(hash) }) = packet.flow else { return false };
        let bucket = self.ownership.get(packet.bucket);
        bucket.is_some_and(|bucket| bucket.connections.proxied(&keyed, hash, now).is_some())
    }

    fn refuse(&mut self, packet: &mut Packet) {
        let (frame, pieces) = (std::mem::take(&mut packet.frame), packet.pieces.take());
        self.drop_frames(frame, pieces, DropReason::SynCookie);
    }
}

fn received<'a>(packet: &'a Packet, keyed: &'a KeyedPacket, tcp: &'a TcpInfo) -> Received<'a> {
    Received { keyed, network: &packet.network, tcp, frame: packet.frame.bytes() }
}

#[cfg(test)]
#[path = "syn_proxy_tests.rs"]
mod tests;
