//! A packet that an operator asks about, in words: protocol, ends, interfaces and state.
//!
//! ```text
//! tcp 192.0.2.1:1234 198.51.100.2:443 in lan0 out wan0 state new flags syn
//! icmp 192.0.2.1 198.51.100.2 type echo-request in lan0
//! udp [2001:db8::1]:5353 [2001:db8::2]:53
//! 02000000000202000000000108004500... in wan0 out lan0
//! ```

mod words;

use std::net::{IpAddr, SocketAddr, SocketAddrV6};

use flow::DropReason;
use wire::build::{PacketBuilder, Tcp};
use wire::{Network, TcpFlags, Transport, dissect, protocol};

use self::words::Words;
pub use self::words::protocol_number;
use crate::evaluate::{CtState, Details, Tuple};

/// The notation of a question, for messages and help.
pub const USAGE: &str = "PROTOCOL SOURCE[:PORT] DESTINATION[:PORT], or a frame as hexadecimal \
     digits; then any of: in INTERFACE, out INTERFACE, state new|established|related|invalid|\
     untracked, reply, flags syn,ack, type TYPE, code CODE, id NUMBER, status dnat,assured, \
     mark NUMBER, ct-mark NUMBER, zone NUMBER, vlan NUMBER, ttl NUMBER, dscp NAME, length BYTES";

/// The largest number of bytes of a packet.
const MAX_FRAME: usize = 65_535 + 14 + 4;
/// Source port for a question that names none: the first dynamic one (RFC 6335 section 6).
const DYNAMIC_PORT: u16 = 49_152;

/// The reason why a question can not be answered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ProbeError(pub String);

/// A packet with its surroundings.
#[derive(Clone, Debug)]
pub struct Probe {
    /// The frame, link header first.
    pub frame: Vec<u8>,
    /// Its headers.
    pub network: Network,
    /// Outermost VLAN identifier, 0 for none.
    pub vlan: u16,
    /// The input interface.
    pub input: Option<String>,
    /// The output interface.
    pub output: Option<String>,
    /// Its tracking state, if the question names one.
    pub state: Option<CtState>,
    /// True if it comes from the end that did not open the connection.
    pub reply: bool,
    /// Status bits of its connection.
    pub status: u32,
    /// Mark of the packet.
    pub mark: u32,
    /// Mark of its connection.
    pub ct_mark: u32,
    /// Zone of its connection.
    pub zone: u16,
    /// Known addresses of the host. The host's kernel takes packets for them, unless a rule or the
    /// connection gives a packet another destination.
    pub host_addresses: Vec<IpAddr>,
}

impl Probe {
    /// Reads a question.
    ///
    /// # Errors
    /// Names the word that is not understood, and the words that are.
    pub fn parse(text: &str) -> Result<Self, ProbeError> {
        let mut words: Vec<&str> = text.split_whitespace().collect();
        if words.is_empty() {
            return Err(ProbeError(format!("no packet is named; write {USAGE}")));
        }
        let first = words.remove(0);
        match hexadecimal(first) {
            Some(frame) => {
                let words = Words::parse(&words)?;
                words.refuse_for_frame()?;
                Self::new(frame?, &words)
            }
            None => Self::of_tuple(first, &words),
        }
    }

    /// Reads a question about a frame; `text` holds further words, such as interfaces and marks.
    ///
    /// # Errors
    /// Names the word that is not understood.
    pub fn of_frame(frame: Vec<u8>, text: &str) -> Result<Self, ProbeError> {
        let words = Words::parse(&text.split_whitespace().collect::<Vec<_>>())?;
        words.refuse_for_frame()?;
        Self::new(frame, &words)
    }

    fn of_tuple(name: &str, rest: &[&str]) -> Result<Self, ProbeError> {
        let number = words::protocol(name)?;
        let mut rest = rest.iter().copied().filter(|word| !matches!(*word, ">" | "->"));
        let mut end = |which: &str, example: &str| {
            let word = rest.next();
            let word = word.ok_or_else(|| {
                ProbeError(format!("no {which} address; for example {name} {example}"))
            })?;
            words::place(word).ok_or_else(|| {
                ProbeError(format!(
                    "{word:?} is no {which}; write an address, or an address with a port: \
                     192.0.2.1:80, [2001:db8::1]:80"
                ))
            })
        };
        let source = end("source", "192.0.2.1 198.51.100.2")?;
        let destination = end("destination", "192.0.2.1 198.51.100.2")?;
        let words = Words::parse(&rest.collect::<Vec<_>>())?;
        let frame = written(name, number, source, destination, &words)?;
        Self::new(frame, &words)
    }

