//! Many buckets with parts of tunnels, compared with one table that has each tunnel as a whole.

use std::time::Duration;

use crate::Verdict;
use flow::FlowKey;
use proptest::prelude::*;
use wire::{Family, IcmpError, Network, Quoted, QuotedTransport, Transport, protocol};

use super::*;
use crate::nat::{AddressChanges, Addresses, BucketPorts, Request, Supply, TranslatedEnd};
use crate::testing::{Lab, SECRET, keyed};
use crate::{Changes, ConnectionId, Cursor, EventKind, Filter};

const BUCKETS: usize = 5;

/// Hosts 1 and 2 are inside and translated, 3 is inside and not translated, 11 and 12 are their
/// outside addresses, 21 and 22 are outside.
const INSIDE: [u8; 3] = [1, 2, 3];
const BORROWED: [u8; 2] = [11, 12];
const OUTSIDE: [u8; 2] = [21, 22];

#[derive(Clone, Copy, Debug)]
enum Kind {
    Ipip,
    SixInFour,
    Gre(u32),
}

#[derive(Clone, Debug)]
enum Step {
    /// A packet from one host to another, into a bucket.
    Packet(Kind, (u8, u8), usize),
    /// An error about such a packet.
    Error(Kind, (u8, u8), usize),
    Mark(Kind, (u8, u8), u32),
    Delete(Kind, (u8, u8)),
    Wait(u64),
    Expire(usize),
    /// The bucket leaves its worker and comes back.
    Move(usize),
}

