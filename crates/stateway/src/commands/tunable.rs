//! `stateway tunable`

use control::Client;
use control::schema::{Done, SetTunable, Tunable, Tunables};
use flow::out_of_range;

use super::remote::{Json, Remote};
use crate::errors::UsageError;
use crate::print::{Align, Output, Table};

#[derive(Debug, clap::Args)]
#[command(after_long_help = "\
Examples:
  stateway tunable list
  stateway tunable get nf_conntrack_max
  stateway tunable set nf_conntrack_tcp_timeout_established 86400

A change holds until the gateway stops, and stays when a new process takes its place. [tunables] in \
its configuration makes it last.")]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// Show all settings, or those whose names contain a text.
    List {
        /// Part of the name.
        part: Option<String>,
        /// Show the meaning of each setting, too.
        #[arg(short, long)]
        verbose: bool,
        #[command(flatten)]
        remote: Remote,
        #[command(flatten)]
        json: Json,
    },
    /// Print the value of one setting.
    Get {
        /// Name, for example nf_conntrack_max.
        name: String,
        #[command(flatten)]
        remote: Remote,
        #[command(flatten)]
        json: Json,
    },
    /// Change one setting.
    Set {
        /// Name, for example nf_conntrack_max; NAME=VALUE works too, as with sysctl.
        name: String,
        /// New value, if it does not follow the name.
        #[arg(allow_negative_numbers = true)]
        value: Option<i128>,
        #[command(flatten)]
        remote: Remote,
    },
}

pub fn run(args: &Args, out: &mut Output) -> anyhow::Result<()> {
    match &args.action {
        Action::List { part, verbose, remote, json } => {
            let mut all: Tunables = remote.client()?.get("/v1/tunables")?;
            all.tunables
                .retain(|tunable| part.as_deref().is_none_or(|part| tunable.name.contains(part)));
            if json.json { out.json(&all) } else { table(&all.tunables, *verbose).print(out) }
        }
        Action::Get { name, remote, json } => {
            let tunable = find(&remote.client()?, name)?;
            if json.json {
                out.json(&Tunables { schema: control::SCHEMA, tunables: vec![tunable] })
            } else {
                out.line(tunable.value)
            }
        }
        Action::Set { name, value, remote } => {
            let (name, value) = assignment(name, *value)?;
            let client = remote.client()?;
            let tunable = find(&client, name)?;
            let fitting = u64::try_from(value).ok();
            let Some(value) = fitting.filter(|it| (tunable.min..=tunable.max).contains(it)) else {
                let Tunable { name, min, max, unit, .. } = tunable;
                return Err(UsageError(out_of_range(&name, value, (min, max), &unit)).into());
            };
            let _: Done =
                client.put(&format!("/v1/tunables/{}", tunable.name), &SetTunable { value })?;
            tell!("{} = {value}, was {}", tunable.name, tunable.value);
            Ok(())
        }
    }
}

/// The setting and its new value, from NAME and VALUE or from NAME=VALUE.
fn assignment(name: &str, value: Option<i128>) -> anyhow::Result<(&str, i128)> {
    match (name.split_once('='), value) {
        (None, Some(value)) => return Ok((name, value)),
        (Some((name, text)), None) => {
            if let Ok(value) = text.trim().parse() {
                return Ok((name.trim(), value));
            }
        }
        _ => {}
    }
    Err(UsageError("give a name and a number: NAME VALUE, or NAME=VALUE".into()).into())
}

/// The tunable with a name, which may have the prefixes that `sysctl` uses.
fn find(client: &Client, name: &str) -> anyhow::Result<Tunable> {
    let short = name.trim_start_matches("net.").trim_start_matches("netfilter.");
    let short = short.trim_start_matches("core.").trim_start_matches("ipv4.");
    let all: Tunables = client.get("/v1/tunables")?;
    all.tunables.into_iter().find(|tunable| tunable.name == short).ok_or_else(|| {
        UsageError(format!("no tunable is named {name:?}; `stateway tunable list` shows all"))
            .into()
    })
}

fn table(tunables: &[Tunable], verbose: bool) -> Table {
    let mut columns = vec![
        ("name", Align::Left),
        ("value", Align::Right),
        ("unit", Align::Left),
        ("default", Align::Right),
    ];
    if verbose {
        columns.push(("meaning", Align::Left));
    }
    let mut table = Table::new(&columns);
    for tunable in tunables {
        let mut row = vec![
            tunable.name.clone(),
            tunable.value.to_string(),
            tunable.unit.clone(),
            tunable.default.to_string(),
        ];
        if verbose {
            row.push(tunable.meaning.clone());
        }
        table.row(row);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_stands_behind_its_name_or_behind_an_equals_sign() {
        for (name, value) in [("a", Some(-7)), ("a=-7", None), ("a = -7", None)] {
            assert_eq!(assignment(name, value).unwrap(), ("a", -7));
        }
        for (name, value) in [("a", None), ("a=", None), ("a=b", None), ("a=1", Some(1))] {
            let error = assignment(name, value).unwrap_err();
            assert!(error.to_string().contains("NAME=VALUE"), "{error}");
        }
    }
}
