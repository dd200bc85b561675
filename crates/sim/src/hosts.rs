//! Hosts open talks and chats, and answer.

use std::net::Ipv4Addr;

use crate::address::{HOSTS, Side, VIRTUAL, host};
use crate::chat::{ANSWERS_AT, Chat, datagram, read};
use crate::failure::{Invariant, Violation};
use crate::talk::{AGREED_LENGTH, FTP, Script, Standing, Talk, Told, command};
use crate::world::{Again, Event, World};

/// Ports from which hosts open talks: few, so that they are used again and by several hosts.
const FROM_PORTS: (usize, usize) = (5000, 5003);
/// The port outside that leads to a host inside.
const LED_PORT: u16 = 8080;
/// UDP.
const UDP: u8 = 17;

impl World {
    /// A packet reaches a host.
    pub(crate) fn packet_arrives(
        &mut self,
        side: Side,
        number: usize,
        packet: Vec<u8>,
    ) -> Result<(), Violation> {
        self.note_packet("hears", side, number, &packet);
        if packet.get(9) == Some(&UDP) {
            return self.datagram_heard(side, number, &packet);
        }
        self.host(side, number).receive(packet);
        self.wake(side, number)
    }

    /// A host works.
    pub(crate) fn wake(&mut self, side: Side, number: usize) -> Result<(), Violation> {
        let now = self.now;
        let mut told = Vec::new();
        // Talks make TCP send, and what it has received is said.
        for _ in 0..2 {
            let host = self.host(side, number);
            let mut sent = host.work(now);
            host.answer(|it| told.push(it))?;
            self.go_on_with_talks(side, number)?;
            sent.extend(self.host(side, number).work(now));
            sent.into_iter().for_each(|packet| self.send_from_host(side, number, packet));
        }
        told.into_iter().try_for_each(|it| self.hear_of(number, it))?;
        let of_talks = self.talks.values().filter(|it| (it.side, it.host) == (side, number));
        let next = of_talks.map(|it| it.wakes_at(now)).min().unwrap_or(u64::MAX);
        let next = next.min(self.host(side, number).wakes_at);
        self.wake_at(side, number, next);
        Ok(())
    }

    fn wake_at(&mut self, side: Side, number: usize, time: u64) {
        let now = self.now;
        let host = self.host(side, number);
        if time < u64::MAX && (time < host.rings_at || host.rings_at <= now) {
            host.rings_at = time;
            self.at(time, Event::Wake(side, number));
        }
    }

    fn go_on_with_talks(&mut self, side: Side, number: usize) -> Result<(), Violation> {
        let (now, settled_at) = (self.now, self.settled_at);
        // A gateway that is short of room may have half-open connections give way.
        let is_short = self.plan.is_short();
        let is_safe = |it: &Talk| it.is_established && (!is_short || it.is_answered());
        let is_new = |it: &Talk| (it.side, it.host) == (side, number) && !is_safe(it);
        let is_informed = self.talks.values().any(is_new) && self.is_informed();
        let ids: Vec<u32> = self
            .talks
            .values()
            .filter(|it| (it.side, it.host) == (side, number))
            .map(|it| it.id)
            .collect();
        for id in ids {
            let host = &mut self.hosts[side.index() * HOSTS + number];
            let Some(talk) = self.talks.get_mut(&id) else { continue };
            let was_safe = is_safe(talk);
            let standing = talk.go_on(host, now)?;
            if is_safe(talk) && !was_safe {
                talk.is_protected =
                    is_informed && talk.opened_at > settled_at && !self.plan.is_late();
            }
            match standing {
                Standing::On => {}
                Standing::Broken if talk.is_protected => {
                    return Err(Violation::new(Invariant::NoReset, talk.progress()));
                }
                Standing::Broken | Standing::Over => {
                    host.forget(talk.handle);
                    let line = format!("{standing:?}: {}", talk.progress());
                    let from_address = host.address();
                    let Talk { to, from, mut script, .. } = *talk;
                    self.talks.remove(&id);
                    self.note(|_| line);
                    if script.repeats > 0 {
                        // The same ports, at once or with the next batches of changes.
                        script.repeats -= 1;
                        if self.random.once_in(2) {
                            self.delete((from_address, from), to)?;
                        }
                        // Some are there for long enough to be missed if they end too early.
                        let dialogues = [(1, 0), (1, 0), (1, 0), (3, 200_000)];
                        (script.rounds, script.pause) = self.random.one_of(&dialogues);
                        let id = id + (1 << 16);
                        let pause = self.random.one_of(&[0, 700, 2_000, 6_000]);
                        let host = (side, number);
                        self.after(pause, Event::Again(Again { id, host, to, from, script }));
                    }
                }
            }
        }
        Ok(())
    }

