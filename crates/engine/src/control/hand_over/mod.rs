//! A new process on the same machine takes the place of this one.
//!
//! The program owns the socket between the two, and [`sync::hand_over`] has its messages. Here are the
//! parts that concern workers: the records of all that the gateway knows, exact to the last packet, and
//! the receive queues. docs/internals/hand-over.md explains the rules.

mod intake;
mod items;
mod outflow;
mod standing;

use std::os::fd::OwnedFd;

use conntrack::Cursor;
use fib::LinkId;
use flow::{HashKey, Timestamp};
use netio::{PortId, QueuePosition, RxQueue};
use steer::BucketId;

use crate::Gateway;
use crate::control::config::SteerError;
use crate::control::coordinator::{Coordinator, HOPS};
use crate::control::offers::PAUSE;
use crate::control::ports::PortLink;
use crate::control::shared_copies::SharedThings;
use crate::control::worker_handle::Unresponsive;
use crate::path::reassembly::DatagramMemory;
use crate::worker::command::Command;

pub use intake::{Intake, IntakeError, IntakeReport};
pub use items::RuleProgress;
pub use outflow::{Outflow, OutflowError};
pub use standing::Standing;

/// Looks for a moment in which no datagram is incomplete, before a gateway stops receiving all the same.
const QUIET_TRIES: usize = 100;

/// How far a gateway is from handing over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tenure {
    /// It is not.
    #[default]
    Own,
    /// Another process is to hand over to this one, and receives packets until then.
    Awaited,
    /// Its state is being copied, so buckets stay where they are: changes of a connection come in
    /// their order.
    Copied,
    /// It receives nothing.
    Frozen,
}

impl Tenure {
    /// Refuses moves of buckets while the gateway hands over.
    pub fn may_move(self) -> Result<(), SteerError> {
        match self {
            Self::Own | Self::Awaited => Ok(()),
            Self::Copied | Self::Frozen => Err(SteerError::HandingOver),
        }
    }
}

/// A receive queue on its way to another process.
#[derive(Debug)]
pub struct HandedQueue {
    /// Its port.
    pub port: PortId,
    /// Its socket.
    pub socket: OwnedFd,
    /// Where it stands.
    pub position: QueuePosition,
}

/// Why a gateway can not stop receiving and hand its queues over.
#[derive(Debug, thiserror::Error)]
pub enum FreezeError {
    /// A queue does not come back from its worker.
    #[error("interface {0} is coming or going; try again")]
    Unsettled(String),
    /// A queue can not be handed over.
    #[error("a queue of interface {0} can not be handed over before a packet has come by it")]
    Fixed(String),
    /// The system has no descriptor left.
    #[error("the descriptors of queues can not be copied: {0}")]
    System(#[from] std::io::Error),
    /// A worker hangs.
    #[error(transparent)]
    Workers(#[from] SteerError),
}

/// An interface of a gateway that hands over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HandedInterface {
    /// Its name.
    pub name: String,
    /// Its number in the kernel; `None` while it is missing.
    pub link: Option<LinkId>,
    /// The number of its receive queues.
    pub queues: usize,
}

impl Gateway {
    /// The interfaces, by port.
    pub fn handed_interfaces(&self) -> Vec<HandedInterface> {
        let coordinator = self.shared.lock();
        let ports = &coordinator.ports;
        let all = ports.named_links().into_iter().zip((0..).map(PortId));
        let handed = |(PortLink { link, name }, port)| HandedInterface {
            name,
            link,
            queues: ports.queue_count(port),
        };
        all.map(handed).collect()
    }

    /// The secret of the steering hash.
    pub fn secret(&self) -> HashKey {
        self.shared.lock().config.secret
    }

    /// The fingerprint of the rules that are in force; `None` without rules.
    pub fn rules_fingerprint(&self) -> Option<u128> {
        // It takes a while for large sets.
        let rules = self.shared.lock().rules.clone();
        rules.map(|rules| rules.program.ruleset().fingerprint())
    }

    /// A copy of the descriptor that claims the interface of each port.
    ///
    /// # Errors
    /// [`FreezeError::Fixed`] for a port without one, and [`FreezeError::System`].
    pub fn claims(&self) -> Result<Vec<OwnedFd>, FreezeError> {
        let coordinator = self.shared.lock();
        let ports = &coordinator.ports;
        let all = (0..ports.len() as u16).map(PortId);
        all.map(|port| {
            let claim = ports.claim(port);
            let claim = claim.ok_or_else(|| FreezeError::Fixed(ports.name_of(port).to_owned()))?;
            Ok(claim.try_clone_to_owned()?)
        })
        .collect()
    }

