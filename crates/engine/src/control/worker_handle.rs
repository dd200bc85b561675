//! The workers as the coordinator sees them: threads, rings and commands.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use netio::Waker;
use rtrb::{Consumer, Producer, RingBuffer};
use steer::{SteerSettings, WorkerId};

use crate::rings::link::{CONTROL_RESERVE, Wakeup, connect};
use crate::worker::command::{Command, Question};
use crate::worker::report::WorkerReport;

/// Most commands that may wait for a worker.
const INBOX: usize = 256;
/// The time after which a worker without an answer counts as stuck. A turn takes well under a
/// millisecond, so seconds mean that the machine is stopped.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// A worker does not answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("worker {} did not answer within {} s", .0.0, PATIENCE.as_secs())]
pub struct Unresponsive(pub WorkerId);

/// The coordinator's end of one worker.
pub struct WorkerHandle {
    /// Its number.
    pub id: WorkerId,
    /// The CPU that it is pinned to.
    pub cpu: Option<usize>,
    /// Wakes it.
    pub wakeup: Wakeup,
    commands: Producer<Command>,
    thread: Option<JoinHandle<WorkerReport>>,
}

impl WorkerHandle {
    /// Creates the handle of a worker without a thread, and the worker's end of its inbox.
    ///
    /// # Errors
    /// The system's error if it gives no event descriptor.
    pub fn new(id: WorkerId, cpu: Option<usize>) -> std::io::Result<(Self, Consumer<Command>)> {
        let (commands, inbox) = RingBuffer::new(INBOX);
        let wakeup = Wakeup::new(Waker::new()?);
        Ok((Self { id, cpu, wakeup, commands, thread: None }, inbox))
    }

    /// Puts a test between the coordinator and the worker. Returns the commands of the
    /// coordinator, and the end that leads to the worker.
    #[cfg(test)]
    pub fn interpose(&mut self) -> (Consumer<Command>, Producer<Command>) {
        let (commands, inbox) = RingBuffer::new(INBOX);
        (inbox, std::mem::replace(&mut self.commands, commands))
    }

    /// Sets the thread that runs the worker.
    pub fn set_thread(&mut self, thread: JoinHandle<WorkerReport>) {
        self.thread = Some(thread);
    }

    /// Sends a command and wakes the worker.
    ///
    /// # Errors
    /// [`Unresponsive`] if the inbox stays full.
    pub fn tell(&mut self, mut command: Command) -> Result<(), Unresponsive> {
        const PAUSE: Duration = Duration::from_micros(100);
        for _ in 0..PATIENCE.as_micros() / PAUSE.as_micros() {
            match self.commands.push(command) {
                Ok(()) => {
                    self.wakeup.ring();
                    return Ok(());
                }
                Err(rtrb::PushError::Full(back)) => command = back,
            }
            self.wakeup.ring();
            std::thread::sleep(PAUSE);
        }
        Err(Unresponsive(self.id))
    }

    /// True if the worker takes a command at once.
    pub fn has_room(&self) -> bool {
        !self.commands.is_full()
    }

    /// Asks a question and waits for the answer.
    ///
    /// # Errors
    /// [`Unresponsive`].
    pub fn ask<T>(
        &mut self,
        question: impl FnOnce(SyncSender<T>) -> Question,
    ) -> Result<T, Unresponsive> {
        let pending = self.ask_later(question)?;
        pending.recv_timeout(PATIENCE).map_err(|_| Unresponsive(self.id))
    }

    /// Asks a question. The answer comes through the channel.
    ///
    /// # Errors
    /// [`Unresponsive`] if the inbox stays full.
    pub fn ask_later<T>(
        &mut self,
        question: impl FnOnce(SyncSender<T>) -> Question,
    ) -> Result<Receiver<T>, Unresponsive> {
        let (reply, answer) = sync_channel(1);
        self.tell(Command::Ask(question(reply)))?;
        Ok(answer)
    }

    /// Stops the worker and returns its last report.
    ///
    /// # Errors
    /// [`Unresponsive`] when its inbox stays full or its thread has panicked.
    pub fn stop(&mut self) -> Result<WorkerReport, Unresponsive> {
        self.tell(Command::Stop)?;
        match self.thread.take() {
            Some(thread) => thread.join().map_err(|_| Unresponsive(self.id)),
            None => Ok(WorkerReport::default()),
        }
    }
}

/// Connects two workers by rings in both directions.
///
/// # Errors
/// [`Unresponsive`] when one of them does not take the command.
pub fn introduce(
    a: &mut WorkerHandle,
    b: &mut WorkerHandle,
    settings: &SteerSettings,
) -> Result<(), Unresponsive> {
    // The size of the rings does not change. If the limit is raised later, items that do not fit
    // wait with their sender.
    let slots = settings.netdev_max_backlog() + CONTROL_RESERVE;
    let limits = |consumer| settings.backlog_limits(consumer);
    let [to_b, to_a] = connect(slots, (a.id, &a.wakeup), (b.id, &b.wakeup), limits);
    a.tell(Command::Connect(to_b.0, Box::new(to_b.1)))?;
    b.tell(Command::Connect(to_a.0, Box::new(to_a.1)))
}
