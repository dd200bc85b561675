//! The ends of a connection that announces others: their messages, and the packets that follow.

use lab::{Family, Random};
use wire::build::Tcp;
use wire::{TcpFlags, Transport, dissect};

use crate::scenario::trackers::BATCH;
use crate::scenario::trackers::dialogue::{Client, Dialogue, Ends, Server, Side, Step};

pub const CONTROL: u16 = 40000;
/// The number of ports that may be announced.
const PORTS: usize = 4;

/// The two ends of a control connection.
pub struct Talk {
    seed: u64,
    pub ends: Ends,
    pub random: Random,
    /// The server's port.
    port: u16,
    /// The first port that may be announced.
    pub first: u16,
    /// The next sequence numbers, by [`Side`].
    next: [u32; 2],
    /// The source port of the last packet that tests an announcement.
    other_port: u16,
    steps: Vec<Step>,
}

impl Talk {
    /// A talk between two ends of a random family.
    pub fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let family = random.one_of(&[Family::V4, Family::V6]);
        Self::of(seed, family, random)
    }

    pub fn of(seed: u64, family: Family, random: Random) -> Self {
        let ends = Ends::of(seed % BATCH, family);
        let (next, steps) = ([1, 1], Vec::new());
        Self { seed, ends, random, port: 0, first: 20000, next, other_port: 1024, steps }
    }

    pub fn end(self) -> Dialogue {
        let Some(Step::Send(_, flow)) = self.steps.first().cloned() else {
            panic!("nothing is said")
        };
        Dialogue { seed: self.seed, ends: self.ends, flow, steps: self.steps }
    }

    /// Connects to a port by TCP.
    pub fn connect(&mut self, port: u16) {
        self.port = port;
        let (syn, ack) = (TcpFlags::SYN, TcpFlags::ACK);
        self.control(Client, syn, (0, 0), b"");
        self.control(Server, syn.with(ack), (0, 1), b"");
        self.control(Client, ack, (1, 1), b"");
    }

    /// Sends data on the control connection, sometimes twice.
    pub fn say(&mut self, from: Side, payload: &[u8]) {
        let numbers = (self.next[from as usize], self.next[from.other() as usize]);
        self.control(from, TcpFlags::ACK, numbers, payload);
        if self.random.once_in(10) {
            // Another flag distinguishes the copy from the first.
            self.control(from, TcpFlags::ACK.with(TcpFlags::PSH), numbers, payload);
        }
        self.next[from as usize] += payload.len() as u32;
    }

    fn control(&mut self, from: Side, flags: TcpFlags, numbers: (u32, u32), payload: &[u8]) {
        let ports = [CONTROL, self.port];
        let ports = (ports[from as usize], ports[from.other() as usize]);
        self.segment(from, ports, flags, numbers, payload);
    }

    pub fn segment(
        &mut self,
        from: Side,
        (source_port, destination_port): (u16, u16),
        flags: TcpFlags,
        (sequence, acknowledgment): (u32, u32),
        payload: &[u8],
    ) {
        let tcp = Tcp {
            source_port,
            destination_port,
            sequence,
            acknowledgment,
            flags,
            window: 60000,
            options: &[],
        };
        let mut frame = Vec::new();
        self.ends.from(from).tcp(&tcp, payload, &mut frame);
        self.steps.push(Step::Send(from, frame));
    }

    /// One of the ports that may be announced.
    pub fn any_port(&mut self) -> u16 {
        self.first + self.random.between(0, PORTS - 1) as u16
    }

    /// Opens a connection to a port that may have been announced.
    pub fn somebody_comes(&mut self) {
        let (from, port) = (self.random.one_of(&Side::BOTH), self.any_port());
        self.somebody_connects(from, port);
    }

    /// Opens a TCP connection to this port.
    pub fn somebody_connects(&mut self, from: Side, port: u16) {
        self.other_port += 1;
        self.segment(from, (self.other_port, port), TcpFlags::SYN, (9, 0), b"");
    }

    /// Sends a UDP datagram that is too short for a message.
    pub fn somebody_sends(&mut self, from: Side, port: u16, payload: &[u8]) {
        self.other_port += 1;
        self.datagram(from, (self.other_port, port), payload);
    }

    pub fn datagram(&mut self, from: Side, ports: (u16, u16), payload: &[u8]) {
        let mut frame = Vec::new();
        self.ends.from(from).udp(ports.0, ports.1, payload, &mut frame);
        self.steps.push(Step::Send(from, frame));
    }
}

/// The port to which a segment opens a connection.
pub fn opens(frame: &[u8]) -> Option<u16> {
    match dissect(frame).ok()?.network?.transport {
        Transport::Tcp(tcp) if tcp.flags == TcpFlags::SYN => Some(tcp.destination_port),
        _ => None,
    }
}
