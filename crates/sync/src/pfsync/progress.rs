//! How far a connection has come: states of TCP and of other protocols, and the timeout that runs.

/// Declares an enum whose discriminants are numbers of the protocol.
macro_rules! numbered {
    ($(#[$outer:meta])* $name:ident { $($(#[$inner:meta])* $variant:ident = $number:literal,)* }) => {
        $(#[$outer])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum $name {
            $($(#[$inner])* $variant = $number,)*
        }

        impl $name {
            /// All of them, by rising number.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// The one of a number, `None` if there is none.
            pub fn of_number(number: u8) -> Option<Self> {
                Self::ALL.iter().copied().find(|it| *it as u8 == number)
            }
        }
    };
}

numbered! {
    /// The state of one end of a TCP connection, by pf's numbers: those of BSD's TCP, and two of
    /// its SYN proxy.
    TcpState {
        /// Nothing was seen, or it is over.
        Closed = 0,
        /// It waits for a SYN.
        Listen = 1,
        /// It has sent a SYN.
        SynSent = 2,
        /// It has sent and received a SYN.
        SynReceived = 3,
        /// The handshake is complete.
        Established = 4,
        /// It has received a FIN.
        CloseWait = 5,
        /// It has sent a FIN.
        FinWait1 = 6,
        /// Both have sent a FIN, and it waits for the acknowledgment of its own.
        Closing = 7,
        /// It has received a FIN and sent one.
        LastAck = 8,
        /// Its FIN is acknowledged.
        FinWait2 = 9,
        /// Both FINs are acknowledged, or one has sent a reset.
        TimeWait = 10,
        /// The SYN proxy shakes hands with the client.
        ProxySource = 11,
        /// The SYN proxy shakes hands with the server.
        ProxyDestination = 12,
    }
}

impl TcpState {
    /// How far the state is in the life of a connection. The SYN proxy comes before the handshake
    /// of the ends, although its numbers are higher.
    pub(super) const fn rank(self) -> u8 {
        match self {
            Self::ProxySource => 0,
            Self::ProxyDestination => 1,
            other => other as u8 + 2,
        }
    }
}

numbered! {
    /// The state of one end of a flow without a state machine: UDP, ICMP and others.
    FlowState {
        /// It has sent nothing.
        Silent = 0,
        /// It has sent a packet.
        Single = 1,
        /// It has sent packets, and its peer too.
        Multiple = 2,
    }
}

numbered! {
    /// The timeout of a state, by pf's numbers. The state ends when it runs out.
    Timeout {
        /// First packet of TCP.
        TcpFirst = 0,
        /// Handshake of TCP.
        TcpOpening = 1,
        /// Established TCP.
        TcpEstablished = 2,
        /// One end of TCP has closed.
        TcpClosing = 3,
        /// Both ends of TCP have closed.
        TcpFinWait = 4,
        /// Reset TCP.
        TcpClosed = 5,
        /// First packet of UDP.
        UdpFirst = 6,
        /// One end of UDP has sent several.
        UdpSingle = 7,
        /// Both ends of UDP have sent.
        UdpMultiple = 8,
        /// First packet of ICMP.
        IcmpFirst = 9,
        /// Error of ICMP.
        IcmpError = 10,
        /// First packet of another protocol.
        OtherFirst = 11,
        /// One end of another protocol has sent several.
        OtherSingle = 12,
        /// Both ends of another protocol have sent.
        OtherMultiple = 13,
        /// First packet of SCTP.
        SctpFirst = 20,
        /// Handshake of SCTP.
        SctpOpening = 21,
        /// Established SCTP.
        SctpEstablished = 22,
        /// SCTP that is shut down.
        SctpClosing = 23,
        /// SCTP that is over.
        SctpClosed = 24,
    }
}

impl Timeout {
    /// Its default in pf, seconds. A compressed update tells which timeout runs and not its length,
    /// which the peer's operator may have changed.
    pub(super) const fn default_seconds(self) -> u32 {
        match self {
            Self::TcpFirst | Self::SctpFirst => 120,
            Self::TcpOpening | Self::SctpOpening => 30,
            Self::TcpEstablished | Self::SctpEstablished => 86_400,
            Self::TcpClosing | Self::SctpClosing => 900,
            Self::TcpFinWait => 45,
            Self::TcpClosed | Self::SctpClosed => 90,
            Self::UdpFirst | Self::UdpMultiple | Self::OtherFirst | Self::OtherMultiple => 60,
            Self::UdpSingle | Self::OtherSingle => 30,
            Self::IcmpFirst => 20,
            Self::IcmpError => 10,
        }
    }
}

numbered! {
    /// The way of the first packet of a state: it came into the gateway or left it by the interface to
    /// which the state belongs.
    Direction {
        /// Into the gateway.
        In = 1,
        /// Out of the gateway.
        Out = 2,
    }
}