fn ends() -> impl Strategy<Value = (u8, u8)> {
    let inside = prop::sample::select(INSIDE.to_vec());
    let outside = prop::sample::select(OUTSIDE.to_vec());
    let back = prop::sample::select([&INSIDE[2..], &BORROWED[..]].concat());
    let own = prop::sample::select(BORROWED.to_vec());
    prop_oneof![
        4 => (inside, outside.clone()),
        4 => (outside.clone(), back),
        1 => (own, outside),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let kind = prop::sample::select(vec![Kind::Ipip, Kind::SixInFour, Kind::Gre(0), Kind::Gre(7)]);
    let what = || (kind.clone(), ends());
    prop_oneof![
        12 => (what(), 0..BUCKETS).prop_map(|((kind, ends), at)| Step::Packet(kind, ends, at)),
        3 => (what(), 0..BUCKETS).prop_map(|((kind, ends), at)| Step::Error(kind, ends, at)),
        1 => (what(), any::<u32>()).prop_map(|((kind, ends), mark)| Step::Mark(kind, ends, mark)),
        1 => what().prop_map(|(kind, ends)| Step::Delete(kind, ends)),
        2 => prop_oneof![0u64..40, 0u64..700].prop_map(Step::Wait),
        2 => (0..BUCKETS).prop_map(Step::Expire),
        1 => (0..BUCKETS).prop_map(Step::Move),
    ]
}

fn address(host: u8) -> [u8; 16] {
    std::net::Ipv4Addr::new(192, 0, 2, host).to_ipv6_mapped().octets()
}

fn packet(kind: Kind, (from, to): (u8, u8)) -> Network {
    let (protocol, transport) = match kind {
        Kind::Ipip => (protocol::IPIP, Transport::Other),
        Kind::SixInFour => (protocol::IPV6, Transport::Other),
        Kind::Gre(key) => (protocol::GRE, Transport::Gre { version: 0, key }),
    };
    Network {
        family: Family::V4,
        source: address(from),
        destination: address(to),
        offset: 14,
        transport_offset: 34,
        end: 100,
        protocol,
        ttl: 64,
        traffic_class: 0,
        dont_fragment: false,
        fragment: None,
        transport,
    }
}

/// An error about a packet, from a router on its way.
fn error(kind: Kind, (from, to): (u8, u8)) -> Network {
    let about = packet(kind, (from, to));
    let transport = match kind {
        Kind::Gre(key) => QuotedTransport::Gre { version: 0, key },
        _ => QuotedTransport::Other,
    };
    let quoted = Quoted {
        source: about.source,
        destination: about.destination,
        offset: 42,
        transport_offset: 62,
        protocol: about.protocol,
        transport,
    };
    Network {
        source: address(99),
        destination: about.source,
        protocol: protocol::ICMP,
        transport: Transport::IcmpError(IcmpError { kind: 3, code: 1, quoted: Some(quoted) }),
        ..about
    }
}

/// The result for a packet.
type Fate = (Class, Option<Direction>, u32, Verdict, AddressChanges, bool);

/// Several tables of one worker, with the state that they share.
struct World {
    lab: Lab,
    tables: Vec<Table>,
}

impl World {
    fn new(buckets: usize) -> Self {
        let mut lab = Lab::new();
        let mut tables: Vec<_> = (0..buckets).map(|_| Table::new(lab.now)).collect();
        for (place, table) in (0..).zip(&mut tables) {
            table.count_in(&mut lab.limits, place);
        }
        Self { lab, tables }
    }

    fn at<T>(&mut self, bucket: usize, act: impl FnOnce(&mut Lab) -> T) -> T {
        let bucket = bucket % self.tables.len();
        std::mem::swap(&mut self.lab.table, &mut self.tables[bucket]);
        let result = act(&mut self.lab);
        std::mem::swap(&mut self.lab.table, &mut self.tables[bucket]);
        result
    }

    fn everywhere(&mut self, mut act: impl FnMut(&mut Lab)) {
        (0..self.tables.len()).for_each(|bucket| self.at(bucket, &mut act));
    }

    /// Tracks a packet in a bucket, and applies the rules.
    fn fate_of(&mut self, bucket: usize, network: &Network) -> Fate {
        let tracked = self.at(bucket, |lab| lab.offer(network, Table::track));
        let mut refused = tracked.refusal().map(|why| why.reason());
        if let (true, Some(id)) = (tracked.fresh, tracked.connection) {
            refused = self.open(bucket, id, network).err();
        }
        let verdict = refused.map_or(Verdict::Accept, Verdict::Drop);
        let is_alone = tracked.class == Class::New && refused.is_some();
        let address_changes = match is_alone {
            true => AddressChanges::default(),
            false => self.at(bucket, |lab| lab.table.translation(&tracked)),
        };
        let Tracked { class, direction, mark, .. } = tracked;
        (class, direction, mark, verdict, address_changes, tracked.is_assured())
    }

    /// Confirms the connection of a packet. A connection of the first two hosts gets one of two
    /// addresses.
    fn open(
        &mut self,
        bucket: usize,
        id: ConnectionId,
        network: &Network,
    ) -> Result<(), DropReason> {
        let hash = |key: &FlowKey| key.hash(SECRET);
        let supply = Supply { own: BucketPorts::ALL, seed: 1, hash: &hash };
        let [first, last] = BORROWED.map(|host| [192, 0, 2, host].into());
        let request = Request {
            addresses: Addresses::new(first, last),
            ..Request::of(TranslatedEnd::Source)
        };
        let is_translated = INSIDE[..2].iter().any(|&it| network.source == address(it));
        let opens = |table: &mut Table, context: &mut Context<'_>| {
            let translated = match is_translated {
                true => table.translate(id, &request, supply, context),
                false => table.make_reply_unique(id, supply, context),
            };
            translated.inspect_err(|_| table.withdraw(id, context))?;
            table.confirm(id, context)
        };
        self.at(bucket, |lab| lab.run(opens))
    }

    fn counted(&self, kind: EventKind) -> usize {
        self.lab.kinds().into_iter().filter(|it| *it == kind).count()
    }
}

