//! Ports of a gateway that are made of queues.

use engine::{OpenPort, PortLook, PortOpener};
use netio::{PortError, RxQueue, TxQueue};

/// Opens a port. `receive` gives its receive queues, and `transmit` gives one transmit queue for
/// each worker.
pub struct Queues<R, T> {
    pub receive: R,
    pub transmit: T,
    pub mtu: Option<u32>,
}

impl<R, T, I, O> PortOpener for Queues<R, T>
where
    R: FnMut(usize) -> Vec<I> + Send,
    T: FnMut() -> O + Send,
    I: RxQueue + 'static,
    O: TxQueue + 'static,
{
    fn open(&mut self, rx_queues: usize, tx_queues: usize) -> Result<OpenPort, PortError> {
        let receive = (self.receive)(rx_queues).into_iter();
        Ok(OpenPort {
            rx: receive.map(|queue| Box::new(queue) as Box<dyn RxQueue>).collect(),
            tx: (0..tx_queues).map(|_| self.open_tx()).collect::<Result<_, _>>()?,
        })
    }

    fn open_tx(&mut self) -> Result<Box<dyn TxQueue>, PortError> {
        Ok(Box::new((self.transmit)()))
    }

    fn look(&mut self) -> Option<PortLook> {
        Some(PortLook { mtu: self.mtu, ..PortLook::default() })
    }
}
