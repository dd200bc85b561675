//! The table of nf_tables in the kernel.

use std::fmt::Debug;
use std::io;

use netlink::nf_tables::{self, Owner};
use ruleset::OWN_TABLE_PREFIX;

use crate::filter::HostFilter;

/// The reasons why the kernel does not keep packets from the host.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kernel has no nf_tables.
    #[error(
        "the gateway needs a kernel with nf_tables, to keep the kernel from forwarding too: {0}"
    )]
    NoTables(#[source] io::Error),
    /// This process lacks the right to change tables.
    #[error(
        "the gateway keeps the kernel from forwarding too, for which this process lacks the \
         permission: run as root, or with CAP_NET_ADMIN and CAP_NET_RAW (AmbientCapabilities= in a \
         unit of systemd): {0}"
    )]
    NoPermission(#[source] nf_tables::Error),
    /// The kernel refuses the table that keeps it from forwarding.
    #[error(
        "the kernel does not make the table that keeps the kernel from forwarding too; it has to \
         have nf_tables with tables that have an owner (Linux 5.12) and its expression fib: {0}"
    )]
    Refused(#[source] nf_tables::Error),
    /// The kernel refuses the table that also keeps translated packets from the host.
    #[error(
        "the kernel does not make the table that keeps translated packets from the host, which \
         would answer them; it has to have nf_tables with tables that have an owner (Linux 5.12) \
         and its expressions fib and socket: {0}"
    )]
    TranslationRefused(#[source] nf_tables::Error),
    /// The kernel keeps the former table.
    #[error("the kernel does not delete the table before: {0}")]
    NotDeleted(#[source] nf_tables::Error),
    /// The kernel does not list its interfaces.
    #[error("the interfaces that stand on those of the gateway are not known: {0}")]
    NoLinks(#[from] netlink::Error),
    /// The system starts no thread.
    #[error("the thread that tells the kernel about changes does not start: {0}")]
    NoThread(#[source] io::Error),
}

/// Applies a filter in the host's kernel, as long as it exists.
pub trait FilterTable: Debug + Send {
    /// Replaces the filter.
    ///
    /// # Errors
    /// An error if the kernel refuses. Then the former filter stays.
    fn replace(&mut self, filter: &HostFilter) -> Result<(), Error>;
}

/// A table of nf_tables that this process owns.
#[derive(Debug)]
pub struct KernelTable {
    owner: Owner,
    /// The number of tables that were requested. It makes each name unique, so that one table can
    /// be made beside another.
    requests: u64,
    /// The name of the table in force.
    name: Option<String>,
}

impl KernelTable {
    /// Makes no table yet.
    ///
    /// # Errors
    /// An error if the kernel has no nf_tables.
    pub fn new() -> Result<Self, Error> {
        let owner = Owner::new().map_err(Error::NoTables)?;
        Ok(Self { owner, requests: 0, name: None })
    }
}

impl FilterTable for KernelTable {
    /// Deletes the former table once the new one exists: meanwhile both drop.
    fn replace(&mut self, filter: &HostFilter) -> Result<(), Error> {
        self.requests += 1;
        let name = format!("{OWN_TABLE_PREFIX}{}_{}", std::process::id(), self.requests);
        let table = filter.table(name.clone());
        self.owner.make(&table).map_err(|error| match error.is_permission() {
            true => Error::NoPermission(error),
            false if filter.translates() => Error::TranslationRefused(error),
            false => Error::Refused(error),
        })?;
        if let Some(before) = &self.name
            && let Err(error) = self.owner.delete(before)
        {
            // Only a kernel without memory refuses this. If it refuses the next deletion too, both
            // tables drop.
            let _ = self.owner.delete(&name);
            return Err(Error::NotDeleted(error));
        }
        self.name = Some(name);
        Ok(())
    }
}