/// The kernel of a router has one entry for each tunnel, and so has the first of the two
/// worlds.
fn compare(steps: &[Step]) {
    let (mut whole, mut parts) = (World::new(1), World::new(BUCKETS));
    for (number, step) in steps.iter().enumerate() {
        match *step {
            Step::Packet(kind, ends, at) => {
                let packet = packet(kind, ends);
                let expected = whole.fate_of(0, &packet);
                assert_eq!(parts.fate_of(at, &packet), expected, "step {number}: {step:?}");
            }
            Step::Error(kind, ends, at) => {
                let error = error(kind, ends);
                let expected = whole.fate_of(0, &error);
                let found = parts.fate_of(at, &error);
                assert_eq!(found, expected, "step {number}: {step:?}");
            }
            Step::Mark(kind, ends, mark) => {
                let key = keyed(&packet(kind, ends)).key;
                let changes = Changes { mark: Some((mark, u32::MAX)), ..Changes::default() };
                for world in [&mut whole, &mut parts] {
                    world.everywhere(|lab| {
                        lab.run(|table, context| {
                            table.update(&key, key.hash(SECRET), changes, context)
                        });
                    });
                }
            }
            Step::Delete(kind, ends) => {
                let key = keyed(&packet(kind, ends)).key;
                for world in [&mut whole, &mut parts] {
                    world.everywhere(|lab| {
                        lab.run(|table, context| table.delete(&key, key.hash(SECRET), context));
                    });
                }
            }
            Step::Wait(seconds) => {
                whole.lab.wait(Duration::from_secs(seconds));
                parts.lab.wait(Duration::from_secs(seconds));
            }
            Step::Expire(at) => {
                parts.at(at, |lab| lab.run(|table, context| table.expire(1000, context)));
            }
            Step::Move(at) => {
                parts.at(at, |lab| {
                    lab.table.count_out(&mut lab.limits);
                    lab.table.count_in(&mut lab.limits, at as u16);
                });
            }
        }
    }
    for world in [&mut whole, &mut parts] {
        world.lab.wait(Duration::from_secs(1000));
        world.everywhere(|lab| {
            lab.run(|table, context| table.expire(usize::MAX, context));
            assert!(lab.table.is_empty());
        });
        assert_eq!(world.counted(EventKind::New), world.counted(EventKind::Destroy));
        assert!(world.lab.tunnels.is_empty(), "nobody knows any of them");
        assert_eq!(world.lab.counters.insert, world.lab.counters.delete);
    }
    assert_eq!(whole.counted(EventKind::New), parts.counted(EventKind::New));
    assert_eq!(whole.counted(EventKind::Update), parts.counted(EventKind::Update));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn parts_of_a_tunnel_are_to_its_packets_what_one_connection_is(
        steps in prop::collection::vec(step(), 1..80),
    ) {
        compare(&steps);
    }
}

const THERE: (u8, u8) = (3, 21);
const BACK: (u8, u8) = (21, 3);

#[test]
fn each_part_is_listed_with_what_all_know() {
    let mut world = World::new(3);
    let listed = |world: &mut World| {
        let mut all = Vec::new();
        world.everywhere(|lab| all.extend(lab.listed()));
        all
    };
    world.fate_of(0, &packet(Kind::Gre(0), THERE));
    assert!(!listed(&mut world)[0].part, "it is the whole tunnel");
    world.fate_of(1, &packet(Kind::Gre(0), BACK));
    world.fate_of(2, &packet(Kind::Gre(0), THERE));
    let changes = Changes { mark: Some((5, u32::MAX)), ..Changes::default() };
    let key = keyed(&packet(Kind::Gre(0), THERE)).key;
    world.at(0, |lab| {
        lab.run(|table, context| table.update(&key, key.hash(SECRET), changes, context))
    });
    let entries = listed(&mut world);
    assert_eq!(entries.len(), 3);
    for entry in &entries {
        assert_eq!((entry.part, entry.seen_reply, entry.mark), (true, true, 5), "{entry:?}");
        assert_eq!(entry.original, entries[0].original);
    }
    let times: Vec<_> = entries.iter().map(|entry| entry.timeout_s).collect();
    assert_eq!(times, [30, 30, 180], "the first was not asked since");
}

