//! Requests about the policies of devices.

use axum::Router;
use axum::extract::State;
use axum::routing::get;
use engine::{Policy, SetPolicyError};

use crate::SCHEMA;
use crate::refusal::Refused;
use crate::routes::{Answer, BodyOf, call, parsed_body};
use crate::schema::{DevicePolicy, Done, Policies};
use crate::server::Shared;

pub(crate) fn router() -> Router<Shared> {
    Router::new().route("/v1/policies", get(policies).put(set))
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
        let before = gateway.set_policy(&device, policy).map_err(|error| match error {
            SetPolicyError::NoSuchDevice { .. } => {
                Refused::not_found(&device, error, "choose one of them")
            }
            SetPolicyError::Unresponsive(_) => {
                Refused::conflict(&device, error, "see the log of the gateway")
            }
        })?;
        Ok(Done { schema: SCHEMA, affected: u64::from(before != policy) })
    })
    .await
}
