//! Asks the kernel which of the host's sockets would get a packet (sock_diag(7)).

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, UdpSocket};
use std::ops::Range;

use fib::LinkId;
use netlink_packet_core::NLM_F_REQUEST;
use netlink_sys::protocols::NETLINK_SOCK_DIAG;

use crate::lookup::Lookup;

/// The message (linux/sock_diag.h).
const BY_FAMILY: u16 = 20;
/// Header of netlink, and the request behind it (`inet_diag_req_v2` of linux/inet_diag.h), bytes.
const HEADER: usize = 16;
const REQUEST: usize = 56;
/// The port that the socket is connected to, in the answer (`inet_diag_msg`).
const OTHER_PORT: Range<usize> = 6..8;
/// A protocol whose sockets can be asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SocketProtocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
}

/// The ends of a packet that came in. Both are of one family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ends {
    /// Its protocol.
    pub protocol: SocketProtocol,
    /// Its source.
    pub source: SocketAddr,
    /// Its destination, an address of the host.
    pub destination: SocketAddr,
    /// The interface that it came in by.
    pub link: LinkId,
}

/// The socket that would get a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Receiver {
    /// There is none.
    Nobody,
    /// One that is connected to the packet's source.
    Connected,
    /// One that waits for anybody.
    Waiting,
}

/// The sockets of this network namespace.
#[derive(Debug)]
pub struct Sockets(Lookup);

impl Sockets {
    /// Prepares to ask.
    ///
    /// A kernel without the modules tcp_diag and udp_diag answers every question with "there is
    /// none". So sockets of this process are asked for first.
    ///
    /// # Errors
    /// The system's error. It is [`io::ErrorKind::Unsupported`] if the kernel has no such modules.
    pub fn new() -> io::Result<Self> {
        let mut it = Self(Lookup::new(NETLINK_SOCK_DIAG)?);
        let source = (Ipv4Addr::LOCALHOST, 9).into();
        // Where the loopback interface is down, its address belongs to nobody.
        let own = [(Ipv4Addr::LOCALHOST, 0).into(), (Ipv4Addr::UNSPECIFIED, 0).into()];
        let own: &[SocketAddr] = &own;
        let (tcp, udp) = (TcpListener::bind(own)?, UdpSocket::bind(own)?);
        let known = [
            (SocketProtocol::Tcp, tcp.local_addr()?.port(), "tcp_diag"),
            (SocketProtocol::Udp, udp.local_addr()?.port(), "udp_diag"),
        ];
        for (protocol, port, module) in known {
            let destination = (Ipv4Addr::LOCALHOST, port).into();
            let ends = Ends { protocol, source, destination, link: LinkId(0) };
            if it.receiver(&ends)? == Receiver::Nobody {
                let why = format!("the kernel has no module {module}");
                return Err(io::Error::new(io::ErrorKind::Unsupported, why));
            }
        }
        Ok(it)
    }

    /// The socket that would get a packet with these ends. A socket of IPv6 counts for a packet of
    /// IPv4 if it takes such packets.
    ///
    /// # Errors
    /// The system's error, also if the kernel has not answered.
    pub fn receiver(&mut self, ends: &Ends) -> io::Result<Receiver> {
        let Some(answer) = self.0.ask(|sequence| question(ends, sequence))? else {
            return Ok(Receiver::Nobody);
        };
        let port = answer.get(OTHER_PORT).ok_or(io::ErrorKind::InvalidData)?;
        let is_connected = port.iter().any(|&byte| byte != 0);
        Ok(if is_connected { Receiver::Connected } else { Receiver::Waiting })
    }
}

/// The question for exactly one socket.
fn question(ends: &Ends, sequence: u32) -> Vec<u8> {
    // The kernel reads the ends of a UDP packet from its point of view, and those of a TCP packet
    // from that of the socket.
    let (first, second) = match ends.protocol {
        SocketProtocol::Tcp => (ends.destination, ends.source),
        SocketProtocol::Udp => (ends.source, ends.destination),
    };
    let mut bytes = Vec::with_capacity(HEADER + REQUEST);
    bytes.extend_from_slice(&((HEADER + REQUEST) as u32).to_ne_bytes());
    bytes.extend_from_slice(&BY_FAMILY.to_ne_bytes());
    bytes.extend_from_slice(&NLM_F_REQUEST.to_ne_bytes());
    bytes.extend_from_slice(&sequence.to_ne_bytes());
    bytes.extend_from_slice(&[0; 4]);
    bytes.extend_from_slice(&[ends.family(), ends.protocol.number(), 0, 0]);
    // Sockets in any state.
    bytes.extend_from_slice(&u32::MAX.to_ne_bytes());
    bytes.extend_from_slice(&first.port().to_be_bytes());
    bytes.extend_from_slice(&second.port().to_be_bytes());
    bytes.extend_from_slice(&address(first.ip()));
    bytes.extend_from_slice(&address(second.ip()));
    bytes.extend_from_slice(&ends.link.0.to_ne_bytes());
    // Any socket (INET_DIAG_NOCOOKIE).
    bytes.extend_from_slice(&[u8::MAX; 8]);
    bytes
}

/// An address in 16 bytes; one of IPv4 stands in the first four.
fn address(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => {
            let [a, b, c, d] = address.octets();
            Ipv6Addr::from_bits(u128::from(u32::from_be_bytes([a, b, c, d])) << 96).octets()
        }
        IpAddr::V6(address) => address.octets(),
    }
}
