//! DCCP, on kernels with a tracker for it: Linux up to 6.15.

use lab::{Family, Random};
use wire::dccp::PacketType as Type;
use wire::protocol;

use crate::scenario::trackers::dialogue::{Client, Dialogue, Ends, Server, Side, Step, interrupt};
use crate::scenario::trackers::{A_SECOND_IS_OVER, BATCH, Comparison};

/// Only honest dialogues: for others no kernel with our behaviour is available as a model.
pub const DCCP: Comparison = Comparison {
    name: "dccp",
    seeds: BATCH,
    pause: |_| A_SECOND_IS_OVER,
    turns_after: None,
    tunables,
    generate,
    rule: |_| None,
    rules: &[],
    lists_alike: |_| true,
    expected: None,
};

fn tunables(_: u64) -> Vec<(String, u64)> {
    let timers = [
        ("request", 30),
        ("respond", 40),
        ("partopen", 50),
        ("open", 600),
        ("closereq", 60),
        ("closing", 70),
        ("timewait", 90),
    ];
    timers.map(|(state, time)| (format!("nf_conntrack_dccp_timeout_{state}"), time)).into()
}

const PORTS: [u16; 2] = [5000, 53];

/// A packet with an extended sequence number (RFC 4340 section 5.1).
fn packet(from: Side, kind: Type, sequence: u64, acknowledgment: u64) -> Vec<u8> {
    let mut bytes = PORTS[from as usize].to_be_bytes().to_vec();
    bytes.extend(PORTS[from.other() as usize].to_be_bytes());
    bytes.extend([0, 0, 0, 0, (kind as u8) << 1 | 1, 0]);
    bytes.extend(&sequence.to_be_bytes()[2..]);
    if !matches!(kind, Type::Request | Type::Data) {
        bytes.extend(acknowledgment.to_be_bytes());
    }
    bytes.extend([0; 4]);
    bytes[4] = (bytes.len() / 4) as u8;
    bytes
}

fn generate(seed: u64) -> Dialogue {
    let mut random = Random::new(seed);
    let family = random.one_of(&[Family::V4, Family::V6]);
    let ends = Ends::of(seed % BATCH, family);
    let mut kinds = vec![(Client, Type::Request), (Server, Type::Response), (Client, Type::Ack)];
    if random.once_in(3) {
        kinds.insert(0, kinds[0]);
    }
    for _ in 0..random.between(1, 6) {
        let talk = [Type::Data, Type::Ack, Type::DataAck, Type::Sync, Type::SyncAck];
        kinds.push((Server, Type::DataAck));
        kinds.push((random.one_of(&Side::BOTH), random.one_of(&talk)));
    }
    match random.between(0, 2) {
        0 => kinds.extend([(Server, Type::CloseReq), (Client, Type::Close), (Server, Type::Reset)]),
        1 => kinds.extend([(Client, Type::Close), (Server, Type::Reset)]),
        _ => kinds.push((random.one_of(&Side::BOTH), Type::Reset)),
    }
    let mut sent = [random.bits() >> 17, random.bits() >> 17];
    let frame = |from: Side, kind, sent: &[u64; 2]| {
        let numbers = (sent[from as usize], sent[from.other() as usize]);
        let mut frame = Vec::new();
        let bytes = packet(from, kind, numbers.0, numbers.1);
        ends.from(from).transport(protocol::DCCP, &bytes, &mut frame);
        frame
    };
    let flow = frame(Client, Type::Request, &sent);
    let steps = kinds.into_iter().map(|(from, kind)| {
        sent[from as usize] += 1;
        Step::Send(from, frame(from, kind, &sent))
    });
    let steps = steps.collect();
    Dialogue { seed, ends, flow, steps: interrupt(&mut random, steps) }
}
