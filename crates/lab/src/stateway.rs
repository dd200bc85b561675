//! Stateway as a program: configuration, start, commands and stop.

use std::fmt::Write;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::Value;

use crate::error::{Error, Result};
use crate::namespace::Namespace;
use crate::placement::Placement;
use crate::program::{Background, Output, Program};
use crate::topology::{Side, Tracking};

/// The way to start Stateway.
#[derive(Clone, Debug)]
pub struct StatewaySpec {
    /// The binary.
    pub binary: PathBuf,
    /// Number of workers; 0 leaves the key out, for one worker on each CPU.
    pub workers: u32,
    /// Its interfaces: `lan0` and `wan0` by default.
    pub interfaces: Vec<String>,
    /// True for a router with the kernel's routes, false for a bridge.
    pub routed: bool,
    /// True if packets from the server's side open no connections but expected ones.
    pub refuses_new: bool,
    /// Rules for packets, as for a kernel gateway.
    pub rules: Tracking,
    /// More rules for packets, in nft's syntax. It may be empty, for a gateway whose configuration
    /// names a ruleset without rules.
    pub ruleset: Option<String>,
    /// More lines for `[gateway]`.
    pub gateway: String,
    /// More lines for each `[[interface]]`.
    pub interface: String,
    /// More text for the end of the configuration, such as a `[tunables]` table.
    pub more: String,
}

/// A Stateway that runs as the gateway of a lab.
#[derive(Debug)]
pub struct Stateway {
    /// Dropped first, while the program still runs.
    commands: Commands,
    background: Background,
}

/// The commands of the program. When a test fails, dropping this value prints answers that may help
/// to find the reason.
#[derive(Debug)]
struct Commands {
    namespace: Namespace,
    binary: PathBuf,
}

impl Commands {
    fn command(&self, args: &[&str]) -> Program {
        self.namespace
            .program(&self.binary.to_string_lossy())
            .args(args)
            .env("STATEWAY_SOCKET", Stateway::SOCKET)
            .env("STATEWAY_STATE", Stateway::STATE)
    }
}

impl Drop for Commands {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            return;
        }
        for args in [["status"], ["drops"]] {
            match self.command(&args).limit(Duration::from_secs(5)).run() {
                Ok(Output { stdout, stderr, .. }) => eprintln!("{args:?}:\n{stdout}{stderr}"),
                Err(error) => eprintln!("{args:?}: {error}"),
            }
        }
    }
}

impl StatewaySpec {
    /// A gateway with this many workers, and defaults otherwise.
    #[must_use]
    pub fn new(binary: PathBuf, workers: u32) -> Self {
        let (rules, gateway, more) = (Tracking::Off, String::new(), String::new());
        let interfaces = ["lan0", "wan0"].map(str::to_owned).to_vec();
        Self {
            binary,
            workers,
            interfaces,
            routed: false,
            refuses_new: false,
            rules,
            ruleset: None,
            gateway,
            interface: String::new(),
            more,
        }
    }

    /// The rules in nft's syntax; `None` for a configuration without a ruleset.
    fn all_rules(&self) -> Option<String> {
        let parts = [self.rules.rules(), self.ruleset.clone()];
        parts.into_iter().flatten().reduce(|first, second| first + &second)
    }

    /// The configuration file for the named interfaces.
    #[must_use]
    pub fn config(&self, interfaces: &[&str]) -> String {
        let mode = if self.routed { "routed" } else { "bridge" };
        let mut text = format!("[gateway]\nmode = \"{mode}\"\n");
        if self.workers > 0 {
            // Writing to a string does not fail.
            let _ = writeln!(text, "workers = {}", self.workers);
        }
        text.push_str(&self.gateway);
        for name in interfaces {
            let _ = write!(text, "\n[[interface]]\nname = \"{name}\"\nio = \"afpacket\"\n");
            text.push_str(&self.interface);
            if self.refuses_new && *name == Side::Server.gateway_interface() {
                text.push_str("new_connections = \"drop\"\n");
            }
        }
        let _ = write!(text, "\n[control]\nsocket = \"{}\"\n\n{}", Stateway::SOCKET, self.more);
        text
    }
}

impl Stateway {
    /// The control socket, inside the namespace.
    pub const SOCKET: &str = "/dev/shm/stateway.sock";
    /// The directory of the journals of the host's settings, inside the namespace.
    pub const STATE: &str = "/dev/shm/state";

