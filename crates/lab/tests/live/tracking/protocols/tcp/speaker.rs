//! The two ends of a connection, with the numbers that they and an observer remember.

use lab::Random;
use wire::TcpFlags;
use wire::build::Tcp;

use crate::scenario::trackers::dialogue::{Ends, Side, Step};

pub const SYN: TcpFlags = TcpFlags::SYN;
pub const ACK: TcpFlags = TcpFlags::ACK;
pub const SYN_ACK: TcpFlags = SYN.with(ACK);
pub const FIN: TcpFlags = TcpFlags::FIN.with(ACK);
pub const RST: TcpFlags = TcpFlags::RST;
pub const RST_ACK: TcpFlags = RST.with(ACK);

/// One end of a connection.
#[derive(Clone, Debug, Default)]
pub struct Speaker {
    pub port: u16,
    /// The sequence number of its SYN.
    pub first: u32,
    /// The sequence number of its next byte.
    pub next: u32,
    /// The next sequence number that it expects.
    pub expects: u32,
    pub window: u16,
    /// The window scale that it offered.
    pub scale: Option<u8>,
    pub sack: bool,
    pub timestamps: bool,
    /// The highest sequence number behind its data.
    pub end: u32,
    /// The highest sequence number that the other end's windows allowed.
    pub room: u32,
    /// The largest window that it announced, in bytes.
    pub largest: u32,
    /// The highest number that it acknowledged.
    pub acked: u32,
}

impl Speaker {
    pub fn new(random: &mut Random, port: u16) -> Self {
        let mut speaker = Self {
            port,
            window: random.one_of(&[10, 100, 1000, 8192, 29_200, 65_535]),
            scale: random.one_of(&[None, Some(0), Some(1), Some(7), Some(14), Some(15)]),
            sack: !random.once_in(3),
            timestamps: random.once_in(3),
            ..Self::default()
        };
        speaker.restart(random);
        speaker
    }

    /// Chooses a new initial sequence number, often near a place where numbers wrap.
    pub fn restart(&mut self, random: &mut Random) {
        let near = random.between(0, 3000) as u32;
        let place = [0, 0_u32.wrapping_sub(1500), (1 << 31) - 1500, random.bits() as u32];
        self.first = random.one_of(&place).wrapping_add(near);
        self.next = self.first;
        (self.end, self.room, self.acked) = (self.first, self.first, self.first);
    }
}

/// A segment to send.
#[derive(Clone, Debug)]
pub struct Segment {
    pub from: Side,
    pub flags: TcpFlags,
    pub sequence: u32,
    pub acknowledgment: u32,
    pub window: u16,
    pub options: Vec<u8>,
    pub length: usize,
}

/// A dialogue under construction.
pub struct Script {
    pub random: Random,
    pub ends: Ends,
    pub speakers: [Speaker; 2],
    pub steps: Vec<Step>,
}

impl Script {
    pub fn speaker(&mut self, side: Side) -> &mut Speaker {
        &mut self.speakers[side as usize]
    }

    /// The segment that an honest end sends now.
    pub fn honest(&mut self, from: Side, flags: TcpFlags, length: usize) -> Segment {
        let options = self.options(from, flags);
        let speaker = &self.speakers[from as usize];
        Segment {
            from,
            flags,
            sequence: speaker.next,
            acknowledgment: if flags.contains(ACK) { speaker.expects } else { 0 },
            window: speaker.window,
            options,
            length,
        }
    }

    /// Sends an honest segment, which arrives.
    pub fn say(&mut self, from: Side, flags: TcpFlags, length: usize) {
        let segment = self.honest(from, flags, length);
        let end = end(&segment);
        self.speaker(from).next = end;
        self.speaker(from.other()).expects = end;
        self.send(&segment);
    }

    fn options(&mut self, from: Side, flags: TcpFlags) -> Vec<u8> {
        let speaker = &self.speakers[from as usize];
        let mut options = Vec::new();
        if flags.contains(SYN) {
            options.extend([2, 4, 5, 180]);
            if speaker.sack {
                options.extend([4, 2]);
            }
            if let Some(scale) = speaker.scale {
                options.extend([1, 3, 3, scale]);
            }
        }
        if speaker.timestamps {
            options.extend([1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2]);
        }
        options
    }

    /// Sends a segment and remembers the numbers that an observer learns from it.
    pub fn send(&mut self, segment: &Segment) {
        let frame = self.frame(segment);
        let after = |a: u32, b: u32| (b.wrapping_sub(a) as i32) < 0;
        let to = segment.from.other();
        let scales = self.speakers[0].scale.and(self.speakers[1].scale).is_some();
        let speaker = self.speaker(segment.from);
        let scale = if scales && !segment.flags.contains(SYN) { speaker.scale } else { None };
        let window = u32::from(segment.window) << scale.unwrap_or(0).min(14);
        speaker.largest = speaker.largest.max(window);
        if after(end(segment), speaker.end) {
            speaker.end = end(segment);
        }
        if segment.flags.contains(ACK) {
            if after(segment.acknowledgment, speaker.acked) {
                speaker.acked = segment.acknowledgment;
            }
            let room = segment.acknowledgment.wrapping_add(window);
            if after(room, self.speaker(to).room) {
                self.speaker(to).room = room;
            }
        }
        self.steps.push(Step::Send(segment.from, frame));
    }

    pub fn frame(&self, segment: &Segment) -> Vec<u8> {
        let tcp = Tcp {
            source_port: self.speakers[segment.from as usize].port,
            destination_port: self.speakers[segment.from.other() as usize].port,
            sequence: segment.sequence,
            acknowledgment: segment.acknowledgment,
            flags: segment.flags,
            window: segment.window,
            options: &segment.options,
        };
        let mut frame = Vec::new();
        let builder = self.ends.from(segment.from);
        builder.tcp(&tcp, &vec![0x2e; segment.length], &mut frame);
        frame
    }
}

/// One past the last number of a segment.
pub fn end(segment: &Segment) -> u32 {
    let counted = [SYN, TcpFlags::FIN].iter().filter(|flag| segment.flags.contains(**flag));
    segment.sequence.wrapping_add((segment.length + counted.count()) as u32)
}
