//! The packets of a lane.

use crate::traffic::{Random, Segment, Traffic};

use super::PAYLOAD;

/// An endless sequence of segments.
#[derive(Debug)]
pub enum Load {
    /// Each connection speaks once before any a second time, in random order.
    Even(Traffic),
    /// Connections speak as often as Zipf's law with exponent 1 says.
    Zipf {
        /// Chosen connections, one after the other.
        chosen: Vec<u32>,
        at: usize,
        /// The number of segments that each connection has had, by its number.
        steps: Vec<u32>,
    },
    /// Opens connections, and ends each when `live` others have been opened.
    Churn { flows: Vec<u32>, live: usize, at: usize, ends: bool },
}

impl Load {
    /// Even talk of connections that have been opened.
    pub fn even(flows: Vec<u32>) -> Self {
        Self::Even(Traffic::talk(flows, PAYLOAD))
    }

    /// Opens and ends these connections, of which half are open at any time. The second value is
    /// those that have to be open before.
    pub fn churn(mut flows: Vec<u32>) -> (Self, Vec<u32>) {
        Random(11).shuffle(&mut flows);
        let live = flows.len() / 2;
        let before = flows[flows.len() - live..].to_vec();
        (Self::Churn { flows, live, at: 0, ends: false }, before)
    }

    /// Lets the connections of even talk go on by Zipf's law.
    #[must_use]
    pub fn skewed(self, length: usize) -> Self {
        let Self::Even(Traffic::Talk { orders, at, step, .. }) = self else { return self };
        let order = &orders[step as usize & 1];
        let most = order.iter().max().map_or(0, |flow| *flow as usize + 1);
        let mut steps = vec![step; most];
        for flow in &order[..at] {
            steps[*flow as usize] += 1;
        }
        let (mut random, ranks) = (Random(19), (order.len() as f64).ln());
        let chosen = (0..length).map(|_| {
            let share = (random.next() >> 11) as f64 / (1_u64 << 53) as f64;
            order[((share * ranks).exp() as usize - 1).min(order.len() - 1)]
        });
        Self::Zipf { chosen: chosen.collect(), at: 0, steps }
    }

    /// The next segment.
    pub fn next(&mut self) -> Segment {
        match self {
            Self::Even(traffic) => traffic.next(),
            Self::Zipf { chosen, at, steps } => {
                let flow = chosen[*at];
                *at = (*at + 1) % chosen.len();
                let step = &mut steps[flow as usize];
                let segment = Segment::talk(flow, *step, PAYLOAD);
                *step = step.wrapping_add(1);
                segment
            }
            Self::Churn { flows, live, at, ends } => {
                *ends = !*ends;
                if *ends {
                    return Segment::handshake(flows[*at])[0];
                }
                let old = flows[(*at + flows.len() - *live) % flows.len()];
                *at = (*at + 1) % flows.len();
                Segment::reset(old)
            }
        }
    }

    /// Segments for one unit of work.
    pub const fn segments_per_unit(&self) -> u64 {
        match self {
            Self::Even(_) | Self::Zipf { .. } => 1,
            Self::Churn { .. } => 2,
        }
    }
}
