//! Zones for one direction against a model that knows only the promises: a packet belongs to a
//! connection whose originator is in the first of its zones, or else to one whose replies are
//! in the second, or else to one whose replies are in the first.

use flow::{Class, DropReason, FlowKey};
use proptest::prelude::*;
use wire::{Family, IcmpError, Network, Quoted, QuotedTransport, Transport, protocol};

use super::*;
use crate::nat::{BucketPorts, Request, Supply, TranslatedEnd};
use crate::syn_proxy::Screening;
use crate::testing::{Lab, SECRET, keyed, network, udp};
use crate::{Checksum, Tracked, TrackedPacket};

const fn one_way(original: u16, reply: u16) -> ZonePair {
    ZonePair { original: Zone(original), reply: Zone(reply) }
}

fn hash(key: &FlowKey) -> u64 {
    key.hash(SECRET)
}

fn supply(seed: u64) -> Supply<'static> {
    Supply { own: BucketPorts::ALL, seed, hash: &hash }
}

/// A packet with these zones. If it belongs to no connection, it is `steered` to one of the
/// zones all the same.
fn offer(lab: &mut Lab, network: &Network, zones: ZonePair, steered: Direction) -> Tracked {
    let packet = keyed(network).in_zone(zones.original);
    let mut looked_up = packet;
    if matches!(network.transport, Transport::IcmpError(_)) {
        looked_up.sender = looked_up.sender.opposite();
    }
    let found = lab.table.zone_of(zones, &looked_up, hash(&packet.key), lab.now);
    let other = match steered {
        Direction::Original => zones.original,
        Direction::Reply => zones.reply,
    };
    let keyed = packet.in_zone(found.unwrap_or(other));
    let packet = TrackedPacket {
        network,
        frame: &[],
        keyed: &keyed,
        hash: hash(&keyed.key),
        guess: crate::Guess::NONE,
        checksum: Checksum::Trust,
        segments: 1,
        may_open: true,
        screening: Screening::Off,
        map_epoch: 0,
        zones: Some(zones).filter(|zones| !zones.is_one()),
    };
    lab.run(|table, context| table.track(&packet, context))
}

/// The same, followed by confirming or withdrawing the connection that it opens.
fn offer_and_conclude(
    lab: &mut Lab,
    network: &Network,
    zones: ZonePair,
    (steered, wanted, seed): (Direction, Option<Request>, u64),
) -> Result<Tracked, DropReason> {
    let tracked = offer(lab, network, zones, steered);
    let (true, Some(id)) = (tracked.fresh, tracked.connection) else { return Ok(tracked) };
    lab.run(|table, context| {
        let outcome = match &wanted {
            Some(request) => table.translate(id, request, supply(seed), context),
            None => table.make_reply_unique(id, supply(seed), context),
        };
        match outcome {
            Ok(()) => table.confirm(id, context).unwrap(),
            Err(_) => table.withdraw(id, context),
        }
        outcome
    })?;
    Ok(tracked)
}

#[derive(Clone, Debug)]
enum Step {
    Packet {
        from: (u8, u16),
        to: (u8, u16),
        zones: ZonePair,
        steered: bool,
        wanted: bool,
        seed: u64,
    },
    Delete(usize),
    WaitSeconds(u64),
}

fn any_zones() -> impl Strategy<Value = ZonePair> {
    prop_oneof![
        Just(ZonePair::default()),
        Just(ZonePair::both(Zone(5))),
        Just(one_way(5, 0)),
        Just(one_way(6, 0)),
        Just(one_way(0, 5)),
    ]
}

fn any_step() -> impl Strategy<Value = Step> {
    let end = || (1u8..3, 1u16..4);
    let packet = (end(), end(), any_zones(), any::<bool>(), any::<bool>(), any::<u64>());
    prop_oneof![
        20 => packet.prop_map(|(from, to, zones, steered, wanted, seed)| Step::Packet {
            from, to, zones, steered, wanted, seed,
        }),
        2 => any::<usize>().prop_map(Step::Delete),
        1 => (0u64..40).prop_map(Step::WaitSeconds),
    ]
}

/// The key of each direction of the live connections, zones included.
fn flows(lab: &Lab) -> Vec<(u32, [KeyedPacket; 2])> {
    let table = &lab.table;
    let lives =
        |&slot: &u32| table.slab.live(slot).is_some_and(|entry| !entry.head.is_expired(lab.now));
    let flows = |slot| (slot, [table.original(slot), table.reply(ConnectionId(slot))]);
    (0..table.slab.slots()).filter(lives).map(flows).collect()
}

