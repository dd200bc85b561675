//! The output of a capture that is written, which takes it in pieces.

use std::io::{self, Write};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

type Output = Box<dyn Write + Send>;

/// Takes pieces, and knows which packets have reached the system.
pub(super) struct Sink {
    way: Way,
    /// Number of packets that the system has taken.
    kept: u64,
}

enum Way {
    Direct(Output),
    Behind(Behind),
}

/// Pieces are written on another thread, one at a time.
struct Behind {
    pieces: SyncSender<Vec<u8>>,
    written: Receiver<(Vec<u8>, io::Result<()>)>,
    /// The packets up to the end of the piece that is under way.
    under_way: Option<u64>,
    /// Memory for the next piece.
    spare: Vec<u8>,
}

impl Sink {
    pub(super) const fn new(output: Output) -> Self {
        Self { way: Way::Direct(output), kept: 0 }
    }

    /// Has the pieces written by a thread of their own.
    pub(super) fn go_behind(&mut self) -> io::Result<()> {
        let Way::Direct(output) = &mut self.way else { return Ok(()) };
        let output = std::mem::replace(output, Box::new(io::sink()));
        let (pieces, to_write) = sync_channel(1);
        let (done, written) = sync_channel(1);
        let write = move || write_pieces(output, &to_write, &done);
        thread::Builder::new().name("writer".into()).spawn(write)?;
        let behind = Behind { pieces, written, under_way: None, spare: Vec::new() };
        self.way = Way::Behind(behind);
        Ok(())
    }

    /// Number of packets that the system has taken.
    pub(super) const fn kept(&self) -> u64 {
        self.kept
    }

    /// Takes a piece that ends with the packet of this number, and leaves an empty one. On the way
    /// behind, the error is that of the piece before.
    pub(super) fn put(&mut self, piece: &mut Vec<u8>, packets: u64) -> io::Result<()> {
        match &mut self.way {
            Way::Direct(output) => {
                output.write_all(piece)?;
                piece.clear();
                self.kept = packets;
            }
            Way::Behind(behind) => {
                behind.wait(&mut self.kept)?;
                let full = std::mem::replace(piece, std::mem::take(&mut behind.spare));
                behind.pieces.send(full).map_err(|_| ended())?;
                behind.under_way = Some(packets);
            }
        }
        Ok(())
    }

    /// Waits until all pieces have reached the system.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        match &mut self.way {
            Way::Direct(output) => output.flush(),
            Way::Behind(behind) => behind.wait(&mut self.kept),
        }
    }
}

impl Behind {
    /// Waits for the piece that is under way.
    fn wait(&mut self, kept: &mut u64) -> io::Result<()> {
        let Some(packets) = self.under_way.take() else { return Ok(()) };
        let (piece, result) = self.written.recv().map_err(|_| ended())?;
        self.spare = piece;
        result?;
        *kept = packets;
        Ok(())
    }
}

fn ended() -> io::Error {
    io::Error::other("the thread that writes has ended")
}

fn write_pieces(
    mut output: Output,
    pieces: &Receiver<Vec<u8>>,
    done: &SyncSender<(Vec<u8>, io::Result<()>)>,
) {
    while let Ok(mut piece) = pieces.recv() {
        let result = output.write_all(&piece).and_then(|()| output.flush());
        piece.clear();
        if done.send((piece, result)).is_err() {
            return;
        }
    }
}