    fn hear_of(&mut self, number: usize, told: Told) -> Result<(), Violation> {
        match told {
            Told::Misheard => {
                // One that no gateway knew any more has no helper.
                let here = host(Side::Outside, number);
                let mut to_it = self.talks.values().filter(|it| it.to == (here, FTP));
                if to_it.all(|it| it.is_protected) {
                    let what = "a server of FTP has heard something else than commands";
                    return Err(Violation::new(Invariant::NothingMixed, what));
                }
            }
            Told::Began { id, from } => {
                self.note(|_| format!("talk {id:x} comes from {}:{}", from.0, from.1));
                self.check_alone(id, from)?;
                if let Some(talk) = self.talks.get_mut(&id) {
                    talk.outside = Some(from);
                }
            }
            Told::Broke { id, was_whole } => {
                let Some(talk) = self.talks.get(&id) else { return Ok(()) };
                if talk.is_protected && !was_whole {
                    let what = format!("at the other end: {}", talk.progress());
                    return Err(Violation::new(Invariant::NoReset, what));
                }
            }
        }
        Ok(())
    }

    /// Looks whether the other end hears another talk from the same address and port.
    fn check_alone(&self, id: u32, from: (Ipv4Addr, u16)) -> Result<(), Violation> {
        let Some(talk) = self.talks.get(&id) else { return Ok(()) };
        let is_other = |it: &&Talk| {
            let is_live = it.is_protected && it.is_established && !it.is_done;
            it.id != id && is_live && (it.to, it.outside) == (talk.to, Some(from))
        };
        let Some(other) = self.talks.values().find(is_other) else { return Ok(()) };
        let what = format!("{} and {} come from {from:?}", talk.progress(), other.progress());
        Err(Violation::new(Invariant::OneTupleOneConnection, what))
    }

    /// A talk of the plan begins.
    pub(crate) fn begin_talk(&mut self, at: usize) -> Result<(), Violation> {
        let (_, mut script) = self.plan.talks[at];
        let id = (at as u32 + 1) << 8;
        // Some hosts outside use the port that leads inside.
        if self.plan.is_shared {
            let (round, number) = (at / HOSTS, at % HOSTS);
            let to = (host(Side::Outside, round % 2), 80);
            let from = FROM_PORTS.0 + round / 2;
            return self.open_free_talk(id, (Side::Inside, number), to, from as u16, script);
        }
        let is_led = self.random.once_in(5) && !script.is_ftp;
        let side = if is_led { Side::Outside } else { Side::Inside };
        let number = self.random.between(0, HOSTS - 1);
        let to = match is_led {
            true => (VIRTUAL[Side::Outside.index()], LED_PORT),
            false => {
                let port = if script.is_ftp { FTP } else { 80 };
                (host(Side::Outside, self.random.between(0, 1)), port)
            }
        };
        if script.is_ftp {
            (script.question, script.answer) = (command(number).len() as u32, AGREED_LENGTH);
        }
        let from = self.random.between(FROM_PORTS.0, FROM_PORTS.1) as u16;
        self.open_free_talk(id, (side, number), to, from, script)
    }

    /// Opens a talk, unless there is one with the same ends.
    pub(crate) fn open_free_talk(
        &mut self,
        id: u32,
        (side, number): (Side, usize),
        to: (Ipv4Addr, u16),
        from: u16,
        script: Script,
    ) -> Result<(), Violation> {
        let is_taken = |it: &Talk| (it.side, it.host, it.from, it.to) == (side, number, from, to);
        if self.talks.values().any(is_taken) {
            return Ok(());
        }
        self.open_talk(id, (side, number), to, from, script)
    }

