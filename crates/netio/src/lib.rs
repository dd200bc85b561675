//! Frames in and out.
//!
//! The other crates see [`Frame`]s that come from an [`RxQueue`] and go to a [`TxQueue`]. The
//! caller that opens a port chooses the kind of input and output behind them. Only this crate has
//! unsafe code: system calls and the prefetch instruction.

pub mod afpacket;
mod buffer;
pub mod capture;
pub mod clock;
pub mod cpu;
mod datagrams;
mod descriptors;
mod frame;
mod heap;
mod hop_limit;
mod interface;
mod isolation;
pub mod memory;
mod offload;
mod own_network;
mod passing;
mod pool;
mod port;
mod prefetch;
mod selectors;
mod usable_memory;
mod user;
mod wake;

pub use buffer::enlarge_receive_buffer;
pub use datagrams::DatagramSocket;
pub use descriptors::{descriptor_limit, raise_descriptor_limit};
pub use frame::{Frame, NOTE_LEN};
pub use heap::{Heap, return_free_memory};
pub use hop_limit::{HopPacket, receive_with_hop_limit};
pub use interface::{LinkState, link_named, link_names, link_state};
pub use isolation::isolate_network;
pub use offload::{Checksum, Offload, Segmentation};
pub use own_network::{enter_network, network_cookie, own_sysfs};
pub use passing::{
    DESCRIPTORS_AT_ONCE, listen_again, receive_with_descriptors, send_with_descriptors,
};
pub use pool::{FramePool, MAX_FRAME, SMALL_BUFFER};
pub use port::{
    PortError, PortId, QueuePosition, RingPosition, RxQueue, TxQueue, TxRefusal, TxReport,
};
pub use prefetch::prefetch_line;
pub use selectors::{Condition, Selector, SelectorError, Selectors, SelectorsError, Service};
pub use usable_memory::{FreeMemory, free_memory, usable_memory};
pub use user::user_id;
pub use wake::{Ready, Waiter, Waker};
