//! Honest datagrams during floods of fragments that never complete a datagram.

use std::collections::HashSet;
use std::net::Ipv4Addr;
use std::thread::sleep;
use std::time::Duration;

use lab::{
    Attack, Contender, Datagrams, END, FLOOD_GATEWAYS, Family, FloodReport, FloodSpec, Lab,
    NumberedSpec, Piece, Random, Result, StatewaySpec, at_pace, digest, flood, udp,
};
use serde_json::Value;

use super::sequence::PORT;
use crate::scenario::{beside_others, bridge, start, stateway, stateway_binary, stop_cleanly};

/// The rates of the floods in fragments per second, and the duration of the honest traffic.
const RATES: [u32; 2] = [0, 100_000];
const SECONDS: Duration = Duration::from_millis(800);
/// `ipfrag_high_thresh` of the gateway under attack, in bytes.
const MEMORY: u32 = 64 << 20;

/// The fragments of an attack, and their rate per second.
const ATTACK_FRAMES: usize = 44_000;
const ATTACK_RATE: u32 = 20_000;
/// The duration of the honest traffic of each size.
const HONEST: Duration = Duration::from_millis(400);

/// `stateway bench io` measures more rates, and compares them with the kernel.
#[test]
fn honest_datagrams_get_through_a_flood() {
    beside_others(|| {
        let binary = stateway_binary()?;
        let ours = FLOOD_GATEWAYS.into_iter().filter(|(it, _)| *it == Contender::Stateway);
        for (reassembler, memory) in ours {
            for rate in RATES {
                let spec = FloodSpec { reassembler, memory, rate, time: SECONDS };
                let report = flood(&binary, spec)?;
                println!("{report:?}");
                holds_through_the_flood(&report);
            }
        }
        Ok(())
    });
}

/// Checks the share that arrives. The number of datagrams sent depends on which process gets the
/// CPUs.
fn holds_through_the_flood(report: &FloodReport) {
    let FloodReport { spec, during, after } = report;
    for (when, honest) in [("during", during), ("after", after)] {
        assert_eq!(honest.corrupt, 0, "{when} {spec:?}");
        assert!(honest.sent > 0 && honest.received * 2 >= honest.sent, "{when} {report:?}");
    }
}

#[test]
fn no_attack_corrupts_or_stops_honest_datagrams() {
    beside_others(|| {
        let binary = stateway_binary()?;
        let spec = StatewaySpec {
            more: format!(
                "[tunables]\nipfrag_high_thresh = {MEMORY}\n\
                ip6frag_high_thresh = {MEMORY}\nnetdev_max_backlog = 65536\n"
            ),
            ..StatewaySpec::new(binary.clone(), 2)
        };
        let mut lab = start(spec)?;
        let datagrams = Datagrams::new(&lab, &binary)?;
        for attack in Attack::ALL {
            let frames = attack.frames(&lab, ATTACK_FRAMES, 1);
            let flood = datagrams.start_sending(&lab, &at_pace(&frames, ATTACK_RATE))?;
            sleep(Duration::from_millis(100));
            for bytes in [65507, 4416, 1800] {
                honest(&lab, &datagrams, attack, bytes)?;
                memory_is_bounded(&lab, attack)?;
            }
            flood.finish()?;
        }
        for command in ["drops", "status"] {
            println!("{}", stateway(&lab).command(&[command]).check()?);
        }
        stop_cleanly(&mut lab)
    });
}

fn honest(lab: &Lab, datagrams: &Datagrams, attack: Attack, bytes: u16) -> Result<()> {
    let family = if attack == Attack::LongChain { Family::V6 } else { Family::V4 };
    let report =
        datagrams.numbered(lab, &NumberedSpec { family, bytes, time: HONEST, rate: None })?;
    let share = report.received as f64 / report.sent as f64;
    println!("{attack:?}, {bytes} bytes: {share:.3} of {} delivered, {report:?}", report.sent);
    assert_eq!((report.corrupt, report.duplicates), (0, 0), "{attack:?}, {bytes} bytes");
    // A flood between the same addresses invalidates the identifications that it hits.
    let wanted = if attack == Attack::SameAddresses { 0.2 } else { 0.8 };
    assert!(share >= wanted, "{attack:?}, {bytes} bytes: {share:.3} delivered");
    Ok(())
}

/// The memory charged for incomplete datagrams stays within the limit of each family.
fn memory_is_bounded(lab: &Lab, attack: Attack) -> Result<()> {
    let status = stateway(lab).query(&["status"])?;
    let workers = status["workers"].as_array().expect("a list of workers");
    for family in ["v4", "v6"] {
        let charged = |worker: &Value| -> u64 {
            let stages = worker["datagrams"][family].as_object().expect("memory by stage");
            stages.values().map(|bytes| bytes.as_u64().expect("bytes")).sum()
        };
        let total: u64 = workers.iter().map(charged).sum();
        println!("{attack:?}: {family} {total} bytes");
        assert!(total <= u64::from(MEMORY), "{attack:?}: {family} {total} bytes");
    }
    Ok(())
}

/// Identifications repeat while fragments are missing, and no checksum protects the datagrams. Each
/// datagram that arrives was sent, and each datagram that was sent whole arrives.
#[test]
fn identifications_that_come_round_mix_no_datagrams() {
    const DATAGRAMS: u32 = 4000;
    const IDS: u32 = 256;
    const LENGTH: usize = 4416;
    beside_others(|| {
        let mut lab = bridge(2)?;
        let datagrams = Datagrams::new(&lab, &stateway_binary()?)?;
        let addresses = (Ipv4Addr::new(198, 51, 100, 1).into(), lab.server_address(Family::V4));
        let mut random = Random::new(1);
        let mut frames = Vec::new();
        let (mut whole, mut all) = (HashSet::new(), HashSet::new());
        for number in 0..DATAGRAMS {
            let payload = random.bytes(LENGTH);
            let datagram = udp(addresses, (PORT, PORT), &payload, false);
            let missing = random.between(0, 11);
            for (index, bytes) in datagram.chunks(1480).enumerate().filter(|(at, _)| *at != missing)
            {
                let piece = Piece {
                    source: addresses.0,
                    destination: addresses.1,
                    id: 1 + number % IDS,
                    offset: 1480 * index as u32,
                    more: index < 2,
                    ecn: 0,
                    bytes: bytes.to_vec(),
                };
                frames.push(piece.frame(lab.next_hop_mac()));
            }
            all.insert(digest(&payload));
            if missing > 2 {
                whole.insert(digest(&payload));
            }
        }
        frames.push(end(&lab).frame(lab.next_hop_mac()));
        let recorder = datagrams.start_recording(&lab, PORT)?;
        datagrams.start_sending(&lab, &at_pace(&frames, 40_000))?.finish()?;
        let arrived: Vec<u64> = recorder.finish()?.iter().map(|arrival| arrival.digest).collect();
        let mixed = arrived.iter().filter(|digest| !all.contains(digest)).count();
        assert_eq!(mixed, 0, "of {} datagrams that arrived", arrived.len());
        let arrived: HashSet<u64> = arrived.into_iter().collect();
        assert_eq!(whole.difference(&arrived).count(), 0, "of {} whole ones", whole.len());
        stop_cleanly(&mut lab)
    });
}

fn end(lab: &Lab) -> Piece {
    let (source, destination) = (lab.client_address(Family::V4), lab.server_address(Family::V4));
    let bytes = udp((source, destination), (PORT, PORT), END, true);
    Piece { source, destination, id: 0x8000, offset: 0, more: false, ecn: 0, bytes }
}
