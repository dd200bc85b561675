//! `stateway rules check`

use std::path::{Path, PathBuf};

use control::schema::{RuleProblem, RulesReport, RulesSummary};
use control::{EVERYTHING_PASSES, RuleBook, RulesRefused};
use engine::Mode;
use netio::link_named;
use ruleset::Options;

use super::host_rules;
use crate::commands::remote::Json;
use crate::config::{in_json, read_ruleset};
use crate::errors::UsageError;
use crate::print::{Output, things};

#[derive(Debug, clap::Args)]
#[command(after_long_help = "\
Every problem is shown with table, chain and handle, and with the effect of leaving the rule out. \
The exit code is 2 if the ruleset can not be loaded. It is 0 for a ruleset that lets everything \
pass, because none of its chains judges forwarded packets. The first line says so then, and with \
--json the list summary.base_chains is empty.

Messages of nft and of iptables-restore-translate about the file are shown as they are, with its \
lines.")]
pub struct Args {
    /// The ruleset in nft's syntax or JSON, or of iptables-save; `-` for standard input.
    file: PathBuf,
    /// Leave out rules that are not supported, instead of refusing the ruleset. Packets pass that
    /// such a rule would drop.
    #[arg(long)]
    allow_unsupported: bool,
    #[command(flatten)]
    json: Json,
}

pub fn run(args: &Args, out: &mut Output) -> anyhow::Result<()> {
    let Args { file, allow_unsupported, json } = args;
    let document = document(file)?;
    let options = Options { allow_unsupported: *allow_unsupported };
    // No sender can reach these hash tables, so their secret may be known.
    match RuleBook::read(document, options, 0) {
        Ok(book) => {
            let obstacles = book.obstacles(Mode::Routed);
            let mut report = book.report();
            if obstacles.is_empty() {
                let routed_only = book.obstacles(Mode::Bridge).len();
                return if json.json {
                    report.kernels_rules = host_rules::rules(&book);
                    report.kernels_rules.extend(book.look_at_kernel().chains);
                    out.json(&report)
                } else {
                    print(file, &book, &report, routed_only, out)
                };
            }
            let refusal = obstruction(file, obstacles.len());
            if json.json {
                report.loadable = false;
                report.unsupported += obstacles.len();
                report.problems.extend(obstacles);
                out.json(&report)?;
            } else {
                list(&obstacles, out)?;
            }
            out.flush()?;
            Err(refusal.into())
        }
        Err(RulesRefused { report }) => {
            if json.json {
                out.json(&report)?;
            } else {
                list(&report.problems, out)?;
            }
            out.flush()?;
            Err(refusal(file, &report).into())
        }
    }
}

/// The ruleset of a file in JSON.
pub(super) fn document(file: &Path) -> anyhow::Result<Vec<u8>> {
    let document = read_ruleset(file).map_err(|what| UsageError(at(file, &what)))?;
    Ok(in_json(document, file, None)?)
}

/// The reason why a file with problems is not loaded, in one line.
pub(super) fn refusal(file: &Path, report: &RulesReport) -> UsageError {
    let RulesReport { invalid, unsupported, .. } = report;
    let hint = if *invalid == 0 {
        "; --allow-unsupported leaves those out, with the effects listed above"
    } else {
        ""
    };
    UsageError(at(
        file,
        &format!("the ruleset is refused: {invalid} invalid and {unsupported} unsupported{hint}"),
    ))
}

/// The reason why a valid ruleset is not loaded, in one line.
pub(super) fn obstruction(file: &Path, rules: usize) -> UsageError {
    let what = format!(
        "the ruleset is refused: {} something that this gateway does not do, and \
         --allow-unsupported does not leave it out; change the ruleset, or leave it to the kernel",
        if rules == 1 { "1 rule needs".to_owned() } else { format!("{rules} rules need") }
    );
    UsageError(at(file, &what))
}

/// Puts the name of the file in front.
pub(super) fn at(file: &Path, what: &str) -> String {
    let name =
        if file == Path::new("-") { "standard input".into() } else { file.display().to_string() };
    format!("{name}: {what}")
}

/// Warns if no forwarded packet meets a rule: the ruleset of a host that forwards nothing lets
/// every packet through a gateway.
pub(super) fn warn_if_everything_passes(
    summary: &RulesSummary,
    out: &mut Output,
) -> anyhow::Result<()> {
    if !summary.base_chains.is_empty() {
        return Ok(());
    }
    out.line(format_args!("            {EVERYTHING_PASSES}"))
}

