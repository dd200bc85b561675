//! `stateway run`

mod claim;
mod connection_limit;
mod notify;
mod pfsync;
mod signals;
mod sync;

use std::collections::hash_map::RandomState;
use std::fmt::{self, Debug};
use std::hash::BuildHasher;
use std::io::IsTerminal;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ::sync::PreSharedKey;
use anyhow::Context;
use control::{ControlSocket, EVERYTHING_PASSES, RuleBook, Server};
use engine::{AfPacket, Gateway, HostGuard, Mode, PortSetup, StartError, Status};
use flow::Shown;
use host_guard::{Guard, GuardHandle};
use netio::afpacket::Claim;
use netio::{PortError, PortId};
use tracing::field::Field;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::format::{Writer, debug_fn};

use crate::commands::rules::host_rules;
use crate::config::{Configuration, Interface};
use crate::errors::UsageError;
use crate::log;
use crate::print::{count, duration, things};
use claim::claim_all;
use notify::Supervisor;
use signals::Signals;

#[derive(Debug, clap::Args)]
#[command(after_long_help = "\
Examples:
  stateway run -c gateway.toml
  stateway run -c gateway.toml --log debug
  stateway run -c gateway.toml --socket /tmp/gw.sock

It runs in the foreground until SIGTERM, SIGINT or SIGHUP, then sends the packets that it holds, \
and exits. It reads its configuration only at the start. If it does not end within 15 s, it is \
ended with exit code 1.

A configuration to begin with:
  [[interface]]
  name = \"lan0\"
  [[interface]]
  name = \"wan0\"")]
pub struct Args {
    /// The configuration.
    #[arg(short, long, value_name = "FILE")]
    config: PathBuf,
    /// Path of the control socket; overrides the configuration.
    #[arg(long, env = "STATEWAY_SOCKET", value_name = "PATH", hide_env_values = true)]
    socket: Option<PathBuf>,
    /// Log on standard error: error, warn, info, debug, or filters such as info,engine=debug.
    #[arg(
        long,
        env = "RUST_LOG",
        value_name = "FILTER",
        default_value = "info",
        hide_env_values = true
    )]
    log: String,
}

pub fn run(args: &Args) -> anyhow::Result<()> {
    start_log(&args.log)?;
    end_on_panic();
    if let Err(error) = netio::raise_descriptor_limit() {
        tracing::warn!("the limit of descriptors can not be raised: {error}");
    }
    // A secret for the hash tables of explanations, which hold values that senders choose.
    let seed = RandomState::new().hash_one(0_u8);
    let (mut config, rules) =
        Configuration::load_to_run(&args.config, &engine::system_cpus(), seed)?;
    let memory = netio::usable_memory().context("the available memory is unknown")?;
    if let Some(line) = connection_limit::fit(&mut config.settings, config.is_limit_given, memory) {
        tracing::warn!("{line}");
    }
    let path = args.socket.clone().unwrap_or_else(|| config.socket());
    // From here on a signal waits until everything runs, and then stops it.
    let mut signals = Signals::new().context("can not wait for signals")?;
    // These come first: a second gateway must not touch the interfaces.
    let socket = ControlSocket::bind(&path)?;
    let claims = claim_all(&config)?;
    let names: Vec<&str> = config.interfaces.iter().map(Interface::own_name).collect();
    let guard = Guard::new(config.interfaces.iter().map(guarded).collect())?;
    let key = config.sync_key()?;
    let gateway = Arc::new(start(&config, claims, guard.handle(), rules.as_ref(), key.as_ref())?);
    if let Some(book) = &rules {
        tell_of(book);
    }
    let (peer, sync) = match &config.sync {
        Some(sync) => {
            let rules = rules.as_ref().map(|book| book.ruleset().fingerprint());
            let (peer, thread) = sync::start(&config, sync, key, rules, gateway.clone())?;
            (Some(peer), Some(thread))
        }
        None => (None, None),
    };
    let server = Server::start(socket, gateway.clone(), peer, rules, log::lost)?;
    let supervisor = Supervisor::from_environment();
    supervisor.ready();
    let workers = gateway.status()?.workers.len();
    tell!(
        "stateway: ready: {} {} with {workers} workers, control socket {}",
        match config.mode {
            Mode::Bridge => "bridging",
            Mode::Routed => "routing between",
        },
        names.join(", "),
        path.display()
    );
    let name = signals.wait();
    supervisor.stopping();
    tracing::info!("{name}: stopping");
    drop(server);
    drop(sync);
    // These were the only other owners, and all requests have ended.
    let gateway = Arc::into_inner(gateway).context("a request still holds the gateway")?;
    // Once it has stopped, it has no connections.
    let connections = gateway.connection_count().unwrap_or_default();
    tell!("stateway: {}", summary(&gateway.stop()?, connections));
    Ok(())
}

