//! A table with its fast path beside one that takes the slow path for every packet: their
//! results must be equal.

#[path = "established_actions_tests.rs"]
mod actions;
#[path = "records_model_tests.rs"]
mod records;

use std::cell::RefCell;
use std::time::Duration;

use flow::{DropReason, FlowKey, KeyedPacket, ZonePair};
use proptest::prelude::*;
use wire::{Family, Network, protocol};

use self::actions::{ACK, Action, COMMAND, DATAGRAMS, FTP, Opened, PAYLOAD, SYN, Sent, any_action};
use super::*;
use crate::connection::ip_address;
use crate::helper::Kind;
use crate::nat::{Addresses, BucketPorts, Edit, Request, Supply, TranslatedEnd};
use crate::proto::tcp::{TcpSettings, TcpState};
use crate::testing::{Lab, SECRET, address, tcp, udp};
use crate::{Cursor, Direction, TimeoutPolicy};

fn hash(key: &FlowKey) -> u64 {
    key.hash(SECRET)
}

fn supply() -> Supply<'static> {
    Supply { own: BucketPorts::ALL, seed: 7, hash: &hash }
}

type Track = fn(&mut Table, &TrackedPacket<'_>, &mut Context<'_>) -> Tracked;

/// [`Table::track`] without guesses and without the fast path.
fn track_the_long_way(
    table: &mut Table,
    packet: &TrackedPacket<'_>,
    context: &mut Context<'_>,
) -> Tracked {
    let found = match packet.zones {
        None => table.find(packet.keyed, packet.hash, context),
        Some(zones) => table.find_in(zones, packet.keyed, packet.hash, context),
    };
    match found {
        Some(hit) => table.advance(hit, packet, context),
        None => table.open(packet, context),
    }
}

/// One of the two tables.
struct Twin {
    lab: Lab,
    track: Track,
}

impl Twin {
    fn new(room: u64, track: Track) -> Self {
        let mut lab = Lab::with_room_for(room);
        lab.settings.helpers.attach(Kind::Ftp, FTP).unwrap();
        // There is no greeting, and ports have one digit.
        (lab.settings.helper.expect_picked_up, lab.settings.helper.expect_privileged) =
            (true, true);
        Self { lab, track }
    }

    /// The result for the packet, if the action is one.
    fn act(&mut self, action: &Action) -> Option<(Tracked, Vec<Edit>)> {
        let lab = &mut self.lab;
        match *action {
            Action::Open(ref opened) => return Some(self.open(opened)),
            Action::Send(which, ref sent) => return Some(self.send(self.slot(which)?, sent)),
            Action::Reset(which) => {
                let answered = Sent::by(Direction::Original, ACK, (9, 9));
                let (tracked, edits) = self.send(self.slot(which)?, &answered);
                self.lab.run(|table, context| table.reset(&tracked, context));
                return Some((tracked, edits));
            }
            Action::Delete(which) => {
                let key = self.lab.table.original(self.slot(which)?).key;
                self.lab.run(|table, context| table.delete(&key, hash(&key), context));
            }
            Action::Update(which, changes) => {
                let key = self.lab.table.original(self.slot(which)?).key;
                self.lab.run(|table, context| table.update(&key, hash(&key), changes, context));
            }
            Action::FlushMarked(mark) => {
                lab.run(|table, cx| table.flush(Cursor::default(), 5, |it| it.mark == mark, cx));
            }
            Action::Tune(name, value) => lab.settings.set(name, value).unwrap(),
            Action::NextMap => lab.map_epoch = lab.map_epoch.wrapping_add(1),
            Action::WaitMillis(millis) => lab.wait(Duration::from_millis(millis)),
            Action::Expire(budget) => {
                lab.run(|table, context| table.expire(budget, context));
            }
        }
        None
    }

