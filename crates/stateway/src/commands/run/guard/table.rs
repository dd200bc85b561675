//! A table of nftables that keeps packets from the kernel, and the nft that owns it.

use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use ruleset::OWN_TABLE_PREFIX;

use crate::commands::run::kept_out::{KeptOut, NOT_FOR_HOST};

/// Said where there is no nft.
const NEEDS_NFT: &str =
    "routed mode keeps the kernel from routing as well, and needs nft(8) for it";

/// How long it may take to make a table.
pub const PATIENCE: Duration =
    if cfg!(test) { Duration::from_secs(1) } else { Duration::from_secs(10) };
/// How often it is looked how far nft is.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// nft(8), and for which packets it makes tables.
#[derive(Debug)]
pub struct Nft {
    program: PathBuf,
    interfaces: Vec<String>,
    /// How many tables it was to make: each has a name of its own, so that one can be made beside
    /// another.
    asked: u64,
}

impl Nft {
    /// For packets that come in by these interfaces.
    pub fn new(program: PathBuf, interfaces: Vec<String>) -> Self {
        Self { program, interfaces, asked: 0 }
    }

    /// Makes a table that drops what is to be kept from the host, and what is not its own.
    ///
    /// # Errors
    /// Where there is no nft, or it may not make tables, or can not, or takes too long. Then there
    /// is none, and will be none later.
    pub fn make(&mut self, kept_out: &KeptOut) -> anyhow::Result<Table> {
        let deadline = Instant::now() + PATIENCE;
        self.asked += 1;
        let name = format!("{OWN_TABLE_PREFIX}{}_{}", std::process::id(), self.asked);
        let order = self.order(&name, kept_out);
        // One that waits for orders does not say why it does not carry them out.
        if let Some(complaint) = self.complaint(&order, deadline)? {
            let (keeps, needs) = match *kept_out == KeptOut::default() {
                true => ("the kernel from routing as well", "expression fib"),
                false => (
                    "what is translated from the host, which would answer it",
                    "expressions fib and socket",
                ),
            };
            bail!(
                "nft can not make the table that keeps {keeps}, and needs a kernel with nf_tables \
                 and its {needs} for it: {complaint}"
            );
        }
        let mut nft = self.start(Command::new(&self.program).arg("-i").stderr(Stdio::null()))?;
        let mut orders = nft.0.stdin.take();
        let nft = thread::scope(|scope| {
            // It is ended before the thread is waited for, which may wait for it.
            let mut nft = nft;
            let tell = || orders.as_mut().map(|orders| orders.write_all(order.as_bytes()));
            thread::Builder::new().spawn_scoped(scope, tell)?;
            while !self.has(&name, deadline)? {
                if !nft.is_there() || Instant::now() >= deadline {
                    bail!("nft has not made its table, though it could");
                }
                thread::sleep(LOOK_EVERY);
            }
            Ok(nft)
        })?;
        Ok(Table { nft, _orders: orders })
    }

    /// All on one line, which nft carries out as a whole.
    fn order(&self, table: &str, kept_out: &KeptOut) -> String {
        let quoted: Vec<String> = self.interfaces.iter().map(|it| format!("\"{it}\"")).collect();
        let names = quoted.join(", ");
        let mut order = format!(
            "add table inet {table} {{ flags owner; }}; \
             add chain inet {table} prerouting \
             {{ type filter hook prerouting priority raw; policy accept; }}; \
             add chain inet {table} left; \
             add rule inet {table} prerouting iifname {{ {names} }} jump left; \
             add rule inet {table} prerouting iifname {{ {names} }} {NOT_FOR_HOST} drop; "
        );
        // Not every kernel has what it takes, which nobody needs without translation.
        if *kept_out != KeptOut::default() {
            order += &kept_out.order(table, &self.interfaces);
        }
        order.push('\n');
        order
    }

