//! The way out of a worker: by the routes of a router, or by the stations of a bridge.

use std::sync::Arc;

use fib::HardwareAddress;
use flow::{Counters, DropReason};
use netio::{Frame, FramePool, PortId, TxQueue};
use steer::BucketId;
use wire::Network;
use wire::icmp_error::Message;

use crate::egress::bridge::OutputPorts;
use crate::egress::icmp_errors::Speaker;
use crate::egress::outputs::{NextLink, Outputs, SendOptions};
use crate::egress::resolver::Resolver;
use crate::egress::route_decision::RouteDecision;
use crate::egress::router::{Arrival, NextStation, OutputParts, Router};
use crate::egress::routing::Routing;
use crate::egress::stations::StationUpdate;
use crate::egress::unsent::Unsent;

/// The output side of a worker: its ports, and the router if it is one.
pub struct Forwarder {
    outputs: Outputs,
    /// `None` in a bridge.
    router: Option<Box<Router>>,
    /// It is a bridge on standby, which sends nothing.
    is_silent: bool,
}

/// Questions.
impl Forwarder {
    /// A router that asks `resolver` for neighbours, or a bridge without one.
    pub fn new(outputs: Outputs, resolver: Option<Resolver>) -> Self {
        let router = resolver.map(|resolver| Box::new(Router::new(resolver)));
        Self { outputs, router, is_silent: false }
    }

    /// The router, to be asked. `None` in a bridge.
    #[inline]
    pub fn router(&self) -> Option<&Router> {
        self.router.as_deref()
    }

    /// Sets whether the gateway is on standby. A bridge sends nothing then, because two that
    /// forward would make a loop. A router forwards what reaches it.
    pub const fn set_stands_by(&mut self, stands_by: bool) {
        self.is_silent = stands_by && self.router.is_none();
    }

    /// The ports, to be asked.
    #[inline]
    pub const fn outputs(&self) -> &Outputs {
        &self.outputs
    }

    /// Decides about a received frame by its destination station, see [`Router::arrival`]. A bridge
    /// forwards all, or on standby none.
    #[inline]
    pub fn arrival(&self, frame: &Frame) -> Arrival {
        match &self.router {
            Some(router) => router.arrival(frame),
            None if self.is_silent => Arrival::Drop(DropReason::Standby, None),
            None => Arrival::Forward,
        }
    }

    /// Decides about a packet for this station, see [`Router::packet_arrival`]. A bridge forwards
    /// all.
    #[inline]
    pub fn packet_arrival(&mut self, frame: &Frame, network: &Network) -> Arrival {
        let router = self.router.as_mut();
        router.map_or(Arrival::Forward, |router| router.packet_arrival(frame, network))
    }

    /// True for a packet for an address of the host that may belong to a translated connection.
    #[inline]
    pub fn is_local(&mut self, network: &Network) -> bool {
        self.router.as_mut().is_some_and(|router| router.is_local(network))
    }

    /// The route of a packet through a router, see [`Router::route`]. `None` in a bridge.
    #[inline]
    pub fn route(
        &mut self,
        network: &Network,
        port: PortId,
        mark: u32,
        whole: bool,
    ) -> Option<RouteDecision> {
        Some(self.router.as_mut()?.route(network, port, mark, whole))
    }

    /// The port by which packets of this route leave. `None` if they do not leave.
    #[inline]
    pub fn port_of(&self, route: &RouteDecision) -> Option<PortId> {
        self.router.as_ref()?.port_of(route)
    }
}

/// Frames.
impl Forwarder {
    /// Sends a frame by the route that the router has found for packets of its bucket, or by the
    /// way that the bridge has chosen or chooses now. A bridge on standby refuses it: the frame may
    /// have been on its way to this worker, or have waited, when the worker heard of that. In line,
    /// as all it calls on the usual way, because a frame is copied when it is handed to a function.
    #[inline(always)]
    pub fn send(
        &mut self,
        frame: Frame,
        ports: Option<OutputPorts>,
        route: Option<(BucketId, &RouteDecision)>,
        now_ns: u64,
        pool: &mut FramePool,
        counters: &mut Counters,
    ) {
        let Self { router, outputs, is_silent } = self;
        match (router, route, ports) {
            (Some(router), Some((bucket, route)), _) => {
                let parts = &mut OutputParts { outputs, pool, counters };
                router.forward(bucket, frame, route, now_ns, parts);
            }
            _ if *is_silent => outputs.refuse(frame, DropReason::Standby, None, pool, counters),
            (_, _, Some(ports)) => outputs.send(frame, ports, now_ns, pool, counters),
            _ => outputs.forward(frame, now_ns, pool, counters),
        }
    }

    /// Sends a frame as it was recorded for its connection: by this port, in a router to this
    /// station. The port takes a frame of its length.
    #[inline]
    pub fn send_recorded(
        &mut self,
        frame: Frame,
        (port, station): (PortId, HardwareAddress),
        now_ns: u64,
        pool: &mut FramePool,
        counters: &mut Counters,
    ) {
        let Self { router, outputs, is_silent } = self;
        match router.as_ref().map(|router| router.station(port)) {
            Some(Some(from)) => {
                let next_link = NextLink { from, to: station, mtu: None };
                outputs.send_fitting(port, frame, next_link, pool, counters);
            }
            // The routes have changed since, which ends the generation: this does not happen.
            Some(None) => outputs.refuse(frame, DropReason::NoOutputPort, None, pool, counters),
            None if *is_silent => outputs.refuse(frame, DropReason::Standby, None, pool, counters),
            None => outputs.send(frame, OutputPorts::One(port), now_ns, pool, counters),
        }
    }

