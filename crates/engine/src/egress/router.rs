//! The routing part of one worker: which packets it takes, and where they go.

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use fib::{HardwareAddress, LinkId, Neighbour, Query, RouteCache, RouteResult};
use flow::{Counters, DropReason};
use ipnet::IpNet;
use netio::{Frame, FramePool, PortId};
use steer::BucketId;
use wire::icmp_error::Message;
use wire::{ETHERNET_LEN, Family, Network};

use crate::egress::adjacencies::{Adjacencies, Adjacency};
use crate::egress::destination_cache::DestinationCache;
use crate::egress::ip_options;
use crate::egress::martian::is_no_source;
use crate::egress::outputs::{NextLink, Outputs, SendOptions};
use crate::egress::resolver::Resolver;
use crate::egress::reverse_path::Sources;
use crate::egress::route_decision::{HOST, OUT_OF_TIME, RouteDecision};
use crate::egress::routing::Routing;
use crate::egress::unsent::Unsent;

/// Most pairs of addresses whose route a worker remembers, about 100 bytes each.
const ROUTES: usize = 2048;
/// Most next hops that packets wait for.
const MAX_AWAITED: usize = 64;
/// Most packets that wait for one next hop. Each takes a buffer of 2 KiB at least.
const MAX_WAITING: usize = 256;
/// The time for which a next hop that does not answer keeps its place when packets for others need
/// it. So a sender that scans unused addresses does not keep packets from other hosts.
const PLACE_IS_SURE: Duration = Duration::from_millis(100);
/// The longest time that a packet waits (RFC 4861 section 10: three attempts, a second each).
const LONGEST_WAIT: Duration = Duration::from_secs(3);
/// The interval at which the kernel is asked to look for a neighbour, or to make sure of it.
const ASK_EVERY: Duration = Duration::from_secs(1);
/// The first interval while packets wait; each interval is twice the one before, up to
/// [`ASK_EVERY`]. The kernel is asked again because it may have been told meanwhile to forget the
/// neighbour.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// Most neighbours for which the time of the last question is remembered.
const MAX_ASKED: usize = 1024;

/// The decision about a received frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// It is routed.
    Forward,
    /// The kernel handles its own copy of the frame.
    Host,
    /// It is dropped, and its sender may be told why.
    Drop(DropReason, Option<Message>),
}

/// The routing part of a worker.
pub struct Router {
    routing: Arc<Routing>,
    /// Recent results of route look-ups.
    route_cache: RouteCache,
    /// The sources, destinations and next hops of the last packets.
    sources: Sources,
    destinations: DestinationCache,
    adjacencies: Adjacencies,
    /// Connections may be translated, so packets for the host may be for another host.
    translates: bool,
    resolver: Resolver,
    waiting: BTreeMap<NextStation, Waiting>,
    /// Most bytes that wait for one next hop.
    waiting_bytes: u64,
    /// The times when the kernel was last asked for neighbours, nanoseconds.
    asked_ns: BTreeMap<NextStation, u64>,
}

/// A link and the address of a next hop on it.
pub type NextStation = (LinkId, IpAddr);

#[derive(Debug, Default)]
struct Waiting {
    since_ns: u64,
    frames: VecDeque<Unsent>,
    bytes: u64,
    /// The shortest time between two questions to the kernel.
    pause: Duration,
    /// The next hop had failed before. The kernel does not tell when it begins to ask again, so
    /// the same state says nothing new.
    has_failed: bool,
}

/// The parts of a worker that a frame needs to leave it.
pub struct OutputParts<'a> {
    /// The ports.
    pub outputs: &'a mut Outputs,
    /// The buffers.
    pub pool: &'a mut FramePool,
    /// The counters.
    pub counters: &'a mut Counters,
}

impl OutputParts<'_> {
    fn refuse(&mut self, frame: Frame, reason: DropReason, icmp: Option<(Message, u64)>) {
        self.outputs.refuse(frame, reason, icmp, self.pool, self.counters);
    }
}

impl Router {
    /// Creates a router that knows no routes yet.
    pub fn new(resolver: Resolver) -> Self {
        Self {
            routing: Arc::default(),
            route_cache: RouteCache::new(ROUTES),
            sources: Sources::default(),
            destinations: DestinationCache::default(),
            adjacencies: Adjacencies::default(),
            translates: false,
            resolver,
            waiting: BTreeMap::new(),
            waiting_bytes: fib::Settings::default().unres_qlen_bytes,
            asked_ns: BTreeMap::new(),
        }
    }

