//! Announcements of helpers on translated connections, and the translation of the announced
//! connections.

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

/// The source of an announcement on a connection that may be translated.
pub(super) struct Announcer<'a> {
    pub master: Master,
    pub passage: Passage,
    /// The direction of the announcing packet.
    pub direction: Direction,
    pub interface: Option<u32>,
    pub block: Block,
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
        let kept = (is_own || self.block.contains(port)).then_some(kept);
        // A datagram to the sender's translated port must reach the port that it sends from.
        let is_apart = |it: &u16| is_own || protocol != protocol::UDP || *it != known;
        let ports = kept.into_iter().chain(self.ports(&translated, port)).filter(is_apart);
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

    /// The ports that may be announced, beginning with `from`.
    fn ports(&self, announced: &Announced, from: u16) -> impl Iterator<Item = u16> {
        let block = self.block;
        let (has_pair, last_bit) = (announced.pair_of.is_some(), from & 1);
        // The other port of a pair belongs to another bucket's block.
        block
            .all_from(from.into())
            .filter(move |port| !has_pair || block.spans(port ^ 1))
            .map(move |port| if has_pair { port & !1 | last_bit } else { port })
    }

    /// The edit for a place where a message mentions an end; `None` if nothing changes there.
    pub fn mention(&self, mention: Mention, expectations: &Expectations) -> Option<Edit> {
        let old = self.payload.get(mention.place.clone())?;
        let master = &self.master.flow.key;
        let said = || mention.port.map(|port| (mention.address, port));
        let (address, port) = self
            .passage
            .known_by(&mention)
            .or_else(|| expectations.told(master, said()?))
            .or_else(|| expectations.meant(master, said()?))?;
        // A correct address stays in the form in which it is written.
        let is_same = address == mention.address && mention.port.is_none_or(|it| it == port);
        let text = mention.form.write(address, port);
        (!is_same && text != old).then_some(Edit { place: mention.place, text })
    }
}

/// Sorts the edits of a message; if two overlap, the first one wins. Also edits the numbers in
/// the message that state the length of a part, if that changes.
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

/// A number in a message that states the length of a part of it.
pub(super) struct Measure {
    pub place: Range<usize>,
    pub of: Range<usize>,
}

impl Table {
    /// Sets the ports that helpers of this table may announce for their clients: those of the
    /// bucket, as in [`Supply::block`]. Before this call helpers may announce all ports.
    pub fn set_block(&mut self, block: Block) {
        self.block = block;
    }

    /// Translates a new connection that a translated one has announced in the same way, and
    /// returns true if it did. Then no rule decides, as with the kernel. To be called before
    /// any rule can translate the connection.
    ///
    /// # Errors
    /// The errors of [`Table::translate`].
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
    /// master, if it sends from the port on which it listens: the host that learned that port
    /// expects answers from there (RFC 4961). False if there is no such port, or if another
    /// connection has it.
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

    /// The edits of the payload of the packet that was the last argument of
    /// [`pass`](Table::pass), in the order of their places. The packet leaves with the sequence
    /// number of the [adjustment](Table::adjustment) before or after this; both give the same.
    pub fn take_edits(&mut self) -> Vec<Edit> {
        std::mem::take(&mut self.edits)
    }

    /// True if a connection of the table has shifted sequence numbers.
    #[inline]
    pub const fn has_adjustments(&self) -> bool {
        self.slab.has_shifts()
    }

    /// The shifts of the sequence numbers of a connection that such edits cause, and the
    /// direction of this packet; `None` if there are none or if the connection has expired. The
    /// caller applies [`Adjustment::before_tracking`] before it tracks the packet, after the
    /// changes of the SYN proxy; and [`Adjustment::after_tracking`] after [`Table::pass`],
    /// before the changes of the SYN proxy. Costs one test if no connection has shifts.
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

    /// Keeps the edits of a packet for the caller, and records their effect on the following
    /// sequence numbers.
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
    /// Records that the segment at a sequence number becomes longer by `by` on its way, modulo
    /// 2^32. Without effect for a repeated segment. If two segments change their lengths, the
    /// earlier must have arrived before the later is sent, as in protocols whose ends take
    /// turns: the shift of a repeated segment from before both is forgotten.
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
