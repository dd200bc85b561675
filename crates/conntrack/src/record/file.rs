//! Many records in a row: in a batch, with their lengths, and in a file, whose end tells that nothing
//! is missing.
//!
//! ```text
//! file:  "STATEWAY-RECORDS" | version of the file 1 | batch | 0 | number of records 8 | checksum 8
//! batch: length varint, record; length varint, record; ...
//! ```
//!
//! The checksum is SipHash-1-3 with a key of 0 over all bytes in front of it. It finds damage, not
//! forgery: a person who may load a file may make any connection.

use std::hash::Hasher;

use siphasher::sip::SipHasher13;

use super::ConnectionRecord;
use crate::codec::{DecodeError, Reader, Write, prefixed};

/// The first bytes of a file.
const MAGIC: &[u8; 16] = b"STATEWAY-RECORDS";
/// The version of files that this program writes, and the only one that it reads.
const FILE_VERSION: u8 = 1;
/// Bytes behind the last record: the number of records and the checksum.
const TRAILER: usize = 16;

impl ConnectionRecord {
    /// Appends the record to a batch.
    pub fn encode_in_batch(&self, to: &mut Vec<u8>) {
        prefixed(to, |to| self.encode(to));
    }
}

/// Appends the bytes of a record to a batch.
pub fn push_to_batch(record: &[u8], to: &mut Vec<u8>) {
    to.varint(record.len() as u64);
    to.bytes(record);
}

/// The length of the whole records at the start of a batch that may be cut off, and how many they
/// are. It stops in front of the end of an export.
pub fn whole_records(bytes: &[u8]) -> (usize, u64) {
    let mut batch = Batch::new(bytes);
    let (mut length, mut records) = (0, 0);
    while let Some(Ok(_)) = batch.next() {
        length = Reader::new(bytes).before(&batch.0).len();
        records += 1;
    }
    (length, records)
}

/// The end of an export: an empty record, and the number of records.
pub fn end_of_export(records: u64) -> Vec<u8> {
    let mut end = vec![0];
    end.u64(records);
    end
}

/// The records of a batch, as bytes. It ends with the first error.
#[derive(Clone, Debug)]
pub struct Batch<'a>(Reader<'a>);

impl<'a> Batch<'a> {
    /// The records in these bytes.
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self(Reader::new(bytes))
    }

    fn take(&mut self) -> Result<&'a [u8], DecodeError> {
        let length = usize::try_from(self.0.varint()?).map_err(|_| DecodeError::Cut)?;
        if length == 0 {
            return Err(DecodeError::Impossible("an empty record"));
        }
        self.0.bytes(length)
    }
}

impl<'a> Iterator for Batch<'a> {
    type Item = Result<&'a [u8], DecodeError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let record = self.take();
        if record.is_err() {
            self.0 = Reader::new(&[]);
        }
        Some(record)
    }
}

/// Writes a file of records.
#[derive(Clone, Debug)]
pub struct RecordFileWriter {
    checksum: SipHasher13,
    count: u64,
}

impl RecordFileWriter {
    /// Begins a file, and returns its first bytes.
    pub fn begin() -> (Self, Vec<u8>) {
        let mut writer = Self { checksum: SipHasher13::new_with_keys(0, 0), count: 0 };
        let mut head = MAGIC.to_vec();
        head.u8(FILE_VERSION);
        writer.checksum.write(&head);
        (writer, head)
    }

    /// Counts a batch of so many records, which goes into the file as it is.
    pub fn add(&mut self, batch: &[u8], records: u64) {
        self.checksum.write(batch);
        self.count += records;
    }

    /// Number of records so far.
    pub const fn count(&self) -> u64 {
        self.count
    }

    /// The last bytes of the file.
    pub fn end(mut self) -> Vec<u8> {
        let mut trailer = end_of_export(self.count);
        self.checksum.write(&trailer);
        trailer.u64(self.checksum.finish());
        trailer
    }
}

/// Why bytes are no file of records.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordFileError {
    /// It begins in another way.
    #[error("it is no file of connections")]
    Other,
    /// Another program, or a newer one, has written it.
    #[error("it has version {0}, and only version {FILE_VERSION} is known here")]
    Version(u8),
    /// The end is missing.
    #[error("its end is missing")]
    Cut,
    /// Some bytes are not those that were written.
    #[error("it is damaged: its checksum does not fit")]
    Damaged,
    /// It is whole, but the records in it are not those that it counts.
    #[error("it is damaged: {0}")]
    Records(DecodeError),
    /// The records in it are not as many as it says.
    #[error("it is damaged: it counts {told} connections and has {found}")]
    Count {
        /// As many as it says.
        told: u64,
        /// As many as there are.
        found: u64,
    },
}

/// The records of a whole and undamaged file, each as bytes. They are not decoded.
///
/// # Errors
/// [`RecordFileError`].
pub fn records_in_file(file: &[u8]) -> Result<Vec<&[u8]>, RecordFileError> {
    let Some(rest) = file.strip_prefix(MAGIC) else {
        let is_begun = MAGIC.starts_with(file) && !file.is_empty();
        return Err(if is_begun { RecordFileError::Cut } else { RecordFileError::Other });
    };
    let Some((&version, rest)) = rest.split_first() else { return Err(RecordFileError::Cut) };
    if version != FILE_VERSION {
        return Err(RecordFileError::Version(version));
    }
    let Some((batch, trailer)) = rest.split_last_chunk::<{ TRAILER + 1 }>() else {
        return Err(RecordFileError::Cut);
    };
    let mut trailer = Reader::new(trailer);
    let read = (trailer.u8(), trailer.u64(), trailer.u64());
    let (Ok(end), Ok(told), Ok(checksum)) = read else { return Err(RecordFileError::Cut) };
    let mut hasher = SipHasher13::new_with_keys(0, 0);
    hasher.write(&file[..file.len() - size_of::<u64>()]);
    if hasher.finish() != checksum {
        // A file that was cut has no end mark in front of its last bytes.
        let is_cut = end != 0 || Batch::new(batch).any(|record| record.is_err());
        return Err(if is_cut { RecordFileError::Cut } else { RecordFileError::Damaged });
    }
    let records: Vec<_> =
        Batch::new(batch).collect::<Result<_, _>>().map_err(RecordFileError::Records)?;
    let found = records.len() as u64;
    if found != told {
        return Err(RecordFileError::Count { told, found });
    }
    Ok(records)
}

#[cfg(test)]
#[path = "file_tests.rs"]
mod tests;