    /// Stops receiving, processes every packet that was received, and sends what that leads to. Packets
    /// wait in the kernel from now on. Returns the time of the stop, and copies of the queues for a process
    /// that goes on with them. The gateway stays as it is until [`Gateway::thaw`] or [`Gateway::stop`].
    ///
    /// # Errors
    /// [`FreezeError`]; the gateway goes on receiving.
    pub fn freeze(&self) -> Result<(Timestamp, Vec<HandedQueue>), FreezeError> {
        let mut coordinator = self.shared.lock();
        for _ in 0..QUIET_TRIES {
            if coordinator.is_quiet().map_err(SteerError::from)? {
                break;
            }
            let execution = coordinator.execution.clone();
            drop(coordinator);
            execution.pause(PAUSE);
            coordinator = self.shared.lock();
        }
        let since = coordinator.execution.now();
        let frozen = coordinator.freeze();
        if frozen.is_err() {
            coordinator.thaw()?;
        }
        Ok((since, frozen?))
    }

    /// Receives again. `was_read` says that another process may have read the queues meanwhile, and has
    /// ended.
    ///
    /// # Errors
    /// [`SteerError`].
    pub fn thaw(&self, was_read: bool) -> Result<(), SteerError> {
        let mut coordinator = self.shared.lock();
        if was_read {
            coordinator.ports.find_places();
        }
        coordinator.thaw()
    }

    /// This gateway owns all connections, announcements and elements from now on.
    fn adopt_all(&self) -> Result<(), Unresponsive> {
        let mut place = Some((BucketId(0), Cursor::default()));
        while let Some((bucket, from)) = place {
            let passed = self.adopt_connections(bucket, from)?;
            place = passed.map(|passed| match passed.rest {
                Some(rest) => (bucket, rest),
                None => (BucketId(bucket.0 + 1), Cursor::default()),
            });
        }
        self.adopt_shared();
        Ok(())
    }

    /// Receives by these queues of another process from now on. A port that has no queue, or had no
    /// interface at the start, is opened when its interface is there.
    ///
    /// # Errors
    /// [`Unresponsive`].
    pub fn take_queues(&self, queues: Vec<(PortId, Box<dyn RxQueue>)>) -> Result<(), Unresponsive> {
        let mut coordinator = self.shared.lock();
        coordinator.tenure = Tenure::Own;
        for (port, queue) in queues {
            if coordinator.ports.is_up(port) {
                coordinator.ports.add_foreign_queue(port, queue);
            }
        }
        for port in coordinator.ports.close_without_queues() {
            coordinator.tell_all(|| Command::SetOutput(port, None))?;
        }
        let workers = coordinator.worker_count();
        coordinator.hand_out_queues(workers)
    }
}

impl Coordinator {
    /// True if no datagram lacks fragments. The next process would not have those that have come.
    fn is_quiet(&mut self) -> Result<bool, Unresponsive> {
        let incomplete = |memory: DatagramMemory| memory.newcomers + memory.in_progress;
        let all = self.reports()?.into_iter().map(|report| report.datagrams);
        Ok(all.map(|it| incomplete(it.v4) + incomplete(it.v6)).sum::<u64>() == 0)
    }

    fn freeze(&mut self) -> Result<Vec<HandedQueue>, FreezeError> {
        self.tenure = Tenure::Frozen;
        for id in self.ports.polled_by(|_| true) {
            self.release_queue(id)?;
        }
        for _ in 0..HOPS {
            self.drain_rings()?;
        }
        for port in (0..self.ports.len() as u16).map(PortId) {
            if self.ports.is_up(port) && !self.ports.is_idle(port) {
                return Err(FreezeError::Unsettled(self.ports.name_of(port).to_owned()));
            }
        }
        let queues = self.ports.idle_queues().iter();
        queues
            .map(|queue| {
                let name = || FreezeError::Fixed(self.ports.name_of(queue.port).to_owned());
                let (socket, position) = queue.source.to_hand_over().ok_or_else(name)?;
                let socket = socket.try_clone_to_owned()?;
                Ok(HandedQueue { port: queue.port, socket, position })
            })
            .collect()
    }

    fn thaw(&mut self) -> Result<(), SteerError> {
        self.tenure = Tenure::Copied;
        let workers = self.worker_count();
        Ok(self.hand_out_queues(workers)?)
    }
}

#[cfg(test)]
#[path = "hand_over_tests.rs"]
mod tests;
