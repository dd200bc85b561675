//! Requests and responses over TCP, with both ends in one thread.

use std::path::PathBuf;
use std::time::Duration;

use serde_json::Value;

use crate::error::{Error, Result};
use crate::topology::{Family, Lab};

/// Time for starting and stopping, beside the traffic.
const OVERHEAD: Duration = Duration::from_secs(20);

/// The load: a program that the client runs as
///
/// ```text
/// PROGRAM lab-traffic transactions --server-network FILE --server ADDRESS:PORT --bulk N
///     --latency-port N --latency N --warm-up-ms N --milliseconds N --gateway-cpu N
/// ```
///
/// Its last line is a JSON object with the fields of [`TransactionsReport`].
#[derive(Clone, Debug)]
pub struct TransactionsSpec {
    /// The program.
    pub program: PathBuf,
    /// Connections that keep 16 requests under way.
    pub bulk: u16,
    /// Connections that keep one request under way.
    pub latency: u16,
    /// Time of traffic before the time that counts.
    pub warm_up: Duration,
    /// The time that counts.
    pub time: Duration,
    /// The gateway's CPU.
    pub gateway_cpu: u32,
}

/// The result of the load.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct TransactionsReport {
    /// Time that passed, in seconds.
    pub seconds: f64,
    /// Transactions of connections that keep 16 requests under way.
    pub bulk: Transactions,
    /// Those of connections that keep one request under way.
    pub latency: Transactions,
    /// Packets that the gateway has carried.
    pub packets: f64,
    /// Time in which the gateway's CPU was not idle, in seconds.
    pub gateway_cpu_seconds: f64,
    /// Share of the passed time that the thread of both ends had its CPU.
    pub cpu_share: f64,
}

/// The transactions of one kind of connection.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Transactions {
    /// Completed transactions.
    pub count: f64,
    /// The time that half of them took at most, in microseconds.
    pub p50_us: Option<f64>,
    /// The time that 99 of 100 took at most, in microseconds.
    pub p99_us: Option<f64>,
}

impl TransactionsSpec {
    /// Port of the server for connections that keep 16 requests under way.
    pub const BULK_PORT: u16 = 5001;
    /// Port of the server for those that keep one, and for probes.
    pub const LATENCY_PORT: u16 = 5002;
}

impl TransactionsReport {
    /// Transactions a second.
    #[must_use]
    pub fn rate(&self) -> f64 {
        (self.bulk.count + self.latency.count) / self.seconds
    }

    /// CPU time of the gateway for each transaction, in seconds.
    #[must_use]
    pub fn cpu_of_transaction(&self) -> f64 {
        self.gateway_cpu_seconds / (self.bulk.count + self.latency.count)
    }

    fn read(text: &str) -> Option<Self> {
        let json: Value = serde_json::from_str(text.lines().last()?).ok()?;
        let transactions = |name: &str| {
            let of = &json[name];
            let time = |name: &str| of[name].as_f64();
            let count = of["count"].as_f64()?;
            Some(Transactions { count, p50_us: time("p50_us"), p99_us: time("p99_us") })
        };
        Some(Self {
            seconds: json["seconds"].as_f64()?,
            bulk: transactions("bulk")?,
            latency: transactions("latency")?,
            packets: json["packets"].as_f64()?,
            gateway_cpu_seconds: json["gateway_cpu_seconds"].as_f64()?,
            cpu_share: json["cpu_share"].as_f64()?,
        })
    }
}

/// Sends the load through the lab's gateway.
///
/// # Errors
/// Those of [`crate::Program::check`]; [`Error::Unexpected`] if the last line has another form.
pub fn transactions(lab: &Lab, spec: &TransactionsSpec) -> Result<TransactionsReport> {
    let program = spec.program.to_string_lossy();
    let network = format!("/proc/{}/ns/net", lab.server().resident());
    let server = format!("{}:{}", lab.server_address(Family::V4), TransactionsSpec::BULK_PORT);
    let text = lab
        .on_client(&program)
        .args(["lab-traffic", "transactions", "--server-network", &network, "--server", &server])
        .args(["--latency-port", &TransactionsSpec::LATENCY_PORT.to_string()])
        .args(["--bulk", &spec.bulk.to_string(), "--latency", &spec.latency.to_string()])
        .args(["--warm-up-ms", &spec.warm_up.as_millis().to_string()])
        .args(["--milliseconds", &spec.time.as_millis().to_string()])
        .args(["--gateway-cpu", &spec.gateway_cpu.to_string()])
        .limit(spec.warm_up + spec.time + OVERHEAD)
        .check()?;
    TransactionsReport::read(&text)
        .ok_or_else(|| Error::unexpected(&program, "report of transactions", &text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_the_last_line() {
        let text = "note\n{\"schema\":1,\"seconds\":2.0,\"bulk\":{\"count\":6,\"p50_us\":1.5,\
                    \"p99_us\":2},\"latency\":{\"count\":4,\"p50_us\":null,\"p99_us\":null},\
                    \"packets\":20,\"gateway_cpu_seconds\":0.5,\"cpu_share\":1.0}\n";
        let report = TransactionsReport::read(text).unwrap();
        assert_eq!((report.rate(), report.cpu_of_transaction()), (5.0, 0.05));
        assert_eq!((report.bulk.p50_us, report.latency.p50_us), (Some(1.5), None));
        assert_eq!(TransactionsReport::read("{}"), None);
    }
}
