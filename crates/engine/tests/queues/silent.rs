//! A receive queue without packets.

use std::os::fd::BorrowedFd;

use netio::{Frame, FramePool, PortError, RxQueue};

pub struct Silent;

impl RxQueue for Silent {
    fn receive(
        &mut self,
        _: &mut Vec<Frame>,
        _: usize,
        _: &mut FramePool,
    ) -> Result<usize, PortError> {
        Ok(0)
    }

    fn wait_handle(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}
