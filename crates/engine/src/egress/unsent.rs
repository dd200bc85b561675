//! Frames that wait for the station of their next hop.

use netio::Frame;
use steer::BucketId;

/// Bytes that a packet which waits counts beside its own, for its place.
const PLACE_BYTES: u64 = 128;

/// A frame that waits for the station of its next hop.
#[derive(Debug)]
pub struct Unsent {
    /// Its bucket. When the bucket leaves the worker, the frame goes with it.
    pub bucket: BucketId,
    /// The longest packet that its route allows, bytes; `None`: the route has no limit.
    pub mtu: Option<u32>,
    /// The time since which it has waited, nanoseconds.
    pub since_ns: u64,
    /// The frame.
    pub frame: Frame,
}

impl Unsent {
    /// Bytes of the limit for its next hop that it takes.
    pub fn weight(&self) -> u64 {
        self.frame.len() as u64 + PLACE_BYTES
    }
}
