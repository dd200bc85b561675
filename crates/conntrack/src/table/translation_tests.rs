//! Translated connections against a model that knows only the promises: no two connections
//! share the flow of a direction, and each choice is in the range, and among the ports of the bucket
//! as long as one of these is free.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use flow::{Class, Endpoint, FlowKey, PortPermutation};
use proptest::prelude::*;
use wire::{Family, IcmpQuery, Network, QueryKind, TcpFlags, Transport, protocol};

use super::*;
use crate::Connection;
use crate::nat::{Addresses, BucketPorts, Ports};
use crate::table::Hit;
use crate::testing::{Lab, SECRET, keyed, network, tcp, udp};

/// Ports whose replies come to the bucket of these tests.
pub(super) fn own() -> BucketPorts {
    BucketPorts::new(PortPermutation::new(5), 77, 20_000)
}

fn hash(key: &FlowKey) -> u64 {
    key.hash(SECRET)
}

pub(super) fn supply(own: BucketPorts, seed: u64) -> Supply<'static> {
    Supply { own, seed, hash: &hash }
}

pub(super) fn host(family: Family, last: u8) -> IpAddr {
    match family {
        Family::V4 => Ipv4Addr::new(192, 0, 2, last).into(),
        Family::V6 => Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, last.into()).into(),
    }
}

fn echo(family: Family, from: u8, to: u8, id: u16, reply: bool) -> Network {
    let (kind, number, icmp_type) = match family {
        Family::V4 => (QueryKind::Echo, protocol::ICMP, 8),
        Family::V6 => (QueryKind::EchoV6, protocol::ICMPV6, 128),
    };
    let query = IcmpQuery { kind, reply, icmp_type, code: 0, id };
    network(family, from, to, number, Transport::IcmpQuery(query))
}

/// A packet of one of few clients to one of few servers. The addresses of servers with odd
/// numbers are also used for translation.
fn any_packet() -> impl Strategy<Value = Box<Network>> {
    let end = || (1u8..5, 1u16..8);
    (prop::bool::weighted(0.2), end(), end(), 0u8..8).prop_map(|(six, from, to, kind)| {
        let family = if six { Family::V6 } else { Family::V4 };
        Box::new(match kind {
            0..2 => tcp(family, from, to, TcpFlags::SYN.0, (0, 0)),
            2..6 => udp(family, from, to),
            6 => echo(family, from.0, to.0, from.1, false),
            _ => network(family, from.0, to.0, 99, Transport::Other),
        })
    })
}

fn any_request(end: TranslatedEnd) -> impl Strategy<Value = Request> {
    let range = |first: u8, count: u8| {
        move |family| Addresses::new(host(family, first), host(family, first + count))
    };
    let ports = prop::option::of((1u16..20, 0u16..6));
    let flags = (any::<bool>(), any::<bool>(), prop::bool::weighted(0.2), any::<bool>());
    (1u8..5, 0u8..3, ports, flags).prop_map(move |(first, count, ports, flags)| {
        let (random, persistent, netmap, six) = flags;
        let family = if six { Family::V6 } else { Family::V4 };
        Request {
            addresses: range(first, count)(family),
            ports: ports.and_then(|(first, more)| Ports::new(first, first + more)),
            random,
            persistent,
            netmap,
            ..Request::of(end)
        }
    })
}

#[derive(Clone, Debug)]
enum Step {
    Packet(Box<Network>, Option<Request>, Option<Request>, u64),
    Delete(usize),
    WaitSeconds(u64),
    Expire,
}

fn any_step() -> impl Strategy<Value = Step> {
    let rule = |end| prop::option::weighted(0.6, any_request(end));
    prop_oneof![
        20 => (any_packet(), rule(TranslatedEnd::Destination), rule(TranslatedEnd::Source), any::<u64>())
            .prop_map(|(packet, to, from, seed)| Step::Packet(packet, to, from, seed)),
        3 => any::<usize>().prop_map(Step::Delete),
        2 => (0u64..40).prop_map(Step::WaitSeconds),
        1 => Just(Step::Expire),
    ]
}

/// The flows of both directions, with their senders.
fn flows(table: &Table, slot: u32) -> [KeyedPacket; 2] {
    [table.original(slot), table.reply(ConnectionId(slot))]
}

