//! Frames of a network interface, through packet sockets (packet(7)).

mod bare;
mod claim;
mod lane_program;
mod messages;
mod receive;
mod receive_ring;
mod segments;
mod slots;
mod socket;
mod transmit;
mod transmit_ring;
mod vnet;

pub use bare::BARE_STATION;
pub use claim::Claim;
pub use receive::AfPacketRx;
pub use transmit::AfPacketTx;

use std::io;

use crate::{LinkState, PortError, PortId, Selectors, Service, link_named, link_state};
use receive_ring::ReceiveRing;
use socket::{Division, PacketSocket};
use transmit_ring::TransmitRing;

/// Messages of one system call.
const BATCH: usize = 64;

/// Options for opening an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AfPacketOptions {
    /// Receive queues, among which the kernel divides packets by flow, the same
    /// for both directions. With 0, they come from [`AfPacketRx::take_over`].
    pub receive_queues: u16,
    /// Transmit queues: one for each worker.
    pub transmit_queues: u16,
    /// With selectors, a further receive queue, the last one, gets the packets whose service is
    /// [`Service::Latency`], and the others divide the rest. Not if there are no receive queues.
    pub lanes: Option<Selectors>,
    /// Buffer for frames that wait to be received, bytes of kernel memory for each queue, reserved
    /// while the queue is open. Each frame takes 2 KiB of it. Longer frames wait in a queue beside
    /// it, which may have as many bytes.
    pub receive_buffer_bytes: u32,
    /// Buffer for frames on their way out, bytes of kernel memory for each queue.
    pub send_buffer_bytes: u32,
    /// Receive frames for other machines too, as a bridge must.
    pub promiscuous: bool,
    /// Pass by the queueing discipline of the interface when sending: cheaper,
    /// but without its shaping and without backpressure.
    pub qdisc_bypass: bool,
    /// Open bare links too ([`LinkState::is_bare`]). Their frames have a made-up Ethernet header
    /// between stations with the address [`BARE_STATION`], which is not on the link.
    pub takes_bare: bool,
}

impl AfPacketOptions {
    /// Default of [`receive_buffer_bytes`](Self::receive_buffer_bytes): 8192
    /// frames, 8 ms at 1 M/s.
    pub const RECEIVE_BUFFER_BYTES: u32 = 16 << 20;
    /// The same for a queue of [`Service::Latency`]: 512 frames. A flood of it delays others by that many
    /// at most.
    pub const LATENCY_BUFFER_BYTES: u32 = 1 << 20;
    /// Default of [`send_buffer_bytes`](Self::send_buffer_bytes): a batch of 64
    /// super-packets.
    pub const SEND_BUFFER_BYTES: u32 = 8 << 20;
}

impl Default for AfPacketOptions {
    fn default() -> Self {
        Self {
            receive_queues: 1,
            transmit_queues: 1,
            lanes: None,
            receive_buffer_bytes: Self::RECEIVE_BUFFER_BYTES,
            send_buffer_bytes: Self::SEND_BUFFER_BYTES,
            promiscuous: true,
            qdisc_bypass: false,
            takes_bare: false,
        }
    }
}

/// The queues of an interface, and the features that the kernel granted.
#[derive(Debug)]
pub struct AfPacketPort {
    /// Receive queues, as many as asked for, and the one of the lane for latency.
    pub receive: Vec<AfPacketRx>,
    /// Transmit queues, as many as asked for.
    pub transmit: Vec<AfPacketTx>,
    /// Number of the interface when it was opened.
    pub index: u32,
    /// The features that the kernel granted.
    pub granted: Granted,
}

/// Optional features that the kernel granted. They make packet sockets faster or more correct.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Granted {
    /// Frames carry their [`Offload`](crate::Offload). Without it, packets of
    /// programs on this machine have bad checksums and super-packets are lost:
    /// switch `tx-checksumming` and segmentation of the peer off (ethtool -K).
    pub offload: bool,
    /// The queues do not receive packets that the machine itself sends out of the interface.
    pub ignore_outgoing: bool,
    /// Sending bypasses the queueing discipline, if that was asked for.
    pub qdisc_bypass: bool,
    /// Short frames are sent from a ring.
    pub transmit_ring: bool,
}

