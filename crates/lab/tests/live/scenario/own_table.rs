//! Our table of connections by itself, for tests that compare what it does with single frames.

use conntrack::syn_proxy::Screening;
use conntrack::{
    Checksum, Context, Expectations, Guess, KnownTunnels, Limits, Replication, Settings, Table,
    Tracked, TrackedPacket,
};
use flow::{ConntrackCounters, FlowKey, HashKey, Timestamp, Zone};
use wire::dissect;

const SECRET: HashKey = HashKey(0x6e, 0x61);
/// The time of every frame.
pub const NOW: Timestamp = Timestamp::from_secs(1);

/// The hash of a flow in the table.
pub fn hash(key: &FlowKey) -> u64 {
    key.hash(SECRET)
}

/// A table with its surroundings.
pub struct OwnTable {
    pub table: Table,
    settings: Settings,
    limits: Limits,
    counters: ConntrackCounters,
    expectations: Expectations,
    tunnels: KnownTunnels,
    replication: Replication,
}

impl OwnTable {
    pub fn new(settings: Settings) -> Self {
        Self {
            table: Table::new(NOW),
            settings,
            limits: Limits::alone(1 << 20, SECRET),
            counters: ConntrackCounters::default(),
            expectations: Expectations::new(SECRET),
            tunnels: KnownTunnels::new(SECRET),
            replication: Replication::default(),
        }
    }

    /// Tracks a frame, and has `act` do what follows for its packet.
    pub fn offer<T>(
        &mut self,
        frame: &[u8],
        act: impl FnOnce(&mut Table, Tracked, &TrackedPacket<'_>, &mut Context<'_>) -> T,
    ) -> T {
        let network = dissect(frame).unwrap().network.unwrap();
        let keyed = FlowKey::of_packet(&network, Zone(0)).unwrap();
        let packet = TrackedPacket {
            network: &network,
            frame,
            keyed: &keyed,
            hash: hash(&keyed.key),
            guess: Guess::NONE,
            checksum: Checksum::Verify,
            segments: 1,
            may_open: true,
            screening: Screening::Off,
            map_epoch: 0,
            zones: None,
        };
        let mut context = Context {
            now: NOW,
            settings: &self.settings,
            limits: &mut self.limits,
            counters: &mut self.counters,
            expectations: &self.expectations,
            tunnels: &self.tunnels,
            events: None,
            expectation_events: None,
            replication: &mut self.replication,
            ended: None,
        };
        let tracked = self.table.track(&packet, &mut context);
        act(&mut self.table, tracked, &packet, &mut context)
    }
}
