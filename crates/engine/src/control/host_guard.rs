//! The interface of the host guard, which keeps translated packets from the host.

use ruleset::Forwarded;
use steer::AddressSet;

use crate::control::ports::PortLink;
use crate::path::host_questions::{HostPart, ToHost};

/// Keeps translated packets from the host. The kernel has its own copy of each frame, and takes
/// packets for one of its addresses for its own, even if the gateway translates them for another
/// host. Of several calls the last one holds.
pub trait HostGuard: std::fmt::Debug + Send + Sync {
    /// Keeps packets from the host before rules take effect. They are kept from it when this
    /// returns.
    ///
    /// # Errors
    /// A text for people. The rules must not take effect then, and the host gets the same packets
    /// as before.
    fn keep_out(&self, from_host: &FromHost<'_>) -> Result<(), String>;

    /// Keeps packets from the host by rules that are in effect. It only notes this and carries it
    /// out soon; if it fails it tries again. It never waits.
    fn follow(&self, from_host: &FromHost<'_>);

    /// Takes over other interfaces or names of the ports. It only notes them and carries this out
    /// soon. It never waits.
    fn follow_ports(&self, _ports: &[PortLink]) {}

    /// Waits until everything that was noted is carried out, or has failed for now.
    fn wait_until_applied(&self) {}

    /// The part that the host has in a packet. If it has none, the gateway refuses the packet in the
    /// host's name. It may wait for the kernel.
    fn part_of_host(&self, _packet: &ToHost) -> HostPart {
        HostPart::Destination
    }

    /// The reason why the host gets other packets than it was last told, in words for people;
    /// `None` if it gets the right ones. It never waits.
    fn trouble(&self) -> Option<String> {
        None
    }
}

/// The packets that are kept from the host, and those that are left to it.
#[derive(Clone, Copy, Debug)]
pub struct FromHost<'a> {
    /// Addresses that sources are translated to.
    pub translated: &'a AddressSet,
    /// The gateway may take a connection to any port: helpers expect connections, or rules translate
    /// packets that can not be described.
    pub expects: bool,
    /// Packets whose destination is translated.
    pub forwarded: &'a [Forwarded],
    /// Packets that the host gets. The kernel redirects some of them.
    pub left: &'a [Forwarded],
}
