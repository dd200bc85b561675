//! Ports: how they are described, opened, and opened again.

use fib::LinkId;
use netio::afpacket::{AfPacketOptions, AfPacketPort, Claim};
use netio::{LinkState, PortError, PortId, RxQueue, TxQueue};
use netlink::{Master, Masters};
use steer::CpuSet;

use crate::config::Mode;
use crate::reverse_path::ReversePath;

/// What the gateway is told about a port.
pub struct PortSetup {
    /// Name of the interface at the start.
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

    /// What the port is now; what can not be known of it is left out. `None` if it could not be
    /// looked at.
    fn look(&mut self) -> Option<PortLook> {
        Some(PortLook::default())
    }
}

/// An interface of the gateway.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortLink {
    /// Which one it is; `None` while it has gone.
    pub link: Option<LinkId>,
    /// What it is called, or was before it went.
    pub name: String,
}

/// A port as it is now, whatever it was before.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortLook {
    /// The interface.
    pub link: Option<LinkId>,
    /// What it is called.
    pub name: Option<String>,
    /// The longest packet that it takes behind the link header, bytes; `None` where there is no
    /// such limit.
    pub mtu: Option<u32>,
    /// What has taken it over, and handles its frames past the rules.
    pub master: Option<Master>,
}

/// Opens an interface by packet sockets. It stays the same one when it is renamed, whoever has
/// its name then.
pub struct AfPacket {
    /// The name that the interface has which takes its place when it has gone.
    awaited: String,
    claim: Claim,
    /// Where the kernel is asked for its master, if there was a descriptor for that.
    masters: Option<Masters>,
    port: PortId,
    promiscuous: bool,
}

impl AfPacket {
    /// The interface that was claimed, as port number `port`; when it has gone, another one that
    /// is `awaited`: by its own name or an alternative one. A bridge needs the frames for all
    /// stations, a router only those for its own.
    pub fn new(awaited: impl Into<String>, claim: Claim, port: PortId, mode: Mode) -> Self {
        let (masters, promiscuous) = (Masters::new().ok(), mode == Mode::Bridge);
        Self { awaited: awaited.into(), claim, masters, port, promiscuous }
    }

    /// The interface, or the one that has taken its place, and is claimed then.
    fn link(&mut self) -> Result<LinkState, PortError> {
        let interface = || self.awaited.clone();
        let failed = |source| PortError::System {
            what: "looking at the link",
            interface: interface(),
            source,
        };
        if let Some(link) = self.claim.link().map_err(failed)? {
            return Ok(link);
        }
        let found = netio::link_named(&self.awaited).map_err(failed)?;
        let link = found.ok_or_else(|| PortError::NoInterface { interface: interface() })?;
        self.claim = Claim::take(&link)?;
        Ok(link)
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
        let link = self.link()?;
        let open = AfPacketPort::open_link(&link, self.port, &options)?;
        if !open.granted.offload {
            tracing::warn!(
                "{}: the kernel grants no PACKET_VNET_HDR; switch offloads of the peers off",
                link.name
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
        Ok(Box::new(AfPacketPort::open_transmit_of(&self.link()?, &options)?))
    }

    fn look(&mut self) -> Option<PortLook> {
        let link = self.claim.link().ok()?;
        let masters = &mut self.masters;
        let look = |LinkState { index, name, mtu, .. }| PortLook {
            link: Some(LinkId(index)),
            name: Some(name),
            mtu: Some(mtu),
            master: masters.as_mut().and_then(|masters| masters.of(LinkId(index)).ok()?),
        };
        Some(link.map_or_else(PortLook::default, look))
    }
}
