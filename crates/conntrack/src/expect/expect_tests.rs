use std::net::IpAddr;
use std::thread;

use wire::protocol;

use super::*;

const CLIENT: &str = "192.0.2.1";
const SERVER: &str = "198.51.100.2";
const LIMIT: u64 = 100;

fn start() -> Timestamp {
    Timestamp::from_secs(1000)
}

fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn flow(protocol: u8, zone: u16, from: (&str, u16), to: (&str, u16)) -> KeyedPacket {
    let end = |(text, port)| Endpoint { address: mapped(address(text)), port };
    let family = if from.0.contains(':') { Family::V6 } else { Family::V4 };
    FlowKey::of_ports(family, protocol, Zone(zone), end(from), end(to))
}

fn master(port: u16) -> Master {
    let flow = flow(protocol::TCP, 0, (CLIENT, port), (SERVER, 21));
    Master { flow, helper: Kind::Ftp, mark: 7, zone: flow.key.zone }
}

/// A connection from the server to a port of the client.
fn data(port: u16) -> Announced {
    Announced {
        source: Some(address(SERVER)),
        ..Announced::new(protocol::TCP, address(CLIENT), port)
    }
}

fn child(port: u16) -> KeyedPacket {
    flow(protocol::TCP, 0, (SERVER, 20), (CLIENT, port))
}

fn ports(expectations: &Expectations, now: Timestamp) -> Vec<u16> {
    let mut found = Vec::new();
    let mut next = Some(ExpectationCursor::default());
    while let Some(from) = next {
        next = expectations.list(from, 2, now, |expected| found.push(expected.destination_port));
    }
    found
}

impl Expectations {
    fn add(&self, master_port: u16, announced: Announced) -> Result<(), Full> {
        self.announce(master(master_port), announced, LIMIT, start(), &mut None).map(drop)
    }

    /// Claims the expectation of a packet and fulfils it.
    fn take(&self, packet: &KeyedPacket, now: Timestamp) -> Option<Expectation> {
        let claim = self.claim(packet, now, &mut None)?;
        self.fulfil(&claim, start(), &mut None);
        Some(claim.expectation)
    }

    fn assert_nothing_is_left(&self) {
        let book = self.book();
        let sets = [book.by_destination.len(), book.by_master.len(), book.by_deadline.len()];
        assert_eq!((book.entries.len(), sets), (0, [0; 3]));
        assert!(self.shared.filter.is_empty() && book.by_source.is_empty());
    }
}

#[test]
fn an_expectation_is_for_one_connection_of_those_it_fits() {
    let expectations = Expectations::new(HashKey(1, 2));
    expectations.add(5000, data(2000)).unwrap();
    let (tcp, udp) = (protocol::TCP, protocol::UDP);
    for other in [
        flow(tcp, 0, (SERVER, 20), (CLIENT, 2001)),
        flow(tcp, 0, ("198.51.100.3", 20), (CLIENT, 2000)),
        flow(tcp, 0, (SERVER, 20), ("192.0.2.2", 2000)),
        flow(tcp, 1, (SERVER, 20), (CLIENT, 2000)),
        flow(udp, 0, (SERVER, 20), (CLIENT, 2000)),
        flow(tcp, 0, (CLIENT, 2000), (SERVER, 20)),
        flow(tcp, 0, ("::ffff:198.51.100.2", 20), ("::ffff:192.0.2.1", 2000)),
    ] {
        assert!(expectations.take(&other, start()).is_none(), "{other:?}");
    }
    let claim = expectations.claim(&child(2000), start(), &mut None).unwrap();
    let master_of_it = &claim.expectation.master;
    assert_eq!((master_of_it.mark, master_of_it.flow), (7, master(5000).flow));
    assert!(expectations.claim(&child(2000), start(), &mut None).is_none(), "once");
    expectations.release(&claim);
    assert!(expectations.take(&child(2000), start()).is_some(), "but it was released");
    expectations.assert_nothing_is_left();
}

#[test]
fn a_source_port_counts_where_it_is_known_and_a_source_where_it_is() {
    let expectations = Expectations::new(HashKey(1, 2));
    let exact = Announced { source_port: Some(20), ..data(2000) };
    expectations.add(5000, exact).unwrap();
    let other = flow(protocol::TCP, 0, (SERVER, 21), (CLIENT, 2000));
    assert!(expectations.take(&other, start()).is_none());
    assert!(expectations.take(&child(2000), start()).is_some());
    let anybody = Announced { source: None, ..data(2000) };
    expectations.add(5000, anybody).unwrap();
    let stranger = flow(protocol::TCP, 0, ("203.0.113.9", 9), (CLIENT, 2000));
    assert!(expectations.take(&stranger, start()).is_some());
    expectations.assert_nothing_is_left();
}

