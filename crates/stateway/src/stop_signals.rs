//! The signals that tell a process in the foreground to stop.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// Number of SIGHUP.
const HANGUP: u32 = 1;

/// SIGTERM, SIGINT and SIGHUP.
#[derive(Debug)]
pub struct StopSignals {
    terminate: Signal,
    interrupt: Signal,
    /// `None` where whoever started the process has it ignored, as nohup(1) does.
    hangup: Option<Signal>,
}

impl StopSignals {
    /// From here on none of them ends the process. This is to be called inside of a runtime.
    ///
    /// # Errors
    /// That of the system.
    pub fn new() -> io::Result<Self> {
        let terminate = signal(SignalKind::terminate())?;
        let interrupt = signal(SignalKind::interrupt())?;
        let hangup = match is_ignored(HANGUP) {
            true => None,
            false => Some(signal(SignalKind::hangup())?),
        };
        Ok(Self { terminate, interrupt, hangup })
    }

    /// Waits for one of them, and returns its name.
    pub async fn next(&mut self) -> &'static str {
        let Self { terminate, interrupt, hangup } = self;
        tokio::select! {
            _ = terminate.recv() => "SIGTERM",
            _ = interrupt.recv() => "SIGINT",
            () = received(hangup) => "SIGHUP",
        }
    }
}

async fn received(signal: &mut Option<Signal>) {
    match signal {
        Some(signal) => drop(signal.recv().await),
        None => std::future::pending().await,
    }
}

/// True if this process ignores a signal.
fn is_ignored(number: u32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (number - 1) & 1 == 1)
}
