use netio::PortId;

use super::*;
use crate::testing::captures::{capture, config, play, with_workers};
use proptest::prelude::*;
use std::path::Path;
use steer::TunnelSteering;
use wire::build::{PacketBuilder, Tcp};
use wire::{TcpFlags, protocol};

const CLIENT: [u8; 4] = [192, 0, 2, 1];
const SERVER: [u8; 4] = [198, 51, 100, 2];

fn tcp(from_client: bool, flags: TcpFlags, sequence: u32, acknowledgment: u32) -> Vec<u8> {
    let (source, destination, ports) =
        if from_client { (CLIENT, SERVER, (40_000, 80)) } else { (SERVER, CLIENT, (80, 40_000)) };
    let header = Tcp {
        source_port: ports.0,
        destination_port: ports.1,
        sequence,
        acknowledgment,
        flags,
        window: 65_535,
        ..Tcp::default()
    };
    let mut frame = Vec::new();
    PacketBuilder::v4(source, destination).tcp(&header, &[], &mut frame);
    frame
}

fn udp(client: u8, port: u16, reply: bool) -> Vec<u8> {
    let (client, mut frame) = ([192, 0, 2, client], Vec::new());
    if reply {
        PacketBuilder::v4(SERVER, client).udp(53, port, b"answer", &mut frame);
    } else {
        PacketBuilder::v4(client, SERVER).udp(port, 53, b"question", &mut frame);
    }
    frame
}

#[test]
fn flows_verdicts_and_drops_are_reported() {
    let directory = tempfile::tempdir().unwrap();
    let frames = [
        tcp(true, TcpFlags::SYN, 100, 0),
        tcp(false, TcpFlags::SYN.with(TcpFlags::ACK), 500, 101),
        tcp(true, TcpFlags::ACK, 101, 501),
        udp(1, 5000, false),
        udp(1, 5000, true),
        udp(2, 5001, false),
        // SYN and FIN together are invalid.
        tcp(true, TcpFlags::SYN.with(TcpFlags::FIN), 100, 0),
        // This packet is cut inside the IP header.
        udp(3, 5002, false)[..20].to_vec(),
        b"no IP at all\x08\x06but ARP".to_vec(),
    ];
    let (report, _) = play(&capture(directory.path(), &frames), &config(), with_workers(2));
    assert_eq!((report.packets, report.passed), (9, 7));
    let expected = BTreeMap::from([((6, "ESTABLISHED"), 1), ((17, ""), 2)]);
    assert_eq!(report.flows, expected);
    let classes = report.counters.classes;
    assert_eq!(classes, [3, 3, 0, 1, 1], "new, established, related, invalid, untracked");
    assert_eq!(report.counters.dropped(flow::DropReason::TcpFlags), 1);
    assert_eq!(report.counters.dropped(flow::DropReason::MalformedIpv4), 1);
    assert_eq!(report.counters.dropped_total(), 2);
    assert_eq!(report.span_ns, 8_000_000);
}

#[test]
fn errors_about_a_tunnel_are_related_to_it() {
    let directory = tempfile::tempdir().unwrap();
    let (mut inner, mut tunnel, mut error) = (Vec::new(), Vec::new(), Vec::new());
    PacketBuilder::v4(CLIENT, SERVER).udp(1, 2, b"inside", &mut inner);
    PacketBuilder::v4([203, 0, 113, 1], [203, 0, 113, 2]).raw(4, &inner[14..], &mut tunnel);
    PacketBuilder::v4([203, 0, 113, 9], [203, 0, 113, 1]).icmp_error(
        3,
        4,
        [0, 0, 5, 120],
        &tunnel[14..],
        &mut error,
    );
    let path = capture(directory.path(), &[tunnel, error]);
    for tunnels in [TunnelSteering::Inner, TunnelSteering::Outer] {
        let config = Config { tunnels, ..config() };
        for workers in [1, 3] {
            let (report, _) = play(&path, &config, with_workers(workers));
            assert_eq!((report.passed, report.flows.get(&(4, ""))), (2, Some(&1)));
            assert_eq!(report.counters.classes, [1, 0, 1, 0, 0], "new, and related");
        }
    }
}

