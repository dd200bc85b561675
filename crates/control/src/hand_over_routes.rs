//! The request of a new process that is to take the place of this one.

use std::path::Path;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::http::header::{CONNECTION, UPGRADE};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Extension, Json, Router};
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use tokio::sync::oneshot;

use crate::connections::ClientStream;
use crate::refusal::Refused;
use crate::routes::{Answer, BodyOf, parsed_body};
use crate::schema::{HandedOver, Upgrade};
use crate::server::{Asker, HandOverRequest, Shared, Successors};

/// The path of the request.
pub const HAND_OVER_PATH: &str = "/v1/hand-over";
/// The name of what the connection carries afterwards.
pub const HAND_OVER_PROTOCOL: &str = "stateway-hand-over";

/// The user with all rights.
const ROOT: u32 = 0;

pub(crate) fn router() -> Router<Shared> {
    Router::new().route(HAND_OVER_PATH, post(hand_over)).route("/v1/upgrade", post(upgrade))
}

/// Refuses others than the user of this process and root. Members of the socket's group may ask a
/// gateway for much, but not for its secret and its descriptors, nor to run a program.
fn check_user(asker: Asker) -> Result<(), Refused> {
    match asker.user.is_some_and(|user| [ROOT, netio::user_id()].contains(&user)) {
        true => Ok(()),
        false => {
            let what = "only the user of the gateway, or root, may have it hand over";
            Err(Refused::conflict("hand-over", what, "do this as that user"))
        }
    }
}

/// Has the gateway start a process and hand over to it.
async fn upgrade(
    State(shared): State<Shared>,
    Extension(asker): Extension<Asker>,
    body: BodyOf<Upgrade>,
) -> Answer<HandedOver> {
    check_user(asker)?;
    let upgrade: Upgrade = parsed_body(body)?;
    if !upgrade.program.is_absolute() {
        let what = format!("{} is no absolute path", upgrade.program.display());
        return Err(Refused::bad_request("program", what, "name the whole path of the program"));
    }
    // The process gets the gateway's capabilities, which its user may lack.
    if asker.user != Some(ROOT) && !is_own(&upgrade.program) {
        let what = format!("only root may have it run {}", upgrade.program.display());
        let todo = "do this as root, or put the new release in the place of the old program";
        return Err(Refused::conflict("program", what, todo));
    }
    let (sender, answer) = oneshot::channel();
    (shared.successors)(HandOverRequest::Start(upgrade, sender));
    match answer.await {
        Ok(Ok(handed_over)) => Ok(Json(handed_over)),
        Ok(Err(why)) => {
            let todo =
                "unless it was told to stop, the gateway goes on as before; its log says more";
            Err(Refused::conflict("hand-over", why, todo))
        }
        Err(_) => Err(Refused::conflict("hand-over", "the gateway stops", "start it anew")),
    }
}

/// True for the path of the program of this process, which may be of another release by now.
fn is_own(program: &Path) -> bool {
    let own = std::env::current_exe().unwrap_or_default();
    // The kernel says so of a program whose file has been replaced.
    let own = own.to_string_lossy();
    program == Path::new(own.strip_suffix(" (deleted)").unwrap_or(&own))
}

/// Gives the connection away.
async fn hand_over(
    State(shared): State<Shared>,
    Extension(asker): Extension<Asker>,
    mut request: Request,
) -> Result<Response, Refused> {
    check_user(asker)?;
    let is_asked_for = request
        .headers()
        .get(UPGRADE)
        .is_some_and(|it| it.as_bytes() == HAND_OVER_PROTOCOL.as_bytes());
    let upgrade = request.extensions_mut().remove::<OnUpgrade>().filter(|_| is_asked_for);
    let Some(upgrade) = upgrade else {
        let what = "the request does not ask for the protocol of a hand-over";
        return Err(Refused::bad_request("hand-over", what, "use `stateway run --take-over`"));
    };
    tokio::spawn(give_away(upgrade, asker.process, shared.successors));
    let headers = [(CONNECTION, "upgrade"), (UPGRADE, HAND_OVER_PROTOCOL)];
    Ok((StatusCode::SWITCHING_PROTOCOLS, headers, Body::empty()).into_response())
}

async fn give_away(upgrade: OnUpgrade, process: Option<u32>, successors: Successors) {
    let stream = upgrade.await.ok().and_then(stream_of);
    match stream {
        Some(stream) => successors(HandOverRequest::To(stream, process)),
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
