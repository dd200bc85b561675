//! Looks at the tables of the gateways now and then.

use std::collections::{BTreeMap, BTreeSet};

use engine::Role;
use sync::{BulkId, Inflow};

use crate::address::{Side, VIRTUAL, host};
use crate::chat::ANSWERS_AT;
use crate::failure::{Invariant, Violation};
use crate::node::{Name, Node, Seen};
use crate::world::World;

/// Time for which a copy whose time is over is not listed at most.
const UNLISTED: u64 = 2_000_000;
/// Seconds that connections have left whose copies are always listed.
const LONG_S: u64 = 60;
/// Bytes beyond the limit of a queue: one record and its frame.
const BEYOND_QUEUE: usize = 4096;
/// Bytes of frames that wait for one before them.
const HELD: usize = 8 << 20;

/// A connection that can be told from a later one with the same ports.
type One = (Name, u32);

/// The memory of what was seen before.
#[derive(Default)]
pub struct Watch {
    /// When each connection of the active gateway was seen first, and by which process.
    since: BTreeMap<One, u64>,
    /// The same, in the state in which it was seen last.
    in_state: BTreeMap<One, (Option<&'static str>, u64)>,
    of_process: u64,
    /// Connections that the standby does not list, and since when.
    missing: BTreeMap<One, u64>,
    /// Packets of each copy of the standby, since the last change of parts.
    packets: BTreeMap<One, u64>,
    /// Connections of which the standby may know more packets than the active gateway: it was active
    /// before.
    older: BTreeSet<One>,
    /// Assured copies of the standby, likewise.
    assured: Vec<One>,
    /// The processes, which one is active, and the transfer since which the standby is level. The
    /// memory of others does not count.
    of: ([u64; 2], usize, BulkId),
    of_active: usize,
}

impl World {
    /// Looks at all that must hold at any time.
    pub(crate) fn check(&mut self) -> Result<(), Violation> {
        let mut tables = [const { None }; 2];
        for (at, table) in tables.iter_mut().enumerate() {
            if let Some(node) = &self.nodes[at] {
                let found = node.table()?;
                self.check_memory(at, found.len())?;
                check_tuples(&found)?;
                self.check_zone(at, &found)?;
                if self.plan.is_unlike() && node.peer.copies() > 0 {
                    let what = format!("gateway {at} has {} copies", node.peer.copies());
                    return Err(Violation::new(Invariant::UnlikeStayApart, what));
                }
                *table = Some(found);
            }
        }
        let Some(active) = self.master.filter(|at| self.is_active(*at)) else { return Ok(()) };
        let [Some(one), Some(other)] = &tables else {
            if let Some(table) = &tables[active] {
                self.remember(active, table);
            }
            return Ok(());
        };
        let (owner, standby) = if active == 0 { (one, other) } else { (other, one) };
        self.remember(active, owner);
        if self.now <= self.settled_at || self.role(1 - active) != Some(Role::Standby) {
            self.watch.packets.clear();
            self.watch.assured.clear();
            self.watch.missing.clear();
            return Ok(());
        }
        // An active gateway learns of a standby that has started anew only some time later, and one
        // that was active itself has to hear what the other one has.
        let inflow = self.nodes[1 - active].as_ref().map(|node| node.status(self.now).inflow);
        let Some(Inflow::Level(bulk)) = inflow else {
            self.watch.of = Watch::default().of;
            return Ok(());
        };
        self.forget_others((active, bulk), standby);
        // A gateway that is short, or did not know a zone, refuses connections and counts that.
        if !self.plan.is_short() && !self.plan.is_late() {
            self.check_lost(active, owner, standby)?;
        }
        self.check_roll_back(standby)?;
        self.check_assured(owner, standby)
    }

    fn role(&self, at: usize) -> Option<Role> {
        self.nodes[at].as_ref().map(Node::role)
    }

    fn is_active(&self, at: usize) -> bool {
        self.role(at) == Some(Role::Active)
    }

    fn check_memory(&self, at: usize, connections: usize) -> Result<(), Violation> {
        let Some(node) = &self.nodes[at] else { return Ok(()) };
        let status = node.status(self.now);
        let most = node.build.settings.queue_bytes + BEYOND_QUEUE;
        let is_within = status.queue_bytes <= most
            && status.held_bytes <= HELD
            && connections as u64 <= node.build.max_connections;
        if is_within {
            return Ok(());
        }
        let what = format!(
            "gateway {at}: {} bytes in the queue, {} held, {connections} connections",
            status.queue_bytes, status.held_bytes
        );
        Err(Violation::new(Invariant::MemoryBounded, what))
    }

