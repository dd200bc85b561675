//! The bytes of what a new process takes over: a sequence of items, each with its kind and length.

use conntrack::{Change, ConnectionRecord, DecodeError, decode_flow, encode_flow};
use flow::KeyedPacket;
use flow::codec::{Millis, Reader, Write, prefixed};
use flow::replica::Told;
use netio::PortId;
use ruleset::{Counted, Progress, QuotaProgress};

use crate::control::record::SharedRecord;
use crate::path::rules::worker_rules::RuleCounts;

/// Kinds of items.
const STATE: u8 = 0;
const END: u8 = 1;
const SHARED_STATE: u8 = 2;
const SHARED_END: u8 = 3;
const RULES: u8 = 4;
const STATIONS: u8 = 5;
const RULES_PART: u8 = 6;

/// Bytes of a part of the progress of rules: some 60,000 counters.
pub const RULES_PART_BYTES: usize = 512 << 10;

/// Something that a new process has to know.
#[derive(Debug)]
pub enum Item {
    /// A connection has this state.
    State(Box<ConnectionRecord>),
    /// The connection whose originator sends such packets has ended.
    End(KeyedPacket),
    /// Something that workers share has this state.
    SharedState(SharedRecord),
    /// The thing that the record names has ended.
    SharedEnd(SharedRecord),
    /// A part of the bytes that say how far the rules have come. It is true for the last one.
    Rules(Vec<u8>, bool),
    /// Stations of a bridge.
    Stations(Vec<HeardStation>),
}

/// A station of a bridge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeardStation {
    /// The station.
    pub station: [u8; 6],
    /// The port behind which it is, of the process that runs.
    pub port: PortId,
    /// The time since it was heard.
    pub age: Millis,
}

/// How far the rules of a gateway have come.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuleProgress {
    /// The counts of all workers.
    pub counts: RuleCounts,
    /// Those at the last reset.
    pub reset_at: Option<RuleCounts>,
    /// Rates and quotas.
    pub shared: Progress,
}

/// Appends a change of a connection.
pub fn write_change(change: &Change, to: &mut Vec<u8>) {
    match change {
        Change::State { record, .. } => {
            to.u8(STATE);
            prefixed(to, |to| record.encode(to));
        }
        Change::End { original, .. } => {
            to.u8(END);
            prefixed(to, |to| encode_flow(original, to));
        }
    }
}

/// Appends a change of something that workers share.
pub fn write_shared(told: &Told<SharedRecord>, to: &mut Vec<u8>) {
    let (kind, record) = match told {
        Told::State { record, .. } => (SHARED_STATE, record),
        Told::End { name, .. } => (SHARED_END, name),
    };
    to.u8(kind);
    prefixed(to, |to| record.encode(to));
}

/// Appends a part of the bytes of [`rules_bytes`].
pub fn write_rules_part(part: &[u8], is_last: bool, to: &mut Vec<u8>) {
    to.u8(if is_last { RULES } else { RULES_PART });
    prefixed(to, |to| to.bytes(part));
}

/// The bytes of the progress of rules.
pub fn rules_bytes(progress: &RuleProgress) -> Vec<u8> {
    let mut body = Vec::new();
    write_counts(&mut body, &progress.counts);
    body.option(progress.reset_at.as_ref(), write_counts);
    body.varint(progress.shared.rates.len() as u64);
    progress.shared.rates.iter().for_each(|credit| body.varint(*credit));
    body.varint(progress.shared.quotas.len() as u64);
    for QuotaProgress { all, left, is_used_up } in &progress.shared.quotas {
        body.varint(*all);
        body.varint(*left);
        body.flag(*is_used_up);
    }
    body
}

fn write_counts(to: &mut Vec<u8>, counts: &RuleCounts) {
    to.varint(counts.counters.len() as u64);
    for Counted { packets, bytes } in &counts.counters {
        to.varint(*packets);
        to.varint(*bytes);
    }
    to.varint(counts.quotas.len() as u64);
    counts.quotas.iter().for_each(|used| to.varint(*used));
    to.varint(counts.refused_elements);
    to.varint(counts.unwritten_lines);
}

/// Reads the progress of rules.
///
/// # Errors
/// [`DecodeError`].
pub fn read_rules(body: &[u8]) -> Result<RuleProgress, DecodeError> {
    let mut from = Reader::new(body);
    let counts = read_counts(&mut from)?;
    let reset_at = from.option(read_counts)?;
    let rates = read_many(&mut from, |from| from.varint())?;
    let quotas = read_many(&mut from, |from| {
        let (all, left) = (from.varint()?, from.varint()?);
        Ok(QuotaProgress { all, left, is_used_up: from.flag()? })
    })?;
    match from.is_empty() {
        true => Ok(RuleProgress { counts, reset_at, shared: Progress { rates, quotas } }),
        false => Err(DecodeError::Impossible("bytes behind the progress of rules")),
    }
}

