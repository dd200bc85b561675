//! State sync on a thread of its own, which carries datagrams between the peer and a socket. Peers that
//! speak pfsync have [another socket](super::pfsync).

use std::fs::File;
use std::io::Read;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::Context;
use engine::{Gateway, Peer, Role, StateSync, rules_likeness};
use flow::{HashKey, Timestamp};
use netio::{DatagramSocket, LinkState, Waiter, clock, enlarge_receive_buffer};
use socket2::{Domain, Protocol, Socket, Type};
use sync::{Config, Faults, Likeness, PreSharedKey, SecretRole, Seed, Session, Settings};

use super::pfsync;
use crate::config::{Configuration, NativeConfig, SyncConfig};

/// Time between two looks at the changes of connections while the peer follows: they are to leave
/// within a millisecond.
pub(super) const PACE: Duration = Duration::from_micros(500);
/// Longest time between two turns.
pub(super) const LONGEST_PAUSE: Duration = Duration::from_millis(100);
/// Bytes that the kernel may keep for the socket in each direction: what comes during a
/// bulk transfer while the thread applies records.
pub(super) const SOCKET_BYTES: u32 = 4 << 20;
/// The pause between two looks at the sync link.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// How often the thread takes datagrams between two turns. Each time up to 64 may come.
const VISITS_A_TURN: usize = 16;

