//! Two gateways in one test, with a link between them.

use std::net::Ipv4Addr;
use std::time::Duration;

use flow::Timestamp;

use super::*;

pub const HERE: usize = 0;
pub const THERE: usize = 1;

/// A packet from the sync link.
pub const ARRIVAL: Arrival = Arrival {
    source: std::net::IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)),
    ttl: 255,
    is_by_sync_link: true,
};

pub fn creator_of(end: usize) -> CreatorId {
    CreatorId::new(end as u32 + 1).unwrap()
}

/// The name of a state that an end has created.
pub fn id_of(end: usize, id: u64) -> StateId {
    StateId { id, creator: creator_of(end) }
}

/// A TCP connection whose ends have these sequence numbers.
pub fn tcp(id: StateId, state: TcpState, sequences: [u32; 2]) -> State {
    let peers = sequences
        .map(|sequence| TcpPeer { state, numbers: Numbers { sequence, ..Numbers::default() } });
    with_peers(id, 6, Peers::Tcp(peers), Timeout::TcpEstablished)
}

/// A UDP flow.
pub fn udp(id: StateId, states: [FlowState; 2]) -> State {
    with_peers(id, 17, Peers::Flow(states), Timeout::UdpMultiple)
}

fn with_peers(id: StateId, protocol: u8, peers: Peers, timeout: Timeout) -> State {
    let [high, low] = (id.id as u16).to_be_bytes();
    let hosts = [Ipv4Addr::new(192, 0, high, low), Ipv4Addr::new(198, 51, 100, 1)];
    let addresses = Addresses::V4(hosts);
    let key = Key { addresses, ports: [40_000, 80], protocol, routing_domain: 0 };
    State::new(StateParts {
        id,
        interface: InterfaceName::ANY,
        direction: Direction::In,
        wire: key,
        stack: key,
        peers,
        timeout,
        age: 0,
        left: 60,
        counts: [Counts::default(); 2],
        flags: StateFlags::default(),
        updates: 0,
        policy: Policy::default(),
    })
    .unwrap()
}

/// Two gateways with one clock. Packets arrive at once.
pub struct Ends {
    pub now: Timestamp,
    pub ends: [Speaker; 2],
    pub dialect: Dialect,
}

impl Ends {
    pub fn new(dialect: Dialect, change: impl Fn(usize, &mut Config)) -> Self {
        let now = Timestamp::from_secs(100);
        let end = |end| {
            let mut config = Config::new(dialect, creator_of(end));
            config.wants_bulk = false;
            change(end, &mut config);
            Speaker::new(now, config)
        };
        Self { now, ends: [end(HERE), end(THERE)], dialect }
    }

    /// Packets of an end that it sends now, not delivered.
    pub fn packets(&mut self, end: usize) -> Vec<Vec<u8>> {
        let now = self.now;
        std::iter::from_fn(|| self.ends[end].poll_transmit(now)).collect()
    }

    /// The messages that an end sends now, not delivered.
    pub fn messages(&mut self, end: usize) -> Vec<Message> {
        let dialect = self.dialect;
        let packets = self.packets(end);
        packets.iter().flat_map(|it| Packet::decode(dialect, it).unwrap().messages).collect()
    }

    pub fn deliver(&mut self, to: usize, packet: &[u8]) {
        self.ends[to].handle(self.now, &ARRIVAL, packet).unwrap();
    }

    /// Carries packets in both directions until both ends are silent.
    pub fn carry(&mut self) {
        loop {
            let mut is_busy = false;
            for end in [HERE, THERE] {
                for packet in self.packets(end) {
                    is_busy = true;
                    self.deliver(1 - end, &packet);
                }
            }
            if !is_busy {
                return;
            }
        }
    }

    pub fn wait(&mut self, span: Duration) {
        self.now = self.now.after(span);
    }

    /// Lets time pass in steps, and carries packets.
    pub fn run(&mut self, span: Duration) {
        let end = self.now.after(span);
        while self.now < end {
            self.carry();
            let next = self.ends.iter().filter_map(Speaker::next_timeout).min();
            // Time passes even if an end wants its turn at once.
            let step = self.now.after(Duration::from_millis(1));
            self.now = next.unwrap_or(end).max(step).min(end);
        }
        self.carry();
    }

    pub fn events(&mut self, end: usize) -> Vec<Event> {
        std::iter::from_fn(|| self.ends[end].poll_event()).collect()
    }

    pub fn offer(&mut self, end: usize, state: State) -> Passage {
        self.ends[end].offer(self.now, state).unwrap()
    }

    pub fn end(&mut self, end: usize, id: StateId) {
        self.ends[end].end(self.now, id).unwrap();
    }

    pub fn peers(&self, end: usize, id: StateId) -> Option<Peers> {
        self.ends[end].state(id).map(|state| state.parts().peers)
    }
}
