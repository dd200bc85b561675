use flow::{DefragCounters, HashKey, Timestamp};

use super::*;
use crate::{Buffer, Context, DatagramKey, Pools, Realm, Reassembler, Settings};

struct Frame;

impl Buffer for Frame {
    fn footprint(&self) -> usize {
        2048
    }
}

/// The explanation for each fragment that was not delivered.
fn explanations(pieces: &[Piece], settings: &Settings, wait_ms: u64) -> Vec<String> {
    let mut memory = Pools::new(settings).memory(1);
    let mut counters = DefragCounters::default();
    let mut reassembler = Reassembler::new(HashKey(1, 2));
    let mut texts = Vec::new();
    let mut discard = |_: Frame, why: DiscardCause| texts.push(format!("{}: {why}", why.reason()));
    let mut context = Context {
        now: Timestamp::from_secs(1),
        settings,
        memory: &mut memory,
        counters: &mut counters,
        discard: &mut discard,
    };
    for piece in pieces {
        reassembler.insert(piece, 0, Frame, &mut Vec::new(), &mut context);
        context.now = context.now.after(std::time::Duration::from_millis(wait_ms));
    }
    context.now = context.now.after(std::time::Duration::from_secs(60));
    reassembler.expire(usize::MAX, &mut context);
    texts
}

fn piece(id: u32, offset: u16, length: u16, more: bool) -> Piece {
    let key = DatagramKey::v4(Realm::default(), [1; 16], [2; 16], 17, id);
    Piece { key, offset, length, more, ecn: Ecn::NotEct, header: 20 }
}

fn first_explanation(pieces: &[Piece], settings: &Settings) -> String {
    explanations(pieces, settings, 1).remove(0)
}

#[test]
fn the_numbers_that_decided_are_told() {
    let settings = &Settings::default();
    let begin = piece(1, 0, 1480, true);
    let explanation = |pieces: &[Piece]| first_explanation(pieces, settings);
    insta::assert_snapshot!(
        [
            explanation(&[begin, piece(1, 1472, 16, true)]),
            explanation(&[begin, begin]),
            explanation(&[begin, piece(1, 2960, 100, false), piece(1, 1480, 2000, true)]),
            explanation(&[begin, piece(1, 2960, 100, false), piece(1, 1480, 200, false)]),
            explanation(&[piece(1, 2960, 800, true), piece(1, 1480, 200, false)]),
            explanation(&[piece(1, 65_000, 528, false), Piece { header: 60, ..begin }]),
            explanation(&[begin, Piece { ecn: Ecn::Ce, ..piece(1, 1480, 8, true) }]),
            explanation(&[piece(1, 8, 15, true)]),
            explanation(&[piece(1, 8, 0, false)]),
            explanation(&[piece(1, 65_528, 8, false), begin]),
            explanation(&[begin, piece(1, 1480, 8, true)]),
            explanation(&[begin, piece(1, 1488, 12, false)]),
        ]
        .join("\n")
    );
}

#[test]
fn limits_are_told() {
    let few = Settings { pieces_per_4k: 2, ..Settings::default() };
    let crowd: Vec<Piece> = (0..3).map(|number| piece(1, 4096 + number * 16, 8, true)).collect();
    let near = Settings { max_dist: 3, ..Settings::default() };
    let others = (2..6).map(|id| piece(id, 0, 8, true));
    let far: Vec<Piece> =
        [piece(1, 0, 8, true)].into_iter().chain(others).chain([piece(1, 8, 8, true)]).collect();
    let mut small = Settings::default();
    small.v4.high_thresh = 1000;
    let mut scarce = Settings::default();
    scarce.v4.high_thresh = 5000;
    let many: Vec<Piece> = (0..3).map(|id| piece(id, 0, 8, true)).collect();
    insta::assert_snapshot!(
        [
            first_explanation(&crowd, &few),
            first_explanation(&far, &near),
            first_explanation(&[piece(1, 0, 8, true)], &small),
            first_explanation(&many, &scarce),
        ]
        .join("\n")
    );
}

/// All fragments of a datagram share the explanation for one of them; a later fragment is
/// explained by the end of its datagram.
#[test]
fn a_later_fragment_is_explained_by_the_end_of_its_datagram() {
    let pieces = [piece(1, 0, 16, true), piece(1, 8, 16, true), piece(1, 32, 8, true)];
    let texts = explanations(&pieces, &Settings::default(), 5);
    assert_eq!(texts[0], texts[1]);
    assert_eq!(
        texts[2],
        "frag_overlap: came 10 ms after the first fragment of a datagram that was given up \
         before (frag_overlap)"
    );
}

#[test]
fn an_unfinished_datagram_is_incomplete_at_the_end() {
    let progress = Progress { pieces: 2, received: 16, total: 48 };
    let why = DiscardCause::Unfinished { reason: DropReason::FragTimeout, progress, waited_ms: 7 };
    assert_eq!(why.at_the_end().reason(), DropReason::FragIncomplete);
    assert_eq!(why.at_the_end().to_string(), "2 fragments with 16 of 48 bytes had come at the end");
}
