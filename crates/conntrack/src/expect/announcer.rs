//! Announcements of helpers on translated connections.

use std::iter;
use std::net::IpAddr;
use std::ops::Range;

use flow::{Endpoint, FlowKey};
use wire::{mapped, protocol};

use super::{Expectations, Master, Passage};
use crate::Direction;
use crate::helper::{Announced, Announcements as _, Mention};
use crate::nat::{Edit, Ports};

/// The source of an announcement on a connection that may be translated.
pub(crate) struct Announcer<'a> {
    pub master: Master,
    pub passage: Passage,
    /// The direction of the announcing packet.
    pub direction: Direction,
    pub interface: Option<u32>,
    pub payload: &'a [u8],
}

impl Announcer<'_> {
    /// The announcement with the addresses that the other end knows, and the edit of the
    /// announcing packet; `None` if no port is left for it.
    pub fn translate(
        &self,
        announced: Announced,
        expectations: &Expectations,
    ) -> Option<(Announced, Option<Edit>)> {
        if announced.protocol == protocol::GRE {
            return Some((self.call(announced, expectations), None));
        }
        let Some(mut translated) = self.passage.announced(&announced, self.interface) else {
            return Some((announced, None));
        };
        let Passage { came, leaves } = &self.passage;
        let Some((_, port)) = translated.follow.and_then(|follow| follow.destination) else {
            return Some((translated, None));
        };
        let old = self.payload.get(announced.place.clone()).filter(|old| !old.is_empty());
        let named = |port: u16| match announced.pair_of {
            Some(named) => port & !1 | named & 1,
            None => port,
        };
        let writes = |port| self.master.helper.rewrite(old?, translated.destination, named(port));
        if writes(port).is_none() {
            // The packet carries no address, so the other end takes the port that it sees.
            if port == came.source.port {
                translated.destination_port = leaves.source.port;
            }
            return Some((translated, None));
        }
        let protocol = self.master.flow.key.protocol;
        let is_own = announced.protocol == protocol && port == came.source.port;
        let known = leaves.source.port;
        let kept = if is_own { known } else { port };
        // A datagram to the sender's translated port must reach the port that it sends from.
        let is_apart = |it: &u16| is_own || protocol != protocol::UDP || *it != known;
        let ports = iter::once(kept).chain(ports(&translated, port)).filter(is_apart);
        let port = expectations.choose_port(&self.master, &translated, ports)?;
        let text = writes(port).filter(|text| Some(&text[..]) != old);
        translated.destination_port = port;
        let edit = text.map(|text| Edit { place: announced.place, text });
        Some((translated, edit))
    }

    /// An announced call with the addresses and ids that the other end knows.
    fn call(&self, announced: Announced, expectations: &Expectations) -> Announced {
        let master = &self.master.flow.key;
        let known = |end, own| expectations.known_call_id(master, (end, own));
        self.passage.call(&announced, self.direction, known, self.interface).unwrap_or(announced)
    }

    /// The key of a call between the real ends. The arguments are the ends as the sender knows
    /// them.
    pub fn call_between(&self, source: (IpAddr, u16), destination: (IpAddr, u16)) -> FlowKey {
        let real = |(address, port)| {
            let address = self.passage.real(mapped(address));
            Endpoint { address, port }
        };
        let FlowKey { family, zone, .. } = self.master.flow.key;
        FlowKey::of_call(family, zone, real(source), real(destination))
    }

    /// The edit for a place where a message mentions an end; `None` if nothing changes there.
    pub fn mention(&self, mention: Mention, expectations: &Expectations) -> Option<Edit> {
        let old = self.payload.get(mention.place.clone())?;
        let master = &self.master.flow.key;
        let said = || mention.port.map(|port| (mention.address, port));
        let (address, port) = self
            .passage
            .known_by(&mention)
            .or_else(|| expectations.translated_place(master, said()?))
            .or_else(|| expectations.real_place(master, said()?))?;
        // A correct address stays in the form in which it is written.
        let is_same = address == mention.address && mention.port.is_none_or(|it| it == port);
        let text = mention.form.write(address, port);
        (!is_same && text != old).then_some(Edit { place: mention.place, text })
    }
}

/// The ports that may be announced, beginning with `from`. Of a pair, each has the same last bit.
fn ports(announced: &Announced, from: u16) -> impl Iterator<Item = u16> + use<> {
    let (has_pair, last_bit) = (announced.pair_of.is_some(), from & 1);
    let all = Ports::UNPRIVILEGED;
    let start = u32::from(from.saturating_sub(all.first()));
    (0..all.len())
        .map(move |at| all.nth_round(start + at))
        .filter(move |port| !has_pair || port & 1 == last_bit)
}

/// Sorts the edits of a message; if two overlap, the first one wins. Also edits the numbers in
/// the message that state the length of a part, if that changes.
pub(crate) fn put_together(mut edits: Vec<Edit>, measures: Vec<Measure>) -> Vec<Edit> {
    edits.sort_by_key(|edit| edit.place.start);
    let mut end = 0;
    edits.retain(|edit| {
        let is_apart = edit.place.start >= end;
        end = end.max(edit.place.end);
        is_apart
    });
    for Measure { place, of } in measures {
        let inside = edits.iter().filter(|it| of.start <= it.place.start && it.place.end <= of.end);
        let (more, less) = inside
            .fold((0, 0), |(more, less), edit| (more + edit.text.len(), less + edit.place.len()));
        if more != less {
            let text = (of.len() + more - less).to_string().into_bytes();
            edits.push(Edit { place, text });
        }
    }
    edits.sort_by_key(|edit| edit.place.start);
    edits
}

/// A number in a message that states the length of a part of it.
pub(crate) struct Measure {
    pub place: Range<usize>,
    pub of: Range<usize>,
}
