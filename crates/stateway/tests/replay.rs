//! `stateway replay` from outside: a program, files, exit codes.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "helpers of tests are tests too")]

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use netio::capture::CaptureWriter;
use netio::{FramePool, PortId};
use serde_json::{Value, json};
use tempfile::TempDir;
use wire::TcpFlags;
use wire::build::{PacketBuilder, Tcp};

#[path = "replay/captures.rs"]
mod captures;

const CLIENT: [u8; 4] = [192, 0, 2, 1];
const SERVER: [u8; 4] = [198, 51, 100, 2];
const PCAP_HEADER: usize = 24;
const RECORD_HEADER: usize = 16;

fn stateway(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_stateway")).args(args).output().unwrap()
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// A pcap file of Ethernet frames, 1 ms apart.
fn pcap(frames: &[Vec<u8>]) -> Vec<u8> {
    let mut file = Vec::new();
    for word in [0xa1b2_c3d4, 0x0004_0002, 0, 0, 65_535, 1u32] {
        file.extend(word.to_le_bytes());
    }
    for (index, frame) in frames.iter().enumerate() {
        let length = frame.len() as u32;
        for word in [1_700_000_000, index as u32 * 1000, length, length] {
            file.extend(word.to_le_bytes());
        }
        file.extend(frame);
    }
    file
}

fn written(directory: &TempDir, name: &str, bytes: &[u8]) -> String {
    let path = directory.path().join(name);
    fs::write(&path, bytes).unwrap();
    path.display().to_string()
}

fn there() -> PacketBuilder {
    PacketBuilder::v4(CLIENT, SERVER)
}

fn back() -> PacketBuilder {
    PacketBuilder::v4(SERVER, CLIENT)
}

/// `count` TCP connections of six packets each, then as many questions and answers by UDP and
/// pings, and two packets that can not pass: TCP without control bits, and a truncated IPv4 header.
fn traffic(count: u16) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    let mut add = |write: &dyn Fn(&mut Vec<u8>)| {
        let mut frame = Vec::new();
        write(&mut frame);
        frames.push(frame);
    };
    let ack = TcpFlags::ACK;
    let steps = [
        (true, TcpFlags::SYN, 100, 0),
        (false, TcpFlags(TcpFlags::SYN.0 | ack.0), 500, 101),
        (true, ack, 101, 501),
        (true, TcpFlags(TcpFlags::FIN.0 | ack.0), 101, 501),
        (false, TcpFlags(TcpFlags::FIN.0 | ack.0), 501, 102),
        (true, ack, 102, 502),
    ];
    for (forward, flags, sequence, acknowledgment) in steps {
        for index in 0..count {
            let (source_port, destination_port) =
                if forward { (20_000 + index, 443) } else { (443, 20_000 + index) };
            let tcp = Tcp {
                source_port,
                destination_port,
                sequence,
                acknowledgment,
                flags,
                window: 1000,
                options: &[],
            };
            let direction = if forward { there() } else { back() };
            add(&|frame| direction.tcp(&tcp, b"", frame));
        }
    }
    for index in 0..count {
        add(&|frame| there().udp(30_000 + index, 53, b"question", frame));
        add(&|frame| back().udp(53, 30_000 + index, b"answer", frame));
        add(&|frame| there().echo(false, index, 1, b"ping", frame));
    }
    let stray = Tcp { source_port: 7, destination_port: 7, window: 1, ..Tcp::default() };
    add(&|frame| there().tcp(&stray, b"", frame));
    add(&|frame| frame.extend([&[2; 12][..], &[8, 0, 0x45]].concat()));
    frames
}

