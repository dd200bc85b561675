//! The two ends as state machines: the messages that they may hear, and their reaction when the other
//! one is lost.

use super::message::Message;

/// The state of the process that gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Giving {
    /// It waits for the taker's hello.
    Greeting,
    /// It has made its offer, and the taker starts.
    Offering,
    /// It sends records. The number is that of the mark that the taker has to reach.
    Copying {
        /// The last mark.
        mark: u32,
    },
    /// It has sent all and forwards nothing.
    Frozen,
    /// It has told the taker to receive packets.
    Going,
}

/// The state of the process that takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taking {
    /// It has said hello.
    Greeting,
    /// It has the offer. So many claims are still to come, and then the control socket.
    Claiming {
        /// Claims that are still to come.
        claims: u16,
    },
    /// It starts.
    Starting,
    /// It applies records.
    Copying,
    /// The giver forwards nothing. So many queues are still to come.
    Frozen {
        /// Queues that are still to come.
        queues: u16,
    },
    /// It has all, and waits for the word.
    Waiting,
    /// It receives packets.
    Running,
}

/// The effect of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heard<S> {
    /// The next state.
    Next(S),
    /// The taker runs, so the giver ends.
    Done,
    /// The other end goes no further.
    Stopped,
    /// Nobody sends this message now.
    Unexpected,
}

/// The reaction of an end when the other one is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lost {
    /// It forwards: the giver as before, the taker with all that it has.
    GoesOn,
    /// It ends, and has changed nothing.
    Ends,
}

impl Giving {
    /// The effect of a message of the taker.
    pub const fn hear(self, message: &Message) -> Heard<Self> {
        match (self, message) {
            (_, Message::Stop(_)) => Heard::Stopped,
            (Self::Greeting, Message::Hello(..)) => Heard::Next(Self::Offering),
            (Self::Offering, Message::Begin) => Heard::Next(Self::Copying { mark: 0 }),
            (Self::Copying { mark }, Message::Reached(number)) if mark == *number => {
                Heard::Next(self)
            }
            (Self::Frozen, Message::NotCarried(_)) => Heard::Next(self),
            (Self::Frozen, Message::Ready(_)) => Heard::Next(Self::Going),
            (Self::Going, Message::Running) => Heard::Done,
            _ => Heard::Unexpected,
        }
    }

    /// The taker is lost. It has no descriptor any more, so nobody else receives packets.
    pub const fn lose(self) -> Lost {
        match self {
            Self::Greeting | Self::Offering | Self::Copying { .. } | Self::Frozen | Self::Going => {
                Lost::GoesOn
            }
        }
    }
}

impl Taking {
    /// The effect of a message of the giver.
    pub const fn hear(self, message: &Message) -> Heard<Self> {
        match (self, message) {
            (Self::Running, _) => Heard::Unexpected,
            (_, Message::Stop(_)) => Heard::Stopped,
            (Self::Greeting, Message::Offer(offer)) => {
                Heard::Next(Self::Claiming { claims: offer.interfaces.len() as u16 })
            }
            (Self::Claiming { claims: 0 }, Message::Control) => Heard::Next(Self::Starting),
            (Self::Claiming { claims: claims @ 1.. }, Message::Claim(_)) => {
                Heard::Next(Self::Claiming { claims: claims - 1 })
            }
            // It says that it begins when it has started.
            (Self::Starting | Self::Copying, Message::Records(_) | Message::Mark(_)) => {
                Heard::Next(Self::Copying)
            }
            (Self::Copying, Message::Changed(_)) => Heard::Next(self),
            (Self::Copying, Message::Frozen(_, 0)) => Heard::Next(Self::Waiting),
            (Self::Copying, Message::Frozen(_, queues)) => {
                Heard::Next(Self::Frozen { queues: *queues })
            }
            (Self::Frozen { queues: 1 }, Message::Queue(..)) => Heard::Next(Self::Waiting),
            (Self::Frozen { queues: queues @ 2.. }, Message::Queue(..)) => {
                Heard::Next(Self::Frozen { queues: queues - 1 })
            }
            (Self::Waiting, Message::Go) => Heard::Next(Self::Running),
            _ => Heard::Unexpected,
        }
    }

    /// The giver is lost without a word. It has said stop if it goes on itself.
    pub const fn lose(self) -> Lost {
        match self {
            Self::Greeting
            | Self::Claiming { .. }
            | Self::Starting
            | Self::Copying
            | Self::Frozen { .. } => Lost::Ends,
            Self::Waiting | Self::Running => Lost::GoesOn,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::{Debug, Write};

    use super::super::message::tests::all;
    use super::*;

    const GIVING: [Giving; 5] = [
        Giving::Greeting,
        Giving::Offering,
        Giving::Copying { mark: 5 },
        Giving::Frozen,
        Giving::Going,
    ];
    const TAKING: [Taking; 9] = [
        Taking::Greeting,
        Taking::Claiming { claims: 1 },
        Taking::Claiming { claims: 0 },
        Taking::Starting,
        Taking::Copying,
        Taking::Frozen { queues: 2 },
        Taking::Frozen { queues: 1 },
        Taking::Waiting,
        Taking::Running,
    ];

    fn matrix<S: Copy + Debug>(
        states: &[S],
        hear: fn(S, &Message) -> Heard<S>,
        lose: fn(S) -> Lost,
    ) -> String {
        let mut text = String::new();
        for &state in states {
            writeln!(text, "{state:?}").unwrap();
            for message in all() {
                match hear(state, &message) {
                    Heard::Unexpected => {}
                    heard => writeln!(text, "  {}: {heard:?}", message.name()).unwrap(),
                }
            }
            writeln!(text, "  lost: {:?}", lose(state)).unwrap();
        }
        text
    }

    #[test]
    fn the_whole_matrix() {
        let giver = matrix(&GIVING, Giving::hear, Giving::lose);
        let taker = matrix(&TAKING, Taking::hear, Taking::lose);
        insta::assert_snapshot!(format!("giver\n{giver}\ntaker\n{taker}"));
    }

    /// Both may be lost to each other at any time, and then one of them forwards, and not two: the
    /// taker receives packets only after the giver has said so or has died.
    #[test]
    fn the_giver_that_lives_goes_on_and_the_taker_needs_all() {
        assert!(GIVING.iter().all(|state| state.lose() == Lost::GoesOn));
        let with_all = TAKING.iter().filter(|state| state.lose() == Lost::GoesOn);
        assert_eq!(with_all.collect::<Vec<_>>(), [&Taking::Waiting, &Taking::Running]);
    }

    #[test]
    fn a_mark_that_was_not_set_is_not_reached() {
        let state = Giving::Copying { mark: 4 };
        assert_eq!(state.hear(&Message::Reached(5)), Heard::Unexpected);
        assert_eq!(state.hear(&Message::Reached(4)), Heard::Next(state));
    }
}
