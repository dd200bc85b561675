//! Connections that FTP and TFTP announce: what the ends say, and then others that come.

use std::time::Duration;

use lab::{Family, Random};
use wire::build::Tcp;
use wire::{TcpFlags, Transport, Tunnels, dissect};

use super::compare::{BATCH, Comparison, Told};
use super::dialogue::{Client, Dialogue, Ends, Server, Side, Step};
use super::said::Class;

pub const ANNOUNCED: Comparison = Comparison {
    name: "announced",
    seeds: 500,
    pause: |_| Duration::ZERO,
    turns_after: None,
    tunables: |_| vec![("nf_conntrack_tcp_loose".to_owned(), 1)],
    generate,
    rule,
    rules: &[INSIDE, REFUSED, REQUEST],
};

const CONTROL: u16 = 40000;
/// The first of the ports that are announced, and how many there are.
const PORTS: (u16, usize) = (20000, 4);
/// A dialogue of so many has a segment that ends too early: the kernel drops it, and it takes
/// a while to see that.
const CUT_IN: u64 = 250;

/// Two ends of a control connection.
struct Talk<'a> {
    ends: Ends,
    random: &'a mut Random,
    /// Next sequence numbers, by [`Side`].
    next: [u32; 2],
    /// Where connections that nobody announced come from.
    other_port: u16,
    steps: Vec<Step>,
}

fn generate(seed: u64) -> Dialogue {
    let mut random = Random::new(seed);
    let family = random.one_of(&[Family::V4, Family::V6]);
    let ends = Ends::of(seed % BATCH, family);
    let mut talk =
        Talk { ends, random: &mut random, next: [1, 1], other_port: 1024, steps: Vec::new() };
    if talk.random.once_in(6) {
        talk.tftp();
    } else {
        talk.ftp(seed.is_multiple_of(CUT_IN));
    }
    let steps = talk.steps;
    let Some(Step::Send(_, flow)) = steps.first().cloned() else { panic!("nothing is said") };
    Dialogue { seed, ends, flow, steps }
}

impl Talk<'_> {
    fn ftp(&mut self, cut: bool) {
        let (syn, ack) = (TcpFlags::SYN, TcpFlags::ACK);
        self.control(Client, syn, (0, 0), b"");
        self.control(Server, syn.with(ack), (0, 1), b"");
        self.control(Client, ack, (1, 1), b"");
        self.say(Server, b"220 ready\r\n");
        for _ in 0..self.random.between(2, 6) {
            let from = self.random.one_of(&[Client, Server]);
            let line = self.line(from);
            self.say(from, &line);
            for _ in 0..self.random.between(0, 2) {
                self.somebody_comes();
            }
        }
        if cut {
            self.say(Client, b"NOOP\r\n");
            let line = self.line(Client);
            let end = self.random.between(1, line.len() - 1);
            self.say(Client, &line[..end]);
        }
    }

    /// A line, rarely two, mostly as it should be.
    fn line(&mut self, from: Side) -> Vec<u8> {
        let mut line = self.honest_line(from);
        match self.random.between(0, 59) {
            0..=3 => line.make_ascii_lowercase(),
            4 => {
                let at = self.random.between(0, line.len() - 1);
                line[at] = self.random.one_of(b" ,|()0129\rxP\n");
            }
            // The next segment goes on with this line.
            5..=9 => line.truncate(line.len() - 1),
            10..=13 => line.splice(..0, *b"200 x\r\n").for_each(drop),
            14 | 15 => line = self.honest_line(from.other()),
            _ => {}
        }
        line
    }

    fn honest_line(&mut self, from: Side) -> Vec<u8> {
        let speaker = if self.random.once_in(8) { from.other() } else { from };
        let (address, v4) = (self.ends.address(speaker), self.ends.family == Family::V4);
        let port = PORTS.0 + self.random.between(0, PORTS.1 - 1) as u16;
        let numbers = format!("{address},{},{}", port >> 8, port & 0xff).replace('.', ",");
        let choices = match (from, v4) {
            (Client, true) => ["USER a", "NOOP", "PORT {n}", "PORT {n}", "EPRT |1|{a}|{p}|"],
            (Client, false) => {
                ["USER a", "EPSV ALL", "EPRT |2|{a}|{p}|", "EPRT !2!{a}!{p}!", "EPSV"]
            }
            (Server, true) => ["200 ok", "227 Mode ({n}).", "227 {n}", "229 (|||{p}|)", "331 a"],
            (Server, false) => ["200 ok", "229 E (|||{p}|)", "229 E (!!!{p}!)", "214-a", "331 a"],
        };
        let mut text = self.random.one_of(&choices).to_owned();
        for (name, value) in
            [("{n}", numbers), ("{a}", address.to_string()), ("{p}", port.to_string())]
        {
            text = text.replace(name, &value);
        }
        text.push_str("\r\n");
        text.into_bytes()
    }

    /// Says something on the control connection, sometimes twice.
    fn say(&mut self, from: Side, payload: &[u8]) {
        let numbers = (self.next[from as usize], self.next[from.other() as usize]);
        self.control(from, TcpFlags::ACK, numbers, payload);
        if self.random.once_in(10) {
            // With another bit, so that the copy can be told from the first.
            self.control(from, TcpFlags::ACK.with(TcpFlags::PSH), numbers, payload);
        }
        self.next[from as usize] += payload.len() as u32;
    }

    fn control(&mut self, from: Side, flags: TcpFlags, numbers: (u32, u32), payload: &[u8]) {
        let ports = [CONTROL, 21];
        let ports = (ports[from as usize], ports[from.other() as usize]);
        self.segment(from, ports, flags, numbers, payload);
    }

    fn segment(
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

    /// Somebody opens a connection to a port that may have been announced.
    fn somebody_comes(&mut self) {
        let from = self.random.one_of(&Side::BOTH);
        let port = PORTS.0 + self.random.between(0, PORTS.1 - 1) as u16;
        self.other_port += 1;
        self.segment(from, (self.other_port, port), TcpFlags::SYN, (9, 0), b"");
    }

    fn tftp(&mut self) {
        for _ in 0..self.random.between(1, 3) {
            let request = self.random.one_of(&[
                b"\0\x01file\0octet\0".as_slice(),
                b"\0\x02file\0netascii\0tsize\x000\0",
                b"\0\x03\0\x01data",
                b"\0\x01file",
                b"\0\x05\0\x01no\0",
            ]);
            self.datagram(Client, (CONTROL, 69), request);
            for _ in 0..self.random.between(0, 2) {
                let from = self.random.one_of(&[Server, Server, Client]);
                self.other_port += 1;
                let port = if self.random.once_in(4) { CONTROL + 1 } else { CONTROL };
                self.datagram(from, (self.other_port, port), b"\0\x03\0\x01data");
            }
        }
    }

    fn datagram(&mut self, from: Side, ports: (u16, u16), payload: &[u8]) {
        let mut frame = Vec::new();
        self.ends.from(from).udp(ports.0, ports.1, payload, &mut frame);
        self.steps.push(Step::Send(from, frame));
    }
}

