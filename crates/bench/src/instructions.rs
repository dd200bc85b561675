//! Work for a counter of instructions, by a worker of the gateway in memory. Two runs are the
//! same: time passes by turns, seeds are fixed, and there is one thread.
//!
//! `cargo xtask instructions` runs the example of this name for each of [`all`] and counts the
//! instructions below `counted`, so that building the gateway and filling its tables is left out.

use std::fmt;

use crate::Error;
use crate::gateway::{Case, Gateway, LAG, Maker, Setup, Style, Time};
use crate::measure::Work;

/// Flows that are established.
const ESTABLISHED: u32 = 1024;
/// Flows that are opened, one after the other.
const OPENED: u32 = 2 * LAG as u32;
/// Turns that do not count: a worker has looked at the timers of all 256 buckets then.
const WARM_UP: usize = 64;
/// Turns that count.
const TURNS: usize = 256;

/// The unit of a figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A packet of an established flow, or one that is refused.
    Packet,
    /// A connection that is opened and deleted, by two packets.
    Connection,
    /// The frame of a packet, or the frames of a connection, by themselves: they are made, read
    /// and steered, and their checksums are verified.
    Making,
}

impl Kind {
    /// Its key.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Packet => "packet",
            Self::Connection => "connection",
            Self::Making => "making",
        }
    }
}

/// Something whose instructions can be counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subject {
    kind: Kind,
    name: &'static str,
    frames: Frames,
    case: Case,
}

/// The kinds of frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Frames {
    /// Requests and answers of established flows.
    Established(Style),
    /// Connections are opened and given up.
    Churn(Style),
    /// Connections are opened.
    Opening(Style),
}

impl Frames {
    /// The name of making them. Frames for the gateway's own address cost as much as others.
    const fn making(self) -> &'static str {
        match self {
            Self::Established(Style::Ipv4 | Style::Published) => "datagrams",
            Self::Established(Style::Ipv6) => "datagrams_ipv6",
            Self::Established(Style::Pieces) => "fragments",
            Self::Churn(Style::Ipv6) => "connections_ipv6",
            Self::Churn(_) => "connections",
            Self::Opening(_) => "openings",
        }
    }
}

/// The variants of the gateway.
const VARIANTS: [(&str, Case, Style); 9] = [
    ("no_rules", Case::Router, Style::Ipv4),
    ("rules", Case::RouterRules, Style::Ipv4),
    ("masquerade", Case::Masquerade, Style::Ipv4),
    ("port_forward", Case::PortForward, Style::Published),
    ("ipv6", Case::Router, Style::Ipv6),
    ("bridge", Case::Bridge, Style::Ipv4),
    ("bridge_rules", Case::BridgeRules, Style::Ipv4),
    ("fragments", Case::Bridge, Style::Pieces),
    ("refused", Case::Refuse, Style::Ipv4),
];

/// Everything whose instructions can be counted; making frames comes last.
pub fn all() -> Vec<Subject> {
    let mut all = Vec::new();
    for (name, case, style) in VARIANTS {
        let frames = match case {
            Case::Refuse => Frames::Opening(style),
            _ => Frames::Established(style),
        };
        all.push(Subject { kind: Kind::Packet, name, frames, case });
    }
    for (name, case, style) in VARIANTS {
        if case != Case::Refuse && style != Style::Pieces {
            all.push(Subject { kind: Kind::Connection, name, frames: Frames::Churn(style), case });
        }
    }
    for Subject { frames, case, .. } in all.clone() {
        let making = Subject { kind: Kind::Making, name: frames.making(), frames, case };
        if !all.iter().any(|other| (other.kind, other.name) == (making.kind, making.name)) {
            all.push(making);
        }
    }
    all
}

impl fmt::Display for Subject {
    /// Kind and name, and behind them the name of making its frames.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kind.name(), self.name)?;
        match self.kind {
            Kind::Making => Ok(()),
            _ => write!(f, " {}", self.frames.making()),
        }
    }
}

/// Runs the subject of this name. Returns how many packets or connections were counted.
///
/// # Errors
/// [`Error::Wrong`] if there is nothing of this name, or a packet did not go where it should.
pub fn run(kind: &str, name: &str) -> Result<u64, Error> {
    let subject = all().into_iter().find(|it| (it.kind.name(), it.name) == (kind, name));
    let Some(Subject { kind, frames, case, .. }) = subject else {
        let problem = format!("there is no {kind} {name}");
        return Err(Error::Wrong { benchmark: "instructions", problem });
    };
    if kind == Kind::Making {
        let mut maker = match frames {
            Frames::Established(style) => Maker::established(style, 0..ESTABLISHED)?,
            Frames::Churn(style) => Maker::churning(style, 0..OPENED)?,
            Frames::Opening(style) => Maker::opening(style, OPENED),
        };
        let units = warm_and_count(&mut maker);
        return maker.check().map(|()| units);
    }
    let setup = |style, flows| Setup { case, style, time: Time::Turns, workers: 1, flows };
    let mut gateways = match frames {
        Frames::Established(style) => Gateway::established(setup(style, ESTABLISHED))?,
        Frames::Churn(style) => Gateway::churning(setup(style, OPENED))?,
        Frames::Opening(style) => Gateway::refusing(setup(style, OPENED))?,
    };
    let mut units = 0;
    for gateway in &mut gateways {
        units += warm_and_count(gateway);
        gateway.check()?;
    }
    Ok(units)
}

fn warm_and_count(work: &mut dyn Work) -> u64 {
    for _ in 0..WARM_UP {
        work.batch();
    }
    counted(work)
}

/// The instructions in here are those that count; the counter knows it by its name.
#[inline(never)]
fn counted(work: &mut dyn Work) -> u64 {
    (0..TURNS).map(|_| work.batch()).sum()
}

#[cfg(test)]
#[path = "instructions_tests.rs"]
mod tests;