impl Granted {
    /// All features, as far as the options ask for them.
    fn all(options: &AfPacketOptions) -> Self {
        let qdisc_bypass = options.qdisc_bypass;
        Self { offload: true, ignore_outgoing: true, qdisc_bypass, transmit_ring: true }
    }
}

impl AfPacketPort {
    /// Opens the interface that has this name as `port`.
    ///
    /// # Errors
    /// [`PortError::NoInterface`], and as [`AfPacketPort::open_link`].
    pub fn open(
        interface: &str,
        port: PortId,
        options: &AfPacketOptions,
    ) -> Result<Self, PortError> {
        Self::open_link(&link_of(interface)?, port, options)
    }

    /// Opens an interface as `port`, even if it was renamed meanwhile. Keeps nothing but the
    /// sockets. So a caller may try again after [`PortError::Gone`] until it succeeds.
    ///
    /// # Errors
    /// [`PortError::NotEthernet`], [`PortError::NoPermission`], [`PortError::Gone`] while the
    /// interface is down, and [`PortError::System`] for anything else.
    pub fn open_link(
        link: &LinkState,
        port: PortId,
        options: &AfPacketOptions,
    ) -> Result<Self, PortError> {
        let LinkState { index, name: interface, .. } = link;
        if let Some(what) = link.unfit(options.takes_bare) {
            return Err(PortError::NotEthernet {
                interface: interface.clone(),
                what,
                is_bridge: !options.takes_bare,
            });
        }
        let (index, failed) = (*index, |what| move |source| system_error(interface, what, source));
        // The kernel refuses a feature to all sockets or to none.
        let mut granted = Granted::all(options);
        let mut transmit = Vec::new();
        for _ in 0..options.transmit_queues {
            let queue = transmit_queue(link, options, &mut granted)
                .map_err(failed("opening a socket to send"))?;
            transmit.push(queue);
        }
        let receive = receive_sockets(index, options, &mut granted)
            .map_err(failed("opening a socket to receive"))?
            .into_iter()
            .map(|(ring, socket, service)| {
                AfPacketRx::new(ring, socket, link, port, granted.offload, service)
            })
            .collect();
        // A socket of an interface that is down reports this once. Such a report must not look like
        // an interface that has just gone down.
        let state = link_state(index).map_err(failed("looking at the link"))?;
        if !state.is_some_and(|state| state.up) {
            return Err(PortError::Gone { interface: interface.into() });
        }
        Ok(Self { receive, transmit, index, granted })
    }

    /// Opens one more transmit queue of the interface that has this name.
    ///
    /// # Errors
    /// As [`AfPacketPort::open`].
    pub fn open_transmit(
        interface: &str,
        options: &AfPacketOptions,
    ) -> Result<AfPacketTx, PortError> {
        Self::open_transmit_of(&link_of(interface)?, options)
    }

    /// Opens one more transmit queue of an interface.
    ///
    /// # Errors
    /// As [`AfPacketPort::open_link`].
    pub fn open_transmit_of(
        link: &LinkState,
        options: &AfPacketOptions,
    ) -> Result<AfPacketTx, PortError> {
        transmit_queue(link, options, &mut Granted::all(options))
            .map_err(|source| system_error(&link.name, "opening a socket to send", source))
    }
}

fn link_of(interface: &str) -> Result<LinkState, PortError> {
    let state = link_named(interface)
        .map_err(|source| system_error(interface, "looking at the link", source))?;
    match state {
        Some(state) => Ok(state),
        None => Err(PortError::NoInterface { interface: interface.into() }),
    }
}

