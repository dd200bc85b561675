//! The `stateway` binary: the gateway and the commands that talk to it.

#![deny(clippy::print_stderr)]

#[macro_use]
mod print;
mod balance_interval;
mod commands;
mod config;
mod errors;
mod log;
mod stop_signals;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory, Parser};

use commands::Command;
use print::Output;

/// Puts tables and buffers into huge pages.
#[global_allocator]
static HEAP: netio::Heap = netio::Heap;

/// Widest line of a help text, characters.
const HELP_WIDTH: usize = 100;

/// A stateful network gateway in userspace: it steers packets to one worker per
/// core, tracks their connections and forwards them.
#[derive(Debug, Parser)]
#[command(
    version,
    propagate_version = true,
    max_term_width = HELP_WIDTH,
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
    let cli = Cli::try_parse_from(words()).unwrap_or_else(|mut error| {
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

/// The words of the command line, those of `stateway conntrack` in the order of this program.
fn words() -> Vec<OsString> {
    let words = std::env::args_os().collect();
    match Cli::command().find_subcommand("conntrack") {
        Some(conntrack) => commands::conntrack::in_order(words, conntrack),
        None => words,
    }
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

    /// Help texts are wrapped when they are shown. A paragraph that has line breaks of its own, or an
    /// example that is too long, would be wrapped a second time.
    #[test]
    fn help_texts_are_wrapped_only_when_they_are_shown() {
        fn check(command: &clap::Command) {
            let text = command.get_after_long_help().map(ToString::to_string).unwrap_or_default();
            let lines: Vec<&str> = text.lines().collect();
            let is_text = |line: &&str| !line.is_empty() && !line.starts_with(' ');
            for pair in lines.windows(2) {
                assert!(
                    !pair.iter().all(is_text),
                    "{}: a paragraph is one line: {pair:?}",
                    command
                );
            }
            for line in lines.iter().filter(|line| !is_text(line)) {
                assert!(line.chars().count() <= HELP_WIDTH, "{}: too long: {line}", command);
            }
            command.get_subcommands().for_each(check);
        }
        check(&Cli::command());
    }

    #[test]
    fn the_commands_of_conntrack_stand_anywhere_among_its_options() {
        let parsed = |words: &[&str]| {
            let words = ["stateway", "conntrack"].iter().chain(words).map(OsString::from).collect();
            let cli = Cli::command();
            let conntrack = cli.find_subcommand("conntrack").unwrap();
            Cli::try_parse_from(commands::conntrack::in_order(words, conntrack))
                .map(|cli| format!("{cli:?}"))
                .map_err(|error| error.to_string())
        };
        for (any, first) in [
            (&["-f", "ipv4", "-L"][..], &["-L", "-f", "ipv4"][..]),
            (&["-p", "tcp", "--dport", "443", "-L"], &["-L", "-p", "tcp", "--dport", "443"]),
            (&["-o", "extended", "-L", "expect"], &["-L", "-o", "extended", "expect"]),
            (&["-o", "extended", "--dump"], &["--dump", "-o", "extended"]),
            (&["-s", "192.0.2.7", "-D", "-p", "udp"], &["-D", "-s", "192.0.2.7", "-p", "udp"]),
            (&["-e", "NEW", "-E"], &["events", "-e", "NEW"]),
            (&["-m", "1", "-U", "-s", "192.0.2.7"], &["-U", "-m", "1", "-s", "192.0.2.7"]),
        ] {
            assert!(parsed(first).is_ok(), "{first:?}: {:?}", parsed(first));
            assert_eq!(parsed(any), parsed(first));
        }
        assert!(parsed(&["-p", "tcp"]).is_err());
        assert!(parsed(&["list", "-p", "tcp", "-L"]).is_err());
        assert!(parsed(&["-L", "-D"]).is_err(), "one command at a time");
    }
}
