//! The frames of the flows that go through a gateway.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use wire::build::{PacketBuilder, Tcp};
use wire::{Family, Network, TcpFlags, Transport, checksum, dissect, protocol};

use super::world::{OWN, PEERS, STATIONS};
use super::wrong;
use crate::Error;

/// The shortest frame, without frame check sequence, bytes.
const LENGTH: usize = 60;
/// A frame as it comes.
pub type Frame = Vec<u8>;

/// The discard service (RFC 863), which clients ask for.
pub const SERVICE: u16 = 9;
/// Payload of a datagram that fills the shortest frame, bytes.
const PAYLOAD: usize = LENGTH - 42;
/// Payload of the IPv4 packets that a datagram in pieces comes in, bytes.
const PIECE: usize = 16;
/// Where a frame has the payload of its link.
const LINK: usize = 14;

/// How the packets of a flow look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// IPv4, to 61 servers.
    Ipv4,
    /// IPv6, to 61 servers.
    Ipv6,
    /// IPv4, each datagram in two pieces.
    Pieces,
    /// IPv4, to an address of the gateway, which forwards to one server.
    Published,
}

/// A flow: 1024 clients, each with a port after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    /// Its number.
    pub number: u32,
    /// How its packets look.
    pub style: Style,
}

impl Flow {
    /// Address and port of the client: for IPv4 of the network for benchmarks (RFC 2544).
    pub fn client(self) -> SocketAddr {
        let host = 1 + (self.number & 0x3ff) as u16;
        let [high, low] = host.to_be_bytes();
        let address = match self.style {
            Style::Ipv6 => Ipv6Addr::new(0x2001, 0xdb8, 0x18, 0, 0, 0, 0, host).into(),
            _ => Ipv4Addr::new(198, 18, high, low).into(),
        };
        SocketAddr::new(address, 1024 + (self.number >> 10) as u16)
    }

    /// Those that the client asks for.
    pub fn server(self) -> SocketAddr {
        let host = 1 + (self.number % 61) as u8;
        let address: IpAddr = match self.style {
            Style::Ipv6 => Ipv6Addr::new(0x2001, 0xdb8, 0x203, 0, 0, 0, 0, host.into()).into(),
            Style::Published => OWN[0].into(),
            Style::Ipv4 | Style::Pieces => Ipv4Addr::new(203, 0, 113, host).into(),
        };
        SocketAddr::new(address, SERVICE)
    }

    /// A datagram of the client, which carries the number of its flow, in the frames that it
    /// comes in.
    pub fn request(self) -> Vec<Frame> {
        let mut payload = [0; PAYLOAD];
        payload[..4].copy_from_slice(&self.number.to_be_bytes());
        let mut whole = Vec::new();
        self.builder().udp(self.client().port(), SERVICE, &payload, &mut whole);
        let mut frames = match self.style {
            Style::Pieces => {
                let datagram = &whole[LINK + 20..];
                self.builder().id(self.number).fragments(protocol::UDP, datagram, PIECE)
            }
            _ => vec![whole],
        };
        frames.iter_mut().for_each(pad);
        frames
    }

    /// The first segment of a connection.
    pub fn open(self) -> Frame {
        self.segment(TcpFlags::SYN, 0)
    }

    /// The segment by which the client gives up its connection.
    pub fn reset(self) -> Frame {
        self.segment(TcpFlags::RST, 1)
    }

    fn segment(self, flags: TcpFlags, sequence: u32) -> Frame {
        let tcp = Tcp {
            source_port: self.client().port(),
            destination_port: SERVICE,
            sequence,
            flags,
            window: 0xffff,
            ..Tcp::default()
        };
        let mut frame = Vec::new();
        self.builder().tcp(&tcp, &[], &mut frame);
        pad(&mut frame);
        frame
    }

    fn builder(self) -> PacketBuilder {
        let builder = match (self.client().ip(), self.server().ip()) {
            (IpAddr::V4(client), IpAddr::V4(server)) => {
                PacketBuilder::v4(client.octets(), server.octets())
            }
            (client, server) => PacketBuilder::v6(wire::mapped(client), wire::mapped(server)),
        };
        let builder = builder.macs(PEERS[0], STATIONS[0]);
        if self.style == Style::Pieces { builder } else { builder.dont_fragment() }
    }
}

fn pad(frame: &mut Frame) {
    frame.resize(frame.len().max(LENGTH), 0);
}

/// The headers of a frame.
pub fn headers(frame: &[u8]) -> Result<Network, Error> {
    let dissected = dissect(frame).ok().and_then(|found| found.network);
    dissected.ok_or_else(|| wrong("a frame holds no whole packet".to_owned()))
}

/// The server's answer to a request, or to a piece of one, as it has come to the server.
pub fn answer(request: &[u8]) -> Result<Frame, Error> {
    let network = headers(request)?;
    let mut frame = request.to_vec();
    let mut swap = |at: usize, length: usize| {
        for at in at..at + length {
            frame.swap(at, at + length);
        }
    };
    swap(0, 6);
    // A checksum is the same in any order of its words.
    match network.family {
        Family::V4 => swap(LINK + 12, 4),
        Family::V6 => swap(LINK + 8, 16),
    }
    if network.fragment.is_none_or(|piece| piece.offset == 0) {
        swap(network.transport_offset.into(), 2);
    }
    Ok(frame)
}

/// The ends of a flow that a gateway translates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ends {
    /// The address that servers see in place of the client's, with whatever port.
    pub client: Option<Ipv4Addr>,
    /// Where requests go in place of the address and port that they are for.
    pub server: Option<SocketAddr>,
}

/// True if a datagram of a flow of that style has the ends behind the gateway that it should
/// have there, and right checksums.
///
/// # Errors
/// [`Error::Wrong`] if not.
pub fn check(frame: &[u8], style: Style, is_answer: bool, ends: Ends) -> Result<(), Error> {
    let network = headers(frame)?;
    let payload = usize::from(network.transport_offset) + 8;
    let number = frame.get(payload..payload + 4).and_then(|bytes| bytes.try_into().ok());
    let flow = Flow { number: u32::from_be_bytes(number.unwrap_or_default()), style };
    let (source_port, destination_port) = match network.transport {
        Transport::Udp { source_port, destination_port, .. } => (source_port, destination_port),
        _ => (0, 0),
    };
    let found = [
        SocketAddr::new(network.source_ip(), source_port),
        SocketAddr::new(network.destination_ip(), destination_port),
    ];
    let expected = if is_answer {
        [flow.server(), flow.client()]
    } else {
        // A masquerade may give any port.
        let masqueraded = ends.client.map(|client| SocketAddr::new(client.into(), source_port));
        [masqueraded.unwrap_or(flow.client()), ends.server.unwrap_or(flow.server())]
    };
    if found == expected && checksum::verify_transport(frame, &network) {
        Ok(())
    } else {
        Err(wrong(format!("{flow:?} came out as {found:?}")))
    }
}
