//! Who is connected to the control socket: a bounded number, among whom nobody keeps others out.
//!
//! A connection carries one request. When there are as many as may be, the one gives way that has
//! kept the gateway waiting longest: for its request, or to read what it has asked for.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::UnixStream;
use tokio::sync::Notify;

/// Most connections at the same time.
const MAX_CONNECTIONS: usize = 64;
/// Of the descriptors that the process may have, one in so many is for connections at most: the
/// others stay for interfaces, routes and programs, whatever those who connect do.
const SHARE: u64 = 4;
/// How long a reader may take nothing of an answer before it gives way to others.
const READER_PATIENCE: Duration = Duration::from_secs(5);
/// How often it is looked whether somebody gives way, where nobody does at once.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Everybody who is connected.
#[derive(Clone, Debug)]
pub(crate) struct Connections {
    most: usize,
    all: Arc<Mutex<Vec<Arc<Connection>>>>,
}

/// What is known of a connection.
#[derive(Debug)]
pub(crate) struct Connection {
    turn: Mutex<Turn>,
    gives_way: Notify,
}

/// Whose turn it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    /// The gateway's: it has the request, and the other end has read what there is of the answer.
    Gateway,
    /// The other end's since then: the rest of the request is to come.
    Asking(Instant),
    /// The other end's since then: it is to read.
    Reading(Instant),
}

impl Connections {
    /// Nobody yet, of a process that may have so many descriptors.
    pub fn new(descriptors: u64) -> Self {
        let share = usize::try_from(descriptors / SHARE).unwrap_or(usize::MAX);
        Self { most: share.clamp(1, MAX_CONNECTIONS), all: Arc::default() }
    }

    /// Waits until there is room for one more, and takes it.
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

    /// Ends the one that is waited for longest.
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
    /// Since when it is waited for somebody who may have to make room for others.
    fn gives_way_to_connections(self) -> Option<Instant> {
        match self {
            Self::Asking(since) => Some(since),
            Self::Gateway | Self::Reading(_) => self.has_stalled(),
        }
    }

    /// Since when it is waited for a reader that has stalled.
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

    /// True if its request is not there yet.
    pub fn is_asking(&self) -> bool {
        matches!(*self.turn(), Turn::Asking(_))
    }

    /// The header of its request is there.
    pub fn has_asked(&self) {
        *self.turn() = Turn::Gateway;
    }

    /// Waits until it has to give way to others.
    pub async fn gives_way(&self) {
        self.gives_way.notified().await;
    }

    /// Notes whether it waits for the other end. It waits since the first time.
    fn waits(&self, is_waiting: bool, turn: fn(Instant) -> Turn) {
        let mut now = self.turn();
        match (is_waiting, *now) {
            (false, _) => *now = Turn::Gateway,
            (true, Turn::Gateway) => *now = turn(Instant::now()),
            (true, _) => {}
        }
    }
}

/// A place among the connections.
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

/// A stream that notes when its other end does not read.
#[derive(Debug)]
pub(crate) struct Watched {
    pub stream: UnixStream,
    pub connection: Arc<Connection>,
}

impl Watched {
    fn noted<T>(&self, polled: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        self.connection.waits(polled.is_pending(), Turn::Reading);
        polled
    }
}

impl AsyncRead for Watched {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Watched {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.noted(polled)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write_vectored(context, parts);
        self.noted(polled)
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
