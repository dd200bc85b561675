use std::borrow::Cow;
use std::io::{self, Cursor, Read, Write};
use std::path::Path;
use std::time::Duration;

use pcap_file::pcap::{PcapHeader, PcapPacket, PcapReader, PcapWriter};
use pcap_file::pcapng::blocks::enhanced_packet::EnhancedPacketOption;
use pcap_file::pcapng::{Block, PcapNgReader};
use pcap_file::{DataLink, Endianness, TsResolution};
use proptest::prelude::*;

use super::{CaptureReader, CaptureWriter, Captured, CapturedPacket};
use crate::{Frame, FramePool, MAX_FRAME, PortError, PortId, RxQueue, TxQueue};

const PORT: PortId = PortId(3);
const SECOND: u64 = 1_000_000_000;

/// A capture by the other implementation.
fn pcap(order: Endianness, unit: TsResolution, link: u32, packets: &[(u64, &[u8])]) -> Vec<u8> {
    let header = PcapHeader {
        endianness: order,
        ts_resolution: unit,
        datalink: DataLink::from(link),
        snaplen: 262_144,
        ..PcapHeader::default()
    };
    let mut writer = PcapWriter::with_header(Vec::new(), header).unwrap();
    for &(time, packet) in packets {
        let time = Duration::from_nanos(time);
        let length = packet.len() as u32;
        writer.write_packet(&PcapPacket::new(time, length, packet)).unwrap();
    }
    writer.into_writer()
}

fn open(file: Vec<u8>) -> Result<CaptureReader, PortError> {
    CaptureReader::new("x.pcap".into(), Cursor::new(file), PORT)
}

fn error(file: Vec<u8>) -> String {
    match open(file) {
        Err(error) => error.to_string(),
        Ok(reader) => {
            reader.map(|frame| frame.map(drop)).find_map(Result::err).unwrap().to_string()
        }
    }
}

fn seen(frame: &Frame) -> (u64, u64, &[u8]) {
    (frame.sequence, frame.timestamp, frame.bytes())
}

#[test]
fn both_byte_orders_and_units_of_pcap() {
    for order in [Endianness::Little, Endianness::Big] {
        for unit in [TsResolution::MicroSecond, TsResolution::NanoSecond] {
            let file = pcap(order, unit, 1, &[(SECOND + 5000, b"one"), (2 * SECOND, b"")]);
            let frames: Vec<_> = open(file).unwrap().map(Result::unwrap).collect();
            assert_eq!(frames.len(), 2);
            assert_eq!(seen(&frames[0]), (0, SECOND + 5000, &b"one"[..]));
            assert_eq!(seen(&frames[1]), (1, 2 * SECOND, &b""[..]));
            assert_eq!(frames[0].port, PORT);
        }
    }
}

