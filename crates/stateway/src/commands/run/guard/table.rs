//! The table of nf_tables that keeps packets from the kernel.

use std::fmt::Debug;

use anyhow::Context;
use netlink::nf_tables::{Error, Owner};
use ruleset::OWN_TABLE_PREFIX;

use crate::commands::run::kept_out::KeptOut;

/// Keeps packets from the kernel's host, for as long as this exists.
pub trait Barrier: Debug + Send {
    /// Keeps these from the host, and what is not its own. It gets all others.
    ///
    /// # Errors
    /// Where the kernel does not do it. Then it does what it did before.
    fn change(&mut self, kept_out: &KeptOut) -> anyhow::Result<()>;
}

/// A table of nf_tables that this process owns.
#[derive(Debug)]
pub struct HostTable {
    owner: Owner,
    /// How many tables it was to make: each has a name of its own, so that one can be made beside
    /// another.
    asked: u64,
    /// The one that is there.
    name: Option<String>,
}

impl HostTable {
    /// There is no table yet.
    ///
    /// # Errors
    /// Where the kernel has no nf_tables.
    pub fn new() -> anyhow::Result<Self> {
        let owner = Owner::new().context(
            "the gateway keeps the kernel from forwarding as well, and needs a kernel with \
             nf_tables for it",
        )?;
        Ok(Self { owner, asked: 0, name: None })
    }
}

impl Barrier for HostTable {
    /// The table before goes when the new one is there: meanwhile both drop.
    fn change(&mut self, kept_out: &KeptOut) -> anyhow::Result<()> {
        self.asked += 1;
        let name = format!("{OWN_TABLE_PREFIX}{}_{}", std::process::id(), self.asked);
        let table = kept_out.table(name.clone());
        self.owner.make(&table).map_err(|error| explained(error, kept_out))?;
        if let Some(before) = &self.name
            && let Err(error) = self.owner.delete(before)
        {
            // Only a kernel without memory refuses that; if it refuses both, both tables drop.
            let _ = self.owner.delete(&name);
            return Err(error).context("the kernel does not delete the table before");
        }
        self.name = Some(name);
        Ok(())
    }
}

/// What people can do about it.
fn explained(error: Error, kept_out: &KeptOut) -> anyhow::Error {
    if error.is_permission() {
        return anyhow::Error::from(error).context(
            "the gateway keeps the kernel from forwarding as well, and this process may not have \
             it do so: run as root, or with CAP_NET_ADMIN and CAP_NET_RAW (AmbientCapabilities= in \
             a unit of systemd)",
        );
    }
    let (keeps, needs) = match kept_out.is_nothing() {
        true => ("the kernel from forwarding as well", "expression fib"),
        false => (
            "what is translated from the host, which would answer it",
            "expressions fib and socket",
        ),
    };
    anyhow::Error::from(error).context(format!(
        "the kernel does not make the table that keeps {keeps}; it has to have nf_tables with tables \
         that have an owner (Linux 5.12) and its {needs}"
    ))
}
