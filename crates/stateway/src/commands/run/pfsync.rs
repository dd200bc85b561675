//! State sync with gateways that speak pfsync: a raw socket on the sync link.

use std::io::{self, ErrorKind, Read};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Context;
use engine::{Carried, Gateway, Pfsync, StateSync};
use netio::{LinkState, Waiter, enlarge_receive_buffer, receive_with_hop_limit};
use socket2::{Domain, InterfaceIndexOrAddress, Protocol, SockAddr, Socket, Type};
use sync::pfsync::{
    Arrival, Carrier, Config, CreatorId, DEFER_TIME, PROTOCOL, TTL, TYPE_OF_SERVICE,
};

use super::sync::{LONGEST_PAUSE, Line, PACE, SOCKET_BYTES, Shared, lock, now, random};
use crate::config::PfsyncConfig;

/// Longest time for which a message waits for others to share its packet. pf waits for a second, in
/// which a gateway that dies takes the news along.
const FLUSH_TIME: Duration = Duration::from_millis(5);
/// How many packets the thread takes between two turns.
const PACKETS_A_TURN: usize = 256;
/// The longest packet.
const RECEIVED_BYTES: usize = 65_536;
/// States of one connection here: one for each way through the gateway.
const STATES_OF_CONNECTION: u64 = 2;
/// Least number of states that there may be, for peers with more connections than fit here.
const STATES_MIN: u64 = 10_000;

/// The raw socket, bound to the sync link.
pub struct SyncSocket {
    socket: Socket,
    to: SockAddr,
    peer: IpAddr,
    /// Bytes of a packet behind the IP header, at most.
    packet_bytes: usize,
    received: Box<[u8]>,
}

impl SyncSocket {
    fn open(config: &PfsyncConfig, link: &LinkState) -> anyhow::Result<Self> {
        let PfsyncConfig { interface, peer, .. } = config;
        Self::bound(config, link).map_err(|error| {
            anyhow::anyhow!("[sync]: no pfsync socket to {peer} on {interface}: {error}")
        })
    }

    fn bound(config: &PfsyncConfig, link: &LinkState) -> io::Result<Self> {
        let (domain, to) = match config.peer {
            IpAddr::V4(_) => (Domain::IPV4, SocketAddr::new(config.peer, 0)),
            IpAddr::V6(peer) => (Domain::IPV6, SocketAddrV6::new(peer, 0, 0, link.index).into()),
        };
        let socket = Socket::new(domain, Type::RAW, Some(Protocol::from(i32::from(PROTOCOL))))?;
        socket.bind_device(Some(config.interface.as_bytes()))?;
        socket.set_nonblocking(true)?;
        enlarge_receive_buffer(&socket, SOCKET_BYTES)?;
        // The kernel cuts this to its limit.
        socket.set_send_buffer_size(SOCKET_BYTES as usize)?;
        let (ttl, service) = (u32::from(TTL), u32::from(TYPE_OF_SERVICE));
        match config.peer {
            IpAddr::V4(peer) => {
                // The header, with TTL, type of service and DF, is part of what is sent.
                socket.set_header_included_v4(true)?;
                if peer.is_multicast() {
                    let interface = InterfaceIndexOrAddress::Index(link.index);
                    socket.join_multicast_v4_n(&peer, &interface)?;
                    socket.set_multicast_loop_v4(false)?;
                }
            }
            IpAddr::V6(peer) => {
                socket.set_recv_hoplimit_v6(true)?;
                socket.set_unicast_hops_v6(ttl)?;
                socket.set_tclass_v6(service)?;
                if peer.is_multicast() {
                    socket.set_multicast_hops_v6(ttl)?;
                    socket.set_multicast_if_v6(link.index)?;
                    socket.join_multicast_v6(&peer, link.index)?;
                    socket.set_multicast_loop_v6(false)?;
                }
            }
        }
        let header_bytes = match config.peer {
            IpAddr::V4(_) => {
                Carrier::V4 { source: Ipv4Addr::UNSPECIFIED, destination: Ipv4Addr::UNSPECIFIED }
            }
            IpAddr::V6(_) => {
                Carrier::V6 { source: Ipv6Addr::UNSPECIFIED, destination: Ipv6Addr::UNSPECIFIED }
            }
        }
        .header_bytes();
        let longest = (link.mtu as usize).min(RECEIVED_BYTES - 1);
        let packet_bytes = longest.saturating_sub(header_bytes);
        let received = vec![0; RECEIVED_BYTES].into();
        Ok(Self { socket, to: to.into(), peer: config.peer, packet_bytes, received })
    }

