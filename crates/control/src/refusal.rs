//! Answers of the API that refuse a request.

use axum::Json;
use axum::http::StatusCode;
use axum::http::header::RETRY_AFTER;
use axum::response::{IntoResponse, Response};

use crate::schema::{Refusal, RefusalBody};

/// When it is worth to ask again where too many ask at once, seconds.
const RETRY_AFTER_S: &str = "1";

/// A refusal with its HTTP status.
#[derive(Debug)]
pub(crate) struct Refused {
    status: StatusCode,
    what: String,
    place: String,
    todo: &'static str,
}

impl Refused {
    /// The request is wrong.
    pub fn bad_request(place: &str, what: impl ToString, todo: &'static str) -> Self {
        Self::new(StatusCode::BAD_REQUEST, place, what, todo)
    }

    /// The object of the request does not exist.
    pub fn not_found(place: &str, what: impl ToString, todo: &'static str) -> Self {
        Self::new(StatusCode::NOT_FOUND, place, what, todo)
    }

    /// The gateway can not do it now.
    pub fn conflict(place: &str, what: impl ToString, todo: &'static str) -> Self {
        Self::new(StatusCode::CONFLICT, place, what, todo)
    }

    /// Another process is the gateway by now. It has the socket, so the client has only to ask again.
    pub fn elsewhere() -> Self {
        let what = "this process has handed over to a new one";
        let todo = "ask again: the new one answers now";
        Self::new(StatusCode::MISDIRECTED_REQUEST, "gateway", what, todo)
    }

    /// There are too many requests at once.
    pub fn busy(what: impl ToString, todo: &'static str) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "control", what, todo)
    }

    /// A defect of this program.
    pub fn defect(what: impl ToString) -> Self {
        let todo = "this is a defect of the gateway: please report it";
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "control", what, todo)
    }

    fn new(status: StatusCode, place: &str, what: impl ToString, todo: &'static str) -> Self {
        Self { status, what: what.to_string(), place: place.to_owned(), todo }
    }
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        let error = RefusalBody { what: self.what, place: self.place, todo: self.todo.to_owned() };
        let refusal = Json(Refusal { schema: crate::SCHEMA, error });
        match self.status {
            StatusCode::SERVICE_UNAVAILABLE => {
                (self.status, [(RETRY_AFTER, RETRY_AFTER_S)], refusal).into_response()
            }
            status => (status, refusal).into_response(),
        }
    }
}
