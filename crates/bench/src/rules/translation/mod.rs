//! Translates addresses: by the gateway as a whole, and by its tables beside one table that all
//! threads share.
//!
//! Frames have the shortest length. *Established* are UDP flows with requests and answers by turns;
//! the answers go to the chosen ports. *Opened and deleted* is a SYN, and an RST after [`LAG`](crate::gateway::LAG)
//! other connections were opened; both count as one.

mod report;
mod tables;

pub use self::report::Translation;
use self::tables::{Design, Lane};
use crate::gateway::{Case, Gateway, Maker, Setup, Style, Time};
use crate::measure::{Schedule, Turn, Work, rounds, turn};
use crate::{Error, Options};

/// Number of established flows, as in the measurement with real links.
const ESTABLISHED: u32 = 1024;
/// Number of flows that are opened in turn.
const OPENED: u32 = 1 << 16;
/// The cases of the gateway, with the names of their rows.
const CASES: [(Case, &str); 3] = [
    (Case::Router, "gateway, no rules"),
    (Case::RouterRules, "gateway, rules"),
    (Case::Masquerade, MASQUERADE),
];
const MASQUERADE: &str = "gateway, masquerade";
/// Part of every other figure.
const MAKING: &str = "(making frames)";

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

/// A variant with its workers.
enum TestGateway {
    Gateway(Vec<Gateway>),
    Tables(Vec<Lane>),
    Makers(Vec<Maker>),
}

impl TestGateway {
    fn of_case(case: Case, traffic: Traffic, workers: usize) -> Result<Self, Error> {
        let setup = |flows| Setup { case, style: Style::Ipv4, time: Time::Real, workers, flows };
        Ok(Self::Gateway(match traffic {
            Traffic::Established => Gateway::established(setup(ESTABLISHED))?,
            Traffic::Churn => Gateway::churning(setup(OPENED))?,
        }))
    }

    fn of_design(design: Design, traffic: Traffic, workers: usize) -> Result<Self, Error> {
        Ok(Self::Tables(match traffic {
            Traffic::Established => Lane::established(design, workers, ESTABLISHED)?,
            Traffic::Churn => Lane::churning(design, workers, OPENED)?,
        }))
    }

    fn making(traffic: Traffic, workers: usize) -> Result<Self, Error> {
        let maker = |worker: usize| match traffic {
            Traffic::Established => {
                Maker::established(Style::Ipv4, (0..ESTABLISHED).skip(worker).step_by(workers))
            }
            Traffic::Churn => {
                Maker::churning(Style::Ipv4, (0..OPENED).skip(worker).step_by(workers))
            }
        };
        Ok(Self::Makers((0..workers).map(maker).collect::<Result<_, _>>()?))
    }

    fn works(&mut self) -> Vec<&mut dyn Work> {
        match self {
            Self::Gateway(workers) => workers.iter_mut().map(|it| it as &mut dyn Work).collect(),
            Self::Tables(lanes) => lanes.iter_mut().map(|it| it as &mut dyn Work).collect(),
            Self::Makers(makers) => makers.iter_mut().map(|it| it as &mut dyn Work).collect(),
        }
    }

    fn check(&self) -> Result<(), Error> {
        match self {
            Self::Gateway(workers) => workers.iter().try_for_each(Gateway::check),
            Self::Tables(lanes) => lanes.iter().try_for_each(Lane::check),
            Self::Makers(makers) => makers.iter().try_for_each(Maker::check),
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
        let mut gateways = Vec::new();
        for workers in 1..=cpus.len().min(2) {
            for (case, name) in CASES {
                gateways.push((name, workers, TestGateway::of_case(case, traffic, workers)?));
            }
            for design in Design::ALL {
                gateways.push((
                    design.name(),
                    workers,
                    TestGateway::of_design(design, traffic, workers)?,
                ));
            }
            gateways.push((MAKING, workers, TestGateway::making(traffic, workers)?));
        }
        let turns = rounds(schedule, gateways.len(), |at| {
            turn(&mut gateways[at].2.works(), cpus, schedule.turn)
        })?;
        for ((what, workers, gateway), turns) in gateways.into_iter().zip(turns) {
            gateway.check()?;
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