    /// Sends what follows the IP header.
    fn send(&self, pfsync: &[u8]) -> Carried {
        let sent = match self.peer {
            // The kernel writes its own address.
            IpAddr::V4(destination) => {
                let carrier = Carrier::V4 { source: Ipv4Addr::UNSPECIFIED, destination };
                self.socket.send_to(&carrier.packet(pfsync), &self.to)
            }
            IpAddr::V6(_) => self.socket.send_to(pfsync, &self.to),
        };
        let Err(error) = sent else { return Carried::Sent };
        let is_full = matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted);
        if is_full { Carried::Later } else { Carried::Lost }
    }

    /// Gives what has come to the speaker, which counts what it refuses. True if there may be more.
    fn receive(&mut self, pfsync: &mut Pfsync) -> bool {
        (0..PACKETS_A_TURN).all(|_| {
            let taken = match self.peer {
                IpAddr::V4(_) => self.receive_v4(pfsync),
                IpAddr::V6(_) => self.receive_v6(pfsync),
            };
            !taken.is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
        })
    }

    fn receive_v4(&mut self, pfsync: &mut Pfsync) -> io::Result<()> {
        let length = (&self.socket).read(&mut self.received)?;
        // The socket is bound to the link, so nothing comes by another one.
        match Arrival::of_packet(&self.received[..length], true) {
            Ok((arrival, message)) => _ = pfsync.handle(now(), &arrival, message),
            Err(refusal) => pfsync.refuse(refusal),
        }
        Ok(())
    }

    fn receive_v6(&mut self, pfsync: &mut Pfsync) -> io::Result<()> {
        let packet = receive_with_hop_limit(&self.socket, &mut self.received)?;
        let arrival = Arrival {
            source: packet.source.into(),
            ttl: packet.hop_limit.unwrap_or_default(),
            is_by_sync_link: true,
        };
        let _ = pfsync.handle(now(), &arrival, &self.received[..packet.length]);
        Ok(())
    }
}

/// The socket, and the end of pfsync that it carries packets for. `most` is the number of connections
/// that the gateway may have. `is_patient`: the interface may come later.
pub fn open(
    config: &PfsyncConfig,
    most: u64,
    gateway: &Gateway,
    is_patient: bool,
) -> anyhow::Result<(Line<SyncSocket>, StateSync)> {
    let (of_line, peer) = (config.clone(), config.peer);
    let connect = Box::new(move |link: &LinkState| SyncSocket::open(&of_line, link));
    let line = Line::open(&config.interface, is_patient, connect)?;
    let [a, b, c, d, id @ ..] = random::<12>()?;
    // It is never 0, which names nobody.
    let drawn = CreatorId::new(u32::from_be_bytes([a, b, c, d]) | 1);
    let creator = config.hostid.or(drawn).context("no number for this gateway")?;
    let states = (STATES_OF_CONNECTION.saturating_mul(most)).max(STATES_MIN);
    let any = Config::new(config.version, creator);
    let speaker = Config {
        peer: Some(peer).filter(|peer| !peer.is_multicast()),
        packet_bytes: line.current().map_or(any.packet_bytes, |socket| socket.packet_bytes),
        max_updates: config.maxupd,
        defers: config.defer,
        states_max: usize::try_from(states).unwrap_or(usize::MAX),
        flush_time: FLUSH_TIME,
        ..any
    };
    gateway.set_defers(config.defer.then_some(DEFER_TIME));
    let first_id = u64::from_be_bytes(id);
    let pfsync = Pfsync::new(gateway, speaker, first_id, config.role, now())?;
    Ok((line, StateSync::Pfsync(Box::new(pfsync))))
}

/// Carries packets until it is to stop.
pub fn carry(gateway: &Gateway, shared: &Shared, mut line: Line<SyncSocket>, stop: &AtomicBool) {
    let mut waiter = Waiter::new();
    let mut has_failed = false;
    while !stop.load(Ordering::Relaxed) {
        let pause = {
            let mut shared = lock(shared);
            let StateSync::Pfsync(pfsync) = &mut *shared else { return };
            let is_renewed = line.is_renewed();
            let mut socket = line.socket();
            if let Some(socket) = socket.as_ref().filter(|_| is_renewed) {
                pfsync.begin_on_link(now(), socket.packet_bytes);
            }
            let has_more = socket.as_mut().is_some_and(|socket| socket.receive(pfsync));
            // All that is to be told waits for a socket, as for room.
            let send = |packet: &[u8]| socket.as_ref().map_or(Carried::Later, |it| it.send(packet));
            match pfsync.turn(gateway, now(), send) {
                Ok(true) => Duration::ZERO,
                Ok(false) if has_more => Duration::ZERO,
                Ok(false) => PACE,
                Err(error) => {
                    if !has_failed {
                        tracing::error!("state sync: {error}");
                    }
                    has_failed = true;
                    LONGEST_PAUSE
                }
            }
        };
        let handles = line.current().map(|socket| socket.socket.as_fd());
        if !pause.is_zero() && waiter.wait(handles, Some(pause)).is_err() {
            std::thread::sleep(pause);
        }
    }
}
