//! `stateway policy show|set`: policies of the devices of a running gateway.

use std::collections::BTreeMap;

use control::Client;
use control::schema::{DevicePolicy, Done, Lane, Lanes, Policies, Status, Worker};
use netpolicy::Policy;
use serde::Serialize;

use crate::commands::remote::{Json, Remote};
use crate::errors::UsageError;
use crate::print::{Align, Output, Table, count, percent};

#[derive(Debug, clap::Args)]
pub struct Show {
    /// The device, such as lan0. Default: all.
    device: Option<String>,
    #[command(flatten)]
    remote: Remote,
    #[command(flatten)]
    json: Json,
}

#[derive(Debug, clap::Args)]
pub struct Set {
    /// The device, such as lan0.
    device: String,
    /// none, bulk, cpu, latency or mix.
    policy: Policy,
    #[command(flatten)]
    remote: Remote,
    #[command(flatten)]
    json: Json,
}

/// The answer as JSON.
#[derive(Serialize)]
struct Report<'a> {
    schema: u32,
    devices: &'a [DevicePolicy],
    lanes: BTreeMap<&'a str, Option<Lanes>>,
    available: Vec<&'static str>,
    workers: Vec<serde_json::Value>,
}

/// The policies that can be set beside none.
fn available() -> Vec<&'static str> {
    Policy::ALL.into_iter().filter(|policy| *policy != Policy::None).map(Policy::name).collect()
}

pub fn show(args: &Show, out: &mut Output) -> anyhow::Result<()> {
    let client = args.remote.client()?;
    let devices = wanted(&client, args.device.as_deref())?;
    let status: Status = client.get("/v1/status")?;
    if args.json.json {
        let worker = |it: &Worker| serde_json::json!({ "worker": it.worker, "cpu": it.cpu, "waiting": it.waiting });
        return out.json(&Report {
            schema: control::SCHEMA,
            devices: &devices,
            lanes: status
                .ports
                .iter()
                .filter(|port| devices.iter().any(|it| it.device == port.name))
                .map(|port| (&*port.name, port.lanes))
                .collect(),
            available: available(),
            workers: status.workers.iter().map(worker).collect(),
        });
    }
    for DevicePolicy { device, policy } in &devices {
        match policy.parse() {
            Ok(Policy::None) => {
                let words = available().join(", ");
                out.line(format_args!("{device}: no policy applies; available: {words}"))?;
            }
            Ok(Policy::Mix) => {
                out.line(format_args!("{device}: mix; {}", lanes(&status, device)))?
            }
            _ => out.line(format_args!("{device}: {policy}"))?,
        }
    }
    out.line("")?;
    workers(&status).print(out)
}

/// The packets of each service of a device, in words.
fn lanes(status: &Status, device: &str) -> String {
    let port = status.ports.iter().find(|port| port.name == device);
    let Some(Lanes { latency, bulk }) = port.and_then(|port| port.lanes) else {
        return "one lane for all packets; selectors in the configuration make two".to_owned();
    };
    let of = |it: Lane| format!("{} packets, {} lost", count(it.received), count(it.lost));
    format!("latency {}; bulk {}", of(latency), of(bulk))
}

/// The devices that were asked for, with their policies.
pub(super) fn wanted(client: &Client, device: Option<&str>) -> anyhow::Result<Vec<DevicePolicy>> {
    let Policies { mut devices, .. } = client.get("/v1/policies")?;
    let Some(device) = device else { return Ok(devices) };
    let names: Vec<_> = devices.iter().map(|it| it.device.clone()).collect();
    devices.retain(|it| it.device == device);
    if devices.is_empty() {
        let names = names.join(", ");
        let what = format!("the gateway has no device {device:?}; its devices are {names}");
        return Err(UsageError(what).into());
    }
    Ok(devices)
}

fn workers(status: &Status) -> Table {
    let mut table = Table::new(&[
        ("worker", Align::Right),
        ("waits by", Align::Left),
        ("awake", Align::Right),
        ("blocked", Align::Right),
        ("gathered", Align::Right),
        ("for us", Align::Right),
    ]);
    for Worker { worker, waiting, .. } in &status.workers {
        table.row([
            worker.to_string(),
            waiting.policy.clone(),
            percent(waiting.time_ns.saturating_sub(waiting.asleep_ns), waiting.time_ns),
            count(waiting.blocked),
            count(waiting.gathered),
            waiting.gather_us.to_string(),
        ]);
    }
    table
}

pub fn set(args: &Set, out: &mut Output) -> anyhow::Result<()> {
    let Set { device, policy, remote, json } = args;
    let client = remote.client()?;
    wanted(&client, Some(device))?;
    let request = DevicePolicy { device: device.clone(), policy: policy.to_string() };
    let done: Done = client.put("/v1/policies", &request)?;
    if json.json {
        return out.json(&done);
    }
    match done.affected {
        0 => tell!("{device}: {policy}, as before"),
        _ => tell!("{device}: {policy}"),
    }
    Ok(())
}
