//! Whoever keeps packets from the host that the gateway translates.

use ruleset::Forwarded;
use steer::Translated;

use crate::ports::PortLink;

/// The kernel has its own copy of each frame, and takes what is for one of its addresses for its
/// own. Somebody has to keep from it what is somebody else's. Who is told last is right.
pub trait HostGuard: std::fmt::Debug + Send + Sync {
    /// Keeps from the host what is not for it by rules that are to hold. When it returns, that is
    /// so.
    ///
    /// # Errors
    /// What people are told: then nothing is to be translated so, and the host gets what it did.
    fn keep_out(&self, from_host: &FromHost<'_>) -> Result<(), String>;

    /// The same for what holds already: it is noted, and done soon. What fails is tried again.
    /// Never waits.
    fn follow(&self, from_host: &FromHost<'_>);

    /// The interfaces of the gateway, by port, are other ones now, or are called otherwise. It is
    /// noted, and done soon. Never waits.
    fn follow_ports(&self, _ports: &[PortLink]) {}

    /// Waits until what was noted is done, or has failed for now.
    fn settle(&self) {}

    /// Why the host gets something else than it was last said to, in words for people; `None` if
    /// it does not. Never waits.
    fn trouble(&self) -> Option<String> {
        None
    }
}

/// What is kept from the host, and what is left to it.
#[derive(Clone, Copy, Debug)]
pub struct FromHost<'a> {
    /// Addresses that sources are translated to, and the ports that they get.
    pub translated: &'a Translated,
    /// Ports that rules name for them beside these: the first and the last.
    pub named_ports: &'a [(u16, u16)],
    /// Packets whose destination is translated.
    pub forwarded: &'a [Forwarded],
    /// Packets that the host gets: the kernel redirects some of them, and nothing else of them
    /// is its affair.
    pub left: &'a [Forwarded],
}
