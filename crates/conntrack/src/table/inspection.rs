//! Connections with helpers, and expected connections.

use flow::{Class, DropReason, Endpoint, KeyedPacket};
use wire::{TcpFlags, Transport};

use super::packet::listener;
use super::{Table, deadline};
use crate::connection::Status;
use crate::connection::ip_address;
use crate::expect::{Announcer, Claim, Expectation, Master, Measure, Passage, put_together};
use crate::helper::{Earlier, HelperPacket, Holder, Inspected, Request};
use crate::nat::Edit;
use crate::{ConnectionId, Context, Direction, Tracked, TrackedPacket};

/// Length of a UDP header, bytes.
const UDP_HEADER: usize = 8;
/// Flag in the first byte of a frame: its destination is a group (IEEE 802.3 section 3.2.3).
const GROUP: u8 = 1;

impl Table {
    /// Gives a new connection its mark and helper, and returns the class of its first packet.
    pub(super) fn assign_helper(
        &mut self,
        slot: u32,
        packet: &TrackedPacket<'_>,
        expected: Option<Box<Claim>>,
        context: &Context<'_>,
    ) -> Class {
        let key = &packet.keyed.key;
        let settings = context.settings;
        let port = key.endpoint(packet.keyed.sender.opposite()).port;
        let mut helper = settings.helpers.of(key.protocol, port);
        let mut class = Class::New;
        let head = &mut self.slab[slot].head;
        if let Some(claim) = expected {
            let Expectation { master, announced, .. } = &claim.expectation;
            head.status.set(Status::EXPECTED);
            head.status.set(Status::when(key.is_call(), Status::CALL));
            head.mark = master.mark;
            helper = announced.helper.or(helper);
            class = Class::Related;
            self.slab.keep_claim(slot, claim);
        }
        if let Some(kind) = helper {
            self.slab.attach_helper(slot, kind.start());
        }
        class
    }

    /// Lets the helper of a packet's connection, if it has one, read the packet, and files the
    /// announcements. To be called for a packet that no other stage drops. The changes that the
    /// helper wants in its payload go to `edits`, in the order of their places.
    #[cold]
    #[inline(never)]
    pub fn inspect(
        &mut self,
        tracked: Tracked,
        packet: &TrackedPacket<'_>,
        edits: &mut Vec<Edit>,
        context: &mut Context<'_>,
    ) -> Tracked {
        let (Some(ConnectionId(slot)), Some(direction)) = (tracked.connection, tracked.direction)
        else {
            return tracked;
        };
        let flow = self.original(slot);
        let zones = self.zones_of(slot);
        let passage = Passage::of(&flow, &self.leaves_as(slot), direction);
        let interface = self.slab.translation(slot).and_then(|it| it.interface);
        let Some((head, helper)) = self.slab.helper_mut(slot) else { return tracked };
        let start = helper.start_of(direction, &packet.network.transport);
        let Some(seen) = HelperPacket::of(packet, direction, &flow, head.status, &passage, context)
        else {
            return tracked;
        };
        let seen = HelperPacket { start, ..seen };
        let zone = if direction == Direction::Original { zones.reply } else { zones.original };
        let master = Master { flow, helper: helper.kind, mark: head.mark, zone };
        let payload = seen.payload;
        let announcer = Announcer { master, passage, direction, interface, payload };
        let (mut full, mut no_port) = (false, false);
        let (mut wanted, mut measures) = (Vec::new(), Vec::new());
        let limit = context.settings.expect_max;
        let Context { expectations, expectation_events, settings, counters, now, .. } = context;
        let mut events = listener(expectation_events, settings);
        let inspected = helper.read(&seen, &mut |request| match request {
            Request::Expect(announced) if seen.refuses(master.helper, &announced) => {
                counters.expect_refused += 1;
            }
            Request::Expect(announced) => {
                let Some((announced, edit)) = announcer.translate(announced, expectations) else {
                    no_port = true;
                    return;
                };
                wanted.extend(edit);
                let filed = expectations.announce(master, announced, limit, *now, &mut events);
                full |= filed.is_err();
                counters.expect_create += u64::from(filed.is_ok());
                counters.expect_gave_way += u64::from(filed == Ok(true));
            }
            Request::Withdraw { classes, call } => {
                expectations.withdraw(&head.key, call, &classes, *now, &mut events);
            }
            Request::End { source, destination } => {
                let call = announcer.call_between(source, destination);
                expectations.end_call(&head.key, &call, *now, &mut events);
            }
            Request::Confirm { class, seconds } => {
                expectations.confirm(&head.key, class, seconds, *now, &mut events);
            }
            Request::Mention(mention) => wanted.extend(announcer.mention(mention, expectations)),
            Request::Edit(edit) => wanted.push(edit),
            Request::Measure { place, of } => measures.push(Measure { place, of }),
            Request::Keep { seconds } => {
                head.deadline = head.deadline.max(deadline(*now, seconds));
            }
        });
        let (sequence, keeps_beginning) = (seen.sequence, helper.keeps_beginning());
        counters.helper_left += u64::from(inspected == Inspected::Left);
        counters.helper_forgot += expectations.memory().forgotten();
        self.note_inspected(slot, keeps_beginning, context);
        match inspected {
            _ if no_port => tracked.dropped(DropReason::PortPoolFull),
            _ if full => tracked.dropped(DropReason::ExpectationsFull),
            Inspected::Incomplete => tracked.dropped(DropReason::HelperIncomplete),
            Inspected::Pass | Inspected::Left => {
                if !wanted.is_empty() {
                    *edits = put_together(wanted, measures);
                    self.shift_by_edits(slot, direction, sequence, edits);
                }
                tracked
            }
        }
    }
}

