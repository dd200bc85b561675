//! Whoever keeps packets from the host that the gateway translates.

use ruleset::Forwarded;
use steer::Translated;

/// The kernel has its own copy of each frame, and takes what is for one of its addresses for its
/// own. Somebody has to keep from it what is somebody else's.
pub trait HostGuard: std::fmt::Debug + Send + Sync {
    /// Keeps replies to these addresses, and these packets, from the host, and lets it have those
    /// that are `left` to it: the kernel redirects some of them, and nothing else of them is its
    /// affair. When it returns, that is so.
    ///
    /// # Errors
    /// What people are told: then nothing is to be translated so.
    fn keep_out(
        &self,
        translated: &Translated,
        forwarded: &[Forwarded],
        left: &[Forwarded],
    ) -> Result<(), String>;
}
