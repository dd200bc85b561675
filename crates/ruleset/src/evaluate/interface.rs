//! The interfaces of the gateway, as rules ask for them: their groups and the types of their links.

use std::sync::Arc;

use super::load::bits_from;
use super::routes::Side;
use super::state::RuleState;
use super::view::PacketView;
use crate::hook::Hook;

/// An interface of the gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interface {
    /// Its name, as [`name_bits`](crate::name_bits) encodes it; 0 for a name that does not fit.
    pub name: u128,
    /// Its group (ip-link(8), `group`); 0 is `default`.
    pub group: u32,
    /// The type of its link (`ARPHRD_ETHER` and so on, `linux/if_arp.h`).
    pub link_type: u16,
}

impl Interface {
    /// The type of Ethernet links (`ARPHRD_ETHER` of `linux/if_arp.h`).
    pub const ETHERNET: u16 = 1;

    /// An Ethernet interface of the group `default`.
    pub const fn ethernet(name: u128) -> Self {
        Self { name, group: 0, link_type: Self::ETHERNET }
    }
}

impl RuleState {
    /// Sets the interfaces of the gateway. One that is not among them is an Ethernet interface of
    /// the group `default`.
    pub fn set_interfaces(&mut self, interfaces: Arc<[Interface]>) {
        self.interfaces = interfaces;
    }

    /// The interface of a packet; `None` if there is no such interface yet.
    fn interface(&self, side: Side, view: &PacketView<'_>) -> Option<Interface> {
        let name = match side {
            Side::Input => view.input,
            Side::Output => view.output,
        };
        let known = || self.interfaces.iter().find(|interface| interface.name == name).copied();
        (name != 0).then(|| known().unwrap_or(Interface::ethernet(name)))
    }

    /// The group of a packet's interface; `None` if there is no such interface yet.
    #[cold]
    pub(super) fn group(&self, side: Side, view: &PacketView<'_>) -> Option<u128> {
        self.interface(side, view).map(|interface| interface.group.into())
    }

    /// The type of the link of a packet's interface; `None` if there is no such interface yet. In
    /// postrouting the kernel asks the output interface for both sides: the packet is there by then.
    #[cold]
    pub(super) fn link_type(&self, side: Side, hook: Hook, view: &PacketView<'_>) -> Option<u128> {
        let side = if hook >= Hook::Postrouting { Side::Output } else { side };
        self.interface(side, view).map(|interface| interface.link_type.into())
    }

    /// Bits of the link header, by offset and number; the third value is true for raw ones. A
    /// packet that came in by a link of another type than Ethernet has none, though its frame begins
    /// with the header that the gateway puts in front of it. nft asks for the type of the link in
    /// front of fields that it has a name for.
    #[cold]
    pub(super) fn link_header(
        &self,
        (offset, bits, raw): (u16, u8, bool),
        hook: Hook,
        view: &PacketView<'_>,
    ) -> Option<u128> {
        let came_by = self.interface(Side::Input, view);
        let has_header = came_by.is_none_or(|it| it.link_type == Interface::ETHERNET);
        let is_ethernet = |it: u128| it == Interface::ETHERNET.into();
        let is_asked_there = raw || self.link_type(Side::Input, hook, view).is_none_or(is_ethernet);
        (has_header && is_asked_there).then(|| bits_from(view, 0, offset, bits)).flatten()
    }
}

#[cfg(test)]
#[path = "../interface_tests.rs"]
mod tests;