/// A control connection on which the client announces port 2000, and the server's SYN to
/// that port and to another one.
fn ftp() -> Vec<Vec<u8>> {
    let (syn, ack) = (TcpFlags::SYN, TcpFlags::ACK);
    let both = TcpFlags(syn.0 | ack.0);
    let steps: [(_, _, _, _, &[u8]); 8] = [
        (true, (40_000, 21), syn, (100, 0), b""),
        (false, (21, 40_000), both, (500, 101), b""),
        (true, (40_000, 21), ack, (101, 501), b""),
        (false, (21, 40_000), ack, (501, 101), b"220 ready\r\n"),
        (true, (40_000, 21), ack, (101, 512), b"USER a\r\n"),
        (true, (40_000, 21), ack, (109, 512), b"PORT 192,0,2,1,7,208\r\n"),
        (false, (20, 2000), syn, (1, 0), b""),
        (false, (20, 2001), syn, (1, 0), b""),
    ];
    let frame =
        |(forward, ports, flags, numbers, payload): (_, (u16, u16), _, (u32, u32), &[u8])| {
            let tcp = Tcp {
                source_port: ports.0,
                destination_port: ports.1,
                sequence: numbers.0,
                acknowledgment: numbers.1,
                flags,
                window: 1000,
                options: &[],
            };
            let mut frame = Vec::new();
            let direction = if forward { there() } else { back() };
            direction.tcp(&tcp, payload, &mut frame);
            frame
        };
    steps.map(frame).to_vec()
}

#[test]
fn connections_announced_in_a_capture_are_related() {
    let directory = TempDir::new().unwrap();
    let input = written(&directory, "ftp.pcap", &pcap(&ftp()));
    let config = written(&directory, "gateway.toml", b"[[helper]]\nname = \"ftp\"\n");
    for (more, new, related) in [(&["-c", &config][..], 2, 1), (&[], 3, 0)] {
        for workers in ["1", "3"] {
            let report = replayed(&input, &[more, &["--workers", workers]].concat());
            assert_eq!(report["classes"]["new"], new, "{report}");
            assert_eq!(report["classes"]["related"], related, "{report}");
        }
    }
}