    /// Sets the most bytes of packets that wait for one next hop. Those that wait go on waiting.
    pub fn set_waiting_bytes(&mut self, bytes: u64) {
        self.waiting_bytes = bytes;
    }

    /// The routes, for rules that look addresses up.
    #[inline]
    pub fn routing(&self) -> &Routing {
        &self.routing
    }

    /// The routes, to be compared with later ones.
    pub fn routing_now(&self) -> Arc<Routing> {
        self.routing.clone()
    }

    /// Decides about a received frame by its destination station.
    #[inline]
    pub fn arrival(&self, frame: &Frame) -> Arrival {
        let Some(port) = self.routing.port(frame.port) else {
            return Arrival::Drop(DropReason::NoOutputPort, None);
        };
        match frame.bytes().first_chunk() {
            None => Arrival::Drop(DropReason::MalformedLink, None),
            Some(to) if *to == port.station => Arrival::Forward,
            Some(to) if is_group(*to) => Arrival::Host,
            Some(_) => Arrival::Drop(DropReason::OtherStation, None),
        }
    }

    /// Decides about a packet without tags for this router's station.
    #[inline]
    pub fn packet_arrival(&mut self, frame: &Frame, network: &Network) -> Arrival {
        let may_be_local = self.is_local(network);
        let Self { sources, destinations, routing, route_cache, .. } = self;
        if !may_be_local {
            let arrival = destinations.of(network, routing).arrival;
            if arrival != Arrival::Forward {
                return arrival;
            }
        }
        if let Some(reason) = sources.fault(frame.port, network, routing, route_cache) {
            return Arrival::Drop(reason, None);
        }
        ip_options::refusal(frame, may_be_local).unwrap_or(Arrival::Forward)
    }

    /// Looks at packets for the host's own addresses too from now on, because connections may be
    /// translated.
    pub fn take_own(&mut self) {
        self.translates = true;
    }

    /// True for a packet for an address of the host that may belong to a translated connection.
    #[inline]
    pub fn is_local(&mut self, network: &Network) -> bool {
        self.translates && self.is_for_own_address(network)
    }

    #[inline(never)]
    fn is_for_own_address(&mut self, network: &Network) -> bool {
        network.offset == ETHERNET_LEN
            && self.destinations.of(network, &self.routing).is_host
            && !is_no_source(network.source_ip())
            && !self.routing.is_own(network.source_ip())
    }

    /// The address that a masquerade gives to a packet of this route, and the link that has the
    /// address.
    pub fn masquerade(&self, route: &RouteDecision, network: &Network) -> Option<(LinkId, IpAddr)> {
        let RouteDecision::Forward { next: (link, next_hop), .. } = *route else { return None };
        let address = self.routing.masquerade(link, next_hop, network.destination_ip())?;
        Some((link, address))
    }

    /// The address that a redirect gives to packets that come in by a port: the first address of
    /// this family there that is valid beyond the link.
    pub fn redirect_address(&self, port: PortId, family: Family) -> Option<IpAddr> {
        let addresses = self.routing.port(port)?.addresses.iter().map(IpNet::addr);
        let is_usable = |address: &IpAddr| match address {
            IpAddr::V4(_) => family == Family::V4,
            IpAddr::V6(address) => family == Family::V6 && !address.is_unicast_link_local(),
        };
        addresses.into_iter().find(is_usable)
    }

    /// True if packets of one flow may have several routes, because a routing rule asks for the
    /// traffic class.
    #[inline]
    pub fn asks_for_traffic_class(&self) -> bool {
        self.routing.fib.asks_for_traffic_class()
    }

    /// The addresses of ports that are gone in the routing `now`.
    pub fn lost_addresses(&self, now: &Routing) -> Vec<(LinkId, IpAddr)> {
        self.routing.lost_addresses(now)
    }

    /// The route of the packet of a frame that came in by `port`. `network` describes it. `whole`
    /// is false if it came in fragments.
    pub fn route(
        &mut self,
        network: &Network,
        port: PortId,
        mark: u32,
        whole: bool,
    ) -> RouteDecision {
        let Some(link) = self.routing.port(port).map(|port| port.link) else {
            return RouteDecision::Refuse { reason: DropReason::NoOutputPort, icmp: None };
        };
        let route = match self.destinations.of(network, &self.routing).route {
            Some(route) => route,
            None => {
                let query = Query { mark, ..query(network, link, whole) };
                let result = self.route_cache.look_up(&self.routing.fib, &query);
                RouteDecision::of(result, query.destination)
            }
        };
        route.with_hops(network.ttl)
    }

