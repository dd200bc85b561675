//! A door at which a worker can be held up.

use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use engine::Gateway;
use netio::memory::ChannelRx;
use netio::{Frame, FramePool, PortError, RxQueue};

/// Holds up a worker while the lock is held.
#[derive(Clone, Default)]
pub struct Door {
    pub lock: Arc<Mutex<()>>,
    waits: Arc<AtomicBool>,
}

impl Door {
    /// Waits until a worker waits at the door.
    pub fn wait(&self, gateway: &Gateway) {
        // The question wakes a worker that sleeps, so it comes to the door.
        let _ = gateway.status();
        while !self.waits.load(Ordering::Relaxed) {
            std::thread::yield_now();
        }
    }
}

/// A queue with the packets of a channel, or with none. Its worker goes through the door.
pub struct Queue(pub Option<ChannelRx>, pub Door);

impl RxQueue for Queue {
    fn receive(
        &mut self,
        frames: &mut Vec<Frame>,
        max: usize,
        pool: &mut FramePool,
    ) -> Result<usize, PortError> {
        match &mut self.0 {
            Some(channel) => channel.receive(frames, max, pool),
            None => {
                self.1.waits.store(true, Ordering::Relaxed);
                drop(self.1.lock.lock().unwrap());
                self.1.waits.store(false, Ordering::Relaxed);
                Ok(0)
            }
        }
    }

    fn wait_handle(&self) -> Option<BorrowedFd<'_>> {
        self.0.as_ref().and_then(ChannelRx::wait_handle)
    }
}
