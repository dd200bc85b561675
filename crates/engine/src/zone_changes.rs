//! Zones that are changed while the gateway runs.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError};

use conntrack::TooManyZones;

use crate::Gateway;
use crate::command::{Command, WorkerReport};
use crate::coordinator::Coordinator;
use crate::crew::Unresponsive;
use crate::zone_config::{TimeoutPolicy, ZoneConfig};
use crate::zones::{self, Zones, ZonesError};

/// The zones of a gateway as they are configured now.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct ZoneBook {
    /// How often they have been changed since the start.
    pub revision: u64,
    /// Timeouts that zones may share.
    pub timeout_policies: Vec<Arc<TimeoutPolicy>>,
    /// The zones, the first that takes a packet has it.
    pub zones: Vec<ZoneConfig>,
}

/// Why zones were not changed.
#[derive(Debug, thiserror::Error)]
pub enum ChangeZonesError {
    /// They do not fit together; nothing has changed.
    #[error(transparent)]
    Zones(#[from] ZonesError),
    /// There have been too many; nothing has changed.
    #[error(transparent)]
    TooMany(#[from] TooManyZones),
    /// Somebody else was faster; nothing has changed.
    #[error(
        "the zones have been changed meanwhile: this is for revision {given}, and now it is {now}"
    )]
    Outdated {
        /// The revision that the change was made from.
        given: u64,
        /// The revision now.
        now: u64,
    },
    /// A worker hangs; the change comes into force when it answers again.
    #[error("{0}; the zones change when it does")]
    Unresponsive(#[from] Unresponsive),
}

impl Gateway {
    /// The zones as they are configured now.
    pub fn zones(&self) -> ZoneBook {
        let coordinator = self.shared.lock();
        ZoneBook {
            revision: coordinator.zones_revision,
            timeout_policies: coordinator.config.timeout_policies.clone(),
            zones: coordinator.config.zones.clone(),
        }
    }

    /// Names of the interfaces, by number of the port.
    pub fn interfaces(&self) -> Vec<String> {
        self.shared.lock().ports.names()
    }

    /// The addresses whose packets a router leaves to its host; none of a bridge.
    pub fn host_addresses(&self) -> Vec<std::net::IpAddr> {
        let routing = self.shared.lock().routing.clone();
        routing.iter().flat_map(|routing| routing.own_addresses()).collect()
    }

    /// Changes zones and policies to those of `book`, if its revision is that of now. Every
    /// packet is in a zone as it was before or as it is after. Connections stay in the zone in
    /// which they were opened; packets that are in another zone now do not belong to them.
    ///
    /// # Errors
    /// [`ChangeZonesError`].
    pub fn set_zones(&self, book: ZoneBook) -> Result<(), ChangeZonesError> {
        self.shared.lock().set_zones(book)
    }
}

impl Coordinator {
    fn set_zones(&mut self, book: ZoneBook) -> Result<(), ChangeZonesError> {
        let ZoneBook { revision: given, timeout_policies, zones } = book;
        if given != self.zones_revision {
            return Err(ChangeZonesError::Outdated { given, now: self.zones_revision });
        }
        let map = self.zones.changed(&zones, self.ports.len())?;
        self.limit_pools.set_zones(&zones::limits(&zones))?;
        self.zones_revision += 1;
        self.config.timeout_policies = timeout_policies;
        self.config.zones = zones;
        self.spread = Spread { map: Some(map), asked: Vec::new(), ..self.spread };
        Ok(self.spread_zones()?)
    }

    /// Tells all workers of the zones that have changed. If one of them hangs, nothing is
    /// lost: all are told again when all answer.
    fn spread_zones(&mut self) -> Result<(), Unresponsive> {
        // A worker may get packets of a zone from another as soon as one of them knows that
        // the zone is there, so all have to count its connections before.
        let pools = self.limit_pools.clone();
        self.tell_all(|| Command::LearnZones(Box::new(pools.clone())))?;
        self.change_limits()?;
        if let Some(map) = &self.spread.map {
            self.zones = map.clone();
        }
        let map = self.zones.clone();
        self.tell_all(|| Command::Zones(Box::new(map.clone())))?;
        // Whoever answers has taken it over, so what comes from now on is of the new zones.
        self.reports()?;
        self.spread.map = None;
        Ok(())
    }

    /// Has all workers count the connections of zones that rules name, before any packet of these
    /// comes; `has_news` if some of the zones have just become known.
    pub(crate) fn learn_zones(&mut self, has_news: bool) -> Result<(), Unresponsive> {
        if has_news && self.spread.map.is_none() {
            self.spread.map = Some(self.zones.clone());
        }
        if self.spread.map.is_some() { self.spread_zones() } else { Ok(()) }
    }

    /// Goes on with a change that not every worker has been told of, if all answer now.
    pub(crate) fn tend_changes(&mut self) -> Result<(), Unresponsive> {
        if self.spread.map.is_none() && !self.spread.settings {
            return Ok(());
        }
        // One question, however long it takes: whoever hangs is not to hold up the others, nor
        // to find its inbox full.
        if self.spread.asked.is_empty() {
            self.spread.asked = self.ask_all()?;
        }
        let hangs = |answer: &Receiver<_>| matches!(answer.try_recv(), Err(TryRecvError::Empty));
        self.spread.asked.retain(hangs);
        if !self.spread.asked.is_empty() {
            return Ok(());
        }
        if self.spread.settings {
            self.spread_settings()?;
            tracing::info!("every worker has the tunables again");
        }
        if self.spread.map.is_some() {
            self.spread_zones()?;
            tracing::info!("every worker knows the zones again");
        }
        Ok(())
    }
}

/// What has changed and not every worker knows of.
#[derive(Debug, Default)]
pub struct Spread {
    /// The map that is to come.
    map: Option<Zones>,
    /// Tunables.
    pub settings: bool,
    /// Addresses that are translated to.
    pub translated: bool,
    /// Whose answers are awaited before it is tried again.
    asked: Vec<Receiver<WorkerReport>>,
}
