//! Options of IPv4 and hop-by-hop options of IPv6.

use lab::{Random, Side};
use wire::build::PacketBuilder;

use crate::scenario::cables::{
    CLIENT, CLIENT_V6, Fate, Numbers, OWN, Router, SERVER, SERVER_V6, Sent,
};
use crate::scenario::{beside_others, drops};

/// The number of packets of each family.
const PACKETS: usize = 600;

/// The types of options that the kernel treats specially. A security label (134) is left out,
/// because the kernel compares it with its configuration.
const KINDS: [u8; 8] = [7, 7, 68, 68, 131, 137, 148, 25];

/// One to four options, mostly well formed, some malformed.
fn options(random: &mut Random) -> Vec<u8> {
    let mut all = Vec::new();
    for _ in 0..random.between(1, 4) {
        let kind = random.one_of(&KINDS);
        let length = match kind {
            148 => 4,
            131 | 137 | 7 => 3 + 4 * random.between(0, 3),
            68 => 4 + 4 * random.between(0, 4),
            _ => random.between(2, 8),
        };
        let mut option = random.bytes(length);
        option[0] = kind;
        option[1] = length as u8;
        if length > 2 {
            let first = if kind == 68 { 5 } else { 4 };
            let place = first + 4 * random.between(0, 3);
            option[2] = if kind == 148 { 0 } else { place as u8 };
        }
        if kind == 148 && !random.once_in(4) {
            option[3] = 0;
        }
        if kind == 68 {
            option[3] = random.one_of(&[0, 0, 1, 1, 3, 3, 7, 0xe0, 0xf0, 0xf1, 0xf3]);
            // Multicast addresses are left out: the kernel takes all of them for its own.
            let named = random.one_of(&[OWN[1], SERVER, [198, 51, 100, 255]]);
            let at = usize::from(option[2]).saturating_sub(1);
            if let Some(place) = option.get_mut(at..at + 4) {
                place.copy_from_slice(&named);
            }
        }
        if random.once_in(5) {
            let at = random.between(1, option.len().min(4) - 1);
            option[at] = random.one_of(&[0, 1, 2, 3, 4, 5, 6, 8, 9, 12, 40, 255]);
        }
        all.extend(vec![1; random.between(0, 2)]);
        all.extend(option);
    }
    if random.once_in(8) {
        let length = random.between(1, 40);
        all = random.bytes(length);
    }
    all.truncate(40);
    if all.len() % 4 > 0 && random.once_in(3) {
        all.push(0);
    }
    while all.len() % 4 > 0 {
        all.push(1);
    }
    all.iter().map(|byte| if *byte == 134 { 135 } else { *byte }).collect()
}

fn v4(random: &mut Random, payload: &[u8]) -> Vec<u8> {
    let to = if random.once_in(10) { OWN[1] } else { SERVER };
    let ttl = if random.once_in(10) { 1 } else { 64 };
    let mut frame = Vec::new();
    PacketBuilder::v4(CLIENT, to).ttl(ttl).options(&options(random)).udp(7, 9, payload, &mut frame);
    frame
}

/// A hop-by-hop header, mostly well formed.
fn hop_by_hop(random: &mut Random) -> Vec<u8> {
    let mut header = vec![17, 0];
    for _ in 0..random.between(0, 4) {
        // The type 7 is left out: it is a security label, too.
        let kind = random.one_of(&[5, 5, 0xc2, 0x1e, 0x1e, 0x3e, 0x5e, 0x9e, 0xde, 1, 0]);
        let length = match kind {
            5 => 2,
            0xc2 => 4,
            _ => random.between(0, 6),
        };
        let length = if random.once_in(8) { random.between(0, 6) } else { length };
        header.push(kind);
        if kind > 0 {
            header.push(length as u8);
            let body = random.bytes(length);
            let is_clear = kind == 1 && !random.once_in(6);
            header.extend(body.iter().map(|byte| if is_clear { 0 } else { *byte }));
        }
    }
    if random.once_in(10) {
        header.extend([0x1e, 0].repeat(random.between(7, 9)));
    }
    // Pads to a multiple of 8 with one option, with several, or with random bytes.
    let missing = header.len().next_multiple_of(8) - header.len();
    match (missing, random.between(0, 5)) {
        (_, 0) => header.extend(random.bytes(missing)),
        (2.., 1..=4) => {
            header.extend([1, missing as u8 - 2]);
            header.extend(vec![0; missing - 2]);
        }
        _ => header.extend(vec![0; missing]),
    }
    header[1] = (header.len() / 8 - 1) as u8;
    header
}

fn v6(random: &mut Random, payload: &[u8]) -> Vec<u8> {
    let mut frame = Vec::new();
    let ttl = if random.once_in(10) { 1 } else { 64 };
    PacketBuilder::v6(CLIENT_V6, SERVER_V6).ttl(ttl).udp(7, 9, payload, &mut frame);
    let header = hop_by_hop(random);
    frame[20] = 0;
    let length = u16::from_be_bytes([frame[18], frame[19]]) + header.len() as u16;
    frame[18..20].copy_from_slice(&length.to_be_bytes());
    frame.splice(54..54, header);
    frame
}

/// The part of an outcome that must be equal for both routers: the side and the content of a
/// forwarded packet without timestamps, and the type, code and pointer of errors.
fn gist(fate: &Fate) -> Fate {
    let out = fate.out.iter().map(|(side, frame)| (*side, without_times(frame)));
    let answers = fate.answers.iter().map(|answer| {
        let pointer = if [answer[0], answer[1]] == [12, 0] || answer[0] == 4 { 4..8 } else { 0..0 };
        [&answer[..2], &answer[pointer]].concat()
    });
    Fate { out: out.collect(), answers: answers.collect() }
}