/// Logs the things about the rules that people have to know from the start.
fn tell_of(book: &RuleBook) {
    for line in host_rules::lines(book) {
        tracing::info!("{line}");
    }
    if book.passes_everything() {
        tracing::warn!("of the ruleset {EVERYTHING_PASSES}");
    }
    for warning in book.look_at_kernel().warnings() {
        tracing::warn!("{warning}");
    }
}

/// A worker that panics would leave its flows without an owner. So the whole process ends, and a
/// supervisor starts it again.
fn end_on_panic() {
    std::panic::set_hook(Box::new(|panic| log::abort(panic)));
}

fn start_log(filter: &str) -> anyhow::Result<()> {
    let filter = EnvFilter::try_new(filter)
        .map_err(|error| UsageError(format!("--log {filter:?} is not a filter: {error}")))?;
    log::start().context("can not start the thread that writes the log")?;
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(|| log::Log)
        .fmt_fields(debug_fn(shown))
        .with_ansi(std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none())
        .try_init()
        .map_err(anyhow::Error::from_boxed)
}

/// Writes a part of a log line.
fn shown(writer: &mut Writer<'_>, field: &Field, value: &dyn Debug) -> fmt::Result {
    if field.name() != "message" {
        write!(writer, " {field}=")?;
    }
    write!(writer, "{}", Shown(format_args!("{value:?}")))
}

/// An interface of the configuration, as the guard knows it.
fn guarded(interface: &Interface) -> host_guard::Interface {
    let index = interface.link.as_ref().map(|link| link.index);
    host_guard::Interface::new(index, interface.own_name().to_owned(), interface.name.clone())
}

fn start(
    config: &Configuration,
    claims: Vec<Claim>,
    guard: GuardHandle,
    rules: Option<&RuleBook>,
    key: Option<&PreSharedKey>,
) -> anyhow::Result<Gateway> {
    let ports = config.interfaces.iter().zip(claims).zip(0..);
    let ports = ports.map(|((interface, claim), port)| PortSetup {
        rx_queues: interface.rx_queues,
        rps_cpus: interface.rps_cpus,
        supplied_hash_symmetric: interface.supplied_hash_symmetric,
        refuses_new: interface.refuses_new,
        rp_filter: interface.rp_filter,
        policy: interface.policy,
        ..PortSetup::new(
            interface.own_name(),
            AfPacket::new(interface.name.clone(), claim, PortId(port), config.mode),
        )
    });
    let host_guard: Option<Arc<dyn HostGuard>> = Some(Arc::new(guard));
    let rules = rules.map(|book| Arc::new(book.ruleset().clone()));
    let engine = engine::Config { host_guard, rules, ..config.engine(key)? };
    Gateway::start(engine, ports.collect()).map_err(|error| match error {
        StartError::Port(error) => at_its_line(config, error),
        other => other.into(),
    })
}

/// Adds the line where the interface of an error was configured.
fn at_its_line(config: &Configuration, error: PortError) -> anyhow::Error {
    let name = match &error {
        PortError::Gone { interface }
        | PortError::NoInterface { interface }
        | PortError::Claimed { interface }
        | PortError::NotEthernet { interface, .. }
        | PortError::NoPermission { interface }
        | PortError::System { interface, .. } => interface,
        _ => return error.into(),
    };
    let is_meant = |it: &&Interface| [it.own_name(), &it.name].contains(&name.as_str());
    let line = config.interfaces.iter().find(is_meant).map_or(0, |i| i.name_line);
    let place = format!("{}:{line}", config.file.display());
    anyhow::Error::from(error).context(place)
}

fn summary(status: &Status, connections: u64) -> String {
    let totals = status.totals();
    let received: u64 = status.ports.iter().map(|port| port.received.frames).sum();
    format!(
        "stopped after {}: {} packets received, {} sent, {} dropped, {}",
        duration(Duration::from_nanos(status.uptime_ns)),
        count(received),
        count(totals.transmitted),
        count(totals.dropped_total()),
        things(connections, "connection"),
    )
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use netio::LinkState;
    use steer::CpuSet;

    use super::*;

    #[test]
    fn a_port_error_shows_the_line_of_the_interface_under_either_of_its_names() {
        let text = "[[interface]]\nname = \"wan0\"\n[[interface]]\nname = \"lan-port\"\n";
        let file = Path::new("gateway.toml");
        let mut config = Configuration::parse(file, text, &CpuSet::first(4)).unwrap();
        let (index, name, mac) = (3, "lan0".to_owned(), [2, 0, 0, 0, 0, 1]);
        let (mtu, hardware) = (1500, 1);
        let (up, running, point_to_point) = (true, true, false);
        let link = LinkState { index, name, up, running, mtu, mac, point_to_point, hardware };
        config.interfaces[1].link = Some(link);
        for name in ["lan0", "lan-port"] {
            let error = PortError::NoInterface { interface: name.into() };
            let message = format!("{:#}", at_its_line(&config, error));
            assert!(message.starts_with("gateway.toml:4: "), "{message}");
        }
    }
}
