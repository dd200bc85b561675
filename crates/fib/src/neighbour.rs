//! Neighbours: which station on a link an address is.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use crate::LinkId;

/// The address of a station on an Ethernet link.
pub type HardwareAddress = [u8; 6];

/// What is known of a neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Neighbour {
    /// Its station, and whether the kernel is sure of it; if not, it has to be asked to
    /// look again while packets go there.
    Known {
        /// The station.
        station: HardwareAddress,
        /// False for what the kernel calls stale.
        is_fresh: bool,
    },
    /// It was asked for and has not answered yet.
    Incomplete,
    /// It does not answer.
    Failed,
}

/// All neighbours.
#[derive(Clone, Debug, Default)]
pub struct Neighbours {
    // An ordered map: who is on a link can choose addresses, and there is no secret to hash
    // them with here.
    known: Arc<BTreeMap<(LinkId, IpAddr), Neighbour>>,
}

impl Neighbours {
    /// What is known of an address on a link.
    pub fn get(&self, link: LinkId, address: IpAddr) -> Option<&Neighbour> {
        self.known.get(&(link, address))
    }

    /// Takes over news.
    pub fn insert(&mut self, link: LinkId, address: IpAddr, neighbour: Neighbour) {
        Arc::make_mut(&mut self.known).insert((link, address), neighbour);
    }

    /// Forgets one.
    pub fn remove(&mut self, link: LinkId, address: IpAddr) {
        Arc::make_mut(&mut self.known).remove(&(link, address));
    }

    /// Forgets all.
    pub fn clear(&mut self) {
        self.known = Arc::default();
    }

    /// All, by link and address.
    pub fn iter(&self) -> impl Iterator<Item = (LinkId, IpAddr, &Neighbour)> {
        self.known.iter().map(|((link, address), neighbour)| (*link, *address, neighbour))
    }
}