    fn new(frame: Vec<u8>, words: &Words) -> Result<Self, ProbeError> {
        if frame.len() > MAX_FRAME {
            return Err(ProbeError(format!("more than {MAX_FRAME} bytes of a frame")));
        }
        let dissected = dissect(&frame);
        let dissected = dissected.map_err(|malformed| {
            let what = DropReason::from(malformed).meaning().trim_end_matches('.');
            ProbeError(format!("rules do not see this frame: {what}"))
        })?;
        let network = dissected.network.ok_or_else(|| {
            ProbeError(format!(
                "a frame of EtherType {:#06x} is no IP packet; rules do not see it",
                dissected.ethertype
            ))
        })?;
        Ok(Self {
            frame,
            network,
            vlan: dissected.vlan,
            input: words.input.clone(),
            output: words.output.clone(),
            state: words.state,
            reply: words.reply,
            status: words.status,
            mark: words.mark,
            ct_mark: words.ct_mark,
            zone: words.zone,
            host_addresses: Vec::new(),
        })
    }

    /// The tracking state if the question names none. Neighbour discovery is not tracked, an ICMP
    /// error belongs to a connection, and every other packet opens one.
    pub fn supposed_state(&self) -> CtState {
        /// Router solicitation to redirect (RFC 4861 section 4).
        const NEIGHBOUR_DISCOVERY: std::ops::RangeInclusive<u8> = 133..=137;
        match (self.state, self.network.transport) {
            (Some(state), _) => state,
            (None, _) if self.reply => CtState::Established,
            (None, Transport::IcmpError(_)) => CtState::Related,
            (None, Transport::IcmpOther { kind, .. })
                if self.network.protocol == protocol::ICMPV6
                    && NEIGHBOUR_DISCOVERY.contains(&kind) =>
            {
                CtState::Untracked
            }
            (None, _) => CtState::New,
        }
    }
}

/// The connection of a packet, as far as the question describes it.
impl Details for Probe {
    fn tuple(&self, reply: bool) -> Tuple {
        let Network { source, destination, transport, .. } = self.network;
        let (source_port, destination_port) = transport.ports().unwrap_or_default();
        let tuple = Tuple { source, destination, source_port, destination_port };
        if reply == self.reply {
            return tuple;
        }
        Tuple {
            source: destination,
            destination: source,
            source_port: destination_port,
            destination_port: source_port,
        }
    }

    fn counts(&self) -> Option<[(u64, u64); 2]> {
        None
    }

    fn expiration_ms(&self) -> u64 {
        0
    }

    fn helper(&self) -> u128 {
        0
    }

    fn label(&self) -> u128 {
        0
    }
}

/// The bytes of a word of hexadecimal digits, if it is long enough for a frame.
fn hexadecimal(word: &str) -> Option<Result<Vec<u8>, ProbeError>> {
    /// Least digits of a frame: those of an IPv4 header. No protocol has such a name.
    const LEAST: usize = 40;
    let digits: Vec<u8> = word.bytes().filter(|byte| *byte != b':').collect();
    if digits.len() < LEAST || !digits.iter().all(u8::is_ascii_hexdigit) {
        return None;
    }
    if digits.len() % 2 == 1 {
        return Some(Err(ProbeError("a frame with half a byte: a digit is missing".to_owned())));
    }
    let digit = |byte: u8| char::from(byte).to_digit(16).unwrap_or(0) as u8;
    let bytes: Vec<u8> =
        digits.chunks_exact(2).map(|pair| digit(pair[0]) << 4 | digit(pair[1])).collect();
    Some(Ok(with_link(bytes)))
}

/// Puts a link header in front of an IP packet without one.
fn with_link(bytes: Vec<u8>) -> Vec<u8> {
    let is_frame = dissect(&bytes).is_ok_and(|frame| frame.network.is_some());
    let ethertype: [u8; 2] = match bytes.first().map(|byte| byte >> 4) {
        Some(4) if !is_frame => [0x08, 0x00],
        Some(6) if !is_frame => [0x86, 0xdd],
        _ => return bytes,
    };
    let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1];
    frame.extend(ethertype);
    frame.extend(bytes);
    frame
}

type End = (IpAddr, Option<u16>);

