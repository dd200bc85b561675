//! What of a configuration depends on the machine.

use std::path::Path;

use engine::Mode;
use netio::link_state;
use steer::{InterfaceCpus, PlacementError};

use super::{Configuration, Problem};

/// What keeps this machine from running a configuration, by line. What several keys say together
/// is looked at if they are right.
pub(super) fn problems(
    config: &Configuration,
    cpus: &[usize],
    are_keys_right: bool,
) -> Vec<Problem> {
    let mut problems = Vec::new();
    if are_keys_right {
        problems.extend(too_few_interfaces(config));
        problems.extend(placement(config, cpus));
    }
    problems.extend(config.interfaces.iter().filter_map(|interface| {
        let what = obstacle(&interface.name)?;
        Some(config.problem(interface.name_line, "interface.name", what))
    }));
    let directory = config.socket.as_deref().and_then(Path::parent);
    if let Some(directory) = directory.filter(|directory| !directory.is_dir()) {
        let what = format!("there is no directory {}", directory.display());
        problems.push(config.problem(config.socket_line, "control.socket", what));
    }
    problems.sort_by_key(|problem| problem.line);
    problems
}

/// That there are fewer than the mode needs, if so.
fn too_few_interfaces(config: &Configuration) -> Option<Problem> {
    let (needed, what) = match config.mode {
        Mode::Bridge => (2, "a bridge needs two [[interface]] tables or more, each with a name"),
        Mode::Routed => (1, "a router needs an [[interface]] table for each link, with a name"),
    };
    let are_too_few = config.interfaces.len() < needed;
    are_too_few.then(|| config.problem(0, "interface", what.to_owned()))
}

/// Why no worker may own what arrives, if so.
fn placement(config: &Configuration, cpus: &[usize]) -> Option<Problem> {
    let restricted: Vec<InterfaceCpus> = config
        .interfaces
        .iter()
        .filter_map(|i| Some(InterfaceCpus { name: i.name.clone(), cpus: i.rps_cpus? }))
        .collect();
    let workers = config.worker_count().resolve(cpus);
    let error = engine::place(&restricted, workers, cpus, config.buckets).err()?;
    let place = match &error {
        PlacementError::NoWorkerOnCpus { interface, .. }
        | PlacementError::Disjoint { interface, .. } => {
            config.interfaces.iter().find(|i| i.name == *interface)
        }
        PlacementError::NoWorkers => None,
    };
    Some(match place {
        Some(at) => config.problem(at.rps_cpus_line, "interface.rps_cpus", error.to_string()),
        None => config.problem(0, "gateway.workers", error.to_string()),
    })
}

/// Why the interface can not be used, `None` if it can.
fn obstacle(name: &str) -> Option<String> {
    match link_state(name) {
        Ok(Some(state)) if state.up => None,
        Ok(Some(_)) => Some(format!("{name:?} is down; `ip link set {name} up` changes that")),
        Ok(None) => Some(match present() {
            Ok(names) => format!("there is no interface {name:?}; there are: {}", names.join(", ")),
            Err(_) => format!("there is no interface {name:?}"),
        }),
        Err(error) => Some(format!("can not look at {name:?}: {error}")),
    }
}

/// The interfaces of this network namespace. Unlike `/sys/class/net`, which shows
/// the namespace of whoever mounted it, this file is the process's own.
fn present() -> std::io::Result<Vec<String>> {
    let table = std::fs::read_to_string("/proc/self/net/dev")?;
    let name = |line: &str| line.split_once(':').map(|(name, _)| name.trim().to_owned());
    // The first two lines are headings, and hold no colon.
    Ok(table.lines().filter_map(name).collect())
}