#[test]
fn packets_of_other_links_get_an_ethernet_header() {
    let v4 = [&[0; 12][..], &[0x08, 0x00], b"\x45v4"].concat();
    let v6 = [&[0; 12][..], &[0x86, 0xdd], b"\x60v6"].concat();
    let cooked = [&[0; 6][..], &[1, 2, 3, 4, 5, 6, 0x08, 0x06], b"arp"].concat();
    let ppp = [&[0; 12][..], &[0x88, 0x0b], b"\xc0\x21lcp"].concat();
    let other = [&[0; 12][..], &[0xff, 0xff], b"other"].concat();
    let empty = Vec::new();
    let sll1 = b"\0\0\0\x01\0\x06\x01\x02\x03\x04\x05\x06\0\0\x08\x06arp";
    let sll2 = b"\x08\x06\0\0\0\0\0\x02\0\x01\0\x06\x01\x02\x03\x04\x05\x06\0\0arp";
    for (link, packet, expected) in [
        (101, &b"\x45v4"[..], &v4),
        (101, b"\x60v6", &v6),
        (0, b"\x02\0\0\0\x45v4", &v4),
        (0, b"\0\0\0\x02\x45v4", &v4),
        (0, b"\x1e\0\0\0\x60v6", &v6),
        (108, b"\0\0\0\x18\x60v6", &v6),
        (0, b"\x07\0\0\0other", &other),
        (9, b"\0\x21\x45v4", &v4),
        (9, b"\xff\x03\0\x57\x60v6", &v6),
        (50, b"\xff\x03\x21\x45v4", &v4),
        (9, b"\xff\x03\xc0\x21lcp", &ppp),
        (113, sll1, &cooked),
        (276, sll2, &cooked),
        (12, b"\x45v4", &v4),
        (239, b"\x02\0\0\x05\0\x05\0\x01p\0\0\0\0\x07\0\x09\x45v4\0", &v4),
        // The capture has cut off the packet.
        (239, b"\x0a\0\0\x05\0\x64\0\x09\x60v6", &v6),
        (239, b"\x07\0\0\x05\0\x09\0\x09other", &other),
        // There is no packet.
        (239, b"\x02\0\0\x05\0\x05\0\x01p\0\0\0", &empty),
        (239, b"\x02\0\0\x05\0\x03\0\x09", &empty),
    ] {
        let file = pcap(Endianness::Big, TsResolution::MicroSecond, link, &[(0, packet)]);
        let frame = open(file).unwrap().next().unwrap().unwrap();
        assert_eq!(frame.bytes(), expected, "link type {link}");
    }
    // Lengths in NFLOG have the byte order of the capture.
    let packet = &b"\x02\0\0\x05\x07\0\x09\0\x45v4\0"[..];
    let file = pcap(Endianness::Little, TsResolution::MicroSecond, 239, &[(0, packet)]);
    assert_eq!(open(file).unwrap().next().unwrap().unwrap().bytes(), v4);
}

#[test]
fn files_that_are_no_captures_are_named() {
    let wireless = pcap(Endianness::Little, TsResolution::MicroSecond, 105, &[]);
    let cases = [
        (vec![], "the file is empty"),
        (vec![0xd4, 0xc3], "it has only 2 bytes"),
        (b"GET / HTTP".to_vec(), "it begins with [47, 45, 54, 20], as neither pcap nor"),
        (
            wireless,
            "its packets are of link type 105 (IEEE 802.11), which can not be read; known are Eth",
        ),
        (vec![0xd4, 0xc3, 0xb2, 0xa1, 2], "19 of 20 bytes of the file header are missing"),
        (b"\x0a\x0d\x0d\x0a\x1c\0\0\0junk".to_vec(), "is not the byte order mark of a pcapng"),
        (b"\x0a\x0d\x0d\x0a\x1d\0\0\0\x4d\x3c\x2b\x1a".to_vec(), "block length 29 is not"),
    ];
    for (file, expected) in cases {
        let message = error(file);
        assert!(message.starts_with("x.pcap can not be read as a capture: "), "{message}");
        assert!(message.contains(expected), "{message}");
    }
    let missing = CaptureReader::open(Path::new("/nonexistent/x.pcap"), PORT).unwrap_err();
    assert!(missing.to_string().starts_with("opening a capture on /nonexistent/x.pcap: No such"));
}

#[test]
fn a_capture_that_is_cut_delivers_what_came_before() {
    let order = Endianness::Little;
    let file = pcap(order, TsResolution::MicroSecond, 1, &[(0, b"first"), (0, b"second")]);
    let second = 24 + 16 + 5;
    for (length, expected) in [
        (second + 1, "x.pcap: packet 2: the file ends here: 15 of 16 bytes of the packet header"),
        (second + 16, "x.pcap: packet 2: the file ends here: 6 of 6 bytes of the packet are"),
        (file.len() - 1, "x.pcap: packet 2: the file ends here: 1 of 6 bytes of the packet are"),
    ] {
        let mut reader = open(file[..length].to_vec()).unwrap();
        let (mut frames, mut pool) = (Vec::new(), FramePool::new(4, 0));
        assert_eq!(reader.receive(&mut frames, 64, &mut pool).unwrap(), 1);
        assert_eq!(frames[0].bytes(), b"first");
        let problem = reader.receive(&mut frames, 64, &mut pool).unwrap_err().to_string();
        assert!(problem.starts_with(expected), "{problem}");
        let end = reader.receive(&mut frames, 64, &mut pool);
        assert!(matches!(end, Err(PortError::Finished)));
    }
    assert_eq!(open(file[..second].to_vec()).unwrap().count(), 1);
    let mut wild = file;
    wild[24 + 8..24 + 12].copy_from_slice(&0x7fff_ffff_u32.to_le_bytes());
    assert!(error(wild).contains("packet 1: claims 2147483647 bytes"));
}

