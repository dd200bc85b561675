use proptest::prelude::*;

use super::*;
use crate::build::{PacketBuilder, Tcp};
use crate::{Dissected, TcpFlags, checksum, dissect};

/// The fields of the IP header: offset and bits, of IPv4 and of IPv6.
const FIELDS: [&[(u16, u8)]; 2] = [
    &[(96, 32), (128, 32), (8, 6), (14, 2), (32, 16), (64, 8)],
    &[(64, 128), (192, 128), (4, 6), (10, 2), (12, 20), (56, 8)],
];

fn network(frame: &[u8]) -> Network {
    let Ok(Dissected { network: Some(network), .. }) = dissect(frame) else {
        panic!("{frame:02x?}")
    };
    network
}

fn packet() -> impl Strategy<Value = Vec<u8>> {
    let protocol = prop::sample::select(&[6, 17, 136, 132, 33, 1, 58, 253][..]);
    let payload = prop::collection::vec(any::<u8>(), 16..40);
    (any::<bool>(), protocol, any::<[u16; 2]>(), payload, any::<bool>()).prop_map(
        |(v6, number, [from, to], payload, options)| {
            let builder = if v6 {
                let address = |last| [0x20, 1, 13, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last];
                PacketBuilder::v6(address(1), address(2))
            } else {
                let builder = PacketBuilder::v4([192, 0, 2, 1], [192, 0, 2, 2]);
                if options { builder.options(&[1; 4]) } else { builder }
            };
            let ports = [from.to_be_bytes(), to.to_be_bytes()].concat();
            let mut frame = Vec::new();
            match number {
                6 => {
                    let (flags, ends) = (TcpFlags::ACK, (from, to));
                    let (source_port, destination_port) = ends;
                    let tcp = Tcp { source_port, destination_port, flags, ..Tcp::default() };
                    builder.tcp(&tcp, &payload, &mut frame);
                }
                17 => builder.udp(from, to, &payload, &mut frame),
                136 => {
                    let [high, low] = (8 + payload.len() as u16).to_be_bytes();
                    let all = [&ports, &[high, low, 0, 0][..], &payload].concat();
                    builder.transport(136, &all, &mut frame);
                }
                132 => {
                    let chunk = [0, 3, 0, 4 + payload.len() as u8];
                    let header = [&ports, &[1; 4][..], &[0; 4], &chunk].concat();
                    builder.transport(132, &[header, payload].concat(), &mut frame);
                }
                33 => {
                    let header = [4, 0, 0, 0, 4, 0, 0, 9];
                    builder.transport(33, &[&ports, &header[..], &payload].concat(), &mut frame);
                }
                1 | 58 => builder.echo(false, from, to, &payload, &mut frame),
                other => builder.transport(other, &payload, &mut frame),
            }
            frame
        },
    )
}

/// A field that the packet has.
fn field(frame: &[u8], choice: usize, value: u128) -> FieldWrite {
    let network = network(frame);
    let mut fields: Vec<_> = FIELDS[usize::from(network.family == Family::V6)].to_vec();
    let of_ip = fields.len();
    match network.transport {
        Transport::Tcp(_) => fields.extend([(0, 16), (16, 16), (32, 32), (64, 32), (112, 16)]),
        Transport::IcmpQuery(_) => fields.extend([(8, 8), (32, 16), (48, 16)]),
        transport if transport.ports().is_some() => fields.extend([(0, 16), (16, 16)]),
        _ => {}
    }
    let chosen = choice % fields.len();
    let (offset, bits) = fields[chosen];
    let value = value & (u128::MAX >> (128 - u32::from(bits)));
    FieldWrite { of_transport: chosen >= of_ip, offset, bits, value }
}

/// The bits of the field.
fn bits_of(frame: &[u8], write: &FieldWrite) -> u128 {
    let network = network(frame);
    let start = if write.of_transport { network.transport_offset } else { network.offset };
    let first = 8 * usize::from(start) + usize::from(write.offset);
    (first..first + usize::from(write.bits))
        .fold(0, |value, bit| value << 1 | u128::from(frame[bit / 8] >> (7 - bit % 8) & 1))
}

