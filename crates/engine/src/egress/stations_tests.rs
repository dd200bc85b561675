use proptest::prelude::*;

use super::*;

const KEY: HashKey = HashKey(1, 2);
const SECOND: u64 = 1_000_000_000;

fn station(number: u32) -> Station {
    let [a, b, c, d] = number.to_be_bytes();
    [2, 1, a, b, c, d]
}

/// The work of the table, done by walks over a list of stations in the order in which they were heard.
struct Model {
    limits: StationLimits,
    ports: u16,
    heard: Vec<(Station, u16, u64)>,
    turn: u16,
}

impl Model {
    fn learn(&mut self, station: Station, port: u16, now_ns: u64) {
        self.turn = (self.turn + 1) % self.ports;
        for _ in 0..FORGET_AT_ONCE {
            let oldest = self.oldest(self.turn);
            if let Some(at) = oldest.filter(|at| now_ns - self.heard[*at].2 >= STATION_AGE_NS) {
                self.heard.remove(at);
            }
        }
        self.heard.retain(|(other, ..)| *other != station);
        let count = |port| self.heard.iter().filter(|(_, other, _)| *other == port).count();
        if count(port) >= self.limits.of_port as usize {
            self.heard.extract_if(.., |(_, other, _)| *other == port).next();
        } else if self.heard.len() >= self.limits.all as usize {
            let most = (0..self.ports).max_by_key(|port| count(*port)).unwrap();
            self.heard.extract_if(.., |(_, other, _)| *other == most).next();
        }
        self.heard.push((station, port, now_ns));
    }

    fn oldest(&self, port: u16) -> Option<usize> {
        self.heard.iter().position(|(_, other, _)| *other == port)
    }

    fn port_of(&self, station: Station, now_ns: u64) -> Option<PortId> {
        let (_, port, seen_ns) = self.heard.iter().find(|(other, ..)| *other == station)?;
        (now_ns - seen_ns < STATION_AGE_NS).then_some(PortId(*port))
    }
}

proptest! {
    /// Stations that come, move and fall silent, in a table that they overfill.
    #[test]
    fn the_table_is_a_list_of_those_heard_last(
        ports in 1u16..5,
        all in 4u32..40,
        of_port in 1u32..20,
        frames in proptest::collection::vec((0u32..60, 0u16..5, 0u64..20), 1..400),
    ) {
        let limits = StationLimits { all, of_port };
        let mut table = Stations::new(usize::from(ports), limits, KEY);
        let mut model = Model { limits, ports, heard: Vec::new(), turn: 0 };
        let mut now_ns = 0;
        for (number, port, seconds) in frames {
            now_ns += seconds * SECOND;
            if port < ports {
                model.learn(station(number), port, now_ns);
            }
            // There is no such port: nothing is learnt.
            table.learn(station(number), PortId(port), now_ns, |_| true);
            for number in 0..60 {
                let known = table.port_of(station(number), now_ns);
                prop_assert_eq!(known, model.port_of(station(number), now_ns), "{}", number);
            }
            let counts: Vec<u32> = table.ports.iter().map(|port| port.count).collect();
            prop_assert_eq!(counts.iter().sum::<u32>() as usize, model.heard.len());
            prop_assert!(counts.iter().all(|count| *count <= of_port));
            prop_assert_eq!(table.entries.len() - table.free.len(), model.heard.len());
            prop_assert!(table.entries.len() <= all as usize + 1);
        }
    }
}

/// Honest stations behind each port.
const HONEST: u32 = 500;

fn honest(number: u32) -> (Station, PortId) {
    (station(number), PortId((number % 2) as u16))
}

#[test]
fn stations_of_other_ports_stay_known_while_one_floods() {
    let mut table = Stations::new(3, StationLimits::default(), KEY);
    for number in 0..HONEST {
        let (station, port) = honest(number);
        table.learn(station, port, 0, |_| true);
    }
    for number in 0..100_000 {
        table.learn(station(1 << 31 | number), PortId(2), SECOND, |_| true);
        // Others come while it floods.
        if number % 1000 == 999 {
            let (station, port) = honest(HONEST + number / 1000);
            table.learn(station, port, SECOND, |_| true);
        }
    }
    for (station, port) in (0..HONEST + 100).map(honest) {
        assert_eq!(table.port_of(station, SECOND), Some(port));
    }
    assert_eq!(table.ports[2].count, table.limits.of_port);
}

#[test]
fn a_third_port_gets_its_places_while_two_ports_flood() {
    let mut table = Stations::new(3, StationLimits::default(), KEY);
    for number in 0..100_000 {
        table.learn(station(1 << 31 | number), PortId(1 + (number % 2) as u16), 0, |_| true);
    }
    let counts = |table: &Stations| table.ports.iter().map(|port| port.count).collect::<Vec<_>>();
    assert_eq!(counts(&table), [0, 8192, 8192], "the table is full");
    for number in 0..HONEST {
        table.learn(station(number), PortId(0), 0, |_| true);
        table.learn(station(1 << 31 | 200_000 | number), PortId(1), 0, |_| true);
    }
    assert!((0..HONEST).all(|number| table.port_of(station(number), 0).is_some()));
    assert_eq!(counts(&table).iter().sum::<u32>(), table.limits.all);
}

#[test]
fn an_active_station_stays_known_behind_a_port_that_floods() {
    let mut table = Stations::new(3, StationLimits::default(), KEY);
    for number in 0..100_000 {
        table.learn(station(1 << 31 | number), PortId(2), 0, |_| true);
        if number % 8000 == 0 {
            table.learn(station(7), PortId(2), 0, |_| true);
        }
        assert_eq!(table.port_of(station(7), 0), Some(PortId(2)));
    }
}

#[test]
fn a_frame_costs_the_same_however_many_stations_there_are() {
    let most_steps = |stations: u32, port: fn(u32) -> u16, next: fn(u32) -> u32| {
        let mut table = Stations::new(3, StationLimits::of(4 * StationLimits::MIN), KEY);
        table.limits = StationLimits { all: stations, of_port: stations / 2 };
        (0..4 * stations).fold(0, |most, number| {
            let before = observer::steps();
            let now_ns = u64::from(number) * SECOND / 10;
            table.learn(station(next(number)), PortId(port(number)), now_ns, |_| true);
            let _ = table.port_of(station(!number), now_ns);
            most.max(observer::steps() - before)
        })
    };
    // A flood behind one port, behind two, and stations that move from port to port.
    type Case = (fn(u32) -> u16, fn(u32) -> u32);
    let cases: [Case; 3] = [
        (|_| 2, |number| number),
        (|number| (number % 2) as u16, |number| number),
        (|number| (number % 3) as u16, |number| number % 1000),
    ];
    for (port, next) in cases {
        for stations in [64, 4096, 65_536] {
            let most = most_steps(stations, port, next);
            assert!(most <= 12, "{most} looks with {stations} stations");
        }
    }
}
