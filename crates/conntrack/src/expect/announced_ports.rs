//! The addresses and ports that the other ends of translated connections know for expected
//! ones.

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;

use flow::{Endpoint, FlowKey, Zone};
use wire::{Family, mapped};

use super::{
    Announcement, AnnouncementRecord, Book, Destination, Expectation, Expectations, Item, Master,
};
use crate::helper::Announced;

/// Most media places that are remembered; beyond that the first is forgotten.
pub(super) const REMEMBERED: usize = 1024;

/// The translated ports of the places where media were expected, the even port of each pair.
/// The media flows of a call outlive it, and a new call at the same places continues them. So
/// it has to use the same translated ports.
#[derive(Debug, Default)]
pub(super) struct Media {
    pub(super) ports: BTreeMap<MediaKey, u16>,
    /// In the order in which they were remembered.
    pub(super) order: VecDeque<MediaKey>,
}

/// Zone, protocol, the place, and its translated address.
pub(crate) type MediaKey = (Zone, u8, (IpAddr, u16), IpAddr);

impl Media {
    /// Remembers the port of a place. Returns the place that is forgotten for it.
    pub(super) fn remember(&mut self, place: MediaKey, port: u16) -> Option<MediaKey> {
        if self.ports.insert(place, port & !1).is_none() {
            self.order.push_back(place);
        }
        let first = if self.order.len() > REMEMBERED { self.order.pop_front() } else { None };
        first.inspect(|first| _ = self.ports.remove(first))
    }

    /// Forgets a place. False if it is not known.
    pub(super) fn forget(&mut self, place: &MediaKey) -> bool {
        let was_known = self.ports.remove(place).is_some();
        if was_known {
            self.order.retain(|known| known != place);
        }
        was_known
    }
}

/// The media place that an announcement is for; `None` if it is not for media.
fn place_of(master: &Master, announced: &Announced) -> Option<MediaKey> {
    let (address, port) = announced.follow?.destination?;
    announced.pair_of?;
    let zone = master.flow.key.zone;
    Some((zone, announced.protocol, (address, port & !1), announced.destination))
}

impl Expectations {
    /// The first of some ports that a connection may announce in the place of its own: the port
    /// that it announced for the same place before, or one at which nothing is expected. In
    /// [pairs](Announced::pair_of), both ports must be free, and the ports that the same place
    /// had the last time are tried first.
    pub(crate) fn choose_port(
        &self,
        master: &Master,
        announced: &Announced,
        mut ports: impl Iterator<Item = u16>,
    ) -> Option<u16> {
        let book = &mut *self.book();
        if let Some(port) = book.announced_port(&master.flow.key, announced) {
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
            book.remember_media(place, port);
            self.note(book);
        }
        Some(port)
    }

    /// The real place that a translated connection has announced as `said`.
    pub(crate) fn real_place(
        &self,
        master: &FlowKey,
        said: (IpAddr, u16),
    ) -> Option<(IpAddr, u16)> {
        self.book().translated_announcements(master).find_map(|(announced, meant)| {
            ((announced.destination, announced.destination_port) == said).then_some(meant)
        })
    }

    /// The translated place that the other end knows for a real place, which a translated
    /// connection has announced.
    pub(crate) fn translated_place(
        &self,
        master: &FlowKey,
        meant: (IpAddr, u16),
    ) -> Option<(IpAddr, u16)> {
        self.book().translated_announcements(master).find_map(|(announced, place)| {
            (place == meant).then_some((announced.destination, announced.destination_port))
        })
    }

    /// The translated port of a host's port: one that the connection `master` has announced for
    /// it at this address.
    pub(crate) fn port_of(
        &self,
        master: &FlowKey,
        protocol: u8,
        host: &Endpoint,
        address: IpAddr,
    ) -> Option<u16> {
        self.book().translated_announcements(master).find_map(|(announced, meant)| {
            let is_host = (mapped(meant.0), meant.1) == (host.address, host.port);
            let is_it =
                is_host && (announced.protocol, announced.destination) == (protocol, address);
            is_it.then_some(announced.destination_port)
        })
    }
}

impl Book {
    fn remember_media(&mut self, place: MediaKey, port: u16) {
        if self.media.ports.get(&place) == Some(&(port & !1)) {
            return;
        }
        if let Some(first) = self.media.remember(place, port) {
            let name = || AnnouncementRecord(Announcement::Media { place: first, port: 0 });
            self.journal.note_end(&Item::Media(first), name);
        }
        self.journal.note_change(Item::Media(place));
    }

    /// The announcements of a connection that are translated, each with its real place.
    fn translated_announcements(
        &self,
        master: &FlowKey,
    ) -> impl Iterator<Item = (&Announced, (IpAddr, u16))> {
        let all = self.of_master(master).map(|number| &self.entries[&number].announced);
        all.filter_map(|announced| Some((announced, announced.follow?.destination?)))
    }

    /// The port that an earlier announcement has for the same place, or for the other port of
    /// its pair.
    fn announced_port(&self, master: &FlowKey, new: &Announced) -> Option<u16> {
        let (address, port) = new.follow?.destination?;
        self.translated_announcements(master).find_map(|(old, meant)| {
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

    /// True if nothing is expected at a port, except for the same place.
    fn is_free(&self, master: &Master, announced: &Announced, port: u16) -> bool {
        let key = &master.flow.key;
        let family = if announced.destination.is_ipv4() { Family::V4 } else { Family::V6 };
        let endpoint = Endpoint { address: mapped(announced.destination), port };
        let protocol = announced.protocol;
        let it = Destination { zone: master.zone, family, protocol, kind: 0, endpoint };
        let place = place_of(master, announced);
        // The announcement that the new one replaces does not count, so that a repeated message
        // says the same.
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
