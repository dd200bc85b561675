//! What the other ends of translated connections are told of what is expected.

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;

use flow::{Endpoint, FlowKey, Zone};
use wire::{Family, mapped};

use super::{Book, Destination, Expectation, Expectations, Master};
use crate::helper::Announced;

/// Places of media whose ports are remembered; of more, the first is forgotten.
const REMEMBERED: usize = 1024;

/// The ports that others were told of places where media were to come, the even one of each pair.
/// The flows of a call outlive it, and who has another call at the same places goes on with
/// them. So it has to be known by the same ports.
#[derive(Debug, Default)]
pub(super) struct Media {
    ports: BTreeMap<Place, u16>,
    /// The first that was remembered comes first.
    order: VecDeque<Place>,
}

/// Zone and protocol, the place, and the address that it is known by.
type Place = (Zone, u8, (IpAddr, u16), IpAddr);

impl Media {
    fn remember(&mut self, place: Place, port: u16) {
        if self.ports.insert(place, port & !1).is_none() {
            self.order.push_back(place);
        }
        if self.order.len() > REMEMBERED
            && let Some(first) = self.order.pop_front()
        {
            self.ports.remove(&first);
        }
    }
}

/// Where media are to come, if it is this that is announced.
fn place_of(master: &Master, announced: &Announced) -> Option<Place> {
    let (address, port) = announced.follow?.destination?;
    announced.pair_of?;
    let zone = master.flow.key.zone;
    Some((zone, announced.protocol, (address, port & !1), announced.destination))
}

impl Expectations {
    /// The first of some ports that a connection may announce in place of another: the one
    /// that it has announced for the same before, or one that nobody expects anything at.
    /// Of what comes in [pairs](Announced::pair_of), both ports are like this, and those that
    /// the same place was known by the last time go before others.
    pub(crate) fn choose_port(
        &self,
        master: &Master,
        announced: &Announced,
        mut ports: impl Iterator<Item = u16>,
    ) -> Option<u16> {
        let mut book = self.book();
        if let Some(port) = book.told_before(&master.flow.key, announced) {
            return Some(port);
        }
        let is_free = |port: u16| book.is_free(master, announced, port);
        let has_pair = announced.pair_of.is_some();
        let is_free = |port: &u16| is_free(*port) && (!has_pair || is_free(*port ^ 1));
        let place = place_of(master, announced);
        let last = place.and_then(|place| book.media.ports.get(&place));
        let odd = announced.follow?.destination?.1 & 1;
        let last = last.map(|port| port | odd).filter(is_free);
        let port = last.or_else(|| ports.find(is_free))?;
        if let Some(place) = place {
            book.media.remember(place, port);
        }
        Some(port)
    }

    /// The place that a translated connection has announced, where the other end was told `said`.
    pub(crate) fn meant(&self, master: &FlowKey, said: (IpAddr, u16)) -> Option<(IpAddr, u16)> {
        self.book().follows(master).find_map(|(announced, meant)| {
            ((announced.destination, announced.destination_port) == said).then_some(meant)
        })
    }

    /// What the other end was told of a place that a translated connection has announced.
    pub(crate) fn told(&self, master: &FlowKey, meant: (IpAddr, u16)) -> Option<(IpAddr, u16)> {
        self.book().follows(master).find_map(|(announced, place)| {
            (place == meant).then_some((announced.destination, announced.destination_port))
        })
    }

    /// The port that others know that of a host by: one that the connection `master` has
    /// announced for it at this address.
    pub(crate) fn port_of(
        &self,
        master: &FlowKey,
        protocol: u8,
        host: &Endpoint,
        address: IpAddr,
    ) -> Option<u16> {
        self.book().follows(master).find_map(|(announced, meant)| {
            let is_host = (mapped(meant.0), meant.1) == (host.address, host.port);
            let is_it =
                is_host && (announced.protocol, announced.destination) == (protocol, address);
            is_it.then_some(announced.destination_port)
        })
    }
}

impl Book {
    /// What a connection has announced in translation, and whom each is really for.
    fn follows(&self, master: &FlowKey) -> impl Iterator<Item = (&Announced, (IpAddr, u16))> {
        let all = self.of_master(master).map(|number| &self.entries[&number].announced);
        all.filter_map(|announced| Some((announced, announced.follow?.destination?)))
    }

    /// The port that stands for the same already, or beside that of the other of a pair.
    fn told_before(&self, master: &FlowKey, new: &Announced) -> Option<u16> {
        let (address, port) = new.follow?.destination?;
        self.follows(master).find_map(|(old, meant)| {
            let is_alike = (old.protocol, old.destination) == (new.protocol, new.destination)
                && meant.0 == address;
            if !is_alike {
                return None;
            }
            let is_pair = old.pair_of.is_some() && new.pair_of.is_some();
            match meant.1 {
                same if same == port => Some(old.destination_port),
                other if is_pair && other == port ^ 1 => Some(old.destination_port ^ 1),
                _ => None,
            }
        })
    }

    /// True if nobody expects anything at a port but what is for the same place.
    fn is_free(&self, master: &Master, announced: &Announced, port: u16) -> bool {
        let key = &master.flow.key;
        let family = if announced.destination.is_ipv4() { Family::V4 } else { Family::V6 };
        let endpoint = Endpoint { address: mapped(announced.destination), port };
        let protocol = announced.protocol;
        let it = Destination { zone: master.zone, family, protocol, kind: 0, endpoint };
        let place = place_of(master, announced);
        // The one that it takes the place of, so that what is sent again says the same.
        let has_one = master.helper.classes()[usize::from(announced.class)].maximum == 1;
        let gives_way = |number: &u64| {
            let Expectation { master, announced: other, .. } = &self.entries[number];
            let is_same = || place_of(master, other).is_some_and(|it| Some(it) == place);
            has_one && master.flow.key == *key || is_same()
        };
        let there = self.by_destination.range((it, 0)..=(it, u64::MAX));
        there.map(|(_, number)| number).all(gives_way)
    }
}
