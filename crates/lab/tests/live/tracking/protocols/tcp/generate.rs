//! TCP dialogues: honest, mistreated and chaotic ones.

use lab::{Family, Random};
use wire::TcpFlags;

use super::speaker::{ACK, FIN, RST, RST_ACK, SYN, SYN_ACK, Script, Segment, Speaker, end};
use crate::scenario::trackers::BATCH;
use crate::scenario::trackers::dialogue::{Client, Dialogue, Ends, Server, Side, Step, interrupt};

/// The dialogue of a seed: a third is honest, a third is mistreated, a third is chaotic.
pub fn generate(seed: u64) -> Dialogue {
    let mut random = Random::new(seed);
    let family = random.one_of(&[Family::V4, Family::V6]);
    let ends = Ends::of(seed % BATCH, family);
    let ports = [random.between(1024, 65_535) as u16, random.between(1, 65_535) as u16];
    let speakers = ports.map(|port| Speaker::new(&mut random, port));
    let mut script = Script { random, ends, speakers, steps: Vec::new() };
    let opening = script.honest(Client, SYN, 0);
    let flow = script.frame(&opening);
    script.converse();
    match seed % 3 {
        0 => {}
        1 => script.mistreat(),
        _ => {
            let kept = script.random.between(0, script.steps.len().min(8));
            script.steps.truncate(kept);
            for _ in 0..script.random.between(3, 14) {
                script.say_anything();
            }
        }
    }
    let steps = interrupt(&mut script.random, script.steps);
    Dialogue { seed, ends, flow, steps }
}

impl Script {
    fn converse(&mut self) {
        self.open();
        for _ in 0..self.random.between(0, 7) {
            self.talk();
        }
        self.close();
        if self.random.once_in(4) {
            for speaker in &mut self.speakers {
                speaker.restart(&mut self.random);
            }
            self.open();
            self.talk();
        }
    }

    fn open(&mut self) {
        match self.random.between(0, 19) {
            0..=11 => {
                for _ in 0..self.random.one_of(&[1, 1, 1, 2]) {
                    self.speaker(Client).next = self.speaker(Client).first;
                    self.say(Client, SYN, 0);
                }
                self.say(Server, SYN_ACK, 0);
                self.say(Client, ACK, 0);
            }
            12 | 13 => self.open_at_once(),
            14 | 15 => self.find_half_open(),
            16 => {
                self.say(Client, SYN, 0);
                let refusal = self.honest(Server, RST_ACK, 0);
                self.send(&Segment { sequence: 0, ..refusal });
            }
            17 => self.say(Client, SYN, 0),
            // Starts amid a connection.
            _ => {
                let expected = [self.speakers[1].next, self.speakers[0].next];
                for (speaker, expects) in self.speakers.iter_mut().zip(expected) {
                    speaker.expects = expects;
                }
                let from = self.random.one_of(&Side::BOTH);
                let length = self.random.one_of(&[0, 1, 100]);
                self.say(from, ACK, length);
            }
        }
    }

    /// A simultaneous open (RFC 9293 section 3.5).
    fn open_at_once(&mut self) {
        self.say(Client, SYN, 0);
        let crossing = self.honest(Server, SYN, 0);
        self.speaker(Server).next = end(&crossing);
        self.speaker(Client).expects = end(&crossing);
        self.send(&crossing);
        for from in Side::BOTH {
            let next = self.speakers[from as usize].next;
            let answer = self.honest(from, SYN_ACK, 0);
            self.send(&Segment { sequence: next.wrapping_sub(1), ..answer });
        }
        if self.random.once_in(2) {
            self.say(Client, ACK, 0);
        }
    }

    /// The server still has an older connection (RFC 9293 section 3.5.1).
    fn find_half_open(&mut self) {
        self.say(Client, SYN, 0);
        let old = self.honest(Server, ACK, 0);
        let old_ack = self.random.bits() as u32;
        self.send(&Segment { acknowledgment: old_ack, ..old });
        let reset = self.honest(Client, RST, 0);
        self.send(&Segment { sequence: old_ack, ..reset });
        if self.random.once_in(2) {
            self.speaker(Client).next = self.speaker(Client).first;
            self.say(Client, SYN, 0);
            self.say(Server, SYN_ACK, 0);
            self.say(Client, ACK, 0);
        }
    }

