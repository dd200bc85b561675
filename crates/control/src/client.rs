//! The client of the API, which the command line uses.

use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::net::UnixStream;
use tokio::runtime::{Builder, Runtime};

use crate::schema::{Refusal, RefusalBody};

/// A client of the gateway behind one control socket. Its methods block.
#[derive(Debug)]
pub struct Client {
    socket: PathBuf,
    runtime: Runtime,
    /// The longest time until an answer begins.
    patience: Duration,
}

/// The reasons why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// No process listens on the socket.
    #[error(
        "no gateway is running on {socket}; start one with `stateway run -c FILE`, or name the \
         socket of a running one with --socket or STATEWAY_SOCKET"
    )]
    NotRunning {
        /// The socket.
        socket: PathBuf,
    },
    /// The gateway stopped while it was asked.
    #[error("the gateway on {socket} has stopped; its log says why")]
    Stopped {
        /// The socket.
        socket: PathBuf,
    },
    /// The name of the socket belongs to another kind of file.
    #[error(
        "{socket} is {what} and not the socket of a gateway; name the socket of a running one \
         with --socket or STATEWAY_SOCKET"
    )]
    NotASocket {
        /// The path.
        socket: PathBuf,
        /// The kind of file.
        what: &'static str,
    },
    /// This process may not use the socket.
    #[error("no permission to use {socket}; run as its owner, or as a member of its group")]
    NoPermission {
        /// The socket.
        socket: PathBuf,
    },
    /// The gateway refused.
    #[error("{}: {}; {}", .0.place, .0.what, .0.todo)]
    Refused(RefusalBody),
    /// The gateway refused a request that no gateway could carry out.
    #[error("{}: {}; {}", .0.place, .0.what, .0.todo)]
    BadRequest(RefusalBody),
    /// The connection failed in the middle.
    #[error("the gateway on {socket} does not answer as it should: {what}")]
    Broken {
        /// The socket.
        socket: PathBuf,
        /// Description of the failure.
        what: String,
    },
    /// This process lacks a resource.
    #[error("can not talk to a gateway: {0}")]
    System(#[from] io::Error),
}

/// The longest time in which a gateway that has handed over is asked again.
const SUCCESSION: Duration = Duration::from_secs(5);
/// The pause before that.
const ASK_AGAIN: Duration = Duration::from_millis(20);

/// The longest time until an answer begins. The gateway itself gives up on a worker that does not
/// answer after 10 s, so a gateway that is silent for longer is stuck.
const PATIENCE: Duration = Duration::from_secs(30);

fn runtime() -> io::Result<Runtime> {
    Builder::new_current_thread().enable_io().enable_time().build()
}

impl Client {
    /// A client for the gateway on `socket`. Sends nothing yet.
    ///
    /// # Errors
    /// [`ClientError::System`].
    pub fn new(socket: &Path) -> Result<Self, ClientError> {
        Ok(Self { socket: socket.to_owned(), runtime: runtime()?, patience: PATIENCE })
    }

    /// The same, which waits so long until an answer begins.
    #[must_use]
    pub fn with_patience(self, patience: Duration) -> Self {
        Self { patience, ..self }
    }

