//! Receive packet steering: chooses the worker of a packet.
//!
//! ```text
//! packet -> SteeringHasher -> bucket -> IndirectionTable -> worker -> Backlog -> ring
//! ```
//!
//! [`SteeringHasher`] maps both directions of a flow, and the ICMP errors about it, to one
//! bucket. [`IndirectionTable`] holds the owner of each bucket; [`place`] derives the workers
//! that may own buckets from the interfaces' `rps_cpus`. [`Backlog`] bounds the packets that
//! one worker hands to another, and [`Balancer`] moves buckets when the load is uneven.
//!
//! Everything here is a function or a small owned structure: no clock, no lock,
//! no thread, no input or output.

mod address_set;
mod backlog;
mod balance;
mod bucket;
mod cpuset;
mod hasher;
mod placement;
mod settings;
mod table;
mod toeplitz;
mod worker;

pub use address_set::AddressSet;
pub use backlog::{Backlog, BacklogCounters, BacklogLimits};
pub use balance::{BalanceSettings, Balancer, Move, MoveReason, Plan, Sample, Spread};
pub use bucket::{BucketCount, BucketCountError, BucketId};
pub use cpuset::{CpuSet, CpuSetError, CpuSetForm, MAX_CPUS};
pub use hasher::{
    FragmentSteering, HashKind, Steered, SteeringConfig, SteeringHasher, TunnelSteering,
};
pub use placement::{InterfaceCpus, Placement, PlacementError, WorkerCpu, place};
pub use settings::{SteerSettings, TUNABLES};
pub use table::{BucketMove, IndirectionTable, NoWorkers};
pub use toeplitz::{Toeplitz, ToeplitzKey, symmetric_toeplitz};
pub use worker::{MAX_WORKERS, WorkerId, WorkerSet};
