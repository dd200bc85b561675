//! Keeps the kernel from routing what this gateway routes.
//!
//! The kernel sees every packet too, and a host that forwards would send each a second time,
//! or answer it. So a table of nftables drops what comes in by the gateway's interfaces and is
//! not for the host. The table has an owner (nft(8), flag `owner`): an nft that waits for
//! orders on a pipe. It goes with the pipe, however this process ends, and the kernel takes
//! the table with it.
//!
//! What is translated is for the host as far as the kernel knows: a reply to a masqueraded
//! connection, or what is to go on to a server behind the gateway. It would answer that it has
//! no such connection. So the table also drops what comes in by the gateway's interfaces for
//!
//! - a translation address and a port of the range that sources are translated to, or one that
//!   a rule names for them, unless the host has a socket for it. A socket that waits for anybody gets what opens a connection and
//!   no answers, because these may be for somebody behind the gateway.
//! - addresses and ports whose destination a rule translates. Where a rule names no port, what
//!   belongs to a connection of the host's own gets through.
//! - addresses and ports whose destination a rule translated that is gone, if it neither opens
//!   a connection nor belongs to a socket of the host: the gateway may still translate it,
//!   because connections stay when rules change.
//!
//! What rules redirect to the host, or translate to an address of it, the kernel carries out
//! itself. So the table lets through what may be among it, told apart by interface, addresses,
//! protocol and port, and drops behind the kernel's destination translation what is not for the
//! host then: the kernel neither forwards nor answers what the gateway forwards. Nothing that
//! goes on opens a connection there, and for rules that are gone nothing does, because the
//! gateway may have one.
//!
//! ICMP is left alone: the kernel answers no replies and no errors.
//!
//! What the table can not be told is refused as long as the gateway may stay as it was. Where
//! that does otherwise already, the table stays as it was for the moment, whoever asks is told
//! that they differ, and it is tried again.

use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use engine::{FromHost, HostGuard};
use ruleset::OWN_TABLE_PREFIX;

use super::kept_out::{KeptOut, NOT_FOR_HOST};

/// Said where there is no nft.
const NEEDS_NFT: &str =
    "routed mode keeps the kernel from routing as well, and needs nft(8) for it";

/// How long nft may take to make the table, or to change it.
const PATIENCE: Duration =
    if cfg!(test) { Duration::from_secs(2) } else { Duration::from_secs(10) };
/// How often it is looked for.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// How often it is looked whether it is still there.
const WATCH_EVERY: Duration = Duration::from_millis(100);
/// How often at least while it can not be made again.
const WATCH_AT_LEAST_EVERY: Duration = Duration::from_secs(5);
/// Pause before the table is told again what it could not be told. Each is twice the one before.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// The longest.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// How often it is told again.
const MOST_ATTEMPTS: u32 = 10;

/// The kernel leaves the packets of the interfaces alone as long as this exists: a table that
/// is lost is made again.
#[derive(Debug)]
pub struct Guard {
    /// Closed first, so that the watch ends.
    stop: Option<Sender<()>>,
    watch: Option<JoinHandle<()>>,
    watched: Arc<Watched>,
}

#[derive(Debug)]
struct Watched {
    state: Mutex<State>,
    /// Why the host gets something else than it is to get, for who can not wait for nft.
    trouble: Mutex<Option<String>>,
}

#[derive(Debug)]
struct State {
    table: Table,
    /// What is kept from the host beside what is not its own.
    kept_out: KeptOut,
    /// What is to be and could not be yet.
    due: Option<Due>,
    /// Why there is no table.
    lost: Option<String>,
}

/// What the table could not be told.
#[derive(Debug)]
struct Due {
    kept_out: KeptOut,
    /// How often it was told again.
    attempts: u32,
    /// When it is the next time; `None`: no more.
    next: Option<Instant>,
    /// Why it could not.
    why: String,
}