    fn talk(&mut self) {
        let from = self.random.one_of(&Side::BOTH);
        let length = self.random.one_of(&[1, 10, 99, 100, 500, 1400]);
        match self.random.between(0, 11) {
            0..=3 => {
                self.say(from, ACK.with(TcpFlags::PSH), length);
                self.say(from.other(), ACK, 0);
            }
            4 => {
                self.say(from, ACK, length);
                self.say(from, ACK, length);
                self.say(from.other(), ACK, 0);
            }
            5 => self.say(from, ACK, 0),
            // The window closes and opens again.
            6 => {
                let window = self.speakers[from as usize].window;
                self.speaker(from).window = 0;
                self.say(from, ACK, 0);
                self.speaker(from).window = window;
                if self.random.once_in(2) {
                    self.say(from, ACK, 0);
                }
            }
            // A keep-alive and its answer.
            7 => {
                let length = self.random.one_of(&[0, 1]);
                let probe = self.honest(from, ACK, length);
                self.send(&Segment { sequence: probe.sequence.wrapping_sub(1), ..probe });
                self.say(from.other(), ACK, 0);
            }
            // Data that is lost behind us and sent again.
            8 | 9 => {
                let data = self.honest(from, ACK, length);
                for _ in 0..self.random.between(2, 5) {
                    self.send(&data);
                }
                self.say(from, ACK, length);
            }
            _ => self.lose_one(from, length),
        }
    }

    /// Loses the first of two segments behind us. The answer to the second has a SACK block if both
    /// ends agreed to SACK.
    fn lose_one(&mut self, from: Side, length: usize) {
        let first = self.honest(from, ACK, length);
        self.send(&first);
        let second = Segment { sequence: end(&first), ..first.clone() };
        self.send(&second);
        let mut answer = self.honest(from.other(), ACK, 0);
        if self.speakers.iter().all(|speaker| speaker.sack) {
            answer.options.extend([1, 1, 5, 10]);
            answer.options.extend(second.sequence.to_be_bytes());
            answer.options.extend(end(&second).to_be_bytes());
        }
        self.send(&answer);
        self.send(&first);
        self.speaker(from).next = end(&second);
        self.speaker(from.other()).expects = end(&second);
        self.say(from.other(), ACK, 0);
    }

    fn close(&mut self) {
        let from = self.random.one_of(&Side::BOTH);
        let back = from.other();
        // Both ends went on without packets through us.
        if self.random.once_in(8) {
            for side in Side::BOTH {
                let next = self.speakers[side as usize].next.wrapping_add(1 << 29);
                self.speaker(side).next = next;
                self.speaker(side.other()).expects = next;
            }
        }
        match self.random.between(0, 9) {
            0..=4 => {
                self.say(from, FIN, 0);
                self.say(back, ACK, 0);
                if self.random.once_in(3) {
                    self.say(back, ACK, 100);
                }
                self.say(back, FIN, 0);
                self.say(from, ACK, 0);
            }
            // Both ends close at once.
            5 => {
                let both = [self.honest(from, FIN, 0), self.honest(back, FIN, 0)];
                for fin in &both {
                    self.speaker(fin.from).next = end(fin);
                    self.speaker(fin.from.other()).expects = end(fin);
                    self.send(fin);
                }
                self.say(from, ACK, 0);
                self.say(back, ACK, 0);
            }
            6 | 7 => {
                let flags = self.random.one_of(&[RST, RST_ACK]);
                self.say(from, flags, 0);
            }
            8 => {
                self.say(from, FIN, 0);
                self.say(back, RST, 0);
            }
            _ => {}
        }
    }

    /// Loses, repeats, delays and changes packets.
    fn mistreat(&mut self) {
        for _ in 0..self.random.between(1, 5) {
            let at = self.random.between(0, self.steps.len() - 1);
            match self.random.between(0, 7) {
                0 if self.steps.len() > 1 => drop(self.steps.remove(at)),
                1 => self.steps.insert(at, self.steps[at].clone()),
                2 => {
                    let to = self.random.between(0, self.steps.len() - 1);
                    let step = self.steps.remove(at);
                    self.steps.insert(to, step);
                }
                3 => self.damage(at),
                _ => {
                    self.say_anything();
                    let step = self.steps.pop().expect("just said");
                    self.steps.insert(at, step);
                }
            }
        }
    }

