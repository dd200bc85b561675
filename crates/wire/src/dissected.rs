//! The result of dissecting a frame.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// IP protocol numbers (IANA "Assigned Internet Protocol Numbers").
pub mod protocol {
    /// Internet Control Message Protocol, RFC 792.
    pub const ICMP: u8 = 1;
    /// IPv4 in IP encapsulation, RFC 2003.
    pub const IPIP: u8 = 4;
    /// Transmission Control Protocol, RFC 9293.
    pub const TCP: u8 = 6;
    /// User Datagram Protocol, RFC 768.
    pub const UDP: u8 = 17;
    /// Datagram Congestion Control Protocol, RFC 4340.
    pub const DCCP: u8 = 33;
    /// IPv6 encapsulation, RFC 2473.
    pub const IPV6: u8 = 41;
    /// Generic Routing Encapsulation, RFC 2784, RFC 2890; version 1 is RFC 2637.
    pub const GRE: u8 = 47;
    /// Internet Control Message Protocol for IPv6, RFC 4443.
    pub const ICMPV6: u8 = 58;
    /// IPv6 hop-by-hop options header.
    pub const HOP_BY_HOP: u8 = 0;
    /// IPv6 routing header.
    pub const ROUTING: u8 = 43;
    /// IPv6 fragment header.
    pub const FRAGMENT: u8 = 44;
    /// IPv6 destination options header.
    pub const DESTINATION_OPTIONS: u8 = 60;
    /// Authentication header.
    pub const AH: u8 = 51;
    /// IPv6 mobility header.
    pub const MOBILITY: u8 = 135;
    /// Stream Control Transmission Protocol, RFC 9260.
    pub const SCTP: u8 = 132;
    /// Lightweight User Datagram Protocol, RFC 3828.
    pub const UDPLITE: u8 = 136;
}

/// Address family of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Family {
    /// IPv4.
    V4 = 4,
    /// IPv6.
    V6 = 6,
}

/// One frame, dissected.
///
/// Offsets count bytes from the start of the frame. In a tunnel this is the outermost packet,
/// see [`inside`](crate::inside).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dissected {
    /// Network layer and what lies above it; `None` for frames that are not IP.
    pub network: Option<Network>,
    /// EtherType of the payload after VLAN tags and PPPoE, host order; below 0x0600 the length
    /// of an LLC frame. PPP's protocol numbers for IPv4 and IPv6 are mapped to their EtherTypes.
    pub ethertype: u16,
    /// Identifier (12 bits) of the outermost tag that names a VLAN, 0 if none does. A tag with
    /// identifier 0 only has a priority.
    pub vlan: u16,
}

impl Dissected {
    /// Most tunnel headers that [`inside`](crate::inside) descends into.
    pub const MAX_TUNNELS: usize = 4;
    /// Most VLAN tags of a frame.
    pub const MAX_VLAN_TAGS: usize = 4;
    /// Most MPLS labels of a frame.
    pub const MAX_MPLS_LABELS: usize = 8;
    /// Most IPv6 extension headers of a packet (RFC 8504 section 5.3 lets a node set such a
    /// limit).
    pub const MAX_EXTENSION_HEADERS: usize = 8;
}

/// The network header and everything above it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    /// Address family.
    pub family: Family,
    /// Source address in network order; IPv4 takes the IPv4-mapped form
    /// `::ffff:a.b.c.d` (RFC 4291 section 2.5.5.2).
    pub source: [u8; 16],
    /// Destination address, same form.
    pub destination: [u8; 16],
    /// Offset of the IP header.
    pub offset: u16,
    /// Offset of the first byte after the IP header and its extension headers.
    pub transport_offset: u16,
    /// Offset one past the last byte of the IP packet; Ethernet padding lies beyond.
    pub end: u32,
    /// Protocol number of the transport (after extension headers).
    pub protocol: u8,
    /// Time to live or hop limit.
    pub ttl: u8,
    /// Traffic class octet (DSCP and ECN).
    pub traffic_class: u8,
    /// IPv4 "don't fragment"; false for IPv6, whose routers never fragment.
    pub dont_fragment: bool,
    /// Fragment fields. `None` for a whole datagram. An IPv6 atomic fragment (RFC 6946) has
    /// `Some` with offset 0 and no more fragments to come.
    pub fragment: Option<FragmentInfo>,
    /// The transport header, or why there is none.
    pub transport: Transport,
}

impl Network {
    /// Source address.
    pub fn source_ip(&self) -> IpAddr {
        ip_of(self.family, self.source)
    }

    /// Destination address.
    pub fn destination_ip(&self) -> IpAddr {
        ip_of(self.family, self.destination)
    }

    /// Bytes of the IP payload behind the extension headers.
    pub fn transport_len(&self) -> u32 {
        self.end - u32::from(self.transport_offset)
    }
}

/// An address as [`Network::source`] holds it: IPv4 in the mapped form (RFC 4291 section
/// 2.5.5.2).
pub fn mapped(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    }
}

