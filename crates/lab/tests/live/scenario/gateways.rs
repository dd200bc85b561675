//! Labs between whose client and server there is a gateway.

use std::ops::{Deref, DerefMut};

use lab::{
    Family, Gateway, Lab, Namespace, Placement, Program, Result, Stateway, StatewaySpec, Tracking,
};

use super::{CLOSED, load, nat_rules};
use crate::scenario::stateway_binary;

/// A lab with Stateway, whose log it prints when it is dropped; a failed test shows it.
pub struct StatewayLab(Lab);

impl Deref for StatewayLab {
    type Target = Lab;

    fn deref(&self) -> &Lab {
        &self.0
    }
}

impl DerefMut for StatewayLab {
    fn deref_mut(&mut self) -> &mut Lab {
        &mut self.0
    }
}

impl Drop for StatewayLab {
    fn drop(&mut self) {
        if let Some(stateway) = self.0.stateway() {
            println!("log of stateway:\n{}", stateway.log());
        }
    }
}

/// The way to start a bridge with this many workers.
pub fn bridge_spec(workers: u32) -> Result<StatewaySpec> {
    Ok(StatewaySpec::new(stateway_binary()?, workers))
}

/// The way to start a router with this many workers.
pub fn router_spec(workers: u32) -> Result<StatewaySpec> {
    Ok(StatewaySpec { routed: true, ..bridge_spec(workers)? })
}

/// A lab with this gateway.
pub fn start(spec: StatewaySpec) -> Result<StatewayLab> {
    Lab::new(Gateway::Stateway(spec), Placement::free()).map(StatewayLab)
}

/// Starts Stateway in a namespace that has its interfaces.
pub fn start_in(namespace: &Namespace, spec: &StatewaySpec) -> Result<Stateway> {
    Stateway::start(namespace, spec, &Placement::free())
}

/// A command of the program that reads this configuration, such as `check` or `run`. The file is
/// called `tried.toml`.
pub fn with_config(namespace: &Namespace, command: &str, config: &str) -> Result<Program> {
    let file = namespace.write_file("tried.toml", config.as_bytes())?;
    Ok(namespace.program(&stateway_binary()?.to_string_lossy()).args([command, "-c", &file]))
}

pub fn bridge(workers: u32) -> Result<StatewayLab> {
    start(bridge_spec(workers)?)
}

/// A bridge that lets the server's side open only the connections that these helpers expect.
pub fn guarded_bridge(workers: u32, helpers: &str) -> Result<StatewayLab> {
    let more = helpers.to_owned();
    start(StatewaySpec { refuses_new: true, more, ..bridge_spec(workers)? })
}

/// A router. Its kernel would forward as well.
pub fn router(workers: u32) -> Result<StatewayLab> {
    start(router_spec(workers)?)
}

/// A router that forwards nothing. Its kernel would forward.
pub fn closed_router() -> Result<StatewayLab> {
    let lab = router(2)?;
    load(&lab, CLOSED)?;
    Ok(lab)
}

/// A router with these rules and more lines of configuration. Its server has no route to the
/// client, so only translated packets are answered.
pub fn edge_router(workers: u32, rules: &str, more: &str) -> Result<StatewayLab> {
    let (ruleset, more) = (Some(rules.to_owned()), more.to_owned());
    let lab = start(StatewaySpec { ruleset, more, ..router_spec(workers)? })?;
    lab.server().ip(&["route del 192.0.2.0/24", "route del 2001:db8:1::/64"])?;
    Ok(lab)
}

/// An edge router that masquerades its clients. Port 8080 of its outside address leads to port 8000
/// of the client.
pub fn masquerading_router(workers: u32) -> Result<StatewayLab> {
    edge_router(workers, &nat_rules(&[("tcp dport 8080", ":8000")], "masquerade"), "")
}

/// A router's address towards the client.
pub fn inside(family: Family) -> &'static str {
    match family {
        Family::V4 => "192.0.2.254",
        Family::V6 => "2001:db8:1::fe",
    }
}

/// A router's address towards the server.
pub fn outside(family: Family) -> &'static str {
    match family {
        Family::V4 => "198.51.100.254",
        Family::V6 => "2001:db8:2::fe",
    }
}

pub fn kernel_bridge() -> Result<Lab> {
    Lab::new(Gateway::KernelBridge, Placement::free())
}

pub fn kernel_router(tracking: Tracking) -> Result<Lab> {
    Lab::new(Gateway::KernelForwarding(tracking), Placement::free())
}

/// Stops the gateway. A failure shows its log.
pub fn stop_cleanly(lab: &mut Lab) -> Result<()> {
    let stateway = lab.take_stateway().expect("the lab has a Stateway that runs");
    let output = stateway.stop()?;
    assert_eq!(output.code, Some(0), "log of stateway:\n{}", output.stdout);
    Ok(())
}
