//! For tests: a port of a gateway without threads.

use netio::{PortError, RxQueue, TxQueue};

use crate::testing::line::Line;
use crate::{OpenPort, PortOpener};

/// A port that receives from one line and sends to another.
#[derive(Clone, Default)]
pub struct Cable {
    /// The frames for the gateway.
    pub input: Line,
    /// The frames of the gateway.
    pub output: Line,
}

impl PortOpener for Cable {
    fn open(&mut self, _: usize, tx_queues: usize) -> Result<OpenPort, PortError> {
        let rx = vec![Box::new(self.input.clone()) as Box<dyn RxQueue>];
        let tx = (0..tx_queues).map(|_| self.open_tx());
        Ok(OpenPort { rx, tx: tx.collect::<Result<_, _>>()? })
    }

    fn open_tx(&mut self) -> Result<Box<dyn TxQueue>, PortError> {
        Ok(Box::new(self.output.clone()))
    }
}