fn ip_of(family: Family, address: [u8; 16]) -> IpAddr {
    match family {
        Family::V4 => Ipv4Addr::new(address[12], address[13], address[14], address[15]).into(),
        Family::V6 => Ipv6Addr::from(address).into(),
    }
}

/// The fields that identify and place a fragment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FragmentInfo {
    /// Identification: 16 bits for IPv4, 32 for IPv6.
    pub id: u32,
    /// Offset of this fragment in the datagram, bytes (a multiple of 8).
    pub offset: u16,
    /// More fragments follow.
    pub more: bool,
    /// Frame offset of the fragmentable part: the byte after the IPv4 header or
    /// after the IPv6 fragment header.
    pub payload_offset: u16,
}

impl FragmentInfo {
    /// True for a fragment that is the whole datagram (RFC 6946).
    pub fn is_atomic(&self) -> bool {
        self.offset == 0 && !self.more
    }
}

/// The transport header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// TCP.
    Tcp(TcpInfo),
    /// UDP or UDP-Lite.
    Udp {
        /// Source port.
        source_port: u16,
        /// Destination port.
        destination_port: u16,
        /// The length field (UDP-Lite: checksum coverage), bytes.
        length: u16,
    },
    /// An ICMP or ICMPv6 query or its answer.
    IcmpQuery(IcmpQuery),
    /// An ICMP or ICMPv6 error with the packet that it quotes.
    IcmpError(IcmpError),
    /// Any other ICMP or ICMPv6 message: neighbour discovery, multicast
    /// listener discovery, redirects without a quote that could be read.
    IcmpOther {
        /// ICMP type.
        kind: u8,
        /// ICMP code.
        code: u8,
    },
    /// SCTP.
    Sctp {
        /// Source port.
        source_port: u16,
        /// Destination port.
        destination_port: u16,
        /// Verification tag.
        verification_tag: u32,
    },
    /// DCCP.
    Dccp {
        /// Source port.
        source_port: u16,
        /// Destination port.
        destination_port: u16,
        /// Packet type, 0 (Request) to 15.
        kind: u8,
    },
    /// GRE.
    Gre {
        /// Version 0 (RFC 2784) or 1 (RFC 2637, PPTP).
        version: u8,
        /// The key (RFC 2890), 0 if there is none; for version 1 the receiver's call id.
        key: u32,
    },
    /// A protocol that Stateway knows no ports of.
    Other,
    /// A fragment other than the first: no transport header is present.
    LaterFragment,
}

impl Transport {
    /// Source and destination port; `None` if the protocol has no ports.
    #[inline]
    pub const fn ports(&self) -> Option<(u16, u16)> {
        match *self {
            Self::Tcp(TcpInfo { source_port, destination_port, .. })
            | Self::Udp { source_port, destination_port, .. }
            | Self::Sctp { source_port, destination_port, .. }
            | Self::Dccp { source_port, destination_port, .. } => {
                Some((source_port, destination_port))
            }
            _ => None,
        }
    }
}

/// TCP header fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcpInfo {
    /// Source port.
    pub source_port: u16,
    /// Destination port.
    pub destination_port: u16,
    /// Sequence number.
    pub sequence: u32,
    /// Acknowledgment number.
    pub acknowledgment: u32,
    /// Window as carried, unscaled.
    pub window: u16,
    /// Control bits.
    pub flags: TcpFlags,
    /// Header length with options, bytes (20 to 60).
    pub header_len: u8,
}

/// TCP control bits, in wire order (RFC 9293 section 3.1).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct TcpFlags(pub u8);

impl TcpFlags {
    /// No more data from the sender.
    pub const FIN: Self = Self(0x01);
    /// Synchronise sequence numbers.
    pub const SYN: Self = Self(0x02);
    /// Reset the connection.
    pub const RST: Self = Self(0x04);
    /// Push.
    pub const PSH: Self = Self(0x08);
    /// The acknowledgment field is significant.
    pub const ACK: Self = Self(0x10);
    /// The urgent pointer is significant.
    pub const URG: Self = Self(0x20);
    /// ECN echo (RFC 3168).
    pub const ECE: Self = Self(0x40);
    /// Congestion window reduced (RFC 3168).
    pub const CWR: Self = Self(0x80);

    /// True when every bit of `other` is set.
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// The bits of both.
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// These bits without those of `other`.
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }
}

impl std::fmt::Debug for TcpFlags {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        const NAMES: [&str; 8] = ["FIN", "SYN", "RST", "PSH", "ACK", "URG", "ECE", "CWR"];
        let mut first = true;
        for (bit, name) in NAMES.iter().enumerate() {
            if self.0 & (1 << bit) != 0 {
                f.write_str(if first { "" } else { "|" })?;
                f.write_str(name)?;
                first = false;
            }
        }
        if first { f.write_str("none") } else { Ok(()) }
    }
}

/// An ICMP query or answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IcmpQuery {
    /// The kind of query.
    pub kind: QueryKind,
    /// True for the answer.
    pub reply: bool,
    /// The type as carried.
    pub icmp_type: u8,
    /// The code as carried.
    pub code: u8,
    /// Identifier.
    pub id: u16,
}

