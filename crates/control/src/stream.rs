//! Answers that are sent while they are produced: lists and events.
//!
//! A thread produces lines and sends them in chunks through a short queue. When the reader is slow,
//! the producer waits. When the reader has gone, the producer ends.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use hyper::body::{Body, Bytes, Frame};
use tokio::sync::mpsc::{Receiver, Sender, channel};

/// Bytes collected before a chunk is sent.
const CHUNK: usize = 64 * 1024;

/// Chunks that may wait for the reader.
const CHUNKS_AHEAD: usize = 4;

/// The reader has gone.
#[derive(Debug)]
pub(crate) struct ReaderGone;

/// The producing end. It blocks, and belongs on a thread of its own.
#[derive(Debug)]
pub(crate) struct LineSender {
    chunks: Sender<Bytes>,
    pending: Vec<u8>,
}

/// The reading end, an HTTP body.
#[derive(Debug)]
pub(crate) struct LineBody {
    chunks: Receiver<Bytes>,
}

/// Both ends of a stream of lines.
pub(crate) fn lines() -> (LineSender, LineBody) {
    let (sender, receiver) = channel(CHUNKS_AHEAD);
    (LineSender { chunks: sender, pending: Vec::new() }, LineBody { chunks: receiver })
}

impl LineSender {
    /// Appends a line that `write` produces, and ends it.
    pub fn line(&mut self, write: impl FnOnce(&mut Vec<u8>)) -> Result<(), ReaderGone> {
        write(&mut self.pending);
        self.pending.push(b'\n');
        if self.pending.len() >= CHUNK { self.flush() } else { Ok(()) }
    }

    /// Appends bytes that `write` produces.
    pub fn add(&mut self, write: impl FnOnce(&mut Vec<u8>)) -> Result<(), ReaderGone> {
        write(&mut self.pending);
        if self.pending.len() >= CHUNK { self.flush() } else { Ok(()) }
    }

    /// Sends the collected lines.
    pub fn flush(&mut self) -> Result<(), ReaderGone> {
        if self.pending.is_empty() {
            return if self.chunks.is_closed() { Err(ReaderGone) } else { Ok(()) };
        }
        let chunk = Bytes::from(std::mem::take(&mut self.pending));
        self.chunks.blocking_send(chunk).map_err(|_| ReaderGone)
    }
}

impl Body for LineBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.chunks.poll_recv(context).map(|chunk| chunk.map(|bytes| Ok(Frame::data(bytes))))
    }
}