impl Due {
    fn new(kept_out: KeptOut, attempts: u32, error: &anyhow::Error) -> Self {
        let pause = FIRST_PAUSE.saturating_mul(1 << attempts.min(16)).min(LONGEST_PAUSE);
        let next = (attempts < MOST_ATTEMPTS).then(|| Instant::now() + pause);
        Self { kept_out, attempts, next, why: format!("{error:#}") }
    }

    fn trouble(&self) -> String {
        let then = match self.next {
            Some(_) => "it is tried again",
            None => "it is not tried any more: load the rules again",
        };
        format!("the kernel does not do yet what the rules say: {}; {then}", self.why)
    }
}

impl State {
    fn new(table: Table) -> Self {
        Self { table, kept_out: KeptOut::default(), due: None, lost: None }
    }

    /// Has the table drop what is to be kept out.
    fn keep_out(&mut self) -> anyhow::Result<()> {
        self.table.keep_out(&self.kept_out)
    }

    /// Has it drop something else.
    fn change(&mut self, kept_out: KeptOut) -> anyhow::Result<()> {
        let before = std::mem::replace(&mut self.kept_out, kept_out);
        self.keep_out().inspect_err(|_| {
            self.kept_out = before;
            // An order that took too long may still be carried out. Without its owner the table
            // goes, and whoever watches makes it again as it was.
            self.table.end();
        })
    }

    /// The same, and later if it is in force already and can not be now.
    fn follow(&mut self, kept_out: KeptOut, is_in_force: bool) -> anyhow::Result<()> {
        let kept_out = kept_out.after(&self.kept_out);
        if let Some(due) = self.due.as_ref().filter(|_| is_in_force)
            && due.kept_out == kept_out
        {
            bail!("{}", due.trouble());
        }
        let due = self.due.take();
        if self.kept_out == kept_out {
            return Ok(());
        }
        self.change(kept_out.clone()).inspect_err(|error| {
            self.due = if is_in_force { Some(Due::new(kept_out, 0, error)) } else { due };
        })
    }

    /// Tries again what is due by now.
    fn try_again(&mut self, now: Instant) {
        let is_due = |due: &mut Due| due.next.is_some_and(|next| next <= now);
        let Some(Due { kept_out, attempts, .. }) = self.due.take_if(is_due) else { return };
        match self.change(kept_out.clone()) {
            Ok(()) => tracing::info!("the kernel does what the rules say"),
            Err(error) => {
                let due = self.due.insert(Due::new(kept_out, attempts + 1, &error));
                tracing::error!("{}", due.trouble());
            }
        }
    }

    /// Makes the table again, as it is to be.
    fn make_again(&mut self, names: &[String]) -> anyhow::Result<()> {
        self.table.end();
        self.table = Table::new(self.table.program.clone(), names)?;
        // A table that keeps too little out is none: whoever watches tries again.
        self.keep_out().inspect_err(|_| self.table.end())
    }

    /// Makes the table again if it is lost, and says so.
    fn look_after(&mut self, names: &[String]) {
        if self.table.is_there() {
            return;
        }
        tracing::error!("nft has ended, and its table: the kernel has routed as well");
        self.lost = self.make_again(names).err().map(|error| format!("{error:#}"));
        match &self.lost {
            None => tracing::info!("the table is there again"),
            Some(error) => tracing::error!("{error}"),
        }
    }

    fn trouble(&self) -> Option<String> {
        let lost = self.lost.as_ref().map(|why| {
            format!("the kernel routes as well: {why}; making the table is tried again")
        });
        lost.or_else(|| self.due.as_ref().map(Due::trouble))
    }
}

