use netio::FramePool;

use super::*;

fn see(drops: &mut RecentDrops, reason: DropReason, at: u64, bytes: &[u8]) {
    let mut frame = FramePool::new(1, 0).copy_of(bytes).unwrap();
    frame.sequence = at;
    drops.now = Timestamp::from_nanos(at);
    drops.see(&frame, reason.into(), &Zones::default());
}

fn kept(drops: &RecentDrops, reason: DropReason) -> Vec<u64> {
    let mut kept = drops.kept();
    kept.retain(|dropped| dropped.why.reason() == reason);
    let mut kept: Vec<u64> = kept.iter().map(|dropped| dropped.at.as_nanos()).collect();
    kept.sort_unstable();
    kept
}

#[test]
fn a_flood_of_one_reason_leaves_the_others_to_be_seen() {
    let mut drops = RecentDrops::latest();
    drops.begin(Timestamp::ZERO);
    see(&mut drops, DropReason::TcpSequence, 1, b"rare");
    for turn in 0..100 {
        drops.begin(Timestamp::ZERO);
        (0..1000).for_each(|n| see(&mut drops, DropReason::TableFull, 1000 * turn + n, b"flood"));
    }
    assert_eq!(kept(&drops, DropReason::TcpSequence), [1]);
    // Only the first drops of the last turn are kept, because a turn keeps a few only.
    assert_eq!(kept(&drops, DropReason::TableFull), [99_004, 99_005, 99_006, 99_007]);
}

#[test]
fn of_workers_that_are_gone_the_latest_for_each_reason_are_kept() {
    let mut inherited = Inherited::default();
    for worker in 0..100 {
        let mut drops = RecentDrops::latest();
        drops.begin(Timestamp::ZERO);
        // The worker that leaves last has dropped nothing for a long time.
        (0..3).for_each(|n| see(&mut drops, DropReason::TableFull, 10 * (100 - worker) + n, b"x"));
        if worker == 50 {
            see(&mut drops, DropReason::TcpSequence, 1, b"rare");
        }
        inherited.add(WorkerId(worker as u16), drops.kept());
    }
    let kept = inherited.kept().iter().map(|(worker, it)| (worker.0, it.at.as_nanos()));
    let kept: Vec<_> = kept.collect();
    assert_eq!(kept, [(0, 1002), (0, 1001), (0, 1000), (1, 992), (50, 1)]);
}

#[test]
fn the_headers_are_kept_and_the_length() {
    let mut drops = RecentDrops::latest();
    drops.begin(Timestamp::ZERO);
    let long: Vec<u8> = (0..255).cycle().take(3000).collect();
    see(&mut drops, DropReason::NoBuffer, 1, &long);
    let dropped = &drops.kept()[0];
    assert_eq!(dropped.length, 3000);
    let bytes = dropped.bytes();
    assert_eq!((bytes.len(), &bytes[..HEAD]), (3000, &long[..HEAD]));
    assert!(bytes[HEAD..].iter().all(|&byte| byte == 0));
    see(&mut drops, DropReason::NoBuffer, 2, b"short");
    assert_eq!(drops.kept()[1].bytes(), b"short");
}

#[test]
fn a_replay_keeps_all() {
    let mut drops = RecentDrops::all();
    (0..100).for_each(|at| see(&mut drops, DropReason::TableFull, at, b"x"));
    assert_eq!(kept(&drops, DropReason::TableFull), (0..100).collect::<Vec<_>>());
}

#[test]
fn zone_and_vlan_of_a_packet_are_kept() {
    let mut zone = crate::ZoneConfig::new(Zone(7));
    zone.set_vlans(vec![5]).unwrap();
    let zones = Zones::new(&[zone], 1).unwrap();
    let mut drops = RecentDrops::all();
    for vlan in [0u8, 5, 6] {
        let tag: &[u8] = if vlan == 0 { &[] } else { &[0x81, 0, 0, vlan] };
        let bytes = [&[2; 12], tag, &[8, 0, 0x45]].concat();
        let frame = FramePool::new(1, 0).copy_of(&bytes).unwrap();
        drops.see(&frame, DropReason::TableFull.into(), &zones);
    }
    let kept = drops.kept();
    let places: Vec<_> = kept.iter().map(|dropped| (dropped.zone.0, dropped.vlan)).collect();
    assert_eq!(places, [(0, 0), (7, 5), (0, 6)]);
}
