//! `stateway rules list`

use std::time::Duration;

use anyhow::Context;
use control::schema::ActiveRules;
use ruleset::listing::{self, Selection};

use super::host_rules::remark;
use crate::commands::remote::{Json, Remote};
use crate::print::{Output, duration, things};

#[derive(Debug, clap::Args)]
#[command(after_long_help = "\
Examples:
  stateway rules list
  stateway rules list -a                      with handles, as `nft -a list ruleset`
  stateway rules list inet filter             one table
  stateway rules list inet filter banned      one chain, set, map or other object of it
  diff <(nft -j list ruleset | jq -S .) <(stateway rules list --json | jq -S .)

A remark stands beside each chain of the hooks input and output: only the kernel runs it. One \
stands beside each chain of prerouting that may drop packets: for this host, only the kernel runs it. \
A line LEFT OUT stands above each object that the gateway is without, because `rules load \
--allow-unsupported` left it out; with --json such an object has the field `left_out`, which nft reads \
over. \
Counters are the sum of all workers and of the file. Sets that rules fill show their current \
elements. With --json the output has the form of `nft -j list ruleset`.")]
pub struct Args {
    /// Show only the table of this family: ip, ip6, inet or bridge.
    #[arg(requires = "table")]
    family: Option<String>,
    /// The table's name.
    table: Option<String>,
    /// Show only this chain, set, map or other object of the table.
    object: Option<String>,
    /// Show the handle of each object.
    #[arg(short = 'a', long)]
    handles: bool,
    #[command(flatten)]
    remote: Remote,
    #[command(flatten)]
    json: Json,
}

pub fn run(args: &Args, out: &mut Output) -> anyhow::Result<()> {
    let Args { family, table, object, handles, remote, json } = args;
    let ActiveRules { age_s, confirm_s, ruleset, kernels_chains, .. } =
        remote.client()?.get("/v1/rules")?;
    let Some(document) = ruleset else {
        if json.json {
            return out.json(&serde_json::json!({ "nftables": [] }));
        }
        tell!("the gateway runs no ruleset; `stateway rules load FILE` loads one");
        return Ok(());
    };
    let document = match family.as_deref().zip(table.as_deref()) {
        Some((family, table)) => {
            let selection = Selection { family, table, object: object.as_deref() };
            selection.of(document).with_context(|| missing(&selection))?
        }
        None => document,
    };
    if json.json {
        return out.json(&document);
    }
    if let Some(left) = confirm_s {
        tell!("tried for {} more, unless it is confirmed", things(left, "second"));
    } else if let Some(age) = age_s {
        tell!("loaded {} ago", duration(Duration::from_secs(age)));
    }
    let of_host = |family: &str, table: &str, chain: &str, hook: &str| {
        let place = format!("{family} {table} chain {chain}");
        match kernels_chains.iter().find(|known| known.place == place) {
            Some(chain) => remark(chain),
            // It drops nothing, so nobody misses it.
            None if hook == "prerouting" => "",
            None => "only this host's kernel runs it",
        }
    };
    let text = listing::text(&document, *handles, &of_host);
    text.lines().try_for_each(|line| out.line(line))
}

fn missing(selection: &Selection<'_>) -> String {
    let Selection { family, table, object } = selection;
    let wanted = match object {
        Some(object) => format!("nothing named {object} in a table {family} {table}"),
        None => format!("no table {family} {table}"),
    };
    format!("the ruleset has {wanted}; `stateway rules list` shows all that it has")
}
