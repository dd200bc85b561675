//! Asks the kernel whether a packet belongs to a connection that it tracks (ctnetlink).

use std::io;
use std::net::{IpAddr, SocketAddr};

use netlink_sys::protocols::NETLINK_NETFILTER;

use crate::lookup::Lookup;
use crate::nf_tables::Message;
use crate::sockets::Ends;

/// Attributes (linux/netfilter/nfnetlink_conntrack.h): the tuple of a packet, its addresses and its
/// ports.
const TUPLE: u16 = 1;
const ADDRESSES: u16 = 1;
const V4: [u16; 2] = [1, 2];
const V6: [u16; 2] = [3, 4];
const TRANSPORT: u16 = 2;
const PROTOCOL: u16 = 1;
const PORTS: [u16; 2] = [2, 3];
/// The connections that the kernel tracks in this network namespace, outside of zones.
#[derive(Debug)]
pub struct Tracked(Lookup);

impl Tracked {
    /// Prepares to ask.
    ///
    /// # Errors
    /// The system's error.
    pub fn new() -> io::Result<Self> {
        Lookup::new(NETLINK_NETFILTER).map(Self)
    }

    /// True if a packet with these ends belongs to a connection, in either direction. The ends are
    /// those that it has when it comes in, so a reply to a translated address counts.
    ///
    /// # Errors
    /// The system's error, also if the kernel does not tell of connections (nf_conntrack_netlink).
    pub fn has(&mut self, ends: &Ends) -> io::Result<bool> {
        let answer = self.0.ask(|sequence| {
            let mut question = Vec::new();
            message(ends).write(sequence, &mut question);
            question
        })?;
        Ok(answer.is_some())
    }
}

/// The question for the connection of a packet.
fn message(ends: &Ends) -> Message {
    let Ends { protocol, source, destination, .. } = *ends;
    let both: [SocketAddr; 2] = [source, destination];
    let mut message = Message::asking_for_connection(ends.family());
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
            transport.bytes(PROTOCOL, &[protocol.number()]);
            for (end, kind) in both.iter().zip(PORTS) {
                transport.bytes(kind, &end.port().to_be_bytes());
            }
        });
    });
    message
}
