//! Runs a worker on a thread of its own.

use std::os::fd::AsFd;
use std::thread::JoinHandle;
use std::time::Duration;

use flow::Timestamp;
use netio::{Waiter, clock, cpu};
use netpolicy::Step;

use crate::worker::report::WorkerReport;
use crate::worker::{Turn, Worker};

/// The longest sleep, so that timers run in time.
const LONGEST_SLEEP: Duration = Duration::from_millis(200);

/// Starts the thread of a worker. It ends with [`crate::worker::command::Command::Stop`] and returns the
/// worker's last report.
///
/// # Errors
/// The system's error if it gives no thread.
pub fn spawn(mut worker: Worker) -> std::io::Result<JoinHandle<WorkerReport>> {
    let name = format!("worker-{}", worker.path.worker().0);
    std::thread::Builder::new().name(name).spawn(move || run(&mut worker))
}

fn run(worker: &mut Worker) -> WorkerReport {
    clock::wake_in_time();
    let mut waiter = Waiter::new();
    let mut now = clock::monotonic_nanoseconds();
    worker.begin(Timestamp::from_nanos(now));
    loop {
        if let Some(cpu) = cpu::current() {
            worker.path.runs_on(cpu);
        }
        let turn = worker.turn(Timestamp::from_nanos(now));
        if turn == Turn::Stopped {
            worker.path.end();
            return worker.report(Timestamp::from_nanos(now));
        }
        if turn == Turn::Worked {
            let then = clock::monotonic_nanoseconds();
            worker.add_busy(then - now);
            now = then;
        }
        let step = worker.next_step(turn, Timestamp::from_nanos(now));
        match step {
            Step::Turn => {}
            Step::Gather(time) => std::thread::sleep(time),
            Step::Block => block(worker, &mut waiter, Timestamp::from_nanos(now)),
        }
        // A turn with work has just read the clock.
        if turn == Turn::Idle || step != Step::Turn {
            now = clock::monotonic_nanoseconds();
        }
        if step != Step::Turn {
            worker.woken(Timestamp::from_nanos(now));
        }
        if let Some(cpu) = worker.take_pin() {
            pin(worker, cpu);
        }
    }
}

fn pin(worker: &Worker, cpu: usize) {
    if let Err(error) = cpu::pin_current_thread(cpu) {
        tracing::warn!(
            "worker {} can not be pinned to CPU {cpu} and runs unpinned: {error}",
            worker.path.worker().0
        );
    }
}

/// Sleeps until a queue has frames, another thread rings, or a timer is due.
fn block(worker: &mut Worker, waiter: &mut Waiter, now: Timestamp) {
    let due = worker.next_timeout().map_or(LONGEST_SLEEP, |at| at.since(now));
    let longest = due.min(LONGEST_SLEEP);
    worker.wakeup().bell().prepare_to_sleep();
    // A source without a handle must be polled.
    let sleeps = !worker.has_work()
        && worker.queues.iter().all(|queue| queue.source.wait_handle().is_some());
    let mut woken = false;
    if sleeps {
        let bell = worker.wakeup().waker().as_fd();
        let queues = worker.queues.iter().filter_map(|queue| queue.source.wait_handle());
        let handles = std::iter::once(bell).chain(queues);
        // If the wait fails the worker polls, which is slower but correct.
        if let Ok(ready) = waiter.wait(handles, Some(longest)) {
            woken = ready.contains(0);
        }
    }
    worker.wakeup().bell().awake();
    if woken {
        worker.wakeup().waker().clear();
        worker.count_wakeup();
    }
}