fn replayed(input: &str, more: &[&str]) -> Value {
    let output = stateway(&[&["replay", input, "--json"], more].concat());
    assert!(output.status.success(), "{}", stderr(&output));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn the_report_tells_packets_flows_and_drops() {
    let directory = TempDir::new().unwrap();
    let input = written(&directory, "in.pcap", &pcap(&traffic(10)));
    let output = stateway(&["replay", &input]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(stderr(&output), "", "no progress bar without a terminal");
    insta::assert_snapshot!(stdout(&output));

    let report = replayed(&input, &[]);
    assert_eq!(report["schema"], 1);
    assert_eq!(report["packets"], 92);
    assert_eq!(
        report["packets"].as_u64(),
        Some(report["passed"].as_u64().unwrap() + report["dropped"].as_u64().unwrap())
    );
}

/// A replay can not apply rules that translate.
#[test]
fn rules_that_translate_are_refused_for_what_a_replay_is() {
    let directory = TempDir::new().unwrap();
    let input = written(&directory, "traffic.pcap", &pcap(&traffic(1)));
    written(&directory, "ruleset.json", include_bytes!("rules/home-router.json"));
    let config = "[gateway]\nmode = \"routed\"\n\n[[interface]]\nname = \"lan0\"\n\n\
                  [[interface]]\nname = \"wan0\"\n\n[rules]\nfile = \"ruleset.json\"\n";
    let config = written(&directory, "gateway.toml", config.as_bytes());
    let output = stateway(&["replay", &input, "-c", &config]);
    assert_eq!(output.status.code(), Some(2));
    let message = stderr(&output);
    assert!(message.contains("a replay has no routes, and these rules need them:"), "{message}");
    assert!(message.contains("dnat ip to tcp dport map @forwards"), "{message}");
    assert!(message.contains("masquerade"), "all are listed: {message}");
    assert!(!message.contains("bridge"), "{message}");
}

#[test]
fn each_dropped_packet_is_explained() {
    let directory = TempDir::new().unwrap();
    let mut frames = Vec::new();
    for (builder, tcp) in [
        (there(), Tcp { flags: TcpFlags::SYN, sequence: 100, window: 1000, ..Tcp::default() }),
        (there(), Tcp { flags: TcpFlags::ACK, sequence: 101, window: 1000, ..Tcp::default() }),
    ] {
        let mut frame = Vec::new();
        builder.tcp(&tcp, b"", &mut frame);
        frames.push(frame);
    }
    frames.push(vec![0xab; 5]);
    let input = written(&directory, "in.pcap", &pcap(&frames));
    let output = stateway(&["replay", &input, "--explain"]);
    let text = stdout(&output);
    let explained: Vec<&str> =
        text.lines().take_while(|line| !line.starts_with("packets")).collect();
    assert_eq!(
        explained,
        [
            "2: tcp_state: ACK in original direction is not possible in SYN_SENT",
            "    192.0.2.1:0 > 198.51.100.2:0 TCP ACK seq 101 ack 0 window 1000 length 0",
            "3: malformed_link: an Ethernet header has 14 bytes, and 5 are there",
            "    ababababab",
        ]
    );
    // The zone, unless it is 0, and the VLAN are shown too.
    let tagged =
        frames[..2].iter().map(|frame| [&frame[..12], &[0x81, 0, 0, 5], &frame[12..]].concat());
    let tagged = written(&directory, "tagged.pcap", &pcap(&tagged.collect::<Vec<_>>()));
    let zones = written(&directory, "zones.toml", b"[[zone]]\nid = 7\nvlans = [5]\n");
    for (more, place) in [(&["-c", &zones][..], ", zone 7, VLAN 5"), (&[], ", VLAN 5")] {
        let output = stateway(&[&["replay", &tagged, "--explain"], more].concat());
        assert!(stdout(&output).starts_with(&format!("2: tcp_state{place}: ACK")), "{more:?}");
    }
    let output = stateway(&["replay", &input, "--explain", "--json"]);
    let lines: Vec<Value> =
        stdout(&output).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 3);
    assert_eq!((&lines[0]["number"], &lines[0]["reason"]), (&json!(2), &json!("tcp_state")));
    assert_eq!((&lines[0]["zone"], &lines[0]["vlan"]), (&json!(0), &json!(0)));
    assert_eq!(lines[2]["dropped"], 2, "the report comes last");
}

/// Nobody is there to whom a replay could answer.
#[test]
fn a_packet_that_rules_reset_is_the_only_one_that_is_dropped() {
    let directory = TempDir::new().unwrap();
    let mut frame = Vec::new();
    there().tcp(&Tcp { flags: TcpFlags::SYN, ..Tcp::default() }, b"", &mut frame);
    let input = written(&directory, "in.pcap", &pcap(&[frame]));
    let rules = "table inet t { chain f { type filter hook forward priority 0; \
                 meta l4proto tcp reject with tcp reset\n}\n}\n";
    written(&directory, "rules.nft", rules.as_bytes());
    let config = written(&directory, "gateway.toml", b"[rules]\nfile = \"rules.nft\"\n");
    let report = replayed(&input, &["-c", &config]);
    let of = |reason: &str| {
        let all = report["drops"].as_object().unwrap();
        all.get(reason).and_then(Value::as_u64)
    };
    assert_eq!((&report["dropped"], of("rule_refused")), (&json!(1), Some(1)), "{report}");
}

/// The help explains every key of the report.
#[test]
fn every_key_of_the_report_is_explained() {
    let directory = TempDir::new().unwrap();
    let mut frame = Vec::new();
    there().udp(7, 9, b"x", &mut frame);
    let input = written(&directory, "in.pcap", &pcap(&[frame]));
    let report: Value =
        serde_json::from_str(&stdout(&stateway(&["replay", &input, "--json"]))).expect("a report");
    let help = stdout(&stateway(&["replay", "--help"]));
    let (_, keys) = help.split_once("Keys of the report").expect("a part about keys");
    for key in report.as_object().unwrap().keys() {
        let is_it = |word: &str| word.trim_end_matches(',') == key;
        assert!(keys.split_whitespace().any(is_it), "{key} is not explained:\n{keys}");
    }
}

/// Reassembly explains its drops with numbers: for a single fragment, for two that do not go
/// together, and for a datagram that the capture cuts off.
#[test]
fn each_dropped_fragment_is_explained() {
    let directory = TempDir::new().unwrap();
    let fragment = |id, offset, more, length| {
        let mut frame = Vec::new();
        there().id(id).fragment(17, offset, more, &vec![7; length], &mut frame);
        frame
    };
    let frames = [
        fragment(1, 65_528, false, 8),
        fragment(2, 8, true, 15),
        fragment(3, 0, true, 32),
        fragment(3, 24, true, 16),
        fragment(3, 48, true, 16),
        fragment(4, 0, true, 32),
    ];
    let input = written(&directory, "in.pcap", &pcap(&frames));
    let text = stdout(&stateway(&["replay", &input, "--explain"]));
    let explained: Vec<&str> = text
        .lines()
        .take_while(|line| !line.starts_with("packets"))
        .filter(|line| !line.starts_with(' '))
        .collect();
    let overlap = "frag_overlap: a fragment from 24 to 40 overlaps what had come from 24 to 32";
    assert_eq!(
        explained,
        [
            "1: frag_oversize: 20 bytes of headers and 8 at offset 65528 end at 65556, more than \
             65535",
            "2: frag_length: 15 bytes at offset 8 are not the last and no multiple of 8",
            // The overlapping fragment is dropped first, then the datagram that it ends.
            &format!("4: {overlap}"),
            &format!("3: {overlap}"),
            "5: frag_overlap: came 2 ms after the first fragment of a datagram that was given up \
             before (frag_overlap)",
            "6: frag_incomplete: 1 fragment with 32 bytes, the last one not among them, had come \
             at the end",
        ],
        "{text}"
    );
    assert!(
        text.contains("    192.0.2.1 > 198.51.100.2 UDP fragment 0x1 at 65528 length 8"),
        "{text}"
    );
}

fn outcome(input: &str, directory: &TempDir, workers: &str) -> (Vec<u8>, Vec<u8>) {
    let path = directory.path().join("out.pcap");
    let output =
        stateway(&["replay", input, "--json", "--workers", workers, "-w", path.to_str().unwrap()]);
    assert!(output.status.success(), "{input}: {}", stderr(&output));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["written"], report["passed"]);
    (output.stdout, fs::read(path).unwrap())
}