#[test]
fn packets_cut_by_the_snap_length_are_counted() {
    let mut writer = PcapWriter::new(Vec::new()).unwrap();
    writer.write_packet(&PcapPacket::new(Duration::ZERO, 1500, b"start")).unwrap();
    writer.write_packet(&PcapPacket::new(Duration::ZERO, 5, b"whole")).unwrap();
    let mut reader = open(writer.into_writer()).unwrap();
    assert_eq!(reader.by_ref().filter(Result::is_ok).count(), 2);
    assert_eq!((reader.packets(), reader.truncated()), (2, 1));
}

/// A pcapng block of this byte order.
fn block(big: bool, kind: u32, body: &[u8]) -> Vec<u8> {
    let number = |n: u32| if big { n.to_be_bytes() } else { n.to_le_bytes() };
    let length = number(body.len() as u32 + 12);
    [&number(kind), &length, body, &length].concat()
}

/// Fields of 32 bits in this byte order.
fn words(big: bool, fields: &[u32]) -> Vec<u8> {
    fields.iter().flat_map(|n| if big { n.to_be_bytes() } else { n.to_le_bytes() }).collect()
}

fn section(big: bool) -> Vec<u8> {
    let version = if big { 0x0001_0000 } else { 0x0000_0001 };
    block(big, 0x0a0d_0d0a, &words(big, &[0x1a2b_3c4d, version, u32::MAX, u32::MAX]))
}

/// An interface of link type 1 with a snap length and one option.
fn interface(big: bool, snap_length: u32, option: [u8; 8]) -> Vec<u8> {
    let link = if big { 1 << 16 } else { 1 };
    block(big, 1, &[words(big, &[link, snap_length]), option.to_vec()].concat())
}

#[test]
fn sections_interfaces_and_kinds_of_blocks_of_pcapng() {
    let mut file = Vec::new();
    for big in [false, true] {
        let code = if big { [0, 9, 0, 1] } else { [9, 0, 1, 0] };
        let resolution = |value| [&code[..], &[value, 0, 0, 0]].concat().try_into().unwrap();
        file.extend(section(big));
        file.extend(interface(big, 6, [0; 8]));
        file.extend(interface(big, 0, resolution(9)));
        file.extend(interface(big, 0, resolution(0x80 | 10)));
        file.extend(block(big, 0x0bad, b"unknown."));
        let packet = |fields| [words(big, fields), b"packet..".to_vec()].concat();
        file.extend(block(big, 6, &packet(&[0, 0, 7, 6, 6])));
        file.extend(block(big, 6, &packet(&[1, 1, 7, 6, 9])));
        file.extend(block(big, 6, &packet(&[2, 0, 1024 + 512, 8, 8])));
        file.extend(block(big, 3, &packet(&[1500])));
    }
    let mut reader = open(file).unwrap();
    let mut frames = Vec::new();
    for frame in reader.by_ref() {
        frames.push(frame.unwrap());
    }
    let expected = [
        (7000, &b"packet"[..]),
        ((1 << 32) + 7, b"packet"),
        (3 * SECOND / 2, b"packet.."),
        (0, b"packet"),
    ];
    assert_eq!(frames.len(), 8);
    for (frame, (time, bytes)) in frames.iter().zip(expected.iter().cycle()) {
        assert_eq!((frame.timestamp, frame.bytes()), (*time, *bytes));
    }
    assert_eq!(reader.truncated(), 4);
}

