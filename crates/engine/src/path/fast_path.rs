//! The short way of packets of established flows: the decision for one of them is recorded with
//! its connection and holds for the next.
//!
//! A packet that takes it is tracked as any other, so windows, timers and counts are the same.
//! It is asked no rule, route or neighbour. Their decision is recorded only if it would be the same
//! for every packet of the flow in its direction. It holds only until anything changes that it
//! depends on (`Command::changes_decisions`). All other packets take
//! the stages one after the other, and the last of them records what they have decided.

use std::ops::ControlFlow;

use conntrack::Verdict;
use conntrack::syn_proxy::Screening;
use conntrack::{Forwarding, Tracked};
use flow::{Class, Endpoint, Timestamp};
use netio::PortId;
use wire::{Family, Network, TcpFlags, Transport, TransportAddress, protocol};

use crate::egress::bridge::OutputPorts;
use crate::egress::path_mtu;
use crate::path::PacketPath;
use crate::path::packet::Packet;
use crate::path::scratch::Scratch;
use crate::path::step::Step;
use conntrack::nat::TranslatedEnd;

/// The result of the fast path.
pub(crate) enum FastPath {
    /// The packet leaves as it was recorded.
    Forward(Forwarding),
    /// The packet was tracked, and the stages behind that have to decide.
    Tracked(Tracked),
    /// Nothing was done with the packet.
    No,
}

impl PacketPath {
    /// Tracks and translates a packet as it was recorded for its connection, if that holds and
    /// nothing is unusual about the packet.
    #[inline]
    pub(super) fn take_fast_path(
        &mut self,
        packet: &mut Packet,
        screening: Screening,
        now: Timestamp,
    ) -> FastPath {
        let Some(forwarding) = self.recorded(packet, now) else { return FastPath::No };
        let tracked = self.track(packet, screening, now);
        self.count_arrived(packet);
        // The record was that of a live connection, and only a packet that begins one anew (a SYN)
        // would open another in its place. Such a packet is not looked up here.
        debug_assert!(!tracked.fresh, "a packet that opens a connection never takes the fast path");
        if tracked.class != Class::Established
            || tracked.verdict != Verdict::Accept
            || tracked.why.is_some()
            || tracked.connection.is_none()
            || tracked.has_helper()
        {
            // The record was made by a packet of the same sender, and that sender was checked.
            packet.set_checked(&mut self.forwarder);
            return FastPath::Tracked(tracked);
        }
        self.counters.classify(Class::Established);
        if tracked.is_translated() {
            self.translate_recorded(packet, &tracked);
        }
        FastPath::Forward(forwarding)
    }

    /// Gives a packet the ends that its connection leaves with.
    #[inline]
    fn translate_recorded(&mut self, packet: &mut Packet, tracked: &Tracked) {
        let Packet { frame, network, .. } = packet;
        let keeps_identification = network.family == Family::V6 || network.dont_fragment;
        let bucket = self.buckets.get(packet.bucket).filter(|_| keeps_identification);
        if let Some([source, destination]) =
            bucket.and_then(|it| it.connections.ends_behind(tracked))
        {
            let place = |Endpoint { address, port }| TransportAddress { address, port };
            let covers = frame.offload.checksum.covers();
            let (source, destination) = (place(source), place(destination));
            if wire::rewrite_ends(frame.bytes_mut(), network, &source, &destination, covers) {
                return;
            }
        }
        let address_changes = self.address_changes(packet, tracked);
        self.readdress(packet, &address_changes, TranslatedEnd::Destination);
        self.readdress(packet, &address_changes, TranslatedEnd::Source);
    }

    /// Counts a packet that has come to its bucket. Fragments were counted one by one before their
    /// datagram, and so was a packet that has met an alias.
    #[inline]
    pub(super) fn count_arrived(&mut self, packet: &Packet) {
        if let Some(bucket) = self.buckets.get_mut(packet.bucket) {
            bucket.packets += 1;
        }
        self.counters.softnet.processed += u64::from(packet.pieces.is_none() && !packet.passed_raw);
    }

