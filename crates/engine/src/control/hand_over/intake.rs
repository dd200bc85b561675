//! The state of the process that runs, at the new one.

use std::collections::{BTreeMap, HashMap};

use conntrack::{DecodeError, ImportRefusal};
use flow::KeyedPacket;
use flow::replica::Origin;
use netio::PortId;

use super::items::{HeardStation, Item, RuleProgress, read_all, read_rules};
use crate::Gateway;
use crate::control::record::RecordRefusal;
use crate::control::shared_copies::{SharedChange, SharedThings};
use crate::control::worker_handle::Unresponsive;
use crate::egress::stations::StationUpdate;
use crate::path::announcement_copies::Outcome;
use crate::path::replication::CopyChange;
use crate::worker::command::Command;

/// Connections that wait for another one to end, at most.
const REFUSED_MAX: usize = 1024;
/// Announcements that wait for their connection, at most.
const WAITING_MAX: usize = 1024;

/// Why a new process does not take over.
#[derive(Debug, thiserror::Error)]
pub enum IntakeError {
    /// A record that no gateway writes, or that this program does not know.
    #[error("a record can not be read: {0}")]
    Decode(#[from] DecodeError),
    /// Connections have no place here.
    #[error("{count} connections can not be taken over: {why}")]
    Refused {
        /// The number of connections.
        count: usize,
        /// The reason of one of them.
        why: ImportRefusal,
    },
    /// A worker hangs.
    #[error(transparent)]
    Unresponsive(#[from] Unresponsive),
}

/// The things that were taken over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IntakeReport {
    /// Connections.
    pub connections: u64,
    /// Announcements and elements of sets that were made.
    pub shared: u64,
    /// Those that were refused.
    pub shared_refused: u64,
}

/// Takes over the state of the process that runs. Until [`Intake::adopt`], that process owns all, so nothing
/// ends here by itself.
#[derive(Debug, Default)]
pub struct Intake {
    /// Connections that were refused, and may be taken when others have ended.
    refused: HashMap<KeyedPacket, (CopyChange, ImportRefusal)>,
    /// Announcements without their connection.
    waiting: Vec<SharedChange>,
    shared: BTreeMap<bool, u64>,
    /// The bytes about the rules that have come, and what all of them say.
    rule_bytes: Vec<u8>,
    rules: Option<Box<RuleProgress>>,
    ports: Vec<PortId>,
    has_same_rules: bool,
}

impl Intake {
    /// Nothing yet. `ports` has the port here of each port of the process that runs. Rules go on counting
    /// if both have the same.
    pub fn new(ports: Vec<PortId>, has_same_rules: bool) -> Self {
        Self { ports, has_same_rules, ..Self::default() }
    }

    /// Takes over what these bytes say. Bytes that can not be read change nothing.
    ///
    /// # Errors
    /// [`IntakeError`].
    pub fn take(&mut self, gateway: &Gateway, bytes: &[u8]) -> Result<(), IntakeError> {
        let (mut changes, mut shared) = (Vec::new(), Vec::new());
        for item in read_all(bytes)? {
            match item {
                Item::State(record) => {
                    self.refused.remove(&record.original());
                    changes.push(CopyChange::State { record, prevails: true });
                }
                Item::End(original) => {
                    self.refused.remove(&original);
                    changes.push(CopyChange::End(original));
                }
                Item::SharedState(record) => {
                    let origin = Origin::Owner { prevails: true };
                    shared.push(SharedChange::State(record, origin));
                }
                Item::Stations(heard) => self.learn(gateway, &heard)?,
                Item::Rules(bytes, is_last) => {
                    self.rule_bytes.extend(bytes);
                    if is_last {
                        let progress = read_rules(&std::mem::take(&mut self.rule_bytes))?;
                        self.rules = Some(Box::new(progress));
                    }
                }
                Item::SharedEnd(record) => shared.push(SharedChange::End(record, true)),
            }
        }
        self.change(gateway, changes)?;
        self.change_shared(gateway, shared)
    }

