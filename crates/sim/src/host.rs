//! A host with a real TCP, and what it says and hears in its connections.

use std::collections::VecDeque;
use std::net::Ipv4Addr;

use smoltcp::iface::{Config, Interface, SocketHandle, SocketSet};
use smoltcp::phy::{Device, DeviceCapabilities, Medium, RxToken, TxToken};
use smoltcp::socket::tcp::{RecvError, Socket, SocketBuffer, State};
use smoltcp::time::Instant;
use smoltcp::wire::{HardwareAddress, IpAddress, IpCidr};

use crate::address::{Side, VIRTUAL, host};
use crate::failure::{Invariant, Violation};
use crate::talk::{Answer, FTP, HEADER, Stream, Told};

/// Longest IP packet.
const MTU: usize = 1500;
/// Bytes that a socket sends or receives ahead.
const BUFFER: usize = 16 * 1024;
/// The same for some sockets, whose windows are scaled.
const LARGE_BUFFER: usize = 80 * 1024;
/// Ports at which each host listens: one for anything, and that of FTP.
pub const LISTENS_AT: [u16; 2] = [80, FTP];
/// TCP, and its bits.
const TCP: u8 = 6;
const SYN: u8 = 2;
const ACK: u8 = 16;
/// Bytes that are written or read at once.
const CHUNK: usize = 4096;

/// IP packets on their way between a host's TCP and the simulation.
#[derive(Default)]
struct Card {
    received: VecDeque<Vec<u8>>,
    sent: VecDeque<Vec<u8>>,
}

struct Received(Vec<u8>);

struct Sending<'a>(&'a mut VecDeque<Vec<u8>>);

impl RxToken for Received {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, read: F) -> R {
        read(&self.0)
    }
}

impl TxToken for Sending<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, write: F) -> R {
        let mut packet = vec![0; len];
        let result = write(&mut packet);
        self.0.push_back(packet);
        result
    }
}

impl Device for Card {
    type RxToken<'a> = Received;
    type TxToken<'a> = Sending<'a>;

    fn receive(&mut self, _: Instant) -> Option<(Received, Sending<'_>)> {
        let packet = self.received.pop_front()?;
        Some((Received(packet), Sending(&mut self.sent)))
    }

    fn transmit(&mut self, _: Instant) -> Option<Sending<'_>> {
        Some(Sending(&mut self.sent))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ip;
        capabilities.max_transmission_unit = MTU;
        capabilities
    }
}

/// A host.
pub struct Host {
    pub side: Side,
    /// Its number among those of its side.
    pub number: usize,
    /// The gateway whose station it knows for the virtual address.
    pub gateway: usize,
    /// When its TCP wants to be asked again.
    pub wakes_at: u64,
    /// When it is asked next.
    pub rings_at: u64,
    interface: Interface,
    card: Card,
    sockets: SocketSet<'static>,
    listening: Vec<(u16, SocketHandle)>,
    /// Connections that others have opened.
    answers: Vec<(SocketHandle, Answer)>,
}

fn instant(now: u64) -> Instant {
    Instant::from_micros(now as i64)
}

impl Host {
    /// A host that listens.
    pub fn new(side: Side, number: usize, seed: u64, now: u64) -> Self {
        let mut card = Card::default();
        let mut config = Config::new(HardwareAddress::Ip);
        config.random_seed = seed;
        let mut interface = Interface::new(config, &mut card, instant(now));
        let address = host(side, number);
        interface.update_ip_addrs(|all| {
            // There is room for more than one.
            let _ = all.push(IpCidr::new(IpAddress::Ipv4(address), 24));
        });
        let router = VIRTUAL[side.index()];
        // The same.
        let _ = interface.routes_mut().add_default_ipv4_route(router);
        let mut host = Self {
            side,
            number,
            gateway: 0,
            wakes_at: u64::MAX,
            rings_at: u64::MAX,
            interface,
            card,
            sockets: SocketSet::new(Vec::new()),
            listening: Vec::new(),
            answers: Vec::new(),
        };
        LISTENS_AT.into_iter().for_each(|port| host.listen(port));
        host
    }

    /// Its address.
    pub fn address(&self) -> Ipv4Addr {
        host(self.side, self.number)
    }

    /// Opens one more socket that listens.
    pub fn listen(&mut self, port: u16) {
        let mut socket = socket(false);
        // A new socket is closed, and no port is 0.
        let _ = socket.listen(port);
        self.listening.push((port, self.sockets.add(socket)));
    }

    /// Opens a connection; `None` if its port is in use.
    pub fn connect(
        &mut self,
        to: (Ipv4Addr, u16),
        from: u16,
        is_large: bool,
    ) -> Option<SocketHandle> {
        let handle = self.sockets.add(socket(is_large));
        let socket = self.sockets.get_mut::<Socket<'_>>(handle);
        if socket.connect(self.interface.context(), (IpAddress::Ipv4(to.0), to.1), from).is_err() {
            self.sockets.remove(handle);
            return None;
        }
        Some(handle)
    }