fn assert_workers_do_not_matter(input: &str) {
    let directory = TempDir::new().unwrap();
    let one = outcome(input, &directory, "1");
    for workers in ["1", "2", "4"] {
        let other = outcome(input, &directory, workers);
        assert!(one == other, "{input}: another result with {workers} workers");
    }
}

#[test]
fn the_result_is_the_same_for_any_number_of_workers() {
    let directory = TempDir::new().unwrap();
    assert_workers_do_not_matter(&written(&directory, "in.pcap", &pcap(&traffic(200))));
}

#[test]
fn the_result_is_the_same_on_real_captures() {
    let captures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/captures");
    let Ok(entries) = fs::read_dir(&captures) else {
        // `println!` would show nothing of a test that passes.
        let skipped = format!("SKIPPED: there is no directory {}\n", captures.display());
        std::io::stderr().write_all(skipped.as_bytes()).unwrap();
        return;
    };
    let paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    let captures = paths.iter().filter(|path| path.extension().is_some_and(|end| end == "pcap"));
    for path in captures {
        assert_workers_do_not_matter(path.to_str().unwrap());
    }
}

#[test]
fn packets_that_pass_are_written_unchanged() {
    let directory = TempDir::new().unwrap();
    let mut frames = traffic(3);
    let input = written(&directory, "in.pcap", &pcap(&frames));
    let (_, output) = outcome(&input, &directory, "1");
    // The last two packets can not pass.
    frames.truncate(frames.len() - 2);
    let bytes: usize = frames.iter().map(|frame| RECORD_HEADER + frame.len()).sum();
    assert_eq!(output.len(), PCAP_HEADER + bytes);
    let mut at = PCAP_HEADER;
    for frame in &frames {
        at += RECORD_HEADER;
        assert_eq!(output[at..at + frame.len()], frame[..]);
        at += frame.len();
    }
}

#[test]
fn a_capture_without_packets_is_a_capture() {
    let directory = TempDir::new().unwrap();
    let input = written(&directory, "in.pcap", &pcap(&[]));
    assert_eq!(replayed(&input, &[])["packets"], 0);
}

#[test]
fn a_capture_that_is_cut_is_played_up_to_the_cut() {
    let directory = TempDir::new().unwrap();
    let whole = pcap(&traffic(3));
    let input = written(&directory, "in.pcap", &whole[..whole.len() - 5]);
    let output = stateway(&["replay", &input, "--json"]);
    assert_eq!(output.status.code(), Some(1));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["packets"], 28, "all but the last");
    assert!(stderr(&output).contains("in.pcap: packet 29"), "{}", stderr(&output));
}

#[test]
fn a_file_that_is_no_capture_is_refused() {
    let directory = TempDir::new().unwrap();
    let garbage = written(&directory, "garbage", &[0x5a; 1000]);
    let nothing = written(&directory, "nothing", b"");
    for input in [garbage.as_str(), nothing.as_str(), "/nonexistent.pcap"] {
        let output = stateway(&["replay", input]);
        assert_eq!(output.status.code(), Some(1), "{input}");
        assert!(output.stdout.is_empty());
        assert!(stderr(&output).contains(input), "{}", stderr(&output));
    }
}

