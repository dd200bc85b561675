//! Changes zones while the gateway runs.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError};

use conntrack::TooManyZones;
use steer::AddressSet;

use crate::Gateway;
use crate::control::coordinator::Coordinator;
use crate::control::worker_handle::Unresponsive;
use crate::path::zone_config::{ZoneConfig, ZoneTimeouts};
use crate::path::zones::{self, Zones, ZonesError};
use crate::worker::command::Command;
use crate::worker::report::WorkerReport;

/// The zones of a gateway as they are configured now.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct ZoneBook {
    /// How often the zones were changed since the start.
    pub revision: u64,
    /// Timeouts that zones may share.
    pub timeout_policies: Vec<Arc<ZoneTimeouts>>,
    /// The zones. A packet is in the first zone that takes it.
    pub zones: Vec<ZoneConfig>,
}

/// Why zones were not changed.
#[derive(Debug, thiserror::Error)]
pub enum ChangeZonesError {
    /// The zones contradict each other; nothing has changed.
    #[error(transparent)]
    Zones(#[from] ZonesError),
    /// The gateway has known too many zones since its start; nothing has changed.
    #[error(transparent)]
    TooMany(#[from] TooManyZones),
    /// Another change came first; nothing has changed.
    #[error(
        "the zones have been changed meanwhile: this is for revision {given}, and now it is {now}"
    )]
    Outdated {
        /// The revision that this change was made from.
        given: u64,
        /// The current revision.
        now: u64,
    },
    /// A worker hangs. The change takes effect when it answers again.
    #[error("{0}; the zones change when it answers again")]
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

    /// The names of the interfaces, by port.
    pub fn interfaces(&self) -> Vec<String> {
        self.shared.lock().ports.names()
    }

    /// The addresses whose packets a router leaves to its host. A bridge has none.
    pub fn host_addresses(&self) -> Vec<std::net::IpAddr> {
        let routing = self.shared.lock().routing.clone();
        routing.iter().flat_map(|routing| routing.own_addresses()).collect()
    }

    /// Changes zones and policies to those of `book`, if its revision is the current one. Every
    /// packet is either in its zone before or in its zone after the change. Connections stay in
    /// the zone in which they were opened. Packets that are in another zone now do not belong to
    /// them.
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
        self.blueprint.limit_pools.set_zones(&zones::limits(&zones))?;
        self.zones_revision += 1;
        self.config.timeout_policies = timeout_policies;
        self.config.zones = zones;
        self.spread.map = Some(map);
        self.spread.asked.clear();
        Ok(self.spread_zones()?)
    }

    /// Tells all workers the changed zones. If one of them hangs, all are told again when all
    /// answer.
    fn spread_zones(&mut self) -> Result<(), Unresponsive> {
        // As soon as one worker knows a zone, the others may get its packets from that worker. So
        // all of them have to count its connections first.
        let pools = self.blueprint.limit_pools.clone();
        self.tell_all(|| Command::LearnZones(Box::new(pools.clone())))?;
        self.change_limits()?;
        if let Some(map) = &self.spread.map {
            self.zones = map.clone();
        }
        let map = self.zones.clone();
        self.tell_all(|| Command::Zones(Box::new(map.clone())))?;
        // After its answer, a worker uses the new zones.
        self.reports()?;
        self.spread.map = None;
        Ok(())
    }

    /// Lets all workers count the connections of zones that rules name, before any packet of these
    /// zones comes. `has_news`: some of the zones were not known before.
    pub(crate) fn learn_zones(&mut self, has_news: bool) -> Result<(), Unresponsive> {
        if has_news && self.spread.map.is_none() {
            self.spread.map = Some(self.zones.clone());
        }
        if self.spread.map.is_some() { self.spread_zones() } else { Ok(()) }
    }

    /// Goes on with a change that not every worker knows, if all workers answer now.
    pub(crate) fn tend_changes(&mut self) -> Result<(), Unresponsive> {
        let Spread { map, settings, inside, .. } = &self.spread;
        if map.is_none() && !settings && inside.is_none() {
            return Ok(());
        }
        // Each worker is asked one question, however long the answer takes. So a worker that hangs
        // does not hold up the others, and its inbox does not fill up.
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
        if let Some(inside) = self.spread.inside.clone() {
            self.change_inside(inside)?;
            tracing::info!("every worker steers by the same inside addresses again");
        }
        Ok(())
    }
}

/// Changes that not every worker knows yet.
#[derive(Debug, Default)]
pub struct Spread {
    /// The zones that are to take effect.
    map: Option<Zones>,
    /// The tunables have changed.
    pub settings: bool,
    /// The inside addresses that workers are to steer by.
    pub inside: Option<AddressSet>,
    /// Answers that are awaited before the workers are told again.
    asked: Vec<Receiver<WorkerReport>>,
}