    /// The slot of one of the connections that have not expired, whatever their order in memory is.
    fn slot(&self, which: usize) -> Option<u32> {
        let slab = &self.lab.table.slab;
        let is_live = |slot: &u32| !slab[*slot].head.is_expired(self.lab.now);
        let mut slots: Vec<u32> = self.slots().filter(is_live).collect();
        slots.sort_by_key(|&slot| {
            let KeyedPacket { key, sender } = self.lab.table.original(slot);
            (key, sender.index())
        });
        slots.get(which.checked_rem(slots.len())?).copied()
    }

    fn slots(&self) -> impl Iterator<Item = u32> {
        let slab = &self.lab.table.slab;
        (0..slab.slots()).filter(|&slot| slab.live(slot).is_some())
    }

    fn open(&mut self, opened: &Opened) -> (Tracked, Vec<Edit>) {
        let Opened { family, from, to, zones, flags, .. } = *opened;
        let packet = match from.1 {
            DATAGRAMS => udp(family, from, to),
            _ => tcp(family, from, to, flags, (0, 0)),
        };
        let (tracked, edits) = self.offer(&packet, zones, Some(opened));
        if let (true, Some(ConnectionId(slot))) = (opened.greets, tracked.connection) {
            self.send(slot, &Sent::by(Direction::Reply, SYN | ACK, (0, 9)));
            self.send(slot, &Sent::by(Direction::Original, ACK, (9, 9)));
            // Datagrams are a stream only after this time.
            self.lab.wait(Duration::from_secs(3));
            self.send(slot, &Sent::by(Direction::Reply, ACK, (9, 17)));
        }
        (tracked, edits)
    }

    fn send(&mut self, slot: u32, sent: &Sent) -> (Tracked, Vec<Edit>) {
        let table = &self.lab.table;
        let (flow, zones) = match sent.direction {
            Direction::Original => (table.original(slot), table.zones_of(slot)),
            Direction::Reply => (table.reply(ConnectionId(slot)), ZonePair::default()),
        };
        let epoch = self.lab.map_epoch;
        self.lab.map_epoch = epoch.wrapping_sub(u16::from(sent.is_late));
        self.lab.segments = sent.segments;
        let zones = Some(zones).filter(|zones| !zones.is_one());
        let said = self.offer(&sent.packet(&flow), zones, None);
        (self.lab.map_epoch, self.lab.segments) = (epoch, 1);
        said
    }

    /// Tracks a packet and lets it pass, unless the connection that it opens can not be
    /// translated as wanted.
    fn offer(
        &mut self,
        network: &Network,
        zones: Option<ZonePair>,
        opened: Option<&Opened>,
    ) -> (Tracked, Vec<Edit>) {
        let mut frame = [0; PAYLOAD + COMMAND.len()];
        frame[PAYLOAD..].copy_from_slice(COMMAND);
        let track = self.track;
        let mut edits = Vec::new();
        let tracked = self.lab.offer(network, |table, packet, context| {
            let keyed = packet.keyed.in_zone(zones.unwrap_or_default().original);
            let hash = hash(&keyed.key);
            let packet = TrackedPacket { frame: &frame, keyed: &keyed, hash, zones, ..*packet };
            let tracked = track(table, &packet, context);
            if let (true, Some(id)) = (tracked.fresh, tracked.connection)
                && apply_rules(table, &tracked, opened, context).is_err()
            {
                table.withdraw(id, context);
                return tracked;
            }
            table.accept_with_edits(tracked, &packet, &mut edits, context)
        });
        (tracked, edits)
    }

    /// All connections as they are in memory.
    fn memory(&self) -> Vec<String> {
        let slab = &self.lab.table.slab;
        let entry = |slot: u32| {
            let Entry { head, body } = &slab[slot];
            let beside = (slab.side(slot), slab.shifts(slot), slab.translation(slot));
            format!("{slot} {head:?} {body:?} {beside:?}")
        };
        self.slots().map(entry).collect()
    }
}