#[test]
fn checksums_count_only_when_asked() {
    let directory = tempfile::tempdir().unwrap();
    let mut frame = udp(1, 5000, false);
    frame[24..26].fill(0);
    let last = frame.len() - 1;
    frame[last] ^= 1;
    let path = capture(directory.path(), &[frame]);
    assert_eq!(play(&path, &config(), ReplayOptions::default()).0.passed, 1);
    let strict = ReplayOptions { verify_checksums: true, ..ReplayOptions::default() };
    assert_eq!(play(&path, &config(), strict).0.passed, 0);
}

#[test]
fn a_damaged_capture_is_played_up_to_the_damage() {
    let directory = tempfile::tempdir().unwrap();
    let path = capture(directory.path(), &[udp(1, 1, false), udp(1, 2, false)]);
    let bytes = std::fs::read(&path).unwrap();
    std::fs::write(&path, &bytes[..bytes.len() - 5]).unwrap();
    let (report, _) = play(&path, &config(), with_workers(1));
    assert_eq!(report.passed, 1);
    let problem = report.problem.unwrap();
    assert!(problem.contains("packet 2") && problem.contains("in.pcap"), "{problem}");
}

#[test]
fn every_given_capture_replays_the_same_for_any_number_of_workers() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/captures");
    let Ok(entries) = std::fs::read_dir(&folder) else {
        println!("SKIPPED: there is no folder of captures beside the checkout");
        return;
    };
    for path in entries.map(|entry| entry.unwrap().path()) {
        if path.extension().is_some_and(|extension| extension == "pcap") {
            let one = play(&path, &config(), with_workers(1));
            assert!(one.0.packets > 0 && one.0.problem.is_none(), "{path:?}: {:?}", one.0);
            assert_eq!(one.0.packets, one.0.passed + one.0.counters.dropped_total(), "{path:?}");
            for workers in [1, 2, 4] {
                assert_eq!(play(&path, &config(), with_workers(workers)), one, "{path:?}");
            }
        }
    }
}

