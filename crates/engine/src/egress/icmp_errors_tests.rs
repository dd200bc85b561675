use wire::build::PacketBuilder;

use super::*;

const CLIENT: [u8; 4] = [192, 0, 2, 1];
const SERVER: [u8; 4] = [198, 51, 100, 2];

/// Packets about which no error may be sent (RFC 1812 section 4.3.2.7).
fn without_answer() -> Vec<Vec<u8>> {
    let mut frames = vec![Vec::new(); 4];
    let [error, to_group, from_group, later] = &mut frames[..] else { unreachable!() };
    let mut quoted = Vec::new();
    PacketBuilder::v4(SERVER, CLIENT).udp(53, 1000, b"", &mut quoted);
    PacketBuilder::v4(CLIENT, SERVER).icmp_error(3, 3, [0; 4], &quoted[14..], error);
    PacketBuilder::v4(CLIENT, [224, 0, 0, 9]).udp(1000, 53, b"", to_group);
    PacketBuilder::v4([255; 4], SERVER).udp(1000, 53, b"", from_group);
    PacketBuilder::v4(CLIENT, SERVER).fragment(17, 8, false, &[0; 8], later);
    frames
}

#[test]
fn packets_that_deserve_no_error_leave_the_allowance_to_others() {
    let mut answers = IcmpAnswers::default();
    let mut pool = FramePool::new(0, 0);
    let mut about = |bytes: &[u8]| {
        let frame = pool.copy_of(bytes).unwrap();
        answers.about(&frame, Message::TimeExceeded, 1_000_000_000, &mut pool).is_some()
    };
    for frame in without_answer() {
        for _ in 0..ERROR_BURST {
            assert!(!about(&frame), "{frame:?}");
        }
    }
    let mut honest = Vec::new();
    PacketBuilder::v4(CLIENT, SERVER).udp(1000, 53, b"", &mut honest);
    assert_eq!((0..2 * ERROR_BURST).filter(|_| about(&honest)).count() as u64, ERROR_BURST);
}
