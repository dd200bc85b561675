//! The same fragments sent to a kernel directly, and to a kernel behind Stateway.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::net::IpAddr;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use lab::{Capture, Datagrams, Family, Lab, Namespace, Piece, Result, StatewaySpec};

use super::batch::{Batch, SEQUENCES};
use super::model::{self, Expected, Stricter};
use super::sequence::{PORT, Sequence};
use crate::scenario::{
    beside_others, bridge_spec, kernel_bridge, start, stateway_binary, stop_cleanly,
};

/// The number of batches that each receiver gets.
const BATCHES: u32 = 6;
/// The memory for incomplete datagrams in bytes, enough that none is dropped for lack of it.
const MEMORY: u32 = 256 << 20;

const RULES: [Stricter; 9] = [
    Stricter::OddLength,
    Stricter::Empty,
    Stricter::Oversize,
    Stricter::Remembered,
    Stricter::Duplicate,
    Stricter::MoreAtEnd,
    Stricter::EcnAtOnce,
    Stricter::ManyPieces,
    Stricter::Distance,
];

fn address(family: Family) -> IpAddr {
    match family {
        Family::V4 => "192.0.2.2".parse().unwrap(),
        Family::V6 => "2001:db8:1::2".parse().unwrap(),
    }
}

#[test]
fn every_difference_to_the_kernel_has_a_rule_and_every_rule_a_case() {
    let (mut differ, mut whole) = (BTreeMap::new(), 0);
    for number in 0..BATCHES {
        for sequence in Batch::generate(number, address).sequences {
            let Expected { arrivals, rules } = model::stateway(&sequence);
            let same = arrivals == model::kernel(&sequence).arrivals;
            assert!(same || !rules.is_empty(), "seed {}", sequence.seed);
            whole += arrivals.len();
            for rule in rules {
                let (used, different) = differ.entry(rule).or_insert((0, 0));
                *used += 1;
                *different += u32::from(!same);
            }
        }
    }
    println!("{whole} datagrams; rules, how often used, how often with a difference: {differ:?}");
    for rule in RULES {
        let different = differ.get(&rule).is_some_and(|(_, different)| *different > 0);
        assert!(different, "{rule:?} never makes a difference");
    }
    assert!(whole > SEQUENCES as usize, "{whole} datagrams");
}

/// Gives the receiver enough memory for incomplete datagrams until they time out.
fn make_room(receiver: &Namespace) -> Result<()> {
    let settings = [
        format!("net.ipv4.ipfrag_high_thresh={MEMORY}"),
        format!("net.ipv6.ip6frag_high_thresh={MEMORY}"),
        // The receiver has no route back to the sources.
        "net.ipv4.conf.all.rp_filter=0".into(),
        "net.ipv4.conf.eth0.rp_filter=0".into(),
    ];
    receiver.sysctl(&settings)
}

/// Sends all batches and describes each difference from the expected arrivals.
fn send_batches(lab: &Lab, expected: impl Fn(&Sequence) -> Expected) -> Result<()> {
    make_room(lab.server())?;
    let datagrams = Datagrams::new(lab, &stateway_binary()?)?;
    let addresses = (lab.client_address(Family::V4), lab.server_address(Family::V4));
    for number in 0..BATCHES {
        let batch = Batch::generate(number, |family| lab.server_address(family));
        let capture = batch.capture(lab.next_hop_mac(), addresses);
        let start = Instant::now();
        let recorder = datagrams.start_recording(lab, PORT)?;
        datagrams.start_sending(lab, &capture)?.finish()?;
        let arrivals = recorder.finish()?;
        println!(
            "batch {number}: {} frames, {} datagrams arrived, {:.1} s",
            capture.frames(),
            arrivals.len(),
            start.elapsed().as_secs_f64()
        );
        let complaints = batch.complaints(arrivals, &expected);
        if !complaints.is_empty() {
            for command in ["drops", "status"] {
                if let Some(stateway) = lab.stateway() {
                    println!("{}", stateway.command(&[command]).check()?);
                }
            }
            panic!("batch {number}: {complaints}");
        }
    }
    Ok(())
}

#[test]
fn the_kernel_does_what_its_model_says() {
    beside_others(|| {
        let lab = kernel_bridge()?;
        send_batches(&lab, model::kernel)
    });
}

/// The configuration of a gateway that drops nothing for lack of memory, or because one of its
/// workers waited for a CPU.
fn tunables() -> String {
    format!(
        "[tunables]\nipfrag_high_thresh = {MEMORY}\nip6frag_high_thresh = {MEMORY}\n\
        netdev_max_backlog = 65536\n"
    )
}

#[test]
fn behind_stateway_arrives_what_its_rules_say() {
    beside_others(|| {
        let spec = StatewaySpec { more: tunables(), ..bridge_spec(2)? };
        let mut lab = start(spec)?;
        send_batches(&lab, model::stateway)?;
        stop_cleanly(&mut lab)
    });
}

/// The same in a replay: the kernel's model reassembles what the replay lets through.
#[test]
fn a_replay_passes_what_its_rules_say() {
    beside_others(|| {
        let binary = stateway_binary()?;
        let end = ("192.0.2.1".parse().unwrap(), address(Family::V4));
        for number in 0..BATCHES {
            let batch = Batch::generate(number, address);
            let passed = replay(&binary, &batch.capture([2; 6], end));
            let mut by_source: HashMap<IpAddr, Vec<Piece>> = HashMap::new();
            for piece in passed {
                by_source.entry(piece.source).or_default().push(piece);
            }
            let arrivals = batch.sequences.iter().flat_map(|sequence| {
                let pieces = by_source.remove(&sequence.place.source).unwrap_or_default();
                model::kernel(&Sequence { pieces, ..sequence.clone() }).arrivals
            });
            let complaints = batch.complaints(arrivals.collect(), model::stateway);
            assert!(complaints.is_empty(), "batch {number}: {complaints}");
        }
        Ok(())
    });
}

/// The frames that a replay lets through, all of them UDP.
fn replay(binary: &Path, capture: &Capture) -> Vec<Piece> {
    let [input, output, config] = ["fragments.pcap", "passed.pcap", "fragments.toml"]
        .map(|name| Path::new(env!("CARGO_TARGET_TMPDIR")).join(name));
    fs::write(&input, capture.bytes()).unwrap();
    fs::write(&config, tunables()).unwrap();
    let report = Command::new(binary)
        .args(["replay".as_ref(), input.as_os_str(), "-w".as_ref(), output.as_os_str()])
        .args(["-c".as_ref(), config.as_os_str()])
        .output()
        .unwrap();
    assert!(report.status.success(), "{report:?}");
    let passed = fs::read(&output).unwrap();
    let frames = Capture::read(&passed).expect("a capture");
    frames.into_iter().map(|frame| Piece::read(frame).expect("a UDP packet")).collect()
}