/// A packet of a small world, so that flows meet, repeat and fill the table.
fn packet() -> impl Strategy<Value = Vec<u8>> {
    let flags = prop::sample::select(vec![0x02u8, 0x12, 0x10, 0x11, 0x04, 0x14, 0x18, 0x00, 0x3f]);
    prop_oneof![
        (1u8..30, 5000u16..5004, any::<bool>()).prop_map(|(c, p, r)| udp(c, p, r)),
        (any::<bool>(), flags, 0u32..4, 0u32..4).prop_map(|(client, flags, seq, ack)| tcp(
            client,
            TcpFlags(flags),
            seq,
            ack
        )),
        (any::<bool>(), 0u16..4).prop_map(|(reply, id)| {
            let mut frame = Vec::new();
            let (from, to) = if reply { (SERVER, CLIENT) } else { (CLIENT, SERVER) };
            PacketBuilder::v4(from, to).echo(reply, id, 1, b"ping", &mut frame);
            frame
        }),
        (any::<bool>(), any::<bool>(), 1u8..30).prop_map(|(reply, gre, flow)| {
            let inner = udp(flow, 5000, reply);
            let (from, to) = if reply { (SERVER, CLIENT) } else { (CLIENT, SERVER) };
            let header: &[u8] = if gre { &[0, 0, 8, 0] } else { &[] };
            let number = if gre { protocol::GRE } else { protocol::IPIP };
            let mut frame = Vec::new();
            PacketBuilder::v4(from, to).raw(number, &[header, &inner[14..]].concat(), &mut frame);
            frame
        }),
        prop::collection::vec(any::<u8>(), 0..80),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// It does not show either if the table is so small that connections are refused.
    #[test]
    fn the_number_of_workers_never_shows(
        frames in prop::collection::vec(packet(), 1..120),
        max_entries in prop::sample::select(vec![4u64, 20, 1000]),
    ) {
        let directory = tempfile::tempdir().unwrap();
        let path = capture(directory.path(), &frames);
        let mut config = config();
        config.settings.set("nf_conntrack_max", max_entries).unwrap();
        let one = play(&path, &config, with_workers(1));
        prop_assert_eq!(one.0.packets, frames.len() as u64);
        prop_assert_eq!(one.0.packets, one.0.passed + one.0.counters.dropped_total());
        for workers in [2, 4] {
            let other = play(&path, &config, with_workers(workers));
            prop_assert_eq!(&other, &one);
        }
        // A worker that reads the headers of each frame in its turn comes to the same.
        let (mut lockstep, mut alone) =
            (Lockstep::new(&config, 1, &[]).unwrap(), ReplayReport::default());
        for frame in CaptureReader::open(&path, PortId(0)).unwrap().with_headers_mended() {
            let mut frame = frame.unwrap();
            trust_checksum(&mut frame);
            lockstep.play(frame);
        }
        prop_assert_eq!(&lockstep.finish(&mut alone), &one.0.counters);
        prop_assert_eq!(alone.flows, one.0.flows);
    }
}

/// Writes frames as a capture of which every packet was cut off behind `snap_length` bytes.
fn cut_capture(directory: &Path, snap_length: usize, frames: &[Vec<u8>]) -> std::path::PathBuf {
    let path = directory.join("cut.pcap");
    let mut file = Vec::new();
    for word in [0xa1b2_c3d4, 0x0004_0002, 0, 0, snap_length as u32, 1u32] {
        file.extend(word.to_le_bytes());
    }
    for (index, frame) in frames.iter().enumerate() {
        let kept = &frame[..frame.len().min(snap_length)];
        for word in [1_700_000_000, index as u32 * 1000, kept.len() as u32, frame.len() as u32] {
            file.extend(word.to_le_bytes());
        }
        file.extend(kept);
    }
    std::fs::write(&path, file).unwrap();
    path
}

#[test]
fn packets_that_the_capture_has_cut_are_judged_by_their_headers() {
    let directory = tempfile::tempdir().unwrap();
    let (ack, payload) = (TcpFlags::ACK, [7; 1000]);
    let mut frames = Vec::new();
    for port in 0..50 {
        let (mut sequence, mut acknowledgment) = (100, 500);
        let mut add = |from_client, flags, bytes: &[u8]| {
            let ports = if from_client { (40_000 + port, 80) } else { (80, 40_000 + port) };
            let (source, destination) =
                if from_client { (CLIENT, SERVER) } else { (SERVER, CLIENT) };
            let numbers =
                if from_client { (sequence, acknowledgment) } else { (acknowledgment, sequence) };
            let header = Tcp {
                source_port: ports.0,
                destination_port: ports.1,
                sequence: numbers.0,
                acknowledgment: numbers.1,
                flags,
                window: 65_535,
                ..Tcp::default()
            };
            let mut frame = Vec::new();
            PacketBuilder::v4(source, destination).tcp(&header, bytes, &mut frame);
            frames.push(frame);
            let grown = if from_client { &mut sequence } else { &mut acknowledgment };
            *grown += bytes.len() as u32 + u32::from(flags.contains(TcpFlags::SYN));
        };
        add(true, TcpFlags::SYN, &[]);
        add(false, TcpFlags::SYN.with(ack), &[]);
        for _ in 0..4 {
            add(true, ack, &payload);
            add(false, ack, &payload);
        }
    }
    for snap_length in [54, 68, 96, 2000] {
        let path = cut_capture(directory.path(), snap_length, &frames);
        for verify_checksums in [false, true] {
            let options = ReplayOptions { verify_checksums, ..ReplayOptions::default() };
            let (report, _) = play(&path, &config(), options);
            let is_cut = snap_length < 1054;
            assert_eq!((report.packets, report.passed), (500, 500), "{snap_length}");
            assert_eq!(report.truncated, if is_cut { 400 } else { 0 });
            assert_eq!(report.flows, BTreeMap::from([((6, "ESTABLISHED"), 50)]));
        }
    }
    // Where a header is cut, nobody guesses the rest.
    let path = cut_capture(directory.path(), 53, &frames);
    let mut why = None;
    let mut tell = |seen| {
        if let Seen::Dropped { number: 1, refused_by, .. } = seen {
            why = refused_by;
        }
    };
    let input = CaptureReader::open(&path, PortId(0)).unwrap();
    let report = replay(input, None, &config(), with_workers(1), &mut tell).unwrap();
    assert_eq!(report.counters.dropped(flow::DropReason::MalformedIpv4), 500);
    let why = why.unwrap();
    let expected = format!("the capture has cut off the rest of its {} bytes", frames[0].len());
    assert!(why.contains(&expected), "{why}");
}

#[test]
fn no_helper_reads_a_packet_that_the_capture_has_cut() {
    let directory = tempfile::tempdir().unwrap();
    // A request of TFTP is answered from another port, which only the helper expects.
    let (mut request, mut answer) = (Vec::new(), Vec::new());
    let name = [b"\x00\x01", &b"x".repeat(60)[..], b"\0octet\0"].concat();
    PacketBuilder::v4(CLIENT, SERVER).udp(5000, 69, &name, &mut request);
    PacketBuilder::v4(SERVER, CLIENT).udp(6000, 5000, b"\0\x03\0\x01data", &mut answer);
    let mut config = config();
    config.settings.conntrack.helpers.attach(conntrack::helper::Kind::Tftp, 69).unwrap();
    for (snap_length, related) in [(200, 1), (70, 0)] {
        let frames = [request.clone(), answer.clone()];
        let path = cut_capture(directory.path(), snap_length, &frames);
        let (report, _) = play(&path, &config, with_workers(2));
        assert_eq!((report.passed, report.counters.classes[2]), (2, related), "{snap_length}");
    }
}

#[test]
fn fragments_that_the_capture_has_cut_become_a_datagram_of_their_length() {
    let directory = tempfile::tempdir().unwrap();
    let builder = PacketBuilder::v4(CLIENT, SERVER).id(7);
    let mut whole = Vec::new();
    builder.udp(5000, 53, &[7; 4000], &mut whole);
    let frames = builder.fragments(protocol::UDP, &whole[34..], 1480);
    let path = cut_capture(directory.path(), 60, &frames);
    let (report, _) = play(&path, &config(), with_workers(2));
    assert_eq!((report.packets, report.passed), (3, 3));
    assert_eq!(report.counters.defrag.reasm_oks, 1);
    assert_eq!(report.flows, BTreeMap::from([((17, ""), 1)]));
}

#[test]
fn headers_that_an_interface_would_fill_in_are_mended_and_counted() {
    let directory = tempfile::tempdir().unwrap();
    let (mut tagged, mut tunnel, mut whole) = (Vec::new(), Vec::new(), Vec::new());
    let ack = Tcp { source_port: 1, destination_port: 2, flags: TcpFlags::ACK, ..Tcp::default() };
    PacketBuilder::v4(CLIENT, SERVER).vlan(5).tcp(&ack, &[7; 3000], &mut tagged);
    PacketBuilder::v4(CLIENT, SERVER).tcp(&ack, &[7; 300], &mut whole);
    PacketBuilder::v4(SERVER, CLIENT).raw(4, &whole[14..], &mut tunnel);
    // A super-packet behind a tag, and a tunnel both of whose headers are wrong.
    tagged[20..22].fill(0);
    tagged[28..30].fill(0);
    for at in [24, 44] {
        tunnel[at..at + 2].copy_from_slice(&[0x12, 0x34]);
    }
    let path = capture(directory.path(), &[tagged, tunnel, whole]);
    let (report, _) = play(&path, &config(), with_workers(2));
    assert_eq!((report.packets, report.passed, report.mended), (3, 3, 2));
    let strict = ReplayOptions { verify_checksums: true, ..ReplayOptions::default() };
    let (report, _) = play(&path, &config(), strict);
    assert_eq!((report.packets, report.passed, report.mended), (3, 1, 0));
    assert_eq!(report.counters.dropped(flow::DropReason::MalformedIpv4), 2);
}

#[test]
fn a_frame_that_is_too_long_is_dropped_and_the_replay_goes_on() {
    let directory = tempfile::tempdir().unwrap();
    let frames = [udp(1, 1, false), vec![2; 100_000], udp(1, 2, false)];
    let path = cut_capture(directory.path(), 200_000, &frames);
    let input = CaptureReader::open(&path, PortId(0)).unwrap();
    let mut dropped = Vec::new();
    let mut tell = |seen| {
        if let Seen::Dropped { number, why, length, .. } = seen {
            dropped.push((number, why.reason(), length));
        }
    };
    let report = replay(input, None, &config(), with_workers(2), &mut tell).unwrap();
    assert_eq!((report.packets, report.passed, report.problem), (3, 2, None));
    assert_eq!(report.counters.dropped(flow::DropReason::FrameTooLong), 1);
    assert_eq!(dropped, [(2, flow::DropReason::FrameTooLong, 100_000)]);
}

#[test]
fn packets_that_pass_are_written_as_they_were_captured() {
    let directory = tempfile::tempdir().unwrap();
    let builder = PacketBuilder::v4(CLIENT, SERVER).id(7);
    let (mut whole, mut unfilled) = (Vec::new(), Vec::new());
    builder.udp(5000, 53, &[7; 4000], &mut whole);
    PacketBuilder::v4(SERVER, CLIENT).udp(53, 5000, &[7; 900], &mut unfilled);
    unfilled[24..26].fill(0);
    let mut frames = builder.fragments(protocol::UDP, &whole[34..], 1480);
    // A fragment whose datagram stays incomplete, and a packet that is dropped at once.
    frames.insert(1, builder.id(8).fragments(protocol::UDP, &whole[34..], 1480).remove(0));
    frames.insert(2, tcp(true, TcpFlags::SYN.with(TcpFlags::FIN), 100, 0));
    frames.push(unfilled);
    let path = cut_capture(directory.path(), 60, &frames);
    let (report, output) = play(&path, &config(), with_workers(2));
    assert_eq!((report.packets, report.passed, report.written), (6, 4, Some(4)));
    frames.drain(1..3);
    std::fs::write(directory.path().join("out.pcap"), output).unwrap();
    let mut reader = CaptureReader::open(&directory.path().join("out.pcap"), PortId(0)).unwrap();
    let (mut buffer, mut seen) = (Vec::new(), Vec::new());
    while let Some(packet) = reader.append_packet(&mut buffer).unwrap() {
        seen.push((buffer[packet.captured].to_vec(), packet.original_length as usize));
    }
    let expected = frames.iter().map(|frame| (frame[..60].to_vec(), frame.len()));
    assert_eq!(seen, expected.collect::<Vec<_>>());
}

#[test]
fn each_packet_is_told_with_its_class_direction_and_connection() {
    let directory = tempfile::tempdir().unwrap();
    let builder = PacketBuilder::v4([192, 0, 2, 9], SERVER).id(7);
    let (mut whole, mut error) = (Vec::new(), Vec::new());
    builder.udp(5000, 53, &[7; 2000], &mut whole);
    let question = udp(1, 5000, false);
    PacketBuilder::v4(SERVER, CLIENT).icmp_error(3, 3, [0; 4], &question[14..], &mut error);
    let mut frames = builder.fragments(protocol::UDP, &whole[34..], 1480);
    frames.extend([question, udp(1, 5000, true), error]);
    frames.push(tcp(true, TcpFlags::SYN.with(TcpFlags::FIN), 100, 0));
    frames.push(b"no IP at all\x08\x06but ARP".to_vec());
    let path = capture(directory.path(), &frames);
    let (flow, fragments) =
        ("udp 192.0.2.1:5000 > 198.51.100.2:53", "udp 192.0.2.9:5000 > 198.51.100.2:53");
    let expected = [
        format!("1 passed: new, original direction of {fragments}"),
        format!("2 passed: new, original direction of {fragments}"),
        format!("3 passed: new, original direction of {flow}"),
        format!("4 passed: established, reply direction of {flow}"),
        format!("5 passed: related, reply direction of {flow}"),
        "6 tcp_flags: invalid".to_owned(),
        "7 passed: untracked".to_owned(),
    ];
    for workers in [1, 3] {
        let mut lines = Vec::new();
        let mut tell = |seen| match seen {
            Seen::Passed { number, fate, .. } => lines.push(format!("{number} passed: {fate}")),
            Seen::Dropped { number, why, fate, .. } => {
                lines.push(format!("{number} {}: {fate}", why.reason().name()));
            }
            Seen::Packets(_) | Seen::Paused => {}
        };
        let options = ReplayOptions { tells_packets: true, ..with_workers(workers) };
        let out = directory.path().join("out.pcapng");
        let output = CaptureWriter::create_for_captured(&out).unwrap();
        let input = CaptureReader::open(&path, PortId(0)).unwrap();
        replay(input, Some(output), &config(), options, &mut tell).unwrap();
        assert_eq!(lines, expected);
        // The comments of the output say the same.
        let file = std::fs::read(&out).unwrap();
        for pair in expected.iter().filter_map(|it| it.split_once(" passed: ")) {
            let mut windows = file.windows(pair.1.len());
            assert!(windows.any(|bytes| bytes == pair.1.as_bytes()), "{}", pair.1);
        }
    }
}

#[test]
fn chunks_that_the_capture_has_cut_do_not_matter() {
    use wire::build::sctp::{chunk, init, packet};
    let directory = tempfile::tempdir().unwrap();
    // COOKIE ECHO, and then two chunks of data behind one another.
    let data = || chunk(0, 3, &[7; 300]);
    let sent = |from_client: bool, sctp: &[u8]| {
        let (from, to) = if from_client { (CLIENT, SERVER) } else { (SERVER, CLIENT) };
        let ports: [u8; 4] = if from_client { [0, 7, 0, 9] } else { [0, 9, 0, 7] };
        let mut frame = Vec::new();
        let sctp = [&ports[..], &sctp[4..]].concat();
        PacketBuilder::v4(from, to).raw(protocol::SCTP, &sctp, &mut frame);
        frame
    };
    let frames = [
        sent(true, &init(0, 1, 11)),
        sent(false, &init(11, 2, 22)),
        sent(true, &packet(22, &[chunk(10, 0, &[1; 40]), data(), data()])),
        sent(false, &packet(11, &[chunk(11, 0, &[]), data(), data()])),
        sent(true, &packet(22, &[data(), data()])),
    ];
    for snap_length in [66, 68, 70, 96, 98, 2000] {
        let path = cut_capture(directory.path(), snap_length, &frames);
        let (report, _) = play(&path, &config(), with_workers(1));
        assert_eq!(report.passed, 5, "{snap_length}: {:?}", report.counters.classes);
        assert_eq!(report.flows, BTreeMap::from([((132, "ESTABLISHED"), 1)]), "{snap_length}");
    }
}
