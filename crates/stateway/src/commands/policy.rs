//! `stateway policy`

mod explain;
mod gateway;
pub mod hold;
mod keeper;
mod probes;
mod trial;

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use host_settings::{DEFAULT_DIRECTORY, Device, DeviceError, Done, Error, Keeper, Session, Store};
use netpolicy::{Action, Identity, LeftAlone, Plan, Policy, Request, Setting, Value};
use serde::Serialize;
use steer::CpuSet;

use super::remote::Json;
use crate::errors::UsageError;
use crate::print::{Align, Output, Table, things};
use crate::stop_signals::StopSignals;

#[derive(Debug, clap::Args)]
#[command(after_long_help = "\
A policy is one word in place of a page of settings of this host for a network device:

  bulk      most bytes a second: packets gather for up to 64 us
  cpu       least CPU time for each packet: they gather for up to 256 us
  latency   shortest delay: each packet is served at once
  mix       a third of the queues, at least one, for short delay, the others for throughput
  none      no policy: every setting goes back to what was there first

`show`, `set` and `explain` are about a running gateway: how its workers wait for packets of a device, and how \
many they take at once.

Examples:
  stateway policy show                   the policies of the gateway's devices
  stateway policy set lan0 latency       its workers stay awake between packets of lan0
  stateway policy explain udp 192.0.2.9:5004 198.51.100.7:5004 in lan0
                                         which service does this packet get, and why?
  stateway policy plan eth0 latency      what would change, and why; nothing is written
  stateway policy apply eth0 latency     exactly that
  stateway policy apply eth0 cpu --trial 60s   only if it is better than before
  stateway policy verify eth0            does it still hold, or has another program written?
  stateway policy rollback eth0          put back what was there
  stateway policy hold eth0 latency      apply it, follow the device, put back at the end

A journal keeps the values that were there first. A value that another program has set since is \
left alone and named. A restart of the machine ends all settings, and their journals with them. \
docs/policy.md has more.")]
pub struct Args {
    #[command(subcommand)]
    action: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Show the policy of a device of the gateway, or of all, and what the workers do.
    Show(gateway::Show),
    /// Set the policy of a device of the gateway until it stops; the configuration makes it last.
    Set(gateway::Set),
    /// Explain how a device of the gateway serves its packets, or one of them.
    Explain(explain::Args),
    /// Show what a policy would write, with reasons; change nothing.
    Plan {
        #[command(flatten)]
        wanted: Wanted,
        /// Show the place in the kernel of each setting, too.
        #[arg(short, long)]
        verbose: bool,
        #[command(flatten)]
        json: Json,
    },
    /// Bring a device to a policy: make the writes that `plan` shows.
    Apply {
        #[command(flatten)]
        wanted: Wanted,
        /// Leave out settings that the kernel refuses. Otherwise such a setting is an error, and the
        /// device stays as it was.
        #[arg(long)]
        skip_refused: bool,
        /// Measure the device for this time, and again with the policy; then go back unless that is
        /// better, or confirmed.
        #[arg(long, value_name = "TIME", value_parser = trial::length, conflicts_with = "json")]
        trial: Option<Duration>,
        /// A host behind the device whose echo replies tell the delay in a trial.
        #[arg(long, value_name = "ADDRESS", requires = "trial")]
        probe: Option<IpAddr>,
        #[command(flatten)]
        json: Json,
    },
    /// Keep a policy that is on trial.
    Confirm {
        #[command(flatten)]
        place: Place,
    },
    /// Bring a device to a policy and keep it there until this command ends; then put everything
    /// back, also if the command is killed.
    Hold {
        #[command(flatten)]
        wanted: Wanted,
        /// Leave out settings that the kernel refuses.
        #[arg(long)]
        skip_refused: bool,
    },
    /// The process that `hold` starts.
    #[command(hide = true)]
    Keeper(keeper::Args),
    /// Compare a device with its policy; the exit code is 1 if they differ.
    Verify {
        #[command(flatten)]
        place: Place,
        #[command(flatten)]
        json: Json,
    },
    /// Put back what was there before the first policy, unless another program has changed it.
    Rollback {
        #[command(flatten)]
        place: Place,
        #[command(flatten)]
        json: Json,
    },
}

#[derive(Debug, clap::Args)]
struct Place {
    /// The device, such as eth0.
    device: String,
    /// Directory of the journals.
    #[arg(long, value_name = "DIR", env = "STATEWAY_STATE", default_value = DEFAULT_DIRECTORY)]
    state: PathBuf,
}

