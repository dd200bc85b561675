//! The order of arguments, in which the kernel's tool leaves people free: its commands are options
//! among others.

use std::ffi::OsString;

use clap::Command;

/// Puts the command of `stateway conntrack` in front of its options, wherever it stands among the
/// words of a command line. `conntrack` describes the commands.
pub fn in_order(mut words: Vec<OsString>, conntrack: &Command) -> Vec<OsString> {
    let [_, command, rest @ ..] = words.as_mut_slice() else { return words };
    if command == "conntrack"
        && let Some(first) = rest.first()
        && conntrack.find_subcommand(first).is_none()
        && let Some(at) = rest.iter().position(|word| is_command(word, conntrack))
    {
        rest[..=at].rotate_right(1);
    }
    words
}

/// True for a command that is written as an option, such as `-L`.
fn is_command(word: &OsString, conntrack: &Command) -> bool {
    let Some(word) = word.to_str() else { return false };
    conntrack.get_subcommands().any(|command| match word.strip_prefix("--") {
        Some(long) => command.get_long_flag() == Some(long),
        None => word.strip_prefix('-').is_some_and(|short| {
            command.get_short_flag().is_some_and(|flag| short.chars().eq([flag]))
        }),
    })
}