fn transmit_queue(
    link: &LinkState,
    options: &AfPacketOptions,
    granted: &mut Granted,
) -> io::Result<AfPacketTx> {
    // The kernel assumes a link header on PPP that packets from sockets do not have, so it would cut
    // them at the wrong place.
    let wants_offload = link.hardware != libc::ARPHRD_PPP;
    let socket = transmit_socket(options, wants_offload, granted)?;
    socket.bind(link.index, false)?;
    // The ring only makes sending faster, so the queue works without it. In a ring, packets of a
    // bare link could not be told their protocol each.
    let mut ring = None;
    if granted.offload && link.mtu as usize >= TransmitRing::LONGEST && !link.is_bare() {
        ring = TransmitRing::new(transmit_socket(options, true, granted)?, link.index).ok();
    }
    granted.transmit_ring &= ring.is_some();
    Ok(AfPacketTx::new(socket, ring, link, granted.offload && wants_offload))
}

/// A socket that is not bound yet.
fn transmit_socket(
    options: &AfPacketOptions,
    wants_offload: bool,
    granted: &mut Granted,
) -> io::Result<PacketSocket> {
    let socket = PacketSocket::new()?;
    socket.enlarge(libc::SO_SNDBUFFORCE, libc::SO_SNDBUF, options.send_buffer_bytes)?;
    if wants_offload {
        granted.offload &= socket.set(libc::PACKET_VNET_HDR, 1).is_ok();
    }
    if granted.qdisc_bypass {
        granted.qdisc_bypass = socket.set(libc::PACKET_QDISC_BYPASS, 1).is_ok();
    }
    Ok(socket)
}

/// Opens the receive queues.
fn receive_sockets(
    index: u32,
    options: &AfPacketOptions,
    granted: &mut Granted,
) -> io::Result<Vec<(ReceiveRing, PacketSocket, Service)>> {
    let lanes = options.lanes.as_ref().filter(|_| options.receive_queues > 0);
    let bulk = (0..options.receive_queues).map(|_| Service::Bulk);
    let mut opened = Vec::new();
    for service in bulk.chain(lanes.map(|_| Service::Latency)) {
        let (ring, socket) = receive_socket(index, options, granted, service)?;
        opened.push((ring, socket, service));
    }
    if let [(_, only, _)] = &opened[..] {
        only.bind(index, true)?;
        return Ok(opened);
    }
    let by = if lanes.is_some() { Division::Program } else { Division::Hash };
    let mut group = None;
    for (_, socket, _) in &opened {
        // Between binding and joining, a socket receives the packets of its siblings.
        socket.admit_nothing()?;
        socket.bind(index, true)?;
        group = Some(socket.join_fanout(by, group)?);
    }
    if let (Some(selectors), Some((_, socket, _))) = (lanes, opened.first()) {
        let mut program = lane_program::program(selectors, options.receive_queues);
        socket.set_fanout_program(&mut program)?;
    }
    opened.iter().try_for_each(|(_, socket, _)| socket.admit_all())?;
    Ok(opened)
}

/// A receive queue that is not bound yet.
fn receive_socket(
    index: u32,
    options: &AfPacketOptions,
    granted: &mut Granted,
    service: Service,
) -> io::Result<(ReceiveRing, PacketSocket)> {
    let bytes = match service {
        Service::Latency => AfPacketOptions::LATENCY_BUFFER_BYTES.min(options.receive_buffer_bytes),
        Service::Bulk => options.receive_buffer_bytes,
    };
    let socket = PacketSocket::new()?;
    socket.enlarge(libc::SO_RCVBUFFORCE, libc::SO_RCVBUF, bytes)?;
    granted.offload &= socket.set(libc::PACKET_VNET_HDR, 1).is_ok();
    granted.ignore_outgoing &= socket.set(libc::PACKET_IGNORE_OUTGOING, 1).is_ok();
    // Without this option, the kernel would drop the VLAN tags of messages.
    socket.set(libc::PACKET_AUXDATA, 1)?;
    let ring = ReceiveRing::new(&socket, bytes)?;
    if options.promiscuous {
        socket.be_promiscuous(index)?;
    }
    Ok((ring, socket))
}

/// Sorts the errors that every call on a packet socket can meet.
fn system_error(interface: &str, what: &'static str, source: io::Error) -> PortError {
    let interface = interface.into();
    match source.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => PortError::NoPermission { interface },
        Some(libc::ENETDOWN | libc::ENXIO | libc::ENODEV) => PortError::Gone { interface },
        _ => PortError::System { what, interface, source },
    }
}
