//! The simplest possible reassembly: a map of byte vectors, without a limit on memory.

use std::collections::BTreeMap;
use std::time::Duration;

use defrag::{Ecn, Settings};
use flow::{DropReason, Timestamp};
use wire::Family;

use crate::fixture::Cut;

type Key = ([u8; 16], [u8; 16], u32, u8);

#[derive(Debug)]
struct Datagram {
    born: Timestamp,
    /// `None` for bytes that have not come.
    bytes: Vec<Option<u8>>,
    end: Option<usize>,
    ecn: Vec<Ecn>,
    first_ecn: Ecn,
    dead: Option<DropReason>,
    /// Fragments of the source when it last grew, or got a fragment after its end.
    grown_at: u64,
}

#[derive(Debug, Default)]
pub struct Model {
    datagrams: BTreeMap<Key, Datagram>,
    sent: BTreeMap<[u8; 16], u64>,
}

/// The expected result for a fragment.
#[derive(Debug, PartialEq, Eq)]
pub enum Expected {
    Held,
    Complete(Vec<u8>, Ecn),
    Refused(DropReason),
}

impl Model {
    pub fn take(&mut self, cut: &Cut, now: Timestamp, settings: &Settings) -> Expected {
        let key = &cut.piece.key;
        let sent = self.sent.entry(key.source).or_default();
        *sent += 1;
        let sent = *sent;
        let id = (key.source, key.destination, key.id(), key.protocol());
        let seconds = if key.family() == Family::V4 { settings.v4.time } else { settings.v6.time };
        let forgotten = self.datagrams.get(&id).is_some_and(|datagram| {
            let wrapped = key.family() == Family::V4
                && sent - datagram.grown_at > u64::from(settings.max_dist);
            now.since(datagram.born) >= Duration::from_secs(seconds.into()) || wrapped
        });
        if forgotten {
            self.datagrams.remove(&id);
        }
        let datagram = self.datagrams.entry(id).or_insert_with(|| Datagram::new(now));
        if let Some(reason) = datagram.dead {
            datagram.grown_at = sent;
            return Expected::Refused(reason);
        }
        if let Err(reason) = datagram.accept(cut) {
            if reason != DropReason::FragDuplicate {
                datagram.dead = Some(reason);
            }
            return Expected::Refused(reason);
        }
        datagram.grown_at = sent;
        let whole = datagram.whole();
        if let Some(bytes) = whole {
            let ecn = datagram.merged_ecn();
            self.datagrams.remove(&id);
            return Expected::Complete(bytes, ecn);
        }
        Expected::Held
    }
}

impl Datagram {
    fn new(born: Timestamp) -> Self {
        let (bytes, ecn) = (Vec::new(), Vec::new());
        Self { born, bytes, end: None, ecn, first_ecn: Ecn::NotEct, dead: None, grown_at: 0 }
    }

    fn accept(&mut self, cut: &Cut) -> Result<(), DropReason> {
        let start = usize::from(cut.piece.offset);
        let end = start + cut.payload.len();
        let reach = self.bytes.len();
        match (cut.piece.more, self.end) {
            (true, Some(known)) if end >= known => return Err(DropReason::FragEnd),
            (false, Some(known)) if end != known => return Err(DropReason::FragEnd),
            (false, None) if end <= reach => return Err(DropReason::FragEnd),
            _ => {}
        }
        let have = (start..end).filter(|&at| matches!(self.bytes.get(at), Some(Some(_)))).count();
        if have == end - start {
            return Err(DropReason::FragDuplicate);
        }
        if have > 0 {
            return Err(DropReason::FragOverlap);
        }
        let mixed = |other: &Ecn| (*other == Ecn::NotEct) != (cut.piece.ecn == Ecn::NotEct);
        if self.ecn.iter().any(mixed) {
            return Err(DropReason::FragEcn);
        }
        self.bytes.resize(reach.max(end), None);
        for (place, byte) in self.bytes[start..end].iter_mut().zip(&cut.payload) {
            *place = Some(*byte);
        }
        if !cut.piece.more {
            self.end = Some(end);
        }
        if start == 0 {
            self.first_ecn = cut.piece.ecn;
        }
        self.ecn.push(cut.piece.ecn);
        Ok(())
    }

    fn whole(&self) -> Option<Vec<u8>> {
        self.end?;
        self.bytes.iter().copied().collect()
    }

    fn merged_ecn(&self) -> Ecn {
        if self.ecn.contains(&Ecn::Ce) { Ecn::Ce } else { self.first_ecn }
    }
}
