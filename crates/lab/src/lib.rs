//! Network-namespace labs with real programs and the real kernel as peer.
//!
//! A [`Lab`] is three network namespaces joined by veth pairs: a client, a
//! gateway and a server. The gateway is Stateway, a kernel bridge or kernel
//! forwarding ([`Gateway`]), and real programs (`iperf3`, `curl`, `ping`,
//! `traceroute`, `dig`) talk through it. The same functions serve the tests,
//! `stateway demo` and `stateway bench io`.
//!
//! # Requirements
//!
//! Linux with the programs of util-linux, iproute2 and procps. A lab runs as root, or as any user
//! where user namespaces are allowed: then one user namespace, in which the user is root, owns
//! every namespace of the lab. Receive packet steering ([`Placement`]) needs real root. If
//! something is missing, functions fail with [`Error::Unavailable`], which a test prints as
//! `SKIPPED: why`.
//!
//! # After the lab
//!
//! A lab leaves nothing behind, even if the calling process is killed: see [`Namespace`].

mod attack;
mod capture;
mod clients;
mod conntrack;
mod conntrackd;
mod contender;
mod datagram;
mod error;
mod flood;
mod greed;
mod honest;
mod host;
mod namespace;
mod open_loop;
mod packet;
mod placement;
mod program;
mod random;
mod ratio;
mod requests;
mod spoofed;
mod stateway;
mod topology;
mod traffic;
mod transactions;

pub use attack::Attack;
pub use capture::Capture;
pub use clients::dns::DnsServer;
pub use clients::files::{FileProtocol, FileServer, PYTHON, ftp_server};
pub use clients::http::{Download, HttpServer};
pub use clients::iperf::{TcpReport, UdpReport, iperf_tcp, iperf_tcp_to, iperf_udp};
pub use clients::path::{Hop, PingReport, Route, ping, traceroute};
pub use conntrack::{ConntrackLine, KernelHelper, Tuple, attach_kernel_helpers, kernel_conntrack};
pub use conntrackd::{ConntrackdReport, conntrackd};
pub use contender::Contender;
pub use datagram::{
    Arrival, Datagrams, END, NumberedReport, NumberedSpec, Recorder, Sending, digest,
};
pub use error::{Error, Result};
pub use flood::{FLOOD_GATEWAYS, FLOOD_RATES, FloodReport, FloodSpec, at_pace, flood};
pub use greed::{Greed, GreedReport, greed};
pub use honest::Requests;
pub use namespace::Namespace;
pub use open_loop::{OpenLoopReport, OpenLoopSpec, open_loop};
pub use packet::{Piece, udp, udp_sum};
pub use placement::{CpuSet, Placement};
pub use program::{Background, Output, Program, Transport};
pub use random::Random;
pub use ratio::{Contest, Load, RatioReport, RatioSpec, Series, Variant, ratio};
pub use requests::{PacketFlood, RequestsReport, requests_beside};
pub use spoofed::Spoofed;
pub use stateway::{Stateway, StatewaySpec};
pub use topology::{Family, FarHost, Gateway, Lab, Side, Tracking};
pub use traffic::{GeneratorSpec, RateReport, packet_rate};
pub use transactions::{Transactions, TransactionsReport, TransactionsSpec, transactions};
