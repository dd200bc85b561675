use proptest::prelude::*;

use super::*;
use crate::Direction::{Original, Reply};
use crate::proto::tcp::testing::*;

use TcpState::*;

fn opened() -> Conversation {
    Conversation::open(&segment(SYN, 100, 0), TcpSettings::default())
}

fn with(name: &str, value: u64) -> TcpSettings {
    let mut settings = TcpSettings::default();
    settings.set(name, value).unwrap();
    settings
}

#[test]
fn a_connection_from_syn_to_time_wait() {
    let mut conversation = opened();
    assert_eq!((conversation.tracker.state(), conversation.timer), (SynSent, 120));
    let mut steps = vec![];
    for (direction, segment) in [
        (Reply, segment(SYN_ACK, 500, 101)),
        (Original, segment(ACK, 101, 501)),
        (Original, segment(ACK, 101, 501).data(50)),
        (Reply, segment(ACK, 501, 151)),
        (Original, segment(FIN, 151, 501)),
        (Reply, segment(ACK, 501, 152)),
        (Reply, segment(FIN, 501, 152)),
        (Original, segment(ACK, 152, 502)),
    ] {
        let timer = conversation.accepts(direction, &segment);
        steps.push((conversation.tracker.state(), timer, conversation.assured));
    }
    assert_eq!(
        steps,
        [
            (SynRecv, 60, false),
            (Established, 432_000, true),
            (Established, 300, true), // unacknowledged
            (Established, 432_000, true),
            (FinWait, 120, true),
            (CloseWait, 60, true),
            (LastAck, 30, true),
            (TimeWait, 120, true),
        ]
    );
}

proptest! {
    #[test]
    fn the_windows_learn_nothing_more_from_the_syn_that_has_opened_a_connection(
        sequence: u32,
        acknowledgment: u32,
        window: u16,
        data in 0u32..2000,
        offers: bool,
    ) {
        let settings = TcpSettings::default();
        let options: &[u8] = if offers { &OFFERS } else { &[] };
        let syn = segment(SYN, sequence, acknowledgment).window(window).data(data).options(options);
        let opened = TcpTracker::open(&syn, &settings).unwrap().tracker;
        let mut fitted = opened;
        fitted.windows[1] = WindowState::default();
        prop_assert!(fitted.fit(Original, &syn, &settings) == Fit::Inside);
        prop_assert_eq!(fitted, opened);
    }
}

#[test]
fn only_a_syn_or_a_loose_ack_opens() {
    for flags in [SYN_ACK, FIN, RST, RST_ACK] {
        let segment = segment(flags, 1, 1);
        let why = TcpTracker::open(&segment, &TcpSettings::default()).unwrap_err();
        assert_eq!(why, Invalid::NotOpening { class: segment.class });
    }
    let ack = segment(ACK, 1, 1);
    let why = TcpTracker::open(&ack, &with("nf_conntrack_tcp_loose", 0)).unwrap_err();
    assert_eq!(why, Invalid::NotOpening { class: FlagClass::Ack });
}

#[test]
fn a_loose_pick_up_is_liberal_and_short_lived_until_answered() {
    let mut conversation = Conversation::open(&segment(ACK, 1, 1), TcpSettings::default());
    assert_eq!((conversation.tracker.state(), conversation.timer), (Established, 300));
    assert_eq!(conversation.accepts(Original, &segment(ACK, 900_000, 5_000_000)), 300);
    assert!(!conversation.assured);
    conversation.accepts(Reply, &segment(ACK, 5_000_000, 900_000));
    assert!(!conversation.assured);
    conversation.accepts(Original, &segment(ACK, 900_000, 5_000_000));
    assert!(conversation.assured);
    conversation.accepts(Reply, &segment(ACK, 77, 3));
}

#[test]
fn rule_1_data_starts_inside_the_window() {
    // The server's window ends at 1101. Another window beyond it is tolerated, because the
    // server may accept more than it announced.
    let mut conversation = Conversation::established();
    conversation.accepts(Original, &segment(ACK, 1101, 501).data(1));
    let mut conversation = Conversation::established();
    conversation.passes(Original, &segment(ACK, 1102, 501).data(998));
    let mut conversation = Conversation::established();
    assert_eq!(
        conversation.refuses(Original, &segment(ACK, 1102, 501).data(999)),
        "sequence number 1102 is over 1101, the receiver's window"
    );
}

