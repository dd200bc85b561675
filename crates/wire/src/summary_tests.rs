use super::*;
use crate::TcpFlags;
use crate::build::{PacketBuilder, Tcp};

const V4: [[u8; 4]; 2] = [[192, 0, 2, 1], [198, 51, 100, 2]];
const V6: [[u8; 16]; 2] = [
    [0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1],
    [0x20, 1, 0xd, 0xb8, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2],
];

fn summary(frame: &[u8]) -> String {
    Summary { frame }.to_string()
}

/// The summary of a frame that `build` makes.
fn of(build: impl Fn(&PacketBuilder, &mut Vec<u8>), v6: bool) -> String {
    let mut frame = Vec::new();
    let builder =
        if v6 { PacketBuilder::v6(V6[0], V6[1]) } else { PacketBuilder::v4(V4[0], V4[1]) };
    build(&builder.id(7), &mut frame);
    summary(&frame)
}

#[test]
fn a_packet_is_said_in_one_line() {
    let tcp = Tcp {
        source_port: 4711,
        destination_port: 80,
        sequence: 100,
        acknowledgment: 0,
        window: 1000,
        flags: TcpFlags::SYN,
        ..Tcp::default()
    };
    assert_eq!(
        of(|packet, out| packet.tcp(&tcp, b"abc", out), false),
        "192.0.2.1:4711 > 198.51.100.2:80 TCP SYN seq 100 ack 0 window 1000 length 3"
    );
    assert_eq!(
        of(|packet, out| packet.udp(53, 5353, b"abc", out), true),
        "[2001:db8::1]:53 > [2001:db8:100::2]:5353 UDP length 11"
    );
    assert_eq!(
        of(|packet, out| packet.echo(false, 9, 1, b"", out), false),
        "192.0.2.1 > 198.51.100.2 ICMP type 8 code 0 id 9"
    );
    assert_eq!(
        of(|packet, out| packet.fragment(17, 1480, true, &[0; 8], out), false),
        "192.0.2.1 > 198.51.100.2 UDP fragment 0x7 at 1480+"
    );
    assert_eq!(
        of(|packet, out| packet.raw(89, &[0; 8], out), false),
        "192.0.2.1 > 198.51.100.2 protocol 89"
    );
}

#[test]
fn an_icmp_error_is_said_with_what_it_is_about() {
    let mut quoted = Vec::new();
    PacketBuilder::v4(V4[1], V4[0]).udp(53, 4711, b"", &mut quoted);
    assert_eq!(
        of(|packet, out| packet.icmp_error(3, 1, [0; 4], &quoted[14..], out), false),
        "192.0.2.1 > 198.51.100.2 ICMP type 3 code 1 \
         about 198.51.100.2:53 > 192.0.2.1:4711 UDP"
    );
    assert_eq!(
        of(|packet, out| packet.icmp_error(3, 1, [0; 4], &[0x45], out), false),
        "192.0.2.1 > 198.51.100.2 ICMP type 3 code 1 without a quote"
    );
}

#[test]
fn unreadable_frames_are_shown_as_they_are() {
    let mut arp = vec![0; 60];
    arp[12..14].copy_from_slice(&[8, 6]);
    assert_eq!(summary(&arp), "EtherType 0x0806");
    assert_eq!(summary(&[0xab, 1]), "ab01");
    let mut cut = vec![0; 40];
    cut[12..15].copy_from_slice(&[8, 0, 0x4f]);
    assert_eq!(summary(&cut).len(), 2 * BYTES_SHOWN + "...".len());
}