fn live(lab: &Lab) -> Vec<u32> {
    let table = &lab.table;
    let lives =
        |&slot: &u32| table.slab.live(slot).is_some_and(|entry| !entry.head.is_expired(lab.now));
    (0..table.slab.slots()).filter(lives).collect()
}

/// True if a packet like this would belong to one of the connections.
fn is_taken(lab: &Lab, packet: &KeyedPacket) -> bool {
    live(lab).into_iter().any(|slot| flows(&lab.table, slot).contains(packet))
}

/// Opens a connection with its translations; `None` if it existed before.
pub(super) fn open(
    lab: &mut Lab,
    packet: &Network,
    requests: [Option<Request>; 2],
    supply: Supply<'_>,
) -> Option<Result<u32, DropReason>> {
    let before = lab.table.look_up(&keyed(packet), hash(&keyed(packet).key));
    if before.is_some_and(|hit| !lab.table.slab[hit.slot].head.is_expired(lab.now)) {
        return None;
    }
    let tracked = lab.offer(packet, Table::track);
    assert_eq!((tracked.class, tracked.fresh), (Class::New, true));
    let id = tracked.connection?;
    let outcome = lab.run(|table, context| {
        if let Some(request) = &requests[0] {
            table.translate(id, request, supply, context)?;
        }
        match &requests[1] {
            Some(request) => table.translate(id, request, supply, context),
            None => table.make_reply_unique(id, supply, context),
        }
    });
    lab.run(|table, context| match outcome {
        Ok(()) => table.confirm(id, context).unwrap(),
        Err(_) => table.withdraw(id, context),
    });
    Some(outcome.map(|()| id.0))
}

/// True if a request allows a pair of ends, by its address and port.
fn allows(request: &Request, before: Endpoint, after: Endpoint, key: &FlowKey) -> bool {
    let address = request.addresses.filter(|range| range.family() == key.family);
    let address = match address {
        None => before.address == after.address,
        Some(range) => range.contains(after.address) || request.netmap,
    };
    let port = match (request.end, request.ports) {
        _ if !key.is_identified() => before.port == after.port,
        (TranslatedEnd::Destination, _) if key.is_query() => before.port == after.port,
        (TranslatedEnd::Destination, None) => before.port == after.port,
        (TranslatedEnd::Destination, Some(range)) => range.contains(after.port),
        (TranslatedEnd::Source, None) => {
            before.port == after.port || Ports::like(before.port).contains(after.port)
        }
        (TranslatedEnd::Source, Some(range)) => range.contains(after.port),
    };
    address && port
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(250))]
    #[test]
    fn no_two_connections_share_a_flow_and_each_is_found_by_both(
        steps in prop::collection::vec(any_step(), 1..80),
    ) {
        let mut lab = Lab::new();
        for step in steps {
            match step {
                Step::Packet(packet, to, from, seed) => {
                    let supply = supply(own(), seed);
                    let (free_before, elsewhere) =
                        (lab.table.len(), ports_elsewhere(&lab, &packet));
                    match open(&mut lab, &packet, [to, from], supply) {
                        None => {
                            lab.track(&packet);
                        }
                        Some(Ok(slot)) => check_choice(&lab, slot, &packet, [to, from], &elsewhere)?,
                        Some(Err(DropReason::PortPoolFull | DropReason::NatClash)) => {
                            prop_assert!(lab.table.len() <= free_before);
                        }
                        Some(Err(reason)) => prop_assert!(false, "{reason:?}"),
                    }
                }
                Step::Delete(which) => {
                    let slots = live(&lab);
                    if !slots.is_empty() {
                        let slot = slots[which % slots.len()];
                        lab.run(|table, context| table.close(slot, context));
                    }
                }
                Step::WaitSeconds(seconds) => lab.wait(Duration::from_secs(seconds)),
                Step::Expire => {
                    lab.run(|table, context| table.expire(100, context));
                }
            }
            check_flows(&lab)?;
            prop_assert_eq!(lab.limits.port_usage.total(), lab.table.slab.pools().count());
        }
        lab.wait(Duration::from_secs(1_000_000));
        while lab.run(|table, context| table.expire(100, context)) > 0 {}
        // Nothing remains, not even second keys.
        prop_assert!(lab.table.is_empty() && !lab.table.slab.has_translated());
        prop_assert_eq!(lab.limits.changed_ports.len(), 0);
        prop_assert!((0..u32::MAX).step_by(1 << 16).all(|hash| lab.table.index.guess(hash).is_none()));
    }
}