#[derive(Debug, clap::Args)]
struct Wanted {
    #[command(flatten)]
    place: Place,
    /// none, bulk, cpu, latency or mix.
    policy: Policy,
    /// The CPUs that are to serve the device, such as 2 or 0-3,8. Default: all that are online.
    #[arg(long, value_name = "LIST", value_parser = cpus)]
    cpus: Option<CpuSet>,
    /// A setting that is to stay as it was found, by the name that `plan` shows. May be repeated.
    #[arg(long, value_name = "SETTING")]
    without: Vec<Setting>,
}

/// Reads a list of CPUs. A number alone is a CPU, and a mask only with `0x` or `mask:` before it.
fn cpus(text: &str) -> Result<CpuSet, String> {
    let text = text.trim();
    let number = text.parse::<usize>();
    let has_form = ["0x", "0X", "mask:", "list:", "cpus:"].iter().any(|it| text.starts_with(it));
    let set = match number {
        Ok(cpu) if cpu >= steer::MAX_CPUS => {
            return Err(format!("this host has no CPU {cpu}; their numbers begin at 0"));
        }
        _ if has_form => text.parse::<CpuSet>(),
        _ => CpuSet::of_list(text),
    };
    set.map_err(|error| error.to_string())
}

/// An answer as JSON.
#[derive(Serialize)]
struct Report<'a> {
    schema: u32,
    device: &'a str,
    #[serde(flatten)]
    request: &'a Request,
    in_force: bool,
    actions: Vec<Written<'a>>,
    left: &'a [LeftAlone],
    by_others: Vec<Setting>,
}

/// A write, with the value that it left.
#[derive(Serialize)]
struct Written<'a> {
    #[serde(flatten)]
    action: &'a Action,
    #[serde(skip_serializing_if = "Option::is_none")]
    applied: Option<Value>,
}

impl<'a> Report<'a> {
    fn new(
        session: &'a Session,
        request: &'a Request,
        plan: &'a Plan,
        values: &[Option<Value>],
    ) -> Self {
        let value = |at| values.get(at).copied().flatten();
        let actions = plan.actions.iter().enumerate();
        let is_applied = values.iter().flatten().count() == plan.actions.len();
        Self {
            schema: control::SCHEMA,
            device: &session.device().identity().name,
            request,
            in_force: is_applied && plan.by_others.is_empty(),
            actions: actions.map(|(at, action)| Written { action, applied: value(at) }).collect(),
            left: &plan.left,
            by_others: plan.by_others.iter().copied().collect(),
        }
    }
}

pub fn run(args: &Args, out: &mut Output) -> anyhow::Result<()> {
    match &args.action {
        Command::Show(args) => gateway::show(args, out),
        Command::Set(args) => gateway::set(args, out),
        Command::Explain(args) => explain::run(args, out),
        Command::Plan { wanted, verbose, json } => plan(wanted, *verbose, json, out),
        Command::Apply { wanted, skip_refused, trial: Some(time), probe, .. } => {
            trial::run(wanted, *skip_refused, *time, *probe, out)
        }
        Command::Confirm { place } => confirm(place),
        Command::Apply { wanted, skip_refused, json, .. } => {
            apply(&wanted.place, &wanted.request(), *skip_refused, json, out)
        }
        Command::Hold { wanted, skip_refused } => hold_until_stopped(wanted, *skip_refused),
        Command::Keeper(args) => keeper::run(args),
        Command::Verify { place, json } => verify(place, json, out),
        Command::Rollback { place, json } => rollback(place, json, out),
    }
}

impl Wanted {
    fn request(&self) -> Request {
        let without = self.without.iter().copied().collect();
        Request { cpus: self.cpus, without, ..Request::new(self.policy) }
    }
}

impl Place {
    fn store(&self) -> Store {
        Store::new(&self.state)
    }

    fn session(&self) -> anyhow::Result<Session> {
        #[allow(unused_mut, reason = "not every build has the lab")]
        let mut session = Session::open(&self.device, self.store()).map_err(usage)?;
        #[cfg(feature = "lab")]
        session.at_each_step(fail_as_planned);
        if let Some(difference) = session.stale() {
            tell!("the journal of {} is not used: {difference}", self.device);
        }
        Ok(session)
    }
}

/// Errors of the request have another exit code than those of the system.
fn usage(error: Error) -> anyhow::Error {
    match error {
        Error::Plan(_) | Error::Device(DeviceError::Missing { .. }) => {
            UsageError(error.to_string()).into()
        }
        error => error.into(),
    }
}