/// Builds the frame of a question.
fn written(
    name: &str,
    number: u8,
    (source, source_port): End,
    (destination, destination_port): End,
    words: &Words,
) -> Result<Vec<u8>, ProbeError> {
    let builder = match (source, destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            PacketBuilder::v4(source.octets(), destination.octets())
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            PacketBuilder::v6(source.octets(), destination.octets())
        }
        _ => return Err(ProbeError("one address is of IPv4 and the other of IPv6".to_owned())),
    };
    let is_v4 = source.is_ipv4();
    let mut builder = builder.ttl(words.ttl.unwrap_or(64)).traffic_class(words.dscp << 2);
    if let Some(vlan) = words.vlan {
        builder = builder.vlan(vlan);
    }
    let ports = ports_of(name, number, source_port, (destination, destination_port))?;
    words.refuse_for_protocol(number)?;
    let supposed = if words.is_open() { TcpFlags::SYN } else { TcpFlags::ACK };
    let flags = words.flags.unwrap_or(supposed);
    // Every host announces its segment size with a SYN: 1460 bytes, 1440 over IPv6.
    let segment_size: [u8; 4] = if is_v4 { [2, 4, 0x05, 0xb4] } else { [2, 4, 0x05, 0xa0] };
    let options: &[u8] = if flags.contains(TcpFlags::SYN) { &segment_size } else { &[] };
    let header = match number {
        protocol::TCP => 20 + options.len(),
        protocol::SCTP => 12 + 20,
        protocol::DCCP => 16,
        protocol::GRE => 4,
        _ => 8,
    };
    let ip = if is_v4 { 20 } else { 40 };
    let payload = match words.length {
        None => 0,
        Some(length) => usize::from(length).checked_sub(ip + header).ok_or_else(|| {
            ProbeError(format!("length {length} is less than the headers, {}", ip + header))
        })?,
    };
    let payload = vec![0; payload];
    let mut frame = Vec::new();
    match number {
        protocol::TCP => {
            let tcp = Tcp {
                source_port: ports.0,
                destination_port: ports.1,
                sequence: 1,
                flags,
                window: u16::MAX,
                options,
                ..Tcp::default()
            };
            builder.tcp(&tcp, &payload, &mut frame);
        }
        protocol::UDP => builder.udp(ports.0, ports.1, &payload, &mut frame),
        protocol::ICMP | protocol::ICMPV6 => {
            let right = if number == protocol::ICMP { is_v4 } else { !is_v4 };
            if !right {
                return Err(ProbeError(format!("{name} does not run over this address family")));
            }
            let echo = if is_v4 { 8 } else { 128 };
            let kind = words.icmp_type(is_v4)?.unwrap_or(echo);
            let [high, low] = words.id.unwrap_or(1).to_be_bytes();
            builder.icmp(kind, words.code.unwrap_or(0), [high, low, 0, 1], &payload, &mut frame);
        }
        _ => builder.transport(number, &bare(number, ports, payload), &mut frame),
    }
    Ok(frame)
}

/// The ports of a tuple, if its protocol has any.
fn ports_of(
    name: &str,
    number: u8,
    source: Option<u16>,
    (address, destination): End,
) -> Result<(u16, u16), ProbeError> {
    let has_ports = matches!(
        number,
        protocol::TCP | protocol::UDP | protocol::UDPLITE | protocol::SCTP | protocol::DCCP
    );
    if !has_ports && (source.is_some() || destination.is_some()) {
        return Err(ProbeError(format!("{name} has no ports; write addresses alone")));
    }
    match destination {
        Some(destination) => Ok((source.unwrap_or(DYNAMIC_PORT), destination)),
        None if has_ports => Err(ProbeError(format!(
            "{name} needs a destination port; for example {}",
            with_port(address)
        ))),
        None => Ok((0, 0)),
    }
}

/// An address with a port, as an example. The end of an IPv6 address may be meant as a port.
fn with_port(address: IpAddr) -> String {
    let text = address.to_string();
    let meant = text.rsplit_once(':').and_then(|(address, port)| {
        let (address, port) = (address.parse().ok()?, port.parse().ok()?);
        Some(SocketAddr::V6(SocketAddrV6::new(address, port, 0, 0)))
    });
    match meant {
        Some(meant) => format!("{meant}, since {text} is an address"),
        None => SocketAddr::new(address, 443).to_string(),
    }
}

/// The shortest transport header that the dissector accepts.
fn bare(number: u8, (source, destination): (u16, u16), payload: Vec<u8>) -> Vec<u8> {
    let ports = [source.to_be_bytes(), destination.to_be_bytes()].concat();
    let mut bytes = match number {
        protocol::UDPLITE => [&ports[..], &[0, 8, 0, 0]].concat(),
        // An INIT chunk (RFC 9260 section 3.3.2).
        protocol::SCTP => [
            &ports[..],
            &[0, 0, 0, 0, 0, 0, 0, 0],
            &[1, 0, 0, 20, 0, 0, 0, 1, 0, 0, 0xff, 0xff, 0, 1, 0, 1, 0, 0, 0, 1],
        ]
        .concat(),
        // A request: long sequence numbers and a service code (RFC 4340 section 5.1).
        protocol::DCCP => [&ports[..], &[5, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0]].concat(),
        protocol::GRE => vec![0, 0, 0x88, 0xbe],
        _ => vec![0; 8],
    };
    bytes.extend(payload);
    bytes
}

#[cfg(test)]
#[path = "../probe_tests.rs"]
mod tests;
