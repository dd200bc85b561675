use wire::{Dissected, Transport, dissect};

use super::*;

/// A TCP segment between two documentation addresses (RFC 5737).
#[derive(Clone, Copy, Debug)]
struct FrameSpec<'a> {
    flags: TcpFlags,
    sequence: u32,
    acknowledgment: u32,
    window: u16,
    /// A multiple of 4 bytes, 40 at most.
    options: &'a [u8],
    /// Bytes of payload, which are zeros.
    payload: usize,
}

impl FrameSpec<'_> {
    /// An ACK without data.
    fn ack() -> Self {
        Self {
            flags: TcpFlags::ACK,
            sequence: 0,
            acknowledgment: 0,
            window: 65_535,
            options: &[],
            payload: 0,
        }
    }
}

/// An Ethernet frame. Its checksums are left 0, except that of IPv4.
fn frame(spec: &FrameSpec<'_>) -> Vec<u8> {
    let header_len = 20 + spec.options.len();
    let total = 20 + header_len + spec.payload;
    let mut bytes = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0];
    bytes.extend([0x45, 0]);
    bytes.extend(u16::try_from(total).expect("fits an IPv4 packet").to_be_bytes());
    bytes.extend([0, 0, 0x40, 0, 64, 6, 0, 0, 192, 0, 2, 1, 198, 51, 100, 1]);
    let checksum = wire::checksum::checksum(&bytes[14..34]);
    bytes[24..26].copy_from_slice(&checksum.to_be_bytes());
    bytes.extend([0x9c, 0x40, 0, 80]);
    bytes.extend(spec.sequence.to_be_bytes());
    bytes.extend(spec.acknowledgment.to_be_bytes());
    bytes.extend([(header_len as u8 / 4) << 4, spec.flags.0]);
    bytes.extend(spec.window.to_be_bytes());
    bytes.extend([0; 4]);
    bytes.extend(spec.options);
    bytes.resize(14 + total, 0);
    bytes
}

fn parsed(spec: &FrameSpec<'_>) -> (Vec<u8>, TcpInfo, Network) {
    let bytes = frame(spec);
    let Ok(Dissected { network: Some(network), .. }) = dissect(&bytes) else {
        panic!("not a frame with an IP packet");
    };
    let Transport::Tcp(tcp) = network.transport else { panic!("not TCP") };
    (bytes, tcp, network)
}

fn with_options<T>(options: &[u8], read: impl FnOnce(Segment<'_>) -> T) -> T {
    let spec = FrameSpec { options, acknowledgment: 1000, ..FrameSpec::ack() };
    let (bytes, tcp, network) = parsed(&spec);
    read(Segment::parse(&tcp, &network, &bytes).unwrap())
}

#[test]
fn syn_and_fin_count_one_and_payload_its_length() {
    let cases = [
        (TcpFlags::SYN, 0, 1),
        (TcpFlags::SYN, 10, 11),
        (TcpFlags::SYN.with(TcpFlags::ACK), 0, 1),
        (TcpFlags::ACK, 0, 0),
        (TcpFlags::ACK.with(TcpFlags::PSH), 1448, 1448),
        (TcpFlags::FIN.with(TcpFlags::ACK), 5, 6),
        (TcpFlags::RST, 0, 0),
    ];
    for (flags, payload, length) in cases {
        let spec = FrameSpec { flags, payload, sequence: u32::MAX, ..FrameSpec::ack() };
        let (bytes, tcp, network) = parsed(&spec);
        let segment = Segment::parse(&tcp, &network, &bytes).unwrap();
        assert_eq!(segment.end, Seq(u32::MAX).plus(length), "{flags:?} {payload}");
    }
}

#[test]
fn padding_behind_the_packet_is_no_payload() {
    let (mut bytes, ..) = parsed(&FrameSpec::ack());
    bytes.resize(60, 0);
    let network = dissect(&bytes).unwrap().network.unwrap();
    let Transport::Tcp(tcp) = network.transport else { panic!("not TCP") };
    let segment = Segment::parse(&tcp, &network, &bytes).unwrap();
    assert_eq!(segment.end, segment.sequence);
}

#[test]
fn illegal_control_bits_are_refused() {
    for (flags, message) in [
        (TcpFlags::SYN.with(TcpFlags::FIN), "control bits FIN|SYN are never sent together"),
        (TcpFlags::FIN, "control bit FIN is never sent alone"),
        (TcpFlags::default(), "no segment is sent without control bits"),
    ] {
        let (bytes, tcp, network) = parsed(&FrameSpec { flags, ..FrameSpec::ack() });
        let why = Segment::parse(&tcp, &network, &bytes).unwrap_err();
        assert_eq!(why, Invalid::Flags { flags });
        assert_eq!(why.to_string(), message);
    }
}

#[test]
fn syn_options_are_found_among_others() {
    let usual = [2, 4, 5, 180, 4, 2, 8, 10, 0, 0, 0, 1, 0, 0, 0, 0, 1, 3, 3, 7];
    let found = with_options(&usual, |segment| segment.syn_options());
    assert_eq!(found, SynOptions { scale: Some(7), sack_permitted: true });
}

#[test]
fn a_scale_over_14_is_14() {
    let found = with_options(&[3, 3, 255, 0], |segment| segment.syn_options());
    assert_eq!(found.scale, Some(14));
}

#[test]
fn malformed_options_end_the_search_quietly() {
    for options in [
        &[3, 9, 1, 0][..],
        &[3, 1, 7, 0],
        &[3, 0, 7, 0],
        &[1, 1, 1, 3],
        &[0, 3, 3, 7],
        &[3, 2, 1, 1],
        &[5, 6, 0, 0, 0xff, 0xff, 0, 0],
    ] {
        with_options(options, |segment| {
            assert_eq!(segment.syn_options(), SynOptions::default(), "{options:?}");
            assert_eq!(segment.highest_ack(), Seq(1000), "{options:?}");
        });
    }
}

#[test]
fn the_highest_sack_edge_wins_unless_the_acknowledgment_does() {
    let block = |left: u32, right: u32| [left.to_be_bytes(), right.to_be_bytes()].concat();
    let sack = |blocks: &[(u32, u32)]| {
        let mut option = vec![1, 1, 5, 2 + 8 * blocks.len() as u8];
        option.extend(blocks.iter().flat_map(|&(left, right)| block(left, right)));
        with_options(&option, |segment| segment.highest_ack())
    };
    assert_eq!(sack(&[(2000, 2100)]), Seq(2100));
    assert_eq!(sack(&[(1500, 1600), (3000, 3100), (2000, 2100)]), Seq(3100));
    // A duplicate SACK lies below the acknowledgment number (RFC 2883).
    assert_eq!(sack(&[(500, 600)]), Seq(1000));
}

#[test]
fn a_lone_timestamp_is_not_searched() {
    let mut options = vec![1, 1, 8, 10];
    options.extend([5; 8]);
    assert_eq!(with_options(&options, |segment| segment.highest_ack()), Seq(1000));
}