#[test]
fn a_permanent_one_stays_until_its_time_is_over() {
    let expectations = Expectations::new(HashKey(1, 2));
    let permanent = Announced { permanent: true, timeout_s: Some(10), ..data(2000) };
    expectations.add(5000, permanent).unwrap();
    let before = start().after(Duration::from_secs(9));
    for _ in 0..3 {
        let claim = expectations.claim(&child(2000), before, &mut None).unwrap();
        expectations.release(&claim);
    }
    assert_eq!(ports(&expectations, before), [2000]);
    let over = start().after(Duration::from_secs(10));
    assert!(ports(&expectations, over).is_empty());
    assert!(expectations.take(&child(2000), over).is_none());
    expectations.assert_nothing_is_left();
}

#[test]
fn a_class_has_a_maximum_and_the_oldest_goes_first() {
    let expectations = Expectations::new(HashKey(1, 2));
    expectations.add(5000, data(2000)).unwrap();
    expectations.add(5000, data(2001)).unwrap();
    expectations.add(5001, data(2002)).unwrap();
    assert_eq!(ports(&expectations, start()), [2001, 2002], "FTP expects one at a time");
    let later = start().after(Duration::from_secs(100));
    expectations.announce(master(5000), data(2001), LIMIT, later, &mut None).unwrap();
    assert_eq!(ports(&expectations, start()), [2002, 2001], "it was announced anew");
    let late = start().after(Duration::from_secs(300));
    assert_eq!(ports(&expectations, late), [2001], "and lives longer for that");
}

#[test]
fn each_call_of_a_trunk_has_the_maximum_of_its_class() {
    let expectations = Expectations::new(HashKey(1, 2));
    let trunk = Master { helper: Kind::Sip, ..master(5060) };
    let announce = |call, port| {
        let audio = Announced { class: 1, call, ..data(port) };
        expectations.announce(trunk, audio, 10_000, start(), &mut None).unwrap();
    };
    for call in 1..=50 {
        // One more than the maximum of a call.
        (0..5).for_each(|stream| announce(call, 2000 + call as u16 * 10 + stream));
    }
    assert_eq!(expectations.len(), 200);
    let first = ports(&expectations, start())[..4].to_vec();
    assert_eq!(first, [2011, 2012, 2013, 2014], "the first call still has its media");
    let key = trunk.flow.key;
    expectations.withdraw(&key, Some(1), &(1..=3), start(), &mut None);
    assert_eq!(ports(&expectations, start())[0], 2021);
    for call in 51..=200 {
        announce(call, 10_000 + call as u16);
    }
    assert_eq!(expectations.len(), MOST_OF_MASTER, "and a trunk has a bound");
    expectations.withdraw(&key, None, &(0..=u8::MAX), start(), &mut None);
    expectations.assert_nothing_is_left();
}

#[test]
fn there_are_no_more_than_the_limit() {
    let expectations = Expectations::new(HashKey(1, 2));
    for port in 0..LIMIT as u16 {
        expectations.add(5000 + port, data(2000 + port)).unwrap();
    }
    assert_eq!(expectations.add(4999, data(1999)), Err(Full));
    expectations.add(5000, data(1999)).unwrap();
    assert_eq!(expectations.len(), LIMIT as usize, "one of its own made room");
    let over = start().after(Duration::from_secs(300));
    expectations.announce(master(4999), data(1998), LIMIT, over, &mut None).unwrap();
    assert_eq!(ports(&expectations, over), [1998], "those whose time is over made room");
}

