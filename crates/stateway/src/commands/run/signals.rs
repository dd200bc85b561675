//! The signals that a gateway gets, and the end that it comes to in any case.

use std::io;
use std::thread;
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc::UnboundedReceiver;

use crate::log;
use crate::stop_signals::StopSignals;

/// How long the gateway may take to stop, in which it sends what it holds. A question to a
/// worker takes 10 s at most.
const PATIENCE: Duration = Duration::from_secs(15);
/// The exit code of a gateway that had to be ended: it has failed.
const FAILED: i32 = 1;

/// Why a wait has ended.
#[derive(Debug)]
pub enum Cause<E> {
    /// A signal of this name ends the gateway.
    Signal(&'static str),
    /// Something else has happened.
    Event(E),
}

/// The signals.
pub struct Signals {
    runtime: Runtime,
    stop: StopSignals,
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
        let stop = StopSignals::new()?;
        let user1 = signal(SignalKind::user_defined1())?;
        let user2 = signal(SignalKind::user_defined2())?;
        drop(inside);
        Ok(Self { runtime, stop, user1, user2 })
    }

    /// Waits for one that ends the gateway, and says which, or for an event. From a signal on the
    /// process ends, whatever hangs in it.
    pub fn wait<E>(&mut self, events: &mut UnboundedReceiver<E>) -> Cause<E> {
        let Self { runtime, stop, user1, user2 } = self;
        let cause = runtime.block_on(async {
            loop {
                let unknown = tokio::select! {
                    name = stop.next() => return Cause::Signal(name),
                    Some(event) = events.recv() => return Cause::Event(event),
                    _ = user1.recv() => "SIGUSR1",
                    _ = user2.recv() => "SIGUSR2",
                };
                tracing::warn!("{unknown} is ignored: it has no meaning for a gateway");
            }
        });
        if let Cause::Signal(_) = cause {
            Self::end_in_time();
        }
        cause
    }

    /// From here on the process ends, whatever hangs in it.
    pub fn end_in_time() {
        let watch = thread::Builder::new().name("stop".into()).spawn(end_late);
        if let Err(error) = watch {
            tracing::warn!("nobody watches that the gateway stops in time: {error}");
        }
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