/// Prints problems, each with its rule below.
pub(super) fn list(problems: &[RuleProblem], out: &mut Output) -> anyhow::Result<()> {
    for problem in problems {
        out.line(&problem.message)?;
        if let Some(rule) = &problem.rule {
            out.line(format_args!("    {rule}"))?;
        }
    }
    Ok(())
}

fn print(
    file: &Path,
    book: &RuleBook,
    report: &RulesReport,
    routed_only: usize,
    out: &mut Output,
) -> anyhow::Result<()> {
    let RulesReport { unsupported, problems, summary, .. } = report;
    let of = |wanted: &str| -> Vec<RuleProblem> {
        problems.iter().filter(|problem| problem.severity == wanted).cloned().collect()
    };
    let in_order = match unsupported {
        0 => "in order".to_owned(),
        left_out => {
            format!("can be loaded without {}", things(*left_out as u64, "unsupported part"))
        }
    };
    let is_open = if book.passes_everything() { ", but it LETS EVERYTHING PASS" } else { "" };
    out.line(at(file, &format!("{in_order}{is_open}")))?;
    if let Some(summary) = summary {
        print_summary(summary, routed_only, out)?;
    }
    let kernel = book.look_at_kernel();
    for kernels in [host_rules::lines(book), host_rules::lines_of_chains(&kernel.chains)] {
        let Some((title, lines)) = kernels.split_first() else { continue };
        out.title(title)?;
        lines.iter().try_for_each(|line| out.line(line))?;
    }
    for warning in kernel.clashes.iter().chain(&vague_warnings(book)) {
        tell!("warning: {warning}");
    }
    for (severity, title) in [
        ("unsupported", "left out:"),
        ("left_to_kernel", "left to the kernel:"),
        ("note", "worth knowing:"),
    ] {
        let problems = of(severity);
        if !problems.is_empty() {
            out.title(title)?;
            list(&problems, out)?;
        }
    }
    print_per_packet(&report.per_packet_rules, out)
}

/// Warnings about packets that rules translate and that can not be kept from the kernel.
pub fn vague_warnings(book: &RuleBook) -> Vec<String> {
    let ruleset = book.ruleset();
    ruleset.warnings_of(&ruleset.translations())
}

/// The rules that cost the most, the first few of them.
fn print_per_packet(rules: &[RuleProblem], out: &mut Output) -> anyhow::Result<()> {
    const SHOWN: usize = 8;
    if rules.is_empty() {
        return Ok(());
    }
    out.title("packets that meet these rules take the slow path, because:")?;
    list(&rules[..rules.len().min(SHOWN)], out)?;
    match rules.len().saturating_sub(SHOWN) {
        0 => Ok(()),
        more => out.line(format_args!("and {more} more, which --json lists")),
    }
}

fn print_summary(
    summary: &RulesSummary,
    routed_only: usize,
    out: &mut Output,
) -> anyhow::Result<()> {
    let RulesSummary { tables, chains, base_chains, rules, sets, elements, interfaces } = summary;
    out.line(format_args!("tables      {}", tables.join(", ")))?;
    out.line(format_args!("chains      {chains}, {} of them base chains:", base_chains.len()))?;
    for base in base_chains {
        out.line(format_args!("              {base}"))?;
    }
    out.line(match routed_only {
        0 => format!("rules       {rules}"),
        some => format!("rules       {rules}, {some} of them only with mode = \"routed\""),
    })?;
    warn_if_everything_passes(summary, out)?;
    out.line(format_args!("sets        {sets}, {}", things(*elements as u64, "element")))?;
    if interfaces.is_empty() {
        return Ok(());
    }
    out.line(format_args!("interfaces  {}", interfaces.join(", ")))?;
    // Rules know an interface by its own name, not by an alternative one.
    let gone = |name: &&String| {
        link_named(name).is_ok_and(|link| link.is_none_or(|link| link.name != **name))
    };
    let gone: Vec<&str> = interfaces.iter().filter(gone).map(String::as_str).collect();
    if gone.is_empty() {
        return Ok(());
    }
    let gone = gone.join(", ");
    out.line(format_args!(
        "              not on this host: {gone}; rules that ask for them match nothing"
    ))
}
