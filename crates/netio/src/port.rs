//! The interfaces that every kind of input and output offers to the engine.

use std::os::fd::BorrowedFd;

use crate::{Frame, FramePool, Service};

/// Number of an interface of the gateway, in the order of the configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct PortId(pub u16);

/// One receive queue. It belongs to one worker at a time.
pub trait RxQueue: Send {
    /// Appends up to `max` frames without blocking and returns their number; 0 means that none
    /// waits. Buffers come from `pool`. If it is empty, the frames stay where they are.
    ///
    /// # Errors
    /// [`PortError::Gone`] when the interface has disappeared; the queue must be
    /// opened anew when it returns. [`PortError::Finished`] at the end of a
    /// source that ends, such as a capture. Frames appended before the error are
    /// valid.
    fn receive(
        &mut self,
        frames: &mut Vec<Frame>,
        max: usize,
        pool: &mut FramePool,
    ) -> Result<usize, PortError>;

    /// The handle to wait on for more frames; `None` for a source that never blocks.
    fn wait_handle(&self) -> Option<BorrowedFd<'_>>;

    /// The service of its packets.
    fn service(&self) -> Service {
        Service::default()
    }

    /// Packets that the source lost since the last call, before this program saw them. The kernel's
    /// socket buffer was full, or the kernel could not describe the packet.
    fn take_lost(&mut self) -> u64 {
        0
    }

    /// Packets since the last call that are longer than a [`Frame`] can be
    /// ([`MAX_FRAME`](crate::MAX_FRAME)); they are not among those that were lost.
    fn take_too_long(&mut self) -> u64 {
        0
    }

    /// The socket of this queue and the place of the next frame, with which another process can go on.
    /// Nobody may read the queue meanwhile. `None` if no other process can go on with it.
    fn to_hand_over(&self) -> Option<(BorrowedFd<'_>, QueuePosition)> {
        None
    }

    /// Another process has ended that may have read the queue: finds the oldest frame anew.
    fn find_place(&mut self) {}
}

/// Where a receive queue stands, for a process that goes on with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueuePosition {
    /// The number of the next frame.
    pub sequence: u64,
    /// Every packet has a virtio header in front.
    pub offload: bool,
    /// The ring; `None` for a queue that has none any more.
    pub ring: Option<RingPosition>,
    /// The service of its packets.
    pub service: Service,
}

/// Where the receive ring of a queue stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingPosition {
    /// The number of its slots.
    pub slots: u32,
    /// The slot that the kernel fills next, or has filled.
    pub next: u32,
}

/// One transmit queue. It belongs to one worker.
pub trait TxQueue: Send {
    /// Sends `frames` in order, empties the vector and returns the buffers to `pool`. The report
    /// counts frames that could not be sent; they are never retried out of order.
    /// [`take_refused`](TxQueue::take_refused) gives them out until the next call.
    ///
    /// # Errors
    /// [`PortError::Gone`] when the interface has disappeared. An error means that
    /// none of the frames was sent; their buffers are returned all the same. A
    /// queue that breaks in the midst of them reports the rest as
    /// [`refused_gone`](TxReport::refused_gone), and its error when it is called
    /// next.
    fn transmit(
        &mut self,
        frames: &mut Vec<Frame>,
        pool: &mut FramePool,
    ) -> Result<TxReport, PortError>;

    /// A frame that the last call of [`transmit`](TxQueue::transmit) has not sent, and why. `None`
    /// if there is none left, and from a queue that keeps no such frames. The caller has to return
    /// the buffer.
    fn take_refused(&mut self) -> Option<(Frame, TxRefusal)> {
        None
    }
}

/// The reason why a queue has not sent a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TxRefusal {
    /// The output queue had no room.
    Full,
    /// The frame is longer than the interface allows.
    TooLong,
    /// The interface can not send the frame in any form, see [`TxReport::refused_invalid`].
    Invalid,
    /// The queue broke.
    Gone,
}