#[test]
fn rule_2_data_older_than_a_window_passes() {
    let mut conversation = Conversation::established();
    conversation.accepts(Original, &segment(ACK, 101, 501).data(1000));
    conversation.accepts(Reply, &segment(ACK, 501, 1101));
    conversation.accepts(Original, &segment(ACK, 101, 501));
    conversation.passes(Original, &segment(ACK, 100, 501));
}

#[test]
fn rule_3_only_what_was_sent_is_acknowledged() {
    let mut conversation = Conversation::established();
    assert_eq!(
        conversation.refuses(Reply, &segment(ACK, 501, 102)),
        "acknowledges 102, but only 101 was sent"
    );
    conversation.accepts(Original, &segment(ACK, 101, 501).data(1));
    conversation.accepts(Reply, &segment(ACK, 501, 102));
}

#[test]
fn rule_3_holds_for_sack_edges_where_sack_was_agreed() {
    let sack = [1, 1, 5, 10, 0, 0, 0, 110, 0, 0, 0, 120];
    let answer = segment(ACK, 501, 101).options(&sack);
    let mut conversation = Conversation::established();
    conversation.accepts(Reply, &answer);

    let syn = segment(SYN, 100, 0).options(&OFFERS);
    let mut conversation = Conversation::open(&syn, TcpSettings::default());
    conversation.accepts(Reply, &segment(SYN_ACK, 500, 101).options(&OFFERS));
    conversation.accepts(Original, &segment(ACK, 101, 501));
    assert_eq!(conversation.refuses(Reply, &answer), "acknowledges 120, but only 101 was sent");
}

#[test]
fn rule_4_an_acknowledgment_66000_back_is_the_oldest_that_counts() {
    let mut conversation = Conversation::established();
    conversation.accepts(Reply, &segment(ACK, 501, 101));
    let ancient = 501_u32.wrapping_sub(66_000);
    conversation.accepts(Original, &segment(ACK, 101, ancient));
    conversation.passes(Original, &segment(ACK, 101, ancient - 1));
}

#[test]
fn windows_scale_only_if_both_ends_offer_it() {
    for (answer, largest) in [(&OFFERS[..], 101 + (1000 << 7)), (&[], 1101)] {
        let syn = segment(SYN, 100, 0).options(&OFFERS);
        let mut conversation = Conversation::open(&syn, TcpSettings::default());
        conversation.accepts(Reply, &segment(SYN_ACK, 500, 101).options(answer));
        conversation.accepts(Original, &segment(ACK, 101, 501));
        conversation.accepts(Reply, &segment(ACK, 501, 101));
        conversation.accepts(Original, &segment(ACK, largest, 501));
        conversation.passes(Original, &segment(ACK, largest + 1, 501));
    }
}

#[test]
fn be_liberal_accepts_outside_the_windows() {
    let mut conversation = Conversation::established();
    conversation.settings = with("nf_conntrack_tcp_be_liberal", 1);
    conversation.accepts(Original, &segment(ACK, 1_000_000, 501));
    conversation.accepts(Original, &segment(ACK, 101, 1_000_000));
    assert_eq!(conversation.tracker.windows, Conversation::established().tracker.windows);
    conversation.accepts(Reply, &segment(ACK, 501, 101));
    conversation.refuses(Original, &segment(RST, 50, 0));
}

#[test]
fn a_rst_below_the_peers_acknowledgment_is_invalid() {
    let mut conversation = Conversation::established();
    assert_eq!(
        conversation.refuses(Reply, &segment(RST, 500, 0)),
        "reset at 500 is under 501, which is acknowledged already"
    );
    conversation.settings = with("nf_conntrack_tcp_ignore_invalid_rst", 1);
    conversation.accepts(Reply, &segment(RST, 500, 0));
}

#[test]
fn an_exact_rst_closes_and_an_inexact_one_only_cuts_the_timer() {
    let mut conversation = Conversation::established();
    assert_eq!(conversation.accepts(Reply, &segment(RST, 502, 0)), 10);
    assert_eq!(conversation.tracker.state(), Established);
    assert_eq!(conversation.accepts(Reply, &segment(RST, 501, 0)), 10);
    assert_eq!(conversation.tracker.state(), Close);
}

#[test]
fn a_rst_right_behind_the_data_of_its_sender_closes() {
    let mut conversation = Conversation::established();
    conversation.accepts(Reply, &segment(ACK, 501, 101).data(19));
    conversation.accepts(Reply, &segment(RST_ACK, 520, 101));
    assert_eq!(conversation.tracker.state(), Close);
}