#[test]
fn garbage_inside_a_capture_is_dropped_with_a_reason() {
    let directory = TempDir::new().unwrap();
    let frames: Vec<Vec<u8>> =
        (0..200u32).map(|n| (0..n).map(|m| (n * 31 + m * 17) as u8).collect()).collect();
    let input = written(&directory, "in.pcap", &pcap(&frames));
    let report = replayed(&input, &[]);
    assert_eq!(report["packets"], 200);
    assert_workers_do_not_matter(&input);
}

#[test]
fn a_full_disk_is_told() {
    let directory = TempDir::new().unwrap();
    let input = written(&directory, "in.pcap", &pcap(&traffic(3)));
    let output = stateway(&["replay", &input, "-w", "/dev/full", "--json"]);
    assert_eq!(output.status.code(), Some(1));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&report["packets"], &report["passed"]), (&29.into(), &27.into()));
    assert_eq!(report["written"], 0, "packets passed but were not written");
    let problem = "/dev/full: packet 1: can not be written: No space left on device";
    assert!(report["output_problem"].as_str().unwrap().starts_with(problem), "{report}");
    assert!(stderr(&output).contains(problem), "{}", stderr(&output));

    // A full disk ends the replay long before the end of the capture.
    let long = written(&directory, "long.pcap", &pcap(&traffic(1000)));
    let output = stateway(&["replay", &long, "-w", "/dev/full", "--json"]);
    assert_eq!(output.status.code(), Some(1));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(report["packets"].as_u64().unwrap() < 9002, "{report}");
    assert!(stderr(&output).contains(problem), "{}", stderr(&output));

    let full = fs::File::options().write(true).open("/dev/full").unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_stateway"))
        .args(["replay", &input])
        .stdout(full)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("can not write to standard output"), "{}", stderr(&output));
}

/// A file system with room for some of the packets.
#[test]
fn a_disk_that_fills_up_keeps_what_was_written() {
    let disk = match lab::Namespace::new("disk") {
        Ok(disk) => disk,
        Err(lab::Error::Unavailable { why }) => return println!("SKIPPED: {why}"),
        Err(error) => panic!("{error}"),
    };
    let input = disk.write_file("long.pcap", &pcap(&traffic(1000))).unwrap();
    let (mount, output) = ("/dev/shm/disk", "/dev/shm/disk/out.pcap");
    let make = format!("mkdir {mount} && mount -t tmpfs -o size=400k disk {mount}");
    disk.program("sh").args(["-c", &make]).check().unwrap();
    let replay = |args: &[&str]| {
        let program = disk.program(env!("CARGO_BIN_EXE_stateway")).args(["replay", "--json"]);
        let output = program.args(args).run().unwrap();
        let report: Value = serde_json::from_str(&output.stdout).unwrap();
        (output.code, output.stderr, report)
    };
    let (code, said, report) = replay(&[&input, "-w", output]);
    assert_eq!(code, Some(1));
    let written = report["written"].as_u64().unwrap();
    assert!(written > 1000 && written < report["passed"].as_u64().unwrap(), "{report}");
    let place = format!("{output}: packet {}: can not be written: No space left", written + 1);
    assert!(said.contains(&place), "{said}");
    // All of them are there. The half-written packet behind them does not count.
    let (_, _, kept) = replay(&[output]);
    assert!(kept["packets"].as_u64().unwrap() >= written, "{kept}");
}

#[test]
fn the_tunables_of_a_configuration_hold() {
    let directory = TempDir::new().unwrap();
    let input = written(&directory, "in.pcap", &pcap(&traffic(3)));
    let config = written(&directory, "gw.toml", b"[tunables]\nnf_conntrack_max = 1\n");
    let report = replayed(&input, &["-c", &config]);
    assert!(report["drops"]["table_full"].as_u64().unwrap() > 0, "{report}");

    let wrong = written(&directory, "wrong.toml", b"\n[tunables]\nnf_conntrack_max = -1\n");
    let output = stateway(&["replay", &input, "-c", &wrong]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("wrong.toml:3: tunables.nf_conntrack_max: "));
}

