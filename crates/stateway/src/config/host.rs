//! Checks of a configuration that depend on the machine.

use control::ControlSocket;
use engine::{MAX_PORTS, Mode};
use netio::{LinkState, PortError, link_named};
use netlink::{LinkId, Masters, Stacked};
use steer::{InterfaceCpus, PlacementError};

use super::{Configuration, Interface, Problem};

/// The reasons why this machine can not run a configuration whose links were found, by line. Checks
/// that involve several keys need `are_keys_right`. If `may_come_later`, interfaces may be down or missing.
pub(super) fn problems(
    config: &mut Configuration,
    cpus: &[usize],
    are_keys_right: bool,
    may_come_later: bool,
) -> Vec<Problem> {
    let mut problems = find_links(config, may_come_later);
    if are_keys_right {
        problems.extend(wrong_number_of_interfaces(config));
        problems.extend(stands_on_another(config));
        problems.extend(bridges_of_kernel(config));
        problems.extend(placement(config, cpus));
    }
    if let Some(Err(error)) = config.socket.as_deref().map(ControlSocket::check) {
        problems.push(config.problem(config.socket_line, "control.socket", error.to_string()));
    }
    problems.sort_by_key(|problem| problem.line);
    problems
}

/// Finds the interfaces by their names. Returns those that can not be used, now or, if they
/// `may_come_later`, at any time.
pub(super) fn find_links(config: &mut Configuration, may_come_later: bool) -> Vec<Problem> {
    let mut problems = Vec::new();
    for at in 0..config.interfaces.len() {
        let (before, interface) = config.interfaces.split_at_mut(at);
        let Some(interface) = interface.first_mut() else { break };
        let found = link_named(&interface.name);
        let what = obstacle(&interface.name, &found, config.mode, may_come_later);
        interface.link = found.ok().flatten();
        let what = what.or_else(|| named_before(before, interface));
        if let Some(what) = what.or_else(|| taken_over(interface)) {
            problems.push(config.problem(config.interfaces[at].name_line, "interface.name", what));
        }
    }
    problems
}

/// A message if an interface was named before by another of its names.
fn named_before(before: &[Interface], interface: &Interface) -> Option<String> {
    let index = |interface: &Interface| interface.link.as_ref().map(|link| link.index);
    let own = index(interface)?;
    // Repeated equal names have a problem of their own.
    let is_same = |it: &&Interface| index(it) == Some(own) && it.name != interface.name;
    let Interface { name, name_line, .. } = before.iter().find(is_same)?;
    Some(format!(
        "{:?} is the interface of line {name_line} already, which is named {name:?} there",
        interface.name
    ))
}

/// A problem if something else handles the interface's frames, past the rules.
fn taken_over(interface: &Interface) -> Option<String> {
    let link = interface.link.as_ref()?;
    let master = Masters::new().map_err(netlink::Error::from);
    match master.and_then(|mut masters| masters.of(LinkId(link.index))) {
        Ok(master) => Some(engine::taken_over(&link.name, &master?)),
        Err(error) => Some(format!("can not tell whom {:?} belongs to: {error}", link.name)),
    }
}

/// The interfaces of a bridge that stand on another of its interfaces, such as a VLAN. Each of their
/// frames is one of the other interface too, so the bridge would forward it twice. A router takes a
/// frame at the interface whose station it is for.
fn stands_on_another(config: &Configuration) -> Vec<Problem> {
    if config.mode != Mode::Bridge {
        return Vec::new();
    }
    let mut stacked = match Stacked::new().map_err(netlink::Error::from) {
        Ok(stacked) => stacked,
        Err(error) => return vec![unknown_stack(config, &error)],
    };
    if let Err(error) = stacked.refresh() {
        return vec![unknown_stack(config, &error)];
    }
    let link = |it: &Interface| it.link.as_ref().map(|link| LinkId(link.index));
    let mut problems = Vec::new();
    for above in &config.interfaces {
        let stands_on = |below: &&Interface| {
            link(below).is_some_and(|below| {
                link(above).is_some_and(|above| stacked.on(&[below]).contains(&above))
            })
        };
        if let Some(below) = config.interfaces.iter().find(stands_on) {
            let what = format!(
                "{:?} stands on {:?} of line {}, and a bridge would forward its frames twice; leave \
                 one of them out, or set `mode = \"routed\"`",
                above.name, below.name, below.name_line
            );
            problems.push(config.problem(above.name_line, "interface.name", what));
        }
    }
    problems
}

/// The interfaces of a bridge that are bridges of the kernel. Such a bridge hears of stations only what
/// its own ports tell, and sends each frame for one behind the gateway to all of them; and it hands the
/// gateway what goes from one of its ports to another.
fn bridges_of_kernel(config: &Configuration) -> Vec<Problem> {
    if config.mode != Mode::Bridge {
        return Vec::new();
    }
    let mut problems = Vec::new();
    for interface in &config.interfaces {
        let Some(link) = &interface.link else { continue };
        let masters = Masters::new().map_err(netlink::Error::from);
        match masters.and_then(|mut masters| masters.bridge_filters(LinkId(link.index))) {
            Ok(Some(_)) => {}
            Ok(None) => continue,
            Err(error) => return vec![unknown_stack(config, &error)],
        }
        let what = format!(
            "{0:?} is a bridge of the kernel, which sends frames for stations behind another bridge \
             to all of its ports; name its ports here in its place (`ip link set PORT nomaster`), or \
             set `mode = \"routed\"`",
            interface.name
        );
        problems.push(config.problem(interface.name_line, "interface.name", what));
    }
    problems
}

fn unknown_stack(config: &Configuration, error: &netlink::Error) -> Problem {
    let what = format!("can not tell which interfaces stand on others: {error}");
    config.problem(0, "interface", what)
}

/// A problem if there are fewer interfaces than the mode needs, or more than a bridge may have.
pub(super) fn wrong_number_of_interfaces(config: &Configuration) -> Option<Problem> {
    let count = config.interfaces.len();
    let what = match config.mode {
        Mode::Bridge if count < 2 => {
            "a bridge needs two [[interface]] tables or more, each with a name".to_owned()
        }
        Mode::Bridge if count > MAX_PORTS => {
            format!("a bridge has {MAX_PORTS} interfaces at most, not {count}")
        }
        Mode::Routed if count < 1 => {
            "a router needs an [[interface]] table for each link, with a name".to_owned()
        }
        _ => return None,
    };
    Some(config.problem(0, "interface", what))
}

/// A problem if no worker may own the packets of an interface.
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

/// The reason why an interface can not be used; `None` if it can.
fn obstacle(
    name: &str,
    found: &std::io::Result<Option<LinkState>>,
    mode: Mode,
    may_come_later: bool,
) -> Option<String> {
    let takes_bare = mode == Mode::Routed;
    let unfit = found.as_ref().ok().and_then(|it| it.as_ref()?.unfit(takes_bare));
    if let Some(what) = unfit {
        let interface = name.to_owned();
        let is_bridge = mode == Mode::Bridge;
        return Some(PortError::NotEthernet { interface, what, is_bridge }.to_string());
    }
    match found {
        Ok(Some(state)) if state.up => None,
        Ok(_) if may_come_later => None,
        Ok(Some(_)) => Some(format!("{name:?} is down; `ip link set {name} up` changes that")),
        Ok(None) => Some(match netio::link_names() {
            Ok(names) => format!("there is no interface {name:?}; there are: {}", names.join(", ")),
            Err(_) => format!("there is no interface {name:?}"),
        }),
        Err(error) => Some(format!("can not look at {name:?}: {error}")),
    }
}
