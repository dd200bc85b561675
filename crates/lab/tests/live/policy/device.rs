//! A device in a namespace of its own, read and written without Stateway.

use std::thread::sleep;
use std::time::{Duration, Instant};

use lab::{Background, Namespace, Output, Program, Result};
use serde_json::Value;

use crate::scenario::stateway_binary;

/// The journals' directory in the namespace.
const STATE: &str = "/dev/shm/state";
/// The environment variables with the number of a step, and with a command to run there. Without a
/// command, the process dies there.
const STEP: &str = "STATEWAY_LAB_POLICY_STEP";
const COMMAND: &str = "STATEWAY_LAB_POLICY_COMMAND";
/// Longest wait for a keeper to end.
const PATIENCE: Duration = Duration::from_secs(10);
/// Time between two looks for that.
const POLL: Duration = Duration::from_millis(10);
/// The exit code of a command that has died so.
const DIED: Option<i32> = Some(70);

/// A device `lan0` of two queues and NAPIs, alone with its other end.
pub struct Device {
    namespace: Namespace,
    /// The directory of the journals, as programs of the namespace see it.
    state: String,
}

impl Device {
    /// A veth device. Its second NAPI and its first queues have values of their own.
    pub fn veth() -> Result<Self> {
        let it = Self::none()?;
        it.make("")?;
        it.other_sets_napi(1, "gro-flush-timeout", 7000)?;
        it.other_sets_napi(1, "irq-suspend-timeout", 9000)?;
        it.other_writes("queues/tx-0/xps_cpus", "2")?;
        it.other_writes("queues/rx-0/rps_cpus", "1")?;
        Ok(it)
    }

    /// A TAP device.
    pub fn tap() -> Result<Self> {
        let it = Self::none()?;
        it.ip(&["tuntap add lan0 mode tap"])?;
        Ok(it)
    }

    /// A namespace without a device.
    fn none() -> Result<Self> {
        Ok(Self { namespace: Namespace::new("policy")?, state: STATE.into() })
    }

    /// Another namespace, without a device and with the same journals.
    pub fn elsewhere(&self) -> Result<Self> {
        let state = self.namespace.scratch().join("state").to_string_lossy().into_owned();
        Ok(Self { state, ..Self::none()? })
    }

    /// Moves `lan0` to another namespace.
    pub fn move_to(&self, other: &Self) -> Result<()> {
        self.namespace.give("lan0", &other.namespace)?;
        other.ip(&["link set lan0 up"])
    }

    /// Makes `lan0`, with more words for `ip link add`.
    pub fn make(&self, more: &str) -> Result<()> {
        let add =
            format!("link add lan0 {more} numrxqueues 2 numtxqueues 2 type veth peer name far0");
        self.namespace.ip(&[&add, "link set lan0 up", "link set far0 up"])?;
        self.namespace.program("ethtool").args(["-K", "lan0", "gro", "on"]).check().map(drop)
    }

    /// Runs commands of `ip`.
    pub fn ip(&self, commands: &[&str]) -> Result<()> {
        self.namespace.ip(commands)
    }

    /// `stateway policy` with these words.
    pub fn policy(&self, words: &[&str]) -> Result<Program> {
        let program = self.namespace.program(&stateway_binary()?.to_string_lossy());
        Ok(program.args(["policy"]).args(words).env("STATEWAY_STATE", &self.state))
    }

    /// As [`Self::policy`], without the right to write files that nobody may write.
    pub fn policy_without_rights(&self, words: &[&str]) -> Result<Program> {
        let program = self.namespace.program("setpriv").args(["--bounding-set", "-dac_override"]);
        let program = program.args([stateway_binary()?]).args(["policy"]).args(words);
        Ok(program.env("STATEWAY_STATE", &self.state))
    }

    /// Nobody may write a file of the device.
    pub fn close(&self, file: &str) -> Result<()> {
        let path = format!("/sys/class/net/lan0/{file}");
        self.namespace.program("chmod").args(["a-w", &path]).check().map(drop)
    }

    /// Root may write it again.
    pub fn reopen(&self, file: &str) -> Result<()> {
        let path = format!("/sys/class/net/lan0/{file}");
        self.namespace.program("chmod").args(["u+w", &path]).check().map(drop)
    }

