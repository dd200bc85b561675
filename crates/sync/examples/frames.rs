//! How many frames one core seals and opens, and what a frame costs: two sessions in memory.
//!
//! `cargo run --release -p sync --example frames`

#![expect(clippy::print_stdout, reason = "it is what the example is for")]

use std::time::{Duration, Instant};

use flow::Timestamp;
use sync::{
    Config, Event, Faults, HashSecret, Identity, Likeness, NodeId, NodeName, PreSharedKey, Record,
    RecordKind, SecretRole, Seed, Session, Settings,
};

/// Length of a record without its identity.
const BODY_BYTES: usize = 60;
const RECORDS: u64 = 4_000_000;
/// Records that are offered before datagrams are taken.
const LOT: u64 = 2_000;

fn session(node: u16) -> Result<Session, Box<dyn std::error::Error>> {
    let config = Config {
        node: NodeId(node.try_into()?),
        name: NodeName::new("node")?,
        peer: None,
        follows: true,
        secret_role: SecretRole::Keeps,
        likeness: Likeness {
            hash_kind: String::new(),
            hash_secret: HashSecret::new([0; 16]),
            buckets: 256,
            translating_links: Default::default(),
            fragment_mode: String::new(),
            tunnel_mode: String::new(),
            zones: Vec::new(),
            rules: Vec::new(),
        },
        settings: Settings::default(),
        faults: Faults::default(),
    };
    let secret = PreSharedKey::new(b"no secret at all")?;
    Ok(Session::new(Timestamp::ZERO, config, secret, Seed::new([node as u8; 32])))
}

/// Carries datagrams until both ends are silent. Returns how many records arrived, how many
/// datagrams they took, and the longest one.
fn carry(now: Timestamp, ends: &mut [Session; 2], datagram: &mut Vec<u8>) -> (u64, u64, usize) {
    let (mut records, mut datagrams, mut longest, mut is_busy) = (0, 0, 0, true);
    while is_busy {
        is_busy = false;
        for at in [0, 1] {
            while ends[at].poll_transmit(now, datagram) {
                is_busy = true;
                longest = longest.max(datagram.len());
                // Neither end refuses anything of the other but a confirm that crosses its own.
                let _ = ends[1 - at].handle(now, datagram);
                let before = records;
                while let Some(event) = ends[1 - at].poll_event(now) {
                    match event {
                        Event::Records(batch) => records += batch.records().count() as u64,
                        Event::BulkAsked => _ = ends[1 - at].begin_bulk(now, 0),
                        _ => {}
                    }
                }
                datagrams += u64::from(records > before);
            }
        }
    }
    (records, datagrams, longest)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut ends = [session(1)?, session(2)?];
    let mut now = Timestamp::ZERO;
    let mut datagram = Vec::new();
    for _ in 0..400 {
        now = now.after(Duration::from_millis(1));
        carry(now, &mut ends, &mut datagram);
    }
    let body = [7; BODY_BYTES];
    let (mut offered, mut records, mut frames, mut longest) = (0, 0, 0, 0);
    let started = Instant::now();
    while offered < RECORDS {
        for key in offered..offered + LOT {
            // As they are on a gateway that has been up for a while.
            let identity = Identity { key, incarnation: 1_000_000 + key, version: 200 };
            let record = Record { identity, kind: RecordKind::Change, body: &body };
            ends[0].offer(now, &record).map_err(|error| format!("{error:?}"))?;
        }
        offered += LOT;
        now = now.after(Duration::from_millis(1));
        let (more, datagrams, bytes) = carry(now, &mut ends, &mut datagram);
        (records, frames, longest) = (records + more, frames + datagrams, longest.max(bytes));
    }
    let seconds = started.elapsed().as_secs_f64();
    let (per_s, sent) = (records as f64 / seconds, ends[0].status(now).counters.sent_frames);
    println!("{records} records in {frames} frames of up to {longest} bytes ({sent} sent)");
    println!("{:.1} records in a frame", records as f64 / frames as f64);
    println!("{:.0} frames/s and {per_s:.0} records/s sealed and opened", frames as f64 / seconds);
    Ok(())
}
