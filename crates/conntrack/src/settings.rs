//! Tunables under the kernel's names.

use flow::declared::LONGEST_TIMEOUT;
use flow::{SetTunableError, Tunable, declare_tunables};

use crate::fault::Faults;
use crate::helper::{HelperSettings, Helpers, TUNABLES as HELPER_TUNABLES};
use crate::proto::Timeouts;
use crate::proto::dccp::DccpState;
use crate::proto::sctp::SctpState;
use crate::proto::tcp;
use crate::syn_proxy::SynProxySettings;

/// The tunables of tracking.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Most connections of the gateway. Tracking itself spends from a [`flow::Lease`]; the
    /// owner of the pool sets its cap from this.
    pub max_entries: u64,
    /// Most half-open connections of one source, 0 for any number; see
    /// [`Sources`](crate::Sources).
    pub half_open_per_source: u32,
    /// Largest share of one source in the ports towards one destination, percent of the sum of
    /// its own and the free ports; see [`Table::translate`](crate::Table::translate).
    pub nat_source_share: u32,
    /// Count packets and bytes of connections opened from now on.
    pub accounting: bool,
    /// Remember the start of connections opened from now on.
    pub timestamps: bool,
    /// Verify transport checksums.
    pub verify_checksums: bool,
    /// Report events if there is a listener.
    pub events: bool,
    /// Pick up DCCP connections whose opening was not seen.
    pub dccp_loose: bool,
    /// Most expectations of the gateway.
    pub expect_max: u64,
    /// The freedom of helpers.
    pub helper: HelperSettings,
    /// The helpers by port; not a tunable.
    pub helpers: Helpers,
    /// Timeouts of all protocols but TCP.
    pub timeouts: Timeouts,
    /// The TCP tracker.
    pub tcp: tcp::TcpSettings,
    /// The SYN proxy.
    pub syn_proxy: SynProxySettings,
    /// The fault that a test has planted.
    pub faults: Faults,
}

impl Settings {
    /// All tunables of tracking, including those of the protocols.
    pub fn tunables() -> impl Iterator<Item = &'static Tunable> {
        DECLARED.tunables.iter().chain(HELPER_TUNABLES).chain(tcp::TUNABLES)
    }

    /// The value of a tunable, `None` if there is none of that name.
    pub fn get(&self, name: &str) -> Option<u64> {
        DECLARED.get(self, name).or_else(|| self.helper.get(name)).or_else(|| self.tcp.get(name))
    }

    /// Changes a tunable; connections that exist keep their deadlines until their
    /// next packet.
    ///
    /// # Errors
    /// An unknown name or a value out of range; nothing is changed then.
    pub fn set(&mut self, name: &str, value: u64) -> Result<(), SetTunableError> {
        match DECLARED.set(self, name, value) {
            Err(SetTunableError::Unknown { .. }) => match self.helper.set(name, value) {
                Err(SetTunableError::Unknown { .. }) => self.tcp.set(name, value),
                other => other,
            },
            other => other,
        }
    }
}

impl Default for Settings {
    fn default() -> Self {
        let mut settings = Self {
            max_entries: 0,
            half_open_per_source: 0,
            nat_source_share: 0,
            accounting: false,
            timestamps: false,
            verify_checksums: false,
            events: false,
            dccp_loose: false,
            expect_max: 0,
            helper: HelperSettings::default(),
            helpers: Helpers::default(),
            timeouts: Timeouts::default(),
            tcp: tcp::TcpSettings::default(),
            syn_proxy: SynProxySettings::default(),
            faults: Faults::default(),
        };
        DECLARED.apply_defaults(&mut settings);
        settings
    }
}

/// Largest limit of connections that can be set.
const MOST_ENTRIES: u64 = 1 << 32;
/// Largest limit of expectations that can be set.
const MOST_EXPECTATIONS: u64 = 1 << 20;
/// Largest limit of half-open connections, of a source or of a zone, that can be set.
const MOST_HALF_OPEN: u64 = 1 << 20;

