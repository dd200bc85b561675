//! A worker that reassembles, and a sender that cuts datagrams.

use std::collections::BTreeMap;

use defrag::{
    Buffer, Context, DatagramKey, DiscardCause, Ecn, Memory, Outcome, Parcel, Phase, Piece, Pools,
    QueueView, Realm, Reassembler, Settings, Summary,
};
use flow::{DefragCounters, DropReason, HashKey, Timestamp};
use wire::Family;

pub const SECRET: HashKey = HashKey(0x0123_4567_89ab_cdef, 0xfedc_ba98_7654_3210);

/// A frame with the payload of one fragment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    pub serial: u64,
    pub payload: Vec<u8>,
    pub footprint: usize,
}

impl Buffer for Frame {
    fn footprint(&self) -> usize {
        self.footprint
    }
}

/// A fragment with its payload.
#[derive(Clone, Debug)]
pub struct Cut {
    pub piece: Piece,
    pub payload: Vec<u8>,
}

/// One worker with its share of the memory.
pub struct Worker {
    pub reassembler: Reassembler<Frame>,
    pub memory: Memory,
    pub counters: DefragCounters,
    pub settings: Settings,
    pub now: Timestamp,
    pub footprint: usize,
    /// Serial number of the next frame.
    pub serial: u64,
    /// Frames discarded since this list was last emptied.
    pub discarded: Vec<(Frame, DropReason)>,
    /// Footprints of the frames inside, by serial number.
    pub inside: BTreeMap<u64, usize>,
}

/// The result for a fragment.
#[derive(Debug)]
pub struct Result {
    pub outcome: Outcome,
    /// Payload of the datagram if it was completed.
    pub datagram: Option<Vec<u8>>,
}

impl Worker {
    pub fn new(settings: &Settings) -> Self {
        Self::of(&Pools::new(settings), settings, 1)
    }

    pub fn of(pools: &Pools, settings: &Settings, workers: u32) -> Self {
        Self {
            reassembler: Reassembler::new(SECRET),
            memory: pools.memory(workers),
            counters: DefragCounters::default(),
            settings: settings.clone(),
            now: Timestamp::from_secs(1),
            footprint: 2048,
            serial: 0,
            discarded: Vec::new(),
            inside: BTreeMap::new(),
        }
    }

    pub fn send(&mut self, cut: &Cut) -> Result {
        self.send_to(cut, 0)
    }

    pub fn send_to(&mut self, cut: &Cut, bucket: u16) -> Result {
        let frame =
            Frame { serial: self.serial, payload: cut.payload.clone(), footprint: self.footprint };
        self.serial += 1;
        self.inside.insert(frame.serial, frame.footprint);
        let mut complete = Vec::new();
        let outcome = self.with_context(|reassembler, context| {
            reassembler.insert(&cut.piece, bucket, frame, &mut complete, context)
        });
        let is_complete = matches!(outcome, Outcome::Complete(_));
        assert_eq!(is_complete, !complete.is_empty(), "{outcome:?}");
        for frame in &complete {
            assert!(self.inside.remove(&frame.serial).is_some(), "delivered twice");
        }
        let datagram = is_complete.then(|| complete.into_iter().flat_map(|f| f.payload).collect());
        Result { outcome, datagram }
    }

    pub fn expire(&mut self, budget: usize) -> usize {
        self.with_context(|reassembler, context| reassembler.expire(budget, context))
    }

    pub fn extract(&mut self, bucket: u16) -> Parcel<Frame> {
        self.reassembler.extract(bucket, &mut self.memory)
    }

    pub fn adopt(&mut self, parcel: Parcel<Frame>) {
        self.with_context(|reassembler, context| reassembler.adopt(parcel, context));
    }

