//! The stage that looks whether the fragments of a datagram fit the link ahead.
//!
//! The fragments leave as they came. If only a later one is too long, the output would refuse that
//! one, and no error could name the flow (RFC 792: an error is about the first fragment). The
//! sender would go on at its length, and nothing would ever arrive. So the whole datagram is
//! refused, and the error quotes the datagram, as the kernel does after it has put one together.

use std::ops::ControlFlow;

use flow::DropReason;
use netio::Frame;
use wire::icmp_error::Message;
use wire::{Dissected, Family};

use crate::egress::bridge::OutputPorts;
use crate::egress::path_mtu::is_exceeded;
use crate::egress::route_decision::RouteDecision;
use crate::path::PacketPath;
use crate::path::packet::Packet;
use crate::path::scratch::{Exit, Scratch};
use crate::path::step::{End, Reply, Step};

impl PacketPath {
    /// Refuses a datagram of which a fragment is longer than the link or the route ahead takes, if
    /// no router may cut that fragment.
    #[inline]
    pub(super) fn fit(&mut self, packet: &mut Packet, scratch: &mut Scratch) -> Step {
        let Some(pieces) = &packet.pieces else { return ControlFlow::Continue(()) };
        match self.mtu_ahead(scratch.exit) {
            Some(mtu) if !pieces.frames().all(|piece| fits(mtu, piece)) => {
                self.counters.output.frag_fails += 1;
                let reply = Some(Reply::Icmp(Message::TooBig { mtu }));
                ControlFlow::Break(End::Drop(DropReason::FragNeeded.into(), reply))
            }
            _ => ControlFlow::Continue(()),
        }
    }

    /// The longest packet that the way ahead takes, bytes. `None` if that is not known, or if the
    /// packet leaves by several ports: nobody is told about copies.
    #[cold]
    fn mtu_ahead(&self, exit: Exit) -> Option<u32> {
        let (port, of_route) = match (exit.route, exit.ports) {
            (Some(route @ RouteDecision::Forward { mtu, .. }), _) => {
                (self.forwarder.port_of(&route)?, mtu)
            }
            (None, Some(OutputPorts::One(port))) => (port, None),
            _ => return None,
        };
        self.forwarder.outputs().mtu(port).into_iter().chain(of_route).min()
    }
}

/// True for a fragment that is short enough, or that a router may cut (RFC 791; RFC 8200 section 5:
/// none of IPv6).
fn fits(mtu: u32, piece: &Frame) -> bool {
    !is_exceeded(mtu, piece)
        || match wire::dissect(piece.bytes()) {
            Ok(Dissected { network: Some(network), .. }) => {
                network.family == Family::V4 && !network.dont_fragment
            }
            _ => false,
        }
}

#[cfg(test)]
#[path = "fit_tests.rs"]
mod tests;
