//! Has the kernel look for the stations of next hops.

use std::net::IpAddr;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use fib::LinkId;
use netio::Waker;

/// Most neighbours, of all workers, that wait for the kernel to be asked.
const MAX_WANTED: usize = 1024;

/// Lets a worker ask the kernel for a neighbour.
#[derive(Clone, Debug)]
pub struct Resolver {
    wanted: SyncSender<(LinkId, IpAddr)>,
    waker: Waker,
}

impl Resolver {
    /// Asks the kernel to look for a neighbour. The result comes with a later [`Routing`]. False
    /// if too many others wait to be asked for, or if the gateway is about to end.
    pub fn ask(&self, link: LinkId, address: IpAddr) -> bool {
        let is_taken = self.wanted.try_send((link, address)).is_ok();
        if is_taken {
            self.waker.wake();
        }
        is_taken
    }

    /// Creates a resolver whose questions come out at the other end, which `waker` wakes.
    pub fn new(waker: Waker) -> (Self, Receiver<(LinkId, IpAddr)>) {
        let (wanted, asked) = sync_channel(MAX_WANTED);
        (Self { wanted, waker }, asked)
    }

    /// Creates a resolver whose questions nobody is woken for.
    ///
    /// # Errors
    /// The system's error when no event descriptor is to be had.
    pub fn detached() -> std::io::Result<(Self, Receiver<(LinkId, IpAddr)>)> {
        Ok(Self::new(Waker::new()?))
    }

    /// Creates a detached resolver for tests.
    #[cfg(test)]
    pub fn for_test() -> (Self, Receiver<(LinkId, IpAddr)>) {
        Self::detached().unwrap()
    }
}
