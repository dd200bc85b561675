//! The two ends of state sync: the sync thread of the sending node, and its peer. Each has a socket
//! on the loopback interface, and real keys and frames.

use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::AsFd;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use conntrack::Cursor;
use engine::{
    ChangeStream, Config, Connections, CopyChange, CopyReport, Gateway, OpenPort, Passed, Peer,
    PortOpener, PortSetup, ReplicationPiece, Role, Stepper, Unresponsive, WorkerCount,
};
use flow::{HashKey, KeyedPacket, PortPart, Timestamp};
use netio::{
    DatagramSocket, Frame, FramePool, PortError, RxQueue, TxQueue, Waiter, clock, cpu,
    enlarge_receive_buffer,
};
use netlink::Picture;
use socket2::SockRef;
use steer::BucketId;
use sync::{
    Faults, HashSecret, Inflow, Likeness, NodeId, NodeName, Outflow, PreSharedKey, SecretRole,
    Seed, Session, Settings,
};

use super::clock::{Comparison, NodeClock};
use super::hub::Hub;
use super::lane::stage;
use super::rivals::ChangeSource;
use super::wrong;
use crate::Error;

/// As the thread of a gateway: time between two looks, visits to the socket between two turns, bytes
/// that the kernel may keep. The longest pause is shorter, so that a turn ends soon.
const PACE: Duration = Duration::from_micros(500);
const LONGEST_PAUSE: Duration = Duration::from_millis(2);
const VISITS_A_TURN: usize = 16;
const SOCKET_BYTES: u32 = 4 << 20;
/// How long a node tries to get rid of what waits for a dead peer.
const DEAD_DRAIN: Duration = Duration::from_millis(20);
/// By this the two name connections.
const NAMES: HashKey = HashKey(7, 8);
const PEER_SECRET: HashKey = HashKey(0x0123_4567_89ab_cdef, 0xfedc_ba98_7654_3210);

fn session(clock: &NodeClock, number: u16, follows: bool) -> Result<Session, Error> {
    let likeness = Likeness {
        hash_kind: "sip".into(),
        hash_secret: HashSecret::new([1; 16]),
        buckets: 256,
        translating_links: Default::default(),
        fragment_mode: String::new(),
        tunnel_mode: String::new(),
        zones: Vec::new(),
        rules: Vec::new(),
    };
    let node = number.try_into().map_err(|_| wrong("a node has no number"))?;
    let config = sync::Config {
        node: NodeId(node),
        name: NodeName::new("node").map_err(|_| wrong("a node has no name"))?,
        peer: None,
        follows,
        secret_role: SecretRole::Keeps,
        likeness,
        settings: Settings::default(),
        faults: Faults::default(),
    };
    let secret = PreSharedKey::new(b"a secret of the benchmark").map_err(|_| wrong("no key"))?;
    Ok(Session::new(clock.session(), config, secret, Seed::new([number as u8; 32])))
}

/// Two sockets that are connected to each other.
pub fn sockets() -> Result<[DatagramSocket; 2], Error> {
    let open = || {
        let pair = [(); 2].map(|()| UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)));
        let [a, b] = pair;
        let (a, b) = (a?, b?);
        a.connect(b.local_addr()?)?;
        b.connect(a.local_addr()?)?;
        for socket in [&a, &b] {
            enlarge_receive_buffer(socket, SOCKET_BYTES)?;
            SockRef::from(socket).set_send_buffer_size(SOCKET_BYTES as usize)?;
        }
        Ok([DatagramSocket::new(a)?, DatagramSocket::new(b)?])
    };
    open().map_err(|source| Error::System { what: "no sockets for state sync", source })
}

fn pause(waiter: &mut Waiter, socket: &DatagramSocket, time: Duration) {
    if waiter.wait([socket.as_fd()], Some(time)).is_err() {
        std::thread::sleep(time);
    }
}

/// The sync thread of the sending node.
pub struct Sender {
    pub peer: Peer,
    pub socket: DatagramSocket,
    /// The other end of a rival's queue.
    pub source: Option<Box<dyn ChangeSource>>,
}

impl Sender {
    /// The sync thread of a node that knows no peer yet.
    pub fn new(
        hub: &Hub,
        clock: &NodeClock,
        socket: DatagramSocket,
        source: Option<Box<dyn ChangeSource>>,
    ) -> Result<Self, Error> {
        let peer = Peer::new(hub, session(clock, 1, false)?, Role::Active, NAMES, clock.session())?;
        Ok(Self { peer, socket, source })
    }

