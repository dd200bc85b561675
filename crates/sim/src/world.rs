//! Two gateways, hosts and links, and all that happens to them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::Ipv4Addr;

use engine::Role;
use lab::Random;

use crate::address::{HOSTS, Side, station_of_gateway, station_of_host};
use crate::chat::Chat;
use crate::failure::{Failure, Invariant, Violation};
use crate::fault::Planted;
use crate::host::Host;
use crate::node::{Build, Node, rules};
use crate::order::{Order, identify};
use crate::plan::{MS, Plan, SECOND};
use crate::talk::{Script, Talk};
use crate::watch::Watch;
use crate::weather::Weather;

/// Time between two looks at a peer at least, microseconds.
const EARLIEST: u64 = 20;
/// Time between two looks at all that must hold.
const TICK: u64 = 250 * MS;
/// Lines of a trace that has all packets of TCP, and not only those that open or end connections.
const LONG_TRACE: usize = 1000;
/// Bytes of an Ethernet header.
const ETHERNET: usize = 14;
/// Time after the last action until tables have to be equal.
const QUIET: u64 = 20 * SECOND;
/// Time after that until all talks have to be over.
const PATIENCE: u64 = 240 * SECOND;

/// Something that happens at a time.
#[derive(Clone, Debug)]
pub enum Event {
    /// A frame reaches a gateway.
    Frame(usize, Side, Vec<u8>),
    /// An IP packet reaches a host.
    Packet(Side, usize, Vec<u8>),
    /// A datagram of state sync reaches a gateway, as it was sent or not.
    Datagram(usize, Vec<u8>, bool),
    /// The workers of a process work.
    Work(usize, u64),
    /// The peer of a process works.
    Look(usize, u64),
    /// A host works.
    Wake(Side, usize),
    /// An action of the plan.
    Act(usize),
    /// A talk of the plan begins.
    Talk(usize),
    /// A host opens a talk anew, from the same port.
    Again(Again),
    /// A chat of the plan begins.
    Chat(usize),
    /// A chat goes on.
    Say(u32),
    /// All hosts of a side hear that a gateway has the virtual address.
    Learn(Side, usize),
    /// A process gets or loses a virtual address.
    Virtual(usize, u64, Side, bool),
    /// A process gets another part.
    Role(usize, u64, Role),
    /// Buckets of a gateway move until then.
    Storm(usize, u64),
    /// A process hears of the zone of all packets.
    Zone(usize, u64),
    /// A gateway starts anew.
    Restart(usize),
    /// A gateway without which nobody forwards is sought.
    Elect,
    /// All that must hold is looked at.
    Tick,
}

/// A talk that is opened anew.
#[derive(Clone, Debug)]
pub struct Again {
    pub id: u32,
    pub host: (Side, usize),
    pub to: (Ipv4Addr, u16),
    pub from: u16,
    pub script: Script,
}

/// The simulation of a seed.
pub struct World {
    pub now: u64,
    pub random: Random,
    pub plan: Plan,
    pub nodes: [Option<Node>; 2],
    builds: [Build; 2],
    pub hosts: Vec<Host>,
    pub talks: BTreeMap<u32, Talk>,
    pub chats: BTreeMap<u32, Chat>,
    events: BTreeMap<(u64, u64), Event>,
    count: u64,
    /// Number of the last packet.
    packets: u16,
    /// The next process.
    lives: u64,
    /// The gateway that has the virtual addresses, or gets them.
    pub master: Option<usize>,
    /// The end of the last change of parts.
    pub settled_at: u64,
    pub sync: Weather,
    /// Until when the link from a gateway to the other one is cut.
    pub cut_until: [u64; 2],
    works_at: [bool; 2],
    looks_at: [u64; 2],
    order: Order,
    pub watch: Watch,
    /// Datagrams that each process has accepted, as hashes.
    pub accepted: BTreeMap<u64, BTreeSet<Vec<u8>>>,
    /// The last lines of the trace, and how many are kept.
    trace: Option<(VecDeque<String>, usize)>,
}

