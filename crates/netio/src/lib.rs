//! Frames in and out.
//!
//! Everything above sees [`Frame`]s that come from an [`RxQueue`] and go to a
//! [`TxQueue`]; which kind of input and output is behind them is decided when a
//! port is opened. This is the one crate with unsafe code: system calls and the
//! prefetch instruction.

pub mod afpacket;
mod buffer;
pub mod capture;
pub mod clock;
pub mod cpu;
mod descriptors;
mod frame;
mod heap;
mod interface;
pub mod memory;
mod pool;
mod port;
mod prefetch;
mod usable_memory;
mod user;
mod wake;

pub use buffer::enlarge_receive_buffer;
pub use descriptors::{descriptor_limit, raise_descriptor_limit};
pub use frame::{Checksum, Frame, Offload, Segmentation};
pub use heap::{Heap, return_free_memory};
pub use interface::{LinkState, link_named, link_state};
pub use pool::{FramePool, MAX_FRAME, SMALL_BUFFER};
pub use port::{PortError, PortId, RxQueue, TxQueue, TxReport};
pub use prefetch::prefetch_line;
pub use usable_memory::{FreeMemory, free_memory, usable_memory};
pub use user::user_id;
pub use wake::{Ready, Waiter, Waker};
