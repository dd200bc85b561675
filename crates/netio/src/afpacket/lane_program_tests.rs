//! The program, run by an interpreter of its own. `tests/afpacket/lanes.rs` has the kernel run it.

use std::net::{Ipv4Addr, Ipv6Addr};

use wire::TcpFlags;
use wire::build::{PacketBuilder, Tcp};

use super::*;

const CLIENT: [u8; 4] = [192, 0, 2, 1];
const SERVER: [u8; 4] = [198, 51, 100, 2];
const CLIENT6: [u8; 16] = [0x20, 1, 0xd, 0xb8, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
const SERVER6: [u8; 16] = [0x20, 1, 0xd, 0xb8, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2];

/// Runs a program as the kernel does, for a packet without its link header. A read behind the end of the
/// packet returns 0.
fn run(code: &[libc::sock_filter], link_protocol: u32, packet: &[u8]) -> u32 {
    let read = |at: u32, length: usize| -> Option<u32> {
        let bytes = packet.get(at as usize..)?.get(..length)?;
        Some(bytes.iter().fold(0, |sum, byte| sum << 8 | u32::from(*byte)))
    };
    let (mut a, mut x, mut memory, mut at) = (0_u32, 0_u32, [0_u32; 16], 0);
    loop {
        let libc::sock_filter { code, jt, jf, k } = code[at];
        at += 1;
        let mut load = |place, length| read(place, length).map(|value| a = value).is_some();
        let mut is_read = true;
        match code {
            op::LD_WORD if k == LINK_PROTOCOL => a = link_protocol,
            op::LD_WORD => is_read = load(k, 4),
            op::LD_HALF => is_read = load(k, 2),
            op::LD_BYTE => is_read = load(k, 1),
            op::LD_WORD_AT_X => is_read = load(x + k, 4),
            op::LD_HALF_AT_X => is_read = load(x + k, 2),
            op::LD_BYTE_AT_X => is_read = load(x + k, 1),
            op::LD_IMMEDIATE => a = k,
            op::LD_MEMORY => a = memory[k as usize],
            op::LDX_IMMEDIATE => x = k,
            op::LDX_MEMORY => x = memory[k as usize],
            op::LDX_HEADER => x = 4 * (read(k, 1).unwrap() & 0xf),
            op::STORE => memory[k as usize] = a,
            op::ADD => a = a.wrapping_add(k),
            op::ADD_X => a = a.wrapping_add(x),
            op::MULTIPLY => a = a.wrapping_mul(k),
            op::AND => a &= k,
            op::SHIFT_LEFT => a <<= k,
            op::SHIFT_RIGHT => a >>= k,
            op::MODULO => a %= k,
            op::XOR_X => a ^= x,
            op::TO_X => x = a,
            op::JUMP => at += k as usize,
            op::IF_EQUAL => at += usize::from(if a == k { jt } else { jf }),
            op::IF_GREATER => at += usize::from(if a > k { jt } else { jf }),
            op::IF_AT_LEAST => at += usize::from(if a >= k { jt } else { jf }),
            op::IF_ANY_BIT => at += usize::from(if a & k != 0 { jt } else { jf }),
            op::RETURN => return k,
            op::RETURN_A => return a,
            other => panic!("instruction {other:#x}"),
        }
        if !is_read {
            return 0;
        }
    }
}

fn of_frame(code: &[libc::sock_filter], frame: &[u8]) -> u32 {
    let link_protocol = u32::from(u16::from_be_bytes([frame[12], frame[13]]));
    run(code, link_protocol, &frame[14..])
}

fn udp(builder: &PacketBuilder, [source, destination]: [u16; 2]) -> Vec<u8> {
    let mut frame = Vec::new();
    builder.udp(source, destination, b"payload", &mut frame);
    frame
}

fn tcp(builder: &PacketBuilder, destination_port: u16) -> Vec<u8> {
    let tcp = Tcp {
        source_port: 40_000,
        destination_port,
        sequence: 0,
        acknowledgment: 0,
        flags: TcpFlags::SYN,
        window: 0,
        options: &[],
    };
    let mut frame = Vec::new();
    builder.tcp(&tcp, b"", &mut frame);
    frame
}

fn selectors(list: Vec<Result<Selector, crate::SelectorError>>) -> Selectors {
    Selectors::new(list.into_iter().map(Result::unwrap).collect()).unwrap()
}

fn v4() -> [PacketBuilder; 2] {
    [PacketBuilder::v4(CLIENT, SERVER), PacketBuilder::v4(SERVER, CLIENT)]
}

fn v6() -> [PacketBuilder; 2] {
    [PacketBuilder::v6(CLIENT6, SERVER6), PacketBuilder::v6(SERVER6, CLIENT6)]
}

/// Puts headers between the IPv6 header and what is behind it.
fn with_headers(frame: &[u8], first: u8, headers: &[u8]) -> Vec<u8> {
    let mut frame = frame.to_vec();
    frame[14 + 6] = first;
    let length = u16::from_be_bytes([frame[18], frame[19]]) + headers.len() as u16;
    frame[18..20].copy_from_slice(&length.to_be_bytes());
    frame.splice(54..54, headers.iter().copied());
    frame
}

#[test]
fn both_directions_of_a_flow_have_the_service_of_its_port() {
    let ports = Selector::new(Service::Latency, Some(protocol::UDP), None, Some(5000..=5010));
    let code = program(&selectors(vec![ports]), 1);
    for [there, back] in [v4(), v6()] {
        for (port, socket) in [(4999, 0), (5000, 1), (5007, 1), (5010, 1), (5011, 0)] {
            assert_eq!(of_frame(&code, &udp(&there, [40_000, port])), socket, "{port}");
            assert_eq!(of_frame(&code, &udp(&back, [port, 40_000])), socket, "{port}");
        }
        assert_eq!(of_frame(&code, &tcp(&there, 5000)), 0, "another protocol");
    }
}

#[test]
fn prefixes_hold_for_either_address() {
    let client: IpAddr = Ipv4Addr::from(CLIENT).into();
    let client6: IpAddr = Ipv6Addr::from(CLIENT6).into();
    for (prefix, wanted4, wanted6) in [
        ((client, 32), 1, 0),
        ((client, 24), 1, 0),
        ((client, 0), 1, 0),
        ((IpAddr::from([192, 0, 3, 1]), 24), 0, 0),
        ((client6, 48), 0, 1),
        ((client6, 128), 0, 1),
        ((client6, 0), 0, 1),
        (("2001:db8:3::".parse().unwrap(), 48), 0, 0),
    ] {
        let selector = Selector::new(Service::Latency, None, Some(prefix), None);
        let code = program(&selectors(vec![selector]), 1);
        for (builders, wanted) in [(v4(), wanted4), (v6(), wanted6)] {
            for builder in builders {
                assert_eq!(of_frame(&code, &udp(&builder, [1, 2])), wanted, "{prefix:?}");
            }
        }
    }
}

#[test]
fn the_first_selector_decides() {
    let bulk = Selector::new(Service::Bulk, Some(protocol::UDP), None, Some(53..=53));
    let all = Selector::new(Service::Latency, Some(protocol::UDP), None, None);
    let code = program(&selectors(vec![bulk, all]), 1);
    for [there, _] in [v4(), v6()] {
        assert_eq!(of_frame(&code, &udp(&there, [1000, 53])), 0);
        assert_eq!(of_frame(&code, &udp(&there, [1000, 54])), 1);
    }
    assert_eq!(run(&code, libc::ETH_P_ARP as u32, &[0; 28]), 0, "packets that are not IP");
}

#[test]
fn extension_headers_and_ip_options_do_not_hide_the_ports() {
    let port = Selector::new(Service::Latency, None, None, Some(5000..=5000));
    let code = program(&selectors(vec![port]), 1);
    let plain = udp(&v6()[0], [1, 5000]);
    let options = [protocol::UDP, 1, 1, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    assert_eq!(of_frame(&code, &with_headers(&plain, protocol::HOP_BY_HOP, &options)), 1);
    let mut chain = Vec::new();
    for left in (0..Dissected::MAX_EXTENSION_HEADERS).rev() {
        let next = if left == 0 { protocol::UDP } else { protocol::DESTINATION_OPTIONS };
        chain.extend([next, 0, 1, 4, 0, 0, 0, 0]);
        let is_whole = left == 0;
        let frame = with_headers(&plain, protocol::DESTINATION_OPTIONS, &chain);
        assert_eq!(of_frame(&code, &frame), u32::from(is_whole));
    }
    let fragment = |field: u16| {
        let [a, b] = field.to_be_bytes();
        with_headers(&plain, protocol::FRAGMENT, &[protocol::UDP, 0, a, b, 0, 0, 0, 1])
    };
    assert_eq!([0, 1, 8].map(|field| of_frame(&code, &fragment(field))), [1, 0, 0]);
    let mut options = udp(&v4()[0], [1, 5000]);
    options[14] = 0x46;
    options.splice(34..34, [1, 1, 1, 0]);
    assert_eq!(of_frame(&code, &options), 1);
    let mut first = udp(&v4()[0], [1, 5000]);
    first[20] |= 0x20;
    assert_eq!(of_frame(&code, &first), 0, "a fragment");
}

#[test]
fn a_packet_that_is_cut_short_goes_to_the_first_socket() {
    let selector = Selector::new(Service::Latency, None, None, Some(0..=u16::MAX));
    let code = program(&selectors(vec![selector]), 1);
    for [there, _] in [v4(), v6()] {
        let frame = udp(&there, [1, 2]);
        let transport = frame.len() - b"payload".len() - 8;
        for end in 15..frame.len() {
            assert_eq!(of_frame(&code, &frame[..end]), u32::from(end >= transport + 4), "{end}");
        }
    }
}

#[test]
fn several_queues_divide_bulk_by_flow() {
    let selector = Selector::new(Service::Latency, Some(protocol::TCP), None, None);
    let code = program(&selectors(vec![selector]), 3);
    for [there, back] in [v4(), v6()] {
        let mut counts = [0; 3];
        for port in 0..300 {
            let socket = of_frame(&code, &udp(&there, [1024 + port, 53]));
            assert_eq!(of_frame(&code, &udp(&back, [53, 1024 + port])), socket);
            counts[socket as usize] += 1;
        }
        assert!(counts.iter().all(|count| (50..150).contains(count)), "{counts:?}");
        assert_eq!(of_frame(&code, &tcp(&there, 2)), 3);
    }
}

/// Explanations have another form of the same decision.
#[test]
fn an_explanation_says_what_the_program_does() {
    let client: IpAddr = Ipv4Addr::from(CLIENT).into();
    let client6: IpAddr = Ipv6Addr::from(CLIENT6).into();
    let prefixes = [(client, 24), (client, 0), (client6, 48), ([192, 0, 3, 1].into(), 24)];
    let mut singles = Vec::new();
    for protocol in [None, Some(protocol::UDP), Some(protocol::TCP)] {
        for prefix in prefixes.map(Some).into_iter().chain([None]) {
            for ports in [None, Some(53..=53), Some(5000..=5010)] {
                for service in [Service::Latency, Service::Bulk] {
                    singles.extend(Selector::new(service, protocol, prefix, ports.clone()));
                }
            }
        }
    }
    let mut frames = Vec::new();
    for [there, back] in [v4(), v6()] {
        for port in [52, 53, 5000, 5010] {
            frames.extend([udp(&there, [40_000, port]), udp(&back, [port, 40_000])]);
            frames.push(tcp(&there, port));
        }
    }
    // The first fragment of a datagram.
    let mut first = Vec::new();
    v4()[0].udp(53, 5000, b"eight ad", &mut first);
    first[20] |= 0x20;
    first[24..26].fill(0);
    let sum = wire::checksum::checksum(&first[14..34]).to_be_bytes();
    first[24..26].copy_from_slice(&sum);
    let atomic = [protocol::UDP, 0, 0, 0, 0, 0, 0, 1];
    frames.push(with_headers(&udp(&v6()[0], [53, 5000]), protocol::FRAGMENT, &atomic));
    frames.push(first);
    let lists = singles.iter().flat_map(|first| {
        let second = singles.iter().map(move |second| vec![first.clone(), second.clone()]);
        second.filter_map(|list| Selectors::new(list).ok())
    });
    let mut latency = 0;
    for list in lists {
        let code = program(&list, 1);
        for frame in &frames {
            let network = wire::dissect(frame).unwrap().network.unwrap();
            let socket = u32::from(list.service_of(&network) == Service::Latency);
            latency += socket;
            assert_eq!(of_frame(&code, frame), socket, "{list:?} {network:?}");
        }
    }
    assert!(latency > 1000, "{latency}");
}

#[test]
fn the_longest_program_fits() {
    let address: IpAddr = Ipv6Addr::from(SERVER6).into();
    let list = (0..Selectors::MAX as u16).map(|port| {
        Selector::new(
            Service::Latency,
            Some(protocol::UDP),
            Some((address, 128)),
            Some(port..=port),
        )
    });
    let length = program(&selectors(list.collect()), 64).len();
    assert!(length <= libc::BPF_MAXINSNS as usize, "{length}");
}
