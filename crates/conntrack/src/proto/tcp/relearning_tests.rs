use proptest::prelude::*;

use super::*;
use crate::Direction::{Original, Reply};
use crate::proto::tcp::testing::*;

const FAR: u32 = 1 << 24;
const PAST_HALF: u32 = 3 << 30;

/// A connection that was taken over, with the numbers of its ends in truth.
struct TakenOver {
    tracker: TcpTracker,
    heard: Relearning,
    is_strict: bool,
    /// The next number that each end sends.
    next: [u32; 2],
    now: Timestamp,
    settings: TcpSettings,
}

impl TakenOver {
    /// Both ends have sent so much since the last record of the connection.
    fn behind_by(sent: u32) -> Self {
        let mut known =
            Conversation::open(&segment(SYN, 100, 0).options(&OFFERS), TcpSettings::default());
        known.accepts(Reply, &segment(SYN_ACK, 500, 101).options(&OFFERS));
        known.accepts(Original, &segment(ACK, 101, 501));
        known.accepts(Reply, &segment(ACK, 501, 101));
        Self {
            tracker: known.tracker,
            heard: Relearning::default(),
            is_strict: false,
            next: [101, 501].map(|next: u32| next.wrapping_add(sent)),
            now: Timestamp::from_secs(1000),
            settings: TcpSettings::default(),
        }
    }

    fn sees(&mut self, direction: Direction, segment: &Segment<'_>) -> Effect {
        let Self { tracker, heard, now, settings, .. } = self;
        if self.is_strict {
            return Effect::Step(tracker.advance(direction, segment, true, true, settings));
        }
        let relearnt = tracker.relearn(*heard, direction, segment, true, true, settings, *now);
        self.is_strict = relearnt.rest.is_none();
        self.heard = relearnt.rest.unwrap_or_default();
        relearnt.effect
    }

    /// The next segment of an end, with so much data.
    fn says(&mut self, direction: Direction, data: u32) -> Effect {
        let said = self.segment(direction, ACK).data(data);
        self.next[direction.index()] = self.next[direction.index()].wrapping_add(data);
        self.sees(direction, &said)
    }

    fn segment(&self, direction: Direction, flags: wire::TcpFlags) -> Segment<'static> {
        let [own, other] = [direction, direction.reversed()].map(|it| self.next[it.index()]);
        segment(flags, own, other)
    }

    fn is_refused(&mut self, direction: Direction, ahead: u32) -> bool {
        let next = self.next[direction.index()].wrapping_add(ahead);
        let far = segment(ACK, next, self.next[direction.reversed().index()]);
        matches!(self.sees(direction, &far.data(10)), Effect::Step(Step::Invalid { .. }))
    }
}

fn passes(effect: Effect) -> bool {
    matches!(effect, Effect::Hold { .. } | Effect::Step(Step::Accept(_) | Step::Pass))
}

#[test]
fn after_a_round_trip_the_numbers_are_known_and_checked() {
    for sent in [FAR, 1 << 31, PAST_HALF, u32::MAX - 200_000] {
        for (first, second) in [(Original, Reply), (Reply, Original)] {
            let mut taken = TakenOver::behind_by(sent);
            assert_eq!(taken.says(first, 1000), Effect::Hold { at_least: Timeout(300) });
            assert_eq!(taken.says(second, 0), Effect::Hold { at_least: Timeout(300) });
            let Effect::Step(Step::Accept(accepted)) = taken.says(first, 1000) else {
                panic!("{sent}")
            };
            assert_eq!((accepted.assured, accepted.state_changed), (true, false));
            assert!(taken.is_strict);
            for direction in [first, second] {
                assert!(taken.is_refused(direction, FAR), "{sent}");
                assert!(passes(taken.says(direction, 100)), "{sent}");
            }
        }
    }
}