fn check_flows(lab: &Lab) -> Result<(), TestCaseError> {
    let mut owners: BTreeMap<(FlowKey, usize), u32> = BTreeMap::new();
    for slot in live(lab) {
        for (flow, direction) in
            flows(&lab.table, slot).into_iter().zip([Direction::Original, Direction::Reply])
        {
            let other = owners.insert((flow.key, flow.sender.index()), slot);
            prop_assert!(other.is_none(), "{flow:?} is of {slot} and {other:?}");
            let hit = lab.table.look_up(&flow, hash(&flow.key));
            prop_assert_eq!(hit, Some(Hit { slot, direction }));
        }
    }
    Ok(())
}

fn check_choice(
    lab: &Lab,
    slot: u32,
    packet: &Network,
    [to, from]: [Option<Request>; 2],
    elsewhere: &[u16],
) -> Result<(), TestCaseError> {
    let original = keyed(packet);
    let before = Ends::of(&original.key, original.sender);
    let leaves = lab.table.leaves_as(slot);
    let after = Ends::of(&leaves.key, leaves.sender);
    match to {
        None => prop_assert_eq!(before.destination, after.destination),
        Some(request) => {
            let fits = allows(&request, before.destination, after.destination, &original.key);
            prop_assert!(fits, "{request:?} {before:?} {after:?}");
        }
    }
    match from {
        // It gets another port only if its own would belong to another connection.
        None if before.source != after.source => {
            let leaves_as = Ends { source: before.source, ..after }.keyed(&original);
            let sender = leaves_as.sender.opposite();
            let reply = KeyedPacket { sender, ..leaves_as };
            prop_assert!(is_taken(lab, &reply) || reply == original, "{before:?} {after:?}");
            prop_assert_eq!(before.source.address, after.source.address);
        }
        None => {}
        Some(request) => {
            let fits = allows(&request, before.source, after.source, &original.key);
            prop_assert!(fits, "{request:?} {before:?} {after:?}");
            // A port that the source has elsewhere goes first, then its own port, then the ports of
            // the bucket, then others of the range. None goes first if the rule says random.
            if elsewhere.contains(&after.source.port) {
                return Ok(());
            }
            let may_stay = !request.random
                && request.ports.is_none_or(|range| range.contains(before.source.port));
            let better = (0..=u16::MAX).filter(|&port| {
                let is_kept = may_stay && port == before.source.port;
                let is_first =
                    !request.random && own().contains(port) && !own().contains(after.source.port);
                let is_allowed = request.range(before.source.port).contains(port);
                is_kept || is_first && is_allowed && after.source.port != before.source.port
            });
            for port in better.filter(|_| original.key.is_identified()) {
                if port == after.source.port {
                    break;
                }
                let source = Endpoint { port, ..after.source };
                let leaves_as = Ends { source, ..after }.keyed(&original);
                let sender = leaves_as.sender.opposite();
                let reply = KeyedPacket { sender, ..leaves_as };
                prop_assert!(is_taken(lab, &reply) || reply == original, "{port} is free");
            }
        }
    }
    Ok(())
}

