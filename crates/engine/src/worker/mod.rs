//! A worker: everything that one thread of the gateway owns.
//!
//! A worker knows nothing of threads or clocks. Its owner calls
//! [`Worker::turn`] with the time; a thread does so for ever, the replay in a
//! lockstep of several workers, a test as it likes.

pub mod command;
pub mod dispatch;
pub mod queue;
pub mod report;
pub mod thread;
mod waits;

use std::sync::mpsc::Sender;

use flow::Timestamp;
use netio::{Frame, PortError};
use netpolicy::Pick;
use rtrb::Consumer;
use steer::BucketId;

use crate::path::PacketPath;
use crate::path::equipment::PathEquipment;
use crate::path::peers::News;
use crate::path::upkeep::Upkept;
use crate::rings::link::Wakeup;
use crate::worker::command::{Command, Notice};
use crate::worker::queue::Queue;
use crate::worker::waits::Waits;
use crate::{BATCH, Bucket};

/// The parts that a worker is made from.
pub struct Equipment {
    /// The parts of its packet path.
    pub path: PathEquipment,
    /// Commands from the coordinator.
    pub inbox: Consumer<Command>,
    /// Notices to the coordinator.
    pub notices: Sender<Notice>,
    /// How this worker is woken.
    pub wakeup: Wakeup,
}

/// The result of a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// Packets or commands were processed.
    Worked,
    /// There was nothing to do.
    Idle,
    /// The worker was told to stop.
    Stopped,
}

/// One worker.
pub struct Worker {
    /// The packet path, whose interface is its own.
    pub(crate) path: PacketPath,
    queues: Vec<Queue>,
    inbox: Consumer<Command>,
    notices: Sender<Notice>,
    wakeup: Wakeup,
    received: Vec<Frame>,
    /// Nanoseconds spent with packets in hand.
    busy_ns: u64,
    /// A CPU that its thread is to be pinned to.
    pin: Option<usize>,
    waits: Waits,
}

impl Worker {
    /// A worker that owns no bucket and no queue yet.
    pub fn new(equipment: Equipment) -> Self {
        Self {
            waits: Waits::new(&equipment.path.settings),
            path: PacketPath::new(equipment.path),
            queues: Vec::new(),
            inbox: equipment.inbox,
            notices: equipment.notices,
            wakeup: equipment.wakeup,
            received: Vec::with_capacity(BATCH),
            busy_ns: 0,
            pin: None,
        }
    }

    /// Gives the worker a bucket before it starts.
    pub fn install(&mut self, bucket: BucketId, content: Box<Bucket>) {
        self.path.install(bucket, content);
    }

    /// Takes commands, packets from peers, packets from its queues; processes
    /// them, and sends what they lead to. It answers one question at most, so packets do not wait
    /// for somebody who asks again as soon as there is an answer.
    pub fn turn(&mut self, now: Timestamp) -> Turn {
        self.turn_with(now, |worker| worker.take_from_queues(now))
    }

    /// The same with packets that `take` has, and returns true if it had any.
    #[inline]
    pub(crate) fn turn_with(
        &mut self,
        now: Timestamp,
        take: impl FnOnce(&mut Self) -> bool,
    ) -> Turn {
        self.path.begin_turn(now);
        self.waits.begin_turn();
        let mut worked = self.path.end_calls(now);
        while let Ok(command) = self.inbox.pop() {
            worked = true;
            if matches!(command, Command::Stop) {
                self.path.stop_deferring(now);
                return Turn::Stopped;
            }
            let is_question = matches!(command, Command::Ask(_));
            self.obey(command, now);
            if is_question {
                break;
            }
        }
        worked |= self.path.take_host_answers(now);
        worked |= self.path.send_deferred(now);
        worked |= self.take_from_peers(now);
        worked |= take(self);
        self.end_turn(now);
        worked |= self.upkeep(now);
        if worked { Turn::Worked } else { Turn::Idle }
    }

    /// True when a command or an item of a peer waits, or something staged has
    /// not found room: to be asked after the doorbell was told of the sleep.
    pub fn has_work(&self) -> bool {
        !self.inbox.is_empty() || self.path.has_work()
    }

    /// When it has work although nothing comes; `None` if it needs no turn at a certain time.
    pub fn next_timeout(&self) -> Option<Timestamp> {
        self.path.next_deferred()
    }

    /// How it is woken.
    pub fn wakeup(&self) -> &Wakeup {
        &self.wakeup
    }