#[test]
fn scale_and_sack_are_those_of_before() {
    let mut taken = TakenOver::behind_by(FAR);
    let modes = taken.tracker.modes.map(|mode| (mode.scale, mode.has(Mode::SACK)));
    for direction in [Original, Reply, Original] {
        let _ = taken.says(direction, 1000);
    }
    assert!(taken.is_strict);
    assert_eq!(modes, [(7, true); 2]);
    assert_eq!(taken.tracker.modes.map(|mode| (mode.scale, mode.has(Mode::SACK))), modes);
    // A window of 1000 allows 128,000 bytes.
    assert!(passes(taken.says(Reply, 0)));
    for _ in 0..127 {
        assert!(matches!(taken.says(Original, 1000), Effect::Step(Step::Accept(_))));
    }
    assert!(taken.is_refused(Original, 129_000));
}

#[test]
fn a_connection_that_was_idle_goes_on_and_is_strict_after_a_round_trip() {
    let mut taken = TakenOver::behind_by(0);
    for direction in [Original, Reply, Original] {
        assert!(!taken.is_strict);
        assert!(matches!(taken.says(direction, 100), Effect::Step(Step::Accept(_))));
    }
    assert!(taken.is_strict);
    assert!(taken.is_refused(Original, FAR) && taken.is_refused(Reply, FAR));
}

#[test]
fn what_was_lost_on_the_old_path_is_sent_again_and_acknowledged_late() {
    let mut taken = TakenOver::behind_by(FAR);
    let lost = taken.segment(Original, ACK).data(1000);
    taken.next[0] += 5000;
    // Three segments behind the gap, which the receiver names by SACK only.
    for _ in 0..3 {
        assert!(passes(taken.says(Original, 1000)));
    }
    let edge = taken.next[0].to_be_bytes();
    let start = (taken.next[0] - 3000).to_be_bytes();
    let mut sack = [1, 1, 5, 10, 0, 0, 0, 0, 0, 0, 0, 0];
    sack[4..8].copy_from_slice(&start);
    sack[8..].copy_from_slice(&edge);
    let duplicate = segment(ACK, taken.next[1], lost.sequence.0);
    assert!(passes(taken.sees(Reply, &duplicate.options(&sack))));
    assert!(passes(taken.sees(Original, &lost)));
    assert!(taken.is_strict, "the sender has acknowledged the duplicate's number");
    for data in [1000, 1000] {
        assert!(matches!(taken.says(Original, data), Effect::Step(Step::Accept(_))));
    }
    assert!(matches!(taken.says(Reply, 0), Effect::Step(Step::Accept(_))));
}

#[test]
fn a_reset_ends_nothing_unless_its_number_is_known() {
    for sent in [0, FAR, PAST_HALF] {
        let mut taken = TakenOver::behind_by(sent);
        for round in 0..2 {
            for direction in [Original, Reply] {
                for number in [0, 1, 70_000, FAR, 1 << 31, PAST_HALF] {
                    for flags in [RST, RST_ACK] {
                        let Seq(own) = taken.segment(direction, flags).sequence;
                        let forged = segment(flags, own.wrapping_add(number ^ 1 << 20), number);
                        assert_eq!(
                            taken.sees(direction, &forged),
                            Effect::Step(Step::Pass),
                            "{forged:?}"
                        );
                    }
                }
                assert_eq!(taken.tracker.state(), TcpState::Established);
            }
            // It does not matter what somebody has sent in the name of one end before.
            let forged = segment(ACK, 7, 9).data(100);
            assert!(passes(taken.sees(Original, &forged)), "{round}");
            assert_eq!(taken.sees(Reply, &segment(RST, 9, 0)), Effect::Step(Step::Pass));
            assert_eq!(taken.tracker.state(), TcpState::Established);
        }
        for direction in [Original, Reply, Original] {
            assert!(passes(taken.says(direction, 10)));
        }
        assert!(taken.is_strict);
        // It ends with the right number.
        let reset = taken.segment(Reply, RST_ACK);
        assert!(passes(taken.sees(Reply, &reset)));
        assert_eq!(taken.tracker.state(), TcpState::Close);
    }
}