#[test]
fn damage_in_pcapng_is_named() {
    let start = [section(false), interface(false, 0, [0; 8])].concat();
    let ends = |rest: Vec<u8>, expected: &str| {
        let message = error([start.clone(), rest].concat());
        assert!(
            message.starts_with("x.pcap: packet 1: ") && message.contains(expected),
            "{message}"
        );
    };
    ends(vec![6, 0], "in the middle of a block type");
    ends(block(false, 6, &[0; 20])[..30].to_vec(), "2 of 24 bytes of the block are missing");
    ends(block(false, 6, &[0; 8]), "the block is too short for its fields");
    ends(block(false, 6, &words(false, &[1, 0, 0, 0, 0])), "interface 1, which is not described");
    ends(block(false, 6, &words(false, &[0, 0, 0, 4, 4])), "claims 4 bytes, and its block holds");
    ends(block(false, 3, &words(false, &[300_000])), "claims 300000 bytes, and no packet is");
    let mut uneven = block(false, 6, &[0; 20]);
    uneven[28] ^= 4;
    ends(uneven, "differs from the first one");
}

#[test]
fn packets_of_a_foreign_link_type_are_skipped_and_named() {
    let of = |interface| {
        let fields = words(false, &[interface, 0, 0, 6, 6]);
        block(false, 6, &[fields, b"packet..".to_vec()].concat())
    };
    let mut file = [section(false), interface(false, 0, [0; 8])].concat();
    for link in [127, 105, 60_000] {
        file.extend(block(false, 1, &words(false, &[link, 0])));
    }
    for interface in [1, 0, 2, 1, 0, 3] {
        file.extend(of(interface));
    }
    let mut reader = open(file).unwrap();
    let numbers: Vec<_> = reader.by_ref().map(|frame| frame.unwrap().sequence).collect();
    assert_eq!(numbers, [1, 4], "numbers are those of the capture");
    let foreign: Vec<_> = reader.foreign().collect();
    let expected = [
        ("link type 105 (IEEE 802.11)", 1),
        ("link type 127 (IEEE 802.11 with radiotap header)", 2),
        ("link type 60000", 1),
    ];
    assert_eq!(foreign, expected.map(|(name, packets)| (name.to_owned(), packets)));
}

#[test]
fn a_frame_that_is_too_long_is_no_damage() {
    let long = vec![0; MAX_FRAME + 1];
    let packets = [(0, &long[..]), (0, &long[1..]), (0, b"after")];
    let file = pcap(Endianness::Little, TsResolution::MicroSecond, 1, &packets);
    let (mut reader, mut pool) = (open(file).unwrap(), FramePool::new(1, 1));
    let mut lengths = Vec::new();
    while let Some(captured) = reader.next_packet(&mut pool).unwrap() {
        lengths.push(match captured {
            Captured::Frame(frame) => Ok(frame.len()),
            Captured::TooLong(length) => Err(length),
            Captured::Foreign => unreachable!(),
        });
    }
    assert_eq!(lengths, [Err(MAX_FRAME as u64 + 1), Ok(MAX_FRAME), Ok(5)]);
}

#[test]
fn a_packet_that_ends_in_its_link_header_is_an_empty_frame() {
    let sll2 = &b"\x08\0\0\0\0\0\0\x02\0\x01\0\x06\x01\x02\x03\x04\x05\x06\0"[..];
    let file = pcap(Endianness::Little, TsResolution::MicroSecond, 276, &[(0, sll2)]);
    let frames: Vec<_> = open(file).unwrap().map(Result::unwrap).collect();
    assert_eq!(frames.iter().map(Frame::len).collect::<Vec<_>>(), [0]);
}

fn packed(bytes: &[u8]) -> Vec<u8> {
    let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    packer.write_all(bytes).unwrap();
    packer.finish().unwrap()
}