    /// The longest packet that the route to the sender of a packet allows, bytes. `None` if the
    /// route has no limit.
    pub fn mtu_back(&self, network: &Network) -> Option<u32> {
        let (from, to) = (network.destination_ip(), network.source_ip());
        match self.routing.fib.look_up(&Query::new(from, to, LinkId(0))) {
            RouteResult::Forward(hop) => hop.mtu,
            _ => None,
        }
    }

    /// The port by which packets of this route leave; `None` if they do not leave.
    pub fn port_of(&self, route: &RouteDecision) -> Option<PortId> {
        match route {
            RouteDecision::Forward { next: (link, _), .. } => self.routing.port_of(*link),
            RouteDecision::Host | RouteDecision::Refuse { .. } => None,
        }
    }

    /// The port by which packets of this route leave, the station of their next hop, and the
    /// longest packet that the route allows, bytes. `None` for a route without a next hop, and
    /// while the kernel has to be asked about the next hop.
    pub fn adjacency(
        &self,
        route: &RouteDecision,
    ) -> Option<(PortId, HardwareAddress, Option<u32>)> {
        let RouteDecision::Forward { next: (link, address), mtu } = *route else { return None };
        match self.routing.neighbour(link, address)? {
            Neighbour::Known { station, is_fresh: true } => {
                Some((self.routing.port_of(link)?, station, mtu))
            }
            _ => None,
        }
    }

    /// The station address of this router at a port.
    #[inline]
    pub fn station(&self, port: PortId) -> Option<HardwareAddress> {
        Some(self.routing.port(port)?.station)
    }

    /// Sends a frame of this bucket, keeps it until its next hop is known, or drops it.
    #[inline(always)]
    pub fn forward(
        &mut self,
        bucket: BucketId,
        mut frame: Frame,
        route: &RouteDecision,
        now_ns: u64,
        parts: &mut OutputParts<'_>,
    ) {
        match *route {
            RouteDecision::Forward { next, mtu } if has_hop(&frame) => {
                ip_options::enter(&mut frame, next, &self.routing);
                self.send_to(next, Unsent { bucket, mtu, since_ns: now_ns, frame }, now_ns, parts);
            }
            // A later fragment may have fewer hops left than the first one.
            RouteDecision::Forward { .. } => self.refuse(&OUT_OF_TIME, frame, now_ns, parts),
            RouteDecision::Host => {
                parts.counters.output.to_host += 1;
                parts.pool.give_back(frame);
            }
            RouteDecision::Refuse { .. } => self.refuse(route, frame, now_ns, parts),
        }
    }

    #[cold]
    fn refuse(
        &self,
        route: &RouteDecision,
        frame: Frame,
        now_ns: u64,
        parts: &mut OutputParts<'_>,
    ) {
        if let RouteDecision::Refuse { reason, icmp } = *route {
            parts.refuse(frame, reason, icmp.map(|message| (message, now_ns)));
        }
    }

    /// Sends a frame to a next hop, but not before frames that wait for it.
    #[inline(always)]
    pub fn send_to(
        &mut self,
        next: NextStation,
        unsent: Unsent,
        now_ns: u64,
        parts: &mut OutputParts<'_>,
    ) {
        match self.adjacencies.to(next, &self.routing) {
            Some(adjacency) => Self::send_on(adjacency, unsent, now_ns, parts),
            None => self.send_unsure(next, unsent, now_ns, parts),
        }
    }

    /// Does the same where the kernel has to be asked for the next hop, or about it.
    #[cold]
    #[inline(never)]
    fn send_unsure(
        &mut self,
        next: NextStation,
        unsent: Unsent,
        now_ns: u64,
        parts: &mut OutputParts<'_>,
    ) {
        let (link, address) = next;
        let known = self
            .routing
            .port_of(link)
            .and_then(|port| Some((port, self.routing.port(port)?.station)));
        let Some((port, from)) = known else {
            return parts.refuse(unsent.frame, DropReason::NoOutputPort, None);
        };
        match self.routing.neighbour(link, address) {
            Some(Neighbour::Known { station: to, is_fresh }) => {
                if !is_fresh {
                    self.ask(next, now_ns, ASK_EVERY);
                }
                Self::send_on(Adjacency { port, from, to }, unsent, now_ns, parts);
            }
            // The kernel has asked for it without an answer.
            Some(Neighbour::Failed)
                if !self.waiting.contains_key(&next) && !self.ask(next, now_ns, ASK_EVERY) =>
            {
                self.refuse_unreachable(unsent.frame, now_ns, parts);
            }
            _ => self.keep(next, unsent, now_ns, parts),
        }
    }

