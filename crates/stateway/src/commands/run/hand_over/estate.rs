//! A gateway that runs until a signal ends it or a new process takes its place.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use ::sync::hand_over::Message;
use anyhow::{Context, anyhow, ensure};
use control::schema::{HandedOver, Upgrade};
use control::{Gate, HandOverRequest, SCHEMA};
use engine::Gateway;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::oneshot;

use super::channel::Channel;
use super::give::{Gift, GiveError, Given, give};
use crate::commands::run::signals::{Cause, Signals};
use crate::commands::run::sync::{self, Former, SyncThread};
use crate::config::Configuration;

/// The longest time after which a process that was started asks to take over. It reads its
/// configuration and rules before that.
const TO_ASK: Duration = Duration::from_secs(60);
/// The longest time after which a process ends that was refused.
const TO_LEAVE: Duration = Duration::from_secs(5);
/// Time between two looks whether it has ended.
const LOOK: Duration = Duration::from_millis(20);

/// All that a new process gets.
pub struct Estate<'e> {
    pub config: &'e Configuration,
    pub gateway: &'e Arc<Gateway>,
    pub gate: Gate,
    /// The listening control socket and its lock.
    pub control: [OwnedFd; 2],
    pub peer: Option<sync::Shared>,
    pub again: StartAgain,
    /// The other end of what comes.
    pub events: UnboundedSender<Event>,
}

/// The arguments with which this process was started.
pub struct StartAgain {
    pub config: PathBuf,
    pub socket: PathBuf,
    pub state: PathBuf,
    pub log: String,
}

/// Something that happens to a gateway.
#[derive(Debug)]
pub enum Event {
    /// Somebody asks that it hand over.
    Asked(HandOverRequest),
    /// A process that it has started has ended, in words.
    Ended(u32, String),
}

/// A process that this one has started, to hand over to it.
pub struct Started {
    /// Its number.
    pub process: u32,
    /// Tells the thread that waits for its end how far it has come.
    progress: Sender<Progress>,
    answer: oneshot::Sender<Result<HandedOver, String>>,
}

/// How far a process has come that was started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Progress {
    /// It asks to take over.
    Asks,
    /// It was refused.
    Refused,
}

/// Why a gateway ends.
pub enum End {
    /// This signal. State sync goes on until the value is dropped.
    Signal(&'static str, Option<SyncThread>),
    /// A new process has taken its place, one that it has started if there is a value.
    HandedOver(Given, Option<Started>),
}

impl Started {
    /// Tells whoever has asked for it that it has taken over.
    pub fn tell(self, given: &Given) {
        let done = HandedOver {
            schema: SCHEMA,
            process: self.process,
            connections: given.connections,
            copied_s: given.copied.as_secs_f64(),
            frozen_ms: given.frozen.as_secs_f64() * 1e3,
            not_carried: given.not_carried.clone(),
        };
        // The client may have gone.
        let _ = self.answer.send(Ok(done));
    }

    /// Tells whoever has asked for it why it does not take over, and ends it.
    fn has_failed(self, why: String) {
        // It may have ended.
        let _ = self.progress.send(Progress::Refused);
        let _ = self.answer.send(Err(why));
    }
}

impl Estate<'_> {
    /// Waits for the end of this gateway, and hands over to whoever asks for that.
    pub fn until_the_end(
        &self,
        mut sync: Option<SyncThread>,
        signals: &mut Signals,
        coming: &mut UnboundedReceiver<Event>,
    ) -> anyhow::Result<End> {
        let mut started: Option<Started> = None;
        loop {
            let (stream, process) = match signals.wait(coming) {
                Cause::Signal(name) => return Ok(End::Signal(name, sync)),
                Cause::Event(Event::Asked(HandOverRequest::Start(upgrade, answer))) => {
                    if let Some(Started { process, .. }) = started {
                        let why = format!("an upgrade is under way, to process {process}");
                        let _ = answer.send(Err(why));
                        continue;
                    }
                    started = self.start(&upgrade, answer);
                    continue;
                }
                Cause::Event(Event::Ended(process, how)) => {
                    if let Some(ended) = started.take_if(|it| it.process == process) {
                        ended.has_failed(format!("the new process does not take over: {how}"));
                    }
                    continue;
                }
                Cause::Event(Event::Asked(HandOverRequest::To(stream, process))) => {
                    (stream, process)
                }
            };
            if let Some(started) = &started {
                // The client waits for that process, and the service manager hears its number.
                if process != Some(started.process) {
                    refuse(stream, started.process);
                    continue;
                }
                let _ = started.progress.send(Progress::Asks);
            }
            tracing::info!("a new process asks to take over");
            let (given, signal) = self.hand_over_or_stop(stream, &mut sync, signals)?;
            match given {
                Ok(given) => return Ok(End::HandedOver(given, started)),
                Err(error) => {
                    tracing::warn!("the gateway was not taken over: {error}");
                    if let Some(started) = started.take() {
                        started.has_failed(error.to_string());
                    }
                }
            }
            if let Some(name) = signal {
                return Ok(End::Signal(name, sync));
            }
        }
    }

