//! Follows the kernel's routes, rules, neighbours and links live, and makes tables of nf_tables
//! that this process owns.
//!
//! [`Mirror`] holds a [`Picture`] of the kernel's state, read over rtnetlink(7), and updates it
//! when asked. Administrators, routing daemons and DHCP clients change routes as before. This crate
//! changes nothing in the kernel, with two exceptions: [`Mirror::resolve`] makes the kernel look
//! for a neighbour, and [`nf_tables`] makes tables, which end with the process. [`Sockets`] asks which
//! socket of the host would get a packet, and [`Tracked`] whether a connection of the kernel has it.

mod lookup;
mod master;
mod mirror;
mod news;
pub mod nf_tables;
mod reading;
mod sockets;
mod stacked;
mod super_packets;
mod tracked;

use std::collections::{BTreeMap, BTreeSet};

pub use fib::LinkId;
use fib::{Fib, HardwareAddress, Neighbours};
use ipnet::IpNet;

pub use master::{Master, Masters, Membership};
pub use mirror::{Error, Mirror};
pub use sockets::{Ends, Receiver, SocketProtocol, Sockets};
pub use stacked::Stacked;
pub use super_packets::longest_super_packet;
pub use tracked::Tracked;

/// The kernel's state. A clone is cheap, as that of [`Fib`] is.
#[derive(Clone, Debug, Default)]
pub struct Picture {
    /// Rules and routes.
    pub fib: Fib,
    /// Neighbours on the links.
    pub neighbours: Neighbours,
    /// Interfaces.
    pub links: BTreeMap<LinkId, Link>,
    /// Rules and routes that are left out because Stateway does not support them, each with the
    /// reason.
    pub unsupported: BTreeSet<String>,
    /// How many times more changed at once than the kernel's queue of notifications holds
    /// (netlink(7), ENOBUFS). Each time, everything was listed again.
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
    /// Its station address; `None` for a link that is not Ethernet.
    pub station: Option<HardwareAddress>,
    /// Longest IP packet, in bytes.
    pub mtu: u32,
    /// True if it is up and has a carrier.
    pub is_up: bool,
    /// The host's own addresses on it with their networks, in the order of the kernel.
    pub addresses: Vec<IpNet>,
}
