//! The signals that a gateway gets, and the end that it comes to in any case.

use std::io;
use std::thread;
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::log;

/// How long the gateway may take to stop, in which it sends what it holds. A question to a
/// worker takes 10 s at most.
const PATIENCE: Duration = Duration::from_secs(15);
/// The exit code of a gateway that had to be ended: it has failed.
const FAILED: i32 = 1;
/// Number of SIGHUP.
const HANGUP: u32 = 1;

/// The signals.
pub struct Signals {
    runtime: Runtime,
    terminate: Signal,
    interrupt: Signal,
    /// `None` where whoever started the gateway has it ignored, as nohup(1) does.
    hangup: Option<Signal>,
    user1: Signal,
    user2: Signal,
}

impl Signals {
    /// From here on none of them ends the process.
    ///
    /// # Errors
    /// That of the system.
    pub fn new() -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_io().build()?;
        let inside = runtime.enter();
        let terminate = signal(SignalKind::terminate())?;
        let interrupt = signal(SignalKind::interrupt())?;
        let hangup = match is_ignored(HANGUP) {
            true => None,
            false => Some(signal(SignalKind::hangup())?),
        };
        let user1 = signal(SignalKind::user_defined1())?;
        let user2 = signal(SignalKind::user_defined2())?;
        drop(inside);
        Ok(Self { runtime, terminate, interrupt, hangup, user1, user2 })
    }

    /// Waits for one that ends the gateway, and says which. From then on the process ends, whatever
    /// hangs in it.
    pub fn wait(&mut self) -> &'static str {
        let Self { runtime, terminate, interrupt, hangup, user1, user2 } = self;
        let ends_by = runtime.block_on(async {
            loop {
                let unknown = tokio::select! {
                    _ = terminate.recv() => return "SIGTERM",
                    _ = interrupt.recv() => return "SIGINT",
                    () = received(hangup) => return "SIGHUP",
                    _ = user1.recv() => "SIGUSR1",
                    _ = user2.recv() => "SIGUSR2",
                };
                tracing::warn!("{unknown} is ignored: it has no meaning for a gateway");
            }
        });
        let watch = thread::Builder::new().name("stop".into()).spawn(end_late);
        if let Err(error) = watch {
            tracing::warn!("nobody watches that the gateway stops in time: {error}");
        }
        ends_by
    }
}

async fn received(signal: &mut Option<Signal>) {
    match signal {
        Some(signal) => drop(signal.recv().await),
        None => std::future::pending().await,
    }
}

/// Ends a process that has not ended by itself. The kernel deletes what belonged to it.
fn end_late() {
    thread::sleep(PATIENCE);
    tell!(
        "stateway: not stopped within {} s, since a thread hangs: the process ends now, and what it \
         held is not sent",
        PATIENCE.as_secs()
    );
    log::end();
    std::process::exit(FAILED)
}

/// True if this process ignores a signal.
fn is_ignored(number: u32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (number - 1) & 1 == 1)
}
