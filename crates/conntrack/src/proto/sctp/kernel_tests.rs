//! The tracker beside the kernel's, packet by packet.

use std::collections::{BTreeMap, HashMap};
use std::io::Write;
use std::process::{Command, Stdio};

use wire::protocol;
use wire::sctp::chunk_type as of;

use super::tests::{TO_CLIENT, TO_SERVER, chunk, init, one, packet, set_up};
use crate::Direction::{self, Original as Client, Reply as Server};
use crate::proto::dialogue::{Dialogue, FIRST_PORT};

type Line = (Direction, Vec<u8>);

/// Picks what happens; a case is reproduced by its number.
struct Dice(u64);

impl Dice {
    /// A number below `bound` (splitmix64, Steele et al. 2014).
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % bound as u64) as usize
    }
}

/// What two honest ends say to each other.
fn dialogue(dice: &mut Dice) -> Vec<Line> {
    let mut lines: Vec<Line> =
        set_up().into_iter().map(|(from, packet, _)| (from, packet)).collect();
    if dice.below(4) == 0 {
        lines = vec![
            (Client, init(0, of::INIT, TO_CLIENT)),
            (Server, init(0, of::INIT, TO_SERVER)),
            (Client, init(TO_SERVER, of::INIT_ACK, TO_CLIENT)),
            (Server, init(TO_CLIENT, of::INIT_ACK, TO_SERVER)),
            (Server, one(TO_CLIENT, of::COOKIE_ECHO)),
            (Client, one(TO_SERVER, of::COOKIE_ACK)),
        ];
    } else if dice.below(5) == 0 {
        lines = vec![
            (Client, one(TO_SERVER, of::HEARTBEAT)),
            (Server, one(TO_CLIENT, of::HEARTBEAT_ACK)),
        ];
    }
    let tag = |from| if from == Client { TO_SERVER } else { TO_CLIENT };
    for _ in 0..dice.below(5) {
        let from = [Client, Server][dice.below(2)];
        let both = packet(tag(from), &[chunk(of::SACK, 0, &[0; 12]), chunk(of::DATA, 3, b"data")]);
        match dice.below(3) {
            0 => lines.push((from, one(tag(from), of::DATA))),
            1 => lines.push((from, both)),
            _ => {
                lines.push((from, one(tag(from), of::HEARTBEAT)));
                lines.push((from.reversed(), one(tag(from.reversed()), of::HEARTBEAT_ACK)));
            }
        }
    }
    let from = [Client, Server][dice.below(2)];
    let back = from.reversed();
    match dice.below(3) {
        0 => lines.push((from, one(tag(from), of::ABORT))),
        1 => lines.push((from, packet(tag(back), &[chunk(of::ABORT, 1, &[])]))),
        _ => lines.extend([
            (from, one(tag(from), of::SHUTDOWN)),
            (back, one(tag(back), of::SHUTDOWN_ACK)),
            (from, one(tag(from), of::SHUTDOWN_COMPLETE)),
        ]),
    }
    lines
}

/// Loses, repeats, reorders and forges packets.
fn mistreat(lines: &mut Vec<Line>, dice: &mut Dice) {
    for _ in 0..1 + dice.below(3) {
        let at = dice.below(lines.len());
        match dice.below(5) {
            0 if lines.len() > 1 => drop(lines.remove(at)),
            1 => lines.insert(at, lines[at].clone()),
            2 => {
                let next = (at + 1) % lines.len();
                lines.swap(at, next);
            }
            3 => {
                let kind = [of::DATA, of::INIT, of::ABORT, of::SHUTDOWN, of::HEARTBEAT, 63];
                let tag = [0, 7, TO_CLIENT, TO_SERVER][dice.below(4)];
                let from = [Client, Server][dice.below(2)];
                lines.insert(at, (from, init(tag, kind[dice.below(6)], 9)));
            }
            _ => lines[at].1[7] = dice.below(256) as u8,
        }
    }
}

/// What the kernel says.
#[derive(Default)]
struct Judgement {
    /// The class of each frame by its number.
    classes: HashMap<u16, String>,
    /// The state at the end by the client's port.
    states: HashMap<u16, String>,
}

/// `None` where the kernel can not be asked.
fn judged_by_the_kernel(frames: &[Vec<u8>]) -> Option<Judgement> {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/src/proto/sctp/kernel.py");
    let mut python = Command::new("unshare")
        .args(["--user", "--map-root-user", "--net", "python3", script])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .ok()?;
    let hex = |frame: &Vec<u8>| frame.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let text = frames.iter().map(hex).collect::<Vec<_>>().join("\n");
    python.stdin.take()?.write_all(text.as_bytes()).ok()?;
    let output = python.wait_with_output().ok()?;
    if !output.status.success() {
        println!("{}", String::from_utf8_lossy(&output.stderr));
        return None;
    }
    let mut judgement = Judgement::default();
    for line in String::from_utf8(output.stdout).ok()?.lines() {
        let [what, number, said] = *line.split(' ').collect::<Vec<_>>() else { return None };
        let map = if what == "class" { &mut judgement.classes } else { &mut judgement.states };
        map.insert(number.parse().ok()?, said.to_owned());
    }
    Some(judgement)
}