#[test]
fn a_rst_before_any_answer_deletes() {
    assert_eq!(opened().sees(Reply, &segment(RST_ACK, 0, 101)), Step::Delete);
    assert_eq!(opened().sees(Original, &segment(RST, 101, 0)), Step::Delete);
    // One that answers something else has no effect. (The answer to a keep-alive could be one
    // higher.)
    opened().refuses(Reply, &segment(RST_ACK, 0, 103));
}

#[test]
fn a_rst_that_may_be_guessed_goes_on_and_deletes_nothing() {
    for (direction, rst) in [
        (Reply, segment(RST, 0, 0)),
        (Reply, segment(RST, 5_000_000, 0)),
        (Reply, segment(RST_ACK, 7, 101_u32.wrapping_sub(70_000))),
        (Original, segment(RST, 0, 0)),
        (Original, segment(RST, 100_u32.wrapping_sub(9_999), 0)),
    ] {
        let mut conversation = opened();
        conversation.passes(direction, &rst);
        conversation.accepts(Reply, &segment(SYN_ACK, 500, 101));
        assert_eq!(conversation.tracker.state(), SynRecv);
    }
    opened().refuses(Original, &segment(RST, 102, 0));
}

#[test]
fn nothing_is_learnt_from_what_answers_another_syn() {
    let mut conversation = opened();
    conversation.passes(Reply, &segment(SYN_ACK, 2_000_000_000, 101_u32.wrapping_sub(70_000)));
    conversation.refuses(Reply, &segment(SYN_ACK, 2_000_000_000, 9_000));
    conversation.accepts(Reply, &segment(SYN_ACK, 500, 101));
    // A second SYN has no effect either, if the real answer comes.
    let mut conversation = opened();
    conversation.passes(Reply, &segment(SYN, 2_000_000_000, 0));
    conversation.accepts(Reply, &segment(SYN_ACK, 500, 101));
    conversation.accepts(Original, &segment(ACK, 101, 501));
    conversation.accepts(Reply, &segment(ACK, 501, 101).data(50));
    assert_eq!(conversation.tracker.state(), Established);
}

#[test]
fn a_rst_in_the_window_ends_a_connection_on_its_way_out() {
    let closing = || {
        let mut conversation = Conversation::established();
        conversation.accepts(Original, &segment(FIN, 101, 501));
        conversation
    };
    for sequence in [501, 502, 1000] {
        let mut conversation = closing();
        conversation.accepts(Reply, &segment(RST, sequence, 0));
        assert_eq!(conversation.tracker.state(), Close);
    }
    for sequence in [0, 500, 9_999_999] {
        let mut conversation = closing();
        conversation.passes(Reply, &segment(RST, sequence, 0));
        assert_eq!(conversation.tracker.state(), FinWait);
    }
}

#[test]
fn an_ignored_syn_is_believed_once_it_is_answered() {
    let mut conversation = Conversation::established();
    conversation.passes(Original, &segment(SYN, 70_000, 0).options(&OFFERS).window(2000));
    conversation.passes(Reply, &segment(SYN_ACK, 90_000, 80_000));

    conversation.passes(Original, &segment(SYN, 70_000, 0).options(&OFFERS).window(2000));
    conversation.accepts(Reply, &segment(SYN_ACK, 90_000, 70_001).options(&OFFERS));
    assert_eq!(conversation.tracker.state(), SynRecv);
    conversation.accepts(Original, &segment(ACK, 70_001, 90_001));
    conversation.accepts(Reply, &segment(ACK, 90_001, 70_001));
    // Both offers of scaling counted too.
    conversation.accepts(Original, &segment(ACK, 70_001 + (1000 << 7), 90_001));
}

#[test]
fn a_challenge_ack_is_not_the_last_ack() {
    let mut conversation = Conversation::established();
    conversation.accepts(Original, &segment(FIN, 101, 501));
    conversation.accepts(Reply, &segment(FIN, 501, 102));
    conversation.passes(Original, &segment(SYN, 70_000, 0));
    conversation.passes(Reply, &segment(ACK, 502, 102));
    assert_eq!(conversation.tracker.state(), LastAck);
    conversation.accepts(Original, &segment(ACK, 102, 502));
    assert_eq!(conversation.tracker.state(), TimeWait);
}

#[test]
fn a_half_open_servers_ack_passes_and_so_does_the_rst_that_it_provokes() {
    let mut conversation = opened();
    conversation.passes(Reply, &segment(ACK, 8000, 7000));
    conversation.passes(Original, &segment(RST, 7000, 0));
    // The ACK may have been forged, and the real answer is on its way; otherwise the opener
    // tries again.
    conversation.accepts(Original, &segment(SYN, 100, 0));
    conversation.accepts(Reply, &segment(SYN_ACK, 500, 101));
    assert_eq!(conversation.tracker.state(), SynRecv);
}