    /// Moves what is in a rival's queue into the ring. True if there may be more.
    fn feed(&mut self, hub: &Hub) -> bool {
        let Some(source) = &mut self.source else { return false };
        let mut feed = hub.feed();
        let Some(ring) = feed.as_mut() else { return false };
        let mut has_more = true;
        ring.send_from(|budget, changes| {
            let before = changes.len();
            has_more = source.take(budget, &mut |change| changes.push(change));
            (changes.len() > before || has_more).then_some(false)
        });
        has_more
    }

    /// Works until the stage is [`stage::OVER`]. In [`stage::DRAIN`] brings that about itself when
    /// the peer has everything. Returns its CPU time, nanoseconds.
    pub fn run(
        &mut self,
        hub: &Hub,
        clock: &NodeClock,
        at: &AtomicU8,
        is_peer_dead: bool,
    ) -> Result<u64, Error> {
        cpu::name_current_thread("sync");
        let used = clock::thread_nanoseconds();
        let (mut waiter, comparison) = (Waiter::new(), Comparison::new(clock));
        let mut looked = Instant::now();
        let mut drains: Option<Instant> = None;
        let result = loop {
            let now_at = at.load(Ordering::Relaxed);
            let passed = looked.elapsed();
            looked += passed;
            if now_at != stage::WORK {
                clock.pass_at_rest(passed);
                drains.get_or_insert(looked);
            }
            let is_clear = now_at != stage::WORK && hub.is_clear();
            let now = clock.session();
            let Self { peer, socket, .. } = self;
            // The session counts datagrams that it refuses.
            let mut has_more =
                socket.receive_in(VISITS_A_TURN, |datagram| _ = peer.handle(now, datagram));
            has_more |= self.feed(hub);
            let Self { peer, socket, .. } = self;
            let turn = peer.turn(hub, now, |datagram| socket.send(datagram));
            socket.flush();
            match turn {
                Ok(more) => has_more |= more,
                Err(error) => break Err(error.into()),
            }
            let drained = drains.is_some_and(|since| since.elapsed() >= DEAD_DRAIN) && is_peer_dead;
            let is_idle = is_clear && !has_more && self.has_delivered(now);
            if now_at == stage::OVER || drained || is_idle {
                break Ok(());
            }
            if !has_more {
                let wait = match self.peer.is_followed() {
                    true => PACE,
                    false => self.peer.next_timeout().since(now).min(LONGEST_PAUSE),
                };
                pause(&mut waiter, &self.socket, comparison.wall(clock, wait));
            }
        };
        at.store(stage::OVER, Ordering::Relaxed);
        result.map(|()| clock::thread_nanoseconds() - used)
    }

    /// True if the peer has taken everything, also a bulk transfer if it has asked for one.
    fn has_delivered(&self, now: Timestamp) -> bool {
        let status = self.peer.status(now);
        status.unacknowledged_records == 0 && matches!(status.outflow, Outflow::Live(_))
    }

    /// Records taken in since the start.
    pub fn records(&self) -> u64 {
        self.peer.status(Timestamp::ZERO).counters.sent_records
    }

    /// Frames sent since the start, and those of them that were sent again.
    pub fn frames(&self) -> [u64; 2] {
        let counters = self.peer.status(Timestamp::ZERO).counters;
        [counters.sent_frames, counters.resent_frames]
    }
}

/// A port where nothing happens.
struct Idle;

impl RxQueue for Idle {
    fn receive(
        &mut self,
        _: &mut Vec<Frame>,
        _: usize,
        _: &mut FramePool,
    ) -> Result<usize, PortError> {
        Ok(0)
    }

    fn wait_handle(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
        None
    }
}

impl PortOpener for Idle {
    fn open(&mut self, _: usize, tx_queues: usize) -> Result<OpenPort, PortError> {
        let tx = (0..tx_queues).map(|_| self.open_tx()).collect::<Result<_, _>>()?;
        Ok(OpenPort { rx: vec![Box::new(Self)], tx })
    }

    fn open_tx(&mut self) -> Result<Box<dyn TxQueue>, PortError> {
        Ok(Box::new(netio::memory::Discard))
    }
}

/// The standby's connections, with a log of what is done to them.
pub struct Copies {
    gateway: Gateway,
    /// `None`: nobody wants the log.
    pub log: Mutex<Option<Vec<Applied>>>,
}

/// A change of a connection that a standby has made.
#[derive(Clone, Copy, Debug)]
pub struct Applied {
    /// The connection.
    pub original: KeyedPacket,
    /// When the change was in force, by the clock of the system, nanoseconds.
    pub at: u64,
}

impl Connections for Copies {
    fn follow_changes(&self) -> Result<ChangeStream, Unresponsive> {
        self.gateway.follow_changes()
    }

    fn unfollow_changes(&self) -> Result<(), Unresponsive> {
        self.gateway.unfollow_changes()
    }

