//! Asks the kernel whether a packet belongs to a connection that it tracks (ctnetlink).

use std::io;
use std::net::{IpAddr, SocketAddr};

use netlink_packet_core::{NLMSG_ERROR, NetlinkBuffer};
use netlink_sys::{Socket, SocketAddr as NetlinkAddress, protocols::NETLINK_NETFILTER};

use crate::nf_tables::Message;
use crate::sockets::{Ends, SocketProtocol};

/// Attributes (linux/netfilter/nfnetlink_conntrack.h): the tuple of a packet, its addresses and its
/// ports.
const TUPLE: u16 = 1;
const ADDRESSES: u16 = 1;
const V4: [u16; 2] = [1, 2];
const V6: [u16; 2] = [3, 4];
const TRANSPORT: u16 = 2;
const PROTOCOL: u16 = 1;
const PORTS: [u16; 2] = [2, 3];
/// Address families (socket(2)).
const INET: u8 = 2;
const INET6: u8 = 10;
/// Protocols.
const TCP: u8 = 6;
const UDP: u8 = 17;
/// The kernel's code for "there is none" (ENOENT).
const NONE: i32 = 2;

/// The connections that the kernel tracks in this network namespace, outside of zones.
#[derive(Debug)]
pub struct Tracked {
    socket: Socket,
    /// The number of the last question.
    sequence: u32,
}

impl Tracked {
    /// Prepares to ask.
    ///
    /// # Errors
    /// The system's error.
    pub fn new() -> io::Result<Self> {
        let mut socket = Socket::new(NETLINK_NETFILTER)?;
        socket.bind_auto()?;
        // The answer is there once the question was sent.
        socket.set_non_blocking(true)?;
        Ok(Self { socket, sequence: 0 })
    }

    /// True if a packet with these ends belongs to a connection, in either direction. The ends are
    /// those that it has when it comes in, so a reply to a translated address counts.
    ///
    /// # Errors
    /// The system's error, also if the kernel does not tell of connections (nf_conntrack_netlink).
    pub fn has(&mut self, ends: &Ends) -> io::Result<bool> {
        self.sequence = self.sequence.wrapping_add(1);
        let mut question = Vec::new();
        message(ends).write(self.sequence, &mut question);
        self.socket.send_to(&question, &NetlinkAddress::new(0, 0), 0)?;
        loop {
            let (bytes, from) = match self.socket.recv_from_full() {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                received => received?,
            };
            let Ok(answer) = NetlinkBuffer::new_checked(&bytes) else { continue };
            // Anybody may send to the socket; only the kernel has port 0.
            if from.port_number() != 0 || answer.sequence_number() != self.sequence {
                continue;
            }
            if answer.message_type() != NLMSG_ERROR {
                return Ok(true);
            }
            let code = answer.payload().first_chunk().map_or(0, |it| i32::from_ne_bytes(*it));
            return match -code {
                NONE => Ok(false),
                code => Err(io::Error::from_raw_os_error(code)),
            };
        }
    }
}

/// The question for the connection of a packet.
fn message(ends: &Ends) -> Message {
    let Ends { protocol, source, destination, .. } = *ends;
    let family = if destination.is_ipv4() { INET } else { INET6 };
    let protocol = match protocol {
        SocketProtocol::Tcp => TCP,
        SocketProtocol::Udp => UDP,
    };
    let both: [SocketAddr; 2] = [source, destination];
    let mut message = Message::asking_for_connection(family);
    message.nest(TUPLE, |tuple| {
        tuple.nest(ADDRESSES, |addresses| {
            for (end, (v4, v6)) in both.iter().zip(V4.into_iter().zip(V6)) {
                match end.ip() {
                    IpAddr::V4(address) => addresses.bytes(v4, &address.octets()),
                    IpAddr::V6(address) => addresses.bytes(v6, &address.octets()),
                }
            }
        });
        tuple.nest(TRANSPORT, |transport| {
            transport.bytes(PROTOCOL, &[protocol]);
            for (end, kind) in both.iter().zip(PORTS) {
                transport.bytes(kind, &end.port().to_be_bytes());
            }
        });
    });
    message
}
