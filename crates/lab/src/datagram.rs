//! Datagrams at the end points: frames of a capture, recordings of arrivals, and numbered datagrams
//! that are verified.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;

use crate::capture::Capture;
use crate::clients::path::ping;
use crate::error::{Error, Result};
use crate::program::{Background, Transport};
use crate::topology::{Family, Lab};

/// The datagram that announces the end of a recording.
pub const END: &[u8] = b"end of the recording";
/// Time for starting and stopping, beside the traffic.
const OVERHEAD: Duration = Duration::from_secs(10);

/// A digest of a datagram, for comparing sent with received ones (FNV-1a, 64 bits). It does not
/// protect against forgery.
#[must_use]
pub fn digest(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |digest, byte| {
        (digest ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// The end points of datagrams: a program that runs as `PROGRAM lab-traffic`.
#[derive(Clone, Debug)]
pub struct Datagrams {
    program: PathBuf,
}

/// A recording in progress.
#[derive(Debug)]
pub struct Recorder {
    background: Background,
}

/// A capture that is being sent.
#[derive(Debug)]
pub struct Sending {
    background: Background,
    frames: u64,
}

/// A datagram that arrived.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Arrival {
    /// Its source address.
    pub source: String,
    /// Its source port.
    pub port: u16,
    /// Its length without the UDP header, in bytes.
    pub length: usize,
    /// Its [`digest`].
    pub digest: u64,
}

/// Numbered datagrams from the client to the server.
#[derive(Clone, Copy, Debug)]
pub struct NumberedSpec {
    /// IPv4 or IPv6.
    pub family: Family,
    /// Length of a datagram without the UDP header (16 to 65507), in bytes.
    pub bytes: u16,
    /// Time of sending.
    pub time: Duration,
    /// The largest number of datagrams per second; `None`: as many as are acknowledged.
    pub rate: Option<u32>,
}

/// The result of numbered datagrams.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NumberedReport {
    /// Datagrams sent.
    pub sent: u64,
    /// Different datagrams that arrived, each byte as sent.
    pub received: u64,
    /// Datagrams that arrived and were never sent.
    pub corrupt: u64,
    /// Datagrams that arrived again.
    pub duplicates: u64,
    /// Time of sending, including the wait for the last acknowledgement, in seconds.
    pub seconds: f64,
    /// Payload that arrived, bits per second.
    pub bits_per_second: f64,
}

impl Datagrams {
    /// Takes the program (`stateway`) that the end points run. The end points learn each other's
    /// hardware addresses, because fragments that wait for one are lost.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if the program has no command `lab-traffic`.
    pub fn new(lab: &Lab, program: &Path) -> Result<Self> {
        let name = program.to_string_lossy();
        if lab.client().program(&name).args(["lab-traffic", "--help"]).run()?.code != Some(0) {
            return Err(Error::Unavailable { why: format!("{name} has no command `lab-traffic`") });
        }
        for family in [Family::V4, Family::V6] {
            ping(lab.on_client("ping"), lab.server_address(family), 1)?;
        }
        Ok(Self { program: program.to_path_buf() })
    }

    /// Begins to send the frames of a capture from the client, each at its time.
    ///
    /// # Errors
    /// [`Error::Io`] if the capture does not fit into the client's scratch directory.
    pub fn start_sending(&self, lab: &Lab, capture: &Capture) -> Result<Sending> {
        let file = lab.client().write_file("traffic", capture.bytes())?;
        let background = lab
            .on_client(&self.program.to_string_lossy())
            .args(["lab-traffic", "send", &file, "--interface", "eth0"])
            .spawn()?;
        Ok(Sending { background, frames: capture.frames() })
    }

    /// Begins to record the datagrams that arrive at a port of the server.
    ///
    /// # Errors
    /// Those of [`Background::wait_for`].
    pub fn start_recording(&self, lab: &Lab, port: u16) -> Result<Recorder> {
        let mut background = lab
            .on_server(&self.program.to_string_lossy())
            .args(["lab-traffic", "record", "--port", &port.to_string()])
            .spawn()?;
        background.wait_for_port(Transport::Udp, port)?;
        Ok(Recorder { background })
    }

    /// Sends numbered datagrams from the client to the server and verifies them there.
    ///
    /// # Errors
    /// Those of [`crate::Program::check`]; [`Error::NotReady`] if the server's program never
    /// received the end.
    pub fn numbered(&self, lab: &Lab, spec: &NumberedSpec) -> Result<NumberedReport> {
        const PORT: u16 = 7007;
        let program = self.program.to_string_lossy();
        let mut sink = lab
            .on_server(&program)
            .args(["lab-traffic", "sink", "--port", &PORT.to_string()])
            .spawn()?;
        sink.wait_for_port(Transport::Udp, PORT)?;
        let to = std::net::SocketAddr::new(lab.server_address(spec.family), PORT);
        let mut source = lab
            .on_client(&program)
            .args(["lab-traffic", "source", "--to", &to.to_string()])
            .args(["--bytes", &spec.bytes.to_string()])
            .args(["--milliseconds", &spec.time.as_millis().to_string()])
            .limit(spec.time + OVERHEAD);
        if let Some(rate) = spec.rate {
            source = source.args(["--rate", &rate.to_string()]);
        }
        let source = last_line(&source.check()?)?;
        let sink = last_line(&sink.finish()?.stdout)?;
        let count = |report: &Value, key: &str| {
            let count = report.get(key).and_then(Value::as_u64);
            count.ok_or_else(|| Error::unexpected(&program, key, &report.to_string()))
        };
        let seconds = source.get("seconds").and_then(Value::as_f64).unwrap_or(f64::NAN);
        let received = count(&sink, "received")?;
        Ok(NumberedReport {
            sent: count(&source, "sent")?,
            received,
            corrupt: count(&sink, "corrupt")?,
            duplicates: count(&sink, "duplicates")?,
            seconds,
            bits_per_second: received as f64 * f64::from(spec.bytes) * 8.0 / seconds,
        })
    }
}

impl Sending {
    /// Waits until the whole capture was sent.
    ///
    /// # Errors
    /// [`Error::NotReady`] if that takes longer than 10 s; [`Error::Unexpected`] if the interface
    /// did not take every frame.
    pub fn finish(self) -> Result<()> {
        let text = self.background.finish()?.stdout;
        let report = last_line(&text)?;
        let sent = report.get("sent").and_then(Value::as_u64);
        if sent == Some(self.frames) {
            return Ok(());
        }
        let what = format!("`sent` of all {} frames", self.frames);
        Err(Error::unexpected("lab-traffic send", &what, &text))
    }
}

impl Recorder {
    /// Waits for the end, which [`END`] announces.
    ///
    /// # Errors
    /// [`Error::NotReady`] if it does not come, [`Error::Unexpected`] for output that is
    /// not a recording.
    pub fn finish(self) -> Result<Vec<Arrival>> {
        let text = self.background.finish()?.stdout;
        let report = last_line(&text)?;
        if report.get("ended") != Some(&Value::Bool(true)) {
            return Err(Error::unexpected("lab-traffic record", "end", &text));
        }
        let lines = text.lines().filter(|line| !line.starts_with('{'));
        let arrival = |line: &str| {
            Arrival::parse(line)
                .ok_or_else(|| Error::unexpected("lab-traffic record", "datagram", line))
        };
        lines.map(arrival).collect()
    }
}

impl Arrival {
    fn parse(line: &str) -> Option<Self> {
        let mut words = line.split(' ');
        Some(Self {
            source: words.next()?.to_owned(),
            port: words.next()?.parse().ok()?,
            length: words.next()?.parse().ok()?,
            digest: u64::from_str_radix(words.next()?, 16).ok()?,
        })
    }
}

fn last_line(text: &str) -> Result<Value> {
    let line = text.lines().last().and_then(|line| serde_json::from_str(line).ok());
    line.ok_or_else(|| Error::unexpected("lab-traffic", "report", text))
}