#[test]
fn a_capture_in_gzip_is_read() {
    let packets = [(SECOND, &b"one"[..]), (2 * SECOND, &[7; 60_000][..]), (3 * SECOND, b"three")];
    let file = pcap(Endianness::Little, TsResolution::NanoSecond, 1, &packets);
    let (first, second) = file.split_at(100);
    for packed in [packed(&file), [packed(first), packed(second)].concat()] {
        let frames: Vec<_> = open(packed.clone()).unwrap().map(Result::unwrap).collect();
        let seen: Vec<_> = frames.iter().map(|frame| (frame.timestamp, frame.bytes())).collect();
        assert_eq!(seen, packets);
        let message = error(packed[..packed.len() - 20].to_vec());
        assert!(message.contains("x.pcap") && !message.contains("panic"), "{message}");
    }
    let message = error(packed(b"GET / HTTP"));
    assert!(message.contains("it begins with [47, 45, 54, 20]"), "{message}");
    let message = error(b"\x28\xb5\x2f\xfd....".to_vec());
    assert!(message.ends_with("it is packed with zstd: unzstd it first"), "{message}");
}

fn frame(port: u16, timestamp: u64, bytes: &[u8]) -> Frame {
    let mut frame = FramePool::new(0, 0).copy_of(bytes).unwrap();
    (frame.port, frame.timestamp) = (PortId(port), timestamp);
    frame
}

#[test]
fn a_full_disk_is_an_error_and_never_a_panic() {
    let full = Path::new("/dev/full");
    if !full.exists() {
        println!("SKIPPED: there is no /dev/full");
        return;
    }
    let mut writer = CaptureWriter::create(full, &[]).unwrap();
    writer.write(&frame(0, 0, b"buffered"), "").unwrap();
    let message = writer.finish().unwrap_err().to_string();
    assert!(message.starts_with("/dev/full: packet 1: can not be written: No space"), "{message}");
    let mut writer = CaptureWriter::create(full, &[]).unwrap();
    let mut pool = FramePool::new(0, 0);
    // Four fit the buffer; the fifth would have to reach the disk.
    let mut frames: Vec<_> = (0..10).map(|_| frame(0, 0, &[0; 60_000])).collect();
    let report = writer.transmit(&mut frames, &mut pool).unwrap();
    assert_eq!((report.sent, report.refused_gone), (4, 6), "taken packets are counted");
    let failed = writer.transmit(&mut vec![frame(0, 0, b"later")], &mut pool);
    assert!(matches!(failed, Err(PortError::Capture { .. })));
    assert!(writer.write(&frame(0, 0, b"more"), "").is_err());
}

#[test]
fn a_full_disk_is_told_by_a_thread_that_writes_behind_too() {
    let full = Path::new("/dev/full");
    if !full.exists() {
        println!("SKIPPED: there is no /dev/full");
        return;
    }
    let mut writer = CaptureWriter::create(full, &[]).unwrap().behind().unwrap();
    // The first four are under way when the next four are collected.
    let long = frame(0, 0, &[0; 60_000]);
    let taken = (0..20).take_while(|_| writer.write(&long, "").is_ok()).count();
    assert_eq!(taken, 8);
    let message = writer.finish().unwrap_err().to_string();
    assert!(message.starts_with("/dev/full: packet 1: can not be written"), "{message}");
}

#[test]
fn a_thread_that_writes_behind_writes_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let written = |name: &str, is_behind: bool| {
        let path = folder.path().join(name);
        let mut writer = CaptureWriter::create(&path, &["lan0"]).unwrap();
        if is_behind {
            writer = writer.behind().unwrap();
        }
        for number in 0..2000_u16 {
            writer.write(&frame(0, number.into(), &vec![7; number.into()]), "").unwrap();
            if number % 500 == 0 {
                writer.flush().unwrap();
                assert_eq!(held(&path).len(), usize::from(number) + 1, "a flush hides nothing");
            }
        }
        assert_eq!(writer.finish().unwrap(), 2000);
        std::fs::read(&path).unwrap()
    };
    for (direct, behind) in [("direct.pcap", "behind.pcap"), ("direct.pcapng", "behind.pcapng")] {
        let direct = written(direct, false);
        assert_eq!(direct.len() / 1_000_000, 2);
        assert!(direct == written(behind, true));
    }
}

