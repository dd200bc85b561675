//! Requests about the policies of devices.

use axum::Router;
use axum::extract::State;
use axum::routing::{get, post};
use conntrack::format::protocol_name;
use engine::{DeviceService, Gateway, OpenSelectors, Policy, SetPolicyError};
use netio::{Condition, Selector, Selectors, Service};
use ruleset::probe::Probe;

use crate::SCHEMA;
use crate::refusal::Refused;
use crate::routes::{Answer, BodyOf, asked_packet, call, parsed_body, unresponsive};
use crate::schema::{
    AskPolicy, DevicePolicy, Done, ExplainedPolicy, ExplainedSelector, Policies, PollingWorker,
};
use crate::server::Shared;

pub(crate) fn router() -> Router<Shared> {
    Router::new()
        .route("/v1/policies", get(policies).put(set))
        .route("/v1/policies/explain", post(explain))
}

async fn policies(State(shared): State<Shared>) -> Answer<Policies> {
    call(shared, |gateway| {
        let devices = gateway.policies().into_iter();
        let device = |(device, policy): (String, Policy)| DevicePolicy {
            device,
            policy: policy.to_string(),
        };
        Ok(Policies { schema: SCHEMA, devices: devices.map(device).collect() })
    })
    .await
}

async fn set(State(shared): State<Shared>, body: BodyOf<DevicePolicy>) -> Answer<Done> {
    let DevicePolicy { device, policy } = parsed_body(body)?;
    let policy: Policy = policy
        .parse()
        .map_err(|error| Refused::bad_request("policy", error, "choose one of them"))?;
    call(shared, move |gateway| {
        let before =
            gateway.set_policy(&device, policy).map_err(|error| refusal(&device, error))?;
        Ok(Done { schema: SCHEMA, affected: u64::from(before != policy) })
    })
    .await
}

fn refusal(device: &str, error: SetPolicyError) -> Refused {
    match error {
        SetPolicyError::NoSuchDevice { .. } => {
            Refused::not_found(device, error, "choose one of them")
        }
        SetPolicyError::Unresponsive(_) => {
            Refused::conflict(device, error, "see the log of the gateway")
        }
    }
}

async fn explain(State(shared): State<Shared>, body: BodyOf<AskPolicy>) -> Answer<ExplainedPolicy> {
    let AskPolicy { device, packet } = parsed_body(body)?;
    let probe = packet.as_deref().map(asked_packet).transpose()?;
    call(shared, move |gateway| {
        let served = gateway.device_service(&device).map_err(|error| refusal(&device, error))?;
        let workers = polling(gateway, &served)?;
        let DeviceService { device, policy, selectors, .. } = served;
        let (lanes, selectors, service) = match &selectors {
            OpenSelectors::None => ("one", Vec::new(), None),
            OpenSelectors::OfFormerProcess => ("of_former_process", Vec::new(), None),
            OpenSelectors::These(selectors) => {
                let (says, service) = judged(selectors, probe.as_ref());
                ("latency_and_bulk", says, Some(service.name().to_owned()))
            }
        };
        let (policy, lanes) = (policy.to_string(), lanes.to_owned());
        let schema = SCHEMA;
        Ok(ExplainedPolicy { schema, device, policy, packet, lanes, selectors, service, workers })
    })
    .await
}

/// The selectors with what each says of a packet, and the service of that.
fn judged(selectors: &Selectors, probe: Option<&Probe>) -> (Vec<ExplainedSelector>, Service) {
    let mut is_decided = false;
    let explained = selectors.iter().map(|selector| {
        let says = probe.map(|probe| match selector.unmet(&probe.network) {
            _ if is_decided => "not looked at",
            None => {
                is_decided = true;
                "decides"
            }
            Some(Condition::Protocol) => "other protocol",
            Some(Condition::Prefix) => "other addresses",
            Some(Condition::Ports) => "other ports",
        });
        ExplainedSelector {
            service: selector.service().name().to_owned(),
            flows: conditions(selector),
            says: says.map(str::to_owned),
        }
    });
    let service = probe.map(|probe| selectors.service_of(&probe.network));
    (explained.collect(), service.unwrap_or_default())
}

/// The conditions of a selector, in the words of the configuration.
fn conditions(selector: &Selector) -> String {
    let protocol = selector.protocol().map(|number| match protocol_name(number) {
        "unknown" => format!("protocol {number}"),
        name => name.to_owned(),
    });
    let prefix = selector.prefix().map(|(address, length)| format!("{address}/{length}"));
    let ports = selector.ports().map(|ports| match (ports.start(), ports.end()) {
        (first, last) if first == last => format!("port {first}"),
        (first, last) => format!("ports {first}-{last}"),
    });
    [protocol, prefix, ports].into_iter().flatten().collect::<Vec<_>>().join(", ")
}

/// The workers that poll a device's queues.
fn polling(gateway: &Gateway, served: &DeviceService) -> Result<Vec<PollingWorker>, Refused> {
    let devices = gateway.policies();
    let devices = devices.iter().filter_map(|(name, _)| gateway.device_service(name).ok());
    let devices: Vec<DeviceService> = devices.collect();
    let workers = gateway.status().map_err(unresponsive)?.workers;
    let polls = workers.iter().filter(|worker| served.pollers.contains(&worker.id));
    let explained = polls.map(|worker| PollingWorker {
        worker: worker.id.0,
        cpu: worker.cpu,
        waits_by: worker.policy.to_string(),
        because_of: devices
            .iter()
            .filter(|it| it.policy == worker.policy && it.pollers.contains(&worker.id))
            .map(|it| it.device.clone())
            .collect(),
    });
    Ok(explained.collect())
}
