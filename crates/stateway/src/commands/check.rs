//! `stateway check`

use std::path::PathBuf;

use conntrack::format::protocol_name;
use control::schema::Tunable;
use control::{EVERYTHING_PASSES, RuleBook};
use engine::Policy;
use steer::FragmentSteering;

use crate::commands::rules::{host_rules, vague_warnings};
use crate::config::{Configuration, RulesFile};
use crate::print::{Output, things};

#[derive(Debug, clap::Args)]
#[command(after_long_help = "\
Examples:
  stateway check -c gateway.toml && systemctl restart stateway
  stateway check -c gateway.toml --elsewhere

All problems are shown at once, with file, line and key, including those of the ruleset and of \
this machine. The exit code is 2 if there is one.")]
pub struct Args {
    /// The configuration.
    #[arg(short, long, value_name = "FILE")]
    config: PathBuf,
    /// The gateway is to run on another machine: leave out what only that one can tell. This is
    /// whether its interfaces, CPUs and directories are there, and what its kernel has.
    #[arg(long)]
    elsewhere: bool,
}

pub fn run(args: &Args, out: &mut Output) -> anyhow::Result<()> {
    let cpus = engine::system_cpus();
    let (config, rules) = match args.elsewhere {
        true => Configuration::load_for_elsewhere(&args.config)?,
        false => Configuration::load_to_run(&args.config, &cpus, 0, false)?,
    };
    out.line(format_args!("{}: in order", config.file.display()))?;
    let workers = match config.workers {
        Some(workers) => workers.to_string(),
        None if args.elsewhere => "one per CPU".to_owned(),
        None => format!("one per CPU, now {}", config.worker_count().resolve(&cpus)),
    };
    out.line(format_args!("workers    {workers}"))?;
    out.line(format_args!("buckets    {}", config.buckets.get()))?;
    out.line(format_args!("balancer   {}", config.balance))?;
    let fragments =
        if config.fragments == FragmentSteering::Ordered { "ordered" } else { "spread" };
    out.line(format_args!("fragments  {fragments}"))?;
    for interface in &config.interfaces {
        let cpus = match &interface.rps_cpus {
            Some(cpus) => format!("CPUs {}", cpus.list()),
            None => "any CPU".to_owned(),
        };
        let queues = match interface.rx_queues {
            1 => "1 queue".to_owned(),
            more => format!("{more} queues"),
        };
        let new = if interface.refuses_new { ", new connections refused" } else { "" };
        let (name, own) = (&interface.name, interface.own_name());
        let also =
            if name == own { String::new() } else { format!(" (alternative name of {own})") };
        let policy = match interface.policy {
            Policy::None => String::new(),
            policy => format!(", policy {policy}"),
        };
        out.line(format_args!("interface  {name}{also}: {queues}, {cpus}{policy}{new}"))?;
    }
    for (protocol, port, kind) in config.settings.conntrack.helpers.iter() {
        let protocol = protocol_name(protocol);
        out.line(format_args!("helper     {}: {protocol} port {port}", kind.name()))?;
    }
    if let (Some(file), Some(book)) = (&config.rules, &rules) {
        print_rules(file, book, &config, out)?;
        if !args.elsewhere {
            print_host_rules(book, out)?;
        }
    }
    for tunable in changed(&config) {
        let Tunable { name, value, unit, default, .. } = tunable;
        let unit = if unit.is_empty() { unit } else { format!(" {unit}") };
        out.line(format_args!("tunable    {name} = {value}{unit} (default {default})"))?;
    }
    out.line(format_args!("control    {}", config.socket().display()))
}

fn print_rules(
    file: &RulesFile,
    book: &RuleBook,
    config: &Configuration,
    out: &mut Output,
) -> anyhow::Result<()> {
    let report = book.report();
    let rules = report.summary.map_or(0, |summary| summary.rules) as u64;
    out.line(format_args!("rules      {}: {}", file.path.display(), things(rules, "rule")))?;
    for problem in report.problems {
        out.line(format_args!("             {}", problem.message))?;
    }
    if book.passes_everything() {
        out.line(format_args!("             {EVERYTHING_PASSES}"))?;
    }
    let present: Vec<String> =
        config.interfaces.iter().map(|it| it.own_name().to_owned()).collect();
    for name in book.missing_interfaces(&present) {
        let what = "is no interface of this gateway: rules that ask for it match nothing";
        out.line(format_args!("             {name} {what}"))?;
    }
    Ok(())
}

/// Prints the rules that the kernel of this machine has to carry out.
fn print_host_rules(book: &RuleBook, out: &mut Output) -> anyhow::Result<()> {
    let mut lines = host_rules::lines(book);
    let kernel = book.look_at_kernel();
    lines.extend(host_rules::lines_of_chains(&kernel.chains));
    lines.extend(kernel.remarks);
    lines.extend(vague_warnings(book));
    lines.iter().try_for_each(|line| out.line(format_args!("             {line}")))
}

/// The tunables that differ from their defaults.
fn changed(config: &Configuration) -> Vec<Tunable> {
    engine::Settings::tunables()
        .filter_map(|tunable| Some((tunable, config.settings.get(tunable.name)?)))
        .filter(|(tunable, value)| *value != tunable.default)
        .map(|(tunable, value)| Tunable::new(tunable, value))
        .collect()
}