    fn set_stands_by(&self, stands_by: bool) -> Result<(), Unresponsive> {
        self.gateway.set_stands_by(stands_by)
    }

    fn connection_count(&self) -> Result<u64, Unresponsive> {
        self.gateway.connection_count()
    }

    fn tell_connections(
        &self,
        bucket: BucketId,
        from: Cursor,
    ) -> Result<Option<ReplicationPiece>, Unresponsive> {
        self.gateway.tell_connections(bucket, from)
    }

    fn change_copies(&self, changes: Vec<CopyChange>) -> Result<CopyReport, Unresponsive> {
        let mut log = self.log.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let Some(log) = log.as_mut() else { return self.gateway.change_copies(changes) };
        let originals: Vec<_> = changes.iter().map(CopyChange::original).collect();
        let report = self.gateway.change_copies(changes)?;
        let at = clock::monotonic_nanoseconds();
        log.extend(originals.into_iter().map(|original| Applied { original, at }));
        Ok(report)
    }

    fn adopt_connections(
        &self,
        bucket: BucketId,
        from: Cursor,
    ) -> Result<Option<Passed>, Unresponsive> {
        self.gateway.adopt_connections(bucket, from)
    }

    fn give_connections_away(
        &self,
        bucket: BucketId,
        from: Cursor,
    ) -> Result<Option<Passed>, Unresponsive> {
        self.gateway.give_connections_away(bucket, from)
    }

    fn divide_ports(&self, part: PortPart) -> Result<(), Unresponsive> {
        self.gateway.divide_ports(part)
    }
}

/// The other gateway: all of its workers and its peer work on one thread, so that its CPU time can be
/// told.
pub struct Standby {
    pub copies: Copies,
    stepper: Stepper,
    pub peer: Peer,
    socket: DatagramSocket,
}

impl Standby {
    /// A gateway without connections.
    pub fn new(clock: &NodeClock, socket: DatagramSocket) -> Result<Self, Error> {
        /// More than any load has.
        const ROOM: u64 = 1 << 23;
        let mut config = Config::new(PEER_SECRET);
        config.workers = WorkerCount::fixed(1)?;
        config.settings.set("nf_conntrack_max", ROOM).map_err(|error| wrong(error.to_string()))?;
        let ports = vec![PortSetup::new("lan0", Idle), PortSetup::new("wan0", Idle)];
        let stepper = Stepper::new(clock.session());
        let gateway = Gateway::stepped(config, ports, &Picture::default(), stepper.clone())?;
        let copies = Copies { gateway, log: Mutex::new(None) };
        let peer =
            Peer::new(&copies, session(clock, 2, true)?, Role::Standby, NAMES, clock.session())?;
        Ok(Self { copies, stepper, peer, socket })
    }

    /// Works until all is over. With `until_level`, lanes stop when it has all connections. Returns
    /// its CPU time, nanoseconds.
    pub fn run(
        &mut self,
        clock: &NodeClock,
        at: &AtomicU8,
        until_level: bool,
    ) -> Result<u64, Error> {
        cpu::name_current_thread("standby");
        let used = clock::thread_nanoseconds();
        let (mut waiter, comparison) = (Waiter::new(), Comparison::new(clock));
        loop {
            let is_over = at.load(Ordering::Relaxed) == stage::OVER;
            let now = clock.session();
            let Self { peer, socket, .. } = self;
            // The session counts datagrams that it refuses.
            let mut has_more =
                socket.receive_in(VISITS_A_TURN, |datagram| _ = peer.handle(now, datagram));
            self.stepper.pass_to(now);
            self.stepper.take_turns();
            let Self { peer, socket, copies, .. } = self;
            let turn = peer.turn(copies, now, |datagram| socket.send(datagram));
            socket.flush();
            match turn {
                Ok(more) => has_more |= more,
                Err(error) => {
                    at.store(stage::OVER, Ordering::Relaxed);
                    return Err(error.into());
                }
            }
            if until_level && self.is_level(now) {
                at.fetch_max(stage::DRAIN, Ordering::Relaxed);
            }
            if is_over && !has_more {
                break;
            }
            if !has_more {
                let wait = self.peer.next_timeout().since(now).min(LONGEST_PAUSE);
                pause(&mut waiter, &self.socket, comparison.wall(clock, wait));
            }
        }
        Ok(clock::thread_nanoseconds() - used)
    }

    /// True if it has all that its peer has.
    pub fn is_level(&self, now: Timestamp) -> bool {
        matches!(self.peer.status(now).inflow, Inflow::Level(_))
    }

    /// Its gateway.
    pub fn gateway(&self) -> &Gateway {
        &self.copies.gateway
    }

    /// Records taken from its peer.
    pub fn records(&self) -> u64 {
        self.peer.status(Timestamp::ZERO).counters.received_records
    }
}