fn plan(wanted: &Wanted, verbose: bool, json: &Json, out: &mut Output) -> anyhow::Result<()> {
    let mut session = wanted.place.session()?;
    let request = wanted.request();
    let plan = session.plan(&request).map_err(usage)?;
    if json.json {
        return out.json(&Report::new(&session, &request, &plan, &[]));
    }
    if !plan.actions.is_empty() {
        table(&plan, &[], verbose).print(out)?;
    }
    left(&plan).print_section(out)?;
    let device = &session.device().identity().name;
    match plan.actions.len() as u64 {
        0 => tell!("{device}: nothing to write for {}", request.policy),
        writes => tell!(
            "{device}: {} for {}; `stateway policy apply` makes them",
            things(writes, "write"),
            request.policy
        ),
    }
    Ok(())
}

fn apply(
    place: &Place,
    request: &Request,
    skips_refused: bool,
    json: &Json,
    out: &mut Output,
) -> anyhow::Result<()> {
    let mut session = place.session()?;
    place.store().wait_for_keeper(session.device().identity())?;
    let Done { plan, values, failures } = session.apply(request, skips_refused).map_err(usage)?;
    let device = session.device().identity().name.clone();
    if json.json {
        out.json(&Report::new(&session, session.request(), &plan, &values))?;
    } else {
        if !plan.actions.is_empty() {
            table(&plan, &values, false).print(out)?;
        }
        left(&plan).print_section(out)?;
    }
    if !failures.is_empty() {
        out.flush()?;
        anyhow::bail!(
            "{device}: not everything could be put back: {}; the journal keeps the values that were \
             there first, and `stateway policy rollback {device}` tries again",
            Error::list(&failures)
        );
    }
    if json.json {
        return Ok(());
    }
    match request.policy {
        Policy::None => tell!("{}", no_policy(&device, &plan)),
        policy => tell!("{device}: {policy}; `stateway policy rollback {device}` takes it back"),
    }
    Ok(())
}

/// The end of all policies in words.
fn no_policy(device: &str, plan: &Plan) -> String {
    match plan.left.len() as u64 {
        0 => format!("{device}: no policy, its settings are as they were found"),
        left => format!(
            "{device}: no policy; {} left alone, the others are as they were found",
            things(left, "setting")
        ),
    }
}

fn confirm(place: &Place) -> anyhow::Result<()> {
    let device = Device::open(&place.device).map_err(|error| usage(error.into()))?;
    let (store, device) = (place.store(), device.identity());
    // A trial whose processes have all died has left a file.
    let is_tried = store.keeper(device)? == Keeper::Works && store.confirm_trial(device);
    anyhow::ensure!(is_tried, "no policy of {} is on trial", device.name);
    tell!("{}: confirmed", device.name);
    Ok(())
}

fn hold_until_stopped(wanted: &Wanted, skips_refused: bool) -> anyhow::Result<()> {
    let Place { device, state, .. } = &wanted.place;
    let request = wanted.request();
    // A request that can not be met ends here.
    wanted.place.session()?.plan(&request).map_err(usage)?;
    let (device, state) = (device.clone(), state.clone());
    let (waits, then, node) = (false, None, None);
    let asked = hold::Asked { device, state, request, skips_refused, waits, then, node };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut signals = StopSignals::new()?;
        let stop = async {
            signals.next().await;
            hold::Leave::PutBack
        };
        hold::hold(&asked, |heard| tell!("{}", heard.line()), stop).await
    })
}

fn verify(place: &Place, json: &Json, out: &mut Output) -> anyhow::Result<()> {
    let mut session = place.session()?;
    let request = session.request().clone();
    let plan = session.plan(&request).map_err(usage)?;
    let device = session.device().identity().name.clone();
    if json.json {
        out.json(&Report::new(&session, &request, &plan, &[]))?;
    } else if request.policy == Policy::None && plan.is_in_force() {
        let words: Vec<&str> = Policy::ALL[1..].iter().map(|it| it.name()).collect();
        out.line(format_args!("{device}: no policy applies; there are {}", words.join(", ")))?;
    } else if plan.is_in_force() {
        out.line(format_args!("{device}: {} is in force", request.policy))?;
    } else {
        if !plan.actions.is_empty() {
            table(&plan, &[], false).print(out)?;
        }
        left(&plan).print_section(out)?;
    }
    if plan.is_in_force() {
        return Ok(());
    }
    out.flush()?;
    anyhow::bail!(
        "{device} differs from {}: {} to make, {} set by other programs",
        request.policy,
        things(plan.actions.len() as u64, "write"),
        things(plan.by_others.len() as u64, "setting")
    )
}

