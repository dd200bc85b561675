//! The commands, one file for each.

#[cfg(feature = "bench")]
mod bench;
mod check;
pub mod conntrack;
mod defrag;
#[cfg(feature = "demo")]
mod demo;
mod drops;
mod ha;
#[cfg(feature = "lab")]
mod lab_generate;
#[cfg(feature = "lab")]
mod lab_traffic;
#[cfg(any(feature = "bench", feature = "demo"))]
mod plot;
mod policy;
mod remote;
mod replay;
mod rules;
mod run;
mod status;
mod steer;
mod sync;
mod tunable;
mod upgrade;
mod zone;

use clap::Subcommand;

use crate::print::Output;

/// The command.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run the gateway in the foreground.
    Run(run::Args),
    /// Hand over to a new process, without a lost packet.
    Upgrade(upgrade::Args),
    /// Validate a configuration; change nothing.
    Check(check::Args),
    /// Show what the gateway is doing.
    Status(status::Args),
    /// Show and change the connections that the gateway tracks.
    Conntrack(Box<conntrack::Args>),
    /// Show the datagrams that wait for fragments.
    Defrag(defrag::Args),
    /// Show how many packets were dropped, and for which reasons.
    Drops(drops::Args),
    /// Show and change how packets are spread over the workers.
    Steer(steer::Args),
    /// Check, load, try and list rulesets, and ask them about packets.
    Rules(rules::Args),
    /// Show what a peer has of this gateway's connections.
    Sync(sync::Args),
    /// Take over from a peer, or stand by for it.
    Ha(ha::Args),
    /// One word for a device: how the gateway waits for its packets, and the host's settings.
    Policy(Box<policy::Args>),
    /// Show and change settings, under the kernel's names.
    Tunable(tunable::Args),
    /// Show and change zones.
    Zone(zone::Args),
    /// Send a capture through the pipeline and report.
    Replay(replay::Args),
    /// Show the gateway at work on this machine, in under a minute.
    #[cfg(feature = "demo")]
    Demo(demo::Args),
    /// Measure the gateway beside the designs that it replaces.
    #[cfg(feature = "bench")]
    Bench(bench::Args),
    /// Send frames at full speed; for measurements in a lab.
    #[command(hide = true)]
    #[cfg(feature = "lab")]
    LabGenerate(lab_generate::Args),
    /// Send and receive traffic for tests in a lab.
    #[command(hide = true)]
    #[cfg(feature = "lab")]
    LabTraffic(lab_traffic::Args),
}

impl Command {
    /// Runs the command.
    ///
    /// # Errors
    /// The error to print on standard error.
    pub fn run(self, out: &mut Output) -> anyhow::Result<()> {
        match self {
            Self::Run(args) => run::run(&args),
            Self::Upgrade(args) => upgrade::run(&args, out),
            Self::Check(args) => check::run(&args, out),
            Self::Status(args) => status::run(&args, out),
            Self::Conntrack(args) => conntrack::run(*args, out),
            Self::Defrag(args) => defrag::run(&args, out),
            Self::Drops(args) => drops::run(&args, out),
            Self::Steer(args) => steer::run(&args, out),
            Self::Rules(args) => rules::run(&args, out),
            Self::Sync(args) => sync::run(&args, out),
            Self::Ha(args) => ha::run(&args, out),
            Self::Policy(args) => policy::run(&args, out),
            Self::Tunable(args) => tunable::run(&args, out),
            Self::Zone(args) => zone::run(&args, out),
            Self::Replay(args) => replay::run(&args, out),
            #[cfg(feature = "demo")]
            Self::Demo(args) => demo::run(&args, out),
            #[cfg(feature = "bench")]
            Self::Bench(args) => bench::run(&args, out),
            #[cfg(feature = "lab")]
            Self::LabGenerate(args) => lab_generate::run(&args, out),
            #[cfg(feature = "lab")]
            Self::LabTraffic(args) => lab_traffic::run(&args, out),
        }
    }
}
