//! Requests about state sync.

use std::sync::{Arc, Mutex, PoisonError};

use axum::Router;
use axum::extract::State;
use axum::routing::{get, put};
use engine::StateSync;
use flow::Timestamp;
use netio::clock;

use crate::SCHEMA;
use crate::refusal::Refused;
use crate::routes::{Answer, BodyOf, call, parsed_body, unresponsive};
use crate::schema::{Done, SetRole, Sync};
use crate::server::Shared;

pub(crate) fn router() -> Router<Shared> {
    Router::new().route("/v1/sync", get(status)).route("/v1/sync/role", put(set_role))
}

fn peer_of(shared: &Shared) -> Result<Arc<Mutex<StateSync>>, Refused> {
    shared.peer.clone().ok_or_else(|| {
        let what = "the gateway has no peer";
        Refused::conflict("sync", what, "add the table [sync] to its configuration")
    })
}

async fn status(State(shared): State<Shared>) -> Answer<Sync> {
    let peer = peer_of(&shared)?;
    call(shared, move |gateway| {
        let totals = gateway.status().map_err(unresponsive)?.totals();
        let peer = peer.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Timestamp::from_nanos(clock::monotonic_nanoseconds());
        Ok(Sync::new(&peer, &totals.deferral, now))
    })
    .await
}

async fn set_role(State(shared): State<Shared>, body: BodyOf<SetRole>) -> Answer<Done> {
    let body = parsed_body(body)?;
    let role = body.role().ok_or_else(|| {
        let what = format!("{:?} is no role", body.role);
        Refused::bad_request("role", what, "give active or standby")
    })?;
    let peer = peer_of(&shared)?;
    call(shared, move |gateway| {
        let mut peer = peer.lock().unwrap_or_else(PoisonError::into_inner);
        let is_other = peer.role() != role;
        if is_other {
            peer.set_role(gateway, role).map_err(unresponsive)?;
        }
        Ok(Done { schema: SCHEMA, affected: u64::from(is_other) })
    })
    .await
}
