//! The demo in a lab: namespaces, cables, real programs.

use std::time::Duration;

use anyhow::Context;
use control::schema::Status;
use lab::{Family, Gateway, HttpServer, Lab, Placement, Stateway, StatewaySpec, iperf_tcp, ping};

use super::progress::Recorder;
use super::{Run, WORKERS};

/// Connections that carry the bulk traffic.
const STREAMS: u32 = 4;
/// Bytes of the file that is fetched.
const FILE_BYTES: usize = 4 << 20;
/// Start and end of a transfer are not sampled for so long.
const EDGE: Duration = Duration::from_millis(500);

/// True when the machine lacks something that a lab needs, or does not allow it.
pub fn is_unavailable(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(lab::Error::Unavailable { .. }))
}

/// Builds the lab, sends traffic for `phase` with each number of workers, and removes the lab.
pub fn run(phase: Duration) -> anyhow::Result<Run> {
    let binary = std::env::current_exe().context("the path of this program is unknown")?;
    let mut recorder = Recorder::new(phase * WORKERS.len() as u32);
    recorder.say("building the lab: client - stateway - server");
    let spec = StatewaySpec::new(binary, WORKERS[0] as u32);
    let lab = Lab::new(Gateway::Stateway(spec), Placement::free())?;
    let gateway = lab.stateway().context("the lab has no gateway")?;

    recorder.say("ping and curl");
    let mut notes = first_contact(&lab)?;
    for workers in WORKERS {
        let wanted = workers.to_string();
        gateway.command(&["steer", "set", "--workers", &wanted]).check()?;
        let transfer = std::thread::scope(|scope| -> anyhow::Result<_> {
            let transfer = scope.spawn(|| iperf_tcp(&lab, Family::V4, phase, STREAMS));
            std::thread::sleep(EDGE);
            recorder.record(phase.saturating_sub(2 * EDGE), || status(gateway))?;
            transfer
                .join()
                .map_err(|_| anyhow::anyhow!("iperf3 could not be watched"))?
                .map_err(anyhow::Error::from)
        })?;
        notes.push(format!(
            "iperf3, {STREAMS} TCP connections, {workers} worker{}: {:.2} Gbit/s, {} retransmits",
            if workers == 1 { "" } else { "s" },
            transfer.bits_per_second / 1e9,
            transfer.retransmits
        ));
    }
    let last = status(gateway)?;
    let samples = recorder.finish();
    let title = "client - stateway - server: three namespaces, real programs".to_owned();
    Ok(Run { title, samples, notes, last })
}

fn first_contact(lab: &Lab) -> anyhow::Result<Vec<String>> {
    let mut notes = Vec::new();
    for (family, name) in [(Family::V4, "IPv4"), (Family::V6, "IPv6")] {
        let to = lab.server_address(family);
        let report = ping(lab.on_client("ping"), to, 3)?;
        notes.push(format!(
            "ping over {name}: {} of {} answered in {:.2} ms",
            report.received,
            report.sent,
            report.mean_ms.unwrap_or_default()
        ));
    }
    let server = HttpServer::start(lab, FILE_BYTES)?;
    let download = server.download(lab, Family::V4)?;
    anyhow::ensure!(download.intact, "curl received other bytes than the server sent");
    notes.push(format!("curl: {} MiB, the checksum is the server's", FILE_BYTES >> 20));
    Ok(notes)
}

fn status(gateway: &Stateway) -> anyhow::Result<Status> {
    Ok(serde_json::from_value(gateway.query(&["status"])?)?)
}