    /// Hands over. A signal that comes meanwhile ends the attempt, and is returned.
    fn hand_over_or_stop(
        &self,
        stream: UnixStream,
        sync: &mut Option<SyncThread>,
        signals: &mut Signals,
    ) -> anyhow::Result<(Result<Given, GiveError>, Option<&'static str>)> {
        let stop = AtomicBool::new(false);
        let (done, mut ended) = unbounded_channel();
        let (given, signal) = std::thread::scope(|scope| {
            let giving = scope.spawn(|| {
                let given = self.hand_over(stream, sync, &stop);
                // The other end waits for it.
                let _ = done.send(());
                given
            });
            let signal = match signals.wait(&mut ended) {
                Cause::Signal(name) => {
                    stop.store(true, Ordering::Relaxed);
                    Some(name)
                }
                Cause::Event(()) => None,
            };
            (giving.join(), signal)
        });
        // A panic ends the process before this.
        let given = given.map_err(|_| anyhow!("the thread of the hand-over has panicked"))?;
        Ok((given, signal))
    }

    /// Hands over to the process behind this socket. State sync goes on if that fails.
    fn hand_over(
        &self,
        stream: UnixStream,
        sync: &mut Option<SyncThread>,
        stop: &AtomicBool,
    ) -> Result<Given, GiveError> {
        let [listener, lock] = &self.control;
        let gift = Gift {
            gateway: self.gateway,
            gate: &self.gate,
            mode: self.config.mode,
            control: [listener.try_clone()?, lock.try_clone()?],
            former: self.peer.as_ref().map(|peer| Former::of(&sync::lock(peer))),
        };
        let given = give(&gift, stream, stop, || *sync = None);
        if given.is_err()
            && sync.is_none()
            && let (Some(of_config), Some(peer)) = (&self.config.sync, &self.peer)
        {
            match sync::start_again(self.config, of_config, self.gateway, peer) {
                Ok(thread) => *sync = Some(thread),
                Err(error) => tracing::error!("state sync does not go on: {error:#}"),
            }
        }
        given
    }

    /// Starts a process of this program, which asks to take over.
    fn start(
        &self,
        upgrade: &Upgrade,
        answer: oneshot::Sender<Result<HandedOver, String>>,
    ) -> Option<Started> {
        match self.spawn(upgrade) {
            Ok((process, progress)) => Some(Started { process, progress, answer }),
            Err(error) => {
                let _ = answer.send(Err(format!("{error:#}")));
                None
            }
        }
    }

    fn spawn(
        &self,
        Upgrade { program, other_rules }: &Upgrade,
    ) -> anyhow::Result<(u32, Sender<Progress>)> {
        // With process 1, the kernel ends all others of its PID namespace.
        ensure!(
            std::process::id() != 1,
            "this gateway is process 1 of a container, which ends with it: start the new release \
             with `stateway run --take-over` in another container, or run the gateway under an init"
        );
        let StartAgain { config, socket, state, log } = &self.again;
        let child = Command::new(program)
            .args(["run", "--take-over", "--log", log])
            .args(other_rules.then_some("--other-rules"))
            .arg("--config")
            .arg(std::path::absolute(config)?)
            .arg("--socket")
            .arg(std::path::absolute(socket)?)
            .arg("--state")
            .arg(std::path::absolute(state)?)
            .stdin(Stdio::null())
            .spawn()
            .with_context(|| format!("can not start {}", program.display()))?;
        let process = child.id();
        let events = self.events.clone();
        let (progress, coming) = channel();
        let watch = std::thread::Builder::new().name("upgrade".into());
        watch
            .spawn(move || tell_end(child, &coming, &events))
            .context("nobody would wait for its end")?;
        Ok((process, progress))
    }
}

/// Tells a process that asks to take over that another one is to do so.
fn refuse(stream: UnixStream, started: u32) {
    let why = format!(
        "an upgrade is under way, to process {started}: only that one may take over; a script that \
         starts the gateway does so with `exec`"
    );
    tracing::warn!("a process asks to take over, and is refused: {why}");
    // One that does not read it sees the end of the connection.
    if let Ok(mut channel) = Channel::new(stream) {
        let _ = channel.send(&Message::Stop(why), &[]);
    }
}

/// Waits for the end of a process. It comes if the process does not take over. One that does not ask in
/// time, or was refused, is ended.
fn tell_end(mut child: Child, progress: &Receiver<Progress>, events: &UnboundedSender<Event>) {
    let process = child.id();
    // When it is ended.
    let mut deadline = Some(Instant::now() + TO_ASK);
    let how = loop {
        match child.try_wait() {
            Ok(Some(status)) => break ended(status),
            Ok(None) => {}
            Err(error) => break format!("its end is unknown: {error}"),
        }
        match progress.recv_timeout(LOOK) {
            Ok(Progress::Asks) => deadline = None,
            Ok(Progress::Refused) => deadline = Some(Instant::now() + TO_LEAVE),
            Err(RecvTimeoutError::Timeout) => {}
            // It has taken over, and this process ends.
            Err(RecvTimeoutError::Disconnected) if deadline.is_none() => return,
            Err(RecvTimeoutError::Disconnected) => std::thread::sleep(LOOK),
        }
        if deadline.is_some_and(|at| Instant::now() >= at) {
            // It may have ended by itself.
            let _ = child.kill().and_then(|()| child.wait());
            break format!("it has not asked to take over within {} s", TO_ASK.as_secs());
        }
    };
    // The gateway may have ended before.
    let _ = events.send(Event::Ended(process, how));
}

/// The end of a process in words.
fn ended(status: ExitStatus) -> String {
    format!("it has ended ({status}) before it asked; its messages are where this gateway's log is")
}
