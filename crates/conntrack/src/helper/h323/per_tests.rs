use super::*;

fn all(bytes: &[u8]) -> Per<'_> {
    Per::new(bytes, 100)
}

#[test]
fn whole_numbers_take_the_room_of_their_range() {
    // A range of one value takes no bits.
    assert_eq!(all(&[]).whole(7, 7), Ok(7));
    // A bit field, not aligned.
    let mut per = all(&[0b1010_0011, 0b1000_0000]);
    assert_eq!((per.whole(1, 8), per.whole(0, 18)), (Ok(6), Ok(3)));
    assert_eq!((per.bit(), per.place()), (Ok(true), 102));
    assert_eq!(all(&[0xfe]).whole(0, 254), Ok(254));
    // A range of 256 values takes an aligned octet, a larger one two.
    let mut per = all(&[0x80, 0xff, 0x80, 0x01, 0x02]);
    assert_eq!((per.bit(), per.whole(1, 256)), (Ok(true), Ok(256)));
    assert_eq!((per.bit(), per.whole(0, 511)), (Ok(true), Ok(0x102)));
    // A still larger range: the number of octets in a bit field, then the octets.
    let mut per = all(&[0x40, 1, 0, 0xc0, 0xff, 0xff, 0xff, 0xff]);
    assert_eq!(per.whole(0, 0xffff_ffff), Ok(256));
    assert_eq!(per.whole(0, 0xffff_ffff), Ok(0xffff_ffff));
    assert_eq!(all(&[0x80, 1, 0, 0]).whole(0, 65536), Ok(65536));
}

#[test]
fn missing_values_and_values_out_of_range_are_unreadable() {
    assert_eq!(all(&[0b1110_0000]).whole(0, 4), Err(Unreadable));
    assert_eq!(all(&[1]).whole(0, 256), Err(Unreadable));
    assert_eq!(all(&[]).whole(0, 1), Err(Unreadable));
    assert_eq!(all(&[0x80, 1, 0, 1]).whole(0, 65536), Err(Unreadable));
    assert_eq!(all(&[0xc1]).contained().err(), Some(Unreadable));
    assert_eq!(all(&[2, 0]).contained().err(), Some(Unreadable));
    assert_eq!(all(&[0xa0, 9, 0]).small(), Err(Unreadable));
    assert_eq!(all(&[0xff; 40]).small(), Err(Unreadable));
}

#[test]
fn lengths_are_short_or_long() {
    let long = [&[0x81, 0x2c][..], &[9; 300]].concat();
    for (bytes, length, place) in [(&[0u8][..], 0, 101), (&[1, 7], 1, 101), (&long, 300, 102)] {
        let mut per = all(bytes);
        let contained = per.contained().unwrap();
        assert_eq!((contained.bytes.len(), contained.place()), (length, place));
        assert_eq!(per.place(), 100 + bytes.len());
    }
}

#[test]
fn digits_end_inside_an_octet() {
    let mut per = all(&[0x80, 0x12, 0x3f]);
    per.bit().unwrap();
    per.nibbles(3).unwrap();
    assert_eq!(per.bits(4), Ok(0xf));
}

#[test]
fn choices_end_or_go_on_behind_the_marker() {
    assert!(matches!(all(&[0b0110_0000]).choice(7), Ok(Choice::Root(6))));
    assert!(matches!(all(&[0b0111_0000]).choice(7), Err(Unreadable)));
    let mut per = all(&[0b1000_0010, 2, 0xaa, 0xbb, 0x80]);
    let Ok(Choice::Added(2, mut added)) = per.choice(7) else { panic!() };
    assert_eq!((added.octets(2), per.bit()), (Ok(&[0xaa, 0xbb][..]), Ok(true)));
    // A large index: a length, then the number.
    let Ok(Choice::Added(64, added)) = all(&[0xc0, 1, 64, 0]).choice(7) else { panic!() };
    assert!(added.bytes.is_empty());
}

#[test]
fn additions_come_one_by_one() {
    // Four additions; the first and the last are present.
    let mut per = all(&[0b0000_0111, 0b0010_0000, 1, 5, 2, 6, 7, 0xff]);
    let mut seen = Vec::new();
    let each = |index, mut added: Per<'_>| {
        seen.push((index, added.octets(1)?[0]));
        Ok(())
    };
    assert_eq!(per.additions(true, each), Ok(()));
    assert_eq!((seen, per.place()), (vec![(0, 5), (3, 6)], 107));
    assert_eq!(per.skip_additions(false), Ok(()));
    // More than 64 have a length of their own.
    let many = [&[0x80, 65][..], &[0; 8], &[0x80, 1, 9]].concat();
    let mut per = all(&many);
    let mut seen = Vec::new();
    let each = |index, _: Per<'_>| {
        seen.push(index);
        Ok(())
    };
    assert_eq!((per.additions(true, each), seen, per.place()), (Ok(()), vec![64], 113));
}