    fn remember(&mut self, active: usize, table: &BTreeMap<Name, Seen>) {
        let Some(node) = &self.nodes[active] else { return };
        if self.watch.of_process != node.life {
            (self.watch.of_process, self.watch.since) = (node.life, BTreeMap::new());
            self.watch.in_state.clear();
        }
        let now = self.now;
        let before = std::mem::take(&mut self.watch.since);
        let ones = table.iter().map(|(name, seen)| (*name, seen.mark));
        for ((protocol, _, ends), mark) in before.keys() {
            let is_there = table
                .iter()
                .any(|(name, seen)| (name.0, name.2, seen.mark) == (*protocol, *ends, *mark));
            if !is_there {
                self.note(|_| {
                    format!(
                        "gateway {active} no longer has {}:{} -> {}:{} mark {mark:x}",
                        ends[0].0, ends[0].1, ends[1].0, ends[1].1
                    )
                });
            }
        }
        self.watch.since = ones.map(|one| (one, *before.get(&one).unwrap_or(&now))).collect();
        let before = std::mem::take(&mut self.watch.in_state);
        let states = table.iter().map(|(name, seen)| ((*name, seen.mark), seen.state));
        let in_state = states.map(|(one, state)| {
            let since = before.get(&one).filter(|it| it.0 == state).map_or(now, |it| it.1);
            (one, (state, since))
        });
        self.watch.in_state = in_state.collect();
    }

    fn check_lost(
        &mut self,
        active: usize,
        owner: &BTreeMap<Name, Seen>,
        standby: &BTreeMap<Name, Seen>,
    ) -> Result<(), Violation> {
        let Some(node) = &self.nodes[active] else { return Ok(()) };
        let Some(staleness) = node.status(self.now).staleness else { return Ok(()) };
        let fresh = staleness.as_micros() as u64 + self.plan.until_offered();
        let now = self.now;
        let is_missing = |(name, seen): &(&Name, &Seen)| {
            let since = self.watch.since.get(&(**name, seen.mark)).copied().unwrap_or(now);
            let copy = standby.get(*name).filter(|copy| copy.mark == seen.mark);
            since + fresh < now && copy.is_none()
        };
        let before = &self.watch.missing;
        let missing: Vec<_> = owner.iter().filter(is_missing).collect();
        let missing_since: BTreeMap<One, u64> = missing
            .iter()
            .map(|(name, seen)| (**name, seen.mark))
            .map(|one| (one, *before.get(&one).unwrap_or(&now)))
            .collect();
        // A copy whose time is over is not listed until the timer has given it more.
        let lost = missing.into_iter().find(|(name, seen)| {
            seen.left_s > LONG_S || missing_since[&(**name, seen.mark)] + UNLISTED < now
        });
        let is_behind = |(name, seen): &(&Name, &Seen)| {
            let one = (**name, seen.mark);
            let has_been = self.watch.in_state.get(&one).is_some_and(|it| it.1 + fresh < now);
            let copy = standby.get(*name).filter(|copy| copy.mark == seen.mark);
            has_been && copy.is_some_and(|copy| copy.state != seen.state)
        };
        if let Some((name, seen)) = owner.iter().find(is_behind) {
            let copy = standby.get(name).map(told);
            let what = format!("gateway {active} has {}, the standby {copy:?}", told(seen));
            return Err(Violation::new(Invariant::NoRollBack, what));
        }
        self.watch.missing = missing_since;
        let Some((name, seen)) = lost else { return Ok(()) };
        let what = format!(
            "gateway {active} has {}, and the standby has {:?}; staleness {staleness:?}; {}",
            told(seen),
            standby.get(name).map(told),
            self.counters()
        );
        Err(Violation::new(Invariant::NothingLost, what))
    }

    /// Forgets the memory of other processes, or of other parts of these.
    fn forget_others(&mut self, (active, bulk): (usize, BulkId), standby: &BTreeMap<Name, Seen>) {
        let processes = [0, 1].map(|at| self.nodes[at].as_ref().map_or(0, |node| node.life));
        let of = (processes, active, bulk);
        if self.watch.of == of {
            return;
        }
        if self.watch.of_active != active {
            self.watch.of_active = active;
            self.watch.older = standby.iter().map(|(name, seen)| (*name, seen.mark)).collect();
        }
        self.watch.of = of;
        self.watch.packets.clear();
        self.watch.assured.clear();
        self.watch.missing.clear();
    }

