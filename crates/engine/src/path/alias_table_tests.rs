use std::collections::HashMap;

use flow::{Endpoint, FlowKey, Zone};
use netio::FramePool;
use proptest::prelude::*;
use wire::build::PacketBuilder;
use wire::{Family, protocol};

use super::*;

fn key(port: u16) -> KeyedPacket {
    let end = |last, port| {
        let mut address = [0; 16];
        address[15] = last;
        Endpoint { address, port }
    };
    FlowKey::of_ports(Family::V4, protocol::UDP, Zone(0), end(1, port), end(2, 53))
}

fn packet(timestamp: u64) -> Packet {
    let mut bytes = Vec::new();
    PacketBuilder::v4([192, 0, 2, 1], [192, 0, 2, 2]).udp(1, 2, &[], &mut bytes);
    let mut frame = FramePool::new(0, 0).copy_of(&bytes).unwrap();
    frame.timestamp = timestamp;
    let network = wire::dissect(&bytes).unwrap().network.unwrap();
    Packet {
        frame,
        network,
        flow: None,
        bucket: BucketId(0),
        origin: crate::path::zones::Origin::default(),
        zones: None,
        mark: 0,
        passed_raw: false,
        untracked: false,
        carries: false,
        pieces: None,
        is_checked: true,
        is_local: false,
        per_packet: false,
        guess: conntrack::Guess::NONE,
        alias_in: None,
    }
}

/// There are few hashes, so many keys share one.
fn hash(port: u16) -> u64 {
    u64::from(port % 7) * 0x1_0001
}

proptest! {
    #[test]
    fn aliases_are_a_map(steps in prop::collection::vec((0..40_u16, 0..3_u16, any::<bool>()), 0..400)) {
        const LIMIT: usize = 24;
        let mut aliases = Aliases::default();
        let mut model = HashMap::new();
        for (port, owner, files) in steps {
            if files {
                let expected = match model.get(&port) {
                    Some(other) if *other == owner => Filing::Filed,
                    Some(_) => Filing::Taken,
                    None if model.len() >= LIMIT => Filing::Full,
                    None => {
                        model.insert(port, owner);
                        Filing::Filed
                    }
                };
                let filing = aliases.file(&key(port), hash(port), BucketId(owner), LIMIT);
                prop_assert_eq!(filing, expected);
            } else {
                aliases.remove(&key(port), hash(port), BucketId(owner));
                if model.get(&port) == Some(&owner) {
                    model.remove(&port);
                }
            }
            prop_assert_eq!(aliases.len(), model.len());
            prop_assert_eq!(aliases.is_empty(), model.is_empty());
            for port in 0..40 {
                let owner = aliases.owner(&key(port), hash(port)).map(|owner| owner.0);
                prop_assert_eq!(owner, model.get(&port).copied());
            }
        }
    }
}

#[test]
fn openings_are_bounded_and_keep_the_order() {
    let mut openings = Openings::default();
    for number in 0..MAX_WAITING {
        assert!(openings.has_room());
        openings.push(&key(number as u16 % 3), Waiting::Follower(packet(number as u64)));
    }
    assert!(!openings.has_room() && openings.awaits(&key(1)) && !openings.awaits(&key(3)));
    let times = |packets: VecDeque<Waiting>| -> Vec<u64> {
        packets.iter().map(|waiting| waiting.packet().frame.timestamp).collect()
    };
    let taken = times(openings.take(&key(1)));
    assert!(taken.len() == 85 && taken.is_sorted() && taken[..2] == [1, 4]);
    assert!(openings.has_room() && times(openings.take(&key(1))).is_empty());
    assert_eq!(openings.take_all().count(), MAX_WAITING - 85);
    assert!(openings.is_empty());
}