    /// The answer in JSON, whatever the exit code.
    pub fn json(&self, words: &[&str]) -> Result<Value> {
        let output = self.policy(&[words, &["--json"]].concat())?.run()?;
        let answer = serde_json::from_str(&output.stdout);
        Ok(answer.unwrap_or_else(|error| panic!("{words:?}: {error}: {output:?}")))
    }

    /// Runs a command that dies at this step. True if it came to its end before.
    pub fn dies_at(&self, step: usize, words: &[&str]) -> Result<bool> {
        let output = self.policy(words)?.env(STEP, &step.to_string()).run()?;
        assert!(output.code == Some(0) || output.code == DIED, "{words:?}: {output:?}");
        Ok(output.code == Some(0))
    }

    /// `stateway policy` with these words, in which a command of the shell runs at this step. Returns
    /// its result, and whether the command has run: it leaves a file.
    pub fn meanwhile(&self, step: usize, command: &str, words: &[&str]) -> Result<(Output, bool)> {
        let mark = self.namespace.scratch().join("meanwhile");
        let _ = std::fs::remove_file(&mark);
        let command = format!("set -e; touch {}/meanwhile; {command}", Namespace::SCRATCH);
        let program = self.policy(words)?.env(STEP, &step.to_string());
        let output = program.env(COMMAND, &command).run()?;
        Ok((output, mark.exists()))
    }

    /// Starts `stateway policy` with these words, whose keeper runs a command of the shell at this step,
    /// once. Returns when that has happened, or when the policy is kept without it, and says which.
    pub fn holds_until(
        &self,
        step: usize,
        command: &str,
        words: &[&str],
    ) -> Result<(Background, bool)> {
        let mark = self.namespace.scratch().join("once");
        let _ = std::fs::remove_dir(&mark);
        let command = format!("mkdir {}/once 2>/dev/null || exit 0; {command}", Namespace::SCRATCH);
        let program = self.policy(words)?.env(STEP, &step.to_string()).env(COMMAND, &command);
        let (holder, start) = (program.spawn()?, Instant::now());
        while !mark.exists() && !holder.log().contains(" is kept") {
            assert!(start.elapsed() < PATIENCE, "step {step}: {}", holder.log());
            sleep(POLL);
        }
        // From here on the command does not run any more.
        let has_run = std::fs::create_dir(&mark).is_err();
        Ok((holder, has_run))
    }

    /// True if a keeper is at work.
    pub fn has_keeper(&self) -> Result<bool> {
        Ok(self.files("keeper").len() == 1)
    }

    /// Waits until no keeper is at work.
    pub fn wait_for_no_keeper(&self) -> Result<()> {
        let start = Instant::now();
        while self.has_keeper()? {
            assert!(start.elapsed() < PATIENCE, "the keeper has not ended");
            sleep(POLL);
        }
        Ok(())
    }

    /// Puts a host with the address 192.0.2.2 behind `lan0`, and waits until it answers.
    pub fn add_host(&self) -> Result<Self> {
        let host = Self::none()?;
        self.namespace.give("far0", &host.namespace)?;
        self.ip(&["address add 192.0.2.1/24 dev lan0"])?;
        host.ip(&["address add 192.0.2.2/24 dev far0", "link set far0 up"])?;
        self.namespace.program("ping").args(["-c", "1", "-w", "10", "192.0.2.2"]).check()?;
        Ok(host)
    }

    /// The command of the shell that runs a command in this network namespace from another one.
    pub fn entered(&self, command: &str) -> String {
        format!("nsenter --net=/proc/{}/ns/net {command}", self.namespace.resident())
    }

    /// `stateway policy` with these words, in which a command of the shell runs before the first write.
    pub fn policy_after(&self, command: &str, words: &[&str]) -> Result<Program> {
        Ok(self.policy(words)?.env(STEP, "0").env(COMMAND, command))
    }

    /// Runs a command of the shell.
    pub fn shell(&self, command: &str) -> Result<()> {
        self.namespace.program("sh").args(["-c", command]).check().map(drop)
    }

    /// Sets the number of channels, each with a queue of either direction.
    pub fn set_queues(&self, count: usize) -> Result<()> {
        let count = count.to_string();
        let words = ["-L", "lan0", "rx", &count, "tx", &count];
        self.namespace.program("ethtool").args(words).check().map(drop)
    }