/// The thread. Dropping it ends it.
pub struct SyncThread {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for SyncThread {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// State sync, for its thread and for those who ask about it.
pub(super) type Shared = Arc<Mutex<StateSync>>;

/// The part that this gateway has when state sync begins, if another process had it before.
#[derive(Clone, Copy, Debug)]
pub struct Former {
    pub role: Role,
    /// A term that is higher than the one at which the peer takes over from that process.
    pub term: u32,
}

impl Former {
    /// The part of the process that has carried this state sync. One that is active keeps what it has.
    pub fn of(state: &StateSync) -> Self {
        let role = state.role();
        let term = match state {
            StateSync::Native(peer) => peer.highest_term(),
            StateSync::Pfsync(_) => 0,
        };
        // The peer takes over one term above. One on standby gives its connections away in any case.
        let above = if role == Role::Active { 2 } else { 0 };
        Self { role, term: term.saturating_add(above) }
    }
}

/// Begins to look for the peer. Returns the state of sync and the thread.
pub fn start(
    config: &Configuration,
    sync: &SyncConfig,
    key: Option<PreSharedKey>,
    gateway: &Arc<Gateway>,
    former: Option<Former>,
) -> anyhow::Result<(Shared, SyncThread)> {
    let (state, carry) = open(config, sync, key, gateway, former)?;
    let shared = Arc::new(Mutex::new(state));
    let thread = spawn(&shared, carry)?;
    Ok((shared, thread))
}

/// Begins anew after the thread has ended, as another process would.
pub fn start_again(
    config: &Configuration,
    sync: &SyncConfig,
    gateway: &Arc<Gateway>,
    shared: &Shared,
) -> anyhow::Result<SyncThread> {
    let former = Former::of(&lock(shared));
    let (state, carry) = open(config, sync, config.sync_key()?, gateway, Some(former))?;
    *lock(shared) = state;
    spawn(shared, carry)
}

/// Carries datagrams until it is to stop.
type Carry = Box<dyn FnOnce(&Shared, &AtomicBool) + Send>;

fn open(
    config: &Configuration,
    sync: &SyncConfig,
    key: Option<PreSharedKey>,
    gateway: &Arc<Gateway>,
    former: Option<Former>,
) -> anyhow::Result<(StateSync, Carry)> {
    let (rules, of_thread) = (gateway.rules_fingerprint(), gateway.clone());
    match sync {
        SyncConfig::Native(sync) => {
            let key = key.context("[sync]: there is no key")?;
            let of_line = sync.clone();
            let connect = Box::new(move |_: &LinkState| connect(&of_line));
            let line = Line::open(&sync.interface, former.is_some(), connect)?;
            let names = name_key(&key);
            let session = session(config, sync, key, rules)?;
            gateway.set_defers(sync.defer);
            let role = former.map_or(sync.role, |former| former.role);
            let mut peer = Peer::new(&**gateway, session, role, names, now())?;
            peer.set_term(former.map_or(0, |former| former.term));
            let carry = move |shared: &Shared, stop: &AtomicBool| {
                carry(&of_thread, shared, line, stop);
            };
            Ok((StateSync::Native(Box::new(peer)), Box::new(carry)))
        }
        SyncConfig::Pfsync(sync) => {
            let most = config.settings.conntrack.max_entries;
            let (line, mut state) = pfsync::open(sync, most, gateway, former.is_some())?;
            if let Some(Former { role, .. }) = former {
                state.set_role(&**gateway, role)?;
            }
            let carry = move |shared: &Shared, stop: &AtomicBool| {
                pfsync::carry(&of_thread, shared, line, stop);
            };
            Ok((state, Box::new(carry)))
        }
    }
}

fn spawn(shared: &Shared, carry: Carry) -> anyhow::Result<SyncThread> {
    let stop = Arc::new(AtomicBool::new(false));
    let (stopping, own) = (stop.clone(), shared.clone());
    let thread = std::thread::Builder::new()
        .name("sync".into())
        .spawn(move || carry(&own, &stopping))
        .context("the system has no thread for state sync")?;
    Ok(SyncThread { stop, thread: Some(thread) })
}

/// The socket to the peer. The kernel gives it only datagrams of the peer's address and port that
/// arrive on the interface.
fn connect(sync: &NativeConfig) -> anyhow::Result<DatagramSocket> {
    let NativeConfig { peer, port, interface, .. } = sync;
    let peer = SocketAddr::new(*peer, *port);
    let (domain, any) = match peer {
        SocketAddr::V4(_) => (Domain::IPV4, SocketAddr::from((Ipv4Addr::UNSPECIFIED, *port))),
        SocketAddr::V6(_) => (Domain::IPV6, SocketAddr::from((Ipv6Addr::UNSPECIFIED, *port))),
    };
    let open = || {
        let socket = Socket::new(domain, Type::DGRAM, Some(Protocol::UDP))?;
        socket.bind_device(Some(interface.as_bytes()))?;
        enlarge_receive_buffer(&socket, SOCKET_BYTES)?;
        // The kernel cuts this to its limit.
        socket.set_send_buffer_size(SOCKET_BYTES as usize)?;
        socket.bind(&any.into())?;
        socket.connect(&peer.into())?;
        DatagramSocket::new(UdpSocket::from(socket))
    };
    open().map_err(|error: std::io::Error| {
        anyhow::anyhow!("[sync]: no socket to {peer} on {interface}: {error}")
    })
}

fn session(
    config: &Configuration,
    sync: &NativeConfig,
    key: PreSharedKey,
    rules: Option<u128>,
) -> anyhow::Result<Session> {
    let seed = random()?;
    let likeness = Likeness {
        hash_kind: format!("{:?}", config.hash),
        hash_secret: key.hash_secret(),
        buckets: config.buckets.get() as u32,
        // Peers steer by the same key, and a copy comes to the bucket to which its packets are
        // steered here, so peers need not translate to the same addresses at the same time.
        translating_links: Default::default(),
        fragment_mode: format!("{:?}", config.fragments),
        tunnel_mode: format!("{:?}", config.tunnels),
        zones: format!("{:?}", config.zones).into_bytes(),
        rules: rules_likeness(rules),
    };
    let config = Config {
        node: sync.node,
        name: sync.name.clone(),
        peer: None,
        follows: sync.role == Role::Standby,
        secret_role: SecretRole::Keeps,
        likeness,
        settings: Settings::default(),
        faults: Faults::default(),
    };
    Ok(Session::new(now(), config, key, Seed::new(seed)))
}

/// The secret by which peers name connections.
fn name_key(key: &PreSharedKey) -> HashKey {
    let number = u128::from_be_bytes(key.name_secret());
    HashKey((number >> 64) as u64, number as u64)
}

/// Bytes that nobody can guess.
pub(super) fn random<const N: usize>() -> anyhow::Result<[u8; N]> {
    let mut bytes = [0; N];
    File::open("/dev/urandom")
        .and_then(|mut file| file.read_exact(&mut bytes))
        .context("can not read /dev/urandom")?;
    Ok(bytes)
}

pub(super) fn now() -> Timestamp {
    Timestamp::from_nanos(clock::monotonic_nanoseconds())
}

/// Locks the state of sync. A panic of another thread does no harm: it ends the process.
pub(super) fn lock(shared: &Mutex<StateSync>) -> MutexGuard<'_, StateSync> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Opens a socket on a link.
type Connect<S> = Box<dyn Fn(&LinkState) -> anyhow::Result<S> + Send>;

/// The socket on the sync link, or the search for one while the system has none.
pub(super) struct Line<S> {
    interface: String,
    connect: Connect<S>,
    /// The socket, with the number of the interface that it is bound to.
    open: Option<(u32, S)>,
    next_look: Timestamp,
}

impl<S> Line<S> {
    /// Opens the socket. `is_patient` says that a gateway goes on which had one: if there is none now,
    /// because the interface is down or has gone, it is tried again.
    pub fn open(interface: &str, is_patient: bool, connect: Connect<S>) -> anyhow::Result<Self> {
        let (interface, next_look) = (interface.to_owned(), now().after(LOOK_AGAIN));
        let mut line = Self { interface, connect, open: None, next_look };
        match line.follow_link() {
            Err(error) if is_patient => {
                tracing::error!("state sync goes on when this has changed: {error:#}");
            }
            opened => _ = opened?,
        }
        Ok(line)
    }

