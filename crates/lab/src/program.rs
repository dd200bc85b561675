//! Programs inside a namespace: with a time limit, or in the background.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::error::{Error, Result};
use crate::namespace::Namespace;
use crate::placement::CpuSet;

/// Time limit of a program without [`Program::limit`].
const DEFAULT_LIMIT: Duration = Duration::from_secs(20);
/// Time limit for a background program to become ready or to stop.
const PATIENCE: Duration = Duration::from_secs(10);
/// Time between two looks at an awaited event.
const POLL: Duration = Duration::from_millis(10);
/// Unit of CPU times in `/proc` (USER_HZ).
pub(crate) const TICK: Duration = Duration::from_millis(10);
const SIGKILL: i32 = 9;
/// Exit code of shells, `timeout` and `nsenter` if there is no such program.
const NOT_FOUND: i32 = 127;

/// A program to run inside a namespace. Nothing runs until [`Program::run`], [`Program::check`] or
/// [`Program::spawn`].
#[derive(Clone, Debug)]
#[must_use]
pub struct Program {
    namespace: Namespace,
    argv: Vec<OsString>,
    environment: Vec<(&'static str, String)>,
    cpus: Option<CpuSet>,
    limit: Duration,
    input: String,
}

/// The result of a program.
#[derive(Clone, Debug)]
pub struct Output {
    /// Its exit code; `None` if a signal ended it.
    pub code: Option<i32>,
    /// Standard output.
    pub stdout: String,
    /// Standard error; empty for a background program, whose outputs are one.
    pub stderr: String,
}

impl Program {
    pub(crate) fn new(namespace: Namespace, name: &str) -> Self {
        Self {
            namespace,
            argv: vec![name.into()],
            environment: Vec::new(),
            cpus: None,
            limit: DEFAULT_LIMIT,
            input: String::new(),
        }
    }

    /// Adds arguments.
    pub fn args<A: AsRef<OsStr>>(mut self, args: impl IntoIterator<Item = A>) -> Self {
        self.argv.extend(args.into_iter().map(|arg| arg.as_ref().to_owned()));
        self
    }

    /// Sets a variable of its environment.
    pub fn env(mut self, name: &'static str, value: &str) -> Self {
        self.environment.push((name, value.to_owned()));
        self
    }

    /// Pins it to CPUs, unless the set is empty.
    pub fn cpus(mut self, cpus: &CpuSet) -> Self {
        self.cpus = (!cpus.is_empty()).then(|| cpus.clone());
        self
    }

