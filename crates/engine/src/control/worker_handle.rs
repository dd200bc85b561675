//! The workers as the coordinator sees them: threads, rings and commands.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

use netio::Waker;
use rtrb::{Consumer, Producer, RingBuffer};
use steer::{SteerSettings, WorkerId};

use crate::control::execution::{Execution, PATIENCE};
use crate::rings::link::{CONTROL_RESERVE, Wakeup, connect};
use crate::worker::Worker;
use crate::worker::command::{Command, Question};
use crate::worker::report::WorkerReport;

/// Most commands that may wait for a worker.
const INBOX: usize = 256;

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
    execution: Execution,
    thread: Option<JoinHandle<WorkerReport>>,
}

impl WorkerHandle {
    /// Creates the handle of a worker that the caller runs, and the worker's end of its inbox.
    ///
    /// # Errors
    /// The system's error if it gives no event descriptor.
    pub fn new(id: WorkerId, cpu: Option<usize>) -> std::io::Result<(Self, Consumer<Command>)> {
        let (commands, inbox) = RingBuffer::new(INBOX);
        let wakeup = Wakeup::new(Waker::new()?);
        let execution = Execution::Threads;
        Ok((Self { id, cpu, wakeup, commands, execution, thread: None }, inbox))
    }

    /// Puts a test between the coordinator and the worker. Returns the commands of the
    /// coordinator, and the end that leads to the worker.
    #[cfg(test)]
    pub fn interpose(&mut self) -> (Consumer<Command>, Producer<Command>) {
        let (commands, inbox) = RingBuffer::new(INBOX);
        (inbox, std::mem::replace(&mut self.commands, commands))
    }

    /// Starts the worker in this way.
    ///
    /// # Errors
    /// The system's error if it gives no thread.
    pub fn start(&mut self, worker: Worker, execution: &Execution) -> std::io::Result<()> {
        self.thread = execution.start(worker)?;
        self.execution = execution.clone();
        Ok(())
    }

    /// Sends a command and wakes the worker.
    ///
    /// # Errors
    /// [`Unresponsive`] if the inbox stays full.
    pub fn tell(&mut self, command: Command) -> Result<(), Unresponsive> {
        let Self { id, wakeup, commands, execution, .. } = self;
        let mut left = Some(command);
        let outcome = execution.retry(|| {
            if let Err(rtrb::PushError::Full(back)) = commands.push(left.take()?) {
                left = Some(back);
            }
            wakeup.ring();
            left.is_none().then_some(())
        });
        outcome.ok_or(Unresponsive(*id))
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
        self.execution.receive(&pending).ok_or(Unresponsive(self.id))
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
        match (self.thread.take(), &self.execution) {
            (Some(thread), _) => thread.join().map_err(|_| Unresponsive(self.id)),
            (None, Execution::Stepped(stepper)) => {
                stepper.stopped(self.id).ok_or(Unresponsive(self.id))
            }
            (None, Execution::Threads) => Ok(WorkerReport::default()),
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
