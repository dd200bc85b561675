//! The class of a packet, and the reasons for which packets are dropped.

/// The relation of a packet to the flows that are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Class {
    /// Opens a flow, or belongs to one that has been seen in one direction only.
    New,
    /// Belongs to a flow that has been seen in both directions.
    Established,
    /// Belongs to a flow by way of another: an ICMP error about it, or a flow
    /// that was expected.
    Related,
    /// Can not belong to any flow; the reason says which check decided.
    Invalid(DropReason),
    /// Not subject to tracking: not IP, neighbour discovery, multicast listener
    /// discovery, or excluded by a rule.
    Untracked,
}

/// Declares the drop reasons: one list feeds the counters, the listing, the trace
/// and the documentation.
macro_rules! drop_reasons {
    ($($variant:ident = $name:literal, $meaning:literal;)*) => {
        /// Why a packet was dropped. One packet has one reason.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum DropReason {
            $(#[doc = $meaning] $variant,)*
        }

        impl DropReason {
            /// All reasons, in the order of their discriminants.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];
            /// How many reasons there are.
            pub const COUNT: usize = Self::ALL.len();

            /// The name in counters and JSON: lower case with underscores.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            /// One sentence for people.
            pub const fn meaning(self) -> &'static str {
                match self { $(Self::$variant => $meaning,)* }
            }
        }
    };
}

