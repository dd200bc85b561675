use super::*;
use crate::build::{PacketBuilder, Tcp};
use crate::tcp_option::TcpOptions;

const SYN: Tcp<'_> = Tcp {
    source_port: 40_000,
    destination_port: 80,
    sequence: 5,
    acknowledgment: 0,
    flags: TcpFlags::SYN,
    window: 100,
    options: &[],
};

fn segment(way: Way) -> ControlSegment {
    let options = OptionList::default()
        .max_segment_size(1460)
        .sack_permitted()
        .timestamps(0x0102_0304, 0x0506_0708)
        .window_scale(7);
    ControlSegment {
        way,
        sequence: 77,
        acknowledgment: 6,
        flags: TcpFlags::SYN.with(TcpFlags::ACK),
        window: 9,
        options,
    }
}

fn made(way: Way, about: &[u8]) -> Option<(Vec<u8>, Dissected)> {
    let mut out = [0; MAX_FRAME];
    let length = segment(way).write(about, &mut out)?;
    let frame = out[..length].to_vec();
    let dissected = dissect(&frame).unwrap();
    assert!(checksum::verify_transport(&frame, &dissected.network.unwrap()));
    Some((frame, dissected))
}

#[test]
fn an_answer_goes_back_on_its_link_and_a_copy_goes_on() {
    let (a, b) = ([2, 0, 0, 0, 0, 7], [2, 0, 0, 0, 0, 8]);
    for builder in [
        PacketBuilder::v4([192, 0, 2, 1], [198, 51, 100, 2]).options(&[1; 8]),
        PacketBuilder::v6([0x20; 16], [0x2a; 16]),
    ] {
        for builder in
            [builder.clone(), builder.clone().vlan(9).vlan(0x2007), builder.clone().pppoe(3)]
        {
            let mut about = Vec::new();
            builder.macs(a, b).ttl(33).traffic_class(0xb9).tcp(&SYN, b"early", &mut about);
            let syn = dissect(&about).unwrap();
            let asked = syn.network.unwrap();
            for way in [Way::Back, Way::Along] {
                let (frame, dissected) = made(way, &about).unwrap();
                let answer = dissected.network.unwrap();
                assert_eq!((dissected.vlan, dissected.ethertype), (syn.vlan, syn.ethertype));
                let Transport::Tcp(tcp) = answer.transport else { panic!("no TCP") };
                assert_eq!((tcp.sequence, tcp.acknowledgment, tcp.window), (77, 6, 9));
                assert_eq!(answer.traffic_class, 0xb8, "no ECN in control segments");
                let ends = (answer.source, answer.destination, tcp.source_port, answer.ttl);
                if way == Way::Back {
                    assert_eq!((&frame[..6], &frame[6..12]), (&a[..], &b[..]));
                    assert_eq!(ends, (asked.destination, asked.source, 80, 64));
                } else {
                    assert_eq!((&frame[..6], &frame[6..12]), (&b[..], &a[..]));
                    assert_eq!(ends, (asked.source, asked.destination, 40_000, 33));
                }
                let start = usize::from(answer.transport_offset);
                let found: Vec<_> = TcpOptions::new(&frame[start + 20..]).map(|o| o.kind).collect();
                assert_eq!(found, [2, 4, 8, 3]);
            }
        }
    }
}

#[test]
fn no_segment_is_made_where_it_could_not_go() {
    let mut syn = Vec::new();
    PacketBuilder::v4([127, 0, 0, 1], [192, 0, 2, 1]).tcp(&SYN, &[], &mut syn);
    assert!(made(Way::Back, &syn).is_none(), "loopback");
    syn.clear();
    let plain = PacketBuilder::v4([192, 0, 2, 1], [192, 0, 2, 2]);
    plain.clone().macs([3; 6], [2; 6]).tcp(&SYN, &[], &mut syn);
    assert!(made(Way::Back, &syn).is_none(), "a group");
    syn.clear();
    plain.tcp(&SYN, &[], &mut syn);
    let mut tunnel = Vec::new();
    plain.raw(protocol::IPIP, &syn[14..], &mut tunnel);
    assert!(made(Way::Back, &tunnel).is_none(), "a tunnel");
    assert_eq!(segment(Way::Back).write(&syn, &mut [0; 60]), None, "no room");
    assert!(made(Way::Back, &syn[..40]).is_none(), "cut short");
}
