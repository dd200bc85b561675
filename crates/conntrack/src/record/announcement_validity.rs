//! Tells possible announcements from impossible ones.

use std::net::IpAddr;

use flow::codec::{DecodeError, Millis, refuse_faults};
use flow::{FlowKey, KeyedPacket, Side};
use wire::{Family, protocol};

use super::validity::is_canonical;
use crate::expect::{Announcement, ExpectationRecord, OpenCall};
use crate::helper::{Announced, Kind};

impl Announcement {
    /// The announcement if a gateway could have made it.
    pub(super) fn checked(self) -> Result<Self, DecodeError> {
        self.check()?;
        Ok(self)
    }

    fn check(&self) -> Result<(), DecodeError> {
        match self {
            Self::Expectation(record) => check_expectation(record),
            Self::Call { call, open: OpenCall { master, real, names }, .. } => {
                let is_like = |it: &FlowKey| it.family == master.family && it.zone == master.zone;
                let is_call = |it: &FlowKey| it.is_call() && is_filed(it) && is_like(it);
                refuse_faults([
                    (!is_control(master), "the control connection of a call"),
                    (!is_call(call) || !is_call(real), "the key of a call"),
                    (names.iter().any(|(way, _)| way.zone != master.zone), "the way of a call"),
                ])
            }
            Self::CallId { master, id } => refuse_faults([
                (!is_control(master), "the control connection of a call"),
                (id.way.zone != master.zone, "the way of a call"),
            ]),
            Self::Media { place: (_, protocol, real, known), port } => refuse_faults([
                (!has_ports(*protocol), "the protocol of media"),
                (!is_whole(real.0) || !is_whole(*known), "an address of another family"),
                (real.0.is_ipv4() != known.is_ipv4(), "an address of another family"),
                (real.1 & 1 != 0 || port & 1 != 0, "the odd port of a pair"),
            ]),
        }
    }
}

fn check_expectation(record: &ExpectationRecord) -> Result<(), DecodeError> {
    let ExpectationRecord { master, announced, left, .. } = record;
    let Announced { protocol, destination, source, source_network, follow, .. } = announced;
    let is_gre = *protocol == protocol::GRE;
    let (real, sender) = (follow.and_then(|it| it.destination), follow.and_then(|it| it.source));
    let others = [*source, source_network.map(|it| it.address()), real.map(|it| it.0), sender];
    let is_other = |it: IpAddr| !is_whole(it) || it.is_ipv4() != destination.is_ipv4();
    let has_class = usize::from(announced.class) < master.helper.classes().len();
    let is_plain = follow.is_some_and(|it| it.destination.is_none() && it.source.is_none());
    refuse_faults([
        (!is_canonical(&master.flow), "a key that no packet has"),
        (!master.helper.suits(master.flow.key.protocol), "a helper of another protocol"),
        (*left == Millis::default(), "an expectation that has expired"),
        (!has_class, "a class that the helper does not have"),
        (!has_ports(*protocol) && !is_gre, "the protocol of an expectation"),
        (is_gre != (master.helper == Kind::Pptp), "the protocol of an expectation"),
        (!is_whole(*destination), "an address of another family"),
        (others.into_iter().flatten().any(is_other), "an address of another family"),
        (is_gre && (source.is_none() || announced.source_port.is_none()), "a call with one end"),
        (
            is_gre && (master.flow.key.family == Family::V4) != destination.is_ipv4(),
            "an address of another family",
        ),
        (announced.helper.is_some_and(|it| !it.suits(*protocol)), "a helper of another protocol"),
        (is_plain, "a translation that changes nothing"),
    ])
}

/// True if an address is not one of IPv4 in the form of IPv6.
fn is_whole(address: IpAddr) -> bool {
    address.to_canonical() == address
}

const fn has_ports(protocol: u8) -> bool {
    matches!(protocol, protocol::TCP | protocol::UDP)
}

/// True for a key of a connection that can announce calls.
fn is_control(key: &FlowKey) -> bool {
    key.protocol == protocol::TCP && is_filed(key)
}

/// True if a packet of either end can have this key.
fn is_filed(key: &FlowKey) -> bool {
    is_canonical(&KeyedPacket { key: *key, sender: Side::Low })
}
