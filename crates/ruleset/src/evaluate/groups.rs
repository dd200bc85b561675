//! The groups of interfaces, which rules may ask for.

use std::sync::Arc;

use super::routes::Side;
use super::state::RuleState;
use super::view::PacketView;

/// An interface of the gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interface {
    /// Its name, as [`name_bits`](crate::name_bits) encodes it; 0 for a name that does not fit.
    pub name: u128,
    /// Its group (ip-link(8), `group`); 0 is `default`.
    pub group: u32,
}

impl RuleState {
    /// Sets the interfaces of the gateway. One that is not among them is of the group `default`.
    pub fn set_interfaces(&mut self, interfaces: Arc<[Interface]>) {
        self.interfaces = interfaces;
    }

    /// The group of a packet's interface; `None` if there is no such interface yet.
    #[cold]
    pub(super) fn group(&self, side: Side, view: &PacketView<'_>) -> Option<u128> {
        let name = match side {
            Side::Input => view.input,
            Side::Output => view.output,
        };
        let named = self.interfaces.iter().find(|interface| interface.name == name);
        (name != 0).then(|| named.map_or(0, |interface| interface.group.into()))
    }
}
