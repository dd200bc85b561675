//! `dnsmasq` and `dig`.

use std::time::Duration;

use crate::error::Result;
use crate::program::{Background, Transport};
use crate::topology::{Family, Lab};

const PORT: u16 = 53;
const LIMIT: Duration = Duration::from_secs(10);

/// A name server that knows one name.
#[derive(Debug)]
pub struct DnsServer {
    _background: Background,
}

impl DnsServer {
    /// The name that it resolves.
    pub const NAME: &str = "host.lab.example";
    /// The address of the name.
    pub const ADDRESS: &str = "192.0.2.53";
    /// Length of the text of another name, whose answer takes several fragments, in bytes.
    pub const TEXT_BYTES: usize = 3000;
    const TEXT_NAME: &str = "text.lab.example";

    /// Starts `dnsmasq` on the lab's server.
    ///
    /// # Errors
    /// Those of [`Background::wait_for`].
    pub fn start(lab: &Lab) -> Result<Self> {
        let record = format!("--host-record={},{}", Self::NAME, Self::ADDRESS);
        // A string of a TXT record has up to 255 bytes (RFC 1035 section 3.3).
        let text = vec!["t".repeat(250); Self::TEXT_BYTES / 250].join(",");
        let text = format!("--txt-record={},{text}", Self::TEXT_NAME);
        let mut background = lab
            .on_server("dnsmasq")
            // In its debug mode `dnsmasq` does not change its user, which a user namespace would
            // refuse.
            .args(["--no-daemon", "--conf-file=/dev/null", "--pid-file"])
            .args(["--no-resolv", "--no-hosts", "--edns-packet-max=4096", &record, &text])
            .spawn()?;
        background.wait_for_port(Transport::Udp, PORT)?;
        background.wait_for_port(Transport::Tcp, PORT)?;
        Ok(Self { _background: background })
    }

    /// Asks for [`DnsServer::NAME`] from the lab's client with `dig` and returns
    /// the addresses in the answer.
    ///
    /// # Errors
    /// [`crate::Error::Failed`] if no answer came.
    pub fn resolve(&self, lab: &Lab, family: Family, over: Transport) -> Result<Vec<String>> {
        let server = format!("@{}", lab.server_address(family));
        let transport = match over {
            Transport::Tcp => "+tcp",
            Transport::Udp => "+notcp",
        };
        let answer = lab
            .on_client("dig")
            .args([&server, Self::NAME, "A", transport, "+short", "+tries=2", "+time=2"])
            .limit(LIMIT)
            .check()?;
        Ok(answer.lines().map(str::to_owned).collect())
    }

    /// Asks for the long text over UDP, with room for 4096 bytes (RFC 6891), and returns its length
    /// in the answer, in bytes.
    ///
    /// # Errors
    /// [`crate::Error::Failed`] if no answer came.
    pub fn resolve_text(&self, lab: &Lab, family: Family) -> Result<usize> {
        let server = format!("@{}", lab.server_address(family));
        let answer = lab
            .on_client("dig")
            .args([&server, Self::TEXT_NAME, "TXT", "+notcp", "+ignore", "+bufsize=4096"])
            .args(["+short", "+tries=2", "+time=2"])
            .limit(LIMIT)
            .check()?;
        Ok(answer.matches('t').count())
    }
}
