//! TCP connections in every state, and the packets that an attacker forges against them. The
//! attacker knows the addresses and ports and sees no traffic.

use Side::{Client as Inside, Server as Outside};
use lab::{Random, Side};
use wire::build::{PacketBuilder, Tcp};
use wire::{Network, QuotedTransport, TcpFlags, Transport, dissect};

const SYN: TcpFlags = TcpFlags::SYN;
const ACK: TcpFlags = TcpFlags::ACK;
const FIN: TcpFlags = TcpFlags::FIN.with(ACK);
const RST: TcpFlags = TcpFlags::RST;

/// The window that both ends announce, without scaling.
const WINDOW: u16 = 8192;
/// The bytes of data in a segment.
const LENGTH: usize = 100;
/// The first of the ports that distinguish connections, and the ports of the services.
pub const FIRST_PORT: u16 = 10_000;
const TRANSLATED: u16 = 80;
const PLAIN: u16 = 81;
const FORWARDED: u16 = 8000;
/// The source of ICMP errors: a router outside.
const REPORTER: [u8; 4] = [198, 51, 100, 77];

/// The rules of the router. Clients may open any connection, and the router's address leads from
/// outside to one service inside.
pub const RULES: &str = "
table inet filter {
    chain forward {
        type filter hook forward priority filter; policy drop;
        ct state invalid drop
        ct state established,related accept
        iifname \"client0\" accept
        ct status dnat accept
    }
}
table ip nat {
    chain pre {
        type nat hook prerouting priority dstnat; policy accept;
        iifname \"server0\" ip daddr 198.51.100.254 tcp dport 8000 dnat to 192.0.2.1
    }
    chain post {
        type nat hook postrouting priority srcnat; policy accept;
        oifname \"server0\" tcp dport 80 masquerade
    }
}
";

/// How a connection crosses the router.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Crossing {
    Plain,
    /// Opened from inside.
    Masqueraded,
    /// Opened from outside.
    Forwarded,
}

impl Crossing {
    pub const ALL: [Self; 3] = [Self::Plain, Self::Masqueraded, Self::Forwarded];
}

/// The state of a connection before the forgery. The names are those of the kernel; the opener and
/// the answerer bring it about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum State {
    SynSent,
    SynSent2,
    SynRecv,
    Established,
    FinWait,
    CloseWait,
    LastAck,
    TimeWait,
    Close,
}

/// The end that sends.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Who {
    Opener,
    Answerer,
}
use crate::scenario::cables::{CLIENT, OWN, SERVER, Sent};
use Who::{Answerer, Opener};

type Said = (Who, TcpFlags, usize);

impl State {
    pub const ALL: [Self; 9] = [
        Self::SynSent,
        Self::SynSent2,
        Self::SynRecv,
        Self::Established,
        Self::FinWait,
        Self::CloseWait,
        Self::LastAck,
        Self::TimeWait,
        Self::Close,
    ];

    pub const fn name(self) -> &'static str {
        match self {
            Self::SynSent => "SYN_SENT",
            Self::SynSent2 => "SYN_SENT2",
            Self::SynRecv => "SYN_RECV",
            Self::Established => "ESTABLISHED",
            Self::FinWait => "FIN_WAIT",
            Self::CloseWait => "CLOSE_WAIT",
            Self::LastAck => "LAST_ACK",
            Self::TimeWait => "TIME_WAIT",
            Self::Close => "CLOSE",
        }
    }

    /// False if the ends have closed the connection and only its entry is left.
    pub const fn is_used(self) -> bool {
        !matches!(self, Self::TimeWait | Self::Close)
    }

    /// The segments that lead to this state.
    fn before(self) -> Vec<Said> {
        if self == Self::SynSent2 {
            return vec![(Opener, SYN, 0), (Answerer, SYN, 0)];
        }
        let opened = [
            (Opener, SYN, 0),
            (Answerer, SYN.with(ACK), 0),
            (Opener, ACK, 0),
            (Opener, ACK, LENGTH),
            (Answerer, ACK, LENGTH),
            (Opener, ACK, 0),
        ];
        let closed = [(Opener, FIN, 0), (Answerer, ACK, 0), (Answerer, FIN, 0), (Opener, ACK, 0)];
        let (of_opened, of_closed) = match self {
            Self::SynSent | Self::SynSent2 => (1, 0),
            Self::SynRecv => (2, 0),
            Self::Established | Self::Close => (6, 0),
            Self::FinWait => (6, 1),
            Self::CloseWait => (6, 2),
            Self::LastAck => (6, 3),
            Self::TimeWait => (6, 4),
        };
        let mut said = [&opened[..of_opened], &closed[..of_closed]].concat();
        if self == Self::Close {
            said.push((Opener, RST, 0));
        }
        said
    }

    /// The segments that the ends send after this state if nothing disturbs them.
    fn after(self) -> Vec<Said> {
        match self {
            Self::SynSent => vec![(Answerer, SYN.with(ACK), 0), (Opener, ACK, 0)],
            Self::SynRecv => vec![(Opener, ACK, 0), (Answerer, ACK, LENGTH)],
            Self::Established => vec![(Opener, ACK, LENGTH), (Answerer, ACK, LENGTH)],
            Self::FinWait => vec![(Answerer, ACK, 0), (Answerer, ACK, LENGTH), (Opener, ACK, 0)],
            Self::CloseWait => vec![(Answerer, ACK, LENGTH), (Opener, ACK, 0)],
            Self::LastAck => vec![(Opener, ACK, 0)],
            Self::SynSent2 | Self::TimeWait | Self::Close => Vec::new(),
        }
    }
}

