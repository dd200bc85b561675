use std::collections::HashSet;
use std::net::IpAddr;
use std::sync::mpsc::sync_channel;
use std::time::Duration;

use flow::HashKey;

use super::*;
use crate::Config;
use crate::testing::control_connection::{Control, Net, of_six, six};
use crate::testing::many_workers::TestGateway;
use crate::testing::router::*;
use crate::worker::command::{Command, Question};

const SYN: u8 = 2;
const ACK: u8 = 16;
const CLIENTS: u8 = 20;

/// A gateway with a secret of its own.
fn gateway_with(workers: u16, secret: u64) -> TestGateway {
    gateway_of(workers, RULES, routing(), OWN.into(), Config::new(HashKey(secret, secret)))
}

fn export(gateway: &mut TestGateway) -> Vec<ConnectionRecord> {
    let mut records = Vec::new();
    for bucket in (0..16).map(BucketId) {
        let mut next = Some(Cursor::default());
        while let Some(from) = next {
            let (reply, answer) = sync_channel(1);
            let owner = gateway.owners[bucket.index()].index();
            let question = Question::Export(bucket, from, reply);
            gateway.handles[owner].tell(Command::Ask(question)).unwrap();
            gateway.run_until_idle();
            let exported = answer.recv().unwrap().unwrap();
            records.extend(exported.records);
            next = exported.rest;
        }
    }
    records
}

/// Imports records at the owners of their buckets, as the coordinator does.
fn import(gateway: &mut TestGateway, records: &[ConnectionRecord]) -> (u64, Vec<ImportRefusal>) {
    let (mut imported, mut refused) = (0, Vec::new());
    let mut rest: Vec<ConnectionRecord> = records.to_vec();
    while let Some(record) = rest.pop() {
        let bucket = gateway.hasher.bucket_of_key(record.key());
        let owner = gateway.owners[bucket.index()].index();
        let (reply, answer) = sync_channel(1);
        let question = Question::Import(vec![(bucket, record)], true, reply);
        gateway.handles[owner].tell(Command::Ask(question)).unwrap();
        gateway.run_until_idle();
        let lot = answer.recv().unwrap();
        imported += lot.imported;
        refused.extend(lot.refused);
        rest.extend(lot.back.into_iter().map(|(_, record)| record));
    }
    // Some find out later that their replies belong to others.
    for worker in &mut gateway.workers {
        let settled = worker.path.settled_imports();
        assert_eq!(settled.waiting, 0);
        imported -= settled.refused.len() as u64;
        refused.extend(settled.refused);
    }
    (imported, refused)
}

/// A connection as both sides see it: what the client sends and gets, by whom it is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Seen {
    inside: (IpAddr, u16),
    outside: (IpAddr, u16),
    /// As the server sees the client, or the client outside sees the server.
    between: (IpAddr, u16),
}

/// Opens connections: many clients from one port to one server, so that most get another port; a
/// client outside to a port that a rule changes; connections of TCP in both states.
fn open(gateway: &mut TestGateway) -> Vec<Seen> {
    let mut seen = Vec::new();
    for client in 1..=CLIENTS {
        let address = [192, 0, 2, client];
        let bytes = udp(&from_inside(address, SERVER), (5000, 53), b"question");
        let [between, outside] = ends(&gateway.pass(0, &bytes));
        seen.push(Seen { inside: (address.into(), 5000), outside, between });
        let syn = tcp(&from_inside(address, SERVER), (6000, 80), SYN, (1, 0));
        let [between, outside] = ends(&gateway.pass(0, &syn));
        seen.push(Seen { inside: (address.into(), 6000), outside, between });
    }
    for port in 40_000..40_020 {
        let syn = tcp(&from_outside(SERVER, OWN), (port, 8080), SYN, (1, 0));
        let [outside, inside] = ends(&gateway.pass(1, &syn));
        seen.push(Seen { inside, outside, between: (OWN.into(), 8080) });
    }
    seen
}