/// Receive offload puts several lines into one segment, so lines inside count too; the kernel
/// looks at its start only.
const INSIDE: &str = "a line may start inside a segment";
/// The kernel drops what it can not read; the server will refuse it.
const REFUSED: &str = "a command with a mistake is for its receiver to refuse";
/// Anything with the opcode of a request is one to the kernel.
const REQUEST: &str = "a TFTP request has a file name and a mode";

/// Rare, so no seed that is always played shows it.
const BYTES: &str = "the numbers of PORT and 227 are bytes; the kernel takes larger ones";

fn rule(told: &[Told<'_>]) -> Option<&'static str> {
    let Told { kernel, ours, .. } = told.last()?;
    let any = |is: fn(&[u8]) -> bool| told.iter().any(|told| is(&payload(told.frame)));
    let inside = |text: &[u8]| {
        text.iter().position(|&byte| byte == b'\n').is_some_and(|at| at + 1 < text.len())
    };
    let too_much = |text: &[u8]| {
        let mut numbers = text.split(|byte| !byte.is_ascii_digit());
        text.contains(&b',') && numbers.any(|number| number > b"255" && number.len() > 2)
    };
    match (kernel.class, ours.class) {
        (Class::Lost, Class::Established) => Some(REFUSED),
        (Class::Related, Class::New) if any(|text| text == b"\0\x01file") => Some(REQUEST),
        // What only we have seen announced is expected in place of what came before.
        (Class::New, Class::Related) | (Class::Related, Class::New) if any(inside) => Some(INSIDE),
        (Class::Established, Class::Lost) if any(inside) => Some(INSIDE),
        (Class::New, Class::Related) | (Class::Related, Class::New) if any(too_much) => Some(BYTES),
        _ => None,
    }
}

fn payload(frame: &[u8]) -> Vec<u8> {
    let network = dissect(frame, Tunnels::Outer).unwrap().network.unwrap();
    let header = match network.transport {
        Transport::Tcp(tcp) => usize::from(tcp.header_len),
        _ => 8,
    };
    frame[usize::from(network.transport_offset) + header..].to_vec()
}