#[test]
fn comments_and_interfaces_are_readable_by_others() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("out.pcapng");
    let mut writer = CaptureWriter::create(&path, &["lan0", "wan0"]).unwrap();
    writer.write(&frame(1, SECOND + 1, b"dropped"), "invalid checksum").unwrap();
    writer.write(&frame(9, 0, b"port without a name"), "").unwrap();
    assert_eq!(writer.finish().unwrap(), 2);
    let file = std::fs::read(&path).unwrap();
    let mut reader = PcapNgReader::new(&file[..]).unwrap();
    let mut packets = Vec::new();
    while let Some(block) = reader.next_block() {
        if let Block::EnhancedPacket(packet) = block.unwrap() {
            packets.push(packet.into_owned());
        }
    }
    assert_eq!(packets[0].interface_id, 1);
    let comment = EnhancedPacketOption::Comment(Cow::Borrowed("invalid checksum"));
    assert_eq!(packets[0].options, [comment]);
    assert_eq!((packets[1].interface_id, packets[1].options.len()), (1, 0));
    assert_eq!(reader.interfaces().len(), 2);
}

/// The packets of a file as it holds them.
fn held(path: &Path) -> Vec<(Vec<u8>, u16, String, u64, u32)> {
    let mut reader = CaptureReader::open(path, PORT).unwrap();
    let (mut held, mut buffer) = (Vec::new(), Vec::new());
    while let Some(packet) = reader.append_packet(&mut buffer).unwrap() {
        let packet = packet.captured(&buffer, reader.interface_name(packet.interface));
        let CapturedPacket { bytes, link_type, interface, timestamp, original_length } = packet;
        held.push((bytes.to_vec(), link_type, interface.to_owned(), timestamp, original_length));
    }
    held
}