    /// Starts the program between its interfaces and waits until its control
    /// socket answers.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if the binary has no command `run`;
    /// [`Error::NotReady`] with its output if it does not come up.
    pub fn start(gateway: &Namespace, spec: &StatewaySpec, placement: &Placement) -> Result<Self> {
        let program = spec.binary.to_string_lossy();
        let help = gateway.program(&program).args(["run", "--help"]).run()?;
        if help.code != Some(0) || !help.stdout.contains("-c") {
            return Err(Error::Unavailable { why: format!("{program} has no command `run -c`") });
        }
        let mut stateway = Self::spawn(gateway, spec, placement, &[])?;
        let probe = stateway.command(&["steer", "show", "--json"]);
        stateway.background.wait_for("an answer on the control socket", || {
            Ok(probe.clone().run()?.code == Some(0))
        })?;
        Ok(stateway)
    }

    /// Starts the program with more arguments, and does not wait for it.
    ///
    /// # Errors
    /// [`Error::Io`] if it can not be started; [`Error::Unavailable`] without nft, if it has rules.
    pub fn spawn(
        gateway: &Namespace,
        spec: &StatewaySpec,
        placement: &Placement,
        args: &[&str],
    ) -> Result<Self> {
        let program = spec.binary.to_string_lossy();
        let interfaces: Vec<_> = spec.interfaces.iter().map(String::as_str).collect();
        let mut config = spec.config(&interfaces);
        if let Some(rules) = spec.all_rules() {
            let printed = gateway.printed_rules(&rules).map_err(Error::or_unavailable)?;
            let file = gateway.write_file("rules.json", printed.as_bytes())?;
            let _ = write!(config, "\n[rules]\nfile = \"{file}\"\n");
        }
        let file = gateway.write_file("stateway.toml", config.as_bytes())?;
        let background = gateway
            .program(&program)
            .args(["run", "-c", &file])
            .args(args)
            // The caller's environment may name the socket of another gateway.
            .env("STATEWAY_SOCKET", Self::SOCKET)
            .env("STATEWAY_STATE", Self::STATE)
            .cpus(&placement.gateway)
            .spawn()?;
        let commands = Commands { namespace: gateway.clone(), binary: spec.binary.clone() };
        Ok(Self { commands, background })
    }

    /// A command for the running gateway, for example `["conntrack", "list"]`.
    pub fn command(&self, args: &[&str]) -> Program {
        self.commands.command(args)
    }

    /// Runs a read command with `--json` and returns the object that it prints.
    ///
    /// # Errors
    /// [`Error::Failed`] if the command fails, [`Error::Unexpected`] if it does not
    /// print JSON.
    pub fn query(&self, args: &[&str]) -> Result<Value> {
        let text = self.command(args).args(["--json"]).check()?;
        serde_json::from_str(&text).map_err(|_| Error::unexpected("stateway", "JSON", &text))
    }

    /// Its output so far.
    #[must_use]
    pub fn log(&self) -> String {
        self.background.log()
    }

    /// Resident memory of the program, in bytes.
    ///
    /// # Errors
    /// Those of [`Background::resident_bytes`].
    pub fn resident_bytes(&self) -> Result<u64> {
        self.background.resident_bytes()
    }

    /// CPU time that the program has taken.
    ///
    /// # Errors
    /// Those of [`Background::cpu_time`].
    pub fn cpu_time(&self) -> Result<Duration> {
        self.background.cpu_time()
    }

    /// True until it has ended.
    pub fn is_running(&mut self) -> bool {
        self.background.is_running()
    }

    /// Waits until its output has this text.
    ///
    /// # Errors
    /// [`Error::NotReady`] after 10 s, or if it ends before.
    pub fn wait_for_text(&mut self, text: &str) -> Result<()> {
        self.background.wait_for_text(text)
    }

    /// Waits up to 10 s for its end.
    ///
    /// # Errors
    /// [`Error::NotReady`] if it is still there; then it is killed.
    pub fn finish(self) -> Result<Output> {
        self.background.finish()
    }

    /// Sends SIGTERM and waits for the end. The exit code of a clean stop is 0.
    ///
    /// # Errors
    /// [`Error::NotReady`] if it is still there after 10 s; then it is killed.
    pub fn stop(self) -> Result<Output> {
        self.background.terminate()
    }
}
