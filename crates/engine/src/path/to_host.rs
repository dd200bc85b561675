//! The packets that are for the host. The kernel has its own copy of them.

use std::ops::ControlFlow;

use flow::Timestamp;
use ruleset::Interval;
use wire::{Family, Transport};

use crate::path::PacketPath;
use crate::path::host_flows::Sign;
use crate::path::packet::{Packet, TrackedFlow};
use crate::path::scratch::Scratch;
use crate::path::step::{End, Step};

impl PacketPath {
    /// Leaves a packet to the host if it belongs there and no rule can change that.
    #[inline]
    pub(super) fn leave_known_to_host(
        &mut self,
        packet: &mut Packet,
        scratch: &mut Scratch,
    ) -> Step {
        let now = scratch.now;
        if self.is_of_host_flow(packet, now) {
            return ControlFlow::Break(End::Host);
        }
        if self.is_local_only(packet, now) {
            scratch.host_may_refuse = true;
            return ControlFlow::Break(End::Host);
        }
        ControlFlow::Continue(())
    }

    /// Leaves the flow of a packet to the host from now on, even if the rules change. The kernel
    /// translates its own copies of the packets as the rule says.
    #[cold]
    pub(super) fn leave_to_host(&mut self, packet: &Packet, scratch: &Scratch) -> Step {
        let Self { buckets, tracking, .. } = self;
        if let Some(TrackedFlow { keyed, hash: Some(hash) }) = packet.flow
            && let Some(bucket) = buckets.get_mut(packet.bucket)
        {
            let settings = tracking.settings_of(keyed.key.zone);
            let sign = Sign::of(&packet.network.transport);
            bucket.host_flows.remember(&keyed, hash, sign, settings, scratch.now);
        }
        ControlFlow::Break(End::Host)
    }

    /// True if a packet belongs to a flow that was left to the host.
    #[inline]
    fn is_of_host_flow(&mut self, packet: &Packet, now: Timestamp) -> bool {
        let bucket = self.buckets.get(packet.bucket);
        bucket.is_some_and(|bucket| !bucket.host_flows.is_empty())
            && self.is_known_to_host(packet, now)
    }

    #[inline(never)]
    fn is_known_to_host(&mut self, packet: &Packet, now: Timestamp) -> bool {
        let Some((keyed, hash)) = packet.looked_up() else { return false };
        let Self { buckets, tracking, .. } = self;
        let Some(bucket) = buckets.get_mut(packet.bucket) else { return false };
        let settings = tracking.settings_of(keyed.key.zone);
        let sign = Sign::of(&packet.network.transport);
        bucket.host_flows.take(&keyed, hash, sign, settings, now)
    }

    /// True for a packet that is the host's whatever rules say of it.
    fn is_local_only(&self, packet: &Packet, now: Timestamp) -> bool {
        packet.is_local && !self.may_be_translated(packet, now)
    }

    /// True for a packet for an address of the host that belongs to no connection. The host's
    /// kernel judges its own copy and answers it, unless a rule translates the packet.
    #[cold]
    pub(super) fn is_untracked_local(&self, packet: &Packet, now: Timestamp) -> bool {
        packet.is_local && !self.is_of_connection(packet, now)
    }

    /// True if the host's kernel gets its own copy of a packet that belongs to no connection.
    #[cold]
    pub(super) fn host_has_copy(&self, packet: &Packet) -> bool {
        let Some((rules, router)) = self.rules.as_ref().zip(self.forwarder.router()) else {
            return true;
        };
        let routing = router.routing();
        let is_host = |family: Family, addresses: Interval| {
            routing.own_addresses().any(|own| addresses.holds_address(family, own))
        };
        let input = rules.interface(packet.frame.port);
        rules.host_copies().has(&packet.network, input, is_host)
    }

    /// True if a packet for an address of the host may be another's: it belongs to a connection,
    /// or is expected, or a rule may translate it.
    #[cold]
    fn may_be_translated(&self, packet: &Packet, now: Timestamp) -> bool {
        packet.looked_up().is_some()
            && (self.is_of_connection(packet, now)
                || self.rules.as_ref().is_some_and(|rules| {
                    rules.has_chains(ruleset::Hook::DestinationNat)
                        && !matches!(packet.network.transport, Transport::IcmpError(_))
                }))
    }

    /// True if a packet belongs to a connection or is expected.
    fn is_of_connection(&self, packet: &Packet, now: Timestamp) -> bool {
        let Some((keyed, hash)) = packet.looked_up() else { return false };
        let Some(bucket) = self.buckets.get(packet.bucket) else { return false };
        bucket.connections.has(&keyed, hash, now)
            || self.tracking.tunnels().has(&keyed, now)
            || self.tracking.expectations().may_expect(&keyed)
    }
}