impl Guard {
    /// Makes the table.
    ///
    /// # Errors
    /// Where there is no nft, or it may not make tables.
    pub fn new<'a>(interfaces: impl Iterator<Item = &'a str>) -> anyhow::Result<Self> {
        let names: Vec<String> = interfaces.map(str::to_owned).collect();
        let state = State::new(Table::new("nft".into(), &names)?);
        let watched = Arc::new(Watched { state: Mutex::new(state), trouble: Mutex::default() });
        let (stop, stopped) = channel();
        let watching = watched.clone();
        let watch = move || {
            let mut pause = WATCH_EVERY;
            while stopped.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
                let mut state = lock(&watching.state);
                state.try_again(Instant::now());
                state.look_after(&names);
                pause = match state.lost {
                    None => WATCH_EVERY,
                    Some(_) => (2 * pause).min(WATCH_AT_LEAST_EVERY),
                };
                *lock(&watching.trouble) = state.trouble();
            }
        };
        let watch = std::thread::Builder::new().name("guard".into()).spawn(watch)?;
        Ok(Self { stop: Some(stop), watch: Some(watch), watched })
    }

    /// Who tells the table what is translated.
    pub fn keeper(&self) -> Keeper {
        Keeper(self.watched.clone())
    }
}

/// Has the kernel keep what is translated from the host.
#[derive(Clone, Debug)]
pub struct Keeper(Arc<Watched>);

impl HostGuard for Keeper {
    fn keep_out(&self, from_host: &FromHost<'_>) -> Result<(), String> {
        let mut state = lock(&self.0.state);
        let followed = state.follow(KeptOut::new(from_host), from_host.is_in_force);
        *lock(&self.0.trouble) = state.trouble();
        followed.map_err(|error| format!("{error:#}"))
    }

    fn trouble(&self) -> Option<String> {
        lock(&self.0.trouble).clone()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic while the lock was held has ended the process.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(watch) = self.watch.take() {
            let _ = watch.join();
        }
    }
}

/// The table, and the process that owns it.
#[derive(Debug)]
struct Table {
    /// nft(8).
    program: PathBuf,
    name: String,
    interfaces: Vec<String>,
    nft: Child,
    /// Closed first, so that nft ends.
    orders: Option<ChildStdin>,
    /// How often what is kept out has changed.
    revision: u64,
}

impl Table {
    fn new(program: PathBuf, interfaces: &[String]) -> anyhow::Result<Self> {
        let table = format!("{OWN_TABLE_PREFIX}{}", std::process::id());
        let quoted: Vec<String> = interfaces.iter().map(|name| format!("\"{name}\"")).collect();
        let names = quoted.join(", ");
        let order = format!(
            "add table inet {table} {{ flags owner; }}; \
             add chain inet {table} prerouting \
             {{ type filter hook prerouting priority raw; policy accept; }}; \
             add chain inet {table} left; \
             add rule inet {table} prerouting iifname {{ {names} }} jump left; \
             add rule inet {table} prerouting iifname {{ {names} }} {NOT_FOR_HOST} drop\n"
        );
        // One that waits for orders does not say why it does not carry them out.
        try_out(&program, &table, &order)?;
        let mut nft = Command::new(&program)
            .arg("-i")
            // What a terminal sends to the gateway is not for it: the gateway is to end first.
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context(NEEDS_NFT)?;
        let orders = nft.stdin.take();
        let (name, interfaces) = (table.clone(), interfaces.to_vec());
        let mut guard = Self { program, name, interfaces, nft, orders, revision: 0 };
        if !guard.order(&order, "drop")? {
            bail!("nft has not made the table inet {table}, though it could");
        }
        Ok(guard)
    }

    /// Drops what is to be kept from the host, and what is not its own as before.
    fn keep_out(&mut self, kept_out: &KeptOut) -> anyhow::Result<()> {
        self.revision += 1;
        let marker = format!("revision {}", self.revision);
        let order = kept_out.order(&self.name, &self.interfaces, &marker);
        if !self.order(&order, &marker)? {
            bail!(
                "nft could not have the table inet {} keep what is translated from the host, \
                 which would answer it; it needs a kernel with nf_tables and its expression \
                 socket",
                self.name
            );
        }
        Ok(())
    }

