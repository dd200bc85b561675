//! `stateway policy explain`: how a device of a running gateway serves its packets, or one of them.

use control::schema::{AskPolicy, ExplainedPolicy, ExplainedSelector, PollingWorker};
use serde_json::json;

use super::{Place, gateway};
use crate::commands::remote::{Json, Remote};
use crate::commands::rules::probe;
use crate::errors::UsageError;
use crate::print::{Align, Output, Table};

#[derive(Debug, clap::Args)]
#[command(after_long_help = "\
Examples:
  stateway policy explain lan0
  stateway policy explain udp 192.0.2.10:40000 198.51.100.7:5004 in lan0
  stateway policy explain @traffic.pcap:17 in lan0

The packet is written as for `stateway rules explain`, and `in` names the device by which it comes.")]
pub struct Args {
    /// A device of the gateway, or a packet with `in DEVICE`.
    #[arg(required = true, value_name = "DEVICE|PACKET")]
    question: Vec<String>,
    /// Directory of the journals of policies of the host.
    #[arg(long, value_name = "DIR", env = "STATEWAY_STATE", default_value = host_settings::DEFAULT_DIRECTORY)]
    state: std::path::PathBuf,
    #[command(flatten)]
    remote: Remote,
    #[command(flatten)]
    json: Json,
}

pub fn run(args: &Args, out: &mut Output) -> anyhow::Result<()> {
    let question = args.question.join(" ");
    let asked = match &*args.question {
        [device] if !device.starts_with('@') => AskPolicy { device: device.clone(), packet: None },
        _ => {
            let (probe, packet) = probe(&question)?;
            let device = probe.input.ok_or_else(|| {
                UsageError(format!("by which device does it come? write: {question} in DEVICE"))
            })?;
            AskPolicy { device, packet: Some(packet) }
        }
    };
    let client = args.remote.client()?;
    gateway::wanted(&client, Some(&asked.device))?;
    let explained: ExplainedPolicy = client.post("/v1/policies/explain", &asked)?;
    let host = host(Place { device: explained.device.clone(), state: args.state.clone() });
    if args.json.json {
        let mut answer = serde_json::to_value(&explained)?;
        answer["host"] = match host {
            Ok((policy, missing)) => json!({ "policy": policy, "missing": missing }),
            Err(error) => json!({ "error": format!("{error:#}") }),
        };
        return out.json(&answer);
    }
    if asked.packet.is_some() {
        out.line(format_args!("packet   {question}"))?;
    }
    print(&explained, out)?;
    match host {
        Ok((policy, _)) if policy == "none" => out
            .line("host     no policy of the host: settings of the device are as they were found"),
        Ok((policy, 0)) => out.line(format_args!("host     {policy} is in force")),
        Ok((policy, missing)) => out.line(format_args!(
            "host     {policy}, and {} differ; `stateway policy verify {}` names them",
            crate::print::things(missing, "setting"),
            explained.device
        )),
        Err(error) => out.line(format_args!("host     not known: {error:#}")),
    }
}

/// The policy of the host for a device, and the number of its settings that are not in force.
fn host(place: Place) -> anyhow::Result<(String, u64)> {
    let mut session = place.session()?;
    let request = session.request().clone();
    let plan = session.plan(&request)?;
    let missing = plan.actions.len() + plan.by_others.len();
    Ok((request.policy.to_string(), missing as u64))
}

fn print(explained: &ExplainedPolicy, out: &mut Output) -> anyhow::Result<()> {
    let ExplainedPolicy { device, policy, packet, lanes, selectors, service, workers, .. } =
        explained;
    out.line(format_args!("device   {device}, policy {policy}"))?;
    match &**lanes {
        "one" => out.line("lanes    one for all packets")?,
        "latency_and_bulk" => out.line("lanes    two, latency and bulk, by these selectors:")?,
        _ => out.line(
            "lanes    those of the process before the upgrade, whose selectors decide until the device \
             is opened anew",
        )?,
    }
    if !selectors.is_empty() {
        table(selectors).print(out)?;
    }
    if let Some(service) = service {
        let of = if packet.is_some() { "" } else { " for packets that no selector names" };
        let by_default =
            packet.is_some() && selectors.iter().all(|it| it.says.as_deref() != Some("decides"));
        let why = if by_default { ", because no selector names it" } else { "" };
        out.line(format_args!("service  {service}{of}{why}"))?;
        if policy != "mix" {
            out.line(format_args!(
                "note     under {policy} a worker takes packets of both lanes by turns"
            ))?;
        }
    }
    for PollingWorker { worker, cpu, waits_by, because_of } in workers {
        let cpu = cpu.map_or(String::new(), |cpu| format!(" on CPU {cpu}"));
        let because = because_of.join(", ");
        out.line(format_args!(
            "worker   {worker}{cpu} polls it, and waits by {waits_by} because of {because}"
        ))?;
    }
    if workers.is_empty() {
        out.line("worker   none polls it: the device is down or has gone")?;
    }
    Ok(())
}

fn table(selectors: &[ExplainedSelector]) -> Table {
    let mut table = Table::new(&[
        ("", Align::Right),
        ("service", Align::Left),
        ("flows", Align::Left),
        ("", Align::Left),
    ]);
    for (place, ExplainedSelector { service, flows, says }) in selectors.iter().enumerate() {
        let says = says.clone().unwrap_or_default();
        table.row([(place + 1).to_string(), service.clone(), flows.clone(), says]);
    }
    table
}