/// Packets both ways find the connection.
fn go_on(gateway: &mut TestGateway, seen: &Seen) {
    let v4 = |address: IpAddr| match address {
        IpAddr::V4(address) => address.octets(),
        IpAddr::V6(_) => unreachable!("all are IPv4"),
    };
    let Seen { inside, outside, between } = *seen;
    let ways = [from_outside(v4(outside.0), v4(between.0)), from_inside(v4(inside.0), SERVER)];
    let is_udp = outside.1 == 53;
    let opened_outside = between.1 == 8080;
    let (down, up) = ((outside.1, between.1), (inside.1, outside.1));
    let (answer, more) = match (is_udp, opened_outside) {
        (true, _) => (udp(&ways[0], down, b"answer"), udp(&ways[1], up, b"more")),
        (false, false) => (tcp(&ways[0], down, SYN | ACK, (9, 2)), tcp(&ways[1], up, ACK, (2, 10))),
        (false, true) => (tcp(&ways[0], down, ACK, (2, 10)), tcp(&ways[1], up, SYN | ACK, (9, 2))),
    };
    let steps = [(1, answer, [outside, inside]), (0, more, [between, outside])];
    let steps = if opened_outside { [steps[1].clone(), steps[0].clone()] } else { steps };
    for (port, bytes, expected) in steps {
        assert_eq!(ends(&gateway.pass(port, &bytes)), expected, "{seen:?}");
    }
}

#[test]
fn a_gateway_with_another_secret_and_other_workers_goes_on_with_all_connections() {
    for (before, after) in [(1, 1), (2, 3), (3, 2)] {
        let mut old = gateway_with(before, 3);
        let seen = open(&mut old);
        let records = export(&mut old);
        assert_eq!(records.len(), seen.len());
        let mut new = gateway_with(after, 77);
        new.now = new.now.after(Duration::from_secs(7 * 365 * 86_400));
        assert_eq!(import(&mut new, &records), (seen.len() as u64, vec![]));
        let opened = |it: &TestGateway| {
            it.workers.iter().map(|worker| worker.path.counters().conntrack.insert).sum::<u64>()
        };
        assert_eq!(opened(&new), 0);
        assert!(new.aliases() > 0, "most ports lead elsewhere with another secret");
        // New clients get no port that is taken.
        let mut taken: HashSet<_> = seen.iter().map(|it| (it.between, it.outside)).collect();
        for client in 100..100 + CLIENTS {
            let bytes = udp(&from_inside([192, 0, 2, client], SERVER), (5000, 53), b"question");
            let [between, outside] = ends(&new.pass(0, &bytes));
            assert!(taken.insert((between, outside)), "{between:?} was given away twice");
        }
        assert_eq!(opened(&new), u64::from(CLIENTS));
        seen.iter().for_each(|it| go_on(&mut new, it));
        assert_eq!(opened(&new), u64::from(CLIENTS), "no packet has opened a connection anew");
        assert_eq!(new.reasons(), vec![]);
        // The new one exports all of them.
        let again = export(&mut new);
        assert_eq!(again.len(), seen.len() + usize::from(CLIENTS));
        // All of them end, and their aliases with them.
        for _ in 0..1000 {
            new.now = new.now.after(Duration::from_secs(3600));
            new.run_until_idle();
        }
        assert_eq!((new.connections(), new.aliases()), (0, 0));
    }
}

#[test]
fn a_port_that_another_connection_has_is_refused_wherever_that_lives() {
    for workers in 1..4 {
        let mut old = gateway_with(1, 3);
        let seen = open(&mut old);
        let records = export(&mut old);
        // The same ports are given to others first.
        let mut new = gateway_with(workers, 77);
        for client in 101..=100 + CLIENTS {
            let address = [192, 0, 2, client];
            new.pass(0, &udp(&from_inside(address, SERVER), (5000, 53), b"question"));
        }
        let others: HashSet<_> = export(&mut new).iter().map(ConnectionRecord::reply).collect();
        let clashes = records.iter().filter(|it| others.contains(&it.reply())).count();
        assert!(clashes > 0);
        let (imported, refused) = import(&mut new, &records);
        assert_eq!((imported, refused.len()), ((seen.len() - clashes) as u64, clashes));
        assert!(refused.iter().all(|it| *it == ImportRefusal::Clash), "{refused:?}");
        let counted = |count: fn(&flow::ConntrackCounters) -> u64| {
            new.workers.iter().map(|it| count(&it.path.counters().conntrack)).sum::<u64>()
        };
        assert_eq!(counted(|it| it.imported), imported);
        assert_eq!(counted(|it| it.import_refused), clashes as u64);
        let connections = export(&mut new);
        let replies: HashSet<_> = connections.iter().map(ConnectionRecord::reply).collect();
        assert_eq!(replies.len(), connections.len(), "no two have one reply");
        assert_eq!(connections.len(), seen.len() + usize::from(CLIENTS) - clashes);
    }
}