    fn check_roll_back(&mut self, standby: &BTreeMap<Name, Seen>) -> Result<(), Violation> {
        let watch = &mut self.watch;
        for (name, seen) in standby {
            let before = watch.packets.insert((*name, seen.mark), seen.packets).unwrap_or(0);
            if before > seen.packets && !watch.older.contains(&(*name, seen.mark)) {
                let what = format!("{} had {before} packets at the standby", told(seen));
                return Err(Violation::new(Invariant::NoRollBack, what));
            }
        }
        Ok(())
    }

    fn check_assured(
        &mut self,
        owner: &BTreeMap<Name, Seen>,
        standby: &BTreeMap<Name, Seen>,
    ) -> Result<(), Violation> {
        let is_one = |table: &BTreeMap<Name, Seen>, (name, mark): &One| {
            table.get(name).is_some_and(|it| it.mark == *mark)
        };
        let is_open = |(name, mark): &One| {
            let is_it = |it: &&Seen| it.mark == *mark && it.state == Some("ESTABLISHED");
            owner.get(name).filter(is_it).is_some()
        };
        let mut before = self.watch.assured.iter();
        let lost = before.find(|one| is_open(one) && !is_one(standby, one));
        if let Some((name, _)) = lost {
            let what = owner.get(name).map(told).unwrap_or_default();
            return Err(Violation::new(Invariant::FullKeepsAssured, what));
        }
        let assured =
            standby.iter().filter(|(_, seen)| seen.assured && seen.state == Some("ESTABLISHED"));
        self.watch.assured = assured.map(|(name, seen)| (*name, seen.mark)).collect();
        Ok(())
    }

    fn check_zone(&self, at: usize, table: &BTreeMap<Name, Seen>) -> Result<(), Violation> {
        let (Some(_), Some(node)) = (self.plan.zone, &self.nodes[at]) else { return Ok(()) };
        let Some(counted) = node.counted_in_zone()? else { return Ok(()) };
        let listed = table.values().filter(|seen| seen.zone != 0).count() as u64;
        // Connections whose time is over are counted until a worker has looked at them.
        if counted >= listed {
            return Ok(());
        }
        let what =
            format!("gateway {at} counts {counted} connections in the zone, and has {listed}");
        Err(Violation::new(Invariant::ZonesCount, what))
    }

    /// The first difference between the tables of both gateways; `None` if there is none.
    pub(crate) fn difference(&self) -> Result<Option<String>, Violation> {
        let [Some(one), Some(other)] = &self.nodes else {
            return Ok(Some("a gateway is down".into()));
        };
        if one.role() == other.role() && !self.plan.is_shared {
            return Ok(Some(format!("both gateways are {}", one.role().name())));
        }
        let tables = [one.table()?, other.table()?];
        let owner = usize::from(other.role() == Role::Active);
        for (at, table) in tables.iter().enumerate() {
            for (name, seen) in table {
                let copy = tables[1 - at].get(name);
                // Counts are told now and then.
                if copy.is_none_or(|copy| without_counts(copy) != without_counts(seen)) {
                    return Ok(Some(format!(
                        "gateway {at} has {}, and the other one has {:?}; {}",
                        told(seen),
                        copy.map(told),
                        self.counters()
                    )));
                }
            }
        }
        let (count, copies) = (tables[0].len(), [one, other].map(|it| it.peer.copies()));
        // Each connection has one owner.
        if copies[0] + copies[1] != count || !self.plan.is_shared && copies[owner] > 0 {
            return Ok(Some(format!("{copies:?} copies of {count} connections")));
        }
        let interfaces = [one.interfaces()?, other.interfaces()?];
        if interfaces[0] != interfaces[1] {
            return Ok(Some(format!("interfaces {interfaces:?}")));
        }
        let is_level = |node: &Node| {
            let status = node.status(self.now);
            matches!(status.inflow, Inflow::Level(_)) && status.staleness.is_some()
        };
        let are_level = is_level(one) && is_level(other);
        Ok((!are_level).then(|| format!("not level: {}", self.counters())))
    }

    /// True if the active gateway has heard of all connections of the other one, so that none of them
    /// is in the way of one that opens now.
    pub(crate) fn is_informed(&self) -> bool {
        let Some(active) = self.master else { return false };
        let Some(other) = &self.nodes[1 - active] else { return true };
        let staleness = other.status(self.now).staleness;
        staleness.is_some_and(|it| it.as_micros() as u64 <= self.plan.until_offered())
    }

