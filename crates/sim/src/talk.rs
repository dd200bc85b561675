//! Two hosts talk by TCP, in rounds of a question and an answer. Each byte follows from the talk and
//! its place, so a byte of another talk, or at another place, is noticed.
//!
//! Some talks are like those of FTP clients. Each question names the client's address, which a gateway
//! replaces by a longer one, so it has to shift the sequence numbers of all that follows.

use std::net::Ipv4Addr;

use smoltcp::iface::SocketHandle;
use smoltcp::socket::tcp::{Socket, State};
use smoltcp::wire::IpAddress;

use crate::address::Side;
use crate::failure::Violation;
use crate::host::{Host, read, read_header, write};

/// The port of FTP.
pub const FTP: u16 = 21;
/// The words that a server of FTP says first, and what it says to each command.
const GREETING: &[u8; 8] = b"220 ok\r\n";
const AGREED: &[u8; 8] = b"200 ok\r\n";
/// How a client begins.
const USER: &[u8] = b"USER ";
/// The words of the client as the server hears them: a gateway has put the address outside in the
/// place of that inside. The port may be another one.
const ANNOUNCED: &[u8] = b"PORT 198,51,100,254,";
/// Longest command.
const LINE: usize = 40;

/// Bytes of the header that the opener of a talk sends.
pub const HEADER: usize = 16;

/// The bytes of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    /// They follow from this number and their places.
    Numbers(u32),
    /// Commands of FTP of the host inside with this number.
    Commands(usize),
    /// Answers to them.
    Agreed,
}

impl Stream {
    /// A byte.
    pub fn byte(self, at: u32) -> u8 {
        match self {
            Self::Numbers(id) => {
                let mixed = (id ^ at.wrapping_mul(0x9e37_79b1)).wrapping_mul(0x85eb_ca6b);
                (mixed >> 24) as u8
            }
            Self::Commands(host) => {
                let line = command(host);
                let (at, length) = (at as usize, line.len());
                // The first line has the length of the others, too.
                match USER.get(at) {
                    Some(byte) => *byte,
                    None if at + 2 < length => b'u',
                    None => line[at % length],
                }
            }
            Self::Agreed => {
                let line = if (at as usize) < GREETING.len() { GREETING } else { AGREED };
                line[at as usize % line.len()]
            }
        }
    }
}

/// A command of FTP that announces a connection to a host inside.
pub fn command(host: usize) -> Vec<u8> {
    format!("PORT 192,0,2,{},19,137\r\n", 10 + host).into_bytes()
}

/// Bytes of an answer to a command.
pub const AGREED_LENGTH: u32 = AGREED.len() as u32;

/// The script of a talk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Script {
    /// Bytes of each question.
    pub question: u32,
    /// Bytes of each answer.
    pub answer: u32,
    /// Rounds.
    pub rounds: u32,
    /// Pause between two rounds, microseconds.
    pub pause: u64,
    /// The opener ends with a reset.
    pub aborts: bool,
    /// Its opener has a large window.
    pub is_large: bool,
    /// It is one of FTP.
    pub is_ftp: bool,
    /// How often the ports are used again at once, when it is over.
    pub repeats: u32,
}

/// Something that happens in a connection that a host has accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    /// The first bytes of a talk have come.
    Began {
        /// The talk.
        id: u32,
        /// From where they came.
        from: (Ipv4Addr, u16),
    },
    /// A server of FTP has heard something else than commands.
    Misheard,
    /// Its connection was reset, or broke.
    Broke {
        /// The talk.
        id: u32,
        /// Its state before.
        was_whole: bool,
    },
}

/// The end that has accepted a talk.
pub struct Answer {
    is_ftp: bool,
    line: Vec<u8>,
    script: Option<(u32, Script)>,
    read: u32,
    written: u32,
    is_over: bool,
}

impl Answer {
    /// Nothing has come.
    pub fn new(port: u16) -> Self {
        Self {
            is_ftp: port == FTP,
            line: Vec::new(),
            script: None,
            read: 0,
            written: 0,
            is_over: false,
        }
    }

    /// Goes on.
    pub fn go_on(
        &mut self,
        socket: &mut Socket<'_>,
        told: &mut impl FnMut(Told),
    ) -> Result<(), Violation> {
        if self.is_ftp {
            self.agree(socket, told);
            return Ok(());
        }
        let Some((id, script)) = self.script else {
            if let Some(header) = read_header(socket) {
                let (id, script) = parse(&header);
                self.script = Some((id, script));
                if let Some(end) = socket.remote_endpoint()
                    && let IpAddress::Ipv4(address) = end.addr
                {
                    told(Told::Began { id, from: (address, end.port) });
                }
                return self.go_on(socket, told);
            }
            if socket.state() == State::CloseWait {
                socket.close();
            }
            return Ok(());
        };
        let is_whole = |it: &Self| it.written >= script.rounds.saturating_mul(script.answer);
        match read(socket, Stream::Numbers(id), self.read)? {
            Some(length) => self.read += length,
            None if socket.state() == State::CloseWait => {
                socket.close();
                self.is_over = true;
            }
            None if socket.state() == State::Closed && !self.is_over => {
                self.is_over = true;
                told(Told::Broke { id, was_whole: is_whole(self) });
            }
            None => {}
        }
        let due = (self.read / script.question).min(script.rounds) * script.answer;
        self.written += write(socket, Stream::Numbers(id ^ 1), (self.written, due));
        Ok(())
    }