/// The attacker's knowledge of a sequence number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Guess {
    /// None: the number is random.
    Any,
    /// The number is in the receiver's window.
    Window,
    /// The number is exactly the next.
    Exact,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Forgery {
    Reset(Guess),
    /// The guesses of the sequence and of the acknowledgment.
    Fin(Guess, Guess),
    Data(Guess, Guess),
    Syn(Guess),
    SynAck,
    /// An ICMP error of this type and code, about a segment with a number guessed this way.
    Error(u8, u8, Guess),
}

impl Forgery {
    pub const ALL: [Self; 16] = [
        Self::Reset(Guess::Any),
        Self::Reset(Guess::Window),
        Self::Reset(Guess::Exact),
        Self::Fin(Guess::Any, Guess::Any),
        Self::Fin(Guess::Window, Guess::Any),
        Self::Fin(Guess::Exact, Guess::Exact),
        Self::Data(Guess::Any, Guess::Any),
        Self::Data(Guess::Window, Guess::Any),
        Self::Syn(Guess::Any),
        Self::Syn(Guess::Window),
        Self::SynAck,
        Self::Error(3, 3, Guess::Any),
        Self::Error(3, 3, Guess::Exact),
        Self::Error(3, 4, Guess::Any),
        Self::Error(3, 4, Guess::Exact),
        Self::Error(11, 0, Guess::Any),
    ];

    /// True if the attacker lacks a number that the receiver checks.
    pub fn is_blind(self) -> bool {
        match self {
            Self::Reset(sequence) | Self::Syn(sequence) => sequence == Guess::Any,
            Self::Fin(_, ack) | Self::Data(_, ack) => ack == Guess::Any,
            Self::SynAck | Self::Error(..) => true,
        }
    }
}

impl std::fmt::Display for Forgery {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Reset(sequence) => write!(f, "RST {sequence:?}"),
            Self::Fin(sequence, ack) => write!(f, "FIN {sequence:?}, ack {ack:?}"),
            Self::Data(sequence, ack) => write!(f, "data {sequence:?}, ack {ack:?}"),
            Self::Syn(sequence) => write!(f, "SYN {sequence:?}"),
            Self::SynAck => f.write_str("SYN+ACK Any"),
            Self::Error(kind, code, sequence) => write!(f, "ICMP {kind}/{code} {sequence:?}"),
        }
    }
}

/// One connection, and the packet that is forged against it.
pub struct Flow {
    pub crossing: Crossing,
    pub state: State,
    pub forgery: Forgery,
    /// The port that only this connection has.
    pub port: u16,
    pub before: Vec<Sent>,
    pub forged: Sent,
    pub after: Vec<Sent>,
}

impl Flow {
    pub fn new(
        random: &mut Random,
        crossing: Crossing,
        state: State,
        forgery: Forgery,
        port: u16,
    ) -> Self {
        let next = [random.bits() as u32, random.bits() as u32];
        let mut talk = Talk { crossing, port, next };
        let before = talk.say_all(&state.before());
        let forged = talk.forge(random, state, forgery);
        let after = talk.say_all(&state.after());
        Self { crossing, state, forgery, port, before, forged, after }
    }
}

impl Flow {
    /// True if the forged packet is a second SYN of the opener. It may be genuine, because the
    /// first may never have arrived.
    pub fn is_opened_again(&self) -> bool {
        self.crossing == Crossing::Forwarded
            && self.state == State::SynSent
            && matches!(self.forgery, Forgery::Syn(_))
    }
}

struct Talk {
    crossing: Crossing,
    port: u16,
    /// The next sequence numbers of the end inside and of the end outside.
    next: [u32; 2],
}

impl Talk {
    /// The end inside and the end outside, with the addresses that are seen on this side.
    fn ends(&self, side: Side) -> [([u8; 4], u16); 2] {
        let own = if side == Inside || self.crossing == Crossing::Plain { CLIENT } else { OWN[1] };
        match self.crossing {
            Crossing::Plain => [(own, self.port), (SERVER, PLAIN)],
            Crossing::Masqueraded => [(own, self.port), (SERVER, TRANSLATED)],
            Crossing::Forwarded => [(own, FORWARDED), (SERVER, self.port)],
        }
    }

