//! Identifications that are used again.

use defrag::Settings;
use flow::DropReason;
use wire::Family;

use crate::fixture::{Random, Worker, content, cuts, fragment, key};

/// A sender of one-kilobyte datagrams uses all identifications three times within the timeout,
/// on a path that loses one fragment in fifty: then fragments of two datagrams with the same
/// identification could be put together.
#[test]
fn no_datagram_is_made_of_two_that_share_an_identification() {
    let mut settings = Settings::default();
    settings.v4.high_thresh = 64 << 20;
    let mut worker = Worker::new(&settings);
    let mut random = Random(11);
    let (mut delivered, mut lost) = (0, 0);
    for number in 0..3 * 65_536u32 {
        let bytes = content(number, 20);
        for cut in cuts(key(Family::V4, 1, number & 0xffff), &bytes, 8) {
            if random.below(50) == 0 {
                lost += 1;
                continue;
            }
            if let Some(datagram) = worker.send(&cut).datagram {
                assert_eq!(datagram, bytes, "datagram {number}");
                delivered += 1;
            }
        }
        worker.pass(0.000_05);
    }
    let wrapped = worker.reasons().iter().filter(|&&why| why == DropReason::FragWrap).count();
    assert!(wrapped > 1000, "the protection was needed: {wrapped}");
    assert!(delivered + lost >= 3 * 65_536, "nothing else was lost: {delivered} + {lost}");
}

#[test]
fn the_distance_counts_the_fragments_of_the_source_alone() {
    let mut settings = Settings { max_dist: 10, ..Settings::default() };
    let begin = |others: u8, source: u8, settings: &Settings| {
        let mut worker = Worker::new(settings);
        let pieces = cuts(key(Family::V4, 1, 1), &content(1, 24), 8);
        worker.send(&pieces[0]);
        for id in 0..others {
            worker.send(&fragment(key(Family::V4, source, 100 + u32::from(id)), 0, &[0; 8], true));
        }
        worker.send(&pieces[1]);
        worker.send(&pieces[2]).datagram.is_some()
    };
    assert!(begin(9, 1, &settings));
    assert!(!begin(10, 1, &settings), "one too many");
    assert!(begin(200, 2, &settings), "of another source");
    settings.max_dist = 0;
    assert!(begin(200, 1, &settings), "switched off");
}

#[test]
fn ipv6_identifications_are_long_enough() {
    let mut worker = Worker::new(&Settings::default());
    let pieces = cuts(key(Family::V6, 1, 1), &content(1, 16), 8);
    worker.send(&pieces[0]);
    for id in 100..300 {
        worker.send(&fragment(key(Family::V6, 1, id), 0, &[0; 8], true));
    }
    assert!(worker.send(&pieces[1]).datagram.is_some());
}
