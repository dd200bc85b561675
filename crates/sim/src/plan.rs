//! The decisions of a seed before anything happens.

use lab::Random;

use crate::address::HOSTS;
use crate::talk::Script;
use crate::weather::Weather;

/// A second, in microseconds.
pub const SECOND: u64 = 1_000_000;
/// A millisecond.
pub const MS: u64 = 1000;

/// Time between two looks at a peer at the program's pace, microseconds.
const FASTEST: u64 = 500;
/// Time after which both gateways know a connection, if the link between them is well.
const UNTIL_KNOWN: u64 = 200 * MS;

/// Something that somebody does to the gateways.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// The active gateway dies, and the other one takes over.
    KillActive,
    /// The gateway on standby dies.
    KillStandby,
    /// The gateways exchange their parts.
    Switch,
    /// The link between the gateways is cut, in the directions with `true`, for so long.
    Cut([bool; 2], u64),
    /// The link between the gateways changes.
    SyncWeather(Weather),
    /// Some buckets of a gateway move.
    Moves(usize, usize),
    /// Buckets of a gateway move all the time, for so long.
    Storm(usize, u64),
    /// A gateway gets another number of workers.
    Workers(usize, usize),
}

/// The plan of a seed.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Workers of each gateway.
    pub workers: [usize; 2],
    /// Buckets of each gateway.
    pub buckets: [usize; 2],
    /// Time between two looks at a peer while connections change, microseconds.
    pub pace: u64,
    /// Buckets move all the time.
    pub is_restless: bool,
    /// Both gateways are active, and have the virtual addresses. Hosts inside send to either of them,
    /// and all replies come to the first one.
    pub is_shared: bool,
    /// Sources are masqueraded, and not translated to an address that the rules name.
    pub masquerades: bool,
    /// Most connections of each gateway.
    pub max_connections: [u64; 2],
    /// All packets are in a zone that a gateway learns only so long after its start.
    pub zone: Option<u64>,
    /// Weather between hosts and gateways.
    pub hosts: Weather,
    /// Weather between gateways, at the start.
    pub sync: Weather,
    /// Actions with their times.
    pub actions: Vec<(u64, Action)>,
    /// Talks with the times at which they begin.
    pub talks: Vec<(u64, Script)>,
    /// Chats, with the time at which they begin and the pause between two datagrams.
    pub chats: Vec<(u64, u64)>,
    /// When actions end.
    pub ends_at: u64,
}

impl Plan {
    /// True if the gateways steer packets to different buckets.
    pub fn is_unlike(&self) -> bool {
        self.buckets[0] != self.buckets[1]
    }

    /// Time from a change of a connection until the session has taken it in, at most: workers wait for
    /// others, and the peer is looked at after that.
    pub fn until_offered(&self) -> u64 {
        2 * self.pace + 500
    }

    /// True if gateways know the zone of all packets only some time after their start. Then they may
    /// have packets in two zones.
    pub fn is_late(&self) -> bool {
        self.zone.is_some_and(|late| late > 0)
    }

    /// True if a gateway has not enough room for all.
    pub fn is_short(&self) -> bool {
        self.max_connections[0] != self.max_connections[1]
    }
}