    /// Answers commands of FTP.
    fn agree(&mut self, socket: &mut Socket<'_>, told: &mut impl FnMut(Told)) {
        let mut byte = [0];
        while socket.recv_slice(&mut byte) == Ok(1) {
            self.line.push(byte[0]);
            let is_whole = self.line.ends_with(b"\r\n");
            let is_like = |text: &[u8]| text.iter().zip(&self.line).all(|(one, it)| one == it);
            let is_right = is_like(USER) || is_like(ANNOUNCED);
            if !is_right || self.line.len() > LINE {
                told(Told::Misheard);
                return socket.abort();
            }
            if is_whole {
                self.line.clear();
                self.read += AGREED_LENGTH;
            }
        }
        let due = self.read + GREETING.len() as u32;
        self.written += write(socket, Stream::Agreed, (self.written, due));
        if socket.state() == State::CloseWait {
            socket.close();
        }
    }
}

/// The end that has opened a talk.
pub struct Talk {
    pub id: u32,
    /// The host that has opened it.
    pub side: Side,
    pub host: usize,
    pub to: (Ipv4Addr, u16),
    pub from: u16,
    pub script: Script,
    pub handle: SocketHandle,
    pub opened_at: u64,
    /// The next round begins then.
    pub resumes_at: u64,
    written: u32,
    read: u32,
    asked: u32,
    has_header: bool,
    /// It has to come to its end without a reset.
    pub is_protected: bool,
    /// The port outside that the other end sees.
    pub outside: Option<(Ipv4Addr, u16)>,
    pub is_established: bool,
    /// The script is done.
    pub is_done: bool,
    pub last_progress: u64,
    /// When both ends were done; the last acknowledgment is to leave after that.
    over_at: Option<u64>,
}

/// Time after which the ports of a talk that is over may be used again.
const LINGER: u64 = 20_000;

/// How a talk stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It goes on.
    On,
    /// It is over.
    Over,
    /// Its connection was reset, or broke.
    Broken,
}

impl Talk {
    /// A talk whose connection is opening.
    pub fn new(
        id: u32,
        (side, host): (Side, usize),
        to: (Ipv4Addr, u16),
        (from, handle): (u16, SocketHandle),
        (script, now): (Script, u64),
    ) -> Self {
        Self {
            id,
            side,
            host,
            to,
            from,
            script,
            handle,
            opened_at: now,
            resumes_at: now,
            written: 0,
            read: 0,
            asked: 0,
            has_header: false,
            is_protected: false,
            outside: None,
            is_established: false,
            is_done: false,
            last_progress: now,
            over_at: None,
        }
    }

    /// Goes on.
    pub fn go_on(&mut self, host: &mut Host, now: u64) -> Result<Standing, Violation> {
        let Self { id, script, .. } = *self;
        let socket = host.socket(self.handle);
        if !self.is_established {
            match socket.state() {
                State::Established => (self.is_established, self.last_progress) = (true, now),
                State::Closed => return Ok(Standing::Broken),
                _ => return Ok(Standing::On),
            }
        }
        if self.is_done {
            return Ok(match socket.state() {
                State::Closed | State::TimeWait => {
                    let since = *self.over_at.get_or_insert(now);
                    if now >= since + LINGER { Standing::Over } else { Standing::On }
                }
                _ => Standing::On,
            });
        }
        let before = (self.written, self.read);
        let (questions, answers) = match script.is_ftp {
            true => (Stream::Commands(self.host), Stream::Agreed),
            false => (Stream::Numbers(id), Stream::Numbers(id ^ 1)),
        };
        match read(socket, answers, self.read)? {
            Some(length) => self.read += length,
            None if socket.state() == State::Closed => return Ok(Standing::Broken),
            None => {}
        }
        self.has_header |= script.is_ftp;
        if !self.has_header && socket.can_send() {
            // The buffer is empty.
            self.has_header = socket.send_slice(&header(id, &script)) == Ok(HEADER);
        }
        // A server of FTP speaks first.
        let before_asked = if script.is_ftp { script.answer } else { 0 };
        let is_answered = self.read >= before_asked + self.asked * script.answer;
        if is_answered && self.asked > 0 && self.resumes_at == u64::MAX {
            self.resumes_at = now + script.pause;
        }
        if self.has_header && is_answered && now >= self.resumes_at && self.asked < script.rounds {
            self.asked += 1;
            self.resumes_at = u64::MAX;
        }
        self.written += write(socket, questions, (self.written, self.asked * script.question));
        if self.read >= before_asked + script.rounds * script.answer {
            self.is_done = true;
            if script.aborts { socket.abort() } else { socket.close() }
        }
        if before != (self.written, self.read) {
            self.last_progress = now;
        }
        Ok(Standing::On)
    }

    /// When it goes on by itself. A round that is due already waits for its connection.
    pub fn wakes_at(&self, now: u64) -> u64 {
        match self.over_at {
            Some(since) => (since + LINGER).max(now + 1),
            None if self.is_done || self.resumes_at <= now => u64::MAX,
            None => self.resumes_at,
        }
    }

    /// How far it is, for a trace.
    pub fn progress(&self) -> String {
        let Self { id, written, read, asked, script, .. } = self;
        format!(
            "talk {id:x} from port {}: {written} sent, {read} received, round {asked} of {}",
            self.from, script.rounds
        )
    }
}

fn header(id: u32, script: &Script) -> [u8; HEADER] {
    let numbers = [id, script.question, script.answer, script.rounds].map(u32::to_be_bytes);
    std::array::from_fn(|at| numbers[at / 4][at % 4])
}

fn parse(header: &[u8; HEADER]) -> (u32, Script) {
    let number = |at: usize| u32::from_be_bytes(std::array::from_fn(|byte| header[4 * at + byte]));
    let (question, answer, rounds) = (number(1).max(1), number(2), number(3));
    let script = Script {
        question,
        answer,
        rounds,
        pause: 0,
        aborts: false,
        is_large: false,
        is_ftp: false,
        repeats: 0,
    };
    (number(0), script)
}
