//! Bulk frames at a fixed rate, and probes among them whose delay counts from the time at which they
//! ought to leave.

use std::path::PathBuf;
use std::time::Duration;

use serde_json::Value;

use crate::error::{Error, Result};
use crate::topology::{Family, Lab};
use crate::transactions::TransactionsSpec;

/// Time for starting and stopping, beside the traffic.
const OVERHEAD: Duration = Duration::from_secs(20);

/// The load, whose probes go to [`TransactionsSpec::LATENCY_PORT`]: a program that the client runs as
///
/// ```text
/// PROGRAM lab-traffic open-loop --interface eth0 --destination-mac MAC --source ADDRESS
///     --sink ADDRESS --server-network FILE --server ADDRESS:PORT --rate N --probes N
///     --warm-up-ms N --milliseconds N
/// ```
///
/// Its last line is a JSON object with the fields of [`OpenLoopReport`]. The server drops bulk frames
/// without an answer, and its interface counts them.
#[derive(Clone, Debug)]
pub struct OpenLoopSpec {
    /// The program.
    pub program: PathBuf,
    /// Bulk frames a second, 60 bytes each.
    pub rate: u32,
    /// Probes a second.
    pub probes: u32,
    /// Time of traffic before the time that counts.
    pub warm_up: Duration,
    /// The time that counts.
    pub time: Duration,
}

/// The result of the load.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct OpenLoopReport {
    /// Time that passed, in seconds.
    pub seconds: f64,
    /// Bulk frames that were sent.
    pub sent: f64,
    /// Frames that reached the server's interface, without probes.
    pub delivered: f64,
    /// Probes that were sent.
    pub probes_sent: f64,
    /// Probes that arrived.
    pub probes_received: f64,
    /// The delay of half of the probes that arrived, at most, in microseconds.
    pub p50_us: Option<f64>,
    /// The delay of 99 of 100 of them, at most, in microseconds.
    pub p99_us: Option<f64>,
    /// Share of the passed time that the thread of both ends had its CPU.
    pub cpu_share: f64,
}

impl OpenLoopReport {
    /// Bulk frames that were sent a second.
    #[must_use]
    pub fn offered(&self) -> f64 {
        self.sent / self.seconds
    }

    /// Bulk frames that arrived a second.
    #[must_use]
    pub fn carried(&self) -> f64 {
        self.delivered / self.seconds
    }

    /// The part of the probes that did not arrive.
    #[must_use]
    pub fn probe_loss(&self) -> f64 {
        1.0 - self.probes_received / self.probes_sent.max(1.0)
    }

    fn read(text: &str) -> Option<Self> {
        let json: Value = serde_json::from_str(text.lines().last()?).ok()?;
        let number = |name: &str| json[name].as_f64();
        Some(Self {
            seconds: number("seconds").filter(|it| *it > 0.0)?,
            sent: number("sent")?,
            delivered: number("delivered")?,
            probes_sent: number("probes_sent")?,
            probes_received: number("probes_received")?,
            p50_us: number("p50_us"),
            p99_us: number("p99_us"),
            cpu_share: number("cpu_share")?,
        })
    }
}

/// Sends the load through the lab's gateway.
///
/// # Errors
/// Those of [`crate::Program::check`]; [`Error::Unexpected`] if the last line has another form.
pub fn open_loop(lab: &Lab, spec: &OpenLoopSpec) -> Result<OpenLoopReport> {
    let program = spec.program.to_string_lossy();
    let network = format!("/proc/{}/ns/net", lab.server().resident());
    let server = format!("{}:{}", lab.server_address(Family::V4), TransactionsSpec::LATENCY_PORT);
    let mac = lab.next_hop_mac().map(|octet| format!("{octet:02x}")).join(":");
    let text = lab
        .on_client(&program)
        .args(["lab-traffic", "open-loop", "--interface", "eth0", "--destination-mac", &mac])
        .args(["--source", &lab.client_address(Family::V4).to_string(), "--sink", Lab::SINK])
        .args(["--server-network", &network, "--server", &server])
        .args(["--rate", &spec.rate.to_string(), "--probes", &spec.probes.to_string()])
        .args(["--warm-up-ms", &spec.warm_up.as_millis().to_string()])
        .args(["--milliseconds", &spec.time.as_millis().to_string()])
        .limit(spec.warm_up + spec.time + OVERHEAD)
        .check()?;
    OpenLoopReport::read(&text)
        .ok_or_else(|| Error::unexpected(&program, "report of an open loop", &text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_the_last_line() {
        let text = "note\n{\"schema\":1,\"seconds\":2.0,\"sent\":600,\"delivered\":500,\
                    \"probes_sent\":10,\"probes_received\":9,\"p50_us\":1.5,\"p99_us\":null,\
                    \"cpu_share\":1.0}\n";
        let report = OpenLoopReport::read(text).unwrap();
        assert_eq!((report.offered(), report.carried()), (300.0, 250.0));
        assert_eq!((report.p50_us, report.p99_us), (Some(1.5), None));
        assert!((report.probe_loss() - 0.1).abs() < 1e-9);
        assert_eq!(OpenLoopReport::read("{\"seconds\":0}"), None);
    }
}
