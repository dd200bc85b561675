//! `iperf3`: throughput and loss.

use std::net::IpAddr;
use std::time::Duration;

use serde_json::Value;

use crate::error::{Error, Result};
use crate::program::Transport;
use crate::topology::{Family, Lab};

const PORT: u16 = 5201;
/// Time for connecting and for the exchange of results, beside the traffic.
const OVERHEAD: Duration = Duration::from_secs(10);

/// The result of `iperf3` over TCP.
#[derive(Clone, Debug, PartialEq)]
pub struct TcpReport {
    /// Received bits per second.
    pub bits_per_second: f64,
    /// Segments that the sender sent again.
    pub retransmits: u64,
    /// Bytes that the server received.
    pub bytes: u64,
}

/// The result of `iperf3` over UDP.
#[derive(Clone, Debug, PartialEq)]
pub struct UdpReport {
    /// Sent bits per second.
    pub bits_per_second: f64,
    /// Datagrams sent.
    pub packets: u64,
    /// Datagrams that did not arrive.
    pub lost: u64,
    /// Datagrams that arrived after one that was sent later.
    pub out_of_order: u64,
}

/// TCP from the client to the server over `streams` connections (1 to 128).
///
/// # Errors
/// Those of [`crate::Program::check`]; [`Error::Unexpected`] if the report lacks a figure.
pub fn iperf_tcp(lab: &Lab, family: Family, time: Duration, streams: u32) -> Result<TcpReport> {
    iperf_tcp_to(lab, lab.server_address(family), time, streams)
}

/// As [`iperf_tcp`], to another address of the server, such as one in a tunnel.
///
/// # Errors
/// As [`iperf_tcp`].
pub fn iperf_tcp_to(lab: &Lab, to: IpAddr, time: Duration, streams: u32) -> Result<TcpReport> {
    let report = iperf(lab, to, time, &["-P", &streams.to_string()])?;
    Ok(TcpReport {
        bits_per_second: report.float("/end/sum_received/bits_per_second")?,
        retransmits: report.integer("/end/sum_sent/retransmits")?,
        bytes: report.integer("/end/sum_received/bytes")?,
    })
}

/// UDP from the client to the server at `bits_per_second`, in datagrams of `bytes` bytes.
///
/// # Errors
/// As [`iperf_tcp`].
pub fn iperf_udp(
    lab: &Lab,
    family: Family,
    time: Duration,
    bits_per_second: u64,
    bytes: u16,
) -> Result<UdpReport> {
    let options = ["-u", "-l", &bytes.to_string(), "-b", &bits_per_second.to_string()];
    let report = iperf(lab, lab.server_address(family), time, &options)?;
    Ok(UdpReport {
        bits_per_second: report.float("/end/sum/bits_per_second")?,
        packets: report.integer("/end/sum/packets")?,
        lost: report.integer("/end/sum/lost_packets")?,
        out_of_order: report.integer("/end/streams/0/udp/out_of_order")?,
    })
}

struct Report {
    json: Value,
    text: String,
}

impl Report {
    fn float(&self, path: &str) -> Result<f64> {
        let value = self.json.pointer(path).and_then(Value::as_f64);
        value.ok_or_else(|| Error::unexpected("iperf3", path, &self.text))
    }

    fn integer(&self, path: &str) -> Result<u64> {
        let value = self.json.pointer(path).and_then(Value::as_u64);
        value.ok_or_else(|| Error::unexpected("iperf3", path, &self.text))
    }
}

fn iperf(lab: &Lab, to: IpAddr, time: Duration, options: &[&str]) -> Result<Report> {
    let port = PORT.to_string();
    let mut server = lab.on_server("iperf3").args(["-s", "-1", "-p", &port]).spawn()?;
    server.wait_for_port(Transport::Tcp, PORT)?;
    let address = to.to_string();
    let seconds = time.as_secs().max(1).to_string();
    let text = lab
        .on_client("iperf3")
        .args(["-J", "-c", &address, "-p", &port, "-t", &seconds, "--connect-timeout", "5000"])
        .args(options)
        .limit(time + OVERHEAD)
        .check()?;
    let json =
        serde_json::from_str(&text).map_err(|_| Error::unexpected("iperf3", "JSON", &text))?;
    Ok(Report { json, text })
}
