//! Connections to the control socket: a bounded number, none of which keeps others out.
//!
//! A connection carries one request. When all places are taken, a new connection evicts one: the
//! one that has kept the gateway waiting longest, either for its request or to read its answer.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::UnixStream;
use tokio::sync::Notify;

/// The largest number of connections at the same time.
const MAX_CONNECTIONS: usize = 64;
/// At most one in this many of the process's descriptors is for connections. The others stay free
/// for interfaces, routes and programs, however many clients connect.
const SHARE: u64 = 4;
/// The time after which a reader that takes nothing of its answer may be evicted.
const READER_PATIENCE: Duration = Duration::from_secs(5);
/// The time between two checks for a connection to evict.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// All connections.
#[derive(Clone, Debug)]
pub(crate) struct Connections {
    most: usize,
    all: Arc<Mutex<Vec<Arc<Connection>>>>,
}

/// The state of a connection.
#[derive(Debug)]
pub(crate) struct Connection {
    turn: Mutex<Turn>,
    gives_way: Notify,
}

/// The side whose turn it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    /// The gateway's: it has the request, and the client has read all that there is of the answer.
    Gateway,
    /// The client's since this time: the rest of the request has to come.
    Asking(Instant),
    /// The client's since this time: it has to read.
    Reading(Instant),
}

impl Connections {
    /// No connections yet, in a process that may have this many `descriptors`.
    pub fn new(descriptors: u64) -> Self {
        let share = usize::try_from(descriptors / SHARE).unwrap_or(usize::MAX);
        Self { most: share.clamp(1, MAX_CONNECTIONS), all: Arc::default() }
    }

    /// Waits for a free place, and takes it.
    pub async fn admit(&self) -> Admitted {
        while self.all().len() >= self.most {
            if !self.have_one_give_way(|turn| turn.gives_way_to_connections()) {
                tokio::time::sleep(LOOK_EVERY).await;
            }
        }
        let turn = Mutex::new(Turn::Asking(Instant::now()));
        let connection = Arc::new(Connection { turn, gives_way: Notify::new() });
        self.all().push(connection.clone());
        Admitted { connection, connections: self.clone() }
    }

    /// Ends the connection whose reader has stalled longest; false if there is none.
    pub fn end_stalled_reader(&self) -> bool {
        self.have_one_give_way(|turn| turn.has_stalled())
    }

    /// Ends the connection for which the gateway has waited longest.
    fn have_one_give_way(&self, since: impl Fn(Turn) -> Option<Instant>) -> bool {
        let mut all = self.all();
        let candidates = all.iter().enumerate();
        let candidates = candidates.filter_map(|(at, it)| Some((since(*it.turn())?, at)));
        let Some((_, at)) = candidates.min() else { return false };
        all.swap_remove(at).gives_way.notify_one();
        true
    }

    fn all(&self) -> MutexGuard<'_, Vec<Arc<Connection>>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Turn {
    /// The time since when the gateway waits for a client that has to make room for a new
    /// connection.
    fn gives_way_to_connections(self) -> Option<Instant> {
        match self {
            Self::Asking(since) => Some(since),
            Self::Gateway | Self::Reading(_) => self.has_stalled(),
        }
    }

    /// The time since when the gateway waits for a reader that has stalled.
    fn has_stalled(self) -> Option<Instant> {
        match self {
            Self::Reading(since) if since.elapsed() >= READER_PATIENCE => Some(since),
            Self::Gateway | Self::Asking(_) | Self::Reading(_) => None,
        }
    }
}

impl Connection {
    fn turn(&self) -> MutexGuard<'_, Turn> {
        self.turn.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// True if its request is not complete yet.
    pub fn is_asking(&self) -> bool {
        matches!(*self.turn(), Turn::Asking(_))
    }

    /// Notes that the header of its request has come.
    pub fn has_asked(&self) {
        *self.turn() = Turn::Gateway;
    }

    /// Waits until this connection is evicted.
    pub async fn gives_way(&self) {
        self.gives_way.notified().await;
    }

    /// Notes whether the gateway waits for the client. The wait counts from the first such note.
    fn waits(&self, is_waiting: bool, turn: fn(Instant) -> Turn) {
        let mut now = self.turn();
        match (is_waiting, *now) {
            (false, _) => *now = Turn::Gateway,
            (true, Turn::Gateway) => *now = turn(Instant::now()),
            (true, _) => {}
        }
    }
}

/// A place for a connection.
#[derive(Debug)]
pub(crate) struct Admitted {
    pub connection: Arc<Connection>,
    connections: Connections,
}

impl Drop for Admitted {
    fn drop(&mut self) {
        self.connections.all().retain(|other| !Arc::ptr_eq(other, &self.connection));
    }
}

/// A stream that notes when its reader does not read.
#[derive(Debug)]
pub(crate) struct ClientStream {
    pub stream: UnixStream,
    pub connection: Arc<Connection>,
}

impl ClientStream {
    fn note<T>(&self, polled: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        self.connection.waits(polled.is_pending(), Turn::Reading);
        polled
    }
}

impl AsyncRead for ClientStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for ClientStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.note(polled)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write_vectored(context, parts);
        self.note(polled)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

/// The body of a request, which notes when it does not come.
#[derive(Debug)]
pub(crate) struct Arriving {
    pub body: Incoming,
    pub connection: Arc<Connection>,
}

impl Body for Arriving {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(context);
        self.connection.waits(polled.is_pending(), Turn::Asking);
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
