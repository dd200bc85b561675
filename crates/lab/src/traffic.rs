//! Packet rates: a generator at the client, and counters of the kernel at the server.

use std::path::PathBuf;
use std::time::Duration;

use serde_json::Value;

use crate::error::{Error, Result};
use crate::namespace::Namespace;
use crate::topology::{Family, Lab};

/// Time for starting and stopping, beside the traffic.
const OVERHEAD: Duration = Duration::from_secs(10);

/// The generator: a program that the client runs as
///
/// ```text
/// PROGRAM lab-generate --interface eth0 --destination-mac MAC
///     --source 192.0.2.1 --destination 203.0.113.1 --flows N --frame-bytes N --seconds N --json
/// ```
///
/// It sends UDP frames of `frame-bytes` (with Ethernet header, without frame check sequence) as
/// fast as the interface takes them, to destination port 9 (discard, RFC 863). Source ports go
/// round over `flows` ports from 1024 up. Its last line is `{"schema": 1, "sent": frames,
/// "seconds": taken}`, where `sent` counts the frames that the kernel accepted.
#[derive(Clone, Debug)]
pub struct GeneratorSpec {
    /// The program.
    pub program: PathBuf,
    /// Number of flows (1 to 64512).
    pub flows: u32,
    /// Length of a frame in bytes, without frame check sequence (60 to 1514).
    pub frame_bytes: u32,
    /// Time of sending.
    pub time: Duration,
}

/// Frames that went in and came out.
#[derive(Clone, Debug, PartialEq)]
pub struct RateReport {
    /// Frames that the generator sent.
    pub sent: u64,
    /// Frames that the server's interface received.
    pub received: u64,
    /// Time of sending, in seconds.
    pub seconds: f64,
}

impl GeneratorSpec {
    /// 60-byte frames over 1024 flows for 3 s: the load of the kernel's reference figures.
    #[must_use]
    pub fn new(program: PathBuf) -> Self {
        Self { program, flows: 1024, frame_bytes: 60, time: Duration::from_secs(3) }
    }
}

impl RateReport {
    /// Frames per second that the gateway delivered.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "a rate needs no 53 bits")]
    pub fn delivered_per_second(&self) -> f64 {
        self.received as f64 / self.seconds
    }
}

/// Sends through the lab's gateway to an address that the server drops without an answer, and
/// counts the frames.
///
/// # Errors
/// [`Error::Unavailable`] if the program has no `lab-generate`; those of [`crate::Program::check`];
/// [`Error::Unexpected`] if its last line has another form.
pub fn packet_rate(lab: &Lab, spec: &GeneratorSpec) -> Result<RateReport> {
    let program = spec.program.to_string_lossy();
    if lab.client().program(&program).args(["lab-generate", "--help"]).run()?.code != Some(0) {
        return Err(Error::Unavailable { why: format!("{program} has no command `lab-generate`") });
    }
    let mac = next_hop_mac(lab)?;
    let before = received(lab.server())?;
    let text = lab
        .on_client(&program)
        .args(["lab-generate", "--interface", "eth0", "--destination-mac", &mac])
        .args(["--source", &lab.client_address(Family::V4).to_string()])
        .args(["--destination", Lab::SINK])
        .args(["--flows", &spec.flows.to_string()])
        .args(["--frame-bytes", &spec.frame_bytes.to_string()])
        .args(["--seconds", &spec.time.as_secs().to_string(), "--json"])
        .limit(spec.time + OVERHEAD)
        .check()?;
    let received = received(lab.server())? - before;
    let report = |text: &str| {
        let json: Value = serde_json::from_str(text.lines().last()?).ok()?;
        Some((json.get("sent")?.as_u64()?, json.get("seconds")?.as_f64()?))
    };
    let (sent, seconds) = report(&text)
        .filter(|(_, seconds)| *seconds > 0.0)
        .ok_or_else(|| Error::unexpected(&program, "`sent` and `seconds`", &text))?;
    Ok(RateReport { sent, received, seconds })
}

/// Asks the client's kernel, after a packet to the sink, for the neighbour on its route.
fn next_hop_mac(lab: &Lab) -> Result<String> {
    let text = lab.client().program("ip").args(["-j", "route", "get", Lab::SINK]).check()?;
    let gateway =
        field(&text, "/0/gateway").ok_or_else(|| Error::unexpected("ip", "gateway", &text))?;
    // The answer does not matter; only the neighbour entry does.
    lab.client().program("ping").args(["-n", "-c", "1", "-W", "1", &gateway]).run()?;
    let text = lab.client().program("ip").args(["-j", "neigh", "show", &gateway]).check()?;
    field(&text, "/0/lladdr").ok_or_else(|| Error::unexpected("ip", "neighbour", &text))
}

fn field(json: &str, path: &str) -> Option<String> {
    let json: Value = serde_json::from_str(json).ok()?;
    json.pointer(path)?.as_str().map(str::to_owned)
}

fn received(server: &Namespace) -> Result<u64> {
    let text = server.program("ip").args(["-s", "-j", "link", "show", "eth0"]).check()?;
    let json: Option<Value> = serde_json::from_str(&text).ok();
    let count = json.as_ref().and_then(|json| json.pointer("/0/stats64/rx/packets")?.as_u64());
    count.ok_or_else(|| Error::unexpected("ip", "received packets", &text))
}
