//! Routes, rules, neighbours and links as the kernel has them, followed live, and tables of
//! nf_tables that this process owns.
//!
//! [`Mirror`] holds a [`Picture`] of what the kernel says over rtnetlink(7), and brings it up
//! to date when it is told to. Whoever changes routes goes on as before: `ip route`, a routing
//! daemon, a DHCP client. Nothing is changed in the kernel, but that [`Mirror::resolve`] has it
//! look for a neighbour, and what [`nf_tables`] makes, which goes with the process.

mod master;
mod mirror;
pub mod nf_tables;
mod reading;

use std::collections::{BTreeMap, BTreeSet};

pub use fib::LinkId;
use fib::{Fib, HardwareAddress, Neighbours};
use ipnet::IpNet;

pub use master::{Master, Masters};
pub use mirror::{Error, Mirror};

/// What the kernel says. Cheap to clone, as [`Fib`] is.
#[derive(Clone, Debug, Default)]
pub struct Picture {
    /// Rules and routes.
    pub fib: Fib,
    /// Who is who on the links.
    pub neighbours: Neighbours,
    /// Interfaces.
    pub links: BTreeMap<LinkId, Link>,
    /// What the kernel would do and cannot be done here: rules and routes that are left out,
    /// each with the reason.
    pub unsupported: BTreeSet<String>,
    /// How often more has changed at once than the kernel keeps news of (netlink(7), ENOBUFS).
    /// Everything was listed again then.
    pub overruns: u64,
}

impl Picture {
    /// The interface of this name.
    pub fn link_named(&self, name: &str) -> Option<LinkId> {
        self.links.iter().find_map(|(id, link)| (link.name == name).then_some(*id))
    }
}

/// An interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// Its name.
    pub name: String,
    /// Its station address, if it has one of Ethernet's form.
    pub station: Option<HardwareAddress>,
    /// Longest IP packet, bytes.
    pub mtu: u32,
    /// True if it is up and has a carrier.
    pub is_up: bool,
    /// The host's own addresses on it with their networks, in the order of the kernel.
    pub addresses: Vec<IpNet>,
}