    /// The CPU that the worker was told to run on, once.
    pub fn take_pin(&mut self) -> Option<usize> {
        self.pin.take()
    }

    /// Counts time spent with packets in hand.
    pub fn add_busy(&mut self, nanos: u64) {
        self.busy_ns += nanos;
    }

    /// Counts a wake-up by another worker.
    pub fn count_wakeup(&mut self) {
        self.path.count_wakeup();
    }

    fn take_from_peers(&mut self, now: Timestamp) -> bool {
        let Self { path, notices, waits, .. } = self;
        let taken = path.take_from_peers(waits.peers, now, |news| {
            let notice = match news {
                News::Arrived(bucket) => Notice::Arrived(bucket),
                News::Marker(marker) => Notice::Marker(marker),
            };
            // A coordinator that is gone needs no notices.
            let _ = notices.send(notice);
        });
        waits.note(taken.items, if taken.is_more { taken.items } else { usize::MAX });
        taken.items > 0
    }

    fn take_from_queues(&mut self, now: Timestamp) -> bool {
        if self.waits.latency_queues > 0 {
            return self.take_by_service(now);
        }
        let mut worked = false;
        let mut index = 0;
        while index < self.queues.len() {
            let (came, result) = self.take_from_queue(index, self.queues[index].batch, now);
            worked |= came > 0;
            match result {
                Ok(_) => index += 1,
                Err(error) => self.drop_queue(index, error),
            }
        }
        worked
    }

    /// The same with queues of latency first, whose packets leave at once.
    fn take_by_service(&mut self, now: Timestamp) -> bool {
        let (mut worked, mut came) = (false, 0);
        let latency = self.waits.latency_queues;
        let mut turn = self.waits.lanes.begin(latency, self.queues.len() - latency);
        while let Some(pick) = turn.next(came) {
            let (index, most) = match pick {
                Pick::Latency(queue, most) => (queue, most),
                Pick::Bulk(queue) => (latency + queue, self.queues[latency + queue].batch),
            };
            let result;
            (came, result) = self.take_from_queue(index, most, now);
            worked |= came > 0;
            if let Err(error) = result {
                // The numbers of the others change by that.
                self.drop_queue(index, error);
                break;
            }
            if came > 0 && matches!(pick, Pick::Latency(..)) {
                self.path.send();
            }
        }
        self.waits.lanes = turn.end();
        worked
    }

    /// Takes packets from a queue and processes them. Returns their number, and the error of a queue
    /// that has failed behind them.
    #[inline]
    fn take_from_queue(
        &mut self,
        index: usize,
        most: usize,
        now: Timestamp,
    ) -> (usize, Result<usize, PortError>) {
        let queue = &mut self.queues[index];
        let result = self.path.receive(&mut *queue.source, &mut self.received, most);
        let came = self.received.len();
        self.waits.note(came, most);
        let mut frames = std::mem::take(&mut self.received);
        for mut frame in frames.drain(..) {
            let queue = &mut self.queues[index];
            queue.received.frames += 1;
            queue.received.bytes += frame.len() as u64;
            (frame.port, frame.service) = (queue.port, queue.service);
            if !queue.supplies_hash {
                frame.supplied_hash = 0;
            }
            self.path.take_frame(frame, now);
        }
        self.received = frames;
        self.path.process_received(now);
        (came, result)
    }

    fn drop_queue(&mut self, index: usize, error: PortError) {
        let mut queue = self.queues.swap_remove(index);
        self.path.count_too_long(queue.count_missing());
        self.follow_policies();
        self.notify(Notice::Failed(queue, error));
    }

    fn end_turn(&mut self, now: Timestamp) {
        let Self { path, notices, .. } = self;
        path.end_turn(now, |log, line| {
            // This fails only after the coordinator has gone.
            let _ = notices.send(Notice::Logged(log, line));
        });
    }

    /// Does a little of what time brings; true if there may be more of it, so that the worker does
    /// not sleep over it.
    fn upkeep(&mut self, now: Timestamp) -> bool {
        let Upkept { has_more, has_freed_much } = self.path.upkeep(now);
        if has_freed_much {
            self.notify(Notice::Freed);
        }
        has_more
    }

    fn notify(&self, notice: Notice) {
        // A coordinator that is gone needs no notices.
        let _ = self.notices.send(notice);
    }
}

#[cfg(test)]
#[path = "worker_tests.rs"]
mod tests;
