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

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory, Parser};

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
            let words: Vec<String> =
                std::env::args_os().skip(1).map(|it| it.to_string_lossy().into_owned()).collect();
            if let Some(advice) = advice(&words) {
                error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![advice.into()]));
            }
        }
        error.exit()
    });
    let mut out = Output::stdout();
    let result = cli.command.run(&mut out).and_then(|()| out.finish());
    let code = errors::exit_code(result);
    log::end();
    code
}

/// Commands of the kernel's tool that `stateway conntrack` does not have.
const NOT_HERE: [&str; 8] = ["-I", "--create", "-A", "--add", "-R", "--load-file", "-G", "--get"];

/// Advice about an option that is refused, if it stands where it is often written in vain.
fn advice(words: &[String]) -> Option<String> {
    let [first, rest @ ..] = words else { return None };
    if first == "conntrack" && rest.first().is_some_and(|it| NOT_HERE.contains(&it.as_str())) {
        return Some(format!(
            "docs/conntrack.md says why there is no {} here, and what to use in its place",
            rest[0]
        ));
    }
    let option = first.split('=').next().unwrap_or_default();
    let value = match option {
        "--socket" => " PATH",
        "--json" | "-j" => "",
        _ => return None,
    };
    let commands = Cli::command();
    let command = rest.iter().find(|word| commands.find_subcommand(word).is_some());
    let command = command.map_or("COMMAND", String::as_str);
    Some(format!("it goes behind the command: stateway {command} {option}{value}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