    /// The recorded decision for a packet, if there is one that still holds and is for such a packet.
    #[inline]
    fn recorded(&mut self, packet: &Packet, now: Timestamp) -> Option<Forwarding> {
        let flow = packet.flow.as_ref().filter(|_| is_usual(packet))?;
        let bucket = self.buckets.get_mut(packet.bucket)?;
        bucket.connections.begin_generation(self.tracking.generation());
        // Nobody has looked for the flow in the bucket that an alias leads to.
        let guess = match (packet.alias_in, flow.hash) {
            (Some(_), Some(hash)) => bucket.connections.guess(hash),
            _ => packet.guess,
        };
        let forwarding = bucket.connections.forwarding(guess, &flow.keyed, now)?;
        let goes_so = forwarding.input == packet.frame.port.0
            && match self.forwarder.router() {
                Some(_) => !is_exceeded(forwarding.mtu, packet),
                // Stations may have moved.
                None => {
                    let ports =
                        self.forwarder.outputs().output_ports(&packet.frame, now.as_nanos());
                    ports == Ok(OutputPorts::One(PortId(forwarding.output)))
                }
            };
        goes_so.then_some(forwarding)
    }

    /// Records the way that the stages have found for a packet, if they would find the same for
    /// each packet of its flow.
    #[inline]
    pub(super) fn record(&mut self, packet: &mut Packet, scratch: &mut Scratch) -> Step {
        if scratch.tracked.class == Class::Established
            && !scratch.per_packet
            && is_usual(packet)
            && !self.has_deferred(packet)
        {
            self.record_usual(packet, scratch);
        }
        ControlFlow::Continue(())
    }

    #[inline(never)]
    fn record_usual(&mut self, packet: &Packet, scratch: &Scratch) {
        let input = packet.frame.port.0;
        let forwarding = match (self.forwarder.router(), scratch.exit.route) {
            (Some(router), Some(route)) if !router.asks_for_traffic_class() => {
                let Some((port, station, of_route)) = router.adjacency(&route) else { return };
                let mtu = self.forwarder.outputs().mtu(port).into_iter().chain(of_route).min();
                let mtu = mtu.and_then(|mtu| u16::try_from(mtu).ok()).unwrap_or(u16::MAX);
                Forwarding { input, output: port.0, station, mtu }
            }
            (None, _) => {
                let Some(OutputPorts::One(output)) = scratch.exit.ports else { return };
                Forwarding { input, output: output.0, station: [0; 6], mtu: u16::MAX }
            }
            _ => return,
        };
        if let Some(bucket) = self.buckets.get_mut(packet.bucket) {
            bucket.connections.begin_generation(self.tracking.generation());
            bucket.connections.record(&scratch.tracked, forwarding);
        }
    }
}

/// True for a packet of which nothing but its connection has to be looked at: a segment that
/// neither opens nor ends a connection, or a datagram; whole, without options or extension
/// headers, in the zone that it arrived in, with a hop to go, and with no rule behind it that sees
/// every packet. A rule that sets a zone is such a rule.
#[inline]
fn is_usual(packet: &Packet) -> bool {
    const OPENS_OR_ENDS: TcpFlags =
        TcpFlags::SYN.with(TcpFlags::FIN).with(TcpFlags::RST).with(TcpFlags::ACK);
    let Network { transport, transport_offset, offset, ttl, .. } = packet.network;
    let header = match packet.network.family {
        Family::V4 => 20,
        Family::V6 => 40,
    };
    let is_steady = match transport {
        Transport::Tcp(tcp) => tcp.flags.0 & OPENS_OR_ENDS.0 == TcpFlags::ACK.0,
        Transport::Udp { .. } => packet.network.protocol == protocol::UDP,
        _ => false,
    };
    is_steady
        && transport_offset == offset + header
        && ttl > 1
        && packet.pieces.is_none()
        && packet.network.fragment.is_none()
        && packet.zones.is_none()
        && !packet.carries
        && !packet.untracked
        && !packet.per_packet
}

/// True for a packet that is longer than a link or route of this MTU takes.
#[inline]
fn is_exceeded(mtu: u16, packet: &Packet) -> bool {
    mtu != u16::MAX && path_mtu::is_exceeded(mtu.into(), &packet.frame)
}

#[cfg(test)]
#[path = "fast_path_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "fast_path_moves_tests.rs"]
mod moves_tests;

#[cfg(test)]
#[path = "fast_path_in_flight_tests.rs"]
mod in_flight_tests;

#[cfg(test)]
#[path = "fast_path_bridge_tests.rs"]
mod bridge_tests;
