use std::time::Duration;

use flow::{FlowKey, Zone};
use proptest::prelude::*;
use wire::{Family, Network};

use super::*;
use crate::Checksum;
use crate::syn_proxy::Screening;
use crate::testing::{Lab, SECRET, keyed, tcp, udp};

const SYN: u8 = 2;
const ACK: u8 = 16;

/// Tracks a packet that may open a connection, which is confirmed only if the packet `passes`;
/// true if it was withdrawn.
fn track_to_end(lab: &mut Lab, network: &Network, may_open: bool, passes: bool) -> bool {
    track_screened(lab, network, Screening::Off, may_open, passes)
}

fn track_screened(
    lab: &mut Lab,
    network: &Network,
    screening: Screening,
    may_open: bool,
    passes: bool,
) -> bool {
    let keyed = keyed(network);
    let packet = TrackedPacket {
        network,
        frame: &[],
        keyed: &keyed,
        hash: keyed.key.hash(SECRET),
        guess: crate::Guess::NONE,
        checksum: Checksum::Trust,
        segments: 1,
        may_open,
        screening,
        map_epoch: 0,
        zones: None,
    };
    lab.run(|table, context| {
        let tracked = table.track(&packet, context);
        let Some(id) = tracked.connection.filter(|_| tracked.fresh && !passes) else {
            table.accept(tracked, &packet, context);
            return false;
        };
        table.withdraw(id, context);
        true
    })
}

fn packet((kind, client, port): (u8, u8, u16)) -> Network {
    match kind {
        0 => udp(Family::V4, (client, port), (9, 53)),
        1 => udp(Family::V4, (9, 53), (client, port)),
        2 => tcp(Family::V4, (client, port), (9, 80), SYN, (100, 0)),
        3 => tcp(Family::V4, (9, 80), (client, port), SYN | ACK, (200, 101)),
        _ => tcp(Family::V4, (client, port), (9, 80), ACK, (101, 201)),
    }
}

/// The visible state of a table and of its surroundings.
fn books(lab: &mut Lab) -> impl PartialEq + std::fmt::Debug {
    let mut listed = lab.listed();
    listed.sort_by_key(|connection| connection.key.hash(SECRET));
    let half_open = (lab.limits.half_open.clone(), lab.limits.sources.total());
    let counters = (lab.counters.insert, lab.counters.delete);
    let half_open = (half_open, lab.table.len());
    (listed, lab.limits.used(), half_open, counters)
}

proptest! {
    /// Compared with a table in which the packets that are refused here may not open a
    /// connection at all.
    #[test]
    fn a_withdrawn_connection_leaves_nothing(
        steps in prop::collection::vec((0u8..5, 1u8..5, 0u16..4, any::<bool>(), 0u64..40), 1..150),
    ) {
        let (mut ours, mut model) = (Lab::new(), Lab::new());
        for lab in [&mut ours, &mut model] {
            lab.settings.half_open_per_source = 100;
            lab.settings.set("nf_conntrack_acct", 1).unwrap();
        }
        for (kind, client, port, passes, seconds) in steps {
            let network = packet((kind, client, port));
            let withdrawn = track_to_end(&mut ours, &network, true, passes);
            // The model sees that an earlier connection has expired, and nothing else.
            track_to_end(&mut model, &network, !withdrawn, true);
            prop_assert_eq!(books(&mut ours), books(&mut model));
            for lab in [&mut ours, &mut model] {
                lab.wait(Duration::from_secs(seconds));
            }
        }
        prop_assert_eq!(ours.kinds(), model.kinds());
        for lab in [&mut ours, &mut model] {
            lab.wait(Duration::from_secs(1_000_000));
            while lab.run(|table, context| table.expire(100, context)) > 0 {}
        }
        prop_assert_eq!(books(&mut ours), books(&mut model));
        prop_assert_eq!((ours.table.len(), ours.limits.used()), (0, 0));
    }

    /// Compared with a table that never sees these packets, and with hardly any room.
    #[test]
    fn a_syn_that_the_proxy_answers_takes_no_room(
        steps in prop::collection::vec((0u8..5, 1u8..5, 0u16..4, any::<bool>(), 0u64..40), 1..150),
    ) {
        let (mut ours, mut model) = (Lab::with_room_for(3), Lab::with_room_for(3));
        for lab in [&mut ours, &mut model] {
            lab.settings.half_open_per_source = 2;
            lab.settings.set("nf_conntrack_acct", 1).unwrap();
        }
        for (kind, client, port, answers, seconds) in steps {
            let network = packet((kind, client, port));
            let screening = if answers && kind == 2 { Screening::Answer } else { Screening::Off };
            let passes = screening == Screening::Off;
            let withdrawn = track_screened(&mut ours, &network, screening, true, passes);
            track_to_end(&mut model, &network, !withdrawn, true);
            prop_assert_eq!(books(&mut ours), books(&mut model));
            prop_assert_eq!(&ours.counters, &model.counters);
            for lab in [&mut ours, &mut model] {
                lab.wait(Duration::from_secs(seconds));
            }
        }
        prop_assert_eq!(ours.kinds(), model.kinds());
    }
}

#[test]
fn nobody_is_told_before_it_is_confirmed() {
    let mut lab = Lab::new();
    let network = udp(Family::V4, (1, 1000), (2, 53));
    let keyed = keyed(&network);
    let packet = TrackedPacket {
        network: &network,
        frame: &[],
        keyed: &keyed,
        hash: keyed.key.hash(SECRET),
        guess: crate::Guess::NONE,
        checksum: Checksum::Trust,
        segments: 1,
        may_open: true,
        screening: Screening::Off,
        map_epoch: 0,
        zones: None,
    };
    let tracked = lab.run(|table, context| table.track(&packet, context));
    assert!(tracked.fresh && lab.kinds().is_empty() && lab.counters.insert == 0);
    let id = tracked.connection.expect("it is of a connection");
    lab.run(|table, context| table.confirm(id, context).unwrap());
    assert_eq!((lab.kinds().as_slice(), lab.counters.insert), (&[EventKind::New][..], 1));
    lab.run(|table, context| table.withdraw(id, context));
    assert_eq!(lab.table.len(), 1, "what is confirmed stays");
    assert!(!lab.run(|table, context| table.track(&packet, context)).fresh);
    let other = FlowKey { zone: Zone(3), ..keyed.key };
    assert!(lab.table.get(&other, other.hash(SECRET), lab.now).is_none());
}