proptest! {
    #[test]
    fn a_field_is_written_with_the_right_checksums_and_nothing_else(
        before in packet(), choice in 0..20_usize, value in any::<u128>(),
    ) {
        let write = field(&before, choice, value);
        let mut described = network(&before);
        let (mut frame, length) = (before.clone(), described.transport_len() as usize);
        prop_assert!(write.apply(&mut frame, &mut described, length, ChecksumCovers::All));
        prop_assert_eq!(bits_of(&frame, &write), write.value);
        prop_assert_eq!(described, network(&frame));
        prop_assert!(checksum::verify_transport(&frame, &described));
        if described.family == Family::V4 {
            let header = &frame[usize::from(described.offset)..];
            prop_assert!(checksum::is_intact(&header[..usize::from(header[0] & 15) * 4]));
        }
        // The old value comes back, up to the two forms of zero in a sum.
        let back = FieldWrite { value: bits_of(&before, &write), ..write };
        prop_assert!(back.apply(&mut frame, &mut described, length, ChecksumCovers::All));
        let sums = |mut frame: Vec<u8>| {
            let network = network(&frame);
            checksum::fill_transport(&mut frame, &network);
            if network.family == Family::V4 {
                checksum::fill_ipv4_header(&mut frame[usize::from(network.offset)..]);
            }
            frame
        };
        prop_assert_eq!(described, network(&before));
        prop_assert_eq!(sums(frame), sums(before));
    }

    #[test]
    fn a_partial_checksum_covers_the_addresses_alone(
        before in packet(), choice in 0..20_usize, value in any::<u128>(),
    ) {
        let write = field(&before, choice, value);
        let mut described = network(&before);
        let at = sum_field(described.protocol, described.family);
        let Some(at) = at.filter(|_| described.protocol != protocol::ICMP) else { return Ok(()) };
        let length = described.transport_len();
        let place = usize::from(described.transport_offset) + at;
        let pseudo = |network: &Network| !checksum::Sum::ZERO.pseudo_header(network, length).finish();
        let mut frame = before;
        frame[place..place + 2].copy_from_slice(&pseudo(&described).to_be_bytes());
        let (covers, length) = (ChecksumCovers::PseudoHeader, length as usize);
        prop_assert!(write.apply(&mut frame, &mut described, length, covers));
        let sum = u16::from_be_bytes([frame[place], frame[place + 1]]);
        prop_assert_eq!(sum % 0xffff, pseudo(&described) % 0xffff);
    }

    #[test]
    fn writing_never_panics(
        frame in prop::collection::vec(any::<u8>(), 0..80), of_transport in any::<bool>(),
        offset in 0..2000_u16, bits in 1..=128_u8, value in any::<u128>(), from in packet(),
    ) {
        let mut frame = frame;
        let mut described = network(&from);
        let write = FieldWrite { of_transport, offset, bits, value };
        write.apply(&mut frame, &mut described, 9, ChecksumCovers::All);
    }
}

#[test]
fn a_datagram_without_a_checksum_stays_without_one() {
    let mut frame = Vec::new();
    let udp = [0, 53, 0, 53, 0, 8, 0, 0];
    PacketBuilder::v4([192, 0, 2, 1], [192, 0, 2, 2]).raw(protocol::UDP, &udp, &mut frame);
    let mut described = network(&frame);
    let port = FieldWrite { of_transport: true, offset: 16, bits: 16, value: 5353 };
    let address = FieldWrite { of_transport: false, offset: 128, bits: 32, value: 0xc000_0209 };
    for write in [port, address] {
        assert!(write.apply(&mut frame, &mut described, 8, ChecksumCovers::All));
    }
    assert_eq!(frame[34..], [0, 53, 0x14, 0xe9, 0, 8, 0, 0]);
    assert_eq!(frame[30..34], [192, 0, 2, 9]);
}

#[test]
fn a_later_fragment_has_no_transport_to_write() {
    let mut frame = Vec::new();
    let builder = PacketBuilder::v4([192, 0, 2, 1], [192, 0, 2, 2]);
    builder.fragment(protocol::UDP, 8, false, &[7; 16], &mut frame);
    let (before, mut described) = (frame.clone(), network(&frame));
    let port = FieldWrite { of_transport: true, offset: 16, bits: 16, value: 5353 };
    assert!(!port.apply(&mut frame, &mut described, 24, ChecksumCovers::All));
    assert_eq!(frame, before);
    let address = FieldWrite { of_transport: false, offset: 96, bits: 32, value: 0xc000_0209 };
    assert!(address.apply(&mut frame, &mut described, 24, ChecksumCovers::All));
    assert_eq!(frame[34..], before[34..]);
}