    /// The number of the process that answers; `None` if the kernel does not tell.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn process(&self) -> Result<Option<i32>, ClientError> {
        let stream = self.runtime.block_on(UnixStream::connect(&self.socket));
        let stream = stream.map_err(|error| self.not_connected(error))?;
        Ok(stream.peer_cred()?.pid())
    }

    /// Asks for an object.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, ClientError> {
        self.exchange(Method::GET, path, Bytes::new())
    }

    /// Deletes an object.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn delete<T: DeserializeOwned>(&self, path: &str) -> Result<T, ClientError> {
        self.exchange(Method::DELETE, path, Bytes::new())
    }

    /// Sets an object.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn put<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
    ) -> Result<T, ClientError> {
        self.exchange(Method::PUT, path, self.encode(body)?)
    }

    /// Sets an object to these bytes.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn put_bytes<T: DeserializeOwned>(
        &self,
        path: &str,
        body: impl Into<Bytes>,
    ) -> Result<T, ClientError> {
        self.exchange(Method::PUT, path, body.into())
    }

    /// Changes an object.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn patch<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
    ) -> Result<T, ClientError> {
        self.exchange(Method::PATCH, path, self.encode(body)?)
    }

    /// Asks the gateway to do something.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn post<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
    ) -> Result<T, ClientError> {
        self.exchange(Method::POST, path, self.encode(body)?)
    }

    /// The same for something that takes a while: waits so long for the answer.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn post_patiently<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
        patience: Duration,
    ) -> Result<T, ClientError> {
        let body = self.encode(body)?;
        let client = Self { socket: self.socket.clone(), runtime: runtime()?, patience };
        client.exchange(Method::POST, path, body)
    }

    /// Reads a stream and calls `each` with every line, without its end, as it comes. A stream of
    /// events ends when the gateway stops.
    ///
    /// # Errors
    /// [`ClientError`], or the first error of `each`, which ends the stream.
    /// [`ClientError::Stopped`] if the stream was cut off because the gateway was killed or did not
    /// wait longer.
    pub fn lines<E: From<ClientError>>(
        &self,
        path: &str,
        each: &mut dyn FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut pending = Vec::new();
        self.chunks(path, &mut |data| {
            pending.extend_from_slice(data);
            let complete = pending.iter().rposition(|&byte| byte == b'\n');
            if let Some(end) = complete {
                pending[..end].split(|&byte| byte == b'\n').try_for_each(&mut *each)?;
                pending.drain(..=end);
            }
            Ok(())
        })
    }

    /// Has the gateway do something with these bytes.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn post_bytes<T: DeserializeOwned>(
        &self,
        path: &str,
        body: impl Into<Bytes>,
    ) -> Result<T, ClientError> {
        self.exchange(Method::POST, path, body.into())
    }

    /// Reads a stream of bytes and calls `each` with every part of it, as it comes.
    ///
    /// # Errors
    /// Those of [`Client::lines`].
    pub fn chunks<E: From<ClientError>>(
        &self,
        path: &str,
        each: &mut dyn FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        self.runtime.block_on(async {
            let mut response = self.send(Method::GET, path, Bytes::new()).await?;
            while let Some(frame) = response.frame().await {
                let frame = frame.map_err(|error| self.lost(&error))?;
                frame.data_ref().map_or(Ok(()), |data| each(data))?;
            }
            Ok(())
        })
    }

    fn exchange<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
    ) -> Result<T, ClientError> {
        self.runtime.block_on(async {
            let response = self.send(method, path, body).await?;
            let body = response.collect().await.map_err(|error| self.lost(&error))?.to_bytes();
            serde_json::from_slice(&body).map_err(|error| self.broken(error))
        })
    }

    /// Sends a request, again if the gateway has just handed over to another process; an answer other
    /// than 200 is an error.
    async fn send(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
    ) -> Result<Response<Incoming>, ClientError> {
        let begin = Instant::now();
        loop {
            let answer = self.send_once(method.clone(), path, body.clone()).await;
            if begin.elapsed() < SUCCESSION && self.is_handed_over(&method, &answer).await {
                tokio::time::sleep(ASK_AGAIN).await;
                continue;
            }
            return self.checked(answer?).await;
        }
    }

    /// True if another process takes the request. The one that was asked says so, or has ended before it
    /// took a question.
    async fn is_handed_over(
        &self,
        method: &Method,
        answer: &Result<Response<Incoming>, ClientError>,
    ) -> bool {
        match answer {
            Ok(response) => response.status() == StatusCode::MISDIRECTED_REQUEST,
            Err(ClientError::Stopped { .. }) => {
                *method == Method::GET && UnixStream::connect(&self.socket).await.is_ok()
            }
            Err(_) => false,
        }
    }

    async fn send_once(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
    ) -> Result<Response<Incoming>, ClientError> {
        let stream =
            UnixStream::connect(&self.socket).await.map_err(|error| self.not_connected(error))?;
        let (mut sender, connection) =
            http1::handshake(TokioIo::new(stream)).await.map_err(|error| self.lost(&error))?;
        // The task ends with the connection. The request reports its errors.
        tokio::spawn(connection);
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("host", "stateway")
            .header("content-type", "application/json")
            .body(Full::new(body))
            .map_err(|error| self.broken(error))?;
        tokio::time::timeout(self.patience, sender.send_request(request))
            .await
            .map_err(|_| self.broken(format!("no answer within {} s", self.patience.as_secs())))?
            .map_err(|error| self.lost(&error))
    }

    /// The response, unless it refuses the request.
    async fn checked(
        &self,
        response: Response<Incoming>,
    ) -> Result<Response<Incoming>, ClientError> {
        if response.status() == StatusCode::OK {
            return Ok(response);
        }
        let status = response.status();
        let body = response.collect().await.map_err(|error| self.lost(&error))?.to_bytes();
        match serde_json::from_slice::<Refusal>(&body) {
            Ok(refusal) if status == StatusCode::BAD_REQUEST => {
                Err(ClientError::BadRequest(refusal.error))
            }
            Ok(refusal) => Err(ClientError::Refused(refusal.error)),
            Err(_) => Err(self.broken(status)),
        }
    }

    fn encode(&self, body: &impl Serialize) -> Result<Bytes, ClientError> {
        serde_json::to_vec(body).map(Bytes::from).map_err(|error| self.broken(error))
    }

    fn not_connected(&self, error: io::Error) -> ClientError {
        let socket = self.socket.clone();
        match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
                let found = std::fs::metadata(&socket).map(|found| found.file_type());
                match found {
                    Ok(found) if found.is_dir() => {
                        ClientError::NotASocket { socket, what: "a directory" }
                    }
                    Ok(found) if !found.is_socket() => {
                        ClientError::NotASocket { socket, what: "a file" }
                    }
                    _ => ClientError::NotRunning { socket },
                }
            }
            io::ErrorKind::PermissionDenied => ClientError::NoPermission { socket },
            _ => self.broken(error),
        }
    }

    /// The error for a connection that ended. An answer that can not be parsed came from a process
    /// that still exists.
    fn lost(&self, error: &hyper::Error) -> ClientError {
        if error.is_parse() {
            self.broken(error)
        } else {
            ClientError::Stopped { socket: self.socket.clone() }
        }
    }

    fn broken(&self, what: impl ToString) -> ClientError {
        ClientError::Broken { socket: self.socket.clone(), what: what.to_string() }
    }
}