#[test]
fn the_source_with_most_expectations_makes_room_for_others() {
    let expectations = Expectations::new(HashKey(1, 2));
    let of = |client: &'static str, port| {
        let flow = flow(protocol::TCP, 0, (client, port), (SERVER, 21));
        Master { flow, ..master(port) }
    };
    let announce = |client: &'static str, port: u16| {
        let it = Announced::new(protocol::TCP, address(client), port);
        expectations.announce(of(client, port), it, LIMIT, start(), &mut None)
    };
    let (greedy, honest) = ("192.0.2.1", "192.0.2.2");
    for port in 0..LIMIT as u16 {
        assert_eq!(announce(greedy, 2000 + port), Ok(false));
    }
    assert_eq!(announce(greedy, 1999), Err(Full), "its own do not give way");
    assert_eq!(announce(honest, 6000), Ok(true));
    let found = ports(&expectations, start());
    assert_eq!((found.len(), found[0], found[99]), (100, 2001, 6000), "the oldest of the greedy");
    assert_eq!(announce(greedy, 1999), Err(Full), "it takes nothing back");
    for port in 6001..6050 {
        announce(honest, port).unwrap();
    }
    assert_eq!(announce(honest, 6050), Err(Full), "both have half");
    announce("192.0.2.3", 7000).unwrap();
    let found = ports(&expectations, start());
    assert_eq!((found.len(), found[0]), (100, 2051), "of two that have most, the oldest");
    expectations.flush(100, start(), &mut None);
    expectations.assert_nothing_is_left();
}

/// A host may have every address of its IPv6 network, and zones may have the same addresses.
#[test]
fn the_addresses_of_an_ipv6_network_are_one_source_and_those_of_another_zone_are_not() {
    let expectations = Expectations::new(HashKey(1, 2));
    let announce = |zone, client: &str, port| {
        let flow = flow(protocol::TCP, zone, (client, port), ("2001:db8:9::1", 21));
        let it = Announced::new(protocol::TCP, address(client), port);
        let master = Master { flow, helper: Kind::Ftp, mark: 0, zone: flow.key.zone };
        expectations.announce(master, it, 3, start(), &mut None)
    };
    for (port, client) in (1..).zip(["2001:db8::1", "2001:db8::2", "2001:db8::3"]) {
        announce(0, client, port).unwrap();
    }
    assert_eq!(announce(0, "2001:db8::4", 4), Err(Full));
    announce(1, "2001:db8::4", 4).unwrap();
    assert_eq!(announce(1, "2001:db8:1::4", 5), Ok(true), "another network");
    assert_eq!(ports(&expectations, start()), [3, 4, 5]);
}

#[test]
fn expectations_end_with_their_connection() {
    let expectations = Expectations::new(HashKey(1, 2));
    expectations.add(5000, data(2000)).unwrap();
    expectations.add(5001, data(2001)).unwrap();
    expectations.withdraw(&master(5000).flow.key, None, &(1..=9), start(), &mut None);
    assert_eq!(expectations.len(), 2, "another class");
    expectations.withdraw(&master(5000).flow.key, None, &(0..=0), start(), &mut None);
    assert_eq!(ports(&expectations, start()), [2001]);
    expectations.withdraw(&master(5001).flow.key, None, &(0..=u8::MAX), start(), &mut None);
    expectations.assert_nothing_is_left();
}

#[test]
fn a_flush_forgets_the_oldest_first_and_counts_what_was_listed() {
    let expectations = Expectations::new(HashKey(1, 2));
    let waiting = Announced { waits: true, ..data(2001) };
    let permanent = Announced { permanent: true, ..data(2002) };
    for (port, announced) in (5000..).zip([data(2000), waiting, permanent, data(2003)]) {
        expectations.add(port, announced).unwrap();
    }
    let claim = expectations.claim(&child(2000), start(), &mut None).unwrap();
    let mut events: Vec<(u64, ExpectationEvent)> = Vec::new();
    assert_eq!(expectations.flush(3, start(), &mut Some(&mut events)), (2, true));
    assert_eq!(ports(&expectations, start()), [2003]);
    assert_eq!(expectations.flush(3, start(), &mut Some(&mut events)), (1, false));
    assert_eq!(events.len(), 3, "nobody was told of what waits");
    expectations.release(&claim);
    expectations.assert_nothing_is_left();
}

#[test]
fn nobody_keeps_others_from_a_place_by_naming_it_first() {
    // The kernel refuses the second announcement as long as the first one exists, which matches
    // any source. Here both exist.
    let expectations = Expectations::new(HashKey(1, 2));
    let anybody = Announced { source: None, ..data(2000) };
    expectations.add(5000, anybody).unwrap();
    expectations.add(5001, data(2000)).unwrap();
    let taken = expectations.take(&child(2000), start()).unwrap();
    assert_eq!(taken.master.flow, master(5001).flow, "it has named who comes");
    let taken = expectations.take(&child(2000), start()).unwrap();
    assert_eq!(taken.master.flow, master(5000).flow, "anybody is also the next");
    expectations.assert_nothing_is_left();
}

