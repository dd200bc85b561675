//! What helpers announce on translated connections, and the connections that come of it.

use std::net::IpAddr;
use std::ops::Range;

use flow::{DropReason, Endpoint, FlowKey};
use wire::{mapped, protocol};

use super::Table;
use crate::expect::Master;
use crate::helper::{Announced, Mention};
use crate::nat::{Addresses, Block, Edit, End, Ends, Passage, Ports, Request, Supply};
use crate::proto::tcp::Seq;
use crate::seqadj::{Adjustment, Shift};
use crate::{ConnectionId, Context, Direction, Expectations};

/// What a helper announces, seen from the other side of the gateway.
pub(super) struct Announcer<'a> {
    pub master: Master,
    pub passage: Passage,
    /// Of the packet.
    pub direction: Direction,
    pub interface: Option<u32>,
    pub block: Block,
    pub payload: &'a [u8],
}

impl Announcer<'_> {
    /// What has to be expected, and what the announcing packet has to say instead; `None` if
    /// no port is left for it.
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
            // The other end is told nothing, so it can only mean what it sees.
            if port == came.source.port {
                translated.destination_port = leaves.source.port;
            }
            return Some((translated, None));
        }
        let protocol = self.master.flow.key.protocol;
        let is_own = announced.protocol == protocol && port == came.source.port;
        let known = leaves.source.port;
        let kept = if is_own { known } else { port };
        let kept = (is_own || self.block.contains(port)).then_some(kept);
        // A datagram to the port that the sender is known by is for the one that it speaks from.
        let is_apart = |it: &u16| is_own || protocol != protocol::UDP || *it != known;
        let ports = kept.into_iter().chain(self.ports(&translated, port)).filter(is_apart);
        let port = expectations.choose_port(&self.master, &translated, ports)?;
        let text = writes(port).filter(|text| Some(&text[..]) != old);
        translated.destination_port = port;
        let edit = text.map(|text| Edit { place: announced.place, text });
        Some((translated, edit))
    }

    /// A call, as it will come.
    fn call(&self, announced: Announced, expectations: &Expectations) -> Announced {
        let master = &self.master.flow.key;
        let known = |end, own| expectations.known_call_id(master, (end, own));
        self.passage.call(&announced, self.direction, known, self.interface).unwrap_or(announced)
    }

    /// The key of a call between two ends that are named by what the sender knows them by.
    pub fn call_between(&self, source: (IpAddr, u16), destination: (IpAddr, u16)) -> FlowKey {
        let real = |(address, port)| {
            let address = self.passage.real(mapped(address));
            Endpoint { address, port }
        };
        let FlowKey { family, zone, .. } = self.master.flow.key;
        FlowKey::of_call(family, zone, real(source), real(destination))
    }

    /// Those that may be announced, from a certain one on.
    fn ports(&self, announced: &Announced, from: u16) -> impl Iterator<Item = u16> {
        let block = self.block;
        let (has_pair, last_bit) = (announced.pair_of.is_some(), from & 1);
        // Of a pair, the other port is of another bucket's block.
        block
            .all_from(from.into())
            .filter(move |port| !has_pair || block.spans(port ^ 1))
            .map(move |port| if has_pair { port & !1 | last_bit } else { port })
    }

    /// What has to be read where a message mentions an end, if that is something else.
    pub fn mention(&self, mention: Mention, expectations: &Expectations) -> Option<Edit> {
        let old = self.payload.get(mention.place.clone())?;
        let master = &self.master.flow.key;
        let said = || mention.port.map(|port| (mention.address, port));
        let (address, port) = self
            .passage
            .known_by(&mention)
            .or_else(|| expectations.told(master, said()?))
            .or_else(|| expectations.meant(master, said()?))?;
        // How it is written is not for us to change.
        let is_same = address == mention.address && mention.port.is_none_or(|it| it == port);
        let text = mention.form.write(address, port);
        (!is_same && text != old).then_some(Edit { place: mention.place, text })
    }
}