/// Why this tracker differs from the kernel's in the last packet of a dialogue; all of it
/// is said in the documentation of the tracker. `None` for what is a mistake.
fn reason(said: &[(u16, Vec<u8>, String)], kernel: &str) -> Option<&'static str> {
    let (last, before) = said.split_last()?;
    let word = |packet: &[u8], at| u32::from_be_bytes(*packet[at..].first_chunk().unwrap());
    let (tag, initiate_tag) = (|packet: &[u8]| word(packet, 4), |packet: &[u8]| word(packet, 16));
    let kind = |packet: &[u8]| packet[12];
    let foreign = |tag| tag != TO_CLIENT && tag != TO_SERVER;
    let had = |what: &dyn Fn(&[u8]) -> bool| before.iter().any(|(_, packet, _)| what(packet));
    let abort = |packet: &[u8]| kind(packet) == of::ABORT;
    let forged_init = |packet: &[u8]| kind(packet) == of::INIT && foreign(initiate_tag(packet));
    let foreign_heartbeat = |packet: &[u8]| kind(packet) == of::HEARTBEAT && foreign(tag(packet));
    let (packet, ours) = (&last.1, class(&last.2));
    match (kind(packet), ours, kernel) {
        (of::INIT, "new", "established") => Some("opens anew after the end"),
        (kind, "invalid", _) if tag(packet) == 0 && kind != of::INIT => Some("tag of zero"),
        (of::SHUTDOWN_ACK, "invalid", "established") => Some("tag of a SHUTDOWN ACK"),
        (of::INIT_ACK, "invalid", "established") if had(&abort) => Some("answer after the end"),
        (_, "established", "invalid") if had(&forged_init) => Some("forged INIT"),
        (_, "established", "invalid") if had(&foreign_heartbeat) => Some("corrected tags"),
        _ => None,
    }
}

fn class(said: &str) -> &str {
    match said.split_once(',') {
        Some((class @ ("new" | "established"), _)) => class,
        _ => "invalid",
    }
}

const CASES: u16 = 2000;

#[test]
fn the_kernel_says_the_same_but_for_what_is_known() {
    let (mut frames, mut cases) = (Vec::new(), Vec::new());
    for case in 0..CASES {
        let mut dice = Dice(case.into());
        let mut lines = dialogue(&mut dice);
        // A third is honest.
        if case % 3 != 0 {
            mistreat(&mut lines, &mut dice);
        }
        let mut ours = Dialogue::of(protocol::SCTP);
        let mut said = Vec::new();
        for (from, packet) in lines {
            let number = frames.len() as u16;
            frames.push(ours.numbered(from, &packet, case, number));
            let answer = ours.says(from, &packet);
            said.push((number, packet, answer));
        }
        cases.push(said);
    }
    let Some(judged) = judged_by_the_kernel(&frames) else {
        println!("SKIPPED: needs user namespaces, python3, nft and the kernel's SCTP tracker");
        return;
    };
    if judged.classes.len() != frames.len() {
        println!("SKIPPED: the kernel has lost packets, {} are left", judged.classes.len());
        return;
    }
    let mut reasons: BTreeMap<_, usize> = BTreeMap::new();
    for (case, said) in cases.iter().enumerate() {
        // What follows a difference differs, too.
        let differs = |(number, _, said): &(u16, _, String)| judged.classes[number] != class(said);
        let Some(at) = said.iter().position(differs) else {
            let state = said.last().and_then(|(_, _, said)| said.split(' ').nth(1));
            let kernel = judged.states.get(&(FIRST_PORT + case as u16)).map(String::as_str);
            assert_eq!(kernel.unwrap_or("none"), state.unwrap_or("none"), "case {case}");
            continue;
        };
        let kernel = &judged.classes[&said[at].0];
        let reason = reason(&said[..=at], kernel);
        for (_, packet, said) in said[..=at].iter().filter(|_| reason.is_none()) {
            println!(
                "case {case}: tag {:02x?} chunks {:02x?}: {said}",
                &packet[4..8],
                &packet[12..]
            );
        }
        println!("case {case}: {reason:?}, kernel {kernel}");
        *reasons.entry(reason).or_default() += 1;
    }
    println!("{CASES} dialogues of {} packets, differences: {reasons:#?}", frames.len());
    assert_eq!(reasons.get(&None), None);
}
