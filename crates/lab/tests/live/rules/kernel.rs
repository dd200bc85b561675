//! The kernel's side: a namespace that forwards by a ruleset.

use std::fmt::Write;
use std::time::Duration;

use lab::{Error, Namespace, Result};

use super::generate::Packet;
use crate::scenario::forwarding_namespace;

/// The namespace.
pub struct Kernel {
    namespace: Namespace,
    player: String,
}

/// When a packet was sent, and whether it came out.
#[derive(Clone, Copy, Debug)]
pub struct Answer {
    pub at: Duration,
    pub passed: bool,
}

impl Kernel {
    pub fn new() -> Result<Self> {
        let namespace = forwarding_namespace("rules")?;
        let player = namespace.write_file("player.py", include_bytes!("player.py"))?;
        Ok(Self { namespace, player })
    }

    /// Puts a ruleset in place of all others, and forgets the connections. Rules of which
    /// `nft` says that their parts exclude each other are left out. Returns what is loaded.
    pub fn load(&self, rules: &str) -> Result<String> {
        let mut lines: Vec<&str> = rules.lines().collect();
        loop {
            let all = format!("flush ruleset\n{}\n", lines.join("\n"));
            let error = match self.namespace.program("nft").args(["-f", "-"]).input(all).check() {
                Ok(_) => break,
                Err(error) => error,
            };
            let Error::Failed { output, .. } = &error else { return Err(error) };
            // Lines count from 1, and one is in front of all.
            let excluded = output.lines().filter_map(|line| {
                let (number, what) = line.strip_prefix("/dev/stdin:")?.split_once(':')?;
                let refused = ["conflicting protocols", "you cannot use tcp reset"];
                refused
                    .iter()
                    .any(|words| what.contains(words))
                    .then(|| number.parse::<usize>().ok())?
            });
            let mut excluded: Vec<usize> = excluded.map(|number| number - 2).collect();
            excluded.dedup();
            if excluded.is_empty() {
                return Err(error);
            }
            for at in excluded.iter().rev() {
                lines.remove(*at);
            }
        }
        self.namespace.program("conntrack").args(["-F"]).check()?;
        Ok(lines.join("\n"))
    }

    /// What `nft` prints of it; none where it fails an assertion of its own, as some
    /// versions do over raw payloads.
    pub fn list(&self) -> Result<Option<String>> {
        match self.namespace.program("nft").args(["-j", "list", "ruleset"]).check() {
            Ok(listed) => Ok(Some(listed)),
            Err(Error::Failed { output, .. }) if output.contains("Assertion") => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Sends packets one after the other.
    pub fn play(&self, packets: &[Packet]) -> Result<Vec<Answer>> {
        let mut orders = String::new();
        for Packet { side, frame } in packets {
            write!(orders, "{side} ").unwrap();
            frame.iter().for_each(|byte| write!(orders, "{byte:02x}").unwrap());
            orders.push('\n');
        }
        let told = self.namespace.program("python3").args([&self.player]).input(orders).check()?;
        let answers = told.lines().map(|line| {
            let (at, passed) = line.split_once(' ').expect("two numbers");
            let at = Duration::from_micros(at.parse().expect("a time"));
            Answer { at, passed: passed == "1" }
        });
        Ok(answers.collect())
    }
}