    /// Gives an order, which the table has a mark of when it is carried out; false if it is
    /// not.
    fn order(&mut self, order: &str, mark: &str) -> anyhow::Result<bool> {
        if let Some(orders) = &mut self.orders {
            orders.write_all(order.as_bytes()).context("nft takes no orders")?;
        }
        let patience = Instant::now() + PATIENCE;
        while !self.shows(mark)? {
            if Instant::now() >= patience || self.nft.try_wait()?.is_some() {
                return Ok(false);
            }
            std::thread::sleep(LOOK_EVERY);
        }
        Ok(true)
    }

    /// True if the table has a text.
    fn shows(&self, text: &str) -> anyhow::Result<bool> {
        let list = ["list", "table", "inet", &self.name];
        let listed = Command::new(&self.program).args(list).output();
        Ok(String::from_utf8_lossy(&listed.context("nft does not run")?.stdout).contains(text))
    }

    /// Ends nft, and with it the table, whatever it is doing.
    fn end(&mut self) {
        self.orders = None;
        let _ = self.nft.kill();
        let _ = self.nft.wait();
    }

    fn is_there(&mut self) -> bool {
        matches!(self.nft.try_wait(), Ok(None))
    }
}

/// Asks nft and the kernel whether they would carry out an order that makes the table.
fn try_out(program: &Path, table: &str, order: &str) -> anyhow::Result<()> {
    let mut nft = Command::new(program);
    // Its words for a lack of rights are looked for.
    nft.env("LC_ALL", "C").arg("--check").arg(order.trim_end());
    let answer = nft.stdin(Stdio::null()).output().context(NEEDS_NFT)?;
    if answer.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&answer.stderr);
    if said.contains("Operation not permitted") {
        bail!(
            "routed mode keeps the kernel from routing as well, and this process may not have \
             nft do so here: run as root, or with CAP_NET_ADMIN and CAP_NET_RAW as ambient \
             capabilities (AmbientCapabilities= in a unit of systemd), which nft inherits; those \
             that setcap gives to a file it does not"
        );
    }
    bail!(
        "nft can not make the table inet {table} that keeps the kernel from routing as well, and \
         needs a kernel with nf_tables and its expression fib for it: {}",
        said.lines().next().unwrap_or("it does not say why")
    )
}

impl Drop for Table {
    fn drop(&mut self) {
        self.orders = None;
        // It ends with its input.
        let _ = self.nft.wait();
    }
}

#[cfg(test)]
mod tests {
    use ruleset::Forwarded;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// Takes orders as nft does: what it was told stands in a file as long as it runs. While
    /// there is a file `slow` it does as if the machine was busy, and while there is a file
    /// `refuses` it does not carry out what is to be kept out.
    const NFT: &str = r#"#!/bin/sh
here=$(dirname "$0")
if [ "$1" = list ]; then
    exec cat "$here/table"
fi
if [ "$1" = --check ]; then
    [ -e "$here/complains" ] || exit 0
    cat "$here/complains" >&2
    exit 1
fi
: > "$here/table"
while read -r order; do
    while [ -e "$here/slow" ]; do sleep 0.02; done
    case "$order" in *revision*) [ -e "$here/refuses" ] && continue ;; esac
    printf '%s\n' "$order" > "$here/table"