/// Applies rules to a connection that a packet opens.
fn apply_rules(
    table: &mut Table,
    tracked: &Tracked,
    opened: Option<&Opened>,
    context: &mut Context<'_>,
) -> Result<(), DropReason> {
    let Some(id) = tracked.connection else { return Ok(()) };
    let Some(opened) = opened else { return table.make_reply_unique(id, supply(), context) };
    if opened.has_policy {
        let mut timeouts = TcpSettings::default().timeouts;
        timeouts.set(TcpState::Established, 77);
        let datagrams = TimeoutPolicy::Udp { unreplied: 7, replied: 77 };
        let of_udp = opened.from.1 == DATAGRAMS;
        let policy = if of_udp { datagrams } else { TimeoutPolicy::Tcp(timeouts) };
        table.set_policy(tracked, &policy, context.now);
    }
    let to = |end, last| {
        let host = ip_address(address(opened.family, last), opened.family);
        Request { addresses: Some(Addresses::one(host)), ..Request::of(end) }
    };
    let [source, destination] = opened.translated;
    if let Some(last) = destination {
        table.translate(id, &to(TranslatedEnd::Destination, last), supply(), context)?;
    }
    match source {
        Some(last) => table.translate(id, &to(TranslatedEnd::Source, last), supply(), context),
        None => table.make_reply_unique(id, supply(), context),
    }
}

/// Number of packets, and of those that took the fast path.
#[derive(Default)]
struct Tally {
    sent: u64,
    short: u64,
    /// The latter by kinds of connections that matter to the fast path.
    short_of: [u64; 6],
}

impl Tally {
    fn count(&mut self, lab: &Lab, tracked: &Tracked, was_short: bool) {
        self.sent += 1;
        self.short += u64::from(was_short);
        let Some(ConnectionId(slot)) = tracked.connection.filter(|_| was_short) else { return };
        let Entry { head, .. } = &lab.table.slab[slot];
        let is_so = [
            head.key.protocol == protocol::UDP,
            head.key.family == Family::V6,
            head.status.has(Status::TRANSLATED),
            head.status.has(Status::ACCOUNTED),
            !lab.table.zones_of(slot).is_one(),
            lab.table.slab.shifts(slot).is_some(),
        ];
        for (count, is_so) in self.short_of.iter_mut().zip(is_so) {
            *count += u64::from(is_so);
        }
    }
}

#[test]
fn short_and_long_way_end_at_the_same_place() {
    let room = prop_oneof![Just(1u64 << 20), 3u64..12];
    let actions = prop::collection::vec(any_action(), 1..300);
    let tally = RefCell::new(Tally::default());
    proptest!(ProptestConfig::with_cases(400), |(room in room, actions in actions)| {
        let mut ours = Twin::new(room, Table::track);
        let mut model = Twin::new(room, track_the_long_way);
        for action in &actions {
            let short = observer::packets();
            let said = ours.act(action);
            let was_short = observer::packets() > short;
            prop_assert_eq!(&said, &model.act(action), "{:?}", action);
            if let (Action::Send(..), Some((tracked, _))) = (action, said) {
                tally.borrow_mut().count(&ours.lab, &tracked, was_short);
            }
            prop_assert_eq!(ours.memory(), model.memory(), "{:?}", action);
            prop_assert_eq!(ours.lab.counters, model.lab.counters, "{:?}", action);
            let events = [&mut ours, &mut model].map(|it| std::mem::take(&mut it.lab.events));
            prop_assert_eq!(&events[0], &events[1], "{:?}", action);
        }
        prop_assert_eq!(ours.lab.listed(), model.lab.listed());
    });
    let Tally { sent, short, short_of } = tally.into_inner();
    assert!(sent / 4 < short && short < sent / 4 * 3, "{short} of {sent} went the quick check");
    assert!(short_of.iter().all(|&count| count > 0), "none of a kind did: {short_of:?}");
}