fn rollback(place: &Place, json: &Json, out: &mut Output) -> anyhow::Result<()> {
    let (store, name) = (place.store(), place.device.as_str());
    let today = match Device::open(name) {
        Ok(device) => Some(device.identity().clone()),
        Err(DeviceError::Missing { .. }) => None,
        Err(error) => return Err(error.into()),
    };
    let mut former = store.named(netio::network_cookie()?, name);
    former.retain(|device| Some(device.node) != today.as_ref().map(|today| today.node));
    for device in &former {
        find_former(&store, device)?;
    }
    anyhow::ensure!(
        today.is_some() || former.is_empty(),
        "{name} is not in this network namespace; nothing was put back"
    );
    apply(place, &Request::new(Policy::None), false, json, out)
}

/// Says by which name a device is to be found now. A device that is not here may be in another
/// network namespace, and come back. So its journal stays while the machine runs.
fn find_former(store: &Store, device: &Identity) -> anyhow::Result<()> {
    let Identity { name, index, boot, .. } = device;
    if *boot != host_settings::boot_id()? {
        let _lock = store.lock()?;
        store.remove(device)?;
        tell!("the journal of {name} was of an earlier run of this machine, and is removed");
    } else if let Some(now) = host_settings::name_of(device.node)? {
        tell!("the device that was {name} is {now} now: `stateway policy rollback {now}`");
    } else {
        tell!(
            "the {name} that had number {index} is not in this network namespace. If it has moved, \
             run `stateway policy rollback` where it is. If it is gone, its settings are gone with \
             it: delete {}",
            store.path(device).display()
        );
    }
    Ok(())
}

/// The writes of a plan, with the values that they have left.
fn table(plan: &Plan, values: &[Option<Value>], verbose: bool) -> Table {
    let mut columns = vec![
        ("setting", Align::Left),
        ("old", Align::Right),
        ("new", Align::Right),
        ("risk", Align::Left),
        ("reason", Align::Left),
    ];
    if verbose {
        columns.push(("interface", Align::Left));
    }
    let mut table = Table::new(&columns);
    for (at, action) in plan.actions.iter().enumerate() {
        let reason = match values.get(at) {
            Some(None) => format!("not written; {}", action.reason),
            Some(Some(value)) if *value != action.new => {
                format!("applied as {value}; {}", action.reason)
            }
            _ => action.reason.clone(),
        };
        let mut row = vec![
            action.setting.to_string(),
            action.old.map_or("-".into(), |old| old.to_string()),
            action.new.to_string(),
            action.risk.name().to_owned(),
            reason,
        ];
        if verbose {
            row.push(action.interface.clone());
        }
        table.row(row);
    }
    table
}

fn left(plan: &Plan) -> Table {
    let mut table = Table::new(&[("left alone", Align::Left), ("because", Align::Left)]);
    for LeftAlone { id, reason } in &plan.left {
        table.row([id.clone(), reason.clone()]);
    }
    table
}

/// Before or after a write whose number the environment names, runs the command that it names, or
/// ends the process; for tests.
#[cfg(feature = "lab")]
fn fail_as_planned() {
    use std::sync::atomic::{AtomicUsize, Ordering};
    static STEPS: AtomicUsize = AtomicUsize::new(0);
    let Ok(planned) = std::env::var("STATEWAY_LAB_POLICY_STEP") else { return };
    if planned.parse() != Ok(STEPS.fetch_add(1, Ordering::Relaxed)) {
        return;
    }
    match std::env::var("STATEWAY_LAB_POLICY_COMMAND") {
        Ok(command) => {
            let done = std::process::Command::new("sh").args(["-c", &command]).status();
            assert!(done.is_ok_and(|done| done.success()), "{command}");
        }
        Err(_) => std::process::exit(70),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_alone_is_a_cpu() {
        assert_eq!(cpus("1").unwrap(), CpuSet::from_iter([1]));
        assert_eq!(cpus("0-2,5").unwrap(), CpuSet::from_iter([0, 1, 2, 5]));
        assert!(cpus("1-").is_err());
        assert_eq!(cpus("0x3").unwrap(), CpuSet::first(2));
        for far in ["1024", "9999"] {
            assert_eq!(
                cpus(far).unwrap_err(),
                format!("this host has no CPU {far}; their numbers begin at 0")
            );
        }
        assert!(cpus("0,9999").unwrap_err().contains("9999"));
        assert!(cpus("ff").is_err());
    }
}
