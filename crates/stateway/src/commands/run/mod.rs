//! `stateway run`

mod claim;
mod connection_limit;
mod hand_over;
mod host_policies;
mod notify;
mod pfsync;
mod signals;
mod sync;

use std::collections::hash_map::RandomState;
use std::fmt::{self, Debug};
use std::hash::BuildHasher;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ::sync::PreSharedKey;
use anyhow::Context;
use control::{ControlSocket, EVERYTHING_PASSES, RuleBook, Server};
use engine::{AfPacket, Gateway, Mode, PortSetup, StartError, Status};
use flow::Shown;
use host_guard::Guard;
use host_settings::DEFAULT_DIRECTORY;
use netio::afpacket::Claim;
use netio::{PortError, PortId};
use tokio::sync::mpsc::unbounded_channel;
use tracing::field::Field;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::format::{Writer, debug_fn};

use crate::commands::rules::host_rules;
use crate::config::{Configuration, Interface};
use crate::errors::UsageError;
use crate::log;
use crate::print::{count, duration, things};
use claim::claim_all;
use hand_over::{End, Estate, Event, Giver, StartAgain, Taken};
use host_policies::HostPolicies;
use notify::Supervisor;
use signals::Signals;
use sync::Former;

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
    /// Take the place of the gateway that runs on the control socket: its connections go on, and no
    /// packet is lost.
    #[arg(long)]
    take_over: bool,
    /// Take over also if the rules of the configuration are not those that are in force there.
    #[arg(long, requires = "take_over")]
    other_rules: bool,
    /// Path of the control socket; overrides the configuration.
    #[arg(long, env = "STATEWAY_SOCKET", value_name = "PATH", hide_env_values = true)]
    socket: Option<PathBuf>,
    /// Directory of the journals of `host_policy`.
    #[arg(long, value_name = "DIR", env = "STATEWAY_STATE", default_value = DEFAULT_DIRECTORY)]
    state: PathBuf,
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
        Configuration::load_to_run(&args.config, &engine::system_cpus(), seed, args.take_over)?;
    let memory = netio::usable_memory().context("the available memory is unknown")?;
    if let Some(line) = connection_limit::fit(&mut config.settings, config.is_limit_given, memory) {
        tracing::warn!("{line}");
    }
    let path = args.socket.clone().unwrap_or_else(|| config.socket());
    let begun = Begun::new(config, rules, path, args)?;
    begun.run(args)
}

/// A gateway that receives packets, and with which nobody can talk yet.
struct Begun {
    config: Configuration,
    rules: Option<RuleBook>,
    path: PathBuf,
    socket: ControlSocket,
    signals: Signals,
    key: Option<PreSharedKey>,
    gateway: Arc<Gateway>,
    /// Its part in a pair, if another process had it before.
    former: Option<Former>,
    /// The devices, before this process has keepers of policies.
    devices: Vec<host_policies::Before>,
    // Ends after the gateway.
    _guard: Guard,
}

/// A gateway that does not receive packets yet.
struct Prepared {
    socket: ControlSocket,
    guard: Guard,
    key: Option<PreSharedKey>,
    gateway: Arc<Gateway>,
    devices: Vec<host_policies::Before>,
}

impl Begun {
    /// Begins, or goes on for the process that runs.
    fn new(
        mut config: Configuration,
        rules: Option<RuleBook>,
        path: PathBuf,
        args: &Args,
    ) -> anyhow::Result<Self> {
        let takes_over = args.take_over;
        // Once it has taken them, a signal waits until everything runs, and then stops it.
        let take_signals = || Signals::new().context("can not wait for signals");
        let mut signals = (!takes_over).then(take_signals).transpose()?;
        let mut giver = takes_over.then(|| Giver::ask(&path)).transpose()?;
        let mut rules = match (&mut giver, rules) {
            (Some(giver), Some(rules)) => {
                let kept = giver.keep_elements(rules);
                Some(kept.inspect_err(|error| giver.refuse(error))?)
            }
            (_, rules) => rules,
        };
        let prepared = Self::prepare(&mut config, rules.as_ref(), &path, args, giver.as_mut());
        if let (Err(error), Some(giver)) = (&prepared, &mut giver) {
            giver.refuse(error);
        }
        let Prepared { mut socket, guard, key, gateway, devices } = prepared?;
        if let Some(book) = &rules {
            tell_of(book);
        }
        let former = giver.as_ref().and_then(Giver::former);
        let prepare = || {
            signals = Some(take_signals()?);
            Ok(())
        };
        let taken = giver.map(|giver| giver.take(&gateway, &config, &mut rules, prepare));
        let taken = taken.transpose()?;
        let signals = signals.context("nobody waits for signals")?;
        // No other process receives packets from here on.
        socket.own();
        if let Some(taken) = taken {
            tell_of_taken(taken, &gateway)?;
        }
        let _guard = guard;
        Ok(Self { config, rules, path, socket, signals, key, gateway, former, devices, _guard })
    }

