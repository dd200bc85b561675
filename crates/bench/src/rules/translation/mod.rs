//! Translates addresses: by the gateway as a whole, and by its tables beside one table that all
//! threads share.
//!
//! Frames have the shortest length. *Established* are UDP flows with requests and answers by turns;
//! the answers go to the chosen ports. *Opened and deleted* is a SYN, and an RST after [`LAG`]
//! other connections were opened; both count as one.

mod frames;
mod gateway;
mod report;
mod tables;

use self::frames::Flow;
use self::gateway::{Case, Gateway};
pub use self::report::Translation;
use self::tables::{Design, Lane};
use crate::measure::{Schedule, Turn, Work, rounds, turn};
use crate::{Error, Options};

/// Number of established flows, as in the measurement with real links.
const ESTABLISHED: u32 = 1024;
/// Number of flows that are opened in turn.
const OPENED: u32 = 1 << 16;
/// Connections that each worker has open meanwhile.
const LAG: usize = 4096;

/// The rounds of a variant with one kind of traffic.
pub struct Measured {
    traffic: Traffic,
    what: &'static str,
    workers: usize,
    /// Packets, or connections, per second.
    turns: Vec<Turn>,
}

/// The kind of traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Traffic {
    Established,
    Churn,
}

impl Traffic {
    /// Its key in the report.
    const fn name(self) -> &'static str {
        match self {
            Self::Established => "established",
            Self::Churn => "new",
        }
    }
}

fn wrong(problem: String) -> Error {
    Error::Wrong { benchmark: "translation", problem }
}

/// Opens each flow in turn, and behind it ends the one that was opened [`LAG`] flows before.
fn churn(flows: &[Flow]) -> Result<Vec<frames::Frame>, Error> {
    let count = flows.len();
    if count <= LAG {
        return Err(wrong(format!("{count} flows are too few")));
    }
    let pair = |at: usize| {
        let old = flows[(at + count - LAG) % count];
        Ok([flows[at].open()?, old.reset()?])
    };
    Ok((0..count).map(pair).collect::<Result<Vec<_>, Error>>()?.concat())
}

/// A variant with its workers.
enum Crew {
    Gateway(Vec<Gateway>),
    Tables(Vec<Lane>),
}

impl Crew {
    fn of_case(case: Case, traffic: Traffic, workers: usize) -> Result<Self, Error> {
        Ok(Self::Gateway(match traffic {
            Traffic::Established => Gateway::established(case, workers, ESTABLISHED)?,
            Traffic::Churn => Gateway::churning(case, workers, OPENED)?,
        }))
    }

    fn of_design(design: Design, traffic: Traffic, workers: usize) -> Result<Self, Error> {
        Ok(Self::Tables(match traffic {
            Traffic::Established => Lane::established(design, workers, ESTABLISHED)?,
            Traffic::Churn => Lane::churning(design, workers, OPENED)?,
        }))
    }

    fn works(&mut self) -> Vec<&mut dyn Work> {
        match self {
            Self::Gateway(workers) => workers.iter_mut().map(|it| it as &mut dyn Work).collect(),
            Self::Tables(lanes) => lanes.iter_mut().map(|it| it as &mut dyn Work).collect(),
        }
    }

    fn check(&self) -> Result<(), Error> {
        match self {
            Self::Gateway(workers) => workers.iter().try_for_each(Gateway::check),
            Self::Tables(lanes) => lanes.iter().try_for_each(Lane::check),
        }
    }
}

/// Measures all variants of both kinds of traffic, in turns.
///
/// # Errors
/// [`Error::Wrong`] where a packet was not translated as it should be.
pub fn run(options: Options, cpus: &[usize]) -> Result<Vec<Measured>, Error> {
    let schedule = Schedule::of(options);
    let mut all = Vec::new();
    for traffic in [Traffic::Established, Traffic::Churn] {
        let mut crews = Vec::new();
        for workers in 1..=cpus.len().min(2) {
            for case in Case::ALL {
                crews.push((case.name(), workers, Crew::of_case(case, traffic, workers)?));
            }
            for design in Design::ALL {
                crews.push((design.name(), workers, Crew::of_design(design, traffic, workers)?));
            }
        }
        let turns = rounds(schedule, crews.len(), |at| {
            turn(&mut crews[at].2.works(), cpus, schedule.turn)
        })?;
        for ((what, workers, crew), turns) in crews.into_iter().zip(turns) {
            crew.check()?;
            all.push(Measured { traffic, what, workers, turns });
        }
    }
    Ok(all)
}

impl Measured {
    /// Its rounds.
    pub fn turns(&self) -> &[Turn] {
        &self.turns
    }
}

/// Lets one worker translate at least `units` units of traffic, as the variant called `what` in the
/// report does. A unit is a packet of an established flow, or a connection that is opened. Measures
/// nothing.
///
/// # Errors
/// [`Error::Wrong`] when a packet was not translated as it should be, or there is no such
/// variant.
pub fn translate(what: &str, opens: bool, units: u64) -> Result<(), Error> {
    let traffic = if opens { Traffic::Churn } else { Traffic::Established };
    let case = Case::ALL.into_iter().find(|case| case.name() == what);
    let design = Design::ALL.into_iter().find(|design| design.name() == what);
    let mut crew = match (case, design) {
        (Some(case), _) => Crew::of_case(case, traffic, 1)?,
        (_, Some(design)) => Crew::of_design(design, traffic, 1)?,
        _ => return Err(wrong(format!("there is no variant {what:?}"))),
    };
    let mut done = 0;
    while done < units {
        done += crew.works().iter_mut().map(|work| work.batch()).sum::<u64>();
    }
    crew.check()
}