/// The queries that open a tracked flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum QueryKind {
    /// ICMP echo (types 8 and 0), RFC 792.
    Echo = 0,
    /// ICMP timestamp (13 and 14), RFC 792.
    Timestamp = 1,
    /// ICMP information (15 and 16), RFC 792, deprecated by RFC 6918.
    Information = 2,
    /// ICMP address mask (17 and 18), RFC 950, deprecated by RFC 6918.
    AddressMask = 3,
    /// ICMPv6 echo (128 and 129), RFC 4443.
    EchoV6 = 4,
    /// ICMPv6 node information (139 and 140), RFC 4620.
    NodeInformation = 5,
}

impl QueryKind {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::Echo,
        Self::Timestamp,
        Self::Information,
        Self::AddressMask,
        Self::EchoV6,
        Self::NodeInformation,
    ];

    /// The ICMP type of the question.
    pub const fn request_type(self) -> u8 {
        match self {
            Self::Echo => 8,
            Self::Timestamp => 13,
            Self::Information => 15,
            Self::AddressMask => 17,
            Self::EchoV6 => 128,
            Self::NodeInformation => 139,
        }
    }

    /// The ICMP type of the answer.
    pub const fn reply_type(self) -> u8 {
        match self {
            Self::Echo => 0,
            Self::Timestamp => 14,
            Self::Information => 16,
            Self::AddressMask => 18,
            Self::EchoV6 => 129,
            Self::NodeInformation => 140,
        }
    }
}

/// An ICMP or ICMPv6 error message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IcmpError {
    /// ICMP type.
    pub kind: u8,
    /// ICMP code.
    pub code: u8,
    /// The quoted packet; `None` if the quote is too short or is a later fragment, which names
    /// no flow.
    pub quoted: Option<Quoted>,
}

impl IcmpError {
    /// The type of a redirect for IPv4 (RFC 792). That of ICMPv6 is a message of neighbour discovery.
    pub const REDIRECT: u8 = 5;
}

/// The packet that an ICMP error quotes, as far as the quote reaches
/// (RFC 792: the IP header and 64 bits; RFC 4443: as much as fits).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quoted {
    /// Source of the quoted packet, form as in [`Network::source`].
    pub source: [u8; 16],
    /// Destination of the quoted packet.
    pub destination: [u8; 16],
    /// Frame offset of the quoted IP header.
    pub offset: u16,
    /// Frame offset of the quoted transport header.
    pub transport_offset: u16,
    /// Protocol number of the quoted transport.
    pub protocol: u8,
    /// Ports or identifiers of the quoted transport.
    pub transport: QuotedTransport,
}

/// The fields of the quoted transport that name the flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuotedTransport {
    /// TCP, UDP, UDP-Lite, SCTP, DCCP.
    Ports {
        /// Source port.
        source: u16,
        /// Destination port.
        destination: u16,
    },
    /// An ICMP query or answer.
    Query(IcmpQuery),
    /// GRE.
    Gre {
        /// Version.
        version: u8,
        /// Key, as in [`Transport::Gre`].
        key: u32,
    },
    /// A protocol without ports.
    Other,
}

/// Why a frame could not be dissected. Each variant names the first header that is cut short or
/// contradicts itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Malformed {
    /// An Ethernet header cut short, a frame cut off inside VLAN tags, PPPoE or MPLS, or PPPoE
    /// of a version, type or code that sessions do not have.
    Link,
    /// More VLAN tags than [`Dissected::MAX_VLAN_TAGS`] or more MPLS labels than
    /// [`Dissected::MAX_MPLS_LABELS`].
    LinkDepth,
    /// PPP in a PPPoE session that is neither plain IP nor control: a packet may be hidden in
    /// it.
    HiddenPpp,
    /// IPv4: wrong version or header length, total length beyond the frame or
    /// shorter than the header, or a wrong header checksum.
    Ipv4Header,
    /// IPv6: wrong version or a payload length beyond the frame.
    Ipv6Header,
    /// IPv6 extension headers cut short, or more of them than the limit.
    ExtensionHeaders,
    /// Fragment before the last with a length that is no multiple of 8 (RFC 791
    /// section 2.3, RFC 8200 section 4.5).
    FragmentLength,
    /// Fragment whose end makes a datagram of more than 65535 bytes.
    FragmentOversize,
    /// Fragment without payload.
    FragmentEmpty,
    /// First fragment that does not hold the whole header chain with the transport
    /// header (RFC 7112 section 5, RFC 1858 section 3), or an IPv4 fragment of TCP
    /// that begins inside its header, at 8 bytes (RFC 3128 section 2.1).
    FirstFragment,
    /// TCP header cut short, or a data offset below 5 or beyond the packet.
    Tcp,
    /// UDP header cut short, or a length field that does not fit.
    Udp,
    /// ICMP or ICMPv6 header cut short.
    Icmp,
    /// SCTP common header or chunk cut short, or a chunk with a tag of zero.
    Sctp,
    /// DCCP header cut short, a data offset that does not fit, or a reserved type.
    Dccp,
    /// GRE header cut short or with reserved routing.
    Gre,
}
