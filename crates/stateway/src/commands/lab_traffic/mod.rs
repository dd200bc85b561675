//! `stateway lab-traffic`: the end points of the lab's measurements with datagrams and transactions.
//! Each prints one JSON object as its last line.

mod capture;
mod numbered;
mod open_loop;
mod record;
mod transactions;

use clap::Subcommand;

use crate::print::Output;

#[derive(Debug, clap::Args)]
#[command(after_long_help = "Point it at interfaces and hosts of a lab only.")]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Send the frames of a capture at the pace of the capture.
    Send(capture::Args),
    /// Print the datagrams that arrive.
    Record(record::Args),
    /// Send numbered datagrams as fast as the sink acknowledges them.
    Source(numbered::source::Args),
    /// Verify and acknowledge the datagrams of a source.
    Sink(numbered::sink::Args),
    /// Keep requests under way on TCP connections, with both ends in one thread.
    Transactions(transactions::Args),
    /// Send bulk frames at a rate, and probes among them.
    OpenLoop(open_loop::Args),
}

pub fn run(args: &Args, out: &mut Output) -> anyhow::Result<()> {
    match &args.command {
        Command::Send(args) => capture::run(args, out),
        Command::Record(args) => record::run(args, out),
        Command::Source(args) => numbered::source::run(args, out),
        Command::Sink(args) => numbered::sink::run(args, out),
        Command::Transactions(args) => transactions::run(args, out),
        Command::OpenLoop(args) => open_loop::run(args, out),
    }
}
