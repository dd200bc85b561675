//! Datagrams that wait for fragments.

use std::net::{IpAddr, Ipv6Addr};

use defrag::{Phase, QueueView};
use serde::{Deserialize, Serialize};

/// An incomplete datagram.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Datagram {
    /// Schema version.
    pub schema: u32,
    /// Source address.
    pub source: IpAddr,
    /// Destination address.
    pub destination: IpAddr,
    /// Identification.
    pub id: u32,
    /// IP protocol number; absent for IPv6, where fragments may differ in it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protocol: Option<u8>,
    /// Zone.
    pub zone: u16,
    /// Outermost VLAN, 0 for none.
    pub vlan: u16,
    /// Bucket that owns it.
    pub bucket: u16,
    /// `new` (one fragment has come), `progress` (several have come), or `given_up` (remembered
    /// only to drop later fragments).
    pub stage: String,
    /// The reason why it was given up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Fragments held.
    pub fragments: u32,
    /// Payload held, in bytes.
    pub received: u32,
    /// Payload of the whole datagram, in bytes; absent until the last fragment has come.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total: Option<u32>,
    /// Memory charged, in bytes.
    pub memory: u64,
    /// Milliseconds since its first fragment came.
    pub age_ms: u64,
    /// Milliseconds until it is given up.
    pub remaining_ms: u64,
}

/// Memory of incomplete datagrams.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Datagrams {
    /// Datagrams of both families, including those that were given up and are remembered.
    pub count: u64,
    /// IPv4.
    pub v4: DatagramMemory,
    /// IPv6.
    pub v6: DatagramMemory,
}

/// Memory charged for incomplete datagrams of one family, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DatagramMemory {
    /// Memory of datagrams with one fragment.
    pub new: u64,
    /// Memory of datagrams with several fragments.
    pub progress: u64,
    /// Memory of datagrams that were given up.
    pub given_up: u64,
}

impl DatagramMemory {
    /// The sum.
    pub fn total(&self) -> u64 {
        self.new + self.progress + self.given_up
    }
}

impl From<&QueueView> for Datagram {
    fn from(view: &QueueView) -> Self {
        let address = |address: [u8; 16]| Ipv6Addr::from(address).to_canonical();
        let (stage, reason) = match view.phase {
            Phase::Newcomer => ("new", None),
            Phase::Progress => ("progress", None),
            Phase::Dead(reason) => ("given_up", Some(reason.name().to_owned())),
        };
        Self {
            schema: crate::SCHEMA,
            source: address(view.key.source),
            destination: address(view.key.destination),
            id: view.key.id(),
            protocol: (view.key.family() == wire::Family::V4).then_some(view.key.protocol()),
            zone: view.key.realm().zone().0,
            vlan: view.key.realm().vlan(),
            bucket: view.bucket,
            stage: stage.to_owned(),
            reason,
            fragments: view.pieces,
            received: view.received,
            total: view.total,
            memory: view.charged,
            age_ms: view.age.as_millis() as u64,
            remaining_ms: view.remaining.as_millis() as u64,
        }
    }
}

impl From<&engine::DatagramStatus> for Datagrams {
    fn from(status: &engine::DatagramStatus) -> Self {
        let memory = |memory: &engine::DatagramMemory| DatagramMemory {
            new: memory.newcomers,
            progress: memory.in_progress,
            given_up: memory.given_up,
        };
        Self { count: status.count, v4: memory(&status.v4), v6: memory(&status.v6) }
    }
}
