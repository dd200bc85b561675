//! The same fragments to a kernel and to a kernel behind Stateway.

use std::collections::BTreeMap;
use std::time::Instant;

use lab::{Datagrams, Family, Gateway, Lab, Namespace, Placement, Result};

use super::batch::{Batch, SEQUENCES};
use super::model::{Expected, Stricter, kernel, stateway};
use super::sequence::{PORT, Sequence};
use crate::scenario::{alone, stateway_binary};

/// Batches through each receiver.
const BATCHES: u32 = 8;
/// Memory for what stays incomplete, bytes: nothing is to be lost for want of it.
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

#[test]
fn every_difference_to_the_kernel_has_a_rule_and_every_rule_a_case() {
    let address = |family| match family {
        Family::V4 => "192.0.2.2".parse().unwrap(),
        Family::V6 => "2001:db8:1::2".parse().unwrap(),
    };
    let (mut differ, mut whole) = (BTreeMap::new(), 0);
    for number in 0..BATCHES {
        for sequence in Batch::generate(number, address).sequences {
            let Expected { arrivals, rules } = stateway(&sequence);
            let same = arrivals == kernel(&sequence).arrivals;
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
        assert!(differ.contains_key(&rule), "no sequence meets {rule:?}");
    }
    assert!(whole > SEQUENCES as usize, "{whole} datagrams");
}

/// Room for what stays incomplete until its time is over.
fn make_room(receiver: &Namespace) -> Result<()> {
    let settings = [
        format!("net.ipv4.ipfrag_high_thresh={MEMORY}"),
        format!("net.ipv6.ip6frag_high_thresh={MEMORY}"),
        // The sources are nowhere.
        "net.ipv4.conf.all.rp_filter=0".into(),
        "net.ipv4.conf.eth0.rp_filter=0".into(),
    ];
    receiver.program("sysctl").args(["-qw"]).args(settings).check().map(drop)
}

/// Sends all batches and complains of what should not have arrived or did not.
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
        assert!(complaints.is_empty(), "batch {number}: {complaints}");
    }
    Ok(())
}

#[test]
fn the_kernel_does_what_its_model_says() {
    alone(|| {
        let lab = Lab::new(Gateway::KernelBridge, Placement::free())?;
        send_batches(&lab, kernel)
    });
}