/// Puts all changes of a message in order, each place once, the first that was asked for. Where
/// the message says how long a part is, it says so of what it will be.
pub(super) fn put_together(mut edits: Vec<Edit>, measures: Vec<Measure>) -> Vec<Edit> {
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

/// A number in a message that says how long a part of it is.
pub(super) struct Measure {
    pub place: Range<usize>,
    pub of: Range<usize>,
}

impl Table {
    /// The ports that helpers of this table may announce for their clients: those of the
    /// bucket, as in [`Supply::block`]. All, until it is told.
    pub fn set_block(&mut self, block: Block) {
        self.block = block;
    }

    /// Translates a new connection that a translated one has announced, as that is, and says
    /// that this was done: no rule is asked then, as with the kernel. To be called before any
    /// rule is asked for a translation.
    ///
    /// # Errors
    /// Those of [`Table::translate`].
    pub fn follow(
        &mut self,
        id: ConnectionId,
        supply: Supply<'_>,
        context: &mut Context<'_>,
    ) -> Result<bool, DropReason> {
        let ConnectionId(slot) = id;
        let claim = self.slab.claim(slot);
        let Some(follow) = claim.and_then(|claim| claim.expectation.announced.follow) else {
            return Ok(false);
        };
        if self.original(slot).key.is_call() {
            return self.follow_call(id, &follow, supply, context).map(|()| true);
        }
        if let Some((address, port)) = follow.destination {
            let request = Request {
                addresses: Some(Addresses::one(address)),
                ports: Ports::new(port, port),
                ..Request::of(End::Destination)
            };
            self.translate(id, &request, supply, context)?;
        }
        match follow.source {
            None => self.settle(id, supply, context)?,
            Some(address) if self.keep_told_port(slot, address, supply, context)? => {}
            Some(address) => {
                let request = Request {
                    addresses: Some(Addresses::one(address)),
                    interface: follow.interface,
                    ..Request::of(End::Source)
                };
                self.translate(id, &request, supply, context)?;
            }
        }
        Ok(true)
    }

    /// Gives a new connection the source port that its originator has announced on the same
    /// master, if it sends from where it listens: whoever was told of it sees answers come from
    /// there (RFC 4961). False if there is none, or if somebody has it.
    fn keep_told_port(
        &mut self,
        slot: u32,
        address: IpAddr,
        supply: Supply<'_>,
        context: &mut Context<'_>,
    ) -> Result<bool, DropReason> {
        let Some(claim) = self.slab.claim(slot) else { return Ok(false) };
        let expectation = &claim.expectation;
        let (master, interface) = (
            expectation.master.flow.key,
            expectation.announced.follow.and_then(|follow| follow.interface),
        );
        let original = self.original(slot);
        let source = original.key.end(original.sender);
        let protocol = original.key.protocol;
        let port = context.expectations.port_of(&master, protocol, &source, address);
        let Some(port) = port else { return Ok(false) };
        self.take_back(slot, context);
        let leaves = self.leaves_as(slot);
        let ends = Ends::of(&leaves.key, leaves.sender);
        let told = Ends { source: Endpoint { address: mapped(address), port }, ..ends };
        match self.free(slot, told.keyed(&self.outside(slot)), supply, context) {
            Some(free) => self.file(slot, free, (interface, None), context).map(|()| true),
            None => Ok(false),
        }
    }

    /// What has to be changed in the payload of the packet that the table was asked to
    /// [`pass`](Table::pass) last, in the order of the places. The sequence number that the
    /// packet leaves with is that by the [adjustment](Table::adjustment) from before or after.
    pub fn take_edits(&mut self) -> Vec<Edit> {
        std::mem::take(&mut self.edits)
    }

    /// True if numbers have to be shifted in packets of any connection of the table.
    #[inline]
    pub const fn has_adjustments(&self) -> bool {
        self.slab.has_shifts()
    }

    /// The numbers that have to be shifted in the packets of a connection because of such
    /// changes, and the direction of this packet; `None` also if its time is over. Before it is tracked the numbers are changed
    /// with [`Adjustment::before_tracking`], behind what the SYN proxy changes, and after
    /// [`Table::pass`] with [`Adjustment::after_tracking`], before what that changes. Costs one
    /// test while there are none.
    #[inline]
    pub fn adjustment(
        &self,
        packet: &flow::KeyedPacket,
        hash: u64,
        now: flow::Timestamp,
    ) -> Option<(Direction, Adjustment)> {
        if !self.slab.has_shifts() {
            return None;
        }
        let met = self.look_up(packet, hash)?;
        if self.slab[met.slot].head.is_expired(now) {
            return None;
        }
        let sequences = *self.slab.shifts(met.slot)?;
        Some((met.direction, Adjustment { sequences, ..Adjustment::default() }))
    }

    /// Keeps the edits of a packet for the caller, and what they do to the numbers that follow.
    pub(super) fn keep_edits(
        &mut self,
        slot: u32,
        direction: Direction,
        sequence: Option<u32>,
        edits: Vec<Edit>,
    ) {
        let longer = edits.iter().fold(0u32, |sum, edit| {
            sum.wrapping_add(edit.text.len() as u32).wrapping_sub(edit.place.len() as u32)
        });
        if let Some(sequence) = sequence.filter(|_| longer != 0) {
            let lengthen =
                |shifts: &mut [Shift; 2]| shifts[direction.index()].lengthen(sequence, longer);
            self.slab.shift(slot, lengthen);
        }
        self.edits = edits;
    }
}

impl Shift {
    /// The segment at a number gets longer on its way, modulo 2^32. Without effect if it is
    /// one that was sent again. Of two such segments the earlier must have arrived before the
    /// later is sent, as in protocols whose ends take turns: what is sent again from before
    /// it can not be told how much it was shifted.
    pub(crate) fn lengthen(&mut self, sequence: u32, by: u32) {
        if self.before == self.after || Seq(sequence).is_after(Seq(self.position)) {
            let after = self.after.wrapping_add(by);
            *self = Self { position: sequence, before: self.after, after };
        }
    }
}

#[cfg(test)]
#[path = "followed_tests.rs"]
mod tests;
