//! `stateway conntrack update`

use control::schema::UpdateConnections;
use flow::declared::LONGEST_TIMEOUT;

use super::filter::FilterArgs;
use super::{Json, ListedTable, Output, Remote, refused, some_affected};

#[derive(Debug, clap::Args)]
pub struct Args {
    /// The table; only connections can be changed.
    #[arg(value_name = "TABLE", default_value = "conntrack")]
    table: ListedTable,
    #[command(flatten)]
    filter: FilterArgs,
    /// New timeout from now on, in seconds.
    #[arg(short, long, value_name = "SECONDS",
          value_parser = clap::value_parser!(u32).range(..=LONGEST_TIMEOUT as i64))]
    timeout: Option<u32>,
    /// Labels to add, by name or number; several with commas.
    #[arg(long, value_name = "LABEL", value_delimiter = ',')]
    label_add: Vec<String>,
    /// Labels to remove first, all of them if none is named.
    #[arg(long, value_name = "LABEL", num_args = 0..=1, value_delimiter = ',')]
    label_del: Option<Vec<String>>,
    #[command(flatten)]
    json: Json,
    #[command(flatten)]
    remote: Remote,
}

pub fn run(args: Args, out: &mut Output) -> anyhow::Result<()> {
    let Args { table, mut filter, timeout, label_add, label_del, json, remote } = args;
    if table == ListedTable::Expect {
        return refused("expectations can not be changed, only connections can");
    }
    let mark = filter.take_mark()?;
    if mark.is_none() && timeout.is_none() && label_add.is_empty() && label_del.is_none() {
        return refused(
            "update needs something to change: --mark MARK[/MASK], --timeout SECONDS, \
             --label-add LABEL or --label-del [LABEL]",
        );
    }
    let changes = UpdateConnections {
        mark: mark.map(|(value, _)| value),
        mark_mask: mark.map(|(_, mask)| mask).filter(|mask| *mask != u32::MAX),
        timeout_s: timeout,
        drop_all_labels: label_del.as_ref().is_some_and(Vec::is_empty),
        drop_labels: label_del.unwrap_or_default(),
        add_labels: label_add,
    };
    let path = filter.query()?.request("/v1/connections");
    some_affected(&remote.client()?.patch(&path, &changes)?, "changed", &json, out)
}