    /// Asks nft and the kernel whether they would carry out an order, and if not, why.
    fn complaint(&self, order: &str, deadline: Instant) -> anyhow::Result<Option<String>> {
        let mut command = Command::new(&self.program);
        // Its words for a lack of rights are looked for.
        command.env("LC_ALL", "C").args(["--check", "-f", "-"]).stderr(Stdio::piped());
        let mut nft = self.start(&mut command)?;
        let (input, errors) = (nft.0.stdin.take(), nft.0.stderr.take());
        let (status, said) = thread::scope(|scope| {
            // It is ended before the threads are waited for, which wait for it.
            let mut nft = nft;
            let tell = || input.map(|mut input| input.write_all(order.as_bytes()));
            let hear = || {
                let mut said = Vec::new();
                let _ = errors.map(|mut errors| errors.read_to_end(&mut said));
                said
            };
            thread::Builder::new().spawn_scoped(scope, tell)?;
            let said = thread::Builder::new().spawn_scoped(scope, hear)?;
            let status = nft.wait_until(deadline)?;
            anyhow::Ok((status, said.join().unwrap_or_default()))
        })?;
        if status.success() {
            return Ok(None);
        }
        let said = String::from_utf8_lossy(&said);
        if said.contains("Operation not permitted") {
            bail!(
                "routed mode keeps the kernel from routing as well, and this process may not have \
                 nft do so here: run as root, or with CAP_NET_ADMIN and CAP_NET_RAW as ambient \
                 capabilities (AmbientCapabilities= in a unit of systemd), which nft inherits; \
                 those that setcap gives to a file it does not"
            );
        }
        let line = said.lines().next().unwrap_or("it does not say why");
        // Where in the order nobody wants to know.
        Ok(Some(line.find("Error: ").map_or(line, |at| &line[at..]).to_owned()))
    }

    /// True if there is a table of that name.
    fn has(&self, table: &str, deadline: Instant) -> anyhow::Result<bool> {
        let mut command = Command::new(&self.program);
        command.args(["list", "table", "inet", table]).stderr(Stdio::null());
        Ok(self.start(&mut command)?.wait_until(deadline)?.success())
    }

    fn start(&self, command: &mut Command) -> anyhow::Result<Running> {
        // What a terminal sends to the gateway is not for it: the gateway is to end first.
        command.process_group(0).stdin(Stdio::piped()).stdout(Stdio::null());
        command.spawn().map(Running).context(NEEDS_NFT)
    }
}

/// A table, which is there as long as its owner.
#[derive(Debug)]
pub struct Table {
    nft: Running,
    /// It would end without.
    _orders: Option<ChildStdin>,
}

impl Table {
    /// True until something has ended the owner.
    pub fn is_there(&mut self) -> bool {
        self.nft.is_there()
    }

    /// Ends the owner, as somebody else might.
    #[cfg(test)]
    pub fn end(&mut self) {
        self.nft.end();
    }
}

/// An nft that nobody needs any longer than this, whatever it is doing.
#[derive(Debug)]
struct Running(Child);

impl Running {
    fn is_there(&mut self) -> bool {
        matches!(self.0.try_wait(), Ok(None))
    }

    fn wait_until(&mut self, deadline: Instant) -> anyhow::Result<ExitStatus> {
        loop {
            if let Some(status) = self.0.try_wait()? {
                return Ok(status);
            }
            if Instant::now() >= deadline {
                bail!("nft has not answered within {} s", PATIENCE.as_secs());
            }
            thread::sleep(LOOK_EVERY);
        }
    }

    fn end(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.end();
    }
}

#[cfg(test)]
pub mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;

    use ruleset::Forwarded;

    use super::*;

    /// Does as nft does: what a table was made of stands in a file of its name, and it is there as
    /// long as its owner. It complains where there is a file `complains`, refuses orders in which
    /// there is what a file `refuses` has, and hangs while there is a file of its first argument.
    const NFT: &str = r#"#!/bin/sh
here=$(dirname "$0")
while [ -e "$here/$1" ]; do sleep 0.01; done
case "$1" in
list)
    [ -e "$here/$4" ] && kill -0 "$(cat "$here/$4.owner")" ;;
