//! The holder of a policy: it has a [keeper](super::keeper) at work on a device until it stops.

use std::future::Future;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::pin::pin;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context;
use netpolicy::{Policy, Request};
use tokio::net::unix::pipe;

use super::keeper::{KEEP, Word};

/// A keeper that has lived for less is not replaced when it dies.
const SHORT_LIFE: Duration = Duration::from_secs(1);
/// The file of this program, also if another one has its path by now.
const THIS_PROGRAM: &str = "/proc/self/exe";

/// The policy that a device is to have while the holder lives.
#[derive(Clone, Debug)]
pub struct Asked {
    /// The device.
    pub device: String,
    /// Directory of the journals.
    pub state: PathBuf,
    /// The policy.
    pub request: Request,
    /// Leaves out settings that the kernel refuses.
    pub skips_refused: bool,
    /// Waits for the end of another holder.
    pub waits: bool,
    /// The policy that applies at the end, if everything is not to go back.
    pub then: Option<Request>,
    /// The number in sysfs of the device, if it is known: it may have another name by now.
    pub node: Option<u64>,
}

/// The settings after an orderly end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leave {
    /// Those that were there first.
    PutBack,
    /// Those of the policy, for the next holder.
    Keep,
}

/// A line for people that a keeper says.
#[derive(Clone, Copy, Debug)]
pub enum Heard<'a> {
    /// A change.
    Change(&'a str),
    /// The state from now on.
    State(&'a str),
}

impl<'a> Heard<'a> {
    /// The line.
    pub const fn line(self) -> &'a str {
        match self {
            Self::Change(line) | Self::State(line) => line,
        }
    }
}

/// Holds a policy until `stop`. If the keeper dies, another one goes on.
///
/// # Errors
/// The policy could not be set, or something could not be put back. The keeper has said why.
pub async fn hold(
    asked: &Asked,
    hear: impl Fn(Heard<'_>),
    stop: impl Future<Output = Leave>,
) -> anyhow::Result<()> {
    let mut stop = pin!(stop);
    let mut former: Vec<u64> = asked.node.into_iter().collect();
    loop {
        let began = Instant::now();
        let mut keeper = Keeper::start(asked, &former)?;
        let leave = tokio::select! {
            leave = &mut stop => Some(leave),
            heard = keeper.hear(&hear) => heard.map(|()| None)?,
        };
        if let Some(leave) = leave {
            keeper.order(leave);
            keeper.hear(&hear).await?;
        }
        let status = keeper.child.wait()?;
        former.append(&mut keeper.keeps);
        // It has put everything back, or has said what it could not put back.
        if status.code().is_some() {
            anyhow::ensure!(leave.is_some() && status.success(), "{}", failed(asked, status));
            return Ok(());
        }
        let next = format!("{}: its keeper has died ({status}); another one goes on", asked.device);
        hear(Heard::Change(&next));
        if leave.is_some() || began.elapsed() < SHORT_LIFE {
            return undo(asked, &former, &hear, status).await;
        }
    }
}

/// Puts everything back by a keeper that does nothing else.
async fn undo(
    asked: &Asked,
    former: &[u64],
    hear: impl Fn(Heard<'_>),
    death: ExitStatus,
) -> anyhow::Result<()> {
    let none = Asked { request: Request::new(Policy::None), ..asked.clone() };
    let mut keeper = Keeper::start(&none, former)?;
    keeper.order(Leave::PutBack);
    keeper.hear(&hear).await?;
    let status = keeper.child.wait()?;
    anyhow::ensure!(status.success(), "{}", failed(asked, status));
    anyhow::bail!("the keeper of {} died ({death}); everything was put back", asked.device)
}

fn failed(asked: &Asked, status: ExitStatus) -> String {
    format!("the keeper of {} has failed ({status}); it has said why", asked.device)
}

/// A keeper, as its holder has it.
struct Keeper {
    child: Child,
    words: pipe::Receiver,
    /// A word that has not come to its end.
    part: Vec<u8>,
    /// The numbers in sysfs of the devices that it keeps.
    keeps: Vec<u64>,
}

impl Keeper {
    fn start(asked: &Asked, former: &[u64]) -> anyhow::Result<Self> {
        let Asked { device, state, request, skips_refused, waits, then, .. } = asked;
        let mut command = Command::new(THIS_PROGRAM);
        command.arg0("stateway").args(["policy", "keeper", device]);
        command.arg(serde_json::to_string(request)?).arg("--state").arg(state);
        if let Some(then) = then {
            command.arg("--then").arg(serde_json::to_string(then)?);
        }
        command.args(["--holder", &std::process::id().to_string()]);
        command.args(skips_refused.then_some("--skip-refused"));
        command.args(waits.then_some("--wait"));
        command.args(former.iter().map(|node| format!("--former={node}")));
        // A signal to the group of the holder does not end it.
        command.process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().context("the keeper can not be started")?;
        let words = child.stdout.take().context("the keeper has no output")?;
        let words = pipe::Receiver::from_owned_fd(OwnedFd::from(words))?;
        Ok(Self { child, words, part: Vec::new(), keeps: Vec::new() })
    }

    /// Tells it to end.
    fn order(&mut self, leave: Leave) {
        let input = self.child.stdin.take();
        if leave == Leave::Keep
            && let Some(mut input) = input
        {
            // One that has just died does not hear it; the next one does.
            let _ = input.write_all(KEEP);
        }
    }

    /// Passes on what it says until it ends.
    async fn hear(&mut self, hear: impl Fn(Heard<'_>)) -> io::Result<()> {
        let mut bytes = [0; 4096];
        loop {
            self.words.readable().await?;
            let length = match self.words.try_read(&mut bytes) {
                Ok(0) => return Ok(()),
                Ok(length) => length,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
                Err(error) => return Err(error),
            };
            self.part.extend_from_slice(&bytes[..length]);
            while let Some(end) = self.part.iter().position(|&byte| byte == b'\n') {
                let line: Vec<u8> = self.part.drain(..=end).collect();
                match serde_json::from_slice(&line) {
                    Ok(Word::Says(line)) => hear(Heard::Change(&line)),
                    Ok(Word::State(line)) => hear(Heard::State(&line)),
                    Ok(Word::Keeps(node)) => self.keeps.push(node),
                    Err(_) => hear(Heard::Change(&String::from_utf8_lossy(&line))),
                }
            }
        }
    }
}