/// The ports with which other connections of the sender of a packet leave. A connection that is over
/// counts until it is taken out.
fn ports_elsewhere(lab: &Lab, packet: &Network) -> Vec<u16> {
    let source = |it: &KeyedPacket| it.key.endpoint(it.sender);
    let KeyedPacket { key, sender } = keyed(packet);
    let slots = (0..lab.table.slab.slots()).filter(|slot| lab.table.slab.live(*slot).is_some());
    let is_of_sender = |slot: &u32| {
        let original = lab.table.original(*slot);
        (source(&original), original.key.protocol) == (key.endpoint(sender), key.protocol)
    };
    slots.filter(is_of_sender).map(|slot| source(&lab.table.leaves_as(slot)).port).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]
    /// Each port of a rule is given away once, then nothing more, until one comes back.
    #[test]
    fn a_pool_is_used_up_to_its_last_port(
        (secret, first_place, places) in (any::<u64>(), any::<u16>(), 0..70_000_u32),
        first in 1024u16..1200, more in 0u16..300, is_echo: bool, random: bool, seed: u64,
    ) {
        let own = BucketPorts::new(PortPermutation::new(secret), first_place, places.min(1 << 16));
        let wanted: Vec<u16> = (first..=first + more).collect();
        let mut lab = Lab::new();
        lab.settings.nat_source_share = 100;
        let request = Request {
            addresses: Some(Addresses::one(host(Family::V4, 200))),
            ports: Ports::new(first, first + more),
            random,
            ..Request::of(TranslatedEnd::Source)
        };
        let packet = |number: usize| {
            let (client, port) = ((number / 60) as u8, (number % 60) as u16 + 1010);
            match is_echo {
                true => echo(Family::V4, client, 100, port, false),
                false => udp(Family::V4, (client, port), (100, 53)),
            }
        };
        let mut given = Vec::new();
        for number in 0..wanted.len() {
            let opened = open(&mut lab, &packet(number), [None, Some(request)], supply(own, seed));
            let slot = opened.unwrap().unwrap();
            given.push(lab.table.leaves_as(slot));
        }
        let source = |flow: &KeyedPacket| flow.key.end(flow.sender).port;
        let mut ports: Vec<u16> = given.iter().map(source).collect();
        ports.sort_unstable();
        prop_assert_eq!(ports, wanted);
        let one_more = packet(given.len());
        let refused = open(&mut lab, &one_more, [None, Some(request)], supply(own, seed));
        prop_assert_eq!(refused, Some(Err(DropReason::PortPoolFull)));
        prop_assert_eq!(lab.table.len(), given.len());
        if let Some(flow) = given.get(seed as usize % given.len().max(1)) {
            let hit = lab.table.look_up(flow, hash(&flow.key));
            prop_assert_eq!(hit, None, "only replies have this flow");
            let reply = KeyedPacket { sender: flow.sender.opposite(), ..*flow };
            let hit = lab.table.look_up(&reply, hash(&reply.key)).unwrap();
            lab.run(|table, context| table.close(hit.slot, context));
            let opened = open(&mut lab, &one_more, [None, Some(request)], supply(own, seed));
            let slot = opened.unwrap().unwrap();
            prop_assert_eq!(lab.table.leaves_as(slot), *flow, "the one that has come back");
        }
        // Towards another destination all of them are free.
        if !given.is_empty() && !is_echo {
            let other = udp(Family::V4, (1, 5), (101, 53));
            let opened = open(&mut lab, &other, [None, Some(request)], supply(own, seed));
            prop_assert!(opened.unwrap().is_ok());
        }
    }
}

fn only(lab: &Lab) -> Connection {
    let listed = lab.listed();
    assert_eq!(listed.len(), 1, "{listed:?}");
    listed.into_iter().next().unwrap()
}

#[test]
fn a_reply_goes_back_to_the_client_and_counts_as_one() {
    for family in [Family::V4, Family::V6] {
        let mut lab = Lab::new();
        let from = Request {
            addresses: Some(Addresses::one(host(family, 200))),
            ..Request::of(TranslatedEnd::Source)
        };
        let to = Request {
            addresses: Some(Addresses::one(host(family, 100))),
            ports: Ports::new(80, 80),
            ..Request::of(TranslatedEnd::Destination)
        };
        let there = udp(family, (1, 40000), (2, 8080));
        open(&mut lab, &there, [Some(to), Some(from)], supply(own(), 1)).unwrap().unwrap();
        let connection = only(&lab);
        let port = match connection.reply.transport {
            crate::TupleTransport::Ports { source: 80, destination } => destination,
            other => panic!("{other:?}"),
        };
        assert_eq!(port, 40000, "its own");
        let answer = udp(family, (100, 80), (200, port));
        let tracked = lab.track(&answer);
        assert_eq!(
            (tracked.class, tracked.direction),
            (Class::Established, Some(Direction::Reply))
        );
        // A packet that would be the answer without translation belongs to a flow of its own.
        let stranger = lab.track(&udp(family, (2, 8080), (1, 40000)));
        assert_eq!(stranger.class, Class::New);
        assert_eq!(lab.track(&there).class, Class::Established);
        assert_eq!(lab.table.len(), 2);
    }
}