impl World {
    /// The simulation of a seed at its start.
    pub fn new(seed: u64, planted: Planted, traced: Option<usize>) -> Result<Self, Failure> {
        let mut random = Random::new(seed);
        let plan = Plan::of(&mut random);
        let rules = rules(plan.masquerades);
        let secret = flow::HashKey(random.bits(), random.bits());
        let builds = [0, 1].map(|number| Build {
            number,
            workers: plan.workers[number],
            buckets: plan.buckets[number],
            secret,
            rules: rules.clone(),
            max_connections: plan.max_connections[number],
            settings: sync::Settings::default(),
            planted,
        });
        let hosts = Side::BOTH.into_iter().flat_map(|side| (0..HOSTS).map(move |it| (side, it)));
        let hosts = hosts.map(|(side, it)| Host::new(side, it, random.bits(), 0)).collect();
        let mut world = Self {
            now: SECOND,
            nodes: [None, None],
            builds,
            hosts,
            talks: BTreeMap::new(),
            chats: BTreeMap::new(),
            events: BTreeMap::new(),
            count: 0,
            packets: 0,
            lives: 0,
            master: None,
            settled_at: 0,
            sync: plan.sync,
            cut_until: [0; 2],
            works_at: [false; 2],
            looks_at: [u64::MAX; 2],
            order: Order::default(),
            watch: Watch::default(),
            accepted: BTreeMap::new(),
            trace: traced.map(|lines| (VecDeque::new(), lines.max(2))),
            random,
            plan,
        };
        world.begin().map_err(|violation| world.failure(seed, violation))?;
        Ok(world)
    }

    fn begin(&mut self) -> Result<(), Violation> {
        self.note(|it| format!("{:?}", it.plan));
        self.master = Some(0);
        self.restart(0)?;
        self.restart(1)?;
        for side in Side::BOTH {
            self.set_virtual(0, side, true)?;
            self.hosts.iter_mut().for_each(|host| host.gateway = 0);
        }
        self.set_role(0, Role::Active)?;
        if self.plan.is_shared {
            Side::BOTH.into_iter().try_for_each(|side| self.set_virtual(1, side, true))?;
            self.set_role(1, Role::Active)?;
            let inside = self.hosts.iter_mut().filter(|host| host.side == Side::Inside);
            inside.for_each(|host| host.gateway = host.number % 2);
            // Until then they have met.
            self.settled_at = self.now + SECOND;
        }
        (0..2).for_each(|at| self.look_at(at, self.now));
        for at in 0..self.plan.actions.len() {
            self.at(SECOND + self.plan.actions[at].0, Event::Act(at));
        }
        for at in 0..self.plan.talks.len() {
            self.at(SECOND + self.plan.talks[at].0, Event::Talk(at));
        }
        for at in 0..self.plan.chats.len() {
            self.at(SECOND + self.plan.chats[at].0, Event::Chat(at));
        }
        self.after(TICK, Event::Tick);
        Ok(())
    }

    /// Runs it to its end.
    pub fn run(&mut self, seed: u64) -> Result<(), Failure> {
        let result = self.run_all();
        result.map_err(|violation| self.failure(seed, violation))
    }

    fn run_all(&mut self) -> Result<(), Violation> {
        self.run_until(SECOND + self.plan.ends_at)?;
        self.note(|_| "quiet".into());
        self.sync = Weather::FINE;
        self.plan.hosts = Weather { delay: self.plan.hosts.delay, ..Weather::FINE };
        self.cut_until = [0; 2];
        self.become_equal()?;
        let end = self.now + PATIENCE;
        while self.now < end && !self.talks.is_empty() {
            self.run_until(self.now + SECOND)?;
        }
        // A gateway without room has connections that are closing give way.
        let may_hang = |talk: &Talk| talk.is_done && self.plan.is_short();
        let stalled = self.talks.values().find(|talk| talk.is_protected && !may_hang(talk));
        stalled.map_or(Ok(()), |talk| Err(Violation::new(Invariant::NoStall, talk.progress())))
    }

    fn become_equal(&mut self) -> Result<(), Violation> {
        if self.plan.is_unlike() || self.plan.is_short() {
            return self.run_until(self.now + SECOND);
        }
        let end = self.now + QUIET;
        loop {
            self.run_until(self.now + 700 * MS)?;
            let difference = self.difference()?;
            match difference {
                None => return Ok(()),
                Some(what) if self.now >= end => {
                    return Err(Violation::new(Invariant::EqualAfterQuiet, what));
                }
                Some(what) => self.note(|_| format!("not equal yet: {what:.200}")),
            }
        }
    }

