//! The freedom that an operator gives helpers.

use flow::{SetTunableError, Tunable, declare_tunables};

/// The tunables of helpers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HelperSettings {
    /// Accept announcements on TCP connections whose opening was not seen.
    pub expect_picked_up: bool,
    /// Expect connections to ports below 1024.
    pub expect_privileged: bool,
    /// Accept announcements of hosts other than the ends of the connection.
    pub expect_third_parties: bool,
    /// Accept FTP addresses other than the sender's.
    pub ftp_loose: bool,
    /// Expect media of SIP calls only from the other end of the signalling, and only to its
    /// sender.
    pub sip_direct_media: bool,
    /// Expect calls to a registered host only from its registrar.
    pub sip_direct_signalling: bool,
}

impl HelperSettings {
    /// The value of a tunable, `None` if there is none of that name.
    pub fn get(&self, name: &str) -> Option<u64> {
        DECLARED.get(self, name)
    }

    /// Changes a tunable.
    ///
    /// # Errors
    /// An unknown name or a value out of range; nothing is changed then.
    pub fn set(&mut self, name: &str, value: u64) -> Result<(), SetTunableError> {
        DECLARED.set(self, name, value)
    }
}

impl Default for HelperSettings {
    fn default() -> Self {
        let mut settings = Self {
            expect_picked_up: false,
            expect_privileged: false,
            expect_third_parties: false,
            ftp_loose: false,
            sip_direct_media: false,
            sip_direct_signalling: false,
        };
        DECLARED.apply_defaults(&mut settings);
        settings
    }
}

/// The tunables of helpers.
pub const TUNABLES: &[Tunable] = DECLARED.tunables;

declare_tunables! {
    HelperSettings;
    "nf_conntrack_ftp_loose", Switch, 0, 0..=1,
        "Expect FTP data connections also at addresses that are not those of the control connection.",
        [ftp_loose];
    "nf_conntrack_sip_direct_media", Switch, 1, 0..=1,
        "Expect the media of SIP calls only between the two ends of the signalling.",
        [sip_direct_media];
    "nf_conntrack_sip_direct_signalling", Switch, 1, 0..=1,
        "Expect calls to a host that has registered by SIP only from its registrar.",
        [sip_direct_signalling];
    "stateway_expect_picked_up", Switch, 0, 0..=1,
        "Accept all announcements on TCP connections whose opening was not seen.",
        [expect_picked_up];
    "stateway_expect_privileged_ports", Switch, 0, 0..=1,
        "Accept announcements of connections to ports below 1024.",
        [expect_privileged];
    "stateway_expect_third_parties", Switch, 0, 0..=1,
        "Accept announcements of connections to hosts other than the announcing end, such as those that an H.323 gatekeeper names.",
        [expect_third_parties];
}