    fn frame(&self, from: Side, flags: TcpFlags, numbers: [u32; 2], length: usize) -> Vec<u8> {
        self.frame_seen(from, from, flags, numbers, length)
    }

    /// A segment of one end with the addresses that are seen on this side.
    fn frame_seen(
        &self,
        side: Side,
        from: Side,
        flags: TcpFlags,
        [sequence, acknowledgment]: [u32; 2],
        length: usize,
    ) -> Vec<u8> {
        let [inside, outside] = self.ends(side);
        let (source, destination) =
            if from == Inside { (inside, outside) } else { (outside, inside) };
        let tcp = Tcp {
            source_port: source.1,
            destination_port: destination.1,
            sequence,
            acknowledgment,
            flags,
            window: WINDOW,
            options: &[],
        };
        let mut frame = Vec::new();
        PacketBuilder::v4(source.0, destination.0).tcp(&tcp, &vec![0x2e; length], &mut frame);
        frame
    }

    fn say_all(&mut self, said: &[Said]) -> Vec<Sent> {
        let opener = if self.crossing == Crossing::Forwarded { Outside } else { Inside };
        let mut sent = Vec::new();
        for (who, flags, length) in said {
            let from = if *who == Opener { opener } else { other(opener) };
            let (own, peer) = (self.next[from as usize], self.next[other(from) as usize]);
            let acknowledgment = if flags.contains(ACK) { peer } else { 0 };
            let frame = self.frame(from, *flags, [own, acknowledgment], *length);
            let counted = [SYN, TcpFlags::FIN].iter().filter(|it| flags.contains(**it)).count();
            self.next[from as usize] = own.wrapping_add((length + counted) as u32);
            sent.push(Sent { side: from, frame });
        }
        sent
    }

    fn forge(&self, random: &mut Random, state: State, forgery: Forgery) -> Sent {
        let [inside, outside] = self.next;
        let guess = |random: &mut Random, guess, next: u32| match guess {
            Guess::Any => random.bits() as u32,
            Guess::Window => next.wrapping_add(random.between(1, usize::from(WINDOW) - 2) as u32),
            Guess::Exact => next,
        };
        let frame = match forgery {
            Forgery::Reset(Guess::Exact) if state == State::SynSent && outside_is_silent(self) => {
                self.frame(Outside, RST.with(ACK), [0, inside], 0)
            }
            Forgery::Reset(sequence) => {
                self.frame(Outside, RST, [guess(random, sequence, outside), 0], 0)
            }
            Forgery::Fin(sequence, ack) => {
                let sequence = guess(random, sequence, outside);
                self.frame(Outside, FIN, [sequence, guess(random, ack, inside)], 0)
            }
            Forgery::Data(sequence, ack) => {
                let sequence = guess(random, sequence, outside);
                self.frame(Outside, ACK, [sequence, guess(random, ack, inside)], LENGTH)
            }
            Forgery::Syn(sequence) => {
                self.frame(Outside, SYN, [guess(random, sequence, outside), 0], 0)
            }
            Forgery::SynAck => {
                let numbers = [random.bits() as u32, random.bits() as u32];
                self.frame(Outside, SYN.with(ACK), numbers, 0)
            }
            Forgery::Error(kind, code, sequence) => {
                let sequence = guess(random, sequence, inside.wrapping_sub(1));
                let about = self.frame_seen(Outside, Inside, ACK, [sequence, 0], 0);
                let rest = if code == 4 { [0, 0, 2, 40] } else { [0; 4] };
                let mut frame = Vec::new();
                PacketBuilder::v4(REPORTER, self.ends(Outside)[0].0).icmp_error(
                    kind,
                    code,
                    rest,
                    &about[14..14 + 28],
                    &mut frame,
                );
                frame
            }
        };
        Sent { side: Outside, frame }
    }
}

/// True if the end outside has sent nothing yet.
fn outside_is_silent(talk: &Talk) -> bool {
    talk.crossing != Crossing::Forwarded
}

fn other(side: Side) -> Side {
    if side == Inside { Outside } else { Inside }
}

/// The port that identifies the connection of a packet; none for other packets.
pub fn port_of(frame: &[u8]) -> Option<u16> {
    let network: Network = dissect(frame).ok()?.network?;
    let (one, other) = match network.transport {
        Transport::Tcp(tcp) => (tcp.source_port, tcp.destination_port),
        Transport::IcmpError(error) => match error.quoted?.transport {
            QuotedTransport::Ports { source, destination } => (source, destination),
            _ => return None,
        },
        _ => return None,
    };
    Some(one.max(other)).filter(|port| *port >= FIRST_PORT)
}
