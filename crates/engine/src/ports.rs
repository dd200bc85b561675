//! Ports: how they are described, opened, and opened again.

use netio::afpacket::{AfPacketOptions, AfPacketPort};
use netio::{PortError, PortId, RxQueue, TxQueue};
use steer::CpuSet;

use crate::config::Mode;
use crate::reverse_path::ReversePath;

/// What the gateway is told about a port.
pub struct PortSetup {
    /// Name of the interface.
    pub name: String,
    /// How it is opened.
    pub opener: Box<dyn PortOpener>,
    /// Receive queues to open.
    pub rx_queues: usize,
    /// CPUs whose workers may own what arrives here; `None`: all.
    pub rps_cpus: Option<CpuSet>,
    /// The interface supplies the symmetric Toeplitz hash, and it may be used.
    pub supplied_hash_symmetric: bool,
    /// What arrives here opens no connections but those that others have announced.
    pub refuses_new: bool,
    /// How a router checks the sources of what arrives here.
    pub rp_filter: ReversePath,
}

impl PortSetup {
    /// A port with one receive queue that every worker may own.
    pub fn new(name: impl Into<String>, opener: impl PortOpener + 'static) -> Self {
        Self {
            name: name.into(),
            opener: Box::new(opener),
            rx_queues: 1,
            rps_cpus: None,
            supplied_hash_symmetric: false,
            refuses_new: false,
            rp_filter: ReversePath::default(),
        }
    }
}

/// The queues of an open port.
pub struct OpenPort {
    /// Receive queues.
    pub rx: Vec<Box<dyn RxQueue>>,
    /// Transmit queues, one for each worker.
    pub tx: Vec<Box<dyn TxQueue>>,
}

/// Opens a port, and again after the interface has gone and come back.
pub trait PortOpener: Send {
    /// Opens so many receive and transmit queues.
    ///
    /// # Errors
    /// Those of [`PortError`]; nothing stays open.
    fn open(&mut self, rx_queues: usize, tx_queues: usize) -> Result<OpenPort, PortError>;

    /// Opens one more transmit queue, for a worker that joins.
    ///
    /// # Errors
    /// As for [`PortOpener::open`].
    fn open_tx(&mut self) -> Result<Box<dyn TxQueue>, PortError>;

    /// The longest packet that the port takes behind the link header, bytes, as it is
    /// now; `None` where there is no such limit or it can not be known.
    fn mtu(&self) -> Option<u32> {
        None
    }
}

/// Opens an interface by packet sockets.
pub struct AfPacket {
    interface: String,
    port: PortId,
    promiscuous: bool,
}

impl AfPacket {
    /// The interface of that name, as port number `port`. A bridge needs the frames for
    /// all stations, a router only those for its own.
    pub fn new(interface: impl Into<String>, port: PortId, mode: Mode) -> Self {
        Self { interface: interface.into(), port, promiscuous: mode == Mode::Bridge }
    }
}

impl PortOpener for AfPacket {
    fn open(&mut self, rx_queues: usize, tx_queues: usize) -> Result<OpenPort, PortError> {
        let options = AfPacketOptions {
            receive_queues: rx_queues as u16,
            transmit_queues: tx_queues as u16,
            promiscuous: self.promiscuous,
            ..AfPacketOptions::default()
        };
        let open = AfPacketPort::open(&self.interface, self.port, &options)?;
        if !open.granted.offload {
            tracing::warn!(
                "{}: the kernel grants no PACKET_VNET_HDR; switch offloads of the peers off",
                self.interface
            );
        }
        Ok(OpenPort {
            rx: open.receive.into_iter().map(|queue| Box::new(queue) as Box<dyn RxQueue>).collect(),
            tx: open
                .transmit
                .into_iter()
                .map(|queue| Box::new(queue) as Box<dyn TxQueue>)
                .collect(),
        })
    }

    fn open_tx(&mut self) -> Result<Box<dyn TxQueue>, PortError> {
        let options = AfPacketOptions::default();
        Ok(Box::new(AfPacketPort::open_transmit(&self.interface, &options)?))
    }

    fn mtu(&self) -> Option<u32> {
        let state = netio::link_state(&self.interface).ok().flatten();
        state.map(|state| state.mtu)
    }
}
