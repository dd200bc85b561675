//! A door at which a worker can be held up.

use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use engine::Gateway;
use netio::memory::ChannelRx;
use netio::{Frame, FramePool, PortError, RxQueue};

/// Holds up who comes while the lock is held.
#[derive(Clone, Default)]
pub struct Door {
    pub lock: Arc<Mutex<()>>,
    waits: Arc<AtomicBool>,
}

impl Door {
    /// Waits until somebody waits at it, who was closed out before.
    pub fn wait(&self, gateway: &Gateway) {
        // Whoever sleeps is woken, and comes to the door.
        let _ = gateway.status();
        while !self.waits.load(Ordering::Relaxed) {
            std::thread::yield_now();
        }
    }
}

/// A queue that gives what a channel gives, or nothing to who gets through the door.
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