/// The connection of a packet according to the promises.
fn model(lab: &Lab, packet: KeyedPacket, zones: ZonePair) -> Option<(u32, Direction)> {
    let ways = [
        (zones.original, Direction::Original),
        (zones.reply, Direction::Reply),
        (zones.original, Direction::Reply),
    ];
    ways.into_iter().find_map(|(zone, way)| {
        let wanted = packet.in_zone(zone);
        let is_it = |flows: &[KeyedPacket; 2]| flows[way.index()] == wanted;
        flows(lab).into_iter().find(|(_, flows)| is_it(flows)).map(|(slot, _)| (slot, way))
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    #[test]
    fn a_packet_belongs_where_one_of_its_zones_says_and_no_flow_is_shared(
        steps in prop::collection::vec(any_step(), 1..80),
    ) {
        let mut lab = Lab::new();
        for step in steps {
            match step {
                Step::Packet { from, to, zones, steered, wanted, seed } => {
                    let packet = udp(Family::V4, from, to);
                    let expected = model(&lab, keyed(&packet), zones);
                    let steered = if steered { Direction::Original } else { Direction::Reply };
                    let request = wanted.then(|| Request::of(TranslatedEnd::Source));
                    let outcome = offer_and_conclude(&mut lab, &packet, zones, (steered, request, seed));
                    let Ok(tracked) = outcome else {
                        prop_assert_eq!(expected, None);
                        prop_assert_eq!(outcome.unwrap_err(), DropReason::PortPoolFull);
                        continue;
                    };
                    let at = tracked.connection.map(|ConnectionId(slot)| slot);
                    match expected {
                        Some((slot, way)) => {
                            prop_assert_eq!((at, tracked.direction), (Some(slot), Some(way)));
                            prop_assert!(!tracked.fresh);
                        }
                        None => {
                            prop_assert_eq!(tracked.class, Class::New);
                            let id = tracked.connection.unwrap();
                            prop_assert_eq!(lab.table.zones(&tracked), zones);
                            prop_assert_eq!(lab.table.original(id.0), keyed(&packet).in_zone(zones.original));
                        }
                    }
                }
                Step::Delete(which) => {
                    let there = flows(&lab);
                    if !there.is_empty() {
                        let (slot, _) = there[which % there.len()];
                        lab.run(|table, context| table.close(slot, context));
                    }
                }
                Step::WaitSeconds(seconds) => lab.wait(std::time::Duration::from_secs(seconds)),
            }
            let mut all: Vec<_> = flows(&lab).into_iter().flat_map(|(_, flows)| flows).collect();
            let count = all.len();
            all.sort_by_key(|it| (it.key, it.sender.index()));
            all.dedup();
            prop_assert_eq!(all.len(), count, "no flow belongs to two connections");
        }
        let slots: Vec<u32> = flows(&lab).into_iter().map(|(slot, _)| slot).collect();
        for slot in slots {
            lab.run(|table, context| table.close(slot, context));
        }
        lab.wait(std::time::Duration::from_secs(1000));
        lab.run(|table, context| table.expire(usize::MAX, context));
        prop_assert!(lab.table.is_empty());
    }
}

/// An error about a packet of either direction, as the packet's sender receives it.
fn error_about(family: Family, from: (u8, u16), to: (u8, u16)) -> Network {
    let about = udp(family, from, to);
    let quoted = Quoted {
        source: about.source,
        destination: about.destination,
        offset: 42,
        transport_offset: 62,
        protocol: protocol::UDP,
        transport: QuotedTransport::Ports { source: from.1, destination: to.1 },
    };
    let error = Transport::IcmpError(IcmpError { kind: 3, code: 1, quoted: Some(quoted) });
    network(family, 9, from.0, protocol::ICMP, error)
}

#[test]
fn errors_about_either_direction_find_their_connection_in_the_zone_of_their_side() {
    let mut lab = Lab::new();
    let (tenant, client, server) = (one_way(5, 0), (1, 1000), (2, 53));
    let packet = udp(Family::V4, client, server);
    let steered = (Direction::Original, None, 0);
    let opened = offer_and_conclude(&mut lab, &packet, tenant, steered).unwrap().connection;
    // The server's network reports that the client's packet did not arrive, and the client's
    // network reports the same of the server's.
    for (about, zones, direction) in [
        (error_about(Family::V4, client, server), ZonePair::default(), Direction::Reply),
        (error_about(Family::V4, server, client), tenant, Direction::Original),
    ] {
        let tracked = offer(&mut lab, &about, zones, Direction::Original);
        assert_eq!(tracked.class, Class::Related);
        assert_eq!((tracked.connection, tracked.direction), (opened, Some(direction)));
    }
    let answer = keyed(&udp(Family::V4, server, client));
    assert_eq!(lab.table.original_zone(&answer, hash(&answer.key)), Zone(5));
    // In the zone of the other side it belongs to no connection.
    for (about, zones) in [
        (error_about(Family::V4, client, server), one_way(6, 5)),
        (error_about(Family::V4, server, client), ZonePair::default()),
    ] {
        let tracked = offer(&mut lab, &about, zones, Direction::Original);
        assert_eq!(tracked.class, Class::Invalid(DropReason::IcmpErrorUnknown));
    }
}

#[test]
fn tenants_with_equal_flows_get_different_ports() {
    let mut lab = Lab::new();
    lab.settings.nat_source_share = 100;
    let packet = udp(Family::V4, (1, 3), (2, 53));
    let steered = (Direction::Original, None, 7);
    let mut ports = Vec::new();
    for tenant in 1..=4 {
        let zones = one_way(tenant, 0);
        let opened = offer_and_conclude(&mut lab, &packet, zones, steered).unwrap();
        let reply = lab.table.reply(opened.connection.unwrap());
        assert_eq!(reply.key.zone, Zone(0));
        ports.push(reply.key.end(reply.sender.opposite()).port);
    }
    assert_eq!(ports[0], 3, "its own");
    ports.sort_unstable();
    ports.dedup();
    assert_eq!(ports.len(), 4);
    // Each receives its own answers.
    for connection in lab.listed() {
        let zones = (connection.zone, connection.original_zone, connection.reply_zone);
        assert!(matches!(zones, (0, 1..=4, 0)), "{zones:?}");
    }
}
