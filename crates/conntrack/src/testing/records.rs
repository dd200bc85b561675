//! Records as bytes, and bytes with changes.

use proptest::prelude::*;
use proptest::sample::Index;

use crate::ConnectionRecord;

pub fn bytes_of(record: &ConnectionRecord) -> Vec<u8> {
    let mut bytes = Vec::new();
    record.encode(&mut bytes);
    bytes
}

/// Places in a record, and the bytes that are put there.
pub fn flips() -> impl Strategy<Value = Vec<(Index, u8)>> {
    prop::collection::vec((any::<Index>(), any::<u8>()), 1..4)
}

/// Puts other bytes in their places.
pub fn flip(bytes: &mut [u8], flips: &[(Index, u8)]) {
    for (at, byte) in flips {
        bytes[at.index(bytes.len())] = *byte;
    }
}

/// Checks that a record is written as it was read, so that nothing has two forms: only fields that
/// may be left out are missing.
pub fn check_one_form(bytes: &[u8], read: &ConnectionRecord) -> Result<(), TestCaseError> {
    let again = bytes_of(read);
    prop_assert!(again == bytes || bytes.len() > again.len(), "{:?} {:?}", bytes, again);
    let read_again = ConnectionRecord::decode(&again);
    prop_assert_eq!(read_again.as_ref(), Ok(read));
    Ok(())
}