#[test]
fn numbers_of_a_connection_that_was_opened_anew_replace_those_heard_before() {
    let mut taken = TakenOver::behind_by(FAR);
    assert!(passes(taken.says(Original, 1000)) && passes(taken.says(Reply, 1000)));
    // Nobody has acknowledged the last numbers, so the reset ends nothing here.
    let reset = taken.segment(Original, RST);
    assert_eq!(taken.sees(Original, &reset), Effect::Step(Step::Pass));
    assert!(!taken.is_strict);

    let (client, server) = (3 << 30, 1 << 30);
    let syn = segment(SYN, client, 0).options(&OFFERS);
    assert_eq!(taken.sees(Original, &syn), Effect::Step(Step::Pass));
    let answer = segment(SYN_ACK, server, client + 1).options(&OFFERS);
    assert!(matches!(taken.sees(Reply, &answer), Effect::Step(Step::Accept(_))));
    assert!(taken.is_strict);
    taken.next = [client + 1, server + 1];
    for direction in [Original, Original, Reply, Original, Reply] {
        assert!(matches!(taken.says(direction, 10), Effect::Step(Step::Accept(_))));
    }
    assert!(taken.is_refused(Original, FAR) && taken.is_refused(Reply, FAR));
}

#[test]
fn a_fin_counts_when_it_is_acknowledged() {
    let mut taken = TakenOver::behind_by(FAR);
    let fin = taken.segment(Original, FIN);
    assert_eq!(taken.sees(Original, &fin), Effect::Hold { at_least: Timeout(300) });
    assert_eq!(taken.tracker.state(), TcpState::Established);
    taken.next[0] += 1;
    assert!(passes(taken.says(Reply, 100)));
    let Effect::Step(Step::Accept(accepted)) = taken.says(Original, 0) else { panic!() };
    assert!(accepted.state_changed);
    assert_eq!(taken.tracker.state(), TcpState::CloseWait);
    let fin = taken.segment(Reply, FIN);
    assert!(passes(taken.sees(Reply, &fin)));
    assert_eq!(taken.tracker.state(), TcpState::LastAck);
}

#[test]
fn a_closed_window_that_is_probed_opens_again() {
    for sent in [0, FAR] {
        let mut taken = TakenOver::behind_by(sent);
        let probe = segment(ACK, taken.next[1].wrapping_sub(1), taken.next[0]);
        // RFC 9293 section 3.8.6.1; most stacks repeat the number before the next one.
        for _ in 0..3 {
            assert!(passes(taken.sees(Reply, &probe)), "{sent}");
            let closed = taken.segment(Original, ACK).window(0);
            assert!(passes(taken.sees(Original, &closed)), "{sent}");
        }
        assert!(taken.is_strict, "{sent}");
        assert!(passes(taken.says(Original, 0)), "{sent}");
        assert!(passes(taken.says(Reply, 1400)), "{sent}");
        assert!(taken.is_refused(Reply, FAR) && taken.is_refused(Original, FAR));
    }
}

#[test]
fn the_end_of_a_handshake_that_nobody_has_told_of_is_learnt() {
    let known = Conversation::open(&segment(SYN, 100, 0), TcpSettings::default());
    let mut taken = TakenOver { tracker: known.tracker, ..TakenOver::behind_by(0) };
    for direction in [Original, Reply, Original] {
        assert!(passes(taken.says(direction, 10)));
    }
    assert!(taken.is_strict);
    assert_eq!(taken.tracker.state(), TcpState::Established);
}

#[test]
fn what_nobody_acknowledges_is_forgotten() {
    let mut taken = TakenOver::behind_by(FAR);
    assert!(passes(taken.says(Original, 1000)));
    assert!(!taken.heard.is_empty());
    taken.now = taken.now.after(FORGOTTEN_AFTER);
    assert!(passes(taken.says(Reply, 0)), "it may still go on");
    assert!(passes(taken.says(Original, 1000)));
    assert!(!taken.is_strict, "the acknowledgment of what was forgotten tells nothing");
    assert!(passes(taken.says(Reply, 0)));
    assert!(taken.is_strict);
}

