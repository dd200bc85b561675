//! Echo requests to a host, whose replies tell the delay of a device.
//!
//! A delay counts from the time at which the request was to be sent. So a request that waits for the
//! one before it counts with its wait.

use std::io::{self, Read, Write};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use socket2::{Domain, Protocol, SockAddr, Socket, Type};

/// Time between two requests.
const INTERVAL: Duration = Duration::from_millis(10);
/// Length of a request, bytes: the header of ICMP.
const LENGTH: usize = 8;
/// Types of ICMP and ICMPv6: request and reply.
const V4: [u8; 2] = [8, 0];
const V6: [u8; 2] = [128, 129];

/// Probes that go on until this value is dropped.
#[derive(Debug)]
pub struct Probes {
    /// The delays of the replies that have come, ns.
    delays: Arc<Mutex<Vec<u64>>>,
}

impl Probes {
    /// Begins to probe a host.
    ///
    /// # Errors
    /// The system's error: it needs the right to open raw sockets, and a route to the host.
    pub fn start(host: IpAddr) -> anyhow::Result<Self> {
        let socket = open(host).with_context(|| format!("{host} can not be probed"))?;
        let delays = Arc::new(Mutex::new(Vec::new()));
        let prober = Prober { socket, is_v4: host.is_ipv4(), begin: Instant::now(), sent: 0 };
        let weak = Arc::downgrade(&delays);
        thread::Builder::new().name("probes".into()).spawn(move || {
            let mut prober = prober;
            while let Some(delays) = weak.upgrade() {
                let new = prober.turn();
                delays.lock().unwrap_or_else(PoisonError::into_inner).extend(new);
            }
        })?;
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
    Ok(socket)
}

struct Prober {
    socket: Socket,
    is_v4: bool,
    begin: Instant,
    /// Requests that were sent.
    sent: u64,
}

impl Prober {
    /// Sends a request, and takes replies until the next one is due. Returns their delays.
    fn turn(&mut self) -> Vec<u64> {
        let number = self.sent;
        self.sent += 1;
        // A request that can not be sent has no reply.
        let _ = (&self.socket).write(&request(self.is_v4, number));
        let (due, mut delays) = (self.due(number + 1), Vec::new());
        while let Some(left) = due.checked_duration_since(Instant::now()).filter(|it| !it.is_zero())
        {
            let mut packet = [0; 128];
            let _ = self.socket.set_read_timeout(Some(left));
            match (&self.socket).read(&mut packet) {
                Ok(length) => {
                    let reply = reply(self.is_v4, &packet[..length], number);
                    let delay = reply.map(|number| self.due(number).elapsed().as_nanos() as u64);
                    delays.extend(delay);
                }
                // A device that is down refuses at once.
                Err(error) if error.kind() != io::ErrorKind::WouldBlock => thread::sleep(left),
                Err(_) => {}
            }
        }
        delays
    }

    /// The time at which a request is to be sent.
    fn due(&self, number: u64) -> Instant {
        self.begin + INTERVAL.saturating_mul(number.try_into().unwrap_or(u32::MAX))
    }
}

/// The identifier of the requests of this process.
fn identifier() -> [u8; 2] {
    (std::process::id() as u16).to_be_bytes()
}

fn request(is_v4: bool, number: u64) -> [u8; LENGTH] {
    let ([kind, _], [a, b]) = (if is_v4 { V4 } else { V6 }, identifier());
    let [c, d] = (number as u16).to_be_bytes();
    let mut request = [kind, 0, 0, 0, a, b, c, d];
    // The kernel itself writes the checksum of ICMPv6.
    let sum = wire::checksum::checksum(&request).to_be_bytes();
    request[2..4].copy_from_slice(&sum);
    request
}

/// The number of the request that a packet answers, if the last one was `newest`. A raw socket of IPv4
/// gets the header of IP, too.
fn reply(is_v4: bool, packet: &[u8], newest: u64) -> Option<u64> {
    let header = if is_v4 { usize::from(packet.first()? & 15) * 4 } else { 0 };
    let [kind, 0, _, _, a, b, c, d] = *packet.get(header..)?.first_chunk::<LENGTH>()? else {
        return None;
    };
    let [_, expected] = if is_v4 { V4 } else { V6 };
    let age = (newest as u16).wrapping_sub(u16::from_be_bytes([c, d]));
    let is_own = kind == expected && [a, b] == identifier();
    newest.checked_sub(age.into()).filter(|_| is_own)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_belongs_to_its_request() {
        let mut packet = request(false, 70_000);
        assert_eq!(reply(false, &packet, 70_003), None, "it is a request");
        packet[0] = V6[1];
        assert_eq!(reply(false, &packet, 70_003), Some(70_000));
        assert_eq!(reply(false, &packet[..7], 70_003), None);
        assert_eq!(reply(false, &packet, 3), None, "it was not sent yet");
        packet[4] ^= 1;
        assert_eq!(reply(false, &packet, 70_003), None, "of another process");
        let mut packet = [&[0x45; 20][..], &request(true, 5)].concat();
        packet[20] = V4[1];
        assert_eq!(reply(true, &packet, 5), Some(5));
        assert_eq!(wire::checksum::checksum(&request(true, 5)), 0);
        assert_eq!(reply(true, &[], 5), None);
    }
}
