//! Files, streams, and packets one by one.

use std::io::Read;
use std::process::Stdio;
use std::time::Duration;

use netio::capture::CapturedPacket;

use super::*;

#[test]
fn no_file_that_is_read_is_overwritten() {
    let directory = TempDir::new().unwrap();
    let bytes = pcap(&traffic(1));
    let input = written(&directory, "in.pcap", &bytes);
    written(&directory, "ruleset.json", b"{\"nftables\": []}");
    let config = written(&directory, "gateway.toml", b"[rules]\nfile = \"ruleset.json\"\n");
    let rules = directory.path().join("ruleset.json").display().to_string();
    let link = |file: &str, name: &str| {
        let (hard, soft) = (directory.path().join(name), directory.path().join(name.repeat(2)));
        fs::hard_link(file, &hard).unwrap();
        std::os::unix::fs::symlink(file, &soft).unwrap();
        [file.to_owned(), hard.display().to_string(), soft.display().to_string()]
    };
    for (file, name) in [(&input, "a"), (&config, "b"), (&rules, "c")] {
        let before = fs::read(file).unwrap();
        for output in link(file, name) {
            let run = stateway(&["replay", &input, "-c", &config, "-w", &output]);
            assert_eq!(run.status.code(), Some(2), "{output}: {}", stderr(&run));
            assert!(stderr(&run).contains("which this replay reads"), "{}", stderr(&run));
            assert_eq!(fs::read(file).unwrap(), before);
        }
    }
    let run = Command::new(env!("CARGO_BIN_EXE_stateway"))
        .args(["replay", "-", "-w", &input])
        .stdin(fs::File::open(&input).unwrap())
        .output()
        .unwrap();
    assert_eq!(run.status.code(), Some(2));
    assert!(stderr(&run).contains("is standard input"), "{}", stderr(&run));
    assert_eq!(fs::read(&input).unwrap(), bytes);
    // A shell appends to a file by `>>`.
    for read in ["-", &input] {
        let run = Command::new(env!("CARGO_BIN_EXE_stateway"))
            .args(["replay", read, "-w", "-"])
            .stdin(fs::File::open(&input).unwrap())
            .stdout(fs::File::options().append(true).open(&input).unwrap())
            .output()
            .unwrap();
        assert_eq!(run.status.code(), Some(2));
        assert!(stderr(&run).contains("standard output is "), "{}", stderr(&run));
        assert_eq!(fs::read(&input).unwrap(), bytes);
    }
}

#[test]
fn captures_come_and_go_as_streams() {
    let directory = TempDir::new().unwrap();
    let input = written(&directory, "in.pcap", &pcap(&traffic(3)));
    let run = Command::new(env!("CARGO_BIN_EXE_stateway"))
        .args(["replay", "-", "-w", "-", "--json"])
        .stdin(fs::File::open(&input).unwrap())
        .output()
        .unwrap();
    assert!(run.status.success(), "{}", stderr(&run));
    let report: Value = serde_json::from_slice(&run.stderr).expect("only the report");
    assert_eq!((&report["input"], &report["packets"]), (&json!("-"), &json!(29)));
    assert_eq!((&report["passed"], &report["written"]), (&json!(27), &json!(27)));
    let passed = written(&directory, "passed.pcapng", &run.stdout);
    assert_eq!(replayed(&passed, &[])["passed"], 27);
}

#[test]
fn a_packet_of_a_stream_is_shown_and_written_before_the_next_one_comes() {
    for (more, shown) in [(&["--packets"][..], &b"1: passed"[..]), (&["-w", "-"], b"\n\r\r\n")] {
        let mut run = Command::new(env!("CARGO_BIN_EXE_stateway"))
            .args([&["replay", "-"], more].concat())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let (mut input, mut output) = (run.stdin.take().unwrap(), run.stdout.take().unwrap());
        input.write_all(&pcap(&traffic(1)[..1])).unwrap();
        let (sender, first) = std::sync::mpsc::channel();
        let reader = std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            let length = output.read(&mut bytes).unwrap();
            sender.send(bytes[..length].to_vec()).unwrap();
            // The program may go on to write.
            output.read_to_end(&mut Vec::new()).unwrap();
        });
        let first = first.recv_timeout(Duration::from_secs(60));
        drop(input);
        let first = first.expect("it is shown while the stream is open");
        assert!(first.starts_with(shown), "{}", String::from_utf8_lossy(&first));
        reader.join().unwrap();
        assert!(run.wait().unwrap().success());
    }
}

