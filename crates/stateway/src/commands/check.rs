//! `stateway check`

use std::path::PathBuf;

use conntrack::format::protocol_name;
use control::schema::Tunable;
use steer::FragmentSteering;

use crate::config::Configuration;
use crate::print::Output;

#[derive(Debug, clap::Args)]
#[command(after_long_help = "\
Examples:
  stateway check -c gateway.toml && systemctl restart stateway

Every problem is told with file, line and key; exit code 2 if there is one.")]
pub struct Args {
    /// The configuration.
    #[arg(short, long, value_name = "FILE")]
    config: PathBuf,
}

pub fn run(args: &Args, out: &mut Output) -> anyhow::Result<()> {
    let config = Configuration::load(&args.config)?;
    let cpus = engine::system_cpus();
    config.check_host(&cpus)?;
    out.line(format_args!("{}: in order", config.file.display()))?;
    let workers = match config.workers {
        Some(workers) => workers.to_string(),
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
        out.line(format_args!("interface  {}: {queues}, {cpus}{new}", interface.name))?;
    }
    for (protocol, port, kind) in config.settings.conntrack.helpers.iter() {
        let protocol = protocol_name(protocol);
        out.line(format_args!("helper     {}: {protocol} port {port}", kind.name()))?;
    }
    for tunable in changed(&config) {
        let Tunable { name, value, unit, default, .. } = tunable;
        let unit = if unit.is_empty() { unit } else { format!(" {unit}") };
        out.line(format_args!("tunable    {name} = {value}{unit} (default {default})"))?;
    }
    out.line(format_args!("control    {}", config.socket().display()))
}

/// The tunables that differ from their defaults.
fn changed(config: &Configuration) -> Vec<Tunable> {
    engine::Settings::tunables()
        .filter_map(|tunable| Some((tunable, config.settings.get(tunable.name)?)))
        .filter(|(tunable, value)| *value != tunable.default)
        .map(|(tunable, value)| Tunable::new(tunable, value))
        .collect()
}
