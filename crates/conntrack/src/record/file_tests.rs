use wire::Family;

use super::*;
use crate::testing::{Lab, udp};

fn some_records() -> Vec<ConnectionRecord> {
    let mut lab = Lab::new();
    for host in 1..5 {
        lab.track(&udp(Family::V4, (host, 1), (9, 53)));
        lab.track(&udp(Family::V6, (host, 1), (9, 53)));
    }
    lab.records()
}

/// A file that was written in two batches.
fn file_of(records: &[ConnectionRecord]) -> Vec<u8> {
    let (mut writer, mut file) = RecordFileWriter::begin();
    for some in records.chunks(5) {
        let mut batch = Vec::new();
        some.iter().for_each(|record| record.encode_in_batch(&mut batch));
        writer.add(&batch, some.len() as u64);
        file.extend(batch);
    }
    assert_eq!(writer.count(), records.len() as u64);
    file.extend(writer.end());
    file
}

/// The records of a file that is read in pieces of this length.
fn records_in(file: &[u8], piece: usize) -> Result<Vec<Vec<u8>>, RecordFileError> {
    let (mut reader, mut records) = (RecordFileReader::default(), Vec::new());
    for piece in file.chunks(piece) {
        reader.push(piece, &mut |record| records.push(record.to_vec()))?;
    }
    let count = reader.end()?;
    assert_eq!(count, records.len() as u64);
    Ok(records)
}

fn records_in_file(file: &[u8]) -> Result<Vec<Vec<u8>>, RecordFileError> {
    records_in(file, usize::MAX)
}

#[test]
fn a_file_may_be_read_in_any_pieces() {
    let file = file_of(&some_records());
    let whole = records_in_file(&file).unwrap();
    for piece in 1..file.len() {
        assert_eq!(records_in(&file, piece).as_ref(), Ok(&whole), "{piece}");
        for end in 0..file.len() {
            assert!(records_in(&file[..end], piece).is_err(), "{piece} {end}");
        }
    }
    // A record of any length that a file may have, and one that is longer.
    for (length, is_one) in [(LONGEST_RECORD, true), (LONGEST_RECORD + 1, false)] {
        let (mut writer, mut file) = RecordFileWriter::begin();
        let mut batch = Vec::new();
        push_to_batch(&vec![7; length as usize], &mut batch);
        writer.add(&batch, 1);
        file.extend(batch);
        file.extend(writer.end());
        assert_eq!(records_in(&file, 1000).is_ok(), is_one);
    }
    // A file that counts wrongly, as its writer did.
    let (mut writer, mut file) = RecordFileWriter::begin();
    writer.add(&[], 3);
    file.extend(writer.end());
    assert_eq!(records_in_file(&file), Err(RecordFileError::Count { total: 3, found: 0 }));
}

#[test]
fn a_file_has_what_was_written() {
    for count in [0, 8] {
        let records = &some_records()[..count];
        let file = file_of(records);
        let read = records_in_file(&file).unwrap();
        let read: Vec<_> = read.iter().map(|it| ConnectionRecord::decode(it).unwrap()).collect();
        assert_eq!(read, records);
    }
}

#[test]
fn a_file_with_any_other_byte_or_end_is_refused() {
    let file = file_of(&some_records());
    for end in 0..file.len() {
        let error = records_in_file(&file[..end]).unwrap_err();
        let expected = if end == 0 { RecordFileError::Other } else { RecordFileError::Cut };
        assert!(error == expected || error == RecordFileError::Damaged, "{end}: {error}");
    }
    for at in 0..file.len() {
        let mut other = file.clone();
        other[at] ^= 0x40;
        let error = records_in_file(&other).unwrap_err();
        let expected = match at {
            0..16 => RecordFileError::Other,
            16 => RecordFileError::Version(0x41),
            _ => RecordFileError::Damaged,
        };
        assert!(error == expected || error == RecordFileError::Cut, "{at}: {error}");
    }
    let longer = [&file[..], &[0]].concat();
    assert!(records_in_file(&longer).is_err());
}

#[test]
fn a_batch_ends_with_its_first_error() {
    let mut batch = Vec::new();
    some_records().iter().for_each(|record| record.encode_in_batch(&mut batch));
    assert_eq!(Batch::new(&batch).filter(Result::is_ok).count(), 8);
    let cut = &batch[..batch.len() - 1];
    let read: Vec<_> = Batch::new(cut).collect();
    assert_eq!((read.len(), read[7].clone()), (8, Err(DecodeError::Cut)));
    batch.insert(0, 0);
    let read: Vec<_> = Batch::new(&batch).collect();
    assert_eq!(read, [Err(DecodeError::Impossible("an empty record"))]);
}

#[test]
fn a_long_record_has_a_long_length() {
    let mut record = some_records().remove(0);
    record.policy = None;
    record.helper = None;
    record.labels = crate::Labels::ALL;
    record.counts = Some([crate::Counts { packets: u64::MAX, bytes: u64::MAX }; 2]);
    record.age = Some(crate::Millis::LONGEST);
    record.original.key.zone = flow::Zone(9);
    record.mark = 5;
    let mut batch = Vec::new();
    record.encode_in_batch(&mut batch);
    record.encode_in_batch(&mut batch);
    let read: Vec<_> =
        Batch::new(&batch).map(|it| ConnectionRecord::decode(it.unwrap()).unwrap()).collect();
    assert_eq!(read, [record.clone(), record]);
}

#[test]
fn a_batch_that_is_cut_has_its_whole_records() {
    let (mut batch, mut ends) = (Vec::new(), vec![0]);
    for record in some_records() {
        record.encode_in_batch(&mut batch);
        ends.push(batch.len());
    }
    // A length of two bytes may be cut as well.
    push_to_batch(&[7; 300], &mut batch);
    ends.push(batch.len());
    let mut bytes = batch;
    bytes.extend(end_of_export(9));
    for cut in 0..=bytes.len() {
        let records = ends.iter().filter(|end| **end <= cut).count() - 1;
        assert_eq!(whole_records(&bytes[..cut]), (ends[records], records as u64), "{cut}");
    }
}