#[test]
fn one_client_has_one_source_address_and_one_destination_if_that_is_wanted() {
    let range = Addresses::new(host(Family::V4, 200), host(Family::V4, 250));
    let chosen = |end, client: u8, server: u8, persistent: bool| {
        let mut lab = Lab::new();
        let request = Request { addresses: range, persistent, ..Request::of(end) };
        let packet = udp(Family::V4, (client, 5), (server, 53));
        let requests = match end {
            TranslatedEnd::Source => [None, Some(request)],
            TranslatedEnd::Destination => [Some(request), None],
        };
        open(&mut lab, &packet, requests, supply(own(), 0)).unwrap().unwrap();
        let reply = only(&lab).reply;
        if end == TranslatedEnd::Source { reply.destination } else { reply.source }
    };
    let servers = |end, persistent| {
        let all = (100..140).map(|server| chosen(end, 1, server, persistent));
        all.collect::<std::collections::BTreeSet<_>>().len()
    };
    assert_eq!([true, false].map(|persistent| servers(TranslatedEnd::Source, persistent)), [1, 1]);
    assert_eq!(servers(TranslatedEnd::Destination, true), 1);
    assert!(servers(TranslatedEnd::Destination, false) > 10);
    let clients = (1..40).map(|client| chosen(TranslatedEnd::Source, client, 100, false));
    assert!(clients.collect::<std::collections::BTreeSet<_>>().len() > 10);
}

#[test]
fn a_network_is_mapped_host_by_host() {
    let network =
        Addresses::new(Ipv4Addr::new(203, 0, 113, 0).into(), Ipv4Addr::new(203, 0, 113, 63).into());
    let mut lab = Lab::new();
    let request =
        Request { addresses: network, netmap: true, ..Request::of(TranslatedEnd::Destination) };
    let packet = udp(Family::V4, (1, 5), (77, 53));
    open(&mut lab, &packet, [Some(request), None], supply(own(), 0)).unwrap().unwrap();
    assert_eq!(only(&lab).reply.source, Ipv4Addr::new(203, 0, 113, 77 % 64));
}

#[test]
fn an_identity_translation_takes_no_memory() {
    let mut lab = Lab::new();
    let packet = udp(Family::V4, (1, 6), (2, 53));
    let address = Some(Addresses::one(host(Family::V4, 1)));
    let to = Request::of(TranslatedEnd::Destination);
    let from = Request { addresses: address, ..Request::of(TranslatedEnd::Source) };
    let slot = open(&mut lab, &packet, [Some(to), Some(from)], supply(own(), 0)).unwrap().unwrap();
    assert!(!lab.table.slab.has_translated());
    assert!(lab.table.address_changes(slot, Direction::Reply).is_identity());
}

/// Growth and shrinking move second keys as first ones.
#[test]
fn second_keys_stay_where_they_are_found_while_the_table_grows_and_shrinks() {
    let mut lab = Lab::new();
    let request = Request {
        addresses: Some(Addresses::one(host(Family::V4, 200))),
        ..Request::of(TranslatedEnd::Source)
    };
    let packet = |number: u32| {
        let mut packet = udp(Family::V4, (1, number as u16), (2, 53));
        packet.source[12] = 10 + (number >> 16) as u8;
        packet.destination[13] = (number >> 8) as u8;
        packet
    };
    for number in 0..20_000 {
        let supply = supply(BucketPorts::ALL, number.into());
        open(&mut lab, &packet(number), [None, Some(request)], supply).unwrap().unwrap();
    }
    let check = |lab: &Lab| {
        for slot in live(lab) {
            let reply = lab.table.reply(ConnectionId(slot));
            let hit = lab.table.look_up(&reply, hash(&reply.key));
            assert_eq!(hit, Some(Hit { slot, direction: Direction::Reply }));
        }
    };
    check(&lab);
    let doomed: Vec<u32> = live(&lab).into_iter().filter(|slot| slot % 50 != 0).collect();
    for slot in doomed {
        lab.run(|table, context| table.close(slot, context));
        lab.run(|table, context| table.expire(0, context));
    }
    assert!(lab.table.len() < 500);
    check(&lab);
}

#[test]
fn the_sides_of_the_key_do_not_matter() {
    for (client, server) in [(1, 2), (2, 1)] {
        for nat in [3, 0] {
            let mut lab = Lab::new();
            let request = Request {
                addresses: Some(Addresses::one(host(Family::V4, nat))),
                ..Request::of(TranslatedEnd::Source)
            };
            let there = udp(Family::V4, (client, 6), (server, 6));
            open(&mut lab, &there, [None, Some(request)], supply(own(), 0)).unwrap().unwrap();
            let back = lab.track(&udp(Family::V4, (server, 6), (nat, 6)));
            assert_eq!((back.class, back.direction), (Class::Established, Some(Direction::Reply)));
        }
    }
}

