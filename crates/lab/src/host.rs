//! The rights of this process on this machine: real root, a user namespace, or none.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;

use crate::error::{Error, Result};

/// How this process gets the rights to make network namespaces.
#[derive(Debug)]
pub(crate) enum Host {
    /// It has them.
    Root,
    /// It gets them through a user namespace, which it keeps until it ends. All network namespaces
    /// must belong to the same one: a veth pair needs rights in both of its ends.
    User(Holder),
}

/// A process that does nothing but keep its namespaces alive. It reads a pipe that only this
/// process can write to, so it ends with this process.
#[derive(Debug)]
pub(crate) struct Holder(Child);

impl Host {
    /// Finds out once and keeps the answer.
    pub(crate) fn get() -> Result<&'static Self> {
        static HOST: OnceLock<std::result::Result<Host, String>> = OnceLock::new();
        HOST.get_or_init(Self::find).as_ref().map_err(|why| Error::Unavailable { why: why.clone() })
    }

    fn find() -> std::result::Result<Self, String> {
        let as_root = Command::new("unshare").args(["--net", "true"]).output();
        match as_root {
            Ok(output) if output.status.success() => return Ok(Self::Root),
            Ok(_) => {}
            Err(error) => return Err(format!("unshare (util-linux) does not start: {error}")),
        }
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-root-user", "--", "sh", "-c", "echo ready; exec cat"]);
        Holder::start(command).map(Self::User).map_err(|why| {
            format!("neither root nor allowed to make a user namespace (run as root): {why}")
        })
    }

    /// `nsenter` into the user namespace, if there is one. The caller adds options and the program.
    pub(crate) fn enter(&self) -> Command {
        let mut command = Command::new("nsenter");
        if let Self::User(holder) = self {
            let user = format!("--user=/proc/{}/ns/user", holder.pid());
            command.args([&user, "--preserve-credentials"]);
        }
        command
    }
}

impl Holder {
    /// Starts `command`, which prints `ready` when its namespaces are complete and then reads its
    /// input to the end. The error is the command's output.
    pub(crate) fn start(mut command: Command) -> std::result::Result<Self, String> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(|error| format!("{command:?}: {error}"))?;
        let mut line = String::new();
        if let Some(stdout) = child.stdout.take() {
            // An error reads as an empty line, which is not "ready" either.
            let _ = BufReader::new(stdout).read_line(&mut line);
        }
        let mut holder = Self(child);
        if line == "ready\n" {
            return Ok(holder);
        }
        let mut why = String::new();
        if let Some(mut stderr) = holder.0.stderr.take() {
            let _ = stderr.read_to_string(&mut why);
        }
        Err(why.trim().to_owned())
    }

    pub(crate) fn pid(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}
