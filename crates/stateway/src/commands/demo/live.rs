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
/// Threads of iperf3 that are busy throughout: its client and its server.
const BUSY_PROGRAMS: usize = 2;
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
    notes.extend(note_on_cpus(std::thread::available_parallelism()?.get()));
    let last = status(gateway)?;
    let samples = recorder.finish();
    let title = "client - stateway - server: three namespaces, real programs".to_owned();
    Ok(Run { title, samples, notes, last })
}

/// The reason why a second worker may carry less than one, on a machine with so many CPUs.
fn note_on_cpus(cpus: usize) -> Option<String> {
    let most_workers = WORKERS.into_iter().max().unwrap_or(1);
    (cpus < most_workers + BUSY_PROGRAMS).then(|| {
        format!(
            "{cpus} CPUs have to do for {most_workers} workers and for both ends of iperf3, so a \
             second worker takes its time from the programs that it works for and may carry less \
             than one; a gateway whose clients run elsewhere gains \
             (`stateway bench steer` shows by how much)"
        )
    })
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