/// A capture of the interfaces wan0 and lan0, in this order; pcapng if the name ends so.
fn captured(directory: &TempDir, name: &str, frames: &[(u16, Vec<u8>)]) -> String {
    let path = directory.path().join(name);
    let mut writer = CaptureWriter::create(&path, &["wan0", "lan0"]).unwrap();
    let mut pool = FramePool::new(1, 1);
    for (port, bytes) in frames {
        let mut frame = pool.copy_of(bytes).unwrap();
        frame.port = PortId(*port);
        writer.write(&frame, "").unwrap();
    }
    writer.finish().unwrap();
    path.display().to_string()
}

#[test]
fn a_replay_judges_packets_by_their_interface_as_the_gateway_does() {
    const WAN: u16 = 0;
    const LAN: u16 = 1;
    let directory = TempDir::new().unwrap();
    let datagram = |builder: PacketBuilder, ports: (u16, u16)| {
        let mut frame = Vec::new();
        builder.udp(ports.0, ports.1, b"?", &mut frame);
        frame
    };
    let frames = [
        (LAN, datagram(there(), (5000, 53))),
        (WAN, datagram(back(), (53, 5000))),
        (WAN, datagram(back(), (5001, 53))),
        (WAN, datagram(back(), (5002, 53))),
        (LAN, datagram(there(), (5001, 53))),
    ];
    let config = "[[interface]]\nname = \"lan0\"\n\n[[interface]]\nname = \"wan0\"\n\
                  new_connections = \"drop\"\n";
    let config = written(&directory, "gateway.toml", config.as_bytes());
    let refused = |input: &str, more: &[&str]| {
        let output = stateway(&[&["replay", input, "--json", "-c", &config], more].concat());
        assert!(output.status.success(), "{}", stderr(&output));
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        let refused = report["drops"]["new_refused"].as_u64().unwrap();
        (refused, report["elsewhere"].as_u64().unwrap(), stderr(&output))
    };
    let named = captured(&directory, "in.pcapng", &frames);
    for workers in ["1", "3"] {
        let (refused, elsewhere, message) = refused(&named, &["--workers", workers]);
        assert_eq!((refused, elsewhere, message.as_str()), (2, 0, ""));
    }
    let unnamed = captured(&directory, "in.pcap", &frames);
    let (from_nowhere, elsewhere, message) = refused(&unnamed, &[]);
    assert_eq!((from_nowhere, elsewhere), (0, 5));
    assert!(message.contains("5 of 5 packets came in by none of the interfaces"), "{message}");
    assert!(message.contains("--interface NAME"), "{message}");
    // All packets come from the side that may open no connection, the answer and the repeated flow
    // too.
    assert_eq!(refused(&unnamed, &["--interface", "wan0"]), (5, 0, String::new()));
    assert_eq!(refused(&unnamed, &["--interface", "lan0"]), (0, 0, String::new()));
    let wrong = stateway(&["replay", &unnamed, "-c", &config, "--interface", "lan1"]);
    assert_eq!(wrong.status.code(), Some(2));
    assert!(stderr(&wrong).contains("there: lan0, wan0"), "{}", stderr(&wrong));
}

#[test]
fn zones_of_a_configuration_hold() {
    let directory = TempDir::new().unwrap();
    let in_vlan = |vlan: u8, port: u16| {
        let mut frame = Vec::new();
        there().udp(port, 53, b"?", &mut frame);
        [&frame[..12], &[0x81, 0, 0, vlan], &frame[12..]].concat()
    };
    let mut frames: Vec<_> = (0..3).map(|port| in_vlan(7, 5000 + port)).collect();
    frames.extend((0..3).map(|port| in_vlan(8, 5000 + port)));
    let input = written(&directory, "in.pcap", &pcap(&frames));
    let config = "[gateway]\nbuckets = 1\n[[zone]]\nid = 5\nvlans = [7]\nmax_connections = 2\n";
    let config = written(&directory, "gateway.toml", config.as_bytes());
    let report = replayed(&input, &["-c", &config]);
    assert_eq!(report["conntrack"]["insert"], 6, "{report}");
    assert_eq!(report["conntrack"]["early_drop"], 1, "the zone has room for two");
    assert_eq!(replayed(&input, &[])["conntrack"]["insert"], 3, "without zones VLANs are one");
}
