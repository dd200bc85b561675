//! Honest datagrams under attack, in the time of a model.
//!
//! Twelve honest senders, four of each size, send 100,000 fragments a second in all, a third of
//! them of each size. The fragments of a datagram follow each other as fast as a link of 1 Gbit/s
//! brings them. The flood comes on top: at a share of 90 % it has nine fragments for each honest
//! one. Nothing is lost on the way, and the reassembler is never too slow. So it has given up every
//! datagram that does not come out. Goodput is bytes delivered over bytes sent, of the datagrams
//! that began during the flood. The goodput ratio divides it by the goodput without a flood.
//!
//! The model writes and dissects every frame, and verifies it byte by byte when it comes out.

use flow::Timestamp;
use serde::Serialize;
use wire::dissect;

use ::defrag::{Piece, Pools, Realm};

use super::attack::{Attack, Flood};
use super::designs::{Lane, Owned, settings};
use super::frame::Frame;
use super::honest::{Received, SIZES, Sender, receive};
use crate::{Error, Options};

/// Limit of memory, in bytes; `LOW` is the part that datagrams in progress may hold.
pub const CAP: u64 = 64 << 20;
pub const LOW: u64 = CAP / 4 * 3;
/// Honest fragments per second, all senders together.
const HONEST_PER_S: u64 = 100_000;
/// Time between two fragments of a datagram, in nanoseconds: 1500 bytes at 1 Gbit/s.
const PACE: u64 = 12_000;
/// Shares of the flood in all fragments, percent.
pub const SHARES: [u64; 3] = [50, 90, 99];
/// Length of the windows in which goodput is measured after the flood, in nanoseconds.
const WINDOW: u64 = 10_000_000;
/// Goodput counts as recovered at this part of the goodput without a flood.
const RECOVERED: f64 = 0.95;

/// Lengths of the parts of a run, in nanoseconds.
#[derive(Clone, Copy, Debug)]
struct Plan {
    before: u64,
    flood: u64,
    after: u64,
}

impl Plan {
    /// A flood that fills the memory two times at 50 % and a dozen times at 90 %; a tenth of that
    /// if quick.
    fn of(options: Options, share: u64) -> Self {
        let unit = if options.quick { 100_000 } else { 1_000_000 };
        let flood = match share {
            ..90 => 800,
            90..99 => 400,
            _ => 100,
        };
        Self { before: 50 * unit, flood: flood * unit, after: 1000 * unit }
    }
}

/// The result of an attack at one share.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// The attack.
    pub attack: Attack,
    /// Part of the flood in all fragments, percent.
    pub share: u64,
    /// Goodput over the goodput without a flood, all sizes together.
    pub goodput_ratio: f64,
    /// The same by size of the datagrams, in the order of [`SIZES`].
    pub by_size: [f64; SIZES.len()],
    /// Time from the end of the flood until goodput was back for good, in milliseconds of the
    /// model; 0 if it never fell.
    pub recovery_ms: f64,
    /// The largest memory that waiting frames occupied, in bytes.
    pub peak_bytes: u64,
    /// Wrong datagrams that a receiver would have accepted.
    pub corrupt: u64,
    /// Datagrams with forged content that a receiver's UDP checksum refuses.
    pub refused: u64,
}

/// Datagrams sent and delivered, in bytes.
#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    sent: [u64; SIZES.len()],
    delivered: [u64; SIZES.len()],
}

impl Tally {
    fn ratio(&self) -> f64 {
        let sent: u64 = self.sent.iter().sum();
        self.delivered.iter().sum::<u64>() as f64 / sent.max(1) as f64
    }

    fn by_size(&self) -> [f64; SIZES.len()] {
        std::array::from_fn(|size| self.delivered[size] as f64 / self.sent[size].max(1) as f64)
    }
}

/// A sender and its clock, in nanoseconds.
struct Timed {
    sender: Sender,
    /// The time at which its next fragment arrives.
    due: u64,
    /// The time at which its current datagram began.
    began: u64,
    /// Time between the beginnings of two datagrams.
    interval: u64,
    /// Fragments that it has sent.
    sent: u64,
}

