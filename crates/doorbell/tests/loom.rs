//! The doorbell under loom, which tries every schedule and every value that the
//! memory model allows: `RUSTFLAGS="--cfg loom" cargo test -p doorbell --test loom`.
#![cfg(loom)]

use doorbell::Doorbell;
use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;

/// A ring reduced to the number of published items.
struct Shared {
    bell: Doorbell,
    published: AtomicUsize,
    /// Stands for the eventfd: a count that outlives the write.
    woken: Mutex<usize>,
    wake: Condvar,
    wakes: AtomicUsize,
}

fn send(shared: &Shared) {
    shared.published.fetch_add(1, Ordering::Release);
    if shared.bell.ring() {
        shared.wakes.fetch_add(1, Ordering::Relaxed);
        *shared.woken.lock().unwrap() += 1;
        shared.wake.notify_one();
    }
}

/// Consumes `expected` items; loom reports a deadlock if it sleeps for ever.
fn consume(shared: &Shared, expected: usize) {
    let mut taken = 0;
    while taken < expected {
        let published = shared.published.load(Ordering::Acquire);
        if published > taken {
            taken = published;
            continue;
        }
        shared.bell.prepare_to_sleep();
        if shared.published.load(Ordering::Acquire) == taken {
            let mut woken = shared.woken.lock().unwrap();
            while *woken == 0 {
                woken = shared.wake.wait(woken).unwrap();
            }
            *woken = 0;
        }
        shared.bell.awake();
    }
}

fn model(producers: usize, items: usize) {
    let mut builder = loom::model::Builder::new();
    // Three preemptions in the wrong place find almost every error ("Finding and Reproducing
    // Heisenbugs in Concurrent Programs", Musuvathi et al., 2008). All schedules of three threads
    // would take hours.
    builder.preemption_bound = Some(3);
    builder.check(move || {
        let shared = Arc::new(Shared {
            bell: Doorbell::new(),
            published: AtomicUsize::new(0),
            woken: Mutex::new(0),
            wake: Condvar::new(),
            wakes: AtomicUsize::new(0),
        });
        let threads: Vec<_> = (0..producers)
            .map(|_| {
                let shared = shared.clone();
                thread::spawn(move || (0..items).for_each(|_| send(&shared)))
            })
            .collect();
        consume(&shared, producers * items);
        for thread in threads {
            thread.join().unwrap();
        }
        assert!(shared.wakes.load(Ordering::Relaxed) <= producers * items);
    });
}

#[test]
fn no_wake_up_is_lost_with_one_producer() {
    model(1, 3);
}

#[test]
fn no_wake_up_is_lost_with_two_producers() {
    model(2, 2);
}