    /// Kills it after this time (20 s if not set). Background programs end
    /// with their [`Background`] instead.
    pub fn limit(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    /// Sets its standard input (empty by default).
    pub fn input(mut self, input: String) -> Self {
        self.input = input;
        self
    }

    /// Runs it to its end. Any exit code is a success.
    ///
    /// # Errors
    /// [`Error::TimedOut`]; [`Error::Unavailable`] if there is no such program.
    pub fn run(self) -> Result<Output> {
        let line = self.line();
        let mut command = self.namespace.enter();
        // `timeout` makes a process group, so that children die with the program.
        command.args(["timeout", "--signal=KILL"]);
        command.arg(format!("{}s", self.limit.as_secs_f64()));
        self.add_to(&mut command);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(Error::io(line.clone()))?;
        if let Some(mut stdin) = child.stdin.take() {
            // A program that ends without reading breaks the pipe; its exit code shows this.
            let _ = stdin.write_all(self.input.as_bytes());
        }
        let output = child.wait_with_output().map_err(Error::io(line.clone()))?;
        // `timeout` kills its whole group, itself included.
        if output.status.signal() == Some(SIGKILL) {
            return Err(Error::TimedOut { command: line, after: self.limit });
        }
        if output.status.code() == Some(NOT_FOUND) {
            return Err(not_installed(&line));
        }
        Ok(Output {
            code: output.status.code(),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        })
    }

    /// Runs it to its end and returns its standard output.
    ///
    /// # Errors
    /// Those of [`Program::run`], and [`Error::Failed`] if the exit code is not 0.
    pub fn check(self) -> Result<String> {
        let line = self.line();
        let output = self.run()?;
        if output.code == Some(0) {
            return Ok(output.stdout);
        }
        Err(Error::Failed {
            command: line,
            status: output.code.map_or("a signal".into(), |code| format!("exit code {code}")),
            output: output.stdout + &output.stderr,
        })
    }

    /// Starts it in the background. Both of its outputs go into one file of the scratch directory.
    ///
    /// # Errors
    /// [`Error::Io`] if it can not be started.
    pub fn spawn(self) -> Result<Background> {
        static LOGS: AtomicU32 = AtomicU32::new(0);
        let line = self.line();
        let log = format!("log-{}", LOGS.fetch_add(1, Ordering::Relaxed));
        let file = File::create(self.namespace.scratch().join(&log))
            .map_err(Error::io(format!("log file of {line}")))?;
        let copy = file.try_clone().map_err(Error::io(format!("log file of {line}")))?;
        let mut command = self.namespace.enter();
        // `nsenter` forks to enter the PID namespace, and only waits.
        command.args(["setpriv", "--pdeathsig", "KILL"]);
        self.add_to(&mut command);
        command.stdin(Stdio::null()).stdout(file).stderr(copy);
        let child = command.spawn().map_err(Error::io(line.clone()))?;
        Ok(Background { namespace: self.namespace, child, line, log })
    }

    fn add_to(&self, command: &mut Command) {
        if let Some(cpus) = &self.cpus {
            command.args(["taskset", "-c", &cpus.to_string()]);
        }
        command.args(&self.argv).envs(self.environment.iter().cloned());
    }

    fn line(&self) -> String {
        let words: Vec<_> = self.argv.iter().map(|word| word.to_string_lossy()).collect();
        format!("{}: {}", self.namespace.name(), words.join(" "))
    }
}

fn not_installed(line: &str) -> Error {
    Error::Unavailable { why: format!("`{line}`: there is no such program, install it") }
}

fn read_log(namespace: &Namespace, log: &str) -> String {
    std::fs::read(namespace.scratch().join(log))
        .map_or_else(|error| error.to_string(), |log| String::from_utf8_lossy(&log).into())
}

/// A program that runs until it is stopped or this value is dropped.
#[derive(Debug)]
pub struct Background {
    namespace: Namespace,
    child: Child,
    line: String,
    log: String,
}

impl Background {
    /// Its output so far.
    #[must_use]
    pub fn log(&self) -> String {
        read_log(&self.namespace, &self.log)
    }

    /// True until it has ended.
    pub fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Waits until `ready` returns true.
    ///
    /// # Errors
    /// [`Error::NotReady`] after 10 s, or at once if the program ends before;
    /// [`Error::Unavailable`] if there is no such program; errors of `ready`.
    pub fn wait_for(&mut self, what: &str, mut ready: impl FnMut() -> Result<bool>) -> Result<()> {
        let start = Instant::now();
        loop {
            // This order matters: an event just before the end counts as ready.
            let running = self.is_running();
            if ready()? {
                return Ok(());
            }
            if self.child.try_wait().is_ok_and(|s| s.and_then(|s| s.code()) == Some(NOT_FOUND)) {
                return Err(not_installed(&self.line));
            }
            if !running || start.elapsed() > PATIENCE {
                return Err(Error::NotReady {
                    what: format!("{what} of `{}`", self.line),
                    after: start.elapsed(),
                    log: self.log(),
                });
            }
            sleep(POLL);
        }
    }

    /// Waits until a socket of its namespace listens on `port`.
    ///
    /// # Errors
    /// Those of [`Background::wait_for`].
    pub fn wait_for_port(&mut self, transport: Transport, port: u16) -> Result<()> {
        let namespace = self.namespace.clone();
        self.wait_for(&format!("{transport:?} port {port}"), || {
            let filter = format!("sport = :{port}");
            let flags = match transport {
                Transport::Tcp => "-Hlnt",
                Transport::Udp => "-Hlnu",
            };
            let sockets = namespace.program("ss").args([flags, &filter]).check()?;
            Ok(!sockets.is_empty())
        })
    }

