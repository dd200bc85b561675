//! Making frames and reading them, which is a part of every figure of a gateway.

use flow::Zone;
use netio::{Frame, FramePool};
use steer::{Steered, SteeringHasher};
use wire::checksum::verify_transport;
use wire::{Network, dissect};

use super::frames::{self, Flow, Style};
use super::{BATCH, churn, plain_steering, wrong};
use crate::Error;
use crate::measure::Work;

/// A frame that has been read.
struct Read {
    frame: Frame,
    network: Network,
    steered: Steered,
}

/// Makes frames, reads their headers, hashes their flows and verifies their checksums.
pub struct Maker {
    hasher: SteeringHasher,
    frames: Vec<frames::Frame>,
    at: usize,
    pool: FramePool,
    batch: Vec<Read>,
    refused: u64,
    frames_each: u64,
}

impl Maker {
    /// The first frame of each connection that a client opens.
    pub fn opening(style: Style, flows: u32) -> Self {
        Self::of((0..flows).map(|number| Flow { number, style }.open()).collect(), 1)
    }

    /// Requests and answers of so many flows, by turns as they come from two queues.
    pub fn established(style: Style, flows: impl IntoIterator<Item = u32>) -> Result<Self, Error> {
        let flows = flows.into_iter().map(|number| Flow { number, style });
        let requests: Vec<_> = flows.flat_map(Flow::request).collect();
        let answers: Vec<_> =
            requests.iter().map(|frame| frames::answer(frame)).collect::<Result<_, _>>()?;
        let turns = requests.chunks(BATCH).zip(answers.chunks(BATCH));
        Ok(Self::of(turns.flat_map(|(to, fro)| [to, fro].concat()).collect(), 1))
    }

    /// Clients open connections, and give each up later.
    pub fn churning(style: Style, flows: impl IntoIterator<Item = u32>) -> Result<Self, Error> {
        let flows: Vec<_> = flows.into_iter().map(|number| Flow { number, style }).collect();
        Ok(Self::of(churn(&flows)?, 2))
    }

    fn of(frames: Vec<frames::Frame>, frames_each: u64) -> Self {
        Self {
            hasher: plain_steering(),
            frames,
            at: 0,
            pool: FramePool::new(4 * BATCH, 0),
            batch: Vec::with_capacity(BATCH),
            refused: 0,
            frames_each,
        }
    }

    /// Nothing was refused.
    ///
    /// # Errors
    /// [`Error::Wrong`].
    pub fn check(&self) -> Result<(), Error> {
        match self.refused {
            0 => Ok(()),
            refused => Err(wrong(format!("{refused} frames could not be read"))),
        }
    }
}

impl Work for Maker {
    fn batch(&mut self) -> u64 {
        for read in self.batch.drain(..) {
            self.pool.give_back(read.frame);
        }
        for _ in 0..BATCH {
            let frame = self.pool.copy_of(&self.frames[self.at]);
            self.at = (self.at + 1) % self.frames.len();
            let read = frame.and_then(|frame| {
                let network = dissect(frame.bytes()).ok()?.network?;
                let steered = self.hasher.steer(&network, Zone::default(), None);
                Some(Read { frame, network, steered })
            });
            match read {
                Some(read) => self.batch.push(read),
                None => self.refused += 1,
            }
        }
        for read in &mut self.batch {
            self.refused += u64::from(!verify_transport(read.frame.bytes(), &read.network));
            std::hint::black_box(read.steered);
        }
        BATCH as u64 / self.frames_each
    }
}
