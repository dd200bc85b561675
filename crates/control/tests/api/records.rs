//! Connections as records: what one gateway sends, another takes over.

use std::sync::atomic::{AtomicBool, Ordering};

use conntrack::{Batch, ConnectionRecord};
use control::ClientError;
use control::schema::{Done, ImportedRecords};

use crate::Running;

const PATH: &str = "/v1/connections/records";
const FLOWS: u64 = 20_000;

/// All records, as a client reads them, with their end.
fn export(running: &Running) -> Vec<u8> {
    let mut bytes = Vec::new();
    running
        .client
        .chunks::<ClientError>(PATH, &mut |chunk| {
            bytes.extend_from_slice(chunk);
            Ok(())
        })
        .unwrap();
    let end = bytes.len() - 9;
    let count = u64::from_be_bytes(*bytes[end + 1..].first_chunk().unwrap());
    assert_eq!((bytes[end], count), (0, FLOWS));
    bytes.truncate(end);
    bytes
}

/// Cuts a batch into smaller ones.
fn pieces(batch: &[u8], records: usize) -> Vec<Vec<u8>> {
    let all: Vec<ConnectionRecord> =
        Batch::new(batch).map(|it| ConnectionRecord::decode(it.unwrap()).unwrap()).collect();
    let piece = |some: &[ConnectionRecord]| {
        let mut bytes = Vec::new();
        some.iter().for_each(|record| record.encode_in_batch(&mut bytes));
        bytes
    };
    all.chunks(records).map(piece).collect()
}

fn import(running: &Running, batch: Vec<u8>) -> ImportedRecords {
    running.client.post_bytes(PATH, batch).unwrap()
}

#[test]
fn records_come_back_while_buckets_move() {
    let mut running = Running::start();
    running.open_flows(FLOWS);
    let mut listed = running.lines("/v1/connections?format=conntrack").unwrap();
    let batch = export(&running);
    let forgotten: Done = running.client.delete("/v1/connections").unwrap();
    assert_eq!((forgotten.affected, running.connections()), (FLOWS, 0));
    let ends = AtomicBool::new(false);
    let mut imported = 0;
    std::thread::scope(|scope| {
        let gateway = &running.gateway;
        scope.spawn(|| {
            while !ends.load(Ordering::Relaxed) {
                for workers in [1, 3, 2] {
                    gateway.set_workers(workers).unwrap();
                }
            }
        });
        for piece in pieces(&batch, 500) {
            let said = import(&running, piece);
            assert_eq!((said.refused.len(), said.unreadable.len()), (0, 0), "{said:?}");
            imported += said.imported;
        }
        ends.store(true, Ordering::Relaxed);
    });
    assert_eq!((imported, running.connections()), (FLOWS, FLOWS));
    // The same connections, each with as much time left; some of it has passed.
    let mut again = running.lines("/v1/connections?format=conntrack").unwrap();
    for lines in [&mut listed, &mut again] {
        let timeless = |line: &String| {
            let mut words: Vec<&str> = line.split_whitespace().collect();
            words.remove(2);
            words.join(" ")
        };
        *lines = lines.iter().map(timeless).collect();
        lines.sort_unstable();
    }
    assert_eq!(listed, again);
    let said = import(&running, pieces(&batch, 500).remove(0));
    assert_eq!((said.imported, said.refused["known"]), (0, 500));
    running.stop();
}

#[test]
fn what_is_no_record_is_told_and_changes_nothing() {
    let running = Running::start();
    // A version and a kind that nobody knows, and a record that is cut off by its own length.
    let said = import(&running, vec![2, 9, 9, 1, 1, 3, 1, 200, 0]);
    assert_eq!(said.imported, 0);
    assert_eq!(said.unreadable.values().sum::<u64>(), 3, "{said:?}");
    // A length beyond the end.
    let error = running.client.post_bytes::<ImportedRecords>(PATH, vec![9, 1]).unwrap_err();
    assert!(matches!(error, ClientError::BadRequest(_)), "{error}");
    assert_eq!(running.connections(), 0);
    running.stop();
}