    #[inline(always)]
    fn send_on(
        Adjacency { port, from, to }: Adjacency,
        Unsent { mtu, frame, .. }: Unsent,
        now_ns: u64,
        parts: &mut OutputParts<'_>,
    ) {
        let next_link = Some(NextLink { from, to, mtu });
        let options = SendOptions { answer_ns: Some(now_ns), next_link };
        parts.outputs.send_by(port, frame, options, parts.pool, parts.counters);
    }

    fn refuse_unreachable(&self, frame: Frame, now_ns: u64, parts: &mut OutputParts<'_>) {
        let is_v6 = frame.bytes().get(usize::from(ETHERNET_LEN)).is_some_and(|b| b >> 4 == 6);
        let code = if is_v6 { ADDRESS_UNREACHABLE } else { HOST };
        let answer = Some((Message::Unreachable { code }, now_ns));
        parts.refuse(frame, DropReason::NoNeighbour, answer);
    }

    /// Keeps a frame until the station of its next hop is known.
    fn keep(
        &mut self,
        next: NextStation,
        unsent: Unsent,
        now_ns: u64,
        parts: &mut OutputParts<'_>,
    ) {
        if !self.waiting.contains_key(&next) {
            if !self.make_place(now_ns, parts) {
                return parts.refuse(unsent.frame, DropReason::NeighbourQueueFull, None);
            }
            self.ask(next, now_ns, FIRST_PAUSE);
        }
        let has_failed = self.routing.neighbours.get(next.0, next.1) == Some(&Neighbour::Failed);
        let since_ns = unsent.since_ns;
        let fresh = || Waiting { since_ns, has_failed, pause: FIRST_PAUSE, ..Waiting::default() };
        let waiting = self.waiting.entry(next).or_insert_with(fresh);
        let bytes = waiting.bytes + unsent.weight();
        if waiting.frames.len() >= MAX_WAITING || bytes > self.waiting_bytes {
            return parts.refuse(unsent.frame, DropReason::NeighbourQueueFull, None);
        }
        waiting.bytes = bytes;
        waiting.frames.push_back(unsent);
    }

    /// Makes room for one more next hop to wait for. If all places are taken, the next hop that
    /// has waited longest loses its place, unless it may still answer. False if there is no room.
    fn make_place(&mut self, now_ns: u64, parts: &mut OutputParts<'_>) -> bool {
        if self.waiting.len() < MAX_AWAITED {
            return true;
        }
        let longest = self.waiting.iter().min_by_key(|(_, waiting)| waiting.since_ns);
        let is_over = |since_ns| now_ns.saturating_sub(since_ns) >= nanos(PLACE_IS_SURE);
        let Some(next) = longest.and_then(|(next, it)| is_over(it.since_ns).then_some(*next))
        else {
            return false;
        };
        for Unsent { frame, .. } in self.waiting.remove(&next).unwrap_or_default().frames {
            parts.refuse(frame, DropReason::NeighbourQueueFull, None);
        }
        true
    }

    /// Asks the kernel for a neighbour, unless it was asked less than `pause` ago. True if it was
    /// asked now.
    fn ask(&mut self, next: NextStation, now_ns: u64, pause: Duration) -> bool {
        let asked = self.asked_ns.get(&next);
        if asked.is_some_and(|asked| now_ns.saturating_sub(*asked) < nanos(pause))
            || !self.resolver.ask(next.0, next.1)
        {
            return false;
        }
        if self.asked_ns.len() >= MAX_ASKED {
            // Others keep their pauses, so a scan does not have the kernel asked again about them.
            let oldest = self.asked_ns.iter().min_by_key(|(_, asked_ns)| **asked_ns);
            let oldest = oldest.map(|(next, _)| *next);
            oldest.map(|next| self.asked_ns.remove(&next));
        }
        self.asked_ns.insert(next, now_ns);
        true
    }

    /// Takes over a new routing, and sends the frames that have waited for it.
    pub fn take(&mut self, routing: Arc<Routing>, now_ns: u64, parts: &mut OutputParts<'_>) {
        parts.outputs.set_names(routing.names());
        self.routing = routing;
        self.route_cache.forget();
        self.sources.forget();
        self.destinations.forget();
        self.adjacencies.forget();
        let routing = self.routing.clone();
        let is_dead = |next: NextStation, waiting: &Waiting| {
            !waiting.has_failed
                && routing.neighbours.get(next.0, next.1) == Some(&Neighbour::Failed)
        };
        let is_ready = |next: NextStation, waiting: &Waiting| {
            let known = routing.neighbour(next.0, next.1);
            matches!(known, Some(Neighbour::Known { .. }))
                || is_dead(next, waiting)
                || routing.port_of(next.0).is_none()
        };
        // The kernel forgets neighbours that nobody uses, so an unknown neighbour is no answer.
        let ready = self.waiting.iter().filter(|(next, waiting)| is_ready(**next, waiting));
        for next in ready.map(|(next, _)| *next).collect::<Vec<_>>() {
            let waiting = self.waiting.remove(&next).unwrap_or_default();
            let is_dead = is_dead(next, &waiting);
            for unsent in waiting.frames {
                // A frame that is sent to a failed neighbour anew would wait for as long again.
                if is_dead {
                    self.refuse_unreachable(unsent.frame, now_ns, parts);
                } else {
                    self.send_to(next, unsent, now_ns, parts);
                }
            }
        }
    }

