//! `stateway bench attacks`: honest requests during an attack, through the gateway and through the
//! kernel's.

use std::collections::BTreeMap;

use anyhow::Context;
use bench::Machine;
use indicatif::ProgressBar;
use lab::{Contender, Greed, PacketFlood, Requests, greed, requests_beside};
use serde_json::json;

use super::spinner;
use crate::print::{Align, Output, Table};

/// Its name on the command line.
pub const NAME: &str = "attacks";
/// The number of times that each attack meets each gateway.
const ROUNDS: usize = 3;

#[derive(Clone, Copy)]
enum Attack {
    Packets(PacketFlood),
    Client(Greed),
}

impl Attack {
    fn all() -> impl Iterator<Item = Self> {
        let packets = PacketFlood::ALL.into_iter().map(Self::Packets);
        packets.chain(Greed::ALL.into_iter().map(Self::Client))
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Packets(PacketFlood::None) => "no attack",
            Self::Packets(PacketFlood::Syn) => "SYN flood",
            Self::Packets(PacketFlood::Udp) => "UDP flood",
            Self::Packets(PacketFlood::Fragments) => "flood of first fragments",
            Self::Packets(PacketFlood::Stations) => "MAC flood on a bridge with three ports",
            Self::Client(Greed::Unanswered) => "greedy NAT client, unanswered UDP",
            Self::Client(Greed::Answered) => "greedy NAT client, answered UDP",
            Self::Client(Greed::Open) => "greedy NAT client, TCP kept open",
        }
    }

    fn run(self, program: &std::path::Path, contender: Contender) -> lab::Result<Requests> {
        Ok(match self {
            Self::Packets(flood) => requests_beside(program, contender, flood)?.requests,
            Self::Client(kind) => greed(program, contender, kind)?.requests,
        })
    }
}

pub fn run(quick: bool, json: bool, out: &mut Output) -> anyhow::Result<()> {
    let binary = std::env::current_exe().context("the path of this program is unknown")?;
    let machine = Machine::here();
    out.line(&machine)?;
    out.line("300 requests of 100 honest clients, during an attack")?;
    out.line("")?;
    let rounds = if quick { 1 } else { ROUNDS };
    let mut rows = Vec::new();
    let mut table = Table::new(&[
        ("attack", Align::Left),
        ("gateway", Align::Left),
        ("served", Align::Right),
        ("of", Align::Right),
        ("median", Align::Right),
        ("99 of 100 within", Align::Right),
    ]);
    for attack in Attack::all() {
        let spinner: ProgressBar = spinner(attack.name());
        let mut results = BTreeMap::<_, Vec<Requests>>::new();
        for _ in 0..rounds {
            for contender in Contender::ALL {
                let requests = attack.run(&binary, contender)?;
                results.entry(contender.name()).or_default().push(requests);
            }
        }
        spinner.finish_and_clear();
        for contender in Contender::ALL {
            let rounds = results.remove(contender.name()).unwrap_or_default();
            let sum = |of: fn(&Requests) -> u64| rounds.iter().map(of).sum::<u64>();
            let (asked, served) = (sum(|it| it.asked), sum(|it| it.served));
            let (p50, p99) = (median(&rounds, |it| it.p50_ms), median(&rounds, |it| it.p99_ms));
            table.row([
                attack.name().to_owned(),
                contender.name().to_owned(),
                served.to_string(),
                asked.to_string(),
                shown(p50),
                shown(p99),
            ]);
            rows.push(json!({
                "attack": attack.name(),
                "gateway": contender.name(),
                "asked": asked,
                "served": served,
                "p50_ms": p50,
                "p99_ms": p99,
                "rounds": rounds.iter().map(Requests::to_json).collect::<Vec<_>>(),
            }));
        }
    }
    table.print(out)?;
    if !json {
        return Ok(());
    }
    out.json(&json!({ "schema": control::SCHEMA, "machine": machine, "attacks": rows }))
}

/// The median of the rounds in which a request was served, in milliseconds.
fn median(rounds: &[Requests], of: fn(&Requests) -> Option<f64>) -> Option<f64> {
    let mut values: Vec<f64> = rounds.iter().filter_map(of).collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

fn shown(milliseconds: Option<f64>) -> String {
    milliseconds.map_or_else(|| "-".to_owned(), |it| format!("{it:.1} ms"))
}