/// A frame without the timestamps in its options and the checksum over them.
fn without_times(frame: &[u8]) -> Vec<u8> {
    let mut packet = frame[14..].to_vec();
    let end = usize::from(packet[0] & 15) * 4;
    if packet[0] >> 4 != 4 || end == 20 {
        return packet;
    }
    packet[10..12].fill(0);
    let mut at = 20;
    while at < end && packet[at] > 0 {
        let length = if packet[at] == 1 { 1 } else { usize::from(packet[at + 1]).max(1) };
        // The pointer starts at 1 and refers to the next entry; the last timestamp is in front of
        // that.
        let time = (at + usize::from(packet[at + 2])).saturating_sub(5);
        if packet[at] == 68 && (at + 4..at + length).contains(&time) {
            packet[time..(time + 4).min(end)].fill(0);
        }
        at += length;
    }
    packet
}

/// True if the readable options include a source route.
fn has_source_route(frame: &[u8]) -> bool {
    let end = 14 + usize::from(frame[14] & 15) * 4;
    let mut rest = if frame[14] >> 4 == 4 { &frame[34..end] } else { &[] };
    while let Some(kind @ 1..) = rest.first().copied() {
        let length = match (kind, rest.get(1)) {
            (1, _) => 1,
            (_, Some(length)) => usize::from(*length),
            _ => 0,
        };
        if length == 0 || length > rest.len() {
            return false;
        }
        if matches!(kind, 131 | 137) {
            return true;
        }
        rest = &rest[length..];
    }
    false
}

#[test]
fn options_are_treated_as_by_a_kernel_that_forwards() {
    beside_others(|| {
        let router = Router::new()?;
        let (mut random, mut numbers) = (Random::new(1), Numbers::default());
        let mut sent = Vec::new();
        for _ in 0..PACKETS {
            for make in [v4, v6] {
                let frame = make(&mut random, &numbers.payload());
                sent.push(Sent { side: Side::Client, frame });
            }
        }
        let theirs = router.play(&sent)?;
        let stateway = router.stateway([""; 2])?;
        let ours = router.play(&sent)?;
        println!("{}", stateway.command(&["drops"]).check()?);
        let (mut tally, mut silent) = ([0; 4], 0);
        let mut differences = Vec::new();
        for ((sent, theirs), ours) in sent.iter().zip(&theirs).zip(&ours) {
            let (mut theirs, ours) = (gist(theirs), gist(ours));
            // The kernel may send its answer back along the source route.
            if ours.is_silent() && theirs.out.is_empty() && has_source_route(&sent.frame) {
                theirs.answers.clear();
            }
            // The kernel copies options into its answers. It sends none if a copied timestamp
            // option has room for only half an entry.
            if theirs.is_silent() && ours.out.is_empty() && !ours.answers.is_empty() {
                silent += 1;
                continue;
            }
            let is_v6 = usize::from(sent.frame[12] == 0x86);
            tally[2 * is_v6 + usize::from(theirs.out.is_empty())] += 1;
            if theirs != ours {
                differences.push(format!(
                    "{:x?}\nkernel: {theirs:x?}\nours: {ours:x?}",
                    &sent.frame[14..]
                ));
            }
        }
        println!("IPv4 on, IPv4 not, IPv6 on, IPv6 not: {tally:?}; the kernel is silent: {silent}");
        let count = differences.len();
        differences.truncate(5);
        assert_eq!(count, 0, "of {}:\n{}", sent.len(), differences.join("\n"));
        assert!(tally.iter().all(|count| *count > PACKETS / 8), "{tally:?}");
        assert!(silent < PACKETS / 50, "{silent}");
        stateway.stop().map(drop)
    });
}

/// Each packet tries to trick the router, or asks for something that it has to do.
#[test]
fn source_routes_end_at_the_router_and_recorded_routes_have_it() {
    beside_others(|| {
        let router = Router::new()?;
        let mut numbers = Numbers::default();
        let mut packet = |options: &[u8]| {
            let mut frame = Vec::new();
            let builder = PacketBuilder::v4(CLIENT, SERVER).options(options);
            builder.udp(7, 9, &numbers.payload(), &mut frame);
            Sent { side: Side::Client, frame }
        };
        let loose = packet(&[131, 7, 4, 198, 51, 100, 99, 0]);
        let strict = packet(&[137, 7, 4, 198, 51, 100, 99, 0]);
        let malformed = packet(&[1, 68, 3, 5]);
        let record = packet(&[7, 11, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        let stateway = router.stateway([""; 2])?;
        let fates = router.play(&[loose, strict, malformed, record])?;
        assert!(fates[0].is_silent() && fates[1].is_silent(), "{:?}", &fates[..2]);
        assert!(fates[2].out.is_empty());
        assert_eq!(fates[2].answers.len(), 1);
        assert_eq!(fates[2].answers[0][..2], [12, 0]);
        assert_eq!(fates[2].answers[0][4], 22, "the length of the timestamp");
        let (_, passed) = &fates[3].out[0];
        let [a, b, c, d] = OWN[1];
        assert_eq!(passed[34..46], [7, 11, 8, a, b, c, d, 0, 0, 0, 0, 0]);
        for (reason, expected) in [("source_route", 2), ("ip_options", 1)] {
            assert_eq!(drops(&stateway, reason)?, expected, "{reason}");
        }
        stateway.stop().map(drop)
    });
}