    /// Opens a socket if there is none on the interface that has this name now. True if it has.
    fn follow_link(&mut self) -> anyhow::Result<bool> {
        let interface = &self.interface;
        let link = netio::link_named(interface)
            .with_context(|| format!("[sync]: can not look at {interface}"))?
            .with_context(|| {
                format!("[sync]: there is no interface {interface}; create it first")
            })?;
        if self.open.as_ref().is_some_and(|(index, _)| *index == link.index) {
            return Ok(false);
        }
        self.open = None;
        self.open = Some((link.index, (self.connect)(&link)?));
        Ok(true)
    }

    /// Looks once in a while whether the interface is still that of the socket. True if there is another
    /// socket since.
    pub fn is_renewed(&mut self) -> bool {
        if now() < self.next_look {
            return false;
        }
        self.next_look = now().after(LOOK_AGAIN);
        let had_one = self.open.is_some();
        match self.follow_link() {
            Ok(false) => false,
            Ok(true) => {
                tracing::info!("state sync has a socket on {}", self.interface);
                true
            }
            Err(error) => {
                self.open = None;
                if had_one {
                    tracing::error!("state sync goes on when this has changed: {error:#}");
                }
                false
            }
        }
    }

    /// The socket, if there is one now.
    pub fn socket(&mut self) -> Option<&mut S> {
        self.open.as_mut().map(|(_, socket)| socket)
    }

    /// The same, to look at.
    pub fn current(&self) -> Option<&S> {
        self.open.as_ref().map(|(_, socket)| socket)
    }
}

fn carry(gateway: &Gateway, shared: &Shared, mut line: Line<DatagramSocket>, stop: &AtomicBool) {
    let mut waiter = Waiter::new();
    let mut has_failed = false;
    while !stop.load(Ordering::Relaxed) {
        let pause = {
            let mut shared = lock(shared);
            let StateSync::Native(peer) = &mut *shared else { return };
            // The session sends again all that was lost meanwhile.
            line.is_renewed();
            let mut socket = line.socket();
            // The session counts datagrams that it refuses.
            let take = |datagram: &[u8]| _ = peer.handle(now(), datagram);
            let has_more = socket.as_mut().is_some_and(|it| it.receive_in(VISITS_A_TURN, take));
            // A full queue loses datagrams, which are sent again like any that are lost.
            let turn = peer.turn(gateway, now(), |datagram| {
                if let Some(socket) = &mut socket {
                    socket.send(datagram);
                }
            });
            if let Some(socket) = socket {
                socket.flush();
            }
            match turn {
                Ok(true) => Duration::ZERO,
                Ok(false) if has_more => Duration::ZERO,
                Ok(false) if peer.is_followed() => PACE,
                Ok(false) => peer.next_timeout().since(now()).min(LONGEST_PAUSE),
                Err(error) => {
                    if !has_failed {
                        tracing::error!("state sync: {error}");
                    }
                    has_failed = true;
                    LONGEST_PAUSE
                }
            }
        };
        let handles = line.current().map(AsFd::as_fd);
        if !pause.is_zero() && waiter.wait(handles, Some(pause)).is_err() {
            std::thread::sleep(pause);
        }
    }
}
