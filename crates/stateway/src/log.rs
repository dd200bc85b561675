//! Standard error. While a gateway runs, no thread waits for the reader of standard error. A log
//! pipe without a reader, or a full disk, costs lines and nothing else.
//!
//! Lines go into a queue of bounded size, and a thread of its own writes them. Lines that do not
//! fit are lost and counted, and the log says so when it goes on.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::fmt;
use std::io::{self, Write};
use std::panic::PanicHookInfo;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use flow::Shown;

use crate::print::things;

/// The largest number of bytes of lines that wait for the reader: about 2000 lines, or ten seconds
/// of log lines that the rules of two workers may ask for.
const QUEUE_BYTES: usize = 256 << 10;
/// The longest time that the end of the program waits for the reader.
const GRACE: Duration = Duration::from_secs(1);
/// Pause before the next attempt at a write that would block. Another process may have made the
/// file description of standard error non-blocking.
const WRITE_AGAIN: Duration = Duration::from_millis(20);

/// The queue to standard error, once a gateway has begun.
static QUEUE: OnceLock<Queue> = OnceLock::new();

/// Starts a thread that writes to standard error. From now on no other thread waits for it.
///
/// # Errors
/// The system's error if it has no thread.
pub fn start() -> io::Result<()> {
    let queue = QUEUE.get_or_init(Queue::new);
    std::thread::Builder::new().name("log".into()).spawn(|| queue.write_to(io::stderr()))?;
    Ok(())
}

/// Writes a line; text from outside is escaped.
pub fn tell(text: fmt::Arguments<'_>) {
    let line = format!("{}\n", Shown(text));
    match QUEUE.get() {
        Some(queue) => queue.put(line.as_bytes()),
        // A full disk, or a reader that has gone, must not end a command.
        None => drop(io::stderr().write_all(line.as_bytes())),
    }
}

/// Lines that were lost since the start.
pub fn lost() -> u64 {
    QUEUE.get().map_or(0, |queue| queue.lost.load(Ordering::Relaxed))
}

/// Waits until everything is written, but not longer than [`GRACE`] for a slow reader.
pub fn end() {
    if let Some(queue) = QUEUE.get() {
        queue.wait_until_written(GRACE);
    }
}

/// Ends the process after a panic, from which it can not recover, and logs the reason.
pub fn abort(panic: &PanicHookInfo<'_>) -> ! {
    let thread = std::thread::current();
    tell(format_args!("thread {}: {panic}", thread.name().unwrap_or("without a name")));
    let backtrace = Backtrace::capture();
    if backtrace.status() == BacktraceStatus::Captured {
        backtrace.to_string().lines().for_each(|line| tell(format_args!("{line}")));
    }
    let what = "internal error; the gateway ends so that it can be started again";
    tell(format_args!("stateway: {what}"));
    end();
    std::process::abort()
}

/// The output of `tracing`, which writes each line in one piece.
#[derive(Clone, Copy, Debug)]
pub struct Log;

impl Write for Log {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if let Some(queue) = QUEUE.get() {
            queue.put(line);
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Lines that wait to be written.
#[derive(Debug)]
struct Queue {
    waiting: Mutex<Waiting>,
    changed: Condvar,
    /// Lines that were lost since the start.
    lost: AtomicU64,
}

#[derive(Debug)]
struct Waiting {
    /// Whole lines.
    lines: Vec<u8>,
    /// Lost lines behind these, which did not fit any more.
    lost: u64,
    /// True while the thread writes other lines.
    is_writing: bool,
}

impl Waiting {
    fn is_empty(&self) -> bool {
        self.lines.is_empty() && self.lost == 0
    }
}

impl Queue {
    fn new() -> Self {
        // The whole capacity at once, so that nothing is allocated under the lock.
        let lines = Vec::with_capacity(QUEUE_BYTES);
        let waiting = Mutex::new(Waiting { lines, lost: 0, is_writing: false });
        Self { waiting, changed: Condvar::new(), lost: AtomicU64::new(0) }
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        // No operation under the lock can be left half done.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a line, or counts it as lost. Once a line is lost, all that follow are lost until there
    /// is room, so that the log can say where lines are missing.
    fn put(&self, line: &[u8]) {
        let mut waiting = self.lock();
        if waiting.lost == 0 && waiting.lines.len() + line.len() <= QUEUE_BYTES {
            waiting.lines.extend_from_slice(line);
        } else {
            waiting.lost += 1;
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
        drop(waiting);
        self.changed.notify_all();
    }

    /// Writes the lines of the queue for ever.
    fn write_to(&self, output: impl Write) {
        let mut writer = Writer { output, owed: 0, breaks_off: false };
        let mut lines = Vec::with_capacity(QUEUE_BYTES);
        loop {
            let lost = self.take(&mut lines);
            let failed = writer.write(&lines, lost);
            self.lost.fetch_add(failed, Ordering::Relaxed);
        }
    }

    /// Waits for lines and takes them; returns the number of lost lines behind them.
    fn take(&self, lines: &mut Vec<u8>) -> u64 {
        lines.clear();
        let mut waiting = self.lock();
        waiting.is_writing = false;
        self.changed.notify_all();
        while waiting.is_empty() {
            waiting = self.changed.wait(waiting).unwrap_or_else(PoisonError::into_inner);
        }
        waiting.is_writing = true;
        std::mem::swap(&mut waiting.lines, lines);
        std::mem::take(&mut waiting.lost)
    }

    fn wait_until_written(&self, patience: Duration) {
        let is_written = |waiting: &mut Waiting| waiting.is_writing || !waiting.is_empty();
        // The result does not matter: the program ends either way.
        drop(self.changed.wait_timeout_while(self.lock(), patience, is_written));
    }
}

/// Writes lines, and remarks where some are missing.
struct Writer<W> {
    output: W,
    /// Lines that could not be written and have no remark yet.
    owed: u64,
    /// True if the last line that was written is not complete.
    breaks_off: bool,
}

impl<W: Write> Writer<W> {
    /// Writes lines; `lost` more are missing behind them. Returns how many lines could not be
    /// written, as on a full disk.
    fn write(&mut self, lines: &[u8], lost: u64) -> u64 {
        if self.owed > 0 && self.say(self.owed, "could not be written") {
            self.owed = 0;
        }
        let written = self.write_bytes(lines);
        let failed = lines[written..].iter().filter(|&&byte| byte == b'\n').count() as u64;
        self.owed += failed;
        if lost > 0 && !self.say(lost, "was not read in time") {
            self.owed += lost;
        }
        failed
    }

    /// Writes a remark about missing lines; true if that was possible.
    fn say(&mut self, lines: u64, why: &str) -> bool {
        let line_end = if self.breaks_off { "\n" } else { "" };
        let lines = things(lines, "line");
        let remark =
            format!("{line_end}stateway: {lines} of the log lost here: standard error {why}\n");
        self.write_bytes(remark.as_bytes()) == remark.len()
    }

    /// Writes as many bytes as possible, and returns their number.
    fn write_bytes(&mut self, bytes: &[u8]) -> usize {
        let mut written = 0;
        while written < bytes.len() {
            match self.output.write(&bytes[written..]) {
                Ok(0) => break,
                Ok(more) => written += more,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    std::thread::sleep(WRITE_AGAIN);
                }
                Err(_) => break,
            }
        }
        if let Some(last) = bytes[..written].last() {
            self.breaks_off = *last != b'\n';
        }
        written
    }
}

#[cfg(test)]
#[path = "log_tests.rs"]
mod tests;
