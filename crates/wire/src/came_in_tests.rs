use proptest::{collection::vec, prelude::*};

use super::*;
use crate::build::PacketBuilder;
use crate::fragment::Fragments;
use crate::{Dissected, dissect};

fn network(frame: &[u8]) -> Network {
    let Ok(Dissected { network: Some(network), .. }) = dissect(frame) else {
        panic!("{frame:02x?}");
    };
    network
}

fn builder(v6: bool) -> PacketBuilder {
    if v6 {
        PacketBuilder::v6([0x20; 16], [0x21; 16])
    } else {
        PacketBuilder::v4([192, 0, 2, 1], [192, 0, 2, 2])
    }
}

/// Fragments of these lengths, one after the other; the flag tells which must not be cut.
fn fragments(v6: bool, id: u16, lengths: &[(usize, bool)]) -> Vec<Network> {
    let mut offset = 0;
    let describe = |(at, &(length, forbidden)): (usize, &(usize, bool))| {
        let builder = builder(v6).id(id.into());
        let builder = if forbidden && !v6 { builder.dont_fragment() } else { builder };
        let mut frame = Vec::new();
        let more = at + 1 < lengths.len();
        builder.fragment(200, offset, more, &vec![0; length], &mut frame);
        offset += length as u16;
        network(&frame)
    };
    lengths.iter().enumerate().map(describe).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// After any change of its payload, a datagram leaves in fragments that are no longer than
    /// those it came in, under the same identification, each as long as possible. If the largest that came must not be cut, they must not be cut either.
    #[test]
    fn fragments_that_leave_are_no_longer_than_those_that_came(
        v6: bool,
        id: u16,
        lengths in vec((1usize..180, any::<bool>()), 2..6),
        changed in 1usize..6000,
    ) {
        let lengths: Vec<_> = lengths.into_iter().map(|(units, df)| (units * 8, df)).collect();
        let came = fragments(v6, id, &lengths);
        let came_in = came.iter().filter_map(CameIn::of).reduce(CameIn::and).unwrap();
        let header = if v6 { 48 } else { 20 };
        let largest = lengths.iter().map(|(length, _)| length + header).max().unwrap() as u32;
        let is_largest_final = v6 || lengths.contains(&(largest as usize - header, true));
        let mut whole = Vec::new();
        let payload: Vec<u8> = (0..changed).map(|at| at as u8).collect();
        let builder = builder(v6).id(id.into());
        let builder = if is_largest_final && !v6 { builder.dont_fragment() } else { builder };
        builder.raw(200, &payload, &mut whole);
        let cut = came_in.cut();
        let bound = if v6 { largest.max(1280) } else { largest };
        let link = [&[0xab; 12][..], &[0x81, 0, 0, 7], &whole[12..14]].concat();
        let mut fragments = Fragments::behind(&link, &whole, &cut).unwrap();
        if whole.len() - 14 <= bound as usize {
            let mut frame = vec![0; fragments.next_len().unwrap()];
            fragments.write_next(&mut frame);
            prop_assert_eq!((&frame[..18], &frame[18..]), (&link[..], &whole[14..]));
            prop_assert_eq!(fragments.next_len(), None);
            return Ok(());
        }
        let mut joined: Vec<u8> = Vec::new();
        while let Some(length) = fragments.next_len() {
            let mut frame = vec![0; length];
            fragments.write_next(&mut frame);
            let network = network(&frame);
            let fragment = network.fragment.unwrap();
            let length = network.end - u32::from(network.offset);
            prop_assert!(length <= bound);
            prop_assert!(!fragment.more || length + 8 > bound);
            prop_assert_eq!((fragment.id, usize::from(fragment.offset)), (id.into(), joined.len()));
            prop_assert_eq!(network.dont_fragment, is_largest_final && !v6);
            prop_assert_eq!(&frame[..18], &link[..]);
            joined.extend(&frame[usize::from(fragment.payload_offset)..network.end as usize]);
        }
        prop_assert_eq!(joined, payload);
    }
}

#[test]
fn of_a_whole_packet_it_is_none() {
    let mut whole = Vec::new();
    builder(false).raw(200, &[0; 8], &mut whole);
    assert_eq!(CameIn::of(&network(&whole)), None);
}