fn read_counts(from: &mut Reader<'_>) -> Result<RuleCounts, DecodeError> {
    let counters =
        read_many(from, |from| Ok(Counted { packets: from.varint()?, bytes: from.varint()? }))?;
    let quotas = read_many(from, |from| from.varint())?;
    let (refused_elements, unwritten_lines) = (from.varint()?, from.varint()?);
    Ok(RuleCounts { counters, quotas, refused_elements, unwritten_lines })
}

/// Reads values with their number in front. Nothing is allocated that does not come.
fn read_many<T>(
    from: &mut Reader<'_>,
    mut read: impl FnMut(&mut Reader<'_>) -> Result<T, DecodeError>,
) -> Result<Vec<T>, DecodeError> {
    let (count, mut values) = (from.varint()?, Vec::new());
    for _ in 0..count {
        values.push(read(from)?);
    }
    Ok(values)
}

/// Appends stations of a bridge, of which there are some thousands at most.
pub fn write_stations(stations: &[HeardStation], to: &mut Vec<u8>) {
    to.u8(STATIONS);
    prefixed(to, |to| {
        for HeardStation { station, port, age } in stations {
            to.bytes(station);
            to.u16(port.0);
            to.varint(age.duration().as_millis() as u64);
        }
    });
}

fn read_stations(body: &[u8]) -> Result<Vec<HeardStation>, DecodeError> {
    let (mut from, mut stations) = (Reader::new(body), Vec::new());
    while !from.is_empty() {
        let (station, port) = (from.array()?, PortId(from.u16()?));
        stations.push(HeardStation { station, port, age: Millis::read(&mut from)? });
    }
    Ok(stations)
}

/// Reads all items.
///
/// # Errors
/// [`DecodeError`]: no gateway writes such bytes, or this program does not know what they contain.
pub fn read_all(bytes: &[u8]) -> Result<Vec<Item>, DecodeError> {
    let (mut from, mut items) = (Reader::new(bytes), Vec::new());
    while !from.is_empty() {
        let kind = from.u8()?;
        let body = from.prefixed()?;
        items.push(match kind {
            STATE => Item::State(Box::new(ConnectionRecord::decode(body)?)),
            END => Item::End(decode_flow(body)?),
            SHARED_STATE => Item::SharedState(SharedRecord::decode(body)?),
            SHARED_END => Item::SharedEnd(SharedRecord::decode(body)?),
            STATIONS => Item::Stations(read_stations(body)?),
            RULES | RULES_PART => Item::Rules(body.to_vec(), kind == RULES),
            other => return Err(DecodeError::Kind(other)),
        });
    }
    Ok(items)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn progress() -> RuleProgress {
        let counted = |packets| Counted { packets, bytes: 100 * packets };
        let counts = RuleCounts {
            counters: vec![counted(1), counted(u64::MAX / 100)],
            quotas: vec![7],
            refused_elements: 1,
            unwritten_lines: 2,
        };
        let quota = QuotaProgress { all: 1 << 40, left: 5, is_used_up: true };
        let shared = Progress { rates: vec![0, u64::MAX], quotas: vec![quota] };
        RuleProgress { reset_at: Some(counts.clone()), counts, shared }
    }

    #[test]
    fn the_progress_of_rules_is_read_as_it_was_written() {
        for progress in [progress(), RuleProgress::default()] {
            let bytes = rules_bytes(&progress);
            assert_eq!(read_rules(&bytes), Ok(progress));
            for end in 0..bytes.len() {
                assert!(read_rules(&bytes[..end]).is_err(), "up to {end}");
            }
        }
    }

    #[test]
    fn stations_are_read_as_they_were_written() {
        let heard = |last, age| {
            let age = Millis::of(std::time::Duration::from_millis(age));
            HeardStation { station: [2, 0, 0, 0, 0, last], port: PortId(last.into()), age }
        };
        let (stations, mut bytes) = (vec![heard(1, 0), heard(2, 70_000)], Vec::new());
        write_stations(&stations, &mut bytes);
        let items = read_all(&bytes).unwrap();
        assert!(matches!(&items[..], [Item::Stations(read)] if *read == stations), "{items:?}");
    }

    #[test]
    fn parts_of_the_progress_of_rules_are_read_as_they_were_written() {
        let mut bytes = Vec::new();
        write_rules_part(&[1, 2, 3], false, &mut bytes);
        write_rules_part(&[4], true, &mut bytes);
        let items = read_all(&bytes).unwrap();
        let [Item::Rules(first, false), Item::Rules(last, true)] = &items[..] else {
            panic!("{items:?}");
        };
        assert_eq!((&first[..], &last[..]), (&[1, 2, 3][..], &[4][..]));
        for end in [1, 4, 6, 7] {
            assert!(read_all(&bytes[..end]).is_err(), "up to {end}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_items_or_refused(bytes in prop::collection::vec(0_u8..10, 0..100)) {
            // Most bytes are small, so that kinds and lengths make sense.
            let _ = read_all(&bytes);
        }
    }
}
