//! Ports: their configuration, and how they are opened, also again.

use std::os::fd::{AsFd, BorrowedFd};

use fib::LinkId;
use netio::afpacket::{AfPacketOptions, AfPacketPort, Claim};
use netio::{LinkState, MAX_FRAME, PortError, PortId, RxQueue, Selectors, TxQueue};
use netlink::{Master, Masters, Membership};
use netpolicy::Policy;
use steer::CpuSet;

use crate::egress::Mode;
use crate::egress::reverse_path::ReversePath;

/// The configuration of a port.
pub struct PortSetup {
    /// Name of the interface at the start.
    pub name: String,
    /// Opens the port.
    pub opener: Box<dyn PortOpener>,
    /// Number of receive queues.
    pub rx_queues: usize,
    /// CPUs whose workers may own packets that arrive here; `None`: all.
    pub rps_cpus: Option<CpuSet>,
    /// The interface supplies the symmetric Toeplitz hash, and it may be used.
    pub supplied_hash_symmetric: bool,
    /// Packets that arrive here open no connections except expected ones.
    pub refuses_new: bool,
    /// The check of the sources of packets that arrive here, for a router.
    pub rp_filter: ReversePath,
    /// How workers wait for packets that arrive here.
    pub policy: Policy,
}

impl PortSetup {
    /// Creates a port with one receive queue and without restrictions.
    pub fn new(name: impl Into<String>, opener: impl PortOpener + 'static) -> Self {
        Self {
            name: name.into(),
            opener: Box::new(opener),
            rx_queues: 1,
            rps_cpus: None,
            supplied_hash_symmetric: false,
            refuses_new: false,
            rp_filter: ReversePath::default(),
            policy: Policy::None,
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

/// Opens a port, and opens it again after the interface has gone and come back.
pub trait PortOpener: Send {
    /// Opens the port with this many receive and transmit queues.
    ///
    /// # Errors
    /// [`PortError`]; nothing stays open then.
    fn open(&mut self, rx_queues: usize, tx_queues: usize) -> Result<OpenPort, PortError>;

    /// Opens one more transmit queue, for a new worker.
    ///
    /// # Errors
    /// As for [`PortOpener::open`].
    fn open_tx(&mut self) -> Result<Box<dyn TxQueue>, PortError>;

    /// The descriptor that claims the interface for this process, if there is one.
    fn claim(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// The selectors by which the kernel chooses between the queues that this opener has opened.
    fn selectors(&self) -> OpenSelectors {
        OpenSelectors::None
    }

    /// The current state of the interface. Unknown parts are left out. `None` if it could not be
    /// read.
    fn look(&mut self) -> Option<PortLook> {
        Some(PortLook::default())
    }
}

/// The selectors by which the kernel chooses the receive queue of a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OpenSelectors {
    /// There are none: one service has all packets.
    None,
    /// These.
    These(Selectors),
    /// Those of the process that has handed over its queues, if it had any.
    OfFormerProcess,
}

/// An interface of the gateway.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortLink {
    /// The index of the interface; `None` while it is missing.
    pub link: Option<LinkId>,
    /// Its name, or its last name while it is missing.
    pub name: String,
}

/// The current state of a port's interface.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortLook {
    /// The index of the interface.
    pub link: Option<LinkId>,
    /// Its name.
    pub name: Option<String>,
    /// The longest packet that it takes behind the link header, bytes; `None`: no such limit.
    pub mtu: Option<u32>,
    /// The master of the interface, which handles its frames past the rules.
    pub master: Option<Master>,
    /// The group of the interface (ip-link(8), `group`).
    pub group: Option<u32>,
    /// The type of its link (`ARPHRD_ETHER` and so on).
    pub link_type: Option<u16>,
}

/// Opens an interface by packet sockets. The port keeps its interface when that is renamed, even
/// if another interface gets its name.
pub struct AfPacket {
    /// The name, own or alternative, of the interface that may take the place of one that has
    /// gone.
    awaited: String,
    claim: Claim,
    /// Where the kernel is asked for its master and group, if there was a descriptor for that.
    masters: Option<Masters>,
    port: PortId,
    mode: Mode,
    /// Flows that have a receive queue of their own.
    lanes: Option<Selectors>,
}

impl AfPacket {
    /// Creates the opener of port number `port` for a claimed interface. When that has gone, an
    /// interface whose own or alternative name is `awaited` takes its place. A bridge gets the
    /// frames for all stations, a router only those for its own, and a router may have bare links.
    pub fn new(awaited: impl Into<String>, claim: Claim, port: PortId, mode: Mode) -> Self {
        let (awaited, masters) = (awaited.into(), Masters::new().ok());
        Self { awaited, claim, masters, port, mode, lanes: None }
    }

    /// The same, with one more receive queue for the flows whose service is latency by these selectors.
    #[must_use]
    pub fn with_lanes(self, lanes: Option<Selectors>) -> Self {
        Self { lanes, ..self }
    }

    /// The claimed interface, or the one that takes its place and is claimed now.
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

/// Says so if the interface makes super-packets that are too long to be taken. Those that come from
/// the other end of a veth pair have another length, of which nothing is known here.
fn warn_of_long_super_packets(link: &LinkState) {
    let name = &link.name;
    if let Ok(longest) = netlink::longest_super_packet(LinkId(link.index))
        && longest as usize > MAX_FRAME
    {
        tracing::warn!(
            "{name} makes super-packets of up to {longest} bytes, and those of more than \
             {MAX_FRAME} are dropped (frame_too_long): ip link set {name} gso_max_size 65536 \
             gro_max_size 65536 gso_ipv4_max_size 65536 gro_ipv4_max_size 65536"
        );
    }
}

impl PortOpener for AfPacket {
    fn open(&mut self, rx_queues: usize, tx_queues: usize) -> Result<OpenPort, PortError> {
        let options = AfPacketOptions {
            receive_queues: rx_queues as u16,
            transmit_queues: tx_queues as u16,
            promiscuous: self.mode == Mode::Bridge,
            takes_bare: self.mode == Mode::Routed,
            lanes: self.lanes.clone(),
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
        warn_of_long_super_packets(&link);
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

    fn claim(&self) -> Option<BorrowedFd<'_>> {
        Some(self.claim.as_fd())
    }

    fn selectors(&self) -> OpenSelectors {
        match &self.lanes {
            Some(selectors) => OpenSelectors::These(selectors.clone()),
            None => OpenSelectors::None,
        }
    }

    fn look(&mut self) -> Option<PortLook> {
        let link = self.claim.link().ok()?;
        let masters = &mut self.masters;
        let look = |LinkState { index, name, mtu, hardware, .. }| {
            let asked = masters.as_mut().map(|masters| masters.membership(LinkId(index)));
            let known = asked.and_then(Result::ok);
            let group = known.as_ref().map(|known| known.group);
            let Membership { master, .. } = known.unwrap_or_default();
            PortLook {
                link: Some(LinkId(index)),
                name: Some(name),
                mtu: Some(mtu),
                master,
                group,
                link_type: Some(hardware),
            }
        };
        Some(link.map_or_else(PortLook::default, look))
    }
}