impl Plan {
    /// The plan of a seed.
    pub fn of(random: &mut Random) -> Self {
        let ends_at = random.between(8, 40) as u64 * SECOND;
        let at = |random: &mut Random| random.between(500_000, ends_at as usize) as u64;
        let mut actions: Vec<_> =
            (0..random.between(2, 9)).map(|_| (at(random), action(random))).collect();
        actions.sort_by_key(|(at, _)| *at);
        let last = ends_at as usize - 3_000_000;
        let talks = (0..random.between(4, 14))
            .map(|_| (random.between(100_000, last) as u64, script(random)));
        let talks = talks.collect();
        let chats = (0..random.between(1, 6)).map(|_| {
            let begin = random.between(100_000, last) as u64;
            (begin, random.one_of(&[200, 1000, 3_000]) * MS)
        });
        let chats = chats.collect();
        let is_restless = random.once_in(6);
        let mut plan = Self {
            workers: [(); 2].map(|()| random.between(1 + usize::from(is_restless), 3)),
            is_restless,
            buckets: match random.between(0, 19) {
                0 => [16, 32],
                1..10 => [16; 2],
                _ => [32; 2],
            },
            // The program's pace, or a machine that has much else to do.
            pace: random.one_of(&[FASTEST, FASTEST, 10_000, 40_000]),
            masquerades: random.once_in(2),
            max_connections: if random.once_in(12) { [4096, 8] } else { [4096; 2] },
            zone: random.once_in(8).then(|| random.one_of(&[0, 0, 2_000]) * MS),
            hosts: Weather::of_hosts(random),
            sync: if random.once_in(3) { Weather::bad(random) } else { Weather::FINE },
            actions,
            talks,
            chats,
            ends_at,
            is_shared: false,
        };
        if random.once_in(10) {
            plan.share();
        }
        plan
    }

    /// Has both gateways active. They hear each other all the time: what they do otherwise is no part
    /// of this. Three hosts talk to a port from the same port: the first one alone, and the two others
    /// at once when both gateways know the first connection.
    fn share(&mut self) {
        self.is_shared = true;
        (self.buckets[1], self.max_connections) = (self.buckets[0], [4096; 2]);
        (self.zone, self.sync) = (None, Weather::FINE);
        // An answer passes one gateway, and what its receiver says to it the other one. That has to
        // know the answer by then.
        self.pace = FASTEST;
        self.hosts.delay = self.hosts.delay.max(3 * FASTEST as usize);
        self.actions.retain(|(_, action)| {
            matches!(action, Action::Moves(..) | Action::Storm(..) | Action::Workers(..))
        });
        for at in 0..self.talks.len() {
            let first = self.talks[at - at % HOSTS].0.max(2 * SECOND);
            let (time, script) = &mut self.talks[at];
            *time = if at % HOSTS == 0 { first } else { first + UNTIL_KNOWN };
            // Only the gateway with a command's packet knows at once how its helper has changed it.
            (script.is_ftp, script.repeats) = (false, 0);
        }
    }
}

fn action(random: &mut Random) -> Action {
    match random.between(0, 99) {
        0..15 => Action::KillActive,
        15..25 => Action::KillStandby,
        25..40 => Action::Switch,
        40..55 => {
            let ways = random.one_of(&[[true, true], [true, false], [false, true]]);
            let longest = random.one_of(&[500, 5_000, 30_000]);
            Action::Cut(ways, random.between(20, longest) as u64 * MS)
        }
        55..65 => Action::SyncWeather(Weather::bad(random)),
        65..75 => Action::Moves(random.between(0, 1), random.between(1, 8)),
        75..90 => Action::Storm(random.between(0, 1), random.between(100, 1_500) as u64 * MS),
        _ => Action::Workers(random.between(0, 1), random.between(1, 4)),
    }
}

fn script(random: &mut Random) -> Script {
    let aborts = random.once_in(4);
    let is_large = random.once_in(4);
    let (question, answer, rounds, pause) = match random.between(0, 9) {
        // A transfer.
        0..2 => (random.between(1, 200), random.between(20_000, 150_000), 1, 0),
        2..4 => (random.between(20_000, 100_000), random.between(1, 200), 1, 0),
        // A dialogue.
        4..7 => (40, 100, random.between(3, 30), random.between(50, 2_000)),
        // Nothing for a long time.
        7..9 => (20, 1000, 2, random.between(8_000, 30_000)),
        _ => (10, 10, 1, 0),
    };
    let is_short = rounds == 1 && answer == 10;
    let is_ftp = rounds > 2 && random.once_in(2);
    Script {
        question: question as u32,
        answer: answer as u32,
        rounds: rounds as u32,
        pause: pause as u64 * MS,
        aborts,
        is_large,
        is_ftp,
        repeats: if is_short { random.between(5, 60) as u32 } else { 0 },
    }
}