    /// Takes the interfaces and starts the workers. Those of a process that takes over receive nothing
    /// yet.
    fn prepare(
        config: &mut Configuration,
        rules: Option<&RuleBook>,
        path: &Path,
        args: &Args,
        mut giver: Option<&mut Giver>,
    ) -> anyhow::Result<Prepared> {
        // These come first: a second gateway must not touch the interfaces.
        let (socket, claims) = match &mut giver {
            Some(giver) => {
                giver.fit(config, rules, args.other_rules)?;
                (giver.control_socket(path)?, giver.claims(config)?)
            }
            None => (ControlSocket::bind(path)?, claim_all(config)?),
        };
        let devices = host_policies::look(&claims, &args.state, args.take_over);
        let guard = Guard::new(config.interfaces.iter().map(guarded).collect())?;
        let key = config.sync_key()?;
        let mut engine = config.engine(key.as_ref())?;
        engine.awaits_queues = args.take_over;
        engine.host_guard = Some(Arc::new(guard.handle()));
        engine.rules = rules.map(|book| Arc::new(book.ruleset().clone()));
        let gateway = Arc::new(start(config, engine, claims)?);
        if let Some(giver) = giver {
            giver.carry_settings(&gateway)?;
        }
        Ok(Prepared { socket, guard, key, gateway, devices })
    }

    /// Runs until a signal or a new process ends it.
    fn run(self, args: &Args) -> anyhow::Result<()> {
        let Self {
            config,
            rules,
            path,
            socket,
            mut signals,
            key,
            gateway,
            former,
            devices,
            _guard,
        } = self;
        let sync = config.sync.as_ref();
        let sync = sync.map(|it| sync::start(&config, it, key, &gateway, former));
        let sync = match sync.transpose() {
            // No other process has its connections any more.
            Err(error) if former.is_some() => {
                tracing::error!("there is no state sync until the next start: {error:#}");
                None
            }
            started => started?,
        };
        let (peer, thread) = sync.unzip();
        let (events, mut coming) = unbounded_channel();
        let control = socket.to_hand_over()?;
        let asked = events.clone();
        // Nobody listens when the gateway ends.
        let successors = Arc::new(move |request| _ = asked.send(Event::Asked(request)));
        let (owner, of_server) = (gateway.clone(), peer.clone());
        let (interfaces, takes_over) = (&config.interfaces, args.take_over);
        let host_policies = HostPolicies::start(interfaces, &devices, &args.state, takes_over)?;
        let told = host_policies.teller();
        let server = Server::start(socket, owner, of_server, rules, successors, log::lost, told)?;
        let supervisor = Supervisor::from_environment();
        supervisor.ready();
        tell_ready(&config, &gateway, &path)?;
        let again = StartAgain {
            config: args.config.clone(),
            socket: path,
            state: args.state.clone(),
            log: args.log.clone(),
        };
        let gate = server.gate();
        let estate =
            Estate { config: &config, gateway: &gateway, gate, control, peer, again, events };
        let end = match estate.until_the_end(thread, &mut signals, &mut coming)? {
            End::Signal(name, _sync) => {
                supervisor.stopping();
                tracing::info!("{name}: stopping");
                drop(server);
                host_policies::End::Stopped
            }
            End::HandedOver(given, started) => {
                if let Some(started) = started {
                    supervisor.left_to(started.process);
                    started.tell(&given);
                }
                server.leave();
                let figures = summary_of(given.connections, given.copied, given.frozen);
                tell!("stateway: handed over to a new process: {figures}");
                host_policies::End::HandedOver
            }
        };
        let host_policies = host_policies.end(end);
        drop(estate);
        // These were the only other owners, and all requests have ended.
        let gateway = Arc::into_inner(gateway).context("a request still holds the gateway")?;
        // Once it has stopped, it has no connections.
        let connections = gateway.connection_count().unwrap_or_default();
        tell!("stateway: {}", summary(&gateway.stop()?, connections));
        host_policies
    }
}

/// Says that the gateway runs.
fn tell_ready(config: &Configuration, gateway: &Gateway, path: &Path) -> anyhow::Result<()> {
    let names: Vec<&str> = config.interfaces.iter().map(Interface::own_name).collect();
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
    Ok(())
}

/// Owns what was taken over, and says so.
fn tell_of_taken(taken: Taken, gateway: &Gateway) -> anyhow::Result<()> {
    let (copied, frozen) = (taken.copied, taken.frozen);
    let connections = taken.adopt(gateway)?;
    tell!("stateway: taken over: {}", summary_of(connections, copied, frozen));
    Ok(())
}

/// The figures of a hand-over.
fn summary_of(connections: u64, copied: Duration, frozen: Duration) -> String {
    format!(
        "{}, copied in {:.3} s, nothing forwarded for {:.1} ms",
        things(connections, "connection"),
        copied.as_secs_f64(),
        frozen.as_secs_f64() * 1e3,
    )
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
    engine: engine::Config,
    claims: Vec<Claim>,
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
            AfPacket::new(interface.name.clone(), claim, PortId(port), config.mode)
                .with_lanes(interface.lanes.clone()),
        )
    });
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