    /// Writes a wrong checksum or length, or other flags.
    fn damage(&mut self, at: usize) {
        let start = if self.ends.family == Family::V4 { 34 } else { 54 };
        let Step::Send(_, frame) = &mut self.steps[at] else { return };
        match self.random.between(0, 2) {
            // The checksum.
            0 => frame[start + 16] ^= 1 << self.random.between(0, 7),
            // The data offset.
            1 => frame[start + 12] = (self.random.between(0, 15) as u8) << 4,
            // The flags, with a correct checksum: the sum of the word stays.
            _ => {
                let flags = self.random.bits() as u8;
                let change = u16::from(frame[start + 13]).wrapping_sub(flags.into());
                let old = u16::from_be_bytes([frame[start + 16], frame[start + 17]]);
                let sum = u32::from(old)
                    + u32::from(change)
                    + u32::from(frame[start + 13] < flags) * 0xffff;
                let folded = (sum & 0xffff) + (sum >> 16);
                frame[start + 13] = flags;
                frame[start + 16..start + 18].copy_from_slice(&(folded as u16).to_be_bytes());
            }
        }
    }

    /// Sends a segment with numbers at the limits that trackers check.
    fn say_anything(&mut self) {
        let from = self.random.one_of(&Side::BOTH);
        let flags = match self.random.between(0, 19) {
            0..=2 => SYN,
            3..=5 => SYN_ACK,
            6..=8 => FIN,
            9 | 10 => RST,
            11 | 12 => RST_ACK,
            13 => TcpFlags(self.random.bits() as u8),
            _ => ACK,
        };
        let length = if flags.contains(ACK) { self.random.one_of(&[0, 0, 1, 100]) } else { 0 };
        let mut segment = self.honest(from, flags, length);
        let (own, peer) = (&self.speakers[from as usize], &self.speakers[from.other() as usize]);
        let sequences = [
            own.next,
            own.next,
            own.end,
            own.room,
            own.first,
            own.end.wrapping_sub(peer.largest),
            own.end.wrapping_add(peer.largest),
            peer.acked,
            0,
        ];
        let acks = [
            own.expects,
            own.expects,
            peer.end,
            peer.first,
            peer.end.wrapping_sub(66_000),
            peer.end.wrapping_sub(own.largest),
            0,
        ];
        let around = |random: &mut Random, number: u32| {
            number.wrapping_add(random.one_of(&[0, 0, 0, 1, u32::MAX, length as u32]))
        };
        if self.random.once_in(2) {
            let place = self.random.one_of(&sequences);
            segment.sequence = around(&mut self.random, place);
        }
        if self.random.once_in(2) {
            let place = self.random.one_of(&acks);
            segment.acknowledgment = around(&mut self.random, place);
        }
        if self.random.once_in(4) {
            segment.window = self.random.one_of(&[0, 1, 100, 1000, 65_535]);
        }
        if self.random.once_in(6) {
            let place = self.random.one_of(&acks);
            segment.options = self.odd_options(place);
        }
        self.send(&segment);
        if self.random.once_in(2) {
            // The end really sent this segment.
            self.speaker(from).next = end(&segment);
            self.speaker(from.other()).expects = end(&segment);
        }
    }

    fn odd_options(&mut self, ack: u32) -> Vec<u8> {
        let edge = ack.wrapping_add(self.random.one_of(&[0, 1, 100, 1000, u32::MAX]));
        let mut block = edge.wrapping_sub(50).to_be_bytes().to_vec();
        block.extend(edge.to_be_bytes());
        match self.random.between(0, 6) {
            0 | 1 => [&[1, 1, 5, 10], &block[..]].concat(),
            // One without a block, and one with a block.
            6 => [&[5, 2, 5, 10], &block[..]].concat(),
            2 => [&[1, 1, 5, 18], &block[..], &block[..]].concat(),
            // A truncated option, one with length 0, and one with a wrong length.
            3 => [&[1, 1, 5, 34], &block[..]].concat(),
            4 => vec![5, 0, 3, 3, 9, 0, 4, 2],
            _ => vec![3, 4, 9, 9, 4, 3, 9, 0, 3, 3, 2, 1],
        }
    }
}