declare_tunables! {
    Settings;
    "nf_conntrack_max", Entries, 1_048_576, 1..=MOST_ENTRIES,
        "Most connections of the whole gateway. If a process may use less than 536 MiB of memory, the default is the number that fits.",
        [max_entries];
    "stateway_half_open_per_source", Entries, 0, 0..=MOST_HALF_OPEN,
        "Most connections of one source (IPv4 address or IPv6 /64) that are unanswered or in their handshake; 0: any number.",
        [half_open_per_source];
    "stateway_nat_source_share", Count, 94, 1..=100,
        "Largest share of one source (IPv4 address or IPv6 /64) in the ports towards one destination, percent of the sum of its own and the free ports; 100: any number, and no connection is evicted when ports run out.",
        [nat_source_share];
    "nf_conntrack_acct", Switch, 0, 0..=1,
        "Count packets and bytes of connections opened from now on. Rules that ask for them (`ct packets`, `ct bytes`, `ct avgpkt`) have them counted also at 0, as long as these rules are in force.",
        [accounting];
    "nf_conntrack_timestamp", Switch, 0, 0..=1,
        "Remember when connections opened from now on were opened.",
        [timestamps];
    "nf_conntrack_checksum", Switch, 1, 0..=1,
        "Verify transport checksums; packets with a wrong one are invalid.",
        [verify_checksums];
    "nf_conntrack_events", Switch, 1, 0..=1,
        "Report new, changed and ended connections to listeners.",
        [events];
    "nf_conntrack_dccp_loose", Switch, 1, 0..=1,
        "Pick up DCCP connections whose opening was not seen.",
        [dccp_loose];
    "nf_conntrack_dccp_timeout_closereq", Seconds, 64, 0..=LONGEST_TIMEOUT,
        "How long a DCCP connection with a CloseReq is kept.",
        [timeouts.dccp[DccpState::CloseReq as usize]];
    "nf_conntrack_dccp_timeout_closing", Seconds, 64, 0..=LONGEST_TIMEOUT,
        "How long a DCCP connection with a Close is kept.",
        [timeouts.dccp[DccpState::Closing as usize]];
    "nf_conntrack_dccp_timeout_open", Seconds, 43_200, 0..=LONGEST_TIMEOUT,
        "How long an idle DCCP connection is kept.",
        [timeouts.dccp[DccpState::Open as usize]];
    "nf_conntrack_dccp_timeout_partopen", Seconds, 480, 0..=LONGEST_TIMEOUT,
        "How long a DCCP connection with an acknowledged Response is kept.",
        [timeouts.dccp[DccpState::PartOpen as usize]];
    "nf_conntrack_dccp_timeout_request", Seconds, 240, 0..=LONGEST_TIMEOUT,
        "How long a DCCP connection with an unanswered Request is kept.",
        [timeouts.dccp[DccpState::Request as usize]];
    "nf_conntrack_dccp_timeout_respond", Seconds, 480, 0..=LONGEST_TIMEOUT,
        "How long a DCCP connection with an answered Request is kept.",
        [timeouts.dccp[DccpState::Respond as usize]];
    "nf_conntrack_dccp_timeout_timewait", Seconds, 240, 0..=LONGEST_TIMEOUT,
        "How long a closed DCCP connection is kept.",
        [timeouts.dccp[DccpState::TimeWait as usize]];
    "nf_conntrack_expect_max", Entries, 4096, 1..=MOST_EXPECTATIONS,
        "Most connections that are expected at a time; beyond that, the oldest of the source that has announced most gives way to other sources, and its own packets that announce one more are dropped.",
        [expect_max];
    "nf_conntrack_generic_timeout", Seconds, 600, 0..=LONGEST_TIMEOUT,
        "How long a flow of a protocol without a tracker of its own is kept.",
        [timeouts.generic];
    "nf_conntrack_gre_timeout", Seconds, 30, 0..=LONGEST_TIMEOUT,
        "How long a GRE flow with packets of one end is kept.",
        [timeouts.gre];
    "nf_conntrack_gre_timeout_stream", Seconds, 180, 0..=LONGEST_TIMEOUT,
        "How long a GRE flow with packets of both ends is kept.",
        [timeouts.gre_stream];
    "nf_conntrack_icmp_timeout", Seconds, 30, 0..=LONGEST_TIMEOUT,
        "How long an ICMP query is kept.",
        [timeouts.icmp];
    "nf_conntrack_icmpv6_timeout", Seconds, 30, 0..=LONGEST_TIMEOUT,
        "How long an ICMPv6 query is kept.",
        [timeouts.icmpv6];
    "nf_conntrack_sctp_timeout_closed", Seconds, 10, 0..=LONGEST_TIMEOUT,
        "How long an SCTP association with an unanswered INIT, or a closed one, is kept.",
        [timeouts.sctp[SctpState::Closed as usize]];
    "nf_conntrack_sctp_timeout_cookie_echoed", Seconds, 3, 0..=LONGEST_TIMEOUT,
        "How long an SCTP association with a returned cookie is kept.",
        [timeouts.sctp[SctpState::CookieEchoed as usize]];
    "nf_conntrack_sctp_timeout_cookie_wait", Seconds, 3, 0..=LONGEST_TIMEOUT,
        "How long an SCTP association with an answered INIT is kept.",
        [timeouts.sctp[SctpState::CookieWait as usize]];
    "nf_conntrack_sctp_timeout_established", Seconds, 210, 0..=LONGEST_TIMEOUT,
        "How long an idle SCTP association is kept.",
        [timeouts.sctp[SctpState::Established as usize]];
    "nf_conntrack_sctp_timeout_heartbeat_sent", Seconds, 30, 0..=LONGEST_TIMEOUT,
        "How long an SCTP path with an unanswered heartbeat is kept.",
        [timeouts.sctp[SctpState::HeartbeatSent as usize]];
    "nf_conntrack_sctp_timeout_shutdown_ack_sent", Seconds, 3, 0..=LONGEST_TIMEOUT,
        "How long an SCTP association with an answered SHUTDOWN is kept.",
        [timeouts.sctp[SctpState::ShutdownAckSent as usize]];
    "nf_conntrack_sctp_timeout_shutdown_recd", Seconds, 3, 0..=LONGEST_TIMEOUT,
        "How long an SCTP association with a SHUTDOWN to its opener is kept.",
        [timeouts.sctp[SctpState::ShutdownRecd as usize]];
    "nf_conntrack_sctp_timeout_shutdown_sent", Seconds, 3, 0..=LONGEST_TIMEOUT,
        "How long an SCTP association with a SHUTDOWN of its opener is kept.",
        [timeouts.sctp[SctpState::ShutdownSent as usize]];
    "nf_conntrack_udp_timeout", Seconds, 30, 0..=LONGEST_TIMEOUT,
        "How long a UDP or UDP-Lite flow is kept before it is a stream.",
        [timeouts.udp];
    "nf_conntrack_udp_timeout_stream", Seconds, 120, 0..=LONGEST_TIMEOUT,
        "How long a stream is kept: a UDP flow with traffic both ways for two seconds, or a UDP-Lite flow with any traffic both ways.",
        [timeouts.udp_stream];
    "stateway_pptp_timeout", Seconds, 600, 0..=LONGEST_TIMEOUT,
        "How long a call that PPTP has announced is kept with packets of one end.",
        [timeouts.call];
    "stateway_pptp_timeout_stream", Seconds, 18_000, 0..=LONGEST_TIMEOUT,
        "How long a call that PPTP has announced is kept with packets of both ends.",
        [timeouts.call_stream];
    "stateway_syn_proxy_half_open", Entries, 0, 0..=MOST_HALF_OPEN,
        "Number of half-open TCP connections of a zone from which on the gateway answers SYNs itself, with cookies; 1: always, 0: never.",
        [syn_proxy.half_open];
    "stateway_syn_proxy_mss", Bytes, 1460, 536..=65_495,
        "Largest TCP segment that the SYN proxy promises in the name of a server over IPv4; over IPv6 20 less.",
        [syn_proxy.segment_size];
    "stateway_syn_proxy_timestamps", Switch, 1, 0..=1,
        "Have the SYN proxy promise timestamps, and with them window scale, SACK and ECN; switch it off if servers do not use timestamps.",
        [syn_proxy.timestamps];
    "stateway_syn_proxy_wscale", Count, 7, 0..=14,
        "Scale of the windows that the SYN proxy promises in the name of a server; the windows are converted to it.",
        [syn_proxy.window_scale];
}

#[cfg(test)]
#[path = "settings_tests.rs"]
mod tests;
