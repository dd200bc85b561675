//! `stateway rules load`, `confirm` and `rollback`

use std::path::PathBuf;

use control::schema::{Done, LoadedRules, NotKept, RuleProblem, RulesSummary};
use control::{ClientError, RuleBook, RulesRefused};
use engine::Mode;
use ruleset::Options;

use super::check::{document, list, obstruction, refusal, warn_if_everything_passes};
use super::host_rules;
use crate::commands::remote::Remote;
use crate::print::{Output, things};

#[derive(Debug, clap::Args)]
#[command(after_long_help = "\
Examples:
  stateway rules load rules.nft
  stateway rules load rules.nft --confirm 60 && stateway rules confirm
  stateway rules load rules.nft --keep-elements    with the addresses that were banned meanwhile

The ruleset replaces the one before at once: either of them judges a packet, never both. \
Connections stay. If anything is wrong with it, the one before stays, and the exit code is 2.

With --confirm the ruleset is on trial. Unless `stateway rules confirm` comes in time, the one \
before returns, even if this command has ended or its connection is lost. Sets of the one before \
then have the elements again that they had when the trial began; its counters begin again as in its \
file. During a trial no other ruleset can be loaded.

A loaded ruleset holds until the gateway stops; [rules] in its configuration makes it last. A \
ruleset on trial is gone when the gateway stops.")]
pub struct Args {
    /// The ruleset in nft's syntax or JSON, or of iptables-save; `-` for standard input.
    file: PathBuf,
    /// Restore the previous ruleset after this many seconds, unless this one is confirmed.
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    confirm: Option<u64>,
    /// Leave out rules that are not supported, instead of refusing the ruleset. Packets pass that
    /// such a rule would drop.
    #[arg(long)]
    allow_unsupported: bool,
    /// Keep the elements that sets have got since they were loaded, by packets or by `rules
    /// element`, in sets of the same name and type.
    #[arg(long)]
    keep_elements: bool,
    #[command(flatten)]
    remote: Remote,
}

pub fn run(args: &Args, out: &mut Output) -> anyhow::Result<()> {
    let Args { file, confirm, allow_unsupported, keep_elements, remote } = args;
    let document = document(file)?;
    // This check comes first, to show all problems with their rules before anything is sent.
    let options = Options { allow_unsupported: *allow_unsupported };
    let book = match RuleBook::read(document, options, 0) {
        Ok(book) => book,
        Err(RulesRefused { report }) => {
            list(&report.problems, out)?;
            out.flush()?;
            return Err(refusal(file, &report).into());
        }
    };
    let mut obstructed = |obstacles: &[RuleProblem]| -> anyhow::Result<()> {
        list(obstacles, out)?;
        out.flush()?;
        Err(obstruction(file, obstacles.len()).into())
    };
    let obstacles = book.obstacles(Mode::Routed);
    if !obstacles.is_empty() {
        return obstructed(&obstacles);
    }
    let confirm_s = confirm.map(|seconds| format!("confirm_s={seconds}&")).unwrap_or_default();
    let path = format!(
        "/v1/rules?{confirm_s}allow_unsupported={allow_unsupported}&keep_elements={keep_elements}"
    );
    let gateway = remote.client()?;
    let loaded: LoadedRules = match gateway.put_bytes(&path, book.document().text().clone()) {
        Ok(loaded) => loaded,
        Err(error) => {
            // Only the gateway knows its mode, and only this command has the rules.
            let obstacles = book.obstacles(Mode::Bridge);
            return match (&error, obstacles.first()) {
                (ClientError::BadRequest(body), Some(first))
                    if body.what.starts_with(&first.message) =>
                {
                    obstructed(&obstacles)
                }
                _ => Err(error.into()),
            };
        }
    };
    list(&loaded.problems, out)?;
    host_rules::lines_of(&gateway, &book)?.iter().try_for_each(|line| out.line(line))?;
    host_rules::lines_of_chains(&loaded.kernels_chains)
        .iter()
        .try_for_each(|line| out.line(line))?;
    for name in &loaded.missing_interfaces {
        let what = "is no interface of this gateway: rules that ask for it match nothing";
        out.line(format_args!("{name} {what}"))?;
    }
    for warning in &loaded.warnings {
        tell!("warning: {warning}");
    }
    for NotKept { family, table, set, elements, why } in &loaded.not_kept {
        let elements = things(*elements as u64, "element");
        tell!("warning: set {family} {table} {set}: {elements} not kept: {why}");
    }
    if let Some(summary) = &loaded.summary {
        warn_if_everything_passes(summary, out)?;
    }
    let rules = loaded.summary.map_or(0, |RulesSummary { rules, .. }| rules) as u64;
    match loaded.confirm_s {
        None => tell!("loaded: {}", things(rules, "rule")),
        Some(seconds) => tell!(
            "loaded for {}: {}; `stateway rules confirm` keeps them",
            things(seconds, "second"),
            things(rules, "rule")
        ),
    }
    Ok(())
}

/// Keeps the ruleset on trial.
pub fn confirm(remote: &Remote) -> anyhow::Result<()> {
    let _: Done = remote.client()?.post("/v1/rules/confirm", &())?;
    tell!("the ruleset stays");
    Ok(())
}

/// Resets counters and quotas to zero.
pub fn reset(remote: &Remote) -> anyhow::Result<()> {
    let Done { affected, .. } = remote.client()?.post("/v1/rules/reset", &())?;
    tell!("counters and quotas begin at zero: {affected}");
    Ok(())
}

/// Ends the trial at once.
pub fn roll_back(remote: &Remote) -> anyhow::Result<()> {
    let _: Done = remote.client()?.post("/v1/rules/rollback", &())?;
    tell!("the ruleset before is back");
    Ok(())
}