#[test]
fn of_two_gateways_that_see_one_direction_each_both_follow_the_end() {
    let mut taken = TakenOver::behind_by(FAR);
    // Only one end is heard here, and the other gateway tells what it sees.
    for _ in 0..100 {
        assert!(matches!(taken.says(Original, 1000), Effect::Hold { .. }));
        taken.next[1] = taken.next[1].wrapping_add(1400);
        taken.heard = taken.heard.after_news();
    }
    assert_eq!(taken.tracker.state(), TcpState::Established);
    let fin = taken.segment(Original, FIN);
    let Effect::Step(Step::Accept(accepted)) = taken.sees(Original, &fin) else { panic!() };
    assert_eq!((accepted.timeout, accepted.state_changed), (Timeout(120), true));
    // The other one has seen the FIN of the other end.
    taken.tracker.state = TcpState::LastAck;
    let Effect::Step(Step::Accept(accepted)) = taken.says(Original, 0) else { panic!() };
    assert_eq!((accepted.timeout, taken.tracker.state()), (Timeout(120), TcpState::TimeWait));
    // A reset still ends nothing on a guess.
    taken.tracker.state = TcpState::Established;
    assert_eq!(taken.sees(Reply, &segment(RST, 5, 0)), Effect::Step(Step::Pass));
}

/// Something that happens while a connection is learnt anew.
#[derive(Clone, Debug)]
enum Event {
    /// An end sends data, of which it repeats some.
    Say(bool, u32, u32),
    /// Somebody who knows addresses and ports alone sends a segment in the name of an end.
    Forge(u8, u32, u32, u32),
    Wait(u64),
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        6 => (any::<bool>(), 0..1400_u32, 0..3000_u32).prop_map(|(it, data, again)| {
            Event::Say(it, data, again)
        }),
        4 => (0..3_u8, any::<u32>(), any::<u32>(), 0..1400_u32).prop_map(|(kind, it, ack, data)| {
            Event::Forge(kind, it, ack, data)
        }),
        1 => (0..70_u64).prop_map(Event::Wait),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// Whatever is sent in the name of one end, all that the ends send passes, and after a round
    /// trip without it the connection is strict.
    #[test]
    fn a_stranger_who_forges_one_end_keeps_nothing_from_passing(
        sent: u32,
        forges_reply: bool,
        events in prop::collection::vec(event(), 0..60),
    ) {
        let mut taken = TakenOver::behind_by(sent);
        for event in events {
            match event {
                Event::Say(is_reply, data, again) => {
                    let direction = if is_reply { Reply } else { Original };
                    let fresh = taken.segment(direction, ACK).data(data);
                    let repeats = again > 2000 && taken.is_strict;
                    let said = if repeats { taken.segment(direction, ACK) } else { fresh };
                    if !repeats {
                        let next = &mut taken.next[direction.index()];
                        *next = next.wrapping_add(data);
                    }
                    let step = taken.sees(direction, &said);
                    prop_assert!(passes(step), "{:?} came to {:?}", said, step);
                }
                Event::Forge(kind, sequence, acknowledgment, data) => {
                    let direction = if forges_reply { Reply } else { Original };
                    let flags = [ACK, FIN, RST][usize::from(kind)];
                    // One guess in some 10,000 lies within a window, where any tracker believes it.
                    let ahead = sequence.wrapping_sub(taken.next[direction.index()]);
                    let is_near = ahead.min(ahead.wrapping_neg()) < FAR;
                    let sequence = sequence.wrapping_add(if is_near { 1 << 31 } else { 0 });
                    let forged = segment(flags, sequence, acknowledgment);
                    let _ = taken.sees(direction, &if kind == 2 { forged } else { forged.data(data) });
                    prop_assert_eq!(taken.tracker.state(), TcpState::Established);
                }
                Event::Wait(seconds) => taken.now = taken.now.after(Duration::from_secs(seconds)),
            }
        }
        for direction in [Original, Reply, Original, Reply] {
            prop_assert!(passes(taken.says(direction, 1000)));
        }
        prop_assert!(taken.is_strict);
        prop_assert!(taken.is_refused(Original, FAR) && taken.is_refused(Reply, FAR));
    }
}
