use super::*;
use std::collections::HashSet;

const PAYLOAD: Payload = [100, 1000];

#[test]
fn a_frame_says_what_the_headers_say() {
    let mut pen = Pen::new(PAYLOAD);
    for flow in [0, 1, 77_777, 1_000_001] {
        let [open, answer, ack] = Segment::handshake(flow);
        let talk = (0..4).map(|step| Segment::talk(flow, step, PAYLOAD));
        for segment in [open, answer, ack, Segment::reset(flow)].into_iter().chain(talk) {
            let headers = pen.headers(&segment);
            let dissected = wire::dissect(pen.frame(&segment)).unwrap();
            assert_eq!(dissected.network, Some(headers), "{segment:?}");
        }
    }
}

#[test]
fn the_ends_take_turns_and_acknowledge_each_other() {
    for flow in [8, 9] {
        let mut next = INITIAL.map(|number| number.wrapping_add(1));
        for step in 0..7 {
            let segment = Segment::talk(flow, step, PAYLOAD);
            let (me, peer) = (segment.sender as usize, 1 - segment.sender as usize);
            assert_eq!(segment.sender as u32, (step ^ flow) & 1);
            assert_eq!((segment.sequence, segment.acknowledgment), (next[me], next[peer]));
            next[me] = next[me].wrapping_add(PAYLOAD[me]);
        }
    }
}

#[test]
fn every_flow_has_its_own_ends() {
    let pen = Pen::new(PAYLOAD);
    let ends: HashSet<_> = (0..200_000)
        .map(|flow| {
            let network = pen.headers(&Segment::handshake(flow)[0]);
            flow::FlowKey::of_packet(&network, flow::Zone::default()).unwrap().key
        })
        .collect();
    assert_eq!(ends.len(), 200_000);
}

#[test]
fn talk_visits_every_flow_before_any_again() {
    let mut traffic = Traffic::talk((0..100).collect(), PAYLOAD);
    for step in 0..3 {
        let round: Vec<Segment> = (0..100).map(|_| traffic.next()).collect();
        let flows: HashSet<u32> = round.iter().map(|segment| segment.flow).collect();
        assert_eq!(flows.len(), 100);
        assert!(round.iter().all(|segment| *segment == Segment::talk(segment.flow, step, PAYLOAD)));
        assert!(round.windows(2).any(|pair| pair[0].flow + 1 != pair[1].flow), "shuffled");
    }
}

#[test]
fn churn_opens_and_ends_every_flow_once() {
    let flows = 2 * LAG as u32;
    let mut traffic = Traffic::churn((0..flows).collect());
    let mut live: HashSet<u32> = traffic.opened_before().iter().copied().collect();
    assert_eq!(live.len(), LAG);
    for _ in 0..3 * flows {
        let segment = traffic.next();
        match segment.kind {
            Kind::Open => assert!(live.insert(segment.flow)),
            Kind::Reset => assert!(live.remove(&segment.flow)),
            Kind::Ack | Kind::Data => unreachable!(),
        }
    }
    assert_eq!(live.len(), LAG);
}