#[test]
fn packets_of_a_capture_are_written_as_it_holds_them() {
    let folder = tempfile::tempdir().unwrap();
    let late = (u64::from(u32::MAX) + 1) * SECOND;
    let packet = |link_type, interface, timestamp| CapturedPacket {
        bytes: b"\x45 cut",
        link_type,
        interface,
        timestamp,
        original_length: 1500,
    };
    let path = folder.path().join("all.pcapng");
    let mut writer = CaptureWriter::create_for_captured(&path).unwrap();
    let packets = [packet(101, "tun0", 7), packet(1, "", late), packet(101, "tun1", late)];
    for packet in packets.iter().chain(&packets) {
        writer.write_captured(packet, "").unwrap();
    }
    writer.finish().unwrap();
    let expected = packets.map(|it| {
        let bytes = it.bytes.to_vec();
        (bytes, it.link_type, it.interface.to_owned(), it.timestamp, it.original_length)
    });
    assert_eq!(held(&path), [&expected[..], &expected[..]].concat());

    for (second, problem) in [
        (packet(101, "", late), "was captured after 2106, and a pcap file has no such time"),
        (packet(1, "", 7), "is of link type 1 (Ethernet), and a pcap file of link type 101 (raw"),
    ] {
        let path = folder.path().join("some.pcap");
        let mut writer = CaptureWriter::create_for_captured(&path).unwrap();
        writer.write_captured(&packet(101, "", late - 1), "").unwrap();
        let refused = writer.write_captured(&second, "").unwrap_err().to_string();
        assert!(refused.contains(&format!("some.pcap: packet 2: {problem}")), "{refused}");
        assert!(refused.ends_with("write to a file whose name ends in .pcapng"), "{refused}");
        assert!(writer.write_captured(&packet(101, "", 7), "").is_err());
        drop(writer);
        assert_eq!(held(&path), [(b"\x45 cut".to_vec(), 101, String::new(), late - 1, 1500)]);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn written_captures_are_read_by_us_and_by_others(
        packets in prop::collection::vec(
            (0..u64::from(u32::MAX) * SECOND, prop::collection::vec(any::<u8>(), 0..100), ".{0,9}"),
            0..20,
        ),
        pcapng in any::<bool>(),
    ) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(if pcapng { "x.pcapng" } else { "x.pcap" });
        let mut writer = CaptureWriter::create(&path, &[]).unwrap();
        for (time, bytes, comment) in &packets {
            writer.write(&frame(0, *time, bytes), comment).unwrap();
        }
        prop_assert_eq!(writer.finish().unwrap(), packets.len() as u64);
        let ours = CaptureReader::open(&path, PORT).unwrap().map(|frame| {
            let frame = frame.unwrap();
            (frame.timestamp, frame.bytes().to_vec())
        });
        let expected: Vec<_> = packets.into_iter().map(|(time, bytes, _)| (time, bytes)).collect();
        prop_assert_eq!(ours.collect::<Vec<_>>(), expected.clone());
        let file = std::fs::read(&path).unwrap();
        if pcapng {
            let mut reader = PcapNgReader::new(&file[..]).unwrap();
            let mut count = 0;
            while let Some(block) = reader.next_block() {
                if let Block::EnhancedPacket(packet) = block.unwrap() {
                    prop_assert_eq!(&packet.data[..], &expected[count].1[..]);
                    count += 1;
                }
            }
            prop_assert_eq!(count, expected.len());
        } else {
            let mut reader = PcapReader::new(&file[..]).unwrap();
            for (time, bytes) in expected {
                let packet = reader.next_packet().unwrap().unwrap();
                prop_assert_eq!((packet.timestamp.as_nanos(), &packet.data[..]), (time.into(), &bytes[..]));
            }
        }
    }

    #[test]
    fn no_input_panics(start in 0_usize..3, mut file in prop::collection::vec(any::<u8>(), 0..200)) {
        let starts = [section(false), pcap(Endianness::Big, TsResolution::NanoSecond, 1, &[]), vec![]];
        file.splice(0..0, starts[start].iter().copied());
        if let Ok(reader) = open(file) {
            reader.for_each(drop);
        }
    }
}

/// A stream that stands still after some bytes.
struct Halting(Vec<u8>, usize);

impl Read for Halting {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        assert_ne!(self.1, 0, "nobody waits for what is not here");
        let length = self.1.min(buffer.len()).min(self.0.len());
        buffer[..length].copy_from_slice(&self.0[..length]);
        self.0.drain(..length);
        self.1 -= length;
        Ok(length)
    }
}

#[test]
fn a_packet_that_is_here_is_told_from_one_that_is_on_its_way() {
    let packets = [(SECOND, &b"one"[..]), (2 * SECOND, b"two"), (3 * SECOND, b"three")];
    let pcap = pcap(Endianness::Big, TsResolution::NanoSecond, 1, &packets);
    let block = block(true, 6, &[words(true, &[0, 0, 0, 4, 4]), b"abcd".to_vec()].concat());
    let pcapng = [section(true), interface(true, 1, [0; 8]), block.clone(), block.clone()].concat();
    for (file, last, packets) in [(pcap, 5 + 16, 3), (pcapng, block.len(), 2)] {
        for missing in 0..=last {
            let there = file.len() - missing;
            let input = Halting(file.clone(), there);
            let mut reader = CaptureReader::new("stream".into(), input, PORT).unwrap();
            let mut pool = FramePool::new(4, 1);
            let mut read = 0;
            // The first packet may stand behind a block of another kind.
            while read == 0 || reader.has_packet() {
                reader.next_packet(&mut pool).unwrap().unwrap();
                read += 1;
            }
            assert_eq!(read, packets - usize::from(missing > 0), "{missing} bytes are missing");
        }
    }
}