    fn learn(&self, gateway: &Gateway, heard: &[HeardStation]) -> Result<(), Unresponsive> {
        let mut coordinator = gateway.shared.lock();
        let now = coordinator.execution.now();
        let known = heard.iter().filter_map(|it| {
            let port = *self.ports.get(usize::from(it.port.0))?;
            let seen_ns = now.as_nanos().saturating_sub(it.age.duration().as_nanos() as u64);
            Some(StationUpdate { station: it.station, port, seen_ns })
        });
        let known: Vec<_> = known.collect();
        coordinator.tell_all(|| Command::Stations(known.clone()))
    }

    fn change(&mut self, gateway: &Gateway, changes: Vec<CopyChange>) -> Result<(), IntakeError> {
        if changes.is_empty() {
            return Ok(());
        }
        for (change, refusal) in gateway.change_copies(changes)?.refused {
            self.refused.insert(change.original(), (change, refusal));
        }
        if self.refused.len() > REFUSED_MAX { self.refuse() } else { Ok(()) }
    }

    /// Fails if connections were refused.
    fn refuse(&self) -> Result<(), IntakeError> {
        let count = self.refused.len();
        match self.refused.values().next() {
            Some((_, why)) => Err(IntakeError::Refused { count, why: *why }),
            None => Ok(()),
        }
    }

    fn change_shared(
        &mut self,
        gateway: &Gateway,
        mut changes: Vec<SharedChange>,
    ) -> Result<(), IntakeError> {
        if changes.is_empty() {
            return Ok(());
        }
        // Those that have waited are older.
        changes.splice(..0, std::mem::take(&mut self.waiting));
        for (record, outcome) in gateway.change_shared(changes)? {
            match outcome {
                Outcome::Taken(_) => *self.shared.entry(true).or_default() += 1,
                Outcome::Ended(_) => {}
                Outcome::Refused(RecordRefusal::Tracking(ImportRefusal::Master))
                    if self.waiting.len() < WAITING_MAX =>
                {
                    let origin = Origin::Owner { prevails: true };
                    self.waiting.push(SharedChange::State(record, origin));
                }
                Outcome::Refused(_) => *self.shared.entry(false).or_default() += 1,
            }
        }
        Ok(())
    }

    /// Tries once more what was refused, at a mark of the process that runs.
    ///
    /// # Errors
    /// [`IntakeError`].
    pub fn settle(&mut self, gateway: &Gateway) -> Result<(), IntakeError> {
        let again = std::mem::take(&mut self.refused).into_values().map(|(change, _)| change);
        self.change(gateway, again.collect())?;
        let waiting = std::mem::take(&mut self.waiting);
        self.change_shared(gateway, waiting)
    }

    /// Tries for the last time, when the process that runs has stopped. All of its connections are here
    /// afterwards.
    ///
    /// # Errors
    /// [`IntakeError`].
    pub fn finish(&mut self, gateway: &Gateway) -> Result<(), IntakeError> {
        self.settle(gateway)?;
        self.refuse()?;
        if let Some(progress) = self.rules.take().filter(|_| self.has_same_rules)
            && !gateway.shared.lock().go_on_with_rules(*progress)
        {
            tracing::warn!(
                "counters, rates and quotas of rules begin anew, because the rules differ"
            );
        }
        Ok(())
    }

    /// This gateway owns all from now on.
    ///
    /// # Errors
    /// [`Unresponsive`].
    pub fn adopt(self, gateway: &Gateway) -> Result<IntakeReport, Unresponsive> {
        gateway.adopt_all()?;
        let count = |made| self.shared.get(&made).copied().unwrap_or_default();
        Ok(IntakeReport {
            connections: gateway.connection_count()?,
            shared: count(true),
            shared_refused: count(false) + self.waiting.len() as u64,
        })
    }
}