    /// Shows these CPUs as those that are online, and sends the kernel's news of CPU 1.
    pub fn inject_cpus(&self, online: &str, news: &str) -> Result<()> {
        let script = "echo $1 >$2 && { mountpoint -q $3 || mount --bind $2 $3; }";
        let places = [&format!("{}/cpus", Namespace::SCRATCH), "/sys/devices/system/cpu/online"];
        let shell = self.namespace.program("sh").args(["-c", script, "sh", online]).args(places);
        shell.check()?;
        let script = "import socket, struct, sys\n\
             news, path = sys.argv[1], '/devices/system/cpu/cpu1'\n\
             words = [f'{news}@{path}', f'ACTION={news}', f'DEVPATH={path}', 'SUBSYSTEM=cpu', '']\n\
             text = '\\0'.join(words).encode()\n\
             it = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 15)\n\
             it.bind((0, 0))\n\
             it.sendto(struct.pack('=IHHII', 16 + len(text), 16, 1, 0, 0) + text, (0, 0))\n";
        let script = self.namespace.program("python3").args(["-c", script, news]);
        script.check().map(drop)
    }

    /// Leaves no space in the directory of the journals.
    pub fn fill_state(&self) -> Result<()> {
        let script = "mkdir -p $0 && { mountpoint -q $0 || mount -t tmpfs -o size=16k none $0; } && \
                      { cat /dev/zero >$0/filler 2>/dev/null || true; }";
        self.namespace.program("sh").args(["-c", script, STATE]).check().map(drop)
    }

    /// Makes space again.
    pub fn empty_state(&self) -> Result<()> {
        self.namespace.program("rm").args([&format!("{STATE}/filler")]).check().map(drop)
    }

    /// Deletes all journals, as a user does for devices that are gone.
    pub fn delete_journals(&self) {
        self.journals().iter().for_each(|path| std::fs::remove_file(path).unwrap());
    }

    /// The command of the shell by which another program sets a NAPI.
    pub fn napi_command(&self, words: &str) -> Result<String> {
        let file = self.namespace.write_file("napis.py", include_bytes!("napis.py"))?;
        Ok(format!("python3 {file} lan0 {words}"))
    }

    /// Puts back what was there, and checks that the command succeeds.
    pub fn rollback(&self) -> Result<Output> {
        let output = self.policy(&["rollback", "lan0"])?.run()?;
        assert_eq!(output.code, Some(0), "{output:?}");
        Ok(output)
    }

    /// Another program writes a file of the device.
    pub fn other_writes(&self, file: &str, value: &str) -> Result<()> {
        let script = "echo $2 >/sys/class/net/lan0/$1";
        self.namespace.program("sh").args(["-c", script, "sh", file, value]).check().map(drop)
    }

    /// Another program sets a NAPI.
    pub fn other_sets_napi(&self, place: usize, name: &str, value: u64) -> Result<()> {
        let (place, value) = (place.to_string(), value.to_string());
        self.napis(&["lan0", &place, name, &value]).map(drop)
    }

    fn napis(&self, words: &[&str]) -> Result<String> {
        let script = ["-c", include_str!("napis.py")];
        self.namespace.program("python3").args(script).args(words).check()
    }

    /// All settings, as the kernel tells them to others.
    pub fn reading(&self) -> Result<String> {
        let script = "cd /sys/class/net/lan0 && grep -s . gro_flush_timeout napi_defer_hard_irqs \
                      threaded queues/*/rps_cpus queues/*/rps_flow_cnt queues/*/xps_cpus; true";
        let files = self.namespace.program("sh").args(["-c", script]).check()?;
        Ok(files + &self.napis(&["lan0"])?)
    }

    /// Names of the journals.
    pub fn journals(&self) -> Vec<std::path::PathBuf> {
        self.files("journal")
    }

    /// Names of the files of a kind among the journals.
    fn files(&self, kind: &str) -> Vec<std::path::PathBuf> {
        let directory = self.namespace.scratch().join("state");
        let files = std::fs::read_dir(directory).into_iter().flatten().flatten();
        let files = files.map(|file| file.path());
        files.filter(|path| path.extension().is_some_and(|it| it == kind)).collect()
    }
}