--check)
    read -r order
    if [ -e "$here/complains" ]; then
        cat "$here/complains" >&2
        exit 1
    fi
    if [ -e "$here/refuses" ] && echo "$order" | grep -qFf "$here/refuses"; then
        echo "/dev/stdin:1:7-9: Error: refused" >&2
        exit 1
    fi ;;
-i)
    set -f
    while read -r order; do
        set -- $order
        echo $$ > "$here/$4.owner"
        echo "$order" > "$here/$4.new"
        mv "$here/$4.new" "$here/$4"
    done ;;
esac
"#;

    pub fn port(port: u16) -> Forwarded {
        Forwarded { ports: Some((port, port)), ..Forwarded::default() }
    }

    pub fn nft(directory: &Path) -> Nft {
        let nft = directory.join("nft");
        std::fs::write(&nft, NFT).unwrap();
        std::fs::set_permissions(&nft, std::fs::Permissions::from_mode(0o755)).unwrap();
        Nft::new(nft, vec!["lan0".to_owned()])
    }

    /// What the tables are made of that there are.
    pub fn tables(directory: &Path) -> Vec<String> {
        let files = std::fs::read_dir(directory).unwrap().map(|file| file.unwrap().path());
        let is_there = |table: &PathBuf| {
            let owner = std::fs::read_to_string(table.with_extension("owner"));
            table.extension().is_none()
                && owner.is_ok_and(|owner| Path::new("/proc").join(owner.trim()).exists())
        };
        files.filter(is_there).map(|table| std::fs::read_to_string(table).unwrap()).collect()
    }

    /// True if there is one table, and what it drops of ports is this.
    pub fn drops(directory: &Path, port: u16) -> bool {
        let rule = format!("th dport {port}-{port} drop");
        matches!(&tables(directory)[..], [table] if table.contains(&rule))
    }

    #[test]
    fn what_keeps_nft_from_making_the_table_is_told() {
        let directory = tempfile::tempdir().unwrap();
        for (complaint, told) in [
            ("Operation not permitted (you must be root)\nnetlink: Error", "as ambient cap"),
            (
                "x:1:2-3: Error: Could not process rule: No such file\nadd",
                "fib for it: Error: Could",
            ),
        ] {
            std::fs::write(directory.path().join("complains"), complaint).unwrap();
            let refused = nft(directory.path()).make(&KeptOut::default()).unwrap_err();
            assert!(format!("{refused:#}").contains(told), "{refused:#}");
        }
        assert!(tables(directory.path()).is_empty());
    }

    #[test]
    fn an_nft_that_hangs_is_waited_for_no_longer_than_a_table_may_take() {
        // More than a pipe takes that nobody reads.
        let many = (1..2000).map(port).collect();
        let kept_out = &KeptOut { forwarded: many, ..KeptOut::default() };
        thread::scope(|scope| {
            for step in ["--check", "-i", "list"] {
                scope.spawn(move || {
                    let directory = tempfile::tempdir().unwrap();
                    let hangs = directory.path().join(step);
                    std::fs::write(&hangs, "").unwrap();
                    let begin = Instant::now();
                    let mut nft = nft(directory.path());
                    nft.make(kept_out).unwrap_err();
                    assert!(begin.elapsed() < 2 * PATIENCE, "{step}: {:?}", begin.elapsed());
                    // It does nothing of it later.
                    std::fs::remove_file(hangs).unwrap();
                    thread::sleep(Duration::from_millis(100));
                    assert!(tables(directory.path()).is_empty(), "{step}");
                });
            }
        });
    }

    #[test]
    fn a_table_is_made_beside_another_and_goes_with_its_owner() {
        let directory = tempfile::tempdir().unwrap();
        let mut nft = nft(directory.path());
        let first = nft.make(&KeptOut::default()).unwrap();
        let mut second =
            nft.make(&KeptOut { forwarded: vec![port(80)], ..KeptOut::default() }).unwrap();
        assert_eq!(tables(directory.path()).len(), 2);
        drop(first);
        assert!(second.is_there() && drops(directory.path(), 80));
        second.end();
        assert!(!second.is_there() && tables(directory.path()).is_empty());
    }
}
