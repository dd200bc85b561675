//! Reading a ruleset that is being sent, in bounded memory.
//!
//! A user of the control socket may send 256 MiB by each connection, and stop before the end.
//! So one long ruleset is read at a time, and only if there is memory to load it: that is asked with
//! the length that the sender tells before anything of it is read.

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::Body as _;
use ruleset::limits::MAX_DOCUMENT_BYTES;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use crate::refusal::Refused;
use crate::rules::check_memory;

/// Longer ones are read one at a time, bytes.
const SHORT: u64 = 1 << 20;
/// How long one may take to come.
const PATIENCE: Duration = Duration::from_secs(60);

/// The one turn to send a long ruleset.
#[derive(Clone, Debug)]
pub(crate) struct Turns(Arc<Semaphore>);

/// A ruleset, and the turn of its sender, which lasts until it is loaded.
pub(crate) type Sent = (Bytes, Option<OwnedSemaphorePermit>);

impl Turns {
    /// It is nobody's turn.
    pub fn new() -> Self {
        Self(Arc::new(Semaphore::new(1)))
    }

    /// Reads a ruleset.
    ///
    /// # Errors
    /// A refusal if there is no memory for it, if another long one is being loaded, or if it is too
    /// long or does not come.
    pub async fn read(&self, mut body: Body) -> Result<Sent, Refused> {
        let length = body.size_hint().exact();
        let turn = match self.take(length) {
            Ok(turn) => turn,
            Err(refused) => {
                // A sender that is cut off sees no answer. Nothing of it is kept.
                let rest = async { while let Some(Ok(_)) = body.frame().await {} };
                drop(timeout(PATIENCE, rest).await);
                return Err(refused);
            }
        };
        let most = length.unwrap_or(SHORT) as usize;
        let sent = timeout(PATIENCE, Limited::new(body, most).collect()).await;
        let sent = sent.map_err(|_| {
            let what = format!("it has not come to its end within {} s", PATIENCE.as_secs());
            Refused::bad_request("rules", what, "send it anew")
        })?;
        let sent = sent.map_err(|error| {
            if error.is::<LengthLimitError>() {
                let what = format!("more than {SHORT} bytes came without Content-Length");
                return Refused::bad_request("rules", what, "tell the length beforehand");
            }
            Refused::bad_request("rules", error, "send all of it")
        })?;
        Ok((sent.to_bytes(), turn))
    }

    /// Takes the turn to send `length` bytes. A short ruleset needs no turn, and a request without a
    /// length has to be short.
    fn take(&self, length: Option<u64>) -> Result<Option<OwnedSemaphorePermit>, Refused> {
        let Some(length) = length.filter(|&length| length > SHORT) else { return Ok(None) };
        if length > MAX_DOCUMENT_BYTES as u64 {
            let what = format!("a ruleset has at most {} MiB", MAX_DOCUMENT_BYTES >> 20);
            return Err(Refused::bad_request("rules", what, "load a smaller one"));
        }
        let turn = self.0.clone().try_acquire_owned().map_err(|_| {
            let todo = "try again when it is loaded";
            Refused::busy("somebody else loads a long ruleset", todo)
        })?;
        check_memory(length, 0)
            .map_err(|what| Refused::bad_request("rules", what, "or try again later"))?;
        Ok(Some(turn))
    }
}
