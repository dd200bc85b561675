//! Flows that end at the host because a rule redirects them there.
//!
//! The kernel carries such a rule out on its own copy of the packets, and what it answers is
//! never seen here. So there is no connection to track, and a later packet alone would not tell
//! whose it is: a rule may ask for more than stands in it, and may be gone while the kernel
//! still knows its connection. What was left to the kernel once stays with it until the flow has
//! been silent for as long as the kernel would wait for it, or its sender has closed it.
//!
//! A bucket remembers a bounded number of flows. Where more are open, one that has the least time
//! left is forgotten, and its next packet is judged like that of a new connection.

use std::time::Duration;

use conntrack::Settings;
use conntrack::proto::tcp::TcpState;
use flow::{KeyedPacket, Timestamp};
use wire::{Family, TcpFlags, Transport, protocol};

/// Flows that share a place in the table of a bucket.
const WAYS: usize = 8;
/// Such places of a bucket. With 256 buckets 131072 flows are remembered, in 8 MiB.
const PLACES: usize = 64;

/// The flows of one bucket; without any it holds no memory.
#[derive(Debug, Default)]
pub struct HostFlows(Option<Box<[[Option<HostFlow>; WAYS]; PLACES]>>);

#[derive(Clone, Copy, Debug)]
struct HostFlow {
    /// Of the packets that go to the host.
    packet: KeyedPacket,
    phase: Phase,
    until: Timestamp,
}

/// How far a flow has got, as far as one direction shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Of TCP: nothing but the segment that opens it was seen.
    Opening,
    /// It goes on.
    Open,
    /// Of TCP: its sender has closed it.
    Closing,
}

/// What a packet says of its flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sign {
    /// TCP: it opens one.
    Opens,
    /// TCP: its sender sends no more.
    Closes,
    /// It goes on.
    GoesOn,
    /// An error about one of its packets.
    Error,
}

impl Sign {
    /// Of a packet.
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
    /// True where there are none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// True if a packet belongs to one of them, which then goes on for as long as tracking would
    /// wait for it. `hash` is that of the key.
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
            // Who uses the ports again opens another connection.
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

    /// The same as [`Self::take`] for a packet that does not come.
    pub fn knows(&self, packet: &KeyedPacket, hash: u64, sign: Sign, now: Timestamp) -> bool {
        let place = self.0.as_ref().map(|places| &places[hash as usize % PLACES]);
        let goes_on = |flow: &HostFlow| {
            let opens_another = flow.phase == Phase::Closing && sign == Sign::Opens;
            flow.packet == *packet && flow.until > now && !opens_another
        };
        place.is_some_and(|place| place.iter().flatten().any(goes_on))
    }

    /// Remembers a flow that was left to the host with this packet.
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