    fn with_context<T>(
        &mut self,
        act: impl FnOnce(&mut Reassembler<Frame>, &mut Context<'_, Frame>) -> T,
    ) -> T {
        let (discarded, inside) = (&mut self.discarded, &mut self.inside);
        let mut discard = |frame: Frame, why: DiscardCause| {
            assert!(inside.remove(&frame.serial).is_some(), "discarded twice");
            discarded.push((frame, why.reason()));
        };
        let mut context = Context {
            now: self.now,
            settings: &self.settings,
            memory: &mut self.memory,
            counters: &mut self.counters,
            discard: &mut discard,
        };
        act(&mut self.reassembler, &mut context)
    }

    pub fn pass(&mut self, seconds: f64) {
        self.now = self.now.after(std::time::Duration::from_secs_f64(seconds));
    }

    /// Reasons of the frames discarded since the last call.
    pub fn reasons(&mut self) -> Vec<DropReason> {
        self.discarded.drain(..).map(|(_, reason)| reason).collect()
    }

    pub fn views(&self) -> Vec<QueueView> {
        let mut views = Vec::new();
        let mut cursor = Some(defrag::Cursor::default());
        while let Some(from) = cursor {
            cursor = self.reassembler.list(from, 100, &self.settings, self.now, |view| {
                views.push(view);
            });
        }
        views
    }

    pub fn stage_of(&self, key: &DatagramKey) -> Option<Phase> {
        self.views().iter().find(|view| view.key == *key).map(|view| view.phase)
    }

    /// Frames that were taken out of one worker go to another.
    pub fn move_frames(&mut self, parcel: &Parcel<Frame>, to: &mut Self) {
        for frame in parcel.frames() {
            assert!(self.inside.remove(&frame.serial).is_some(), "extracted twice");
            to.inside.insert(frame.serial, frame.footprint);
        }
    }

    /// Checks that the charged memory and the held memory are the same.
    pub fn check_books(&self) {
        let views = self.views();
        assert_eq!(views.len(), self.reassembler.len());
        let mut frames = 0;
        for family in [Family::V4, Family::V6] {
            let of_family = || views.iter().filter(|view| view.key.family() == family);
            let charged: u64 = of_family().map(|view| view.charged).sum();
            assert_eq!(charged, self.memory.used(family));
            let phases = [Phase::Newcomer, Phase::Progress, Phase::Dead(DropReason::FragEnd)];
            let by_stage = phases.map(|phase| self.reassembler.charged(family, phase));
            assert_eq!(charged, by_stage.iter().sum::<u64>());
            frames += of_family().map(|view| u64::from(view.pieces)).sum::<u64>();
        }
        let charged = self.memory.used(Family::V4) + self.memory.used(Family::V6);
        let held = self.inside.values().map(|&bytes| bytes as u64).sum::<u64>()
            + frames * Reassembler::<Frame>::PIECE_BYTES
            + views.len() as u64 * Reassembler::<Frame>::QUEUE_BYTES;
        assert_eq!(frames, self.inside.len() as u64);
        assert!(charged >= held, "more is held than charged");
        let maps = charged - held;
        assert_eq!(maps % Reassembler::<Frame>::MAP_BYTES, 0, "the rest is bitmaps");
        assert!(maps / Reassembler::<Frame>::MAP_BYTES <= views.len() as u64);
    }

    /// Lets all time pass and checks that nothing is left.
    pub fn drain(&mut self) {
        self.pass(100.0);
        while self.expire(7) > 0 {}
        assert!(self.inside.is_empty() && self.reassembler.is_empty());
        assert_eq!((self.memory.used(Family::V4), self.memory.used(Family::V6)), (0, 0));
    }
}

pub fn v4_address(last: [u8; 4]) -> [u8; 16] {
    let mut address = [0; 16];
    address[10..12].fill(0xff);
    address[12..].copy_from_slice(&last);
    address
}

pub fn key(family: Family, source: u8, id: u32) -> DatagramKey {
    let realm = Realm::default();
    match family {
        Family::V4 => {
            let (source, destination) = ([192, 0, 2, source], [198, 51, 100, 1]);
            DatagramKey::v4(realm, v4_address(source), v4_address(destination), 17, id)
        }
        Family::V6 => {
            let mut address = [0; 16];
            address[..4].copy_from_slice(&[0x20, 0x01, 0x0d, 0xb8]);
            let destination = address;
            address[15] = source;
            DatagramKey::v6(realm, address, destination, id)
        }
    }
}

/// A fragment of a datagram whose bytes are `content`.
pub fn cut(key: DatagramKey, content: &[u8], offset: usize, length: usize) -> Cut {
    let more = offset + length < content.len();
    fragment(key, offset as u16, &content[offset..offset + length], more)
}

pub fn fragment(key: DatagramKey, offset: u16, payload: &[u8], more: bool) -> Cut {
    let header = if key.family() == Family::V4 { 20 } else { 0 };
    let length = payload.len() as u16;
    let piece = Piece { key, offset, length, more, ecn: Ecn::NotEct, header };
    Cut { piece, payload: payload.to_vec() }
}

/// A datagram of `length` bytes in pieces of `size`.
pub fn cuts(key: DatagramKey, content: &[u8], size: usize) -> Vec<Cut> {
    (0..content.len())
        .step_by(size)
        .map(|offset| cut(key, content, offset, size.min(content.len() - offset)))
        .collect()
}

/// Bytes that are different for each seed.
pub fn content(seed: u32, length: usize) -> Vec<u8> {
    let mut random = Random(u64::from(seed) + 1);
    (0..length).map(|_| random.next() as u8).collect()
}

pub fn summary_of(result: &Result) -> Summary {
    match result.outcome {
        Outcome::Complete(summary) => summary,
        other => panic!("not complete: {other:?}"),
    }
}

/// A fixed sequence that looks random (xorshift64*, Vigna 2016).
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last as u64 + 1) as usize);
        }
    }
}
