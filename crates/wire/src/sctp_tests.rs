use proptest::prelude::*;

use super::*;

fn walk(bytes: &[u8]) -> Vec<Result<Chunk<'_>, Malformed>> {
    Chunks { rest: bytes }.collect()
}

fn chunk(kind: u8, flags: u8, value: &[u8]) -> Result<Chunk<'_>, Malformed> {
    Ok(Chunk { kind, flags, value })
}

#[test]
fn chunks_come_in_order_without_their_padding() {
    let bytes = [10, 0, 0, 6, b'a', b'b', 0, 0, 0, 3, 0, 4, 6, 1, 0, 5, 9];
    assert_eq!(walk(&bytes), [chunk(10, 0, b"ab"), chunk(0, 3, &[]), chunk(6, 1, &[9])]);
    assert_eq!(walk(&[]), []);
    assert_eq!(walk(&[0, 0, 0, 4, 1, 2, 3]), [chunk(0, 0, &[])], "three bytes of padding");
}

#[test]
fn a_length_that_does_not_fit_ends_the_walk() {
    for length in [0, 1, 3, 9, 255] {
        let bytes = [3, 0, 0, 4, 0, 0, 0, length, 0, 0, 0, 4];
        assert_eq!(walk(&bytes), [chunk(3, 0, &[]), Err(Malformed::Sctp)], "{length}");
    }
    let longest = [0, 0, 0xff, 0xff];
    assert_eq!(walk(&longest), [Err(Malformed::Sctp)]);
}

#[test]
fn an_initiate_tag_needs_all_fixed_fields_and_is_not_zero() {
    let tag = |value| Chunk { kind: chunk_type::INIT, flags: 0, value }.initiate_tag();
    let fields = [0, 0, 1, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    assert_eq!(tag(&fields).map(NonZeroU32::get), Ok(258));
    assert_eq!(tag(&fields[..15]), Err(Malformed::Sctp));
    assert_eq!(tag(&[0; 16]), Err(Malformed::Sctp));
}

proptest! {
    #[test]
    fn any_bytes_are_walked_to_their_end(bytes in proptest::collection::vec(0u8..8, 0..200)) {
        let chunks = walk(&bytes);
        prop_assert!(chunks.len() <= bytes.len() / 4);
        let errors = chunks.iter().filter(|chunk| chunk.is_err()).count();
        prop_assert!(errors == 0 || (errors == 1 && chunks.last().is_some_and(Result::is_err)));
    }
}