    /// An operator ends the connection of a talk that is over.
    fn delete(&mut self, from: (Ipv4Addr, u16), to: (Ipv4Addr, u16)) -> Result<(), Violation> {
        let Some(at) = self.master else { return Ok(()) };
        let now = self.now;
        if let Some(node) = &mut self.nodes[at] {
            node.delete((from, to), now)?;
        }
        self.work(at)?;
        self.move_buckets(at, 8)
    }

    fn open_talk(
        &mut self,
        id: u32,
        (side, number): (Side, usize),
        to: (Ipv4Addr, u16),
        from: u16,
        script: Script,
    ) -> Result<(), Violation> {
        let host = self.host(side, number);
        let Some(handle) = host.connect(to, from, script.is_large) else { return Ok(()) };
        let talk = Talk::new(id, (side, number), to, (from, handle), (script, self.now));
        self.talks.insert(id, talk);
        self.note(|_| {
            format!(
                "talk {id:x}: host {number} {side:?}, port {from}, to {}:{}: {script:?}",
                to.0, to.1
            )
        });
        self.wake_at(side, number, self.now);
        Ok(())
    }

    /// A chat of the plan begins.
    pub(crate) fn begin_chat(&mut self, at: usize) {
        let (_, pause) = self.plan.chats[at];
        let id = (at as u32 + 1) << 24;
        let number = self.random.between(0, HOSTS - 1);
        let mut from = self.random.between(FROM_PORTS.0, FROM_PORTS.1) as u16;
        if self.plan.is_shared {
            // Two gateways may let two hosts keep one port, if both begin at once.
            from += 10 * (1 + number as u16);
        }
        let to = host(Side::Outside, self.random.between(0, 1));
        let is_taken = |it: &Chat| (it.host, it.from, it.to) == (number, from, to);
        if self.chats.values().any(is_taken) {
            return;
        }
        let length = self.random.between(1, 60) as u64 * crate::plan::SECOND;
        let ends_at = self.now + length;
        let (outside, is_protected) = (None, false);
        let chat =
            Chat { id, host: number, from, to, pause, ends_at, sent: 0, outside, is_protected };
        self.chats.insert(id, chat);
        self.note(|_| format!("chat {id:x}: host {number}, port {from}, to {to}, each {pause} us"));
        self.say(id);
    }

    /// A chat goes on.
    pub(crate) fn say(&mut self, id: u32) {
        let Some(chat) = self.chats.get_mut(&id) else { return };
        chat.sent += 1;
        let Chat { host: number, from, to, pause, ends_at, sent, .. } = chat;
        let (number, pause, is_over) = (*number, *pause, self.now > *ends_at);
        let packet = datagram((host(Side::Inside, number), *from), (*to, ANSWERS_AT), (id, *sent));
        if is_over {
            self.chats.remove(&id);
            return;
        }
        self.send_from_host(Side::Inside, number, packet);
        self.after(pause, Event::Say(id));
    }

    fn datagram_heard(
        &mut self,
        side: Side,
        number: usize,
        packet: &[u8],
    ) -> Result<(), Violation> {
        let Some(([from, to], id)) = read(packet) else { return Ok(()) };
        match side {
            Side::Outside => {
                if let Some(chat) = self.chats.get_mut(&id) {
                    chat.heard_from(from)?;
                }
                self.send_from_host(side, number, datagram(to, from, (id, 0)));
                Ok(())
            }
            Side::Inside => self.answer_heard(number, (from, to), id),
        }
    }

    fn answer_heard(
        &mut self,
        number: usize,
        (from, to): ((Ipv4Addr, u16), (Ipv4Addr, u16)),
        id: u32,
    ) -> Result<(), Violation> {
        let is_odd = self.plan.is_short() || self.plan.is_late();
        let is_calm = !is_odd && self.now > self.settled_at && self.is_informed();
        let Some(chat) = self.chats.get_mut(&id) else { return Ok(()) };
        let is_its = (chat.host, chat.from, chat.to) == (number, to.1, from.0);
        if is_its {
            // A gateway that meets the first answer before the record holds it for a connection of
            // its own.
            chat.is_protected |= is_calm;
            return Ok(());
        }
        // A gateway that is short of room gives the port of a chat to the next one at once.
        if self.plan.is_short() {
            return Ok(());
        }
        let what = format!("host {number} got an answer to chat {id:x} at port {}", to.1);
        Err(Violation::new(Invariant::NothingMixed, what))
    }
}
