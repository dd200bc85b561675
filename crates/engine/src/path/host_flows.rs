//! Flows that end at the host because a rule redirects them there.
//!
//! The kernel carries out such a rule on its own copy of the packets, and its answers never come
//! through the gateway. So there is no connection to track. A later packet alone does not show
//! that it belongs to such a flow: a rule may ask for more than the packet has, and may be gone
//! while the kernel still knows its connection. So a flow that was left to the kernel stays with
//! it until it has been silent for as long as the kernel would wait for it, or until its sender
//! has closed it.
//!
//! A bucket remembers a bounded number of flows. If more are open, a flow that has the least time
//! left is forgotten, and its next packet is judged like the first packet of a new connection.

use std::time::Duration;

use conntrack::Settings;
use conntrack::proto::tcp::TcpState;
use flow::{KeyedPacket, Timestamp};
use wire::{Family, TcpFlags, Transport, protocol};

/// Flows that share a place in the table of a bucket.
const WAYS: usize = 8;
/// Places in the table of a bucket. 256 buckets remember 131072 flows, in 8 MiB.
const PLACES: usize = 64;

/// The flows of one bucket. It holds no memory while there are none.
#[derive(Debug, Default)]
pub struct HostFlows(Option<Box<[[Option<HostFlow>; WAYS]; PLACES]>>);

#[derive(Clone, Copy, Debug)]
struct HostFlow {
    /// The key of the packets that go to the host.
    packet: KeyedPacket,
    phase: Phase,
    until: Timestamp,
}

/// The phase of a flow, as far as one direction shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// TCP: only the segment that opens it was seen.
    Opening,
    /// The flow is open.
    Open,
    /// TCP: its sender has closed it.
    Closing,
}

/// The meaning of a packet for its flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sign {
    /// TCP: it opens a flow.
    Opens,
    /// TCP: its sender sends no more after it, or resets the flow.
    Closes,
    /// It belongs to an open flow.
    GoesOn,
    /// It is an ICMP error about a packet of the flow.
    Error,
}

impl Sign {
    /// The meaning of a packet with this transport header.
    pub fn of(transport: &Transport) -> Self {
        let Transport::Tcp(tcp) = transport else {
            let is_error = matches!(transport, Transport::IcmpError(_));
            return if is_error { Self::Error } else { Self::GoesOn };
        };
        if tcp.flags.contains(TcpFlags::RST) || tcp.flags.contains(TcpFlags::FIN) {
            Self::Closes
        } else if tcp.flags.contains(TcpFlags::SYN) && !tcp.flags.contains(TcpFlags::ACK) {
            Self::Opens
        } else {
            Self::GoesOn
        }
    }
}

impl HostFlows {
    /// True if there are no flows.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// True if a packet belongs to one of the flows. The flow then lives on for as long as
    /// tracking would wait for it. `hash` is the table hash of the key.
    pub fn take(
        &mut self,
        packet: &KeyedPacket,
        hash: u64,
        sign: Sign,
        settings: &Settings,
        now: Timestamp,
    ) -> bool {
        let Some(place) = self.place(hash) else { return false };
        let of_packet =
            |flow: &&mut Option<HostFlow>| flow.is_some_and(|flow| flow.packet == *packet);
        let Some(found) = place.iter_mut().find(of_packet) else { return false };
        let Some(flow) = found else { return false };
        let is_over = flow.until <= now;
        if is_over || (flow.phase == Phase::Closing && sign == Sign::Opens) {
            // The sender uses the ports again, for another connection.
            *found = None;
            return false;
        }
        let phase = match (flow.phase, sign) {
            (_, Sign::Error) => return true,
            (Phase::Closing, _) | (_, Sign::Closes) => Phase::Closing,
            (Phase::Opening, Sign::Opens) => Phase::Opening,
            _ => Phase::Open,
        };
        *flow = HostFlow::new(*packet, phase, settings, now);
        true
    }

    /// The answer of [`Self::take`] for a packet like this one, which has not come.
    pub fn knows(&self, packet: &KeyedPacket, hash: u64, sign: Sign, now: Timestamp) -> bool {
        let place = self.0.as_ref().map(|places| &places[hash as usize % PLACES]);
        let goes_on = |flow: &HostFlow| {
            let opens_another = flow.phase == Phase::Closing && sign == Sign::Opens;
            flow.packet == *packet && flow.until > now && !opens_another
        };
        place.is_some_and(|place| place.iter().flatten().any(goes_on))
    }

    /// Remembers a flow whose packet was left to the host.
    pub fn remember(
        &mut self,
        packet: &KeyedPacket,
        hash: u64,
        sign: Sign,
        settings: &Settings,
        now: Timestamp,
    ) {
        let phase = match sign {
            Sign::Opens => Phase::Opening,
            Sign::Closes => Phase::Closing,
            Sign::GoesOn => Phase::Open,
            Sign::Error => return,
        };
        self.0.get_or_insert_with(|| Box::new([[None; WAYS]; PLACES]));
        let Some(place) = self.place(hash) else { return };
        let rank = |flow: &Option<HostFlow>| match flow {
            Some(flow) if flow.packet == *packet => (0, flow.until),
            None => (1, now),
            Some(flow) => (2, flow.until),
        };
        if let Some(oldest) = place.iter_mut().min_by_key(|flow| rank(flow)) {
            *oldest = Some(HostFlow::new(*packet, phase, settings, now));
        }
    }

    fn place(&mut self, hash: u64) -> Option<&mut [Option<HostFlow>; WAYS]> {
        self.0.as_mut().map(|places| &mut places[hash as usize % PLACES])
    }
}

impl HostFlow {
    fn new(packet: KeyedPacket, phase: Phase, settings: &Settings, now: Timestamp) -> Self {
        let (tcp, others) = (&settings.tcp.timeouts, &settings.timeouts);
        let seconds = match (packet.key.protocol, phase) {
            (protocol::TCP, Phase::Opening) => tcp.of(TcpState::SynSent),
            (protocol::TCP, Phase::Open) => tcp.of(TcpState::Established),
            (protocol::TCP, Phase::Closing) => tcp.of(TcpState::TimeWait),
            (protocol::UDP | protocol::UDPLITE, _) => others.udp_stream,
            (protocol::ICMP, _) if packet.key.family == Family::V4 => others.icmp,
            (protocol::ICMPV6, _) => others.icmpv6,
            _ => others.generic,
        };
        let until = now.after(Duration::from_secs(seconds.into()));
        Self { packet, phase, until }
    }
}

#[cfg(test)]
#[path = "host_flows_tests.rs"]
mod tests;
