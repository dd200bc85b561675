//! `stateway upgrade`

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use control::schema::{HandedOver, Upgrade};

use super::remote::{Json, Remote};
use crate::print::{Output, things};

/// The longest wait: the new process may have to load a long ruleset and many connections.
const PATIENCE: Duration = Duration::from_secs(300);

#[derive(Debug, clap::Args)]
#[command(after_long_help = "\
Examples:
  stateway upgrade                                 hand over to a process of this program
  stateway upgrade --program /opt/new/stateway     hand over to a process of that one

The running gateway starts the program with its own configuration file, and ends when the new process \
has taken its place. Connections go on, and no packet is lost: they wait for some milliseconds in the \
kernel. The configuration is read anew, so workers, buckets and tunables may change. A setting that was \
changed while the gateway ran stays so if the file says the same as before; a warning names each that \
does not. The interfaces, their receive queues, the mode and the rules have to be those that are in \
force. If anything does not fit, the running gateway goes on as before. docs/high-availability.md says what is carried.")]
pub struct Args {
    /// The program of the new process [default: this one].
    #[arg(long, value_name = "PATH")]
    program: Option<PathBuf>,
    /// Hand over also if the rules of the configuration are not those that are in force.
    #[arg(long)]
    other_rules: bool,
    #[command(flatten)]
    remote: Remote,
    #[command(flatten)]
    json: Json,
}

pub fn run(args: &Args, out: &mut Output) -> anyhow::Result<()> {
    let program = match &args.program {
        Some(program) => std::path::absolute(program).context("the path of the program")?,
        None => std::env::current_exe().context("the path of this program is unknown")?,
    };
    let client = args.remote.client()?;
    let upgrade = Upgrade { program, other_rules: args.other_rules };
    let done: HandedOver = client.post_patiently("/v1/upgrade", &upgrade, PATIENCE)?;
    if args.json.json {
        return out.json(&done);
    }
    for what in &done.not_carried {
        tell!("warning: {what}");
    }
    out.line(format_args!(
        "process {} has taken over {}, copied in {:.3} s, nothing forwarded for {:.1} ms",
        done.process,
        things(done.connections, "connection"),
        done.copied_s,
        done.frozen_ms,
    ))
}
