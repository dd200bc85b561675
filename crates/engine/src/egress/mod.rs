//! The way out: routes and next hops, the stations of a bridge, one queue of frames for each
//! port, and the errors for senders of packets that do not leave.

mod adjacencies;
pub mod allowance;
pub mod bridge;
pub mod destination_cache;
pub mod forwarder;
pub mod icmp_errors;
pub mod ip_options;
pub mod martian;
pub mod original_ends;
pub mod outputs;
pub mod path_mtu;
pub mod port_set;
pub mod recent_answers;
pub mod resolver;
pub mod reverse_path;
pub mod route_decision;
pub mod router;
pub mod routing;
pub mod stations;
pub mod unsent;

/// The role of a gateway towards the packets that it passes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Mode {
    /// A wire with a filter: stations on its sides see each other.
    #[default]
    Bridge,
    /// A router, with the routes and neighbours of the kernel.
    Routed,
}
