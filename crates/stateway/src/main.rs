//! The `stateway` binary: the gateway and the commands that talk to it.

#![deny(clippy::print_stderr)]

#[macro_use]
mod print;
mod balance_interval;
mod commands;
mod config;
mod errors;
mod log;

use std::process::ExitCode;

use clap::Parser;
use clap::error::{ContextKind, ErrorKind};

use commands::Command;
use print::Output;

/// Puts tables and buffers into huge pages.
#[global_allocator]
static HEAP: netio::Heap = netio::Heap;

/// A stateful network gateway in userspace: it steers packets to one worker per
/// core, tracks their connections and forwards them.
#[derive(Debug, Parser)]
#[command(
    version,
    propagate_version = true,
    max_term_width = 100,
    after_long_help = "\
Examples:
  stateway check -c gateway.toml       is this configuration right?
  stateway run -c gateway.toml         run the gateway in the foreground
  stateway status --watch              what it is doing
  stateway conntrack -L -p tcp         its TCP connections
  stateway replay traffic.pcap         the same pipeline on a capture, no gateway needed

Exit codes: 0 done, 1 failed, 2 wrong usage or configuration."
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

fn main() -> ExitCode {
    let cli = Cli::try_parse().unwrap_or_else(|mut error| {
        if error.kind() == ErrorKind::UnknownArgument {
            // It advises to give a mistyped option as a value, and no value of ours begins so.
            error.remove(ContextKind::Suggested);
        }
        error.exit()
    });
    let mut out = Output::stdout();
    let result = cli.command.run(&mut out).and_then(|()| out.finish());
    let code = errors::exit_code(result);
    log::end();
    code
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        super::Cli::command().debug_assert();
    }
}