    fn failure(&self, seed: u64, violation: Violation) -> Failure {
        let mut trace: Vec<String> =
            self.trace.iter().flat_map(|(lines, _)| lines).cloned().collect();
        if self.trace.is_some() {
            trace.extend(self.tables());
        }
        Failure { seed, at: self.now, violation, trace }
    }

    /// Adds a line to the trace.
    pub fn note(&mut self, line: impl FnOnce(&Self) -> String) {
        if self.trace.is_none() {
            return;
        }
        let (s, us) = (self.now / SECOND, self.now % SECOND);
        let line = format!("{s:>3}.{us:06} {}", line(self));
        if let Some((trace, lines)) = &mut self.trace {
            if trace.len() == *lines {
                // The first line is the plan.
                trace.remove(1);
            }
            trace.push_back(line);
        }
    }

    /// Something will happen.
    pub fn at(&mut self, time: u64, event: Event) {
        self.count += 1;
        self.events.insert((time.max(self.now), self.count), event);
    }

    /// Something will happen after a while.
    pub fn after(&mut self, time: u64, event: Event) {
        self.at(self.now + time, event);
    }

    fn run_until(&mut self, end: u64) -> Result<(), Violation> {
        while let Some(next) = self.events.first_entry() {
            if next.key().0 > end {
                break;
            }
            let ((at, _), event) = next.remove_entry();
            self.now = at;
            self.happen(event)?;
        }
        self.now = end;
        Ok(())
    }

    fn happen(&mut self, event: Event) -> Result<(), Violation> {
        match event {
            Event::Frame(at, side, bytes) => self.frame_arrives(at, side, &bytes),
            Event::Packet(side, host, packet) => self.packet_arrives(side, host, packet)?,
            Event::Datagram(at, bytes, is_whole) => self.datagram_arrives(at, &bytes, is_whole)?,
            Event::Work(at, life) if self.lives(at, life) => self.work(at)?,
            Event::Look(at, life) if self.lives(at, life) && self.looks_at[at] <= self.now => {
                self.look(at)?;
            }
            Event::Wake(side, host) => self.wake(side, host)?,
            Event::Act(at) => self.act(at)?,
            Event::Talk(at) => self.begin_talk(at)?,
            Event::Again(Again { id, host, to, from, script }) => {
                self.open_free_talk(id, host, to, from, script)?;
            }
            Event::Chat(at) => self.begin_chat(at),
            Event::Say(id) => self.say(id),
            Event::Learn(side, at) => {
                let of_side = self.hosts.iter_mut().filter(|host| host.side == side);
                of_side.for_each(|host| host.gateway = at);
            }
            Event::Virtual(at, life, side, has) if self.lives(at, life) => {
                self.set_virtual(at, side, has)?;
            }
            Event::Role(at, life, role) if self.lives(at, life) => self.set_role(at, role)?,
            Event::Storm(at, until) => self.storm(at, until)?,
            Event::Zone(at, life) if self.lives(at, life) => {
                let now = self.now;
                if let Some(node) = &mut self.nodes[at] {
                    node.learn_zone(now)?;
                }
                self.note(|_| format!("gateway {at} hears of the zone"));
                self.work(at)?;
            }
            Event::Restart(at) => self.restart(at)?,
            Event::Elect => self.elect(),
            Event::Tick => {
                self.after(TICK, Event::Tick);
                self.work(0)?;
                self.work(1)?;
                self.check()?;
            }
            // The process is gone.
            Event::Work(..)
            | Event::Look(..)
            | Event::Virtual(..)
            | Event::Role(..)
            | Event::Zone(..) => {}
        }
        Ok(())
    }

    fn lives(&self, at: usize, life: u64) -> bool {
        self.nodes[at].as_ref().is_some_and(|node| node.life == life)
    }

    /// Starts a process on standby.
    pub fn restart(&mut self, at: usize) -> Result<(), Violation> {
        self.lives += 1;
        let clock = self.random.between(0, 40 * 365 * 86_400) as u64 * SECOND;
        let life = (self.lives, clock);
        let Self { now, builds, random, .. } = self;
        let mut node = Node::start(&builds[at], life, Role::Standby, *now, random)?;
        match self.plan.zone {
            // It is there from the beginning at the first gateway, and without delay at the other.
            Some(late) if late > 0 && self.lives > 1 => {
                self.at(self.now + late, Event::Zone(at, life.0));
            }
            Some(_) => node.learn_zone(self.now)?,
            None => {}
        }
        self.nodes[at] = Some(node);
        self.note(|it| format!("gateway {at} starts as process {}", it.lives));
        self.settled_at = self.settled_at.max(self.now);
        self.works_at[at] = false;
        self.look_at(at, self.now);
        if self.master.is_none() {
            self.after(100 * MS, Event::Elect);
        }
        Ok(())
    }

