use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::host::{Holder, Host};
use crate::program::Program;

/// The first process of the namespace, with its name as `$0`. The private `/sys` shows the
/// interfaces of the namespace. Containers may refuse it, and only receive packet steering needs
/// it.
const INIT: &str = "mount -t tmpfs -o size=256m lab /dev/shm \
    && { mount -t sysfs sysfs /sys 2>/dev/null || true; } \
    && for conf in all default; do echo 0 >/proc/sys/net/ipv6/conf/$conf/accept_dad || exit 1; done \
    && ip link set lo up && echo ready && exec cat";

/// A network namespace of our own, with nothing in it but the loopback interface.
///
/// It lives as long as this value, its clones, and programs that [`Program::spawn`] started in it.
/// A process holds it that is also the first process of a PID namespace, in which all programs of
/// the lab run. The holder ends when its input, a pipe from here, is closed. The kernel closes the
/// pipe however this process ends, and then kills everything in the PID namespace. So nothing is
/// left: no process, no interface, no entry in `/run/netns`, and no file, because
/// [`Namespace::scratch`] is a file system of the namespace.
#[derive(Clone, Debug)]
pub struct Namespace(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    name: &'static str,
    host: &'static Host,
    holder: Holder,
}

impl Namespace {
    /// The path inside of the directory [`Namespace::scratch`].
    pub const SCRATCH: &str = "/dev/shm";

    /// Makes a namespace; `name` is for messages only.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if this process may not make one.
    pub fn new(name: &'static str) -> Result<Self> {
        let host = Host::get()?;
        let mut command = match host {
            Host::Root => Command::new("unshare"),
            Host::User(_) => {
                let mut command = host.enter();
                command.arg("unshare");
                command
            }
        };
        command.args(["--net", "--mount", "--pid", "--fork", "--kill-child"]);
        command.args(["sh", "-c", INIT, name]);
        let holder = Holder::start(command).map_err(|why| Error::Unavailable {
            why: format!("can not make the network namespace {name}: {why}"),
        })?;
        Ok(Self(Arc::new(Inner { name, host, holder })))
    }

    /// The name given to [`Namespace::new`].
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.0.name
    }

    /// True if this process is real root, and not only root of a user namespace.
    #[must_use]
    pub fn is_real_root(&self) -> bool {
        matches!(self.0.host, Host::Root)
    }

    /// A program that is to run inside.
    pub fn program(&self, name: &str) -> Program {
        Program::new(self.clone(), name)
    }

    /// A directory that only this namespace has, as seen from outside. Inside, its path is
    /// [`Namespace::SCRATCH`].
    #[must_use]
    pub fn scratch(&self) -> PathBuf {
        PathBuf::from(format!("/proc/{}/root{}", self.0.holder.pid(), Self::SCRATCH))
    }

    /// Writes a file into the scratch directory and returns its path inside.
    ///
    /// # Errors
    /// [`Error::Io`] if the file can not be written (256 MiB are available).
    pub fn write_file(&self, name: &str, contents: &[u8]) -> Result<String> {
        std::fs::write(self.scratch().join(name), contents)
            .map_err(Error::io(format!("writing {name} in namespace {}", self.0.name)))?;
        Ok(format!("{}/{name}", Self::SCRATCH))
    }

    /// Runs commands of `ip(8)` as one batch, which stops at the first error.
    ///
    /// # Errors
    /// [`Error::Failed`] with the number of the line that `ip` refused.
    pub fn ip(&self, commands: &[&str]) -> Result<()> {
        let mut batch = commands.join("\n");
        batch.push('\n');
        self.program("ip").args(["-batch", "-"]).input(batch).check().map(drop)
    }

    /// Sets kernel parameters, each as `NAME=VALUE`.
    ///
    /// # Errors
    /// [`Error::Failed`] with the parameter that `sysctl` refused.
    pub fn sysctl<S: AsRef<OsStr>>(&self, settings: impl IntoIterator<Item = S>) -> Result<()> {
        self.program("sysctl").args(["-qw"]).args(settings).check().map(drop)
    }

    /// Loads rules in nft's syntax into the kernel, beside the present ones.
    ///
    /// # Errors
    /// [`Error::Failed`] with the line that `nft` refused.
    pub fn load_rules(&self, rules: &str) -> Result<()> {
        self.program("nft").args(["-f", "-"]).input(rules.to_owned()).check().map(drop)
    }

    /// The kernel's ruleset in the JSON of `nft`.
    ///
    /// # Errors
    /// [`Error::Failed`] if `nft` fails.
    pub fn listed_rules(&self) -> Result<String> {
        self.program("nft").args(["-j", "list", "ruleset"]).check()
    }

    /// The JSON that `nft` prints for rules in its syntax. The kernel has them for a moment, and has
    /// no rules afterwards.
    ///
    /// # Errors
    /// [`Error::Failed`] with the line that `nft` refused.
    pub fn printed_rules(&self, rules: &str) -> Result<String> {
        self.load_rules(rules)?;
        let printed = self.listed_rules()?;
        self.flush_rules()?;
        Ok(printed)
    }

    /// Deletes all rules of the kernel.
    ///
    /// # Errors
    /// [`Error::Failed`] if `nft` fails.
    pub fn flush_rules(&self) -> Result<()> {
        self.program("nft").args(["flush", "ruleset"]).check().map(drop)
    }

    /// A process in this network namespace, by its number outside of the lab.
    pub fn resident(&self) -> u32 {
        self.0.holder.pid()
    }

    /// Joins `self` and `other` by a veth pair. Both ends are up, with the kernel's default
    /// offloads.
    ///
    /// # Errors
    /// [`Error::Failed`] if an interface of that name exists.
    pub fn join(&self, name: &str, other: &Self, other_name: &str) -> Result<()> {
        let words = ["add", name, "type", "veth", "peer", "name", other_name];
        self.link_outside(&words, other)?;
        self.ip(&[&format!("link set {name} up")])?;
        other.ip(&[&format!("link set {other_name} up")])
    }

    /// Moves an interface to another namespace.
    ///
    /// # Errors
    /// [`Error::Failed`] if there is none of this name, or one of this name there.
    pub fn give(&self, name: &str, other: &Self) -> Result<()> {
        self.link_outside(&["set", name], other)
    }

    /// `ip link` with these words and the network namespace of another value. This can not run as a
    /// program of the namespace: in its PID namespace the other holder has no number.
    fn link_outside(&self, words: &[&str], other: &Self) -> Result<()> {
        let mut command = self.0.host.enter();
        command.arg(format!("--net=/proc/{}/ns/net", self.0.holder.pid()));
        command.args(["ip", "link"]).args(words);
        command.args(["netns", &other.0.holder.pid().to_string()]);
        let output = command.output().map_err(Error::io(format!("{command:?}")))?;
        if output.status.success() {
            return Ok(());
        }
        Err(Error::Failed {
            command: format!("{command:?}"),
            status: output.status.to_string(),
            output: String::from_utf8_lossy(&output.stderr).into_owned(),
        })
    }

    /// `nsenter` into every namespace of this value.
    pub(crate) fn enter(&self) -> Command {
        let pid = self.0.holder.pid();
        let mut command = self.0.host.enter();
        command.arg(format!("--net=/proc/{pid}/ns/net"));
        command.arg(format!("--mount=/proc/{pid}/ns/mnt"));
        command.arg(format!("--pid=/proc/{pid}/ns/pid_for_children"));
        command.arg("--");
        command
    }
}
