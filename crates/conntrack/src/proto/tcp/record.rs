//! The tracker in a record: all of it, because any of its numbers decides about later segments.

use super::segment::MAX_SCALE;
use super::tracker::TcpTracker;
use super::window::{Mode, WindowState};
use super::{FlagClass, Seq, TcpState};
use crate::Direction;
use flow::codec::{DecodeError, Reader, Write};

impl TcpTracker {
    pub(crate) fn write(&self, to: &mut Vec<u8>) {
        for WindowState { end, max_end, max_window, max_ack } in self.windows {
            for number in [end.0, max_end.0, max_window, max_ack.0] {
                to.u32(number);
            }
        }
        for Seq(number) in [self.last_sequence, self.last_acknowledgment, self.last_end] {
            to.u32(number);
        }
        to.u16(self.last_window);
        for mode in [self.modes[0], self.modes[1], self.ignored_syn] {
            to.bytes(&[mode.scale, mode.flags()]);
        }
        // 0 for no last segment.
        let last = self.last.map_or(0, |(direction, class)| {
            1 + direction as u8 * FlagClass::ALL.len() as u8 + class as u8
        });
        to.bytes(&[last, self.repetitions, self.state as u8]);
    }

    pub(crate) fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let mut seq = || from.u32().map(Seq);
        let mut windows = [WindowState::default(); 2];
        for sender in &mut windows {
            *sender =
                WindowState { end: seq()?, max_end: seq()?, max_window: seq()?.0, max_ack: seq()? };
        }
        let (last_sequence, last_acknowledgment, last_end) = (seq()?, seq()?, seq()?);
        let last_window = from.u16()?;
        let mut modes = [Mode::default(); 3];
        for mode in &mut modes {
            let [scale, flags] = from.array()?;
            if scale > MAX_SCALE {
                return Err(DecodeError::Impossible("the scale of a window"));
            }
            *mode = Mode::with(flags);
            mode.scale = scale;
        }
        let [first, second, ignored_syn] = modes;
        let last = match usize::from(from.u8()?).checked_sub(1) {
            None => None,
            Some(number) => {
                let classes = FlagClass::ALL.len();
                let direction = [Direction::Original, Direction::Reply].get(number / classes);
                let direction = direction.ok_or(DecodeError::Impossible("the last segment"))?;
                Some((*direction, FlagClass::ALL[number % classes]))
            }
        };
        let repetitions = from.u8()?;
        let state = from.one_of(&TcpState::ALL)?;
        Ok(Self {
            windows,
            last_sequence,
            last_acknowledgment,
            last_end,
            last_window,
            modes: [first, second],
            ignored_syn,
            last,
            repetitions,
            state,
        })
    }
}
