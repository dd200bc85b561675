//! `stateway bench sync`: state sync in memory, and Debian's conntrackd between two gateways of the
//! kernel.

use std::time::Duration;

use anyhow::Context;
use bench::sync::{Conntrackd, Report};
use bench::{Options, Spread};

use super::spinner;
use crate::print::Output;

/// Its name on the command line.
pub const NAME: &str = "sync";

pub fn run(options: Options, out: &mut Output) -> anyhow::Result<()> {
    let mut report = bench::sync::run(options)?;
    add_conntrackd(&mut report, options.quick)?;
    Ok(bench::show(&report, options, out.writer())?)
}

fn add_conntrackd(report: &mut Report, quick: bool) -> anyhow::Result<()> {
    let binary = std::env::current_exe().context("the path of this program is unknown")?;
    let (rounds, milliseconds) = if quick { (1, 300) } else { (7, 2000) };
    let spinner = spinner("conntrackd between two kernels");
    let measured = lab::conntrackd(&binary, rounds, Duration::from_millis(milliseconds));
    spinner.finish_and_clear();
    match measured {
        Ok(lab::ConntrackdReport { established, new, missing, opened }) => {
            let spread = [("established", established), ("new", new)];
            let spread: std::collections::BTreeMap<_, _> =
                spread.map(|(load, rounds)| (load, Spread::of(rounds))).into();
            let [established, new] = ["established", "new"].map(|load| spread[load].median);
            report.conntrackd = Some(Conntrackd { established, new, missing, opened, spread });
            report.conntrackd_reason = None;
        }
        Err(lab::Error::Unavailable { why }) => report.conntrackd_reason = Some(why),
        Err(error) => return Err(error.into()),
    }
    Ok(())
}