#[test]
fn a_syn_reopens_a_closed_connection() {
    let closed = |opener_first: bool| {
        let mut conversation = Conversation::established();
        let (first, second) = if opener_first { (Original, Reply) } else { (Reply, Original) };
        let fin = |direction| match direction {
            Original => segment(FIN, 101, 501),
            Reply => segment(FIN, 501, 101),
        };
        conversation.accepts(first, &fin(first));
        conversation.accepts(second, &fin(second));
        conversation.accepts(first, &segment(ACK, fin(first).end.0, fin(second).end.0));
        assert_eq!(conversation.tracker.state(), TimeWait);
        conversation
    };
    for opener_first in [true, false] {
        for direction in [Original, Reply] {
            let step = closed(opener_first).sees(direction, &segment(SYN, 70_000, 0));
            assert_eq!(step, Step::Reopen);
        }
    }
}

#[test]
fn after_a_rst_only_its_sender_reopens() {
    let reset_by = |direction| {
        let mut conversation = Conversation::established();
        let sequence = if direction == Original { 101 } else { 501 };
        conversation.accepts(Reply, &segment(ACK, 501, 101));
        conversation.accepts(direction, &segment(RST, sequence, 0));
        assert_eq!(conversation.tracker.state(), Close);
        conversation
    };
    assert_eq!(reset_by(Original).sees(Original, &segment(SYN, 70_000, 0)), Step::Reopen);
    reset_by(Reply).passes(Original, &segment(SYN, 70_000, 0));
}

#[test]
fn a_repeated_syn_does_not_extend_an_unanswered_entry() {
    let mut conversation = opened();
    conversation.passes(Original, &segment(SYN, 100, 0));
    // One with another number has no effect at first, but its answer makes it count.
    conversation.passes(Original, &segment(SYN, 200, 0));
    conversation.accepts(Reply, &segment(SYN_ACK, 500, 201));
}

#[test]
fn three_repetitions_cut_the_timer() {
    let mut conversation = Conversation::established();
    let data = segment(ACK, 501, 101).data(10);
    conversation.settings = with("nf_conntrack_tcp_timeout_unacknowledged", 400);
    conversation.settings.set("nf_conntrack_tcp_timeout_max_retrans", 200).unwrap();
    let timers = [(); 4].map(|()| conversation.accepts(Reply, &data));
    assert_eq!(timers, [400, 400, 400, 200]);
    assert_eq!(conversation.accepts(Original, &segment(ACK, 101, 511)), 432_000);
}

#[test]
fn a_closed_window_cuts_the_timer() {
    let mut conversation = Conversation::established();
    assert_eq!(conversation.accepts(Reply, &segment(ACK, 501, 101).window(0)), 300);
    assert_eq!(conversation.accepts(Reply, &segment(ACK, 501, 101)), 432_000);
}

#[test]
fn a_closed_window_may_be_probed() {
    let mut conversation = Conversation::established();
    conversation.accepts(Original, &segment(ACK, 101, 501).data(1000));
    conversation.accepts(Reply, &segment(ACK, 501, 1101).window(0));
    conversation.accepts(Original, &segment(ACK, 1101, 501).data(1));
}

#[test]
fn both_ends_may_open_at_once() {
    let mut conversation = opened();
    conversation.passes(Reply, &segment(SYN, 500, 0));
    assert_eq!(conversation.tracker.state(), SynSent2);
    conversation.accepts(Original, &segment(SYN_ACK, 100, 501));
    assert_eq!(conversation.tracker.state(), SynRecv);
    conversation.accepts(Reply, &segment(ACK, 501, 101));
    assert_eq!(conversation.tracker.state(), Established);
}

#[test]
fn fins_outside_the_windows_from_both_sides_cap_the_timer() {
    let mut conversation = Conversation::established();
    conversation.refuses(Original, &segment(FIN, 1_000_000, 501));
    assert_eq!(conversation.timer, 432_000);
    conversation.refuses(Reply, &segment(FIN, 1_000_000, 101));
    assert_eq!(conversation.timer, 300);
}

#[test]
fn a_segment_that_the_table_forbids_is_explained() {
    assert_eq!(
        opened().refuses(Original, &segment(ACK, 101, 0)),
        "ACK in original direction is not possible in SYN_SENT"
    );
}