    /// A connection.
    pub fn socket(&mut self, handle: SocketHandle) -> &mut Socket<'static> {
        self.sockets.get_mut(handle)
    }

    /// Forgets a connection.
    pub fn forget(&mut self, handle: SocketHandle) {
        self.sockets.remove(handle);
    }

    /// An IP packet arrives.
    pub fn receive(&mut self, packet: Vec<u8>) {
        if self.is_new_to_tcp(&packet) {
            self.card.received.push_back(packet);
        }
    }

    /// False for a SYN that comes again. The TCP of this host would give it to a socket that listens,
    /// although another one has taken the first one. A connection that is closing makes room for one
    /// with the same ports.
    fn is_new_to_tcp(&mut self, packet: &[u8]) -> bool {
        if packet.len() < 40 || packet[9] != TCP || packet[33] & (SYN | ACK) != SYN {
            return true;
        }
        let port = |at: usize| u16::from_be_bytes([packet[at], packet[at + 1]]);
        let source: [u8; 4] = std::array::from_fn(|at| packet[12 + at]);
        let remote = (IpAddress::Ipv4(source.into()), port(20));
        let Self { answers, sockets, .. } = self;
        let is_its = |socket: &Socket<'_>| {
            let end = socket.remote_endpoint().map(|it| (it.addr, it.port));
            end == Some(remote) && socket.local_endpoint().is_some_and(|it| it.port == port(22))
        };
        let Some(at) = answers.iter().position(|it| is_its(sockets.get::<Socket<'_>>(it.0))) else {
            return true;
        };
        let (handle, _) = answers[at];
        match sockets.get::<Socket<'_>>(handle).state() {
            State::SynReceived | State::Established => false,
            _ => {
                answers.remove(at);
                sockets.remove(handle);
                true
            }
        }
    }

    /// Lets TCP work. Returns IP packets to send.
    pub fn work(&mut self, now: u64) -> Vec<Vec<u8>> {
        self.interface.poll(instant(now), &mut self.card, &mut self.sockets);
        let next = self.interface.poll_at(instant(now), &self.sockets);
        self.wakes_at = next.map_or(u64::MAX, |at| (at.total_micros() as u64).max(now + 1));
        self.card.sent.drain(..).collect()
    }

    /// Answers in the connections that others have opened. `told` gets what has happened in them.
    pub fn answer(&mut self, mut told: impl FnMut(Told)) -> Result<(), Violation> {
        let Self { listening, answers, sockets, .. } = self;
        let is_taken = |(_, handle): &mut (u16, SocketHandle)| {
            sockets.get::<Socket<'_>>(*handle).state() != State::Listen
        };
        let taken: Vec<_> = listening.extract_if(.., is_taken).collect();
        answers.extend(taken.iter().map(|(port, handle)| (*handle, Answer::new(*port))));
        // Others may open further connections.
        taken.into_iter().for_each(|(port, _)| self.listen(port));
        let Self { answers, sockets, .. } = self;
        let mut result = Ok(());
        answers.retain_mut(|(handle, answer)| {
            let socket = sockets.get_mut::<Socket<'_>>(*handle);
            if let Err(violation) = answer.go_on(socket, &mut told) {
                result = Err(violation);
            }
            let is_over = matches!(socket.state(), State::Closed | State::TimeWait);
            if is_over {
                sockets.remove(*handle);
            }
            !is_over
        });
        result
    }
}

fn socket(is_large: bool) -> Socket<'static> {
    let size = if is_large { LARGE_BUFFER } else { BUFFER };
    let buffer = || SocketBuffer::new(vec![0; size]);
    Socket::new(buffer(), buffer())
}

/// Writes what the socket takes of the bytes `from..to` of a stream. Returns how many.
pub fn write(socket: &mut Socket<'_>, stream: Stream, (from, to): (u32, u32)) -> u32 {
    let mut at = from;
    while at < to && socket.can_send() {
        let length = CHUNK.min((to - at) as usize);
        let bytes: Vec<u8> = (at..at + length as u32).map(|it| stream.byte(it)).collect();
        match socket.send_slice(&bytes) {
            Ok(0) | Err(_) => break,
            Ok(taken) => at += taken as u32,
        }
    }
    at - from
}

/// Reads what is there of a stream, of which `read` bytes were read before. Returns how many; `None`
/// at its end.
pub fn read(socket: &mut Socket<'_>, stream: Stream, read: u32) -> Result<Option<u32>, Violation> {
    let mut buffer = [0; CHUNK];
    let mut at = read;
    loop {
        match socket.recv_slice(&mut buffer) {
            Ok(0) => return Ok(Some(at - read)),
            Ok(length) => {
                let wrong =
                    buffer[..length].iter().zip(at..).find(|(it, at)| **it != stream.byte(*at));
                if let Some((byte, place)) = wrong {
                    let what = format!("{stream:x?}: byte {place} is {byte}");
                    return Err(Violation::new(Invariant::NothingMixed, what));
                }
                at += length as u32;
            }
            Err(RecvError::Finished) if at > read => return Ok(Some(at - read)),
            Err(_) => return Ok(None),
        }
    }
}

/// Reads the header of a talk.
pub fn read_header(socket: &mut Socket<'_>) -> Option<[u8; HEADER]> {
    if socket.recv_queue() < HEADER {
        return None;
    }
    let mut header = [0; HEADER];
    socket.recv_slice(&mut header).ok().filter(|length| *length == HEADER).map(|_| header)
}