impl<'a> HelperPacket<'a> {
    /// `None` for packets without payload.
    fn of<'b: 'a>(
        packet: &TrackedPacket<'a>,
        direction: Direction,
        master: &'a KeyedPacket,
        status: Status,
        passage: &Passage,
        context: &Context<'b>,
    ) -> Option<Self> {
        let TrackedPacket { network, frame, .. } = *packet;
        let start = usize::from(network.transport_offset);
        // The packet may be translated by now, so the addresses come from the connection.
        let came = passage.came;
        let address = |end: Endpoint| ip_address(end.address, network.family);
        let (payload, sequence) = match network.transport {
            Transport::Tcp(tcp) => {
                // A SYN has a sequence number of its own, before its data.
                let syn = u32::from(tcp.flags.contains(TcpFlags::SYN));
                let payload = start + usize::from(tcp.header_len)..network.end as usize;
                let sequence = Some(tcp.sequence.wrapping_add(syn));
                (payload, sequence)
            }
            Transport::Udp { length, .. } => {
                let payload = start + UDP_HEADER..start + usize::from(length);
                (payload, None)
            }
            _ => return None,
        };
        Some(Self {
            direction,
            source: address(came.source),
            destination: address(came.destination),
            source_port: came.source.port,
            destination_port: came.destination.port,
            seen_as: address(passage.leaves.source),
            receiver: address(passage.leaves.destination),
            payload: frame.get(payload).filter(|payload| !payload.is_empty())?,
            sequence,
            start: None,
            group: frame.first().is_some_and(|first| first & GROUP != 0),
            is_expected: status.has(Status::EXPECTED),
            is_translated: passage.changes(),
            settings: &context.settings.helper,
            memory: context.expectations.memory(),
            opener: Holder::of(*master),
            earlier: Earlier { announcements: context.expectations, master: &master.key },
        })
    }
}

/// Makes the expectation of a connection that could not be opened available again.
#[inline]
pub(super) fn release(expected: Option<&Claim>, context: &Context<'_>) {
    if let Some(claim) = expected {
        context.expectations.release(claim);
    }
}

#[cfg(test)]
#[path = "inspection_tests.rs"]
mod tests;
