//! The whole gateway on one worker, from queue to queue, with more and more established flows.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

use super::report::nanoseconds;
use crate::gateway::{Case, Gateway, Maker, Setup, Style, Time};
use crate::measure::{Schedule, Turn, Work, least_share, rates, rounds, turn};
use crate::table::{Cell, Table};
use crate::{Error, Options, Spread};

/// The numbers of flows, with their keys.
const SIZES: [(&str, u32); 3] =
    [("flows_1k", 1 << 10), ("flows_100k", 100_000), ("flows_1m", 1_000_000)];
/// A quick run has so many times fewer flows.
const QUICK: u32 = 16;
/// The cases of the gateway, with their keys.
const CASES: [(&str, Case); 3] =
    [("no_rules", Case::Router), ("rules", Case::RouterRules), ("masquerade", Case::Masquerade)];
/// The key of the part of every figure that is no work of the gateway.
const MAKING: &str = "making";

/// Nanoseconds for a packet, by case and number of flows.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Scale {
    /// Medians, making the frames included.
    pub gateway_ns: BTreeMap<&'static str, BTreeMap<&'static str, f64>>,
    /// The same with their spread, and the part that is making the frames.
    pub gateway_ns_spread: BTreeMap<&'static str, BTreeMap<&'static str, Spread>>,
    /// The smallest part of a CPU that a measured thread had.
    #[serde(skip)]
    pub cpu_share: f64,
}

/// Measures all cases with each number of flows, in turns.
///
/// # Errors
/// [`Error::Wrong`] where a packet did not go where it should.
pub fn run(options: Options, cpu: usize) -> Result<Scale, Error> {
    let mut scale = Scale { cpu_share: 1.0, ..Scale::default() };
    for (size, flows) in SIZES {
        let flows = if options.quick { flows / QUICK } else { flows };
        let turns = measure(Schedule::of(options), flows, cpu)?;
        scale.cpu_share = scale.cpu_share.min(least_share(&turns));
        let keys = CASES.map(|(key, _)| key).into_iter().chain([MAKING]);
        for (case, turns) in keys.zip(&turns) {
            scale.add(case, size, nanoseconds(rates(turns)));
        }
    }
    Ok(scale)
}

fn measure(schedule: Schedule, flows: u32, cpu: usize) -> Result<Vec<Vec<Turn>>, Error> {
    let mut gateways = Vec::new();
    for (_, case) in CASES {
        let setup = Setup { case, style: Style::Ipv4, time: Time::Real, workers: 1, flows };
        gateways.extend(Gateway::established(setup)?);
    }
    let mut maker = Maker::established(Style::Ipv4, 0..flows)?;
    let turns = rounds(schedule, gateways.len() + 1, |at| {
        let work: &mut dyn Work = match gateways.get_mut(at) {
            Some(gateway) => gateway,
            None => &mut maker,
        };
        turn(&mut [work], &[cpu], schedule.turn)
    })?;
    gateways.iter().try_for_each(Gateway::check)?;
    maker.check()?;
    Ok(turns)
}

impl Scale {
    fn add(&mut self, case: &'static str, size: &'static str, ns: Spread) {
        self.gateway_ns_spread.entry(case).or_default().insert(size, ns);
        if case != MAKING {
            self.gateway_ns.entry(case).or_default().insert(size, ns.median);
        }
    }
}

impl fmt::Display for Scale {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sizes = SIZES.map(|(size, _)| size);
        let mut table = Table::new("the whole gateway, ns for a packet, one worker", &sizes);
        for case in CASES.map(|(key, _)| key).into_iter().chain([MAKING]) {
            let Some(row) = self.gateway_ns_spread.get(case) else { continue };
            let cell = |size: &&str| row.get(*size).map(|spread| Cell::new(*spread, 0));
            table.row(case, sizes.iter().map(cell).collect());
        }
        writeln!(f, "{table}")
    }
}