/// The results of one [`TxQueue::transmit`]; each frame counts once. A super-packet is one frame,
/// with the length that it has here, whether the kernel or this program cuts it up. It counts as
/// refused if some of its segments could not be sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TxReport {
    /// Frames sent.
    pub sent: u64,
    /// Bytes sent, link header included.
    pub sent_bytes: u64,
    /// Frames for which the output queue had no room.
    pub refused_full: u64,
    /// Frames that are longer than the interface allows.
    pub refused_long: u64,
    /// Frames that the interface can not send in any form: shorter than a link header, with an
    /// offload that contradicts the packet, or with one that is not supported.
    pub refused_invalid: u64,
    /// Frames that were left when the queue broke in the middle of a batch.
    pub refused_gone: u64,
}

impl TxReport {
    /// The number of frames in the report.
    pub fn frames(&self) -> u64 {
        let refused = self.refused_full + self.refused_long + self.refused_invalid;
        self.sent + refused + self.refused_gone
    }

    /// The frames that were refused for a reason.
    pub const fn refused_mut(&mut self, why: TxRefusal) -> &mut u64 {
        match why {
            TxRefusal::Full => &mut self.refused_full,
            TxRefusal::TooLong => &mut self.refused_long,
            TxRefusal::Invalid => &mut self.refused_invalid,
            TxRefusal::Gone => &mut self.refused_gone,
        }
    }
}

/// The reasons why a queue does not work.
#[derive(Debug, thiserror::Error)]
pub enum PortError {
    /// The interface has disappeared or was taken down.
    #[error("interface {interface} has gone or is down; it is opened again when it returns")]
    Gone {
        /// Name of the interface.
        interface: String,
    },
    /// The source has come to its end.
    #[error("end of input")]
    Finished,
    /// A file is not a capture, or not one that can be read.
    #[error("{file} can not be read as a capture: {problem}")]
    NoCapture {
        /// The file.
        file: String,
        /// The problem.
        problem: String,
    },
    /// A capture is damaged; everything before this point was delivered.
    #[error("{file}: packet {packet}: {problem}")]
    Capture {
        /// The capture.
        file: String,
        /// Number of the packet, from 1.
        packet: u64,
        /// The problem.
        problem: String,
    },
    /// The interface does not exist.
    #[error("there is no interface {interface:?}; `ip link` lists the interfaces")]
    NoInterface {
        /// Name as configured.
        interface: String,
    },
    /// The interface carries no Ethernet frames, and the caller can not do without.
    #[error(
        "{interface} is {what}; a bridge has Ethernet interfaces only, and a router also tun, \
         WireGuard, PPP and tunnels of IP packets: {}name the interface that it runs over, or give a \
         tunnel a device that carries frames (tap, gretap, vxlan)",
        if *.is_bridge { "set `mode = \"routed\"`, " } else { "" }
    )]
    NotEthernet {
        /// Name of the interface.
        interface: String,
        /// The kind of interface.
        what: &'static str,
        /// True if a bridge was to use it, and a router might.
        is_bridge: bool,
    },
    /// Another gateway forwards the packets of this interface.
    #[error(
        "another gateway is running on {interface}, and every packet would be forwarded twice; \
         stop that one, or choose another interface"
    )]
    Claimed {
        /// Name of the interface.
        interface: String,
    },
    /// No permission for raw packet sockets.
    #[error(
        "no permission to open {interface}: run as root or give the program CAP_NET_RAW \
         (setcap cap_net_raw,cap_net_admin+ep)"
    )]
    NoPermission {
        /// Name of the interface.
        interface: String,
    },
    /// Any other failure of a system call.
    #[error("{what} on {interface}: {source}")]
    System {
        /// The attempted operation.
        what: &'static str,
        /// Name of the interface or file.
        interface: String,
        /// The error of the system.
        source: std::io::Error,
    },
}
