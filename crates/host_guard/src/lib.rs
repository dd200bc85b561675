//! Keeps the host's kernel from forwarding what this gateway forwards.
//!
//! The kernel sees every packet too. A host that forwards would send each packet a second time, or
//! answer it. So a table of nf_tables drops packets that come in by the gateway's interfaces and
//! are not for the host.
//!
//! ```no_run
//! use host_guard::{Guard, Interface};
//!
//! let lan = Interface::new(Some(3), "lan0".into(), "lan0".into());
//! let wan = Interface::new(Some(4), "wan0".into(), "wan0".into());
//! // From here on the kernel forwards nothing that comes in by these interfaces.
//! let guard = Guard::new(vec![lan, wan])?;
//! // Through the handle, the engine says which packets rules translate.
//! let handle: Box<dyn engine::HostGuard> = Box::new(guard.handle());
//! # Ok::<(), host_guard::Error>(())
//! ```
//!
//! This process owns the table by a socket of its own ([`netlink::nf_tables`]). No other process can
//! change it, it depends on no other process, and the kernel deletes it when this process ends,
//! however it ends. For a change, a new table is made beside the old one, which is then deleted:
//! meanwhile both drop. If the new table can not be made, nothing changes. A change takes no
//! descriptor and no process.
//!
//! To the kernel, a translated packet is for the host: a reply to a masqueraded connection, or a
//! packet for a server behind the gateway. The kernel would answer that it has no such connection.
//! So the table also drops packets from the gateway's interfaces to
//!
//! - a translation address with any port, unless the host has a socket for the packet or the packet
//!   opens a TCP connection. So the host refuses a connection to a port that nobody listens at.
//!   Where helpers are attached, it needs a socket for that too. A listening socket gets packets
//!   that open a connection, but no answers, because these may be for a host behind the gateway.
//! - addresses and ports whose destination a rule translates. If the rule names no port, packets of
//!   the host's own connections pass.
//! - addresses and ports whose destination a former rule translated, unless the packet opens a
//!   connection or belongs to a socket of the host. The gateway may still translate it, because
//!   connections stay when rules change. Where the gateway may take a connection to any port, a packet
//!   that opens one needs a socket of the host too.
//!
//! The kernel itself applies rules that redirect packets to the host or translate to one of its
//! addresses. So the table lets through all packets that such a rule may match, by interface,
//! addresses, protocol and port. Behind the kernel's destination translation it drops those that
//! are not for the host then: the kernel neither forwards nor answers packets that the gateway
//! forwards. A packet in the middle of a connection opens none there. For former rules no packet
//! does, because the gateway may have the connection.
//!
//! ICMP errors are left alone, because the kernel answers none. Echo replies to a translation address
//! are dropped unless the host has asked.
//!
//! So the host does not refuse packets that the table drops, although nobody on the host has their
//! port. The gateway refuses these itself when its guard says so: the kernel has no socket for the
//! packet, and no chain that may drop it.
//!
//! While the gateway can still keep its former state, it refuses rules that the kernel does not
//! accept. A thread of its own tells the kernel about changes that are already in force. If the
//! kernel refuses one, the table stays as it was, the gateway warns of the difference, and the
//! thread tries again.

mod chains;
mod filter;
mod guard;
mod interface;
mod refusals;
mod table;

pub use guard::{Guard, GuardHandle};
pub use interface::Interface;
pub use table::Error;