    /// Waits until it has written `text`.
    ///
    /// # Errors
    /// Those of [`Background::wait_for`].
    pub fn wait_for_text(&mut self, text: &str) -> Result<()> {
        let (namespace, log) = (self.namespace.clone(), self.log.clone());
        self.wait_for(&format!("{text:?}"), || Ok(read_log(&namespace, &log).contains(text)))
    }

    /// Sends SIGTERM, waits up to 10 s for the end, and then kills it.
    ///
    /// # Errors
    /// [`Error::NotReady`] if it did not end by itself.
    pub fn terminate(mut self) -> Result<Output> {
        self.signal("TERM");
        self.finish()
    }

    /// Waits up to 10 s for the end, and then kills it.
    ///
    /// # Errors
    /// [`Error::NotReady`] if it did not end by itself.
    pub fn finish(mut self) -> Result<Output> {
        let status = self.wait()?;
        let stdout = self.log();
        Ok(Output { code: status.code(), stdout, stderr: String::new() })
    }

    fn wait(&mut self) -> Result<ExitStatus> {
        let start = Instant::now();
        while start.elapsed() < PATIENCE {
            let status = self.child.try_wait().map_err(Error::io(self.line.clone()))?;
            if let Some(status) = status {
                return Ok(status);
            }
            sleep(POLL);
        }
        Err(Error::NotReady {
            what: format!("the end of `{}`", self.line),
            after: start.elapsed(),
            log: self.log(),
        })
    }

    /// Resident memory of the program, in bytes (`VmRSS`, see proc(5)).
    ///
    /// # Errors
    /// [`Error::Io`] if it has ended.
    pub fn resident_bytes(&self) -> Result<u64> {
        let file = format!("/proc/{}/status", self.program_id().unwrap_or_default());
        let status = std::fs::read_to_string(&file).map_err(Error::io(file))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let number = line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse().ok());
        number.map(|kib: u64| kib << 10).ok_or_else(|| Error::unexpected("proc", "VmRSS", &status))
    }

    /// CPU time of all threads of the program (`utime` and `stime`, see proc(5)).
    ///
    /// # Errors
    /// [`Error::Io`] if it has ended.
    pub fn cpu_time(&self) -> Result<Duration> {
        let file = format!("/proc/{}/stat", self.program_id().unwrap_or_default());
        let stat = std::fs::read_to_string(&file).map_err(Error::io(file))?;
        // The name of the program stands in brackets and may have blanks.
        let fields = stat.rsplit_once(')').map(|(_, fields)| fields.split_ascii_whitespace());
        let ticks = fields.and_then(|fields| {
            let ticks: Vec<u32> = fields.skip(11).take(2).map_while(|it| it.parse().ok()).collect();
            <[u32; 2]>::try_from(ticks).ok()
        });
        let [user, system] = ticks.ok_or_else(|| Error::unexpected("proc", "CPU time", &stat))?;
        Ok(TICK * (user + system))
    }

    /// Number of the program, which is the only child of our child `nsenter`, as soon as it exists.
    fn program_id(&self) -> Option<String> {
        let nsenter = self.child.id().to_string();
        let output = Command::new("pgrep").args(["-P", &nsenter]).output().ok()?;
        let program = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        Some(program).filter(|program| !program.is_empty())
    }

    /// Sends it a signal, by its name without `SIG`, as soon as it runs.
    pub fn signal(&mut self, name: &str) {
        let start = Instant::now();
        while self.is_running() && start.elapsed() < PATIENCE {
            if let Some(program) = self.program_id() {
                let _ = Command::new("kill").args([&format!("-{name}"), &program]).output();
                return;
            }
            sleep(POLL);
        }
    }
}

impl Drop for Background {
    /// Kills the program first and then waits for `nsenter`, so that its ports are free afterwards.
    fn drop(&mut self) {
        if self.is_running() {
            self.signal("KILL");
            if self.wait().is_err() {
                let _ = self.child.kill();
                let _ = self.child.wait();
            }
        }
    }
}

/// The transport of a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
}
