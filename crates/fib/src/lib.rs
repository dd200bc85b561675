//! Routing: a mirror of the kernel's policy rules, routing tables and neighbours that decides
//! as the kernel does. It keeps no state of packets and does no input or output.
//!
//! A [`Fib`] is cheap to clone: clones share every part that none of them changes. So the
//! thread that follows the kernel changes its own, and hands clones to the workers.
//!
//! ```
//! use fib::{Action, Fib, Hops, LinkId, NextHop, Query, Route, TableId, RouteResult};
//!
//! let mut fib = Fib::default();
//! let wan = LinkId(2);
//! let hop = NextHop::new(wan, Some("192.0.2.1".parse()?));
//! fib.insert(TableId::MAIN, Route::new("0.0.0.0/0".parse()?, Action::Forward(Hops::one(hop))));
//! let query = Query::new("198.51.100.7".parse()?, "203.0.113.9".parse()?, LinkId(1));
//! assert_eq!(fib.look_up(&query), RouteResult::Forward(hop));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod back;
mod fib;
mod neighbour;
mod route;
mod route_cache;
mod rule;
mod settings;
mod table;

pub use back::Back;
pub use fib::{Fib, Query, RouteResult};
pub use neighbour::{HardwareAddress, Neighbour, Neighbours};
pub use route::{Action, Hops, NextHop, Route};
pub use route_cache::RouteCache;
pub use rule::{LinkSelector, Rule, RuleAction, Selector};
pub use settings::Settings;
pub use table::Table;

/// An interface, by the kernel's index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LinkId(pub u32);

impl LinkId {
    /// The interface from which the host's own packets come.
    pub const LOOPBACK: Self = Self(1);
}

/// A routing table, by the kernel's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TableId(pub u32);

impl TableId {
    /// The table for routes that name no other.
    pub const MAIN: Self = Self(254);
    /// Addresses of the host, and broadcasts.
    pub const LOCAL: Self = Self(255);
    /// The table that IPv4 asks after the main table; empty unless somebody fills it.
    pub const DEFAULT: Self = Self(253);
}
