//! Packets that were dropped.

use engine::DroppedPacket;
use serde::{Deserialize, Serialize};

/// The last dropped packets for each reason.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RecentDrops {
    /// Schema version.
    pub schema: u32,
    /// The latest first.
    pub packets: Vec<Dropped>,
}

/// One packet.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Dropped {
    /// The reason under which it is counted.
    pub reason: String,
    /// The check that decided, with its numbers.
    pub why: String,
    /// Its headers in one line.
    pub packet: String,
    /// Its length, in bytes.
    pub length: u32,
    /// The input interface.
    pub interface: String,
    /// Its zone.
    pub zone: u16,
    /// Its outermost VLAN, 0 for none.
    pub vlan: u16,
    /// The worker that dropped it.
    pub worker: u16,
    /// Milliseconds since then.
    pub age_ms: u64,
}

impl From<&DroppedPacket> for Dropped {
    fn from(dropped: &DroppedPacket) -> Self {
        Self {
            reason: dropped.why.reason().name().to_owned(),
            why: dropped.reason_text(),
            packet: dropped.summary.clone(),
            length: dropped.length,
            interface: dropped.interface.clone(),
            zone: dropped.zone.0,
            vlan: dropped.vlan,
            worker: dropped.worker.0,
            age_ms: u64::try_from(dropped.age.as_millis()).unwrap_or(u64::MAX),
        }
    }
}