#[test]
fn a_tunnel_that_is_ended_in_one_bucket_has_ended_in_all() {
    for by_filter in [false, true] {
        let mut world = World::new(2);
        for bucket in [0, 1] {
            world.fate_of(bucket, &packet(Kind::Ipip, THERE));
            world.fate_of(bucket, &packet(Kind::Ipip, BACK));
        }
        let (packet, key) = (packet(Kind::Ipip, THERE), keyed(&packet(Kind::Ipip, THERE)));
        world.at(0, |lab| {
            lab.run(|table, context| match by_filter {
                true => {
                    let place = (Cursor::default(), 100);
                    let action = crate::Action::Delete;
                    assert_eq!(table.select(&Filter::default(), action, place, context).0, 1);
                }
                false => table.end(&key, key.key.hash(SECRET), context),
            });
        });
        let ended = world.counted(EventKind::Destroy);
        let (class, ..) = world.fate_of(1, &packet);
        assert_eq!((ended, class), (1, Class::New));
        assert_eq!(world.counted(EventKind::Destroy), 1, "and that is said once");
    }
}

#[test]
fn a_tunnel_goes_on_where_there_is_no_room_for_another_part() {
    let mut world = World::new(2);
    world.lab.limits = crate::Limits::alone(1, SECRET);
    for (place, table) in (0..).zip(&mut world.tables) {
        table.count_in(&mut world.lab.limits, place);
    }
    world.fate_of(0, &packet(Kind::Gre(0), THERE));
    let (class, direction, .., verdict, _, _) = world.fate_of(1, &packet(Kind::Gre(0), BACK));
    assert_eq!((class, direction), (Class::Established, Some(Direction::Reply)));
    assert_eq!(verdict, Verdict::Accept);
    let (class, ..) = world.fate_of(0, &packet(Kind::Gre(0), THERE));
    assert_eq!(class, Class::Established, "the answer was seen");
    assert_eq!(world.tables.iter().map(Table::len).collect::<Vec<_>>(), [1, 0]);
}

#[test]
fn of_two_that_open_at_once_one_is_first() {
    let mut world = World::new(3);
    let opened = |world: &mut World, bucket, ends| {
        let packet = packet(Kind::Ipip, ends);
        world.at(bucket, |lab| lab.offer(&packet, Table::track).connection.unwrap())
    };
    let confirm = |world: &mut World, bucket, id| {
        world.at(bucket, |lab| lab.run(|table, context| table.confirm(id, context)))
    };
    let first = opened(&mut world, 0, THERE);
    let same = opened(&mut world, 1, THERE);
    let answer = opened(&mut world, 2, BACK);
    assert_eq!(confirm(&mut world, 0, first), Ok(()));
    assert_eq!(confirm(&mut world, 1, same), Ok(()));
    assert_eq!(confirm(&mut world, 2, answer), Err(DropReason::NatClash));
    assert_eq!(world.counted(EventKind::New), 1);
    assert_eq!(world.tables.iter().map(Table::len).collect::<Vec<_>>(), [1, 1, 0]);
    let (class, direction, ..) = world.fate_of(2, &packet(Kind::Ipip, BACK));
    assert_eq!((class, direction), (Class::Established, Some(Direction::Reply)));
}

#[test]
fn of_two_that_open_at_once_behind_one_address_no_packet_is_lost() {
    let mut world = World::new(2);
    let there = packet(Kind::Ipip, (INSIDE[0], OUTSIDE[0]));
    let [first, second] = [0, 1]
        .map(|bucket| world.at(bucket, |lab| lab.offer(&there, Table::track).connection.unwrap()));
    assert_eq!(world.open(0, first, &there), Ok(()));
    assert_eq!(world.open(1, second, &there), Ok(()), "it gets what the other got");
    assert_eq!(world.counted(EventKind::New), 1);
    let other = packet(Kind::Ipip, (INSIDE[1], OUTSIDE[0]));
    let fates = [0, 1].map(|bucket| world.fate_of(bucket, &other));
    assert!(fates.iter().all(|it| it.4 != AddressChanges::default() && it.3 == Verdict::Accept));
}