#[test]
fn the_report_tells_what_was_mended_and_skipped() {
    let directory = TempDir::new().unwrap();
    let mut frame = Vec::new();
    there().udp(7, 9, b"x", &mut frame);
    frame[24..26].fill(0);
    let path = directory.path().join("in.pcapng");
    let mut writer = CaptureWriter::create_for_captured(&path).unwrap();
    for link_type in [1, 127, 127] {
        let packet = CapturedPacket {
            bytes: &frame,
            link_type,
            interface: "",
            timestamp: 0,
            original_length: frame.len() as u32,
        };
        writer.write_captured(&packet, "").unwrap();
    }
    writer.finish().unwrap();
    let report = replayed(path.to_str().unwrap(), &[]);
    assert_eq!((&report["packets"], &report["passed"]), (&json!(1), &json!(1)));
    assert_eq!(report["mended"], 1);
    let radiotap = "link type 127 (IEEE 802.11 with radiotap header)";
    assert_eq!(report["skipped"], json!({ radiotap: 2 }));
    let text = stdout(&stateway(&["replay", path.to_str().unwrap()]));
    assert!(text.contains("mended   1, whose IP headers an interface would have"), "{text}");
    assert!(text.contains(&format!("skipped  2 of {radiotap}")), "{text}");
}

#[test]
fn each_packet_is_told_in_text_and_as_json() {
    let directory = TempDir::new().unwrap();
    let mut frames = Vec::new();
    for (builder, ports) in [(there(), (7, 9)), (back(), (9, 7))] {
        let mut frame = Vec::new();
        builder.udp(ports.0, ports.1, b"x", &mut frame);
        frames.push(frame);
    }
    frames.push(vec![0xab; 5]);
    let input = written(&directory, "in.pcap", &pcap(&frames));
    let text = stdout(&stateway(&["replay", &input, "--packets"]));
    let lines: Vec<&str> = text.lines().take_while(|line| !line.starts_with("packets")).collect();
    let expected = [
        "1: passed: new, original direction of udp 192.0.2.1:7 > 198.51.100.2:9",
        "    192.0.2.1:7 > 198.51.100.2:9 UDP length 9",
        "2: passed: established, reply direction of udp 192.0.2.1:7 > 198.51.100.2:9",
        "    198.51.100.2:9 > 192.0.2.1:7 UDP length 9",
    ];
    assert_eq!(lines[..4], expected);
    let link =
        "3: dropped: not tracked; malformed_link: an Ethernet header has 14 bytes, and 5 are there";
    assert_eq!(lines[4], link);
    let text = stdout(&stateway(&["replay", &input, "--packets", "--json"]));
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 4, "three packets and the report");
    let of = |line: usize, keys: [&str; 4]| keys.map(|key| lines[line][key].clone());
    let keys = ["outcome", "class", "direction", "connection"];
    let connection = "udp 192.0.2.1:7 > 198.51.100.2:9";
    assert_eq!(of(1, keys), ["passed", "established", "reply", connection].map(|it| json!(it)));
    assert_eq!(of(2, keys), [json!("dropped"), Value::Null, Value::Null, Value::Null]);
    assert_eq!(lines[2]["reason"], "malformed_link");
    let help = stdout(&stateway(&["replay", "--help"]));
    let (_, keys) = help.split_once("Keys of a packet").expect("a part about packets");
    for key in lines[0].as_object().unwrap().keys() {
        let is_it = |word: &str| word.trim_end_matches(',') == key;
        assert!(keys.split_whitespace().any(is_it), "{key} is not explained:\n{keys}");
    }
}

/// A question about a packet means the number that other programs give it too.
#[test]
fn packets_of_a_foreign_link_type_keep_their_numbers_in_questions() {
    let directory = TempDir::new().unwrap();
    let mut frame = Vec::new();
    there().udp(7, 9, b"x", &mut frame);
    let path = directory.path().join("in.pcapng");
    let mut writer = CaptureWriter::create_for_captured(&path).unwrap();
    for link_type in [127, 1] {
        let (interface, timestamp, original_length) = ("", 0, frame.len() as u32);
        let bytes = &frame[..];
        let packet = CapturedPacket { bytes, link_type, interface, timestamp, original_length };
        writer.write_captured(&packet, "").unwrap();
    }
    writer.finish().unwrap();
    let rules = written(&directory, "ruleset.json", b"{\"nftables\": []}");
    let ask = |number: u8| {
        let question = format!("@{}:{number}", path.display());
        stateway(&["rules", "explain", "--file", &rules, &question])
    };
    assert!(stdout(&ask(2)).contains("192.0.2.1:7 > 198.51.100.2:9"), "{}", stderr(&ask(2)));
    assert!(stderr(&ask(1)).contains("packet 1 is of a link type that is not read"));
    assert!(stderr(&ask(3)).contains("there is no packet 3, only 2"), "{}", stderr(&ask(3)));
}