    /// Refuses frames that have waited too long, and has the kernel asked again for the others.
    pub fn expire(&mut self, now_ns: u64, parts: &mut OutputParts<'_>) {
        while let Some(next) = self.waiting.iter().find_map(|(next, waiting)| {
            let waited = now_ns.saturating_sub(waiting.since_ns);
            (waited >= nanos(LONGEST_WAIT)).then_some(*next)
        }) {
            for Unsent { frame, .. } in self.waiting.remove(&next).unwrap_or_default().frames {
                self.refuse_unreachable(frame, now_ns, parts);
            }
        }
        let mut waiting = std::mem::take(&mut self.waiting);
        for (&next, waiting) in &mut waiting {
            if self.ask(next, now_ns, waiting.pause) {
                waiting.pause = (2 * waiting.pause).min(ASK_EVERY);
            }
        }
        self.waiting = waiting;
    }

    /// Takes out the waiting frames of a bucket that leaves. Later packets must not overtake them.
    pub fn unsent(&mut self, bucket: BucketId) -> Vec<(NextStation, Unsent)> {
        let mut unsent = Vec::new();
        self.waiting.retain(|&next, waiting| {
            for frame in std::mem::take(&mut waiting.frames) {
                if frame.bucket == bucket {
                    waiting.bytes -= frame.weight();
                    unsent.push((next, frame));
                } else {
                    waiting.frames.push_back(frame);
                }
            }
            !waiting.frames.is_empty()
        });
        unsent
    }

    /// Drops all waiting frames, because the gateway ends.
    pub fn end(&mut self, parts: &mut OutputParts<'_>) {
        let waiting = std::mem::take(&mut self.waiting);
        for Unsent { frame, .. } in waiting.into_values().flat_map(|waiting| waiting.frames) {
            parts.refuse(frame, DropReason::NoNeighbour, None);
        }
    }
}

/// Code of "destination unreachable" for a neighbour that does not answer (RFC 4443 section 3.1).
const ADDRESS_UNREACHABLE: u8 = 3;

const fn nanos(duration: Duration) -> u64 {
    duration.as_nanos() as u64
}

fn is_group(station: [u8; 6]) -> bool {
    station[0] & 1 != 0
}

/// True if the packet behind an Ethernet header has a hop left.
#[inline]
fn has_hop(frame: &Frame) -> bool {
    let packet = frame.bytes().get(usize::from(ETHERNET_LEN)..).unwrap_or_default();
    wire::hops_left(packet) > 1
}

pub(crate) fn query(network: &Network, link: LinkId, whole: bool) -> Query {
    let (source, destination) = (network.source_ip(), network.destination_ip());
    Query {
        traffic_class: network.traffic_class,
        protocol: network.protocol,
        ports: if whole { ports(network) } else { None },
        flow_hash: spread(source, destination),
        ..Query::new(source, destination, link)
    }
}

/// The ports for rules that ask for them. Fragments have none here: all of them have to go the
/// same way, and only the first has ports. A kernel that does not reassemble does the same.
fn ports(network: &Network) -> Option<(u16, u16)> {
    if network.fragment.is_some() { None } else { network.transport.ports() }
}

/// A hash of two addresses. All packets between them, including fragments, take the same one of
/// several ways. The kernel does the same (`fib_multipath_hash_policy` 0).
fn spread(source: IpAddr, destination: IpAddr) -> u32 {
    let bits = |address| match address {
        IpAddr::V4(address) => u128::from(address.to_bits()),
        IpAddr::V6(address) => address.to_bits(),
    };
    let fold = |bits: u128| (bits >> 64) as u64 ^ bits as u64;
    let mixed = (fold(bits(source)).rotate_left(32) ^ fold(bits(destination)))
        .wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 32) as u32
}

#[cfg(test)]
#[path = "router_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "router_waiting_tests.rs"]
mod waiting_tests;
