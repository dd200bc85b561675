//! Placement: from the interfaces' `rps_cpus` to the workers that may own buckets.
//!
//! # The rule
//!
//! The `rps_cpus` of an interface promises: these CPUs and no others work on the packets that
//! arrive here. In the kernel each direction of a flow keeps that promise by itself. Here both
//! directions belong to one bucket with one owner, and any bucket holds flows of any pair of
//! interfaces. So only the workers in the **intersection** of all sets keep every promise, and
//! they are the same for all buckets. The union would break promises in silence. A set per
//! bucket can not help, because a hash that knows no interface chooses the bucket.
//!
//! * An interface with an empty set promises nothing: any worker will do. (A mask
//!   of zero is refused before it gets here: to the kernel it means "no steering",
//!   which does not exist where every bucket has an owner.)
//! * CPUs of a set on which no worker runs are ignored, as the kernel ignores
//!   CPUs that are offline; a set without any worker is an error.
//! * Two sets that share no worker are an error that names the interfaces.
//!   Gateways that are to use separate CPUs are separate processes.
//! * Workers outside the intersection still receive and transmit; they only own nothing.
//!   [`Placement::without_buckets`] names them, so that the operator learns of them.
//!
//! Within the allowed workers a bucket's owner is number `(hash * len) >> 32`, as
//! receive packet steering chooses (see [`IndirectionTable::spread`]).

use crate::{BucketCount, CpuSet, IndirectionTable, WorkerId, WorkerSet};

/// A worker and the CPU on which it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkerCpu {
    /// The worker.
    pub worker: WorkerId,
    /// Its CPU.
    pub cpu: usize,
}

/// An interface and the CPUs that may work on the packets that arrive there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InterfaceCpus {
    /// Name of the interface.
    pub name: String,
    /// Its `rps_cpus`; empty for any.
    pub cpus: CpuSet,
}

/// The workers that may own buckets, and the owners at the start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// The workers that may own buckets.
    pub allowed: WorkerSet,
    /// Workers that may own none, because an interface excludes their CPU.
    pub without_buckets: WorkerSet,
    /// The owners at the start.
    pub table: IndirectionTable,
}

/// Why the sets of the interfaces can not be satisfied.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlacementError {
    /// There are no workers.
    #[error("there are no workers; start at least one")]
    NoWorkers,
    /// No worker runs on the CPUs of an interface.
    #[error(
        "interface {interface}: no worker runs on the CPUs of its rps_cpus, {cpus}; the workers \
         run on CPUs {workers}. Choose among these, for example rps_cpus = \"{example}\", or \
         leave it out to allow all"
    )]
    NoWorkerOnCpus {
        /// Name of the interface.
        interface: String,
        /// Its CPUs, as a list.
        cpus: String,
        /// CPUs of the workers, as a list.
        workers: String,
        /// A mask that would do.
        example: String,
    },
    /// The sets of the interfaces share no worker.
    #[error(
        "rps_cpus of {interface} ({cpus}) and of {others} ({other_cpus}) have no worker in \
         common. Both directions of a flow are worked on by one worker, so the sets of all \
         interfaces must share a CPU; write the same set for both, or run two gateways"
    )]
    Disjoint {
        /// The first interface that shares no worker with those before it.
        interface: String,
        /// Its CPUs, as a list.
        cpus: String,
        /// The interfaces before it. It excludes all of their workers.
        others: String,
        /// The CPUs that those have in common, as a list.
        other_cpus: String,
    },
}

/// Decides which workers may own buckets and spreads the buckets over them.
///
/// # Errors
/// [`PlacementError`] when the sets of the interfaces can not be satisfied.
pub fn place(
    interfaces: &[InterfaceCpus],
    workers: &[WorkerCpu],
    buckets: BucketCount,
) -> Result<Placement, PlacementError> {
    let all: WorkerSet = workers.iter().map(|worker| worker.worker).collect();
    let mut allowed = all;
    let mut restricting: Vec<&str> = Vec::new();
    for InterfaceCpus { name, cpus } in interfaces.iter().filter(|i| !i.cpus.is_empty()) {
        let own = workers_on(workers, cpus);
        if own.is_empty() && !all.is_empty() {
            let existing = cpus_of(workers, all);
            return Err(PlacementError::NoWorkerOnCpus {
                interface: name.clone(),
                cpus: cpus.list().to_string(),
                workers: existing.list().to_string(),
                example: existing.mask().to_string(),
            });
        }
        let common = allowed.intersection(own);
        if common.is_empty() && !all.is_empty() {
            return Err(PlacementError::Disjoint {
                interface: name.clone(),
                cpus: cpus.list().to_string(),
                others: restricting.join(", "),
                other_cpus: cpus_of(workers, allowed).list().to_string(),
            });
        }
        allowed = common;
        restricting.push(name);
    }
    let table =
        IndirectionTable::spread(buckets, allowed).map_err(|_| PlacementError::NoWorkers)?;
    Ok(Placement { allowed, without_buckets: all.difference(allowed), table })
}

fn workers_on(workers: &[WorkerCpu], cpus: &CpuSet) -> WorkerSet {
    workers.iter().filter(|worker| cpus.contains(worker.cpu)).map(|worker| worker.worker).collect()
}

fn cpus_of(workers: &[WorkerCpu], set: WorkerSet) -> CpuSet {
    workers.iter().filter(|worker| set.contains(worker.worker)).map(|worker| worker.cpu).collect()
}

#[cfg(test)]
#[path = "placement_tests.rs"]
mod tests;
