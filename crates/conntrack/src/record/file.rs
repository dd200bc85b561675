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
use flow::codec::{DecodeError, Reader, Write, prefixed};

/// The first bytes of a file.
const MAGIC: &[u8; 16] = b"STATEWAY-RECORDS";
/// The version of files that this program writes, and the only one that it reads.
const FILE_VERSION: u8 = 1;
/// Longest record in a file, bytes. None is nearly as long.
pub const LONGEST_RECORD: u64 = 64 * 1024;

impl ConnectionRecord {
    /// Appends the record to a batch.
    pub fn encode_in_batch(&self, to: &mut Vec<u8>) {
        prefixed(to, |to| self.encode(to));
    }
}

/// Appends the bytes of a record to a batch.
pub fn push_to_batch(record: &[u8], to: &mut Vec<u8>) {
    prefixed(to, |to| to.bytes(record));
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
        let record = self.0.prefixed()?;
        if record.is_empty() { Err(DecodeError::Impossible("an empty record")) } else { Ok(record) }
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
    #[error("it is damaged")]
    Damaged,
    /// The records in it are not as many as it says.
    #[error("it is damaged: it counts {total} records and has {found}")]
    Count {
        /// As many as it says.
        total: u64,
        /// As many as there are.
        found: u64,
    },
}

/// Reads a file of records in pieces, so that no more than a piece and a record have to be in memory.
/// Only the [end](Self::end) tells that nothing is missing or damaged.
#[derive(Clone, Debug)]
pub struct RecordFileReader {
    at: Part,
    checksum: SipHasher13,
    /// Bytes of something that is not whole yet.
    pending: Vec<u8>,
    count: u64,
}

/// The part of a file that comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Head,
    Record,
    Trailer,
    Nothing,
}

impl Default for RecordFileReader {
    fn default() -> Self {
        let checksum = SipHasher13::new_with_keys(0, 0);
        Self { at: Part::Head, checksum, pending: Vec::new(), count: 0 }
    }
}

impl RecordFileReader {
    /// Takes the next bytes of the file, and shows the records that are whole now to `each`. They
    /// are not decoded.
    ///
    /// # Errors
    /// [`RecordFileError`]: the reader can not go on.
    pub fn push(
        &mut self,
        bytes: &[u8],
        each: &mut dyn FnMut(&[u8]),
    ) -> Result<(), RecordFileError> {
        self.pending.extend_from_slice(bytes);
        let pending = std::mem::take(&mut self.pending);
        let mut from = Reader::new(&pending);
        while self.read_part(&mut from, each)? {}
        self.pending = from.rest().to_vec();
        Ok(())
    }

    /// Reads what comes next; false if its bytes are not all there.
    fn read_part(
        &mut self,
        from: &mut Reader<'_>,
        each: &mut dyn FnMut(&[u8]),
    ) -> Result<bool, RecordFileError> {
        let start = from.clone();
        match self.at {
            Part::Head => {
                let Ok(head) = from.bytes(MAGIC.len() + 1) else {
                    let begun = from.clone().rest();
                    let is_it = MAGIC.starts_with(&begun[..begun.len().min(MAGIC.len())]);
                    return if is_it { Ok(false) } else { Err(RecordFileError::Other) };
                };
                match head.strip_prefix(MAGIC) {
                    Some([FILE_VERSION]) => self.at = Part::Record,
                    Some([version, ..]) => return Err(RecordFileError::Version(*version)),
                    _ => return Err(RecordFileError::Other),
                }
            }
            Part::Record => {
                let length = match from.varint() {
                    Ok(length) if length <= LONGEST_RECORD => length as usize,
                    Err(DecodeError::Cut) => {
                        *from = start;
                        return Ok(false);
                    }
                    _ => return Err(RecordFileError::Damaged),
                };
                let Ok(record) = from.bytes(length) else {
                    *from = start;
                    return Ok(false);
                };
                if length == 0 {
                    self.at = Part::Trailer;
                } else {
                    self.count += 1;
                    each(record);
                }
            }
            Part::Trailer => {
                let (Ok(total), Ok(checksum)) = (from.u64(), from.u64()) else {
                    *from = start;
                    return Ok(false);
                };
                self.checksum.write(&total.to_be_bytes());
                if self.checksum.finish() != checksum {
                    return Err(RecordFileError::Damaged);
                }
                if total != self.count {
                    return Err(RecordFileError::Count { total, found: self.count });
                }
                self.at = Part::Nothing;
                return Ok(true);
            }
            Part::Nothing if from.is_empty() => return Ok(false),
            Part::Nothing => return Err(RecordFileError::Damaged),
        }
        self.checksum.write(start.before(from));
        Ok(true)
    }

    /// The number of records, if the file was whole and undamaged.
    ///
    /// # Errors
    /// [`RecordFileError`]: its end is missing.
    pub fn end(self) -> Result<u64, RecordFileError> {
        match self.at {
            Part::Nothing => Ok(self.count),
            Part::Head if self.pending.is_empty() => Err(RecordFileError::Other),
            _ => Err(RecordFileError::Cut),
        }
    }
}

#[cfg(test)]
#[path = "file_tests.rs"]
mod tests;