    /// The process of a gateway dies.
    pub fn kill(&mut self, at: usize) -> Result<(), Violation> {
        if self.master == Some(at) {
            self.check()?;
            self.protect(1 - at)?;
            self.master = None;
            let silence = self.random.between(100, 400) as u64 * MS;
            self.after(silence, Event::Elect);
        }
        self.note(|_| format!("gateway {at} dies"));
        self.nodes[at] = None;
        let pause = self.random.between(500, 9_000) as u64 * MS;
        self.after(pause, Event::Restart(at));
        self.settled_at = self.now + SECOND;
        Ok(())
    }

    /// A gateway that lives takes over.
    fn elect(&mut self) {
        let living = (0..2).filter(|at| self.nodes[*at].is_some());
        let living: Vec<usize> = living.collect();
        if self.master.is_some() || living.is_empty() {
            return;
        }
        let at = self.random.one_of(&living);
        self.note(|_| format!("gateway {at} takes over"));
        self.master = Some(at);
        self.take_over(at);
    }

    /// A gateway gets the addresses, and its script runs some time after that.
    pub fn take_over(&mut self, at: usize) {
        let Some(life) = self.nodes[at].as_ref().map(|node| node.life) else { return };
        let mut last = self.now;
        for side in Side::BOTH {
            let set = self.now + self.random.between(0, 20) as u64 * MS;
            self.at(set, Event::Virtual(at, life, side, true));
            let known = set + self.random.between(0, 5_000) as u64;
            self.at(known, Event::Learn(side, at));
            last = last.max(known);
        }
        let script = last + self.random.between(0, 50) as u64 * MS;
        self.at(script, Event::Role(at, life, Role::Active));
        self.settled_at = self.settled_at.max(script + 50 * MS);
    }

    /// A gateway loses the addresses, and its script runs some time after that.
    pub fn give_up(&mut self, at: usize) {
        let Some(life) = self.nodes[at].as_ref().map(|node| node.life) else { return };
        for side in Side::BOTH {
            let lost = self.random.between(0, 10) as u64 * MS;
            self.after(lost, Event::Virtual(at, life, side, false));
        }
        let script = self.random.between(10, 60) as u64 * MS;
        self.after(script, Event::Role(at, life, Role::Standby));
        self.settled_at = self.settled_at.max(self.now + script + 50 * MS);
    }

    fn set_virtual(&mut self, at: usize, side: Side, has: bool) -> Result<(), Violation> {
        let now = self.now;
        self.note(|_| {
            format!("gateway {at} {} the address {side:?}", if has { "gets" } else { "loses" })
        });
        if let Some(node) = &mut self.nodes[at] {
            let mut all = node.has_virtual;
            all[side.index()] = has;
            node.set_virtual(all, now)?;
        }
        self.work(at)
    }

    fn set_role(&mut self, at: usize, role: Role) -> Result<(), Violation> {
        let now = self.now;
        self.note(|_| format!("gateway {at} is {}", role.name()));
        if let Some(node) = &mut self.nodes[at] {
            node.set_role(role, now)?;
        }
        self.work(at)?;
        self.look_at(at, now);
        Ok(())
    }

    /// Lets the workers of a gateway work, and sends what they have sent.
    pub fn work(&mut self, at: usize) -> Result<(), Violation> {
        let now = self.now;
        self.works_at[at] = false;
        let Some(node) = &mut self.nodes[at] else { return Ok(()) };
        let life = node.life;
        if self.plan.is_restless && now < self.plan.ends_at {
            for _ in 0..self.random.between(0, 3) {
                node.move_bucket(&mut self.random, now)?;
            }
        }
        for (side, frame) in node.work(now)? {
            let bytes = frame.bytes();
            self.order.leave(life, &bytes[ETHERNET..], now)?;
            self.frame_leaves(side, bytes);
        }
        self.look_at(at, now + self.plan.pace);
        Ok(())
    }

