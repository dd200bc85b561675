//! The request of a new process that is to take the place of this one.

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::http::header::{CONNECTION, UPGRADE};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;

use crate::connections::ClientStream;
use crate::refusal::Refused;
use crate::server::{PeerUser, Shared, Successors};

/// The path of the request.
pub const HAND_OVER_PATH: &str = "/v1/hand-over";
/// The name of what the connection carries afterwards.
pub const HAND_OVER_PROTOCOL: &str = "stateway-hand-over";

/// The user with all rights.
const ROOT: u32 = 0;

pub(crate) fn router() -> Router<Shared> {
    Router::new().route(HAND_OVER_PATH, post(hand_over))
}

/// Gives the connection away. Members of the socket's group may ask a gateway for much, but not for its
/// secret and its descriptors.
async fn hand_over(
    State(shared): State<Shared>,
    mut request: Request,
) -> Result<Response, Refused> {
    let user = request.extensions().get::<PeerUser>().and_then(|user| user.0);
    if user.is_none_or(|user| ![ROOT, netio::user_id()].contains(&user)) {
        let what = "only the user of the gateway, or root, may take it over";
        return Err(Refused::conflict("hand-over", what, "run the new process as that user"));
    }
    let is_asked_for = request
        .headers()
        .get(UPGRADE)
        .is_some_and(|it| it.as_bytes() == HAND_OVER_PROTOCOL.as_bytes());
    let upgrade = request.extensions_mut().remove::<OnUpgrade>().filter(|_| is_asked_for);
    let Some(upgrade) = upgrade else {
        let what = "the request does not ask for the protocol of a hand-over";
        return Err(Refused::bad_request("hand-over", what, "use `stateway run --take-over`"));
    };
    tokio::spawn(give_away(upgrade, shared.successors));
    let headers = [(CONNECTION, "upgrade"), (UPGRADE, HAND_OVER_PROTOCOL)];
    Ok((StatusCode::SWITCHING_PROTOCOLS, headers, Body::empty()).into_response())
}

async fn give_away(upgrade: OnUpgrade, successors: Successors) {
    let stream = upgrade.await.ok().and_then(stream_of);
    match stream {
        Some(stream) => successors(stream),
        // The other process sees that the connection ends.
        None => tracing::warn!("the connection of a process that was to take over has ended"),
    }
}

/// The socket itself. The other process sends nothing until it has the answer, so no byte is lost.
fn stream_of(upgraded: Upgraded) -> Option<std::os::unix::net::UnixStream> {
    let parts = upgraded.downcast::<TokioIo<ClientStream>>().ok()?;
    let stream = parts.io.into_inner().stream.into_std().ok()?;
    stream.set_nonblocking(false).ok()?;
    parts.read_buf.is_empty().then_some(stream)
}
