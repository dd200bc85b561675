//! An entry of a table, for the tests of this tracker.

use wire::TcpFlags;

use super::{FlagClass, Opened, Segment, Seq, Step, TcpSettings, TcpTracker};
use crate::Direction::{self, Original};

pub const SYN: TcpFlags = TcpFlags::SYN;
pub const SYN_ACK: TcpFlags = TcpFlags::SYN.with(TcpFlags::ACK);
pub const ACK: TcpFlags = TcpFlags::ACK;
pub const FIN: TcpFlags = TcpFlags::FIN.with(TcpFlags::ACK);
pub const RST: TcpFlags = TcpFlags::RST;
pub const RST_ACK: TcpFlags = TcpFlags::RST.with(TcpFlags::ACK);

/// SACK permitted, and a window scale of 7.
pub const OFFERS: [u8; 6] = [4, 2, 3, 3, 7, 0];

/// A segment without payload and with a window of 1000.
pub fn segment(flags: TcpFlags, sequence: u32, acknowledgment: u32) -> Segment<'static> {
    let class = FlagClass::of(flags).expect("legal control bits");
    let counted = u32::from(class.is_syn()) + u32::from(class == FlagClass::Fin);
    Segment {
        class,
        has_ack: flags.contains(TcpFlags::ACK),
        sequence: Seq(sequence),
        end: Seq(sequence).plus(counted),
        acknowledgment: Seq(acknowledgment),
        window: 1000,
        options: &[],
    }
}

impl<'a> Segment<'a> {
    /// The segment with a payload.
    pub fn data(self, length: u32) -> Self {
        Self { end: self.end.plus(length), ..self }
    }

    /// The segment with another window.
    pub fn window(self, window: u16) -> Self {
        Self { window, ..self }
    }

    /// The segment with options, a multiple of 4 bytes.
    pub fn options<'b>(self, options: &'b [u8]) -> Segment<'b> {
        Segment { options, ..self }
    }
}

/// The tracker with the fields that its owner keeps.
#[derive(Clone, Debug)]
pub struct Conversation {
    pub tracker: TcpTracker,
    pub seen_reply: bool,
    pub assured: bool,
    /// The last timer, seconds.
    pub timer: u32,
    pub settings: TcpSettings,
}

impl Conversation {
    pub fn open(segment: &Segment<'_>, settings: TcpSettings) -> Self {
        let Opened { tracker, timeout } =
            TcpTracker::open(segment, &settings).expect("opens a connection");
        Self { tracker, seen_reply: false, assured: false, timer: timeout.0, settings }
    }

    /// The client starts at 100, the server at 500; both windows are 1000.
    pub fn established() -> Self {
        let mut conversation = Self::open(&segment(SYN, 100, 0), TcpSettings::default());
        conversation.accepts(Direction::Reply, &segment(SYN_ACK, 500, 101));
        conversation.accepts(Original, &segment(ACK, 101, 501));
        conversation
    }

    pub fn sees(&mut self, direction: Direction, segment: &Segment<'_>) -> Step {
        let step =
            self.tracker.advance(direction, segment, self.seen_reply, self.assured, &self.settings);
        match step {
            Step::Accept(accepted) => {
                self.assured = accepted.assured;
                self.timer = accepted.timeout.0;
            }
            Step::Invalid { cap: Some(cap), .. } => self.timer = self.timer.min(cap.0),
            Step::Invalid { cap: None, .. } | Step::Pass | Step::Delete | Step::Reopen => {}
        }
        if matches!(step, Step::Accept(_) | Step::Pass) {
            self.seen_reply |= direction == Direction::Reply;
        }
        step
    }

    /// The timer that an accepted segment sets, seconds.
    #[track_caller]
    pub fn accepts(&mut self, direction: Direction, segment: &Segment<'_>) -> u32 {
        match self.sees(direction, segment) {
            Step::Accept(accepted) => accepted.timeout.0,
            step => panic!("{segment:?} came to {step:?} with {self:#?}"),
        }
    }

    /// Shows a segment that must pass without an effect on the timer.
    #[track_caller]
    pub fn passes(&mut self, direction: Direction, segment: &Segment<'_>) {
        let timer = self.timer;
        assert_eq!(self.sees(direction, segment), Step::Pass, "{segment:?} with {self:#?}");
        assert_eq!(self.timer, timer);
    }

    /// Shows a segment that must be refused, and returns the explanation.
    #[track_caller]
    pub fn refuses(&mut self, direction: Direction, segment: &Segment<'_>) -> String {
        match self.sees(direction, segment) {
            Step::Invalid { why, .. } => why.to_string(),
            step => panic!("{segment:?} came to {step:?} with {self:#?}"),
        }
    }
}
