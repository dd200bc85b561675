//! A device as it was found.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use steer::CpuSet;

use crate::setting::{Setting, Value};

/// A device, its settings, and what matters of the machine.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// Its name.
    pub device: String,
    /// Number of receive queues.
    pub rx_queues: u16,
    /// Number of transmit queues.
    pub tx_queues: u16,
    /// Its NAPIs, lowest id first.
    pub napis: Vec<Napi>,
    /// The CPUs that are online.
    pub cpus: Vec<Cpu>,
    /// The settings that it has, with their values.
    pub values: BTreeMap<Setting, Value>,
    /// Settings that it lacks or that can not be read.
    pub unavailable: Vec<LeftAlone>,
    /// Settings that are there and can not be read now.
    pub unreadable: BTreeSet<Setting>,
    /// True if NAPIs can not be seen now that may have values: the device is down, or the kernel does
    /// not list them.
    pub hides_napis: bool,
    /// Flows that the kernel can steer to the CPUs of their sockets, on the whole machine
    /// (`net.core.rps_sock_flow_entries`). 0 turns this off for every device.
    pub socket_flows: u64,
    /// True if the CPUs of threads of NAPIs can be read and written.
    pub can_place_threads: bool,
    /// Programs that place interrupts by themselves, such as irqbalance.
    pub placers: Vec<String>,
}

/// A NAPI: the kernel's unit of polling, mostly one for each queue or pair of queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Napi {
    /// Its id, which no other has while the machine runs.
    pub id: u32,
    /// Its interrupt, if the driver says so.
    pub interrupt: Option<u32>,
    /// Its receive queue, if the driver says so.
    pub rx_queue: Option<u16>,
    /// The process id of its thread, if it has one.
    pub thread: Option<u32>,
}

/// A CPU that is online.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cpu {
    /// Its number.
    pub number: usize,
    /// Its NUMA distance from the device: 10 for the same node, or for a device without a node.
    pub distance: u32,
    /// True if a CPU with a lower number shares its core.
    pub is_sibling: bool,
}

/// A setting, or a group of settings, that a plan leaves alone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LeftAlone {
    /// The name of the setting, or of the group.
    pub id: String,
    /// The reason.
    pub reason: String,
}

impl LeftAlone {
    /// Leaves this alone for this reason.
    pub fn new(id: impl ToString, reason: impl Into<String>) -> Self {
        Self { id: id.to_string(), reason: reason.into() }
    }
}

impl Snapshot {
    /// The CPUs that are online.
    pub fn online(&self) -> CpuSet {
        self.cpus.iter().map(|cpu| cpu.number).collect()
    }

    /// True if a setting that has no value here may have one all the same.
    pub fn hides(&self, setting: Setting) -> bool {
        let is_napi = matches!(setting, Setting::Napi { .. });
        self.unreadable.contains(&setting) || (is_napi && self.hides_napis)
    }

    /// The CPUs of a set in the order in which they get queues: those near the device first, and
    /// those of a core without another before their siblings.
    pub(crate) fn nearest_first(&self, set: &CpuSet) -> Vec<usize> {
        let mut cpus: Vec<&Cpu> = self.cpus.iter().filter(|cpu| set.contains(cpu.number)).collect();
        cpus.sort_by_key(|cpu| (cpu.distance, cpu.is_sibling, cpu.number));
        cpus.into_iter().map(|cpu| cpu.number).collect()
    }
}
