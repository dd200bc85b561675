//! The fast path compared with the slow one.

use proptest::prelude::*;

use super::*;
use crate::Direction::{Original, Reply};
use crate::proto::tcp::testing::*;
use crate::proto::tcp::window::Mode;
use crate::proto::tcp::{Accepted, Seq, Step};

/// A segment near the expected numbers of a window of the connection.
#[derive(Clone, Debug)]
struct Near {
    reply: bool,
    flags: wire::TcpFlags,
    ahead: i32,
    acknowledges: i32,
    length: u32,
    window: u16,
    options: &'static [u8],
}

/// NOP, NOP and a SACK block around 70,000.
const SACK_BLOCK: [u8; 12] = [1, 1, 5, 10, 0, 1, 17, 112, 0, 1, 17, 212];

fn near() -> impl Strategy<Value = Near> {
    let offset = || prop_oneof![6 => Just(0), 3 => -1500..1500, 1 => -200_000..200_000];
    let flags = prop::sample::select(&[ACK, ACK, ACK, ACK, ACK, FIN, RST, SYN, SYN_ACK][..]);
    const OPTIONS: [&[u8]; 3] = [&[], &[4, 2, 1, 1], &SACK_BLOCK];
    let options = prop::sample::select(&OPTIONS[..]);
    let window = prop_oneof![Just(1000), Just(0), any::<u16>()];
    (any::<bool>(), flags, offset(), offset(), prop_oneof![Just(0), 0..1500_u32], window, options)
        .prop_map(|(reply, flags, ahead, acknowledges, length, window, options)| Near {
            reply,
            flags,
            ahead,
            acknowledges,
            length,
            window,
            options,
        })
}

/// True if the slow path has to take an ACK that it accepts without a change of state, because
/// the windows are not known or not checked.
fn is_lenient(tracker: &TcpTracker, from: Direction, settings: &TcpSettings) -> bool {
    let from = from.index();
    settings.be_liberal
        || tracker.modes[from].has(Mode::LIBERAL)
        || tracker.windows[from].max_window == 0
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn short_and_long_way_end_at_the_same_place(
        be_liberal: bool,
        picked_up: bool,
        talk in proptest::collection::vec(near(), 1..40),
    ) {
        let mut conversation = if picked_up {
            Conversation::open(&segment(ACK, 101, 501), TcpSettings::default())
        } else {
            Conversation::established()
        };
        conversation.settings.be_liberal = be_liberal;
        for Near { reply, flags, ahead, acknowledges, length, window, options } in talk {
            let direction = if reply { Reply } else { Original };
            let [own, other] = [direction, direction.reversed()]
                .map(|direction| conversation.tracker.windows[direction.index()].end);
            let sequence = Seq(own.0.wrapping_add_signed(ahead));
            let acknowledgment = Seq(other.0.wrapping_add_signed(acknowledges));
            let segment = segment(flags, sequence.0, acknowledgment.0)
                .data(length)
                .window(window)
                .options(options);
            let (before, settled) = (conversation.tracker, conversation.seen_reply && conversation.assured);
            let mut short = before;
            let in_window = short.advance_in_window(direction, &segment, &conversation.settings);
            let step = conversation.sees(direction, &segment);
            if !settled {
                continue;
            }
            match in_window {
                Some(timeout) => {
                    let accepted = Accepted { timeout, assured: true, state_changed: false };
                    prop_assert_eq!(step, Step::Accept(accepted));
                    prop_assert_eq!(short, conversation.tracker);
                }
                None => {
                    prop_assert_eq!(short, before);
                    let ordinary = matches!(step, Step::Accept(_))
                        && segment.class == FlagClass::Ack
                        && before.state() == TcpState::Established
                        && !is_lenient(&before, direction, &conversation.settings);
                    prop_assert!(!ordinary, "{segment:?} went the long way");
                }
            }
            if matches!(step, Step::Delete | Step::Reopen) {
                break;
            }
        }
    }
}