impl Timed {
    fn all(ids: u16) -> Vec<Self> {
        let senders = Sender::all(ids);
        let each = HONEST_PER_S / senders.len() as u64;
        let count = senders.len() as u64;
        let timed = |(sender, number): (Sender, u64)| {
            let interval = 1_000_000_000 * sender.pieces() as u64 / each;
            // The senders do not begin all at once.
            let due = interval * number / count;
            Self { sender, due, began: due, interval, sent: 0 }
        };
        senders.into_iter().zip(0..).map(timed).collect()
    }

    /// Its next fragment.
    fn next(&mut self) -> Fragment {
        let pieces = self.sender.pieces() as u64;
        let (datagram, index) = (self.sent / pieces, self.sent % pieces);
        if index == 0 {
            self.began = self.due;
        }
        self.sent += 1;
        let last = index + 1 == pieces;
        self.due = if last { self.began + self.interval } else { self.due + PACE };
        Fragment { frame: self.sender.next(), datagram, index }
    }
}

/// A fragment of an honest sender.
struct Fragment {
    frame: Vec<u8>,
    /// Number of its datagram.
    datagram: u64,
    /// Number of the piece in it.
    index: u64,
}

/// The observations of the receivers.
#[derive(Debug)]
struct Audit {
    plan: Plan,
    during: Tally,
    after: Vec<Tally>,
    corrupt: u64,
    refused: u64,
    datagram: Vec<u8>,
}

impl Audit {
    fn new(plan: Plan) -> Self {
        Self {
            plan,
            during: Tally::default(),
            after: vec![Tally::default(); (plan.after / WINDOW) as usize],
            corrupt: 0,
            refused: 0,
            datagram: Vec::new(),
        }
    }

    /// The tally for a datagram that began at this time; `None` if it does not count.
    fn account(&mut self, began: u64) -> Option<&mut Tally> {
        let Plan { before, flood, .. } = self.plan;
        match began.checked_sub(before)?.checked_sub(flood) {
            None => Some(&mut self.during),
            Some(after) => self.after.get_mut((after / WINDOW) as usize),
        }
    }

    fn deliver(&mut self, frames: &[Frame], senders: &[Timed]) {
        let frames = frames.iter().map(Frame::bytes);
        match receive(frames, &mut self.datagram) {
            Received::Foreign => {}
            Received::Refused => self.refused += 1,
            Received::Corrupt => self.corrupt += 1,
            Received::Intact { sender } => {
                // Nothing is late, so this is the datagram that its sender has just sent.
                let Timed { sender, began, .. } = &senders[sender];
                let size = sender.size();
                if let Some(tally) = self.account(*began) {
                    tally.delivered[size] += SIZES[size] as u64;
                }
            }
        }
    }

    /// Milliseconds until goodput is `normal` in all windows that follow.
    fn recovery_ms(&self, normal: f64) -> f64 {
        let low = |tally: &Tally| tally.ratio() < RECOVERED * normal;
        let windows = self.after.iter().rposition(low).map_or(0, |last| last + 1);
        windows as f64 * WINDOW as f64 / 1e6
    }
}

/// One run of the model.
struct Model {
    owned: Owned,
    senders: Vec<Timed>,
    audit: Audit,
}

impl Model {
    /// A model whose senders count in these bits of their identifications.
    fn new(plan: Plan, ids: u16) -> Result<Self, Error> {
        let settings = settings(CAP, LOW)?;
        let owned = Owned::new(&Pools::new(&settings), 1, &settings);
        Ok(Self { owned, senders: Timed::all(ids), audit: Audit::new(plan) })
    }

    /// Lets time pass. Every datagram of a sender whose number is a multiple of `lose` loses its
    /// second fragment.
    fn run(&mut self, flood: Option<(Attack, u64)>, lose: Option<u64>) {
        let Plan { before, flood: lasts, after } = self.audit.plan;
        let mut flood =
            flood.map(|(attack, share)| (Flood::new(attack), HONEST_PER_S * share / (100 - share)));
        let mut frame = Vec::new();
        let mut floods = 0;
        loop {
            let next = self.senders.iter().enumerate().min_by_key(|(_, sender)| sender.due);
            let Some((number, due)) = next.map(|(number, sender)| (number, sender.due)) else {
                return;
            };
            if due > before + lasts + after {
                return;
            }
            if let Some((flood, per_s)) = &mut flood {
                let at = before + floods * 1_000_000_000 / *per_s;
                if at < before + lasts && at <= due {
                    floods += 1;
                    frame.clear();
                    flood.write(&mut frame);
                    self.take(&frame, at);
                    continue;
                }
            }
            let size = self.senders[number].sender.size();
            let Fragment { frame, datagram, index } = self.senders[number].next();
            let incomplete = lose.is_some_and(|every| datagram % every == 0);
            if index == 0
                && !incomplete
                && let Some(tally) = self.audit.account(due)
            {
                tally.sent[size] += SIZES[size] as u64;
            }
            if !(index == 1 && incomplete) {
                self.take(&frame, due);
            }
        }
    }