#[test]
fn an_expectation_that_two_connections_announce_admits_one_connection() {
    let expectations = Expectations::new(HashKey(1, 2));
    let other = Announced { source_port: Some(20), ..data(2001) };
    for master in [5000, 5001] {
        expectations.add(master, data(2000)).unwrap();
    }
    expectations.add(5002, Announced { destination_port: 2000, ..other }).unwrap();
    assert_eq!(ports(&expectations, start()), [2000; 3], "the kernel has but the first");
    let from_21 = flow(protocol::TCP, 0, (SERVER, 21), (CLIENT, 2000));
    let claim = expectations.claim(&from_21, start(), &mut None).unwrap();
    assert_eq!(claim.expectation.master.flow, master(5000).flow, "the oldest");
    assert!(expectations.claim(&from_21, start(), &mut None).is_none());
    expectations.release(&claim);
    assert!(expectations.take(&from_21, start()).is_some());
    assert!(expectations.take(&from_21, start()).is_none(), "no hole is left");
    assert!(expectations.take(&child(2000), start()).is_some(), "but for what differs");
    expectations.assert_nothing_is_left();
}

#[test]
fn a_claimed_expectation_ends_with_its_master_and_with_its_time() {
    // A worker claims it and finds no room for the connection. Meanwhile another worker ends
    // the master or announces the same again.
    let expectations = Expectations::new(HashKey(1, 2));
    expectations.add(5000, data(2000)).unwrap();
    let claim = expectations.claim(&child(2000), start(), &mut None).unwrap();
    expectations.withdraw(&master(5000).flow.key, None, &(0..=u8::MAX), start(), &mut None);
    expectations.release(&claim);
    expectations.assert_nothing_is_left();

    expectations.add(5000, data(2000)).unwrap();
    let claim = expectations.claim(&child(2000), start(), &mut None).unwrap();
    let over = start().after(Duration::from_secs(300));
    assert!(expectations.claim(&child(2001), over, &mut None).is_none());
    expectations.announce(master(5001), data(2001), LIMIT, over, &mut None).unwrap();
    expectations.release(&claim);
    assert_eq!(ports(&expectations, over), [2001]);
    expectations.withdraw(&master(5001).flow.key, None, &(0..=0), start(), &mut None);

    expectations.add(5000, data(2000)).unwrap();
    let claim = expectations.claim(&child(2000), start(), &mut None).unwrap();
    expectations.add(5000, data(2000)).unwrap();
    expectations.release(&claim);
    assert_eq!(expectations.len(), 1, "what was announced anew is expected once");
    expectations.fulfil(&claim, start(), &mut None);
    assert!(expectations.take(&child(2000), start()).is_some(), "and is not that of the claim");
    expectations.assert_nothing_is_left();
}

