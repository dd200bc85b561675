//! Echo requests to a host, whose replies tell the delay of a device.
//!
//! One thread sends and another one takes the replies, so no request waits for a reply. Each request
//! carries the time at which it was sent. The threads sleep by timers of high resolution: those of a
//! socket's own timeout are late by several milliseconds, which is more than most devices delay.

use std::io::{self, Read, Write};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use socket2::{Domain, Protocol, SockAddr, Socket, Type};

/// Time between two requests.
const INTERVAL: Duration = Duration::from_millis(10);
/// Time without replies after which the thread that takes them looks whether anybody wants them.
const LOOK: Duration = Duration::from_millis(100);
/// Length of the header of ICMP, bytes.
const HEADER: usize = 8;
/// Length of a request, bytes: the header and a time.
const LENGTH: usize = HEADER + size_of::<u64>();
/// Types of ICMP and ICMPv6: request and reply.
const V4: [u8; 2] = [8, 0];
const V6: [u8; 2] = [128, 129];

/// The delays of the replies that have come, ns.
type Delays = Mutex<Vec<u64>>;

/// Probes that go on until this value is dropped.
#[derive(Debug)]
pub struct Probes {
    delays: Arc<Delays>,
}

impl Probes {
    /// Begins to probe a host.
    ///
    /// # Errors
    /// The system's error: it needs the right to open raw sockets, and a route to the host.
    pub fn start(host: IpAddr) -> anyhow::Result<Self> {
        let socket = open(host).with_context(|| format!("{host} can not be probed"))?;
        let delays = Arc::new(Delays::default());
        let sender = Prober { socket, is_v4: host.is_ipv4(), begin: Instant::now() };
        let receiver = Prober { socket: sender.socket.try_clone()?, ..sender };
        let (asker, listener) = (Arc::downgrade(&delays), Arc::downgrade(&delays));
        let named = |name: &str| thread::Builder::new().name(name.into());
        named("probes").spawn(move || sender.send(&asker))?;
        named("replies").spawn(move || receiver.receive(&listener))?;
        Ok(Self { delays })
    }

    /// The middle one of the delays of the replies that have come since the last call, ns.
    pub fn take(&self) -> Option<u64> {
        let mut delays =
            std::mem::take(&mut *self.delays.lock().unwrap_or_else(PoisonError::into_inner));
        delays.sort_unstable();
        delays.get(delays.len() / 2).copied()
    }
}

fn open(host: IpAddr) -> io::Result<Socket> {
    let (domain, protocol) = match host {
        IpAddr::V4(_) => (Domain::IPV4, Protocol::ICMPV4),
        IpAddr::V6(_) => (Domain::IPV6, Protocol::ICMPV6),
    };
    let socket = Socket::new(domain, Type::RAW, Some(protocol))?;
    socket.connect(&SockAddr::from(std::net::SocketAddr::new(host, 0)))?;
    socket.set_read_timeout(Some(LOOK))?;
    Ok(socket)
}

struct Prober {
    socket: Socket,
    is_v4: bool,
    /// Times count from here.
    begin: Instant,
}

impl Prober {
    /// Sends requests as long as anybody wants the delays.
    fn send(self, delays: &Weak<Delays>) {
        let mut due = self.begin;
        while delays.strong_count() > 0 {
            // A request that can not be sent has no reply.
            let _ = (&self.socket).write(&request(self.is_v4, self.now()));
            due += INTERVAL;
            thread::sleep(due.saturating_duration_since(Instant::now()));
        }
    }

    /// Takes replies as long as anybody wants the delays.
    fn receive(self, delays: &Weak<Delays>) {
        let mut packet = [0; 128];
        while delays.strong_count() > 0 {
            match (&self.socket).read(&mut packet) {
                Ok(length) => {
                    let now = self.now();
                    let delay = delay(self.is_v4, &packet[..length], now);
                    if let Some((delay, delays)) = delay.zip(delays.upgrade()) {
                        delays.lock().unwrap_or_else(PoisonError::into_inner).push(delay);
                    }
                }
                // A device that is down refuses at once.
                Err(error) if error.kind() != io::ErrorKind::WouldBlock => thread::sleep(INTERVAL),
                Err(_) => {}
            }
        }
    }

    /// The time, ns.
    fn now(&self) -> u64 {
        self.begin.elapsed().as_nanos() as u64
    }
}

/// The identifier of the requests of this process.
fn identifier() -> [u8; 2] {
    (std::process::id() as u16).to_be_bytes()
}

/// A request at a time, ns.
fn request(is_v4: bool, now: u64) -> [u8; LENGTH] {
    let ([kind, _], [a, b]) = (if is_v4 { V4 } else { V6 }, identifier());
    let [c, d] = ((now / INTERVAL.as_nanos() as u64) as u16).to_be_bytes();
    let mut request = [0; LENGTH];
    request[..HEADER].copy_from_slice(&[kind, 0, 0, 0, a, b, c, d]);
    request[HEADER..].copy_from_slice(&now.to_be_bytes());
    // The kernel itself writes the checksum of ICMPv6.
    let sum = wire::checksum::checksum(&request).to_be_bytes();
    request[2..4].copy_from_slice(&sum);
    request
}

/// The time from a request of this process to the reply that a packet is at a time, ns. A raw socket
/// of IPv4 gets the header of IP, too.
fn delay(is_v4: bool, packet: &[u8], now: u64) -> Option<u64> {
    let header = if is_v4 { usize::from(packet.first()? & 15) * 4 } else { 0 };
    let (message, sent) = packet.get(header..)?.split_first_chunk::<HEADER>()?;
    let [kind, 0, _, _, a, b, _, _] = *message else {
        return None;
    };
    let [_, expected] = if is_v4 { V4 } else { V6 };
    let sent = u64::from_be_bytes(*sent.first_chunk()?);
    now.checked_sub(sent).filter(|_| kind == expected && [a, b] == identifier())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_tells_the_time_since_its_request() {
        let mut packet = request(false, 70_000);
        assert_eq!(delay(false, &packet, 70_003), None, "it is a request");
        packet[0] = V6[1];
        assert_eq!(delay(false, &packet, 70_003), Some(3));
        assert_eq!(delay(false, &packet[..15], 70_003), None);
        assert_eq!(delay(false, &packet, 69_999), None, "it was not sent yet");
        packet[4] ^= 1;
        assert_eq!(delay(false, &packet, 70_003), None, "of another process");
        let mut packet = [&[0x45; 20][..], &request(true, 5)].concat();
        packet[20] = V4[1];
        assert_eq!(delay(true, &packet, 5), Some(0));
        assert_eq!(wire::checksum::checksum(&request(true, 5)), 0);
        assert_eq!(delay(true, &[], 5), None);
    }
}
