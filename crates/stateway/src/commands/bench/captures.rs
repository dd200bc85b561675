//! `stateway bench replay`: captures that are read, judged and written, beside tcpdump, which reads
//! and writes them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, ensure};
use bench::{Machine, Spread};
use netio::capture::{CaptureWriter, CapturedPacket};
use serde_json::{Value, json};
use wire::TcpFlags;
use wire::build::{PacketBuilder, Tcp};

use super::spinner;
use crate::print::{Align, Output, Table};

/// Its name on the command line.
pub const NAME: &str = "replay";
/// Connections of a capture.
const CONNECTIONS: u16 = 4096;
/// Its bytes, and those of a quick run.
const BYTES: [u64; 2] = [300 << 20, 20 << 20];
/// Times that each program reads it, and those of a quick run.
const ROUNDS: [usize; 2] = [5, 1];

/// Kinds of captures: the payloads that servers send in turn. Clients acknowledge each.
const KINDS: [(&str, &[usize]); 3] = [
    ("downloads: segments of 1460 bytes, each acknowledged", &[1460]),
    ("mixed: segments of 100 to 1460 bytes, each acknowledged", &[1460, 500, 100, 536]),
    ("small: segments of 4 bytes, each acknowledged", &[4]),
];

/// The programs that read a capture.
const PROGRAMS: [&str; 3] =
    ["tcpdump -r IN -w OUT", "stateway replay IN", "stateway replay IN -w OUT"];

/// Files that go when the benchmark ends.
struct Files(PathBuf);

impl Drop for Files {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

pub fn run(quick: bool, json: bool, out: &mut Output) -> anyhow::Result<()> {
    let here = std::env::temp_dir().join(format!("stateway-bench-{}", std::process::id()));
    fs::create_dir(&here).with_context(|| format!("creating {}", here.display()))?;
    let files = Files(here);
    let machine = Machine::here();
    out.line(&machine)?;
    let mut kinds = Vec::new();
    for (title, payloads) in KINDS {
        let spinner = spinner(title);
        let kind = measure(&files, payloads, usize::from(quick))?;
        spinner.finish_and_clear();
        out.line("")?;
        out.title(title)?;
        out.line(format_args!(
            "{} packets of {} bytes on average",
            kind.packets,
            kind.bytes / kind.packets
        ))?;
        kind.table().print(out)?;
        out.flush()?;
        kinds.push(kind.to_json(title));
    }
    let object = json!({ "schema": control::SCHEMA, "machine": machine, "captures": kinds });
    if json { out.json(&object) } else { Ok(()) }
}

/// The results of all programs with a capture.
struct Kind {
    packets: u64,
    bytes: u64,
    /// Seconds of each program.
    seconds: [Spread; PROGRAMS.len()],
}

fn measure(files: &Files, payloads: &[usize], quick: usize) -> anyhow::Result<Kind> {
    let [input, output] = ["in.pcap", "out.pcap"].map(|name| files.0.join(name));
    let (packets, bytes) = write(&input, payloads, BYTES[quick])?;
    let own = std::env::current_exe().context("the path of this program is unknown")?;
    let mut seconds: [Vec<f64>; PROGRAMS.len()] = Default::default();
    // The first round brings the capture into memory.
    for round in 0..=ROUNDS[quick] {
        for (program, seconds) in seconds.iter_mut().enumerate() {
            let mut command = match program {
                0 => Command::new("tcpdump"),
                _ => Command::new(&own),
            };
            match program {
                0 => command.arg("-r").arg(&input).arg("-w").arg(&output),
                1 => command.arg("replay").arg(&input),
                _ => command.arg("replay").arg(&input).arg("-w").arg(&output),
            };
            let begun = Instant::now();
            let ended = command.stdout(Stdio::null()).stderr(Stdio::null()).status();
            let ended = ended.with_context(|| format!("running {}", PROGRAMS[program]))?;
            ensure!(ended.success(), "{} has failed: {ended}", PROGRAMS[program]);
            if round > 0 {
                seconds.push(begun.elapsed().as_secs_f64());
            }
        }
    }
    Ok(Kind { packets, bytes, seconds: seconds.map(Spread::of) })
}

impl Kind {
    /// How fast a program is beside tcpdump.
    fn ratio(&self, program: usize) -> f64 {
        self.seconds[0].median / self.seconds[program].median
    }