    /// Handles a frame that arrives.
    fn take(&mut self, bytes: &[u8], at: u64) {
        let found = dissect(bytes).ok().and_then(|found| found.network);
        let piece = found.and_then(|network| Piece::of(&network, Realm::default()));
        let Some(piece) = piece else { return };
        let Self { owned, senders, audit } = self;
        let pool = owned.pool();
        let mut frame = pool.take(bytes.len());
        frame.bytes_mut().copy_from_slice(bytes);
        pool.compact(&mut frame);
        let deliver = |frames: &[Frame]| audit.deliver(frames, senders);
        owned.reassemble(&[piece], std::iter::once(frame), Timestamp::from_nanos(at), deliver);
    }

    /// Fails if a damaged datagram came out or too much memory was held.
    fn check(&self, what: &str, forged: bool) -> Result<(), Error> {
        let Audit { corrupt, refused, .. } = &self.audit;
        let peak = self.owned.peak();
        let problem = if *corrupt > 0 || *refused > 0 && !forged {
            format!("{what}: {} datagrams came out damaged", corrupt + refused)
        } else if peak > CAP {
            format!("{what}: {peak} bytes were held, more than the limit of {CAP}")
        } else {
            return Ok(());
        };
        Err(Error::Wrong { benchmark: super::NAME, problem })
    }
}

/// Goodput when identifications repeat soon and fragments are lost.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Wrap {
    /// The part of the complete datagrams that was delivered.
    pub goodput_ratio: f64,
    /// Datagrams that were put together from pieces of several.
    pub mixed: u64,
}

/// The results of all attacks.
#[derive(Debug)]
pub struct Floods {
    /// Every attack at every share.
    pub outcomes: Vec<Outcome>,
    /// The result with identifications that wrap, without an attack.
    pub wrap: Wrap,
}

/// Runs all attacks.
pub fn measure(options: Options) -> Result<Floods, Error> {
    const ALL_IDS: u16 = u16::MAX;
    let mut calm = Vec::new();
    for share in SHARES {
        let mut model = Model::new(Plan::of(options, share), ALL_IDS)?;
        model.run(None, None);
        model.check("no flood", false)?;
        calm.push((share, model.audit));
    }
    let mut outcomes = Vec::new();
    for attack in Attack::ALL {
        for (share, calm) in &calm {
            let mut model = Model::new(calm.plan, ALL_IDS)?;
            model.run(Some((attack, *share)), None);
            model.check(&format!("{attack:?} at {share} %"), attack == Attack::IdSpray)?;
            outcomes.push(outcome(attack, *share, &model, calm));
        }
    }
    Ok(Floods { outcomes, wrap: wrap(Plan::of(options, SHARES[0]))? })
}

fn outcome(attack: Attack, share: u64, model: &Model, calm: &Audit) -> Outcome {
    let Audit { during, corrupt, refused, .. } = &model.audit;
    let (now, then) = (during.by_size(), calm.during.by_size());
    Outcome {
        attack,
        share,
        goodput_ratio: during.ratio() / calm.during.ratio(),
        by_size: std::array::from_fn(|size| now[size] / then[size]),
        recovery_ms: model.audit.recovery_ms(calm.during.ratio()),
        peak_bytes: model.owned.peak(),
        corrupt: *corrupt,
        refused: *refused,
    }
}

/// Senders that use an identification again after 64 datagrams. Every seventh datagram loses a
/// fragment: its other fragments still wait when the identification comes again.
fn wrap(plan: Plan) -> Result<Wrap, Error> {
    const IDS: u16 = 0x3f;
    const LOSE: u64 = 7;
    let mut model = Model::new(plan, IDS)?;
    model.run(None, Some(LOSE));
    model.check("identifications that wrap", false)?;
    let Audit { during, corrupt, refused, .. } = &model.audit;
    Ok(Wrap { goodput_ratio: during.ratio(), mixed: corrupt + refused })
}