    /// Sends a frame that the gateway has made by a port.
    pub fn send_made(
        &mut self,
        port: PortId,
        frame: Frame,
        pool: &mut FramePool,
        counters: &mut Counters,
    ) {
        if self.is_silent {
            return self.outputs.refuse(frame, DropReason::Standby, None, pool, counters);
        }
        self.outputs.send_by(port, frame, SendOptions::default(), pool, counters);
    }

    /// Tells the sender of a packet why that does not go on, as far as it may be told.
    pub fn tell(
        &mut self,
        frame: &Frame,
        message: Message,
        speaker: Speaker,
        now_ns: u64,
        pool: &mut FramePool,
        counters: &mut Counters,
    ) {
        if self.is_silent {
            return;
        }
        self.outputs.tell(frame, message, speaker, now_ns, pool, counters);
    }

    /// A frame that does not leave, and why. The caller drops it.
    #[inline]
    pub fn take_refused(&mut self) -> Option<(Frame, DropReason)> {
        self.outputs.take_refused()
    }

    /// Sends everything that is queued.
    pub fn flush(&mut self, pool: &mut FramePool, counters: &mut Counters) {
        self.outputs.flush(pool, counters);
    }
}

/// Frames that wait for their next hop. Those that wait no more are sent or refused.
impl Forwarder {
    /// Takes over new routes, neighbours and links.
    pub fn take_routing(
        &mut self,
        routing: Arc<Routing>,
        now_ns: u64,
        pool: &mut FramePool,
        counters: &mut Counters,
    ) {
        self.with_router(pool, counters, |router, parts| router.take(routing, now_ns, parts));
    }

    /// Refuses frames that have waited too long, and has the kernel asked again for the others.
    pub fn expire(&mut self, now_ns: u64, pool: &mut FramePool, counters: &mut Counters) {
        self.with_router(pool, counters, |router, parts| router.expire(now_ns, parts));
    }

    /// Refuses all frames that wait, because the gateway ends.
    pub fn end(&mut self, pool: &mut FramePool, counters: &mut Counters) {
        self.with_router(pool, counters, Router::end);
    }

    /// Takes out the waiting frames of a bucket that leaves.
    pub fn take_unsent(&mut self, bucket: BucketId) -> Vec<(NextStation, Unsent)> {
        self.router.as_mut().map_or_else(Vec::new, |router| router.unsent(bucket))
    }

    /// Takes over the waiting frames of a bucket that has arrived.
    pub fn take_over_unsent(
        &mut self,
        unsent: Vec<(NextStation, Unsent)>,
        now_ns: u64,
        pool: &mut FramePool,
        counters: &mut Counters,
    ) {
        self.with_router(pool, counters, |router, parts| {
            for (next, frame) in unsent {
                router.send_to(next, frame, now_ns, parts);
            }
        });
    }

    fn with_router(
        &mut self,
        pool: &mut FramePool,
        counters: &mut Counters,
        act: impl FnOnce(&mut Router, &mut OutputParts<'_>),
    ) {
        let Self { router: Some(router), outputs, .. } = self else { return };
        act(router, &mut OutputParts { outputs, pool, counters });
    }
}

/// Stations, and changes from outside.
impl Forwarder {
    /// Sets the most bytes of packets that wait for one next hop, see [`Router::set_waiting_bytes`].
    pub fn set_waiting_bytes(&mut self, bytes: u64) {
        if let Some(router) = &mut self.router {
            router.set_waiting_bytes(bytes);
        }
    }

    /// Has a bridge note where the sender of a frame is, see [`Outputs::learn`].
    #[inline]
    pub fn learn(&mut self, frame: &Frame, now_ns: u64, tell: impl FnOnce(StationUpdate) -> bool) {
        self.outputs.learn(frame, now_ns, tell);
    }

    /// True if a bridge has to be told where the senders of frames are.
    #[inline]
    pub const fn learns(&self) -> bool {
        self.router.is_none() && self.outputs.learns()
    }

    /// Has a bridge note what another worker has heard.
    pub fn learn_from_peer(&mut self, heard: StationUpdate) {
        self.outputs.learn_from_peer(heard);
    }

    /// Has a router look at packets for the host's own addresses too from now on, because
    /// connections may be translated.
    pub fn take_own(&mut self) {
        if let Some(router) = &mut self.router {
            router.take_own();
        }
    }

    /// Opens or closes this worker's queue of a port.
    pub fn set_output(&mut self, port: PortId, queue: Option<Box<dyn TxQueue>>) {
        self.outputs.set(port, queue);
    }

    /// Sets the longest packet that each port takes, see [`Outputs::set_mtus`].
    pub fn set_mtus(&mut self, mtus: &[Option<u32>]) {
        self.outputs.set_mtus(mtus);
    }
}