    fn table(&self) -> Table {
        let mut table = Table::new(&[
            ("program", Align::Left),
            ("Mpackets/s", Align::Right),
            ("lowest", Align::Right),
            ("highest", Align::Right),
            ("MB/s", Align::Right),
            ("beside tcpdump", Align::Right),
        ]);
        for (program, seconds) in self.seconds.iter().enumerate() {
            let rate = |seconds: f64| format!("{:.2}", self.packets as f64 / seconds / 1e6);
            table.row([
                PROGRAMS[program].to_owned(),
                rate(seconds.median),
                rate(seconds.max),
                rate(seconds.min),
                format!("{:.0}", self.bytes as f64 / seconds.median / 1e6),
                format!("{:.2}", self.ratio(program)),
            ]);
        }
        table
    }

    fn to_json(&self, title: &str) -> Value {
        let program = |program: usize| {
            let (name, seconds) = (PROGRAMS[program], self.seconds[program]);
            json!({ "program": name, "seconds": seconds, "beside_tcpdump": self.ratio(program) })
        };
        let programs: Vec<_> = (0..PROGRAMS.len()).map(program).collect();
        let (packets, bytes) = (self.packets, self.bytes);
        json!({ "capture": title, "packets": packets, "bytes": bytes, "programs": programs })
    }
}

/// Writes a capture of about so many bytes. Returns its packets, and their bytes.
fn write(path: &Path, payloads: &[usize], limit: u64) -> anyhow::Result<(u64, u64)> {
    let mut writer = CaptureWriter::create_for_captured(path)?;
    let (mut packets, mut bytes, mut frame) = (0, 0, Vec::new());
    let mut add = |connection: u16, is_reply: bool, tcp: Tcp<'_>, payload: &[u8]| {
        let [high, low] = connection.to_be_bytes();
        let (client, server) = ([198, 18, high, low], [198, 19, 0, low & 63]);
        let (from, to) = if is_reply { (server, client) } else { (client, server) };
        let (source_port, destination_port) =
            if is_reply { (443, 1024 + connection) } else { (1024 + connection, 443) };
        frame.clear();
        let tcp = Tcp { source_port, destination_port, window: 60_000, ..tcp };
        PacketBuilder::v4(from, to).tcp(&tcp, payload, &mut frame);
        let (link_type, interface, original_length) = (1, "", frame.len() as u32);
        let timestamp = 1_700_000_000_000_000_000 + packets * 7000;
        packets += 1;
        bytes += frame.len() as u64;
        let packet =
            CapturedPacket { bytes: &frame, link_type, interface, timestamp, original_length };
        writer.write_captured(&packet, "").map(|()| bytes)
    };
    let segment =
        |flags, sequence, acknowledgment| Tcp { flags, sequence, acknowledgment, ..Tcp::default() };
    for connection in 0..CONNECTIONS {
        add(connection, false, segment(TcpFlags::SYN, 0, 0), &[])?;
        add(connection, true, segment(TcpFlags::SYN.with(TcpFlags::ACK), 0, 1), &[])?;
        add(connection, false, segment(TcpFlags::ACK, 1, 1), &[])?;
    }
    let (mut said, load) = (vec![1_u32; CONNECTIONS.into()], [0x5a; 1460]);
    let mut number = 0_u32;
    loop {
        // Every connection has its turn, and neighbours in time are none in the table.
        let connection = (number.wrapping_mul(0x9e37_79b1) >> 20) as u16 % CONNECTIONS;
        let payload = &load[..payloads[number as usize % payloads.len()]];
        let said = &mut said[usize::from(connection)];
        add(connection, true, segment(TcpFlags::ACK, *said, 1), payload)?;
        *said = said.wrapping_add(payload.len() as u32);
        if add(connection, false, segment(TcpFlags::ACK, 1, *said), &[])? > limit {
            break;
        }
        number += 1;
    }
    writer.finish()?;
    Ok((packets, bytes))
}
