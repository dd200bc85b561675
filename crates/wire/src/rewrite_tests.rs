use proptest::prelude::*;

use super::*;
use crate::build::{PacketBuilder, Tcp};
use crate::{Readdress, TcpFlags, dissect};

fn place() -> impl Strategy<Value = TransportAddress> {
    // Words of all zeros or all ones reach the two zeros of a one's complement sum.
    let byte = prop_oneof![4 => any::<u8>(), 1 => Just(0), 1 => Just(0xff)];
    (prop::array::uniform16(byte), any::<u16>())
        .prop_map(|(address, port)| TransportAddress { address, port })
}

/// The place with an address of its family.
fn of_family(
    v6: bool,
    TransportAddress { mut address, port }: TransportAddress,
) -> TransportAddress {
    if !v6 {
        address[..12].copy_from_slice(&[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff]);
    }
    TransportAddress { address, port }
}

#[derive(Clone, Debug)]
struct Sample {
    v6: bool,
    options: bool,
    tcp: bool,
    before: [TransportAddress; 2],
    after: [TransportAddress; 2],
    payload: Vec<u8>,
    /// The value of the checksum field, if it is not the right one.
    checksum: Option<u16>,
    partial: bool,
}

fn sample() -> impl Strategy<Value = Sample> {
    let places = || prop::array::uniform2(place());
    let checksum = prop_oneof![
        3 => Just(None),
        1 => any::<u16>().prop_map(Some),
        1 => Just(Some(0)),
        1 => Just(Some(0xffff)),
    ];
    let payload = prop::collection::vec(any::<u8>(), 0..40);
    let facts = (any::<[bool; 4]>(), places(), places(), payload, checksum);
    facts.prop_map(|([v6, options, tcp, partial], before, after, payload, checksum)| {
        let [before, after] = [before, after].map(|ends| ends.map(|place| of_family(v6, place)));
        Sample { v6, options, tcp, before, after, payload, checksum, partial }
    })
}

impl Sample {
    fn frame(&self) -> Vec<u8> {
        let [source, destination] = self.before;
        let v4 = |address: [u8; 16]| *address.last_chunk::<4>().unwrap();
        let builder = match self.v6 {
            true => PacketBuilder::v6(source.address, destination.address),
            false => PacketBuilder::v4(v4(source.address), v4(destination.address)).id(7),
        };
        let builder = if self.options && !self.v6 { builder.options(&[1; 4]) } else { builder };
        let mut out = Vec::new();
        if self.tcp {
            let (source_port, destination_port) = (source.port, destination.port);
            let flags = TcpFlags::ACK;
            let tcp = Tcp { source_port, destination_port, flags, ..Tcp::default() };
            builder.tcp(&tcp, &self.payload, &mut out);
        } else {
            builder.udp(source.port, destination.port, &self.payload, &mut out);
        }
        out
    }
}

proptest! {
    #[test]
    fn both_ends_become_what_they_become_one_by_one(sample in sample()) {
        let mut frame = sample.frame();
        let network = dissect(&frame).unwrap().network.unwrap();
        if let Some(checksum) = sample.checksum {
            let at = usize::from(network.transport_offset) + if sample.tcp { 16 } else { 6 };
            frame[at..at + 2].copy_from_slice(&checksum.to_be_bytes());
        }
        let covers = match sample.partial {
            true => ChecksumCovers::PseudoHeader,
            false => ChecksumCovers::All,
        };
        let [source, destination] = sample.after;
        let mut expected = frame.clone();
        let change = Readdress { source: Some(source), destination: Some(destination) };
        let length = (network.end - u32::from(network.transport_offset)) as usize;
        change.apply_to_any(&mut expected, &mut network.clone(), length, covers);
        let before = frame.clone();
        let is_done = rewrite_ends(&mut frame, &network, &source, &destination, covers);
        prop_assert_eq!(is_done, sample.v6 || !sample.options);
        prop_assert_eq!(frame, if is_done { expected } else { before });
    }

    #[test]
    fn a_frame_that_is_cut_short_harms_nobody(sample in sample(), length in 0usize..100) {
        let mut frame = sample.frame();
        let network = dissect(&frame).unwrap().network.unwrap();
        frame.truncate(length);
        let [source, destination] = sample.after;
        let _ = rewrite_ends(&mut frame, &network, &source, &destination, ChecksumCovers::All);
    }
}