#[test]
fn events_tell_of_each_once_in_the_order_in_which_it_happens() {
    let expectations = Expectations::new(HashKey(1, 2));
    // Two workers, each with its own listener.
    let mut events = [Vec::new(), Vec::new()];
    let [here, there] = &mut events;
    let at = |seconds| start().after(Duration::from_secs(seconds));
    let mut here: Listener<'_> = Some(here);
    let mut there: Listener<'_> = Some(there);
    let mut announce = |port, now| {
        let it = data(port);
        expectations.announce(master(5000), it, LIMIT, now, &mut here).unwrap();
    };
    announce(2000, at(0));
    let claim = expectations.claim(&child(2000), at(1), &mut there).unwrap();
    expectations.release(&claim);
    let claim = expectations.claim(&child(2000), at(1), &mut there).unwrap();
    expectations.fulfil(&claim, at(1), &mut there);
    announce(2001, at(2));
    announce(2002, at(3));
    expectations.expire(at(302), &mut there);
    expectations.expire(at(303), &mut there);
    announce(2003, at(304));
    expectations.withdraw(&master(5000).flow.key, None, &(0..=0), at(305), &mut there);
    let mut all: Vec<(u64, ExpectationEvent)> = events.concat();
    all.sort_by_key(|(stamp, _)| *stamp);
    let lines = all.iter().map(|(_, event)| {
        let line = crate::format::ReportedExpectation(event).to_string();
        line.split(" mask-src").next().unwrap().replace("src=198.51.100.2 dst=192.0.2.1 ", "")
    });
    insta::assert_snapshot!(lines.collect::<Vec<_>>().join("\n"), @r"
        [NEW] 300 proto=6 sport=0 dport=2000
    [DESTROY] 299 proto=6 sport=0 dport=2000
        [NEW] 300 proto=6 sport=0 dport=2001
    [DESTROY] 299 proto=6 sport=0 dport=2001
        [NEW] 300 proto=6 sport=0 dport=2002
    [DESTROY] 0 proto=6 sport=0 dport=2002
        [NEW] 300 proto=6 sport=0 dport=2003
    [DESTROY] 299 proto=6 sport=0 dport=2003
    ");
}

#[test]
fn of_several_workers_one_takes_it() {
    const ROUNDS: u16 = 500;
    let expectations = Expectations::new(HashKey(1, 2));
    let takers: Vec<_> = (0..2)
        .map(|_| {
            let shared = expectations.clone();
            thread::spawn(move || {
                let tries = (0..20 * ROUNDS).map(|n| 2000 + n % ROUNDS);
                tries.filter(|&port| shared.take(&child(port), start()).is_some()).count()
            })
        })
        .collect();
    for port in 2000..2000 + ROUNDS {
        expectations.announce(master(port), data(port), u64::MAX, start(), &mut None).unwrap();
    }
    let taken: usize = takers.into_iter().map(|taker| taker.join().unwrap()).sum();
    assert_eq!(taken + expectations.len(), usize::from(ROUNDS));
}

#[test]
fn expectations_whose_time_is_over_are_forgotten_a_few_at_a_time() {
    const MANY: u16 = 100;
    let expectations = Expectations::new(HashKey(1, 2));
    let later = |port: u16| Announced { timeout_s: Some(400), ..data(port) };
    for master in 0..MANY {
        expectations
            .announce(self::master(master), data(2000 + master), 1000, start(), &mut None)
            .unwrap();
    }
    expectations.announce(self::master(7000), later(6000), 1000, start(), &mut None).unwrap();
    let over = Timestamp::from_secs(1301);
    for round in 1..=3 {
        // An expired expectation matches no packet, also if no worker has removed it yet.
        assert!(expectations.claim(&child(2000 + MANY - 1), over, &mut None).is_none());
        assert_eq!(expectations.len(), usize::from(MANY) + 1 - round * FORGOTTEN_AT_ONCE);
    }
    // An announcement finds room at once.
    let left = expectations.len() as u64;
    expectations.announce(master(8000), data(3000), left, over, &mut None).unwrap();
    let mut calls = 1;
    while expectations.expire(over, &mut None) {
        calls += 1;
    }
    assert_eq!((expectations.len(), calls), (2, 3));
    assert_eq!(ports(&expectations, over), [6000, 3000]);
}

#[test]
fn one_place_for_two_classes_is_one_expectation() {
    let expectations = Expectations::new(HashKey(1, 2));
    let sip = |call| Master { helper: Kind::Sip, ..master(call) };
    let media =
        |class, call, port| Announced { class, call, protocol: protocol::UDP, ..data(port) };
    let announce = |announced: Announced, at| {
        expectations.announce(sip(1), announced, LIMIT, at, &mut None).unwrap();
        expectations.len()
    };
    assert_eq!(announce(media(1, 7, 6000), start()), 1);
    assert_eq!(announce(media(2, 7, 6000), start()), 1, "sound and pictures by one port");
    assert_eq!(announce(media(2, 7, 6002), start()), 2);
    assert_eq!(announce(media(1, 8, 6000), start()), 3, "another call");
    // Expired expectations do not count.
    let over = start().after(Duration::from_secs(181));
    for port in 0..FORGOTTEN_AT_ONCE as u16 {
        expectations.announce(master(9), data(100 + port), LIMIT, start(), &mut None).unwrap();
    }
    announce(media(2, 7, 6000), over);
    assert!(ports(&expectations, over).contains(&6000));
    let packet = flow(protocol::UDP, 0, (SERVER, 4000), (CLIENT, 6000));
    assert!(expectations.take(&packet, over).is_some());
}

/// The operator may lower the limit below the number of expectations.
#[test]
fn an_announcement_that_is_refused_removes_none() {
    let expectations = Expectations::new(HashKey(1, 2));
    for port in 2000..2003 {
        expectations.add(port, data(port)).unwrap();
    }
    let again = |limit| expectations.announce(master(2001), data(2001), limit, start(), &mut None);
    assert_eq!(again(2), Err(Full));
    assert_eq!(ports(&expectations, start()), [2000, 2001, 2002]);
    assert_eq!(again(3), Ok(false), "the earlier announcement makes room for its successor");
    assert_eq!(ports(&expectations, start()), [2000, 2002, 2001]);
}