/// The kernel's tool has chosen the same connections with each filter: another port counts as a
/// translation too, but with an address only another address does.
#[test]
fn filters_choose_by_what_was_translated() {
    use crate::{Action, Cursor, Filter, New};
    let mut lab = Lab::new();
    let to = |end, last, port| Request {
        addresses: Some(Addresses::one(host(Family::V4, last))),
        ports: Ports::new(port, port),
        ..Request::of(end)
    };
    let packet = |server| udp(Family::V4, (1, 6), (server, 53));
    let requests = [
        (10, None, None),
        (11, None, Some(to(TranslatedEnd::Source, 200, 6))),
        (12, None, Some(to(TranslatedEnd::Source, 1, 7))),
        (13, Some(to(TranslatedEnd::Destination, 100, 53)), None),
        (14, Some(to(TranslatedEnd::Destination, 14, 54)), None),
        (
            15,
            Some(to(TranslatedEnd::Destination, 100, 53)),
            Some(to(TranslatedEnd::Source, 200, 6)),
        ),
    ];
    for (server, destination, source) in requests {
        open(&mut lab, &packet(server), [destination, source], supply(own(), 0)).unwrap().unwrap();
    }
    let mut chosen = |filter: Filter| {
        let mut found = Vec::new();
        lab.run(|table, context| {
            let mut show = |it: Connection| {
                let IpAddr::V4(address) = it.original.destination else { panic!("IPv4") };
                found.push(address.octets()[3]);
            };
            let whole = (Cursor::default(), u32::MAX);
            table.select(&filter, Action::Show(&mut show), whole, context);
        });
        found
    };
    let filter = Filter::default;
    let address = |last: u8| New::Address(host(Family::V4, last).to_string().parse().unwrap());
    let any = Some(New::Any);
    assert_eq!(chosen(Filter { new_source: any, ..filter() }), [11, 12, 15]);
    assert_eq!(chosen(Filter { new_destination: any, ..filter() }), [13, 14, 15]);
    assert_eq!(chosen(Filter { new_end: any, ..filter() }), [11, 12, 13, 14, 15]);
    let both = Filter { new_source: any, new_destination: any, ..filter() };
    assert_eq!(chosen(both), [15]);
    assert_eq!(chosen(Filter { new_source: Some(address(200)), ..filter() }), [11, 15]);
    assert!(chosen(Filter { new_source: Some(address(1)), ..filter() }).is_empty());
    assert_eq!(chosen(Filter { new_end: Some(address(100)), ..filter() }), [13, 15]);
    let prefix = |last: u8| host(Family::V4, last).to_string().parse().ok();
    assert_eq!(chosen(Filter { reply_source: prefix(100), ..filter() }), [13, 15]);
    assert_eq!(chosen(Filter { reply_destination: prefix(200), ..filter() }), [11, 15]);
    assert_eq!(chosen(Filter { reply_source_port: Some(54), ..filter() }), [14]);
    assert_eq!(chosen(Filter { reply_destination_port: Some(7), ..filter() }), [12]);
}

#[test]
fn masqueraded_connections_end_with_the_address_they_borrowed() {
    let mut lab = Lab::new();
    let masquerade = |last, interface| Request {
        addresses: Some(Addresses::one(host(Family::V4, last))),
        interface,
        ..Request::of(TranslatedEnd::Source)
    };
    let sources = [(200, Some(3)), (201, Some(3)), (200, Some(4)), (200, None)];
    for (client, (last, interface)) in sources.into_iter().cycle().take(400).enumerate() {
        let packet = udp(Family::V4, ((client / 100) as u8, 7), ((client % 100) as u8 + 50, 53));
        let request = masquerade(last, interface);
        open(&mut lab, &packet, [None, Some(request)], supply(BucketPorts::ALL, 0))
            .unwrap()
            .unwrap();
    }
    let mut end = |which| {
        let (mut ended, mut from) = (0, Some(Cursor::default()));
        while let Some(cursor) = from {
            let (some, next) =
                lab.run(|table, context| table.end_masqueraded(which, cursor, 37, context));
            (ended, from) = (ended + some, next);
        }
        (ended, lab.table.len())
    };
    assert_eq!(end((3, Some(host(Family::V4, 201)))), (100, 300));
    assert_eq!(end((5, None)), (0, 300));
    assert_eq!(end((3, None)), (100, 200));
    assert_eq!(end((4, None)), (100, 100));
}