#[test]
fn a_bucket_that_is_not_there_gives_records_back() {
    let mut gateway = gateway_with(2, 3);
    open(&mut gateway);
    let record = export(&mut gateway).remove(0);
    let mut new = gateway_with(2, 3);
    let bucket = new.hasher.bucket_of_key(record.key());
    let other = 1 - new.owners[bucket.index()].index();
    let now = new.now;
    let lot = new.workers[other].path.import(vec![(bucket, record.clone())], true, now);
    assert_eq!((lot.imported, lot.refused.len(), lot.back.len()), (0, 0, 1));
    assert_eq!(import(&mut new, std::slice::from_ref(&record)), (1, vec![]));
    assert_eq!(import(&mut new, &[record]), (0, vec![ImportRefusal::Known]));
}

#[test]
fn masquerades_name_their_interface() {
    let mut gateway = gateway_with(1, 3);
    open(&mut gateway);
    let records = export(&mut gateway);
    let names: HashSet<_> =
        records.iter().filter_map(|it| Some(it.interface()?.as_str().to_owned())).collect();
    assert_eq!(names, HashSet::from(["wan0".to_owned()]));
    // A bridge has no such interface.
    let mut bridge = TestGateway::new(&Config::new(HashKey(1, 2)), 1, false);
    let masqueraded = records.iter().find(|it| it.interface().is_some()).unwrap().clone();
    let bucket = bridge.hasher.bucket_of_key(masqueraded.key());
    let now = bridge.now;
    let lot = bridge.workers[0].path.import(vec![(bucket, masqueraded)], true, now);
    assert_eq!(lot.refused, [ImportRefusal::Interface]);
}

/// Lets another gateway take over all connections and announcements of one.
fn take_over(net: &mut Net, workers: u16) {
    let records = export(&mut net.gateway);
    let now = net.gateway.now;
    let (announcements, _) =
        net.gateway.workers[0].path.export_announcements(AnnouncementCursor::default(), now);
    net.gateway = Net::v4(workers, 21).gateway;
    net.gateway.now = net.gateway.now.after(Duration::from_secs(7 * 365 * 86_400));
    let count = records.len() as u64;
    assert_eq!(import(&mut net.gateway, &records), (count, vec![]));
    for record in announcements {
        let bucket = record.key().map_or(BucketId(0), |key| net.gateway.hasher.bucket_of_key(key));
        let owner = net.gateway.owners[bucket.index()].index();
        let (reply, answer) = sync_channel(1);
        let question = Question::ImportAnnouncements(vec![(bucket, record)], reply);
        net.gateway.handles[owner].tell(Command::Ask(question)).unwrap();
        net.gateway.run_until_idle();
        let lot = answer.recv().unwrap();
        assert_eq!((lot.imported, lot.refused, lot.back), (1, vec![], vec![]));
    }
}

#[test]
fn announced_connections_open_at_the_next_gateway_both_ways() {
    for (before, after) in [(1, 3), (3, 2), (2, 1)] {
        for client_port in 40_000..40_010 {
            let mut net = Net::v4(before, 21);
            let (client, server) = ((net.inside, client_port), (net.outside, 21));
            let mut control = Control::open(&mut net, 0, client, server);
            // Active: the server comes to the router, which knows the client behind it.
            let place = (net.inside, 5000);
            let heard = control.say(&mut net, 0, &format!("PORT {}\r\n", six(place)));
            take_over(&mut net, after);
            assert_eq!(net.expected(), 1);
            let (to, from) = net.open(1, (net.outside, 20), of_six(&heard));
            assert_eq!((to, from), (place, (net.outside, 20)));
            assert_eq!(net.expected(), 0);
            control.say(&mut net, 1, "200 I see\r\n");
            // Passive: the client comes from the router's address.
            control.say(&mut net, 0, "PASV\r\n");
            let place = (net.outside, 30_000);
            control.say(&mut net, 1, &format!("227 Entering Passive Mode ({})\r\n", six(place)));
            take_over(&mut net, before);
            assert_eq!(net.expected(), 1);
            let (to, from) = net.open(0, (net.inside, 30_001), place);
            assert_eq!((to, from.0), (place, net.own));
            assert_eq!((net.expected(), net.gateway.reasons()), (0, vec![]));
        }
    }
}
