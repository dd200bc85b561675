//! State sync, whatever its protocol is.

use super::peer::{Connections, Peer, Role};
use super::pfsync::Pfsync;
use super::worker_handle::Unresponsive;

/// State sync with a peer, or with several.
pub enum StateSync {
    /// With a gateway of this kind.
    Native(Box<Peer>),
    /// With gateways that speak pfsync.
    Pfsync(Box<Pfsync>),
}

impl StateSync {
    /// The part of this gateway.
    pub fn role(&self) -> Role {
        match self {
            Self::Native(peer) => peer.role(),
            Self::Pfsync(pfsync) => pfsync.role(),
        }
    }

    /// Gives this gateway another part: see [`Peer::set_role`] and [`Pfsync::set_role`].
    ///
    /// # Errors
    /// [`Unresponsive`].
    pub fn set_role(&mut self, gateway: &dyn Connections, role: Role) -> Result<(), Unresponsive> {
        match self {
            Self::Native(peer) => peer.set_role(gateway, role),
            Self::Pfsync(pfsync) => pfsync.set_role(gateway, role),
        }
    }

    /// This gateway has another ruleset: see [`Peer::set_rules`]. pfsync does not compare rules.
    pub fn set_rules(&mut self, fingerprint: Option<u128>) {
        if let Self::Native(peer) = self {
            peer.set_rules(fingerprint);
        }
    }
}
