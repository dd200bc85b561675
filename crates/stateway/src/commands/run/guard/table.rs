//! The table of nf_tables that keeps packets from the kernel.

use std::fmt::Debug;

use anyhow::Context;
use netlink::nf_tables::{Error, Owner};
use ruleset::OWN_TABLE_PREFIX;

use crate::commands::run::kept_out::KeptOut;

/// Keeps packets from the host's kernel, as long as it exists.
pub trait Barrier: Debug + Send {
    /// Keeps these packets from the host, and those that are not for it. The host gets all others.
    ///
    /// # Errors
    /// An error if the kernel refuses. Then the former state stays.
    fn change(&mut self, kept_out: &KeptOut) -> anyhow::Result<()>;
}

/// A table of nf_tables that this process owns.
#[derive(Debug)]
pub struct HostTable {
    owner: Owner,
    /// The number of tables that were requested. It makes each name unique, so that one table can
    /// be made beside another.
    asked: u64,
    /// The name of the table in force.
    name: Option<String>,
}

impl HostTable {
    /// Makes no table yet.
    ///
    /// # Errors
    /// An error if the kernel has no nf_tables.
    pub fn new() -> anyhow::Result<Self> {
        let owner = Owner::new().context(
            "the gateway needs a kernel with nf_tables, to keep the kernel from forwarding too",
        )?;
        Ok(Self { owner, asked: 0, name: None })
    }
}

impl Barrier for HostTable {
    /// Deletes the former table once the new one exists: meanwhile both drop.
    fn change(&mut self, kept_out: &KeptOut) -> anyhow::Result<()> {
        self.asked += 1;
        let name = format!("{OWN_TABLE_PREFIX}{}_{}", std::process::id(), self.asked);
        let table = kept_out.table(name.clone());
        self.owner.make(&table).map_err(|error| explained(error, kept_out))?;
        if let Some(before) = &self.name
            && let Err(error) = self.owner.delete(before)
        {
            // Only a kernel without memory refuses this. If it refuses the next deletion too, both
            // tables drop.
            let _ = self.owner.delete(&name);
            return Err(error).context("the kernel does not delete the table before");
        }
        self.name = Some(name);
        Ok(())
    }
}

/// Adds advice for people to an error.
fn explained(error: Error, kept_out: &KeptOut) -> anyhow::Error {
    if error.is_permission() {
        return anyhow::Error::from(error).context(
            "the gateway keeps the kernel from forwarding too, for which this process lacks the \
             permission: run as root, or with CAP_NET_ADMIN and CAP_NET_RAW \
             (AmbientCapabilities= in a unit of systemd)",
        );
    }
    let (keeps, needs) = match kept_out.is_nothing() {
        true => ("the kernel from forwarding too", "expression fib"),
        false => (
            "translated packets from the host, which would answer them",
            "expressions fib and socket",
        ),
    };
    anyhow::Error::from(error).context(format!(
        "the kernel does not make the table that keeps {keeps}; it has to have nf_tables with \
         tables that have an owner (Linux 5.12) and its {needs}"
    ))
}