    fn frame_leaves(&mut self, side: Side, bytes: &[u8]) {
        let (station, packet) = (&bytes[..6], &bytes[ETHERNET..]);
        let is_for = |host: &&Host| {
            host.side == side
                && station == station_of_host(side, host.number)
                && packet.get(16..20) == Some(&host.address().octets())
        };
        let Some(number) = self.hosts.iter().find(is_for).map(|host| host.number) else { return };
        for time in self.plan.hosts.carry(&mut self.random) {
            self.after(time, Event::Packet(side, number, packet.to_vec()));
        }
    }

    /// A host sends IP packets.
    pub fn send_from_host(&mut self, side: Side, number: usize, mut packet: Vec<u8>) {
        self.packets = self.packets.wrapping_add(1);
        identify(&mut packet, self.packets);
        self.note_packet("says", side, number, &packet);
        let to = self.host(side, number).gateway;
        let mut frame = station_of_gateway(side, to).to_vec();
        frame.extend(station_of_host(side, number));
        frame.extend([8, 0]);
        frame.extend(packet);
        for time in self.plan.hosts.carry(&mut self.random) {
            self.after(time, Event::Frame(to, side, frame.clone()));
        }
    }

    /// Adds a packet to the trace that opens, ends or resets a connection.
    pub(crate) fn note_packet(&mut self, how: &str, side: Side, number: usize, packet: &[u8]) {
        let Some((_, lines)) = &self.trace else { return };
        let lines = *lines;
        if packet.len() < 40 || packet[9] != 6 {
            return;
        }
        let flags = packet[33];
        let names = [(2, "SYN"), (16, "ACK"), (1, "FIN"), (4, "RST")];
        // A long trace has all of them.
        if flags & 7 == 0 && lines < LONG_TRACE {
            return;
        }
        let names: Vec<_> = names.iter().filter(|it| flags & it.0 != 0).map(|it| it.1).collect();
        let port = |at: usize| u16::from_be_bytes([packet[at], packet[at + 1]]);
        let word = |at: usize| u32::from_be_bytes(std::array::from_fn(|byte| packet[at + byte]));
        let address = |at: usize| std::net::Ipv4Addr::from(word(at));
        let (ends, numbers) = ((address(12), address(16)), (word(24), word(28)));
        self.note(|_| {
            format!(
                "  {number} {side:?} {how} {}: {}:{} to {}:{}, number {:x}, acknowledges {:x}, {} bytes",
                names.join("+"), ends.0, port(20), ends.1, port(22), numbers.0, numbers.1, packet.len()
            )
        });
    }

    fn frame_arrives(&mut self, at: usize, side: Side, bytes: &[u8]) {
        let Some(node) = &mut self.nodes[at] else { return };
        node.receive(side, bytes);
        let life = node.life;
        self.order.enter(life, &bytes[ETHERNET..], self.now);
        if !std::mem::replace(&mut self.works_at[at], true) {
            let wait = self.random.between(0, 150) as u64;
            self.after(wait, Event::Work(at, life));
        }
    }

    /// The peer of a gateway works at this time, or before.
    pub fn look_at(&mut self, at: usize, time: u64) {
        let Some(node) = &self.nodes[at] else { return };
        let life = node.life;
        if time < self.looks_at[at] || self.looks_at[at] <= self.now {
            self.looks_at[at] = time;
            self.at(time, Event::Look(at, life));
        }
    }

    fn look(&mut self, at: usize) -> Result<(), Violation> {
        let now = self.now;
        self.looks_at[at] = u64::MAX;
        let Some(node) = &mut self.nodes[at] else { return Ok(()) };
        let mut sent = Vec::new();
        while node.look(now, |it| sent.push(it.to_vec()))? {}
        let next = node.next_timeout();
        for datagram in sent {
            self.send_datagram(at, &datagram);
        }
        if next < u64::MAX {
            self.look_at(at, next.max(now + EARLIEST));
        }
        // Records may have led to packets.
        Ok(())
    }

    fn send_datagram(&mut self, from: usize, datagram: &[u8]) {
        if self.now < self.cut_until[from] {
            return;
        }
        for time in self.sync.carry(&mut self.random) {
            let mut bytes = datagram.to_vec();
            let is_damaged = self.sync.damage(&mut bytes, &mut self.random);
            self.after(time, Event::Datagram(1 - from, bytes, !is_damaged));
        }
    }

    /// A host by its side and number.
    pub fn host(&mut self, side: Side, number: usize) -> &mut Host {
        &mut self.hosts[side.index() * HOSTS + number]
    }
}
