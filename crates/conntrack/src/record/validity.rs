//! Tells possible records from impossible ones.

use flow::{Endpoint, FlowKey, KeyedPacket, Side};
use wire::{Family, QueryKind, protocol};

use super::ConnectionRecord;
use flow::codec::{DecodeError, Millis, refuse_faults};

impl ConnectionRecord {
    /// The record if a table could have made it.
    pub(super) fn checked(self) -> Result<Self, DecodeError> {
        self.check()?;
        Ok(self)
    }

    fn check(&self) -> Result<(), DecodeError> {
        let Self { original, translation, state, facts, left, policy, .. } = self;
        let key = &original.key;
        let is_tcp = key.protocol == protocol::TCP;
        let leaves = translation.as_ref().map(|it| it.leaves_as);
        let (helper, proxied) = (self.helper.as_ref(), self.proxied.as_ref());
        refuse_faults([
            (!is_canonical(original), "a key that no packet has"),
            (!state.suits(key, facts.call), "a state that its protocol does not have"),
            (*left == Millis::default(), "a connection that has ended"),
            (facts.call && !facts.expected, "a call that nobody has announced"),
            (leaves.is_some_and(|it| it == *original), "a translation that changes nothing"),
            (leaves.is_some_and(|it| !is_like(&it, original)), "a translation of another kind"),
            (
                leaves.is_some() && self.reply() == *original,
                "a translation whose replies are the packets themselves",
            ),
            (
                policy.is_some_and(|it| it.protocol() != key.protocol),
                "timeouts of another protocol",
            ),
            (helper.is_some_and(|it| !it.suits(key.protocol)), "a helper of another protocol"),
            (self.shifts.is_some() && helper.is_none(), "shifted numbers without a helper"),
            (self.shifts.is_some() && !is_tcp, "shifted numbers of another protocol"),
            (proxied.is_some() && !is_tcp, "a SYN proxy of another protocol"),
        ])
    }
}

/// True if the originator's packets can leave with this key.
fn is_like(leaves_as: &KeyedPacket, original: &KeyedPacket) -> bool {
    let kind = |key: &FlowKey| if key.is_query() { key.kind >> 1 } else { key.kind };
    let (from, to) = (&original.key, &leaves_as.key);
    is_canonical(leaves_as)
        && (from.family, from.protocol, kind(from)) == (to.family, to.protocol, kind(to))
        && (!from.is_query() || asks(original) == asks(leaves_as))
}

/// True if the sender of an ICMP query is the end that asks.
fn asks(KeyedPacket { key, sender }: &KeyedPacket) -> bool {
    key.kind & 1 == *sender as u8
}

/// True if a packet can have this key: its ends are in order, and have numbers in the place of ports
/// only if the protocol has such numbers.
pub(super) fn is_canonical(KeyedPacket { key, sender }: &KeyedPacket) -> bool {
    let FlowKey { low, high, protocol, kind, family, .. } = *key;
    let has_query =
        (family, protocol) == (Family::V4, protocol::ICMP) || protocol == protocol::ICMPV6;
    if has_query {
        let is_kind = QueryKind::ALL.iter().any(|query| *query as u8 == kind >> 1);
        // A code has 8 bits.
        return is_kind && low.address <= high.address && high.port <= 0xff;
    }
    let order = |end: Endpoint| (end.address, end.port);
    let is_from_low = *sender == Side::Low;
    if protocol == protocol::GRE {
        let equal = low.address == high.address;
        let is_kind = key.is_tunnel() || key.is_call();
        return is_kind && low.address <= high.address && (!equal || is_from_low);
    }
    let has_ports = key.is_identified() && !key.is_query();
    kind == 0
        && order(low) <= order(high)
        && (order(low) != order(high) || is_from_low)
        && (has_ports || (low.port, high.port) == (0, 0))
}