    /// A gateway on standby is about to take over: what it has goes on, and what it does not have need
    /// not. If it is not level, it may have connections from the time when it was active before, which
    /// are so old that it takes their next packets for invalid.
    pub(crate) fn protect(&mut self, at: usize) -> Result<(), Violation> {
        let active = self.nodes[1 - at].as_ref();
        let staleness = active.and_then(|it| it.status(self.now).staleness);
        let staleness = staleness.map(|it| it.as_micros() as u64);
        let owner = active.map_or(Ok(BTreeMap::new()), Node::table)?;
        let node = self.nodes[at].as_ref();
        let node = node.filter(|it| matches!(it.status(self.now).inflow, Inflow::Level(_)));
        let (Some(node), Some(staleness), false) = (node, staleness, self.plan.is_late()) else {
            self.expose();
            return Ok(());
        };
        let certain = self.now.saturating_sub(staleness + self.plan.until_offered());
        let table = node.table()?;
        let has = |protocol: u8, ends: [(std::net::IpAddr, u16); 2]| {
            // An earlier connection may have had the same ports.
            let mut both = owner.iter().filter_map(|(name, seen)| Some((seen, table.get(name)?)));
            both.any(|(seen, copy)| {
                (copy.protocol, copy.original, copy.mark) == (protocol, ends, seen.mark)
            })
        };
        for talk in self.talks.values_mut() {
            let from = host_address(talk.side, talk.host);
            let is_there = has(6, [(from, talk.from), (talk.to.0.into(), talk.to.1)]);
            // This gateway may not know how a helper has changed the last command.
            let is_certain = !talk.script.is_ftp || talk.last_progress < certain;
            talk.is_protected &= is_there && is_certain;
        }
        for chat in self.chats.values_mut() {
            let from = host_address(Side::Inside, chat.host);
            let is_there = has(17, [(from, chat.from), (chat.to.into(), ANSWERS_AT)]);
            // One that is short of room may have them give way.
            chat.is_protected &= is_there && !self.plan.is_short();
        }
        Ok(())
    }

    /// No connection need go on.
    pub(crate) fn expose(&mut self) {
        self.talks.values_mut().for_each(|talk| talk.is_protected = false);
        self.chats.values_mut().for_each(|chat| chat.is_protected = false);
    }

    /// The tables of both gateways, for those who look for a reason.
    pub(crate) fn tables(&self) -> Vec<String> {
        let mut lines = Vec::new();
        for (at, node) in self.nodes.iter().enumerate() {
            let Some(table) = node.as_ref().and_then(|node| node.table().ok()) else { continue };
            lines.push(format!("gateway {at}:"));
            lines.extend(
                table.values().map(|seen| {
                    format!("  {} zone {} {} s left", told(seen), seen.zone, seen.left_s)
                }),
            );
        }
        lines.push(self.counters());
        lines
    }

    /// Counts of both peers, for those who look for a reason.
    pub(crate) fn counters(&self) -> String {
        let of = |at: usize| {
            self.nodes[at].as_ref().map(|node| {
                let status = node.status(self.now);
                format!(
                    "{at}: {} {:?} {:?} {:?}",
                    node.role().name(),
                    status.outflow,
                    status.inflow,
                    node.peer.copy_counters()
                )
            })
        };
        format!("{:?} {:?}", of(0), of(1))
    }
}

fn host_address(side: Side, number: usize) -> std::net::IpAddr {
    host(side, number).into()
}

/// No two connections may have the same packets outside.
fn check_tuples(table: &BTreeMap<Name, Seen>) -> Result<(), Violation> {
    let mut seen_before = BTreeMap::new();
    for ((protocol, ..), seen) in table {
        let outside = VIRTUAL[Side::Outside.index()];
        if seen.reply[1].0 != outside {
            continue;
        }
        if let Some(other) = seen_before.insert((*protocol, seen.zone, seen.reply), seen) {
            let what = format!("{} and {}", told(seen), told(other));
            return Err(Violation::new(Invariant::OneTupleOneConnection, what));
        }
    }
    Ok(())
}

/// The parts that are told at once when they change.
fn without_counts(seen: &Seen) -> Seen {
    Seen { packets: 0, left_s: 0, ..seen.clone() }
}

/// A connection in words.
fn told(seen: &Seen) -> String {
    let Seen { original: [from, to], reply: [_, outside], state, mark, packets, .. } = seen;
    format!(
        "{}:{} -> {}:{} outside {}:{} {} mark {mark:x} packets {packets}",
        from.0,
        from.1,
        to.0,
        to.1,
        outside.0,
        outside.1,
        state.unwrap_or("-")
    )
}
