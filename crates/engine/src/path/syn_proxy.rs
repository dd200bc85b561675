//! The SYN proxy: the gateway answers SYNs in the name of servers. The stages here decide which
//! packets it answers, and which ones bring back a cookie.
//!
//! A segment that the proxy makes takes the place of the packet from which it is made, so that the
//! counters balance. Only the window update for a client is an additional frame. The driver makes
//! these segments ([`super::segments`]). The stages for connections that the proxy has opened are in
//! [`super::proxied`].

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::time::Duration;

use conntrack::Tracked;
use conntrack::syn_proxy::{self, Cookies, Pressure, Promise, Proxied, Received, Screening};
use flow::{DropReason, HashKey, KeyedPacket, Timestamp, Zone};
use wire::control_segment::ControlSegment;
use wire::{TcpFlags, TcpInfo, Transport};

use crate::egress::original_ends::original_ends;
use crate::path::PacketPath;
use crate::path::drop_cause::DropCause;
use crate::path::packet::{Packet, TrackedFlow};
use crate::path::scratch::Scratch;
use crate::path::step::{Answer, End, Step};

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
            self.tracking.note_promise(promised);
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
        let half_open = self.tracking.limits().half_open.get(zone);
        self.syn_proxy.pressure(zone).answers(half_open, share.into(), now)
    }

    /// Answers a SYN in the name of the server. `None` if no answer can be made from it, as from a
    /// packet behind labels.
    pub(super) fn promise(
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
            self.tracking.note_promise(now);
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

    pub(super) fn redeem_or_refuse(
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

    /// Has the client's SYN to the server take the place of a packet.
    pub(super) fn open_at_server(
        &mut self,
        packet: &mut Packet,
        scratch: &mut Scratch,
        proxied: Proxied,
    ) -> End {
        // A rule that leaves the client's packets untracked does not hold for this SYN.
        packet.untracked = false;
        scratch.proxy.skips_early_chains = proxied.promise().by_rule;
        scratch.proxy.to_server = Some(proxied);
        retrack_as(scratch, proxied.syn())
    }
}

/// The end of a packet that the proxy refuses.
pub(super) const REFUSED: End =
    End::Drop(DropCause::Tracking(conntrack::TrackingCause::Reason(DropReason::SynCookie)), None);

/// Has a segment take the place of the packet from which it is made. It is tracked then.
pub(super) const fn retrack_as(scratch: &mut Scratch, segment: ControlSegment) -> End {
    scratch.proxy.instead = Some(segment);
    End::Retrack
}

pub(super) const fn refused<T>() -> Step<T> {
    ControlFlow::Break(REFUSED)
}

pub(super) fn received<'a>(
    packet: &'a Packet,
    keyed: &'a KeyedPacket,
    tcp: &'a TcpInfo,
) -> Received<'a> {
    Received { keyed, network: &packet.network, tcp, frame: packet.frame.bytes() }
}

#[cfg(test)]
#[path = "syn_proxy_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "syn_proxy_attacks_tests.rs"]
mod attacks_tests;

#[cfg(test)]
#[path = "syn_proxy_rules_tests.rs"]
mod rules_tests;

#[cfg(test)]
#[path = "syn_proxy_threshold_tests.rs"]
mod threshold_tests;