drop_reasons! {
    MalformedLink = "malformed_link", "Ethernet, VLAN, PPPoE or MPLS header cut short, or a PPPoE session frame with wrong fields.";
    LinkDepth = "link_depth", "More VLAN tags or MPLS labels on one another than the limit.";
    PppHidden = "ppp_hidden", "PPP in a PPPoE session that is neither plain IP nor control: compressed, encrypted, in pieces, or of another protocol.";
    FrameTooLong = "frame_too_long", "Frame of more than 65,600 bytes, the most that the gateway takes: a super-packet of interfaces that make larger ones.";
    OffloadMismatch = "offload_mismatch", "Frame whose sender leaves a checksum or the cutting of segments to others, at a place that is not that of its packet's transport.";
    MalformedIpv4 = "malformed_ipv4", "IPv4 header with wrong version, length or checksum.";
    MalformedIpv6 = "malformed_ipv6", "IPv6 header with wrong version or length.";
    MalformedExtension = "malformed_extension", "IPv6 extension headers cut short, or more than 8.";
    MalformedTcp = "malformed_tcp", "TCP header cut short or with a wrong data offset.";
    MalformedUdp = "malformed_udp", "UDP header cut short or with a wrong length.";
    MalformedIcmp = "malformed_icmp", "ICMP or ICMPv6 header cut short.";
    MalformedSctp = "malformed_sctp", "SCTP common header or chunk cut short.";
    MalformedDccp = "malformed_dccp", "DCCP header cut short, with a wrong data offset or of a reserved type.";
    MalformedGre = "malformed_gre", "GRE header cut short or with source routing.";
    FragLength = "frag_length", "Fragment before the last whose length is no multiple of 8.";
    FragOversize = "frag_oversize", "Fragment whose end makes a datagram of more than 65535 bytes.";
    FragEmpty = "frag_empty", "Fragment without payload.";
    FragHeaderChain = "frag_header_chain", "First fragment without the whole transport header, or a TCP fragment that begins inside it.";
    BadChecksum = "bad_checksum", "Transport checksum is wrong.";
    TcpFlags = "tcp_flags", "TCP control bits that no sender may combine.";
    TcpState = "tcp_state", "TCP segment that the state of its connection does not allow.";
    TcpNotSyn = "tcp_not_syn", "First TCP segment of a flow can not open one.";
    TcpSequence = "tcp_sequence", "TCP sequence number over the receiver's window.";
    TcpAck = "tcp_ack", "TCP acknowledgment of data that was never sent.";
    TcpReset = "tcp_reset", "TCP reset whose sequence number does not fit.";
    IcmpNotQuery = "icmp_not_query", "ICMP message that neither asks nor answers a known query.";
    IcmpErrorUnknown = "icmp_error_unknown", "ICMP error about a flow that is not known.";
    IcmpErrorQuote = "icmp_error_quote", "ICMP error whose quote names no flow.";
    IcmpErrorDirection = "icmp_error_direction", "ICMP error sent to someone else than the sender of the quoted packet.";
    ProtocolState = "protocol_state", "Packet that the state of its SCTP or DCCP association does not allow.";
    VerificationTag = "verification_tag", "SCTP packet with a wrong verification tag.";
    FragEnd = "frag_end", "Fragment past the end of its datagram, or with another end.";
    FragOverlap = "frag_overlap", "Fragment of a datagram whose fragments overlap.";
    FragDuplicate = "frag_duplicate", "Fragment that brings no byte that had not arrived before.";
    FragEcn = "frag_ecn", "Fragment of a datagram that mixes ECN-capable and other fragments.";
    FragTooManyPieces = "frag_too_many_pieces", "Fragment of a datagram in more pieces than ipfrag_pieces_per_4k allows.";
    FragTimeout = "frag_timeout", "Fragment of a datagram that was not complete in time.";
    FragIncomplete = "frag_incomplete", "Fragment of a datagram that still waited for others when the gateway or the capture ended.";
    FragWrap = "frag_wrap", "Fragment of an earlier datagram with the same identification.";
    FragEvicted = "frag_evicted", "Only fragment of a datagram, evicted to make room.";
    FragEvictedProgress = "frag_evicted_progress", "Fragment of a datagram in several pieces, evicted to make room.";
    FragNoMemory = "frag_no_memory", "Fragment for which no room could be made.";
    SynCookie = "syn_cookie", "TCP segment that would open a connection while the SYN proxy answers, and returns no valid cookie.";
    TableFull = "table_full", "Connection table at its limit, and no connection of the same worker can be evicted.";
    ExpectationsFull = "expectations_full", "Packet that announces a connection while nf_conntrack_expect_max others are expected and no source has announced more of them than its own.";
    HelperIncomplete = "helper_incomplete", "Segment that ends in the middle of an announcement that a helper reads.";
    NewRefused = "new_refused", "New connection that no helper has announced, from an interface with `new_connections = \"drop\"`.";
    RuleRefused = "rule_refused", "A rule of the operator's ruleset drops or rejects the packet.";
    PolicyRefused = "policy_refused", "No rule of a base chain decided, and its policy is to drop.";
    InsideRefused = "inside_refused", "Packet of a tunnel that the rules accept, while they refuse the packet inside it, which they see with `tunnels = \"judged\"`.";
    InsideUnreadable = "inside_unreadable", "Packet of a tunnel whose inside the rules can not see, though `tunnels = \"judged\"` wants them to: a fragment, another tunnel, malformed, or no IP.";
    ZoneLimit = "zone_limit", "Connections of the zone at their limit, and none of those at the same worker can be evicted.";
    SourceLimit = "source_limit", "Source with stateway_half_open_per_source half-open connections.";
    CallLimit = "call_limit", "GRE packet of a new call between two hosts that have reached the limit of announced calls.";
    PortPoolFull = "port_pool_full", "New translated connection that finds no port: none of the ports that were tried is free towards this destination, and no connection can be evicted.";
    NatSourceLimit = "nat_source_limit", "New translated connection of a source that has stateway_nat_source_share of the ports towards this destination, and none of its connections can be evicted.";
    NatClash = "nat_clash", "New translated connection whose replies would look like those of another: its protocol has no ports.";
    BacklogFull = "backlog_full", "Backlog of the packet's worker at netdev_max_backlog.";
    FlowLimit = "flow_limit", "One flow held more than its share of a half-full backlog.";
    MoveBufferFull = "move_buffer_full", "Packets that waited for a moving bucket exceeded the backlog limit.";
    NatNoAddress = "nat_no_address", "Packet to be masqueraded, while its output interface has no address of its family.";
    NatToHost = "nat_to_host", "Packet whose destination a rule has made an address of the host, as one of several: the kernel, which alone can deliver it, may have chosen another.";
    NatIcmpRedirect = "nat_icmp_redirect", "ICMP redirect about a translated connection: it is about addresses that its receiver does not see.";
    NatSynProxy = "nat_syn_proxy", "SYN to the server of a connection that the SYN proxy of a rule has accepted, while another rule translates its source: the proxy knows one address of each end.";
    AliasTaken = "alias_taken", "Packet that opens a translated connection whose replies would look like those of another connection.";
    AliasTableFull = "alias_table_full", "Packet that opens a translated connection, while the owner of the bucket of its replies has as many aliases as nf_conntrack_max.";
    AliasQueueFull = "alias_queue_full", "Too many packets of one bucket wait until the replies of their connections find them.";
    RouteChanged = "route_changed", "Packet of a masqueraded connection whose route changed to another interface, which ends the connection; or one that opens a connection and had to wait until replies find it, while its route changed so.";
    NoBuffer = "no_buffer", "No free frame buffer to copy into.";
    NoOutputPort = "no_output_port", "No interface to send on: a bridge has no other port, a route leads to an interface that is not the gateway's, or the port is down.";
    LinkLocal = "link_local", "Destination is a link-local group that a bridge does not forward (IEEE 802.1D).";
    EthertypeRefused = "ethertype_refused", "Not IP, and of a protocol that the list `pass` does not name.";
    Standby = "standby", "Frame that reached a bridge on standby, which forwards nothing.";
    OtherStation = "other_station", "Frame for another station than the router.";
    Martian = "martian", "Address that no packet on its way can have: a source that is loopback, a group, link-local or one of the router itself, or a destination that is nowhere, such as 0.0.0.0 or 127.0.0.1.";
    RpFilter = "rp_filter", "Source that can not be where the packet came from: `rp_filter` of the interface.";
    SourceRoute = "source_route", "Packet that is to go by way of hosts that its sender names (IP options LSRR and SSRR).";
    IpOptions = "ip_options", "IP options or IPv6 hop-by-hop options that contradict themselves or that no router may pass on unread; its sender is told where the protocol says so.";
    TtlExceeded = "ttl_exceeded", "Time to live or hop limit used up on the way; its sender is told.";
    NoRoute = "no_route", "No route to the destination, or one that says that it is unreachable; its sender is told.";
    RouteProhibited = "route_prohibited", "A route or a rule forbids the way; its sender is told.";
    RouteBlackhole = "route_blackhole", "A route or a rule of type blackhole.";
    RouteUnsupported = "route_unsupported", "Only the kernel could send it on: the route encapsulates, for example.";
    NoNeighbour = "no_neighbour", "The next hop does not answer for its address; the packet's sender is told.";
    NeighbourQueueFull = "neighbour_queue_full", "Too many packets wait for the address of the next hop's station.";
    OutputFull = "output_full", "Output queue of the interface refused the frame.";
    FragNeeded = "frag_needed", "Packet longer than the MTU of the output interface that must not be cut; its sender is told.";
    OutputTooLong = "output_too_long", "Frame longer than the output interface takes.";
    OutputInvalid = "output_invalid", "Frame that the output interface takes in no form: cut short, or with an offload that does not fit the packet.";
}

impl From<wire::Malformed> for DropReason {
    fn from(malformed: wire::Malformed) -> Self {
        use wire::Malformed;
        match malformed {
            Malformed::Link => Self::MalformedLink,
            Malformed::LinkDepth => Self::LinkDepth,
            Malformed::HiddenPpp => Self::PppHidden,
            Malformed::Ipv4Header => Self::MalformedIpv4,
            Malformed::Ipv6Header => Self::MalformedIpv6,
            Malformed::ExtensionHeaders => Self::MalformedExtension,
            Malformed::FragmentLength => Self::FragLength,
            Malformed::FragmentOversize => Self::FragOversize,
            Malformed::FragmentEmpty => Self::FragEmpty,
            Malformed::FirstFragment => Self::FragHeaderChain,
            Malformed::Tcp => Self::MalformedTcp,
            Malformed::Udp => Self::MalformedUdp,
            Malformed::Icmp => Self::MalformedIcmp,
            Malformed::Sctp => Self::MalformedSctp,
            Malformed::Dccp => Self::MalformedDccp,
            Malformed::Gre => Self::MalformedGre,
        }
    }
}

impl std::fmt::Display for DropReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}
