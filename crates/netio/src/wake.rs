//! Sleeping until a queue has work or another thread rings the doorbell.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A doorbell (eventfd). Clones ring the same bell.
#[derive(Clone, Debug)]
pub struct Waker {
    event: Arc<OwnedFd>,
}

impl Waker {
    /// A silent doorbell.
    ///
    /// # Errors
    /// The system's error when the process is out of file descriptors.
    pub fn new() -> io::Result<Self> {
        // SAFETY: no memory is passed.
        let event = unsafe { libc::eventfd(0, libc::EFD_NONBLOCK | libc::EFD_CLOEXEC) };
        if event < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is open, and nobody else has it.
        Ok(Self { event: Arc::new(unsafe { OwnedFd::from_raw_fd(event) }) })
    }

    /// Rings: ends the waits on this bell, now and later, until [`clear`].
    ///
    /// [`clear`]: Self::clear
    pub fn wake(&self) {
        let one = 1_u64.to_ne_bytes();
        // A write can fail only because the count is at its maximum. Then the bell is ringing
        // already, so the result says nothing.
        // SAFETY: the kernel reads the 8 bytes of `one`.
        unsafe { libc::write(self.event.as_raw_fd(), one.as_ptr().cast(), one.len()) };
    }

    /// Silences the bell. The caller looks for work afterwards, not before, or it loses a ring that
    /// came in between.
    pub fn clear(&self) {
        let mut count = [0_u8; 8];
        // A read can fail only because the bell is silent already.
        // SAFETY: the kernel writes at most the 8 bytes of `count`.
        unsafe { libc::read(self.event.as_raw_fd(), count.as_mut_ptr().cast(), count.len()) };
    }
}

impl AsFd for Waker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}

/// Waits on several handles at once; keeps its list, so waiting does not allocate.
#[derive(Debug, Default)]
pub struct Waiter {
    polled: Vec<libc::pollfd>,
}

impl Waiter {
    /// A waiter with an empty list.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sleeps until one of `handles` is readable or broken, or `timeout` has passed. Without a
    /// timeout it sleeps as long as it takes. A signal does not end the wait early. A broken handle
    /// counts as ready; reading it gives the error.
    ///
    /// # Errors
    /// The system's error when it has no memory for the list, or the list is
    /// longer than the limit of open files.
    pub fn wait<'a>(
        &mut self,
        handles: impl IntoIterator<Item = BorrowedFd<'a>>,
        timeout: Option<Duration>,
    ) -> io::Result<Ready<'_>> {
        self.polled.clear();
        self.polled.extend(handles.into_iter().map(|handle| libc::pollfd {
            fd: handle.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        }));
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        loop {
            let left = deadline.map(|deadline| timespec(deadline.duration_since(Instant::now())));
            let limit = left.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
            // SAFETY: the list is `polled.len()` entries long and borrowed mutably,
            // `limit` is null or points to `left`, and no signal mask is passed.
            let count = unsafe {
                libc::ppoll(
                    self.polled.as_mut_ptr(),
                    self.polled.len() as libc::nfds_t,
                    limit,
                    std::ptr::null(),
                )
            };
            if count >= 0 {
                return Ok(Ready { polled: &self.polled });
            }
            let error = io::Error::last_os_error();
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(error);
            }
        }
    }
}

/// Waits until `socket` can be written to, or until `timeout` has passed. A signal may end the wait
/// early, because the caller tries again anyway.
pub(crate) fn wait_for_room(socket: BorrowedFd<'_>, timeout: Duration) {
    let mut polled = libc::pollfd { fd: socket.as_raw_fd(), events: libc::POLLOUT, revents: 0 };
    let limit = timespec(timeout);
    // SAFETY: the list is one entry long and borrowed mutably, `limit` lives
    // through the call, and no signal mask is passed.
    unsafe { libc::ppoll(&raw mut polled, 1, &raw const limit, std::ptr::null()) };
}

fn timespec(duration: Duration) -> libc::timespec {
    libc::timespec {
        tv_sec: libc::time_t::try_from(duration.as_secs()).unwrap_or(libc::time_t::MAX),
        tv_nsec: duration.subsec_nanos().into(),
    }
}

/// The handles of a [`Waiter::wait`] that are ready, by position.
#[derive(Clone, Copy, Debug)]
pub struct Ready<'a> {
    polled: &'a [libc::pollfd],
}

impl Ready<'_> {
    /// True when the handle at `position` can be read or is broken; false beyond
    /// the end.
    pub fn contains(&self, position: usize) -> bool {
        self.polled.get(position).is_some_and(|polled| polled.revents != 0)
    }

    /// True when the time ran out before anything was ready.
    pub fn is_empty(&self) -> bool {
        self.polled.iter().all(|polled| polled.revents == 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ring_is_kept_until_it_is_cleared() {
        let (first, second) = (Waker::new().unwrap(), Waker::new().unwrap());
        let mut waiter = Waiter::new();
        second.clone().wake();
        second.wake();
        for _ in 0..2 {
            let ready = waiter.wait([first.as_fd(), second.as_fd()], None).unwrap();
            assert!(!ready.contains(0) && ready.contains(1) && !ready.contains(2));
        }
        second.clear();
        second.clear();
        let ready = waiter.wait([first.as_fd(), second.as_fd()], Some(Duration::ZERO)).unwrap();
        assert!(ready.is_empty());
    }

    #[test]
    fn another_thread_ends_the_wait() {
        let waker = Waker::new().unwrap();
        let remote = waker.clone();
        let thread = std::thread::spawn(move || remote.wake());
        assert!(Waiter::new().wait([waker.as_fd()], None).unwrap().contains(0));
        thread.join().unwrap();
    }

    #[test]
    fn a_timeout_too_long_for_the_clock_is_no_timeout() {
        let waker = Waker::new().unwrap();
        waker.wake();
        let mut waiter = Waiter::new();
        assert!(waiter.wait([waker.as_fd()], Some(Duration::MAX)).unwrap().contains(0));
    }
}