done
"#;

    fn port(port: u16) -> KeptOut {
        let forwarded = Forwarded { ports: Some((port, port)), ..Forwarded::default() };
        KeptOut { forwarded: vec![forwarded], ..KeptOut::default() }
    }

    fn nft(directory: &Path) -> PathBuf {
        let nft = directory.join("nft");
        std::fs::write(&nft, NFT).unwrap();
        std::fs::set_permissions(&nft, std::fs::Permissions::from_mode(0o755)).unwrap();
        nft
    }

    fn state(directory: &Path, names: &[String]) -> State {
        State::new(Table::new(nft(directory), names).unwrap())
    }

    #[test]
    fn what_keeps_nft_from_making_the_table_is_told() {
        let directory = tempfile::tempdir().unwrap();
        for (complaint, told) in [
            ("Operation not permitted (you must be root)\nnetlink: Error", "as ambient cap"),
            ("Error: Could not process rule: No such file\nadd table", "fib for it: Error: Could"),
        ] {
            std::fs::write(directory.path().join("complains"), complaint).unwrap();
            let refused = Table::new(nft(directory.path()), &["lan0".to_owned()]).unwrap_err();
            assert!(refused.to_string().contains(told), "{refused}");
        }
    }

    #[test]
    fn a_table_that_could_not_be_made_again_as_it_was_is_tried_again() {
        let directory = tempfile::tempdir().unwrap();
        let names = ["lan0".to_owned()];
        let mut state = state(directory.path(), &names);
        state.change(port(80)).unwrap();
        state.table.end();
        let refuses = directory.path().join("refuses");
        std::fs::write(&refuses, "").unwrap();
        assert!(state.make_again(&names).is_err());
        assert!(!state.table.is_there(), "who watches would leave it like that");
        std::fs::remove_file(&refuses).unwrap();
        state.make_again(&names).unwrap();
        assert!(state.table.is_there() && state.table.shows("dport 80-80").unwrap());
    }

    #[test]
    fn what_is_in_force_is_told_again_until_it_is_and_what_is_not_is_not() {
        let directory = tempfile::tempdir().unwrap();
        let names = ["lan0".to_owned()];
        let mut state = state(directory.path(), &names);
        state.follow(port(80), true).unwrap();
        let refuses = directory.path().join("refuses");
        std::fs::write(&refuses, "").unwrap();
        state.follow(port(443), false).unwrap_err();
        assert!(state.due.is_none() && state.trouble().is_none(), "the rules are refused");
        std::fs::remove_file(&refuses).unwrap();
        state.look_after(&names);

        std::fs::write(&refuses, "").unwrap();
        state.follow(port(443), true).unwrap_err();
        // Routes change, and the same is said once more: that is no reason to wait for nft.
        let begin = Instant::now();
        state.follow(port(443), true).unwrap_err();
        assert!(begin.elapsed() < PATIENCE);
        assert!(state.trouble().is_some_and(|told| told.ends_with("; it is tried again")));
        state.try_again(Instant::now());
        assert_eq!(state.due.as_ref().map(|due| due.attempts), Some(0), "it is not time yet");
        std::fs::remove_file(&refuses).unwrap();
        state.look_after(&names);
        assert!(state.table.shows("dport 80-80").unwrap(), "meanwhile it is as it was");
        state.try_again(Instant::now() + FIRST_PAUSE);
        assert!(state.trouble().is_none() && state.table.shows("dport 443-443").unwrap());
    }

    #[test]
    fn pauses_double_and_have_an_end() {
        let pause = |attempts: u32| {
            let due = Due::new(port(80), attempts, &anyhow::anyhow!("busy"));
            due.next.map(|next| next.duration_since(Instant::now()).as_secs_f64().round())
        };
        let pauses: Vec<_> = (0..=MOST_ATTEMPTS).map_while(pause).collect();
        assert_eq!(pauses, [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0, 60.0, 60.0]);
        let last = Due::new(port(80), MOST_ATTEMPTS, &anyhow::anyhow!("busy"));
        assert!(last.trouble().ends_with("load the rules again"));
    }

    #[test]
    fn a_change_that_took_too_long_is_not_made_later() {
        let directory = tempfile::tempdir().unwrap();
        let names = ["lan0".to_owned()];
        let mut state = state(directory.path(), &names);
        state.change(port(80)).unwrap();
        assert!(state.table.shows("dport 80-80").unwrap());
        let slow = directory.path().join("slow");
        std::fs::write(&slow, "").unwrap();
        assert!(state.change(port(443)).is_err());
        assert_eq!(state.kept_out, port(80));
        assert!(!state.table.is_there(), "who watches would make it again");
        std::fs::remove_file(&slow).unwrap();
        state.make_again(&names).unwrap();
        std::thread::sleep(Duration::from_millis(200));
        assert!(state.table.is_there() && state.table.shows("dport 80-80").unwrap());
        assert!(!state.table.shows("dport 443-443").unwrap());
    }
}
