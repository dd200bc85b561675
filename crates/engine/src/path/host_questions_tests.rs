use std::net::IpAddr;
use std::sync::mpsc::Receiver;

use wire::Network;
use wire::build::PacketBuilder;

use super::*;
use crate::testing::many_workers::TestGateway;
use crate::testing::router::*;

const CLIENT: [u8; 4] = [192, 0, 2, 1];
const SYN: u8 = 0x02;
const RST: u8 = 0x04;
const ACK: u8 = 0x10;

/// Routers that masquerade, with the questions of their workers.
fn routers() -> impl Iterator<Item = (TestGateway, Receiver<HostQuestion>)> {
    [1, 3].into_iter().map(|workers| {
        let mut gateway = gateway(workers);
        let (asker, questions) = HostAsker::new();
        for worker in &mut gateway.workers {
            let own = asker.of_worker(worker.wakeup());
            worker.path.host_questions = Some(Box::new(own));
        }
        (gateway, questions)
    })
}

fn probe() -> PacketBuilder {
    from_outside(SERVER, OWN)
}

impl TestGateway {
    /// Lets packets come in from outside, and returns the frames that go back there.
    fn probed(&mut self, packets: impl IntoIterator<Item = Vec<u8>>) -> Vec<Network> {
        packets.into_iter().for_each(|bytes| self.arrive(1, &bytes));
        self.run_until_idle();
        self.sent(1).iter().map(seen).collect()
    }
}

fn answer(questions: &Receiver<HostQuestion>, part: HostPart) -> Vec<ToHost> {
    let answered = questions.try_iter().map(|question| {
        let packet = question.packet;
        question.answer(part);
        packet
    });
    answered.collect()
}

#[test]
fn a_packet_that_the_host_refuses_is_answered_in_its_name() {
    for (mut gateway, questions) in routers() {
        let sent = [tcp(&probe(), (443, 5000), SYN, (7, 0)), udp(&probe(), (53, 5001), b"ask")];
        assert_eq!(gateway.probed(sent), []);
        let mut asked = answer(&questions, HostPart::Nothing);
        asked.sort_by_key(|it| it.protocol);
        let expected = |protocol, from: u16, to: u16, opens| ToHost {
            port: PortId(1),
            source: (SERVER, from).into(),
            destination: (OWN, to).into(),
            protocol,
            opens,
        };
        assert_eq!(asked, [expected(6, 443, 5000, true), expected(17, 53, 5001, false)]);
        let mut answers = gateway.probed([]);
        answers.sort_by_key(|it| it.protocol);
        let [unreachable, reset] = &answers[..] else { panic!("{answers:?}") };
        for answer in [unreachable, reset] {
            assert_eq!(answer.source_ip(), IpAddr::from(OWN));
            assert_eq!(answer.destination_ip(), IpAddr::from(SERVER));
        }
        assert!(matches!(unreachable.transport, Transport::IcmpError(_)));
        let Transport::Tcp(reset) = reset.transport else { panic!("{reset:?}") };
        assert_eq!((reset.sequence, reset.acknowledgment), (0, 8));
        assert_eq!(reset.flags, TcpFlags::RST.with(TcpFlags::ACK));
        assert_eq!((gateway.to_host(), gateway.dropped(), gateway.connections()), (2, 0, 0));
    }
}

#[test]
fn nobody_asks_again_soon_about_flows_and_destinations_of_the_host() {
    let parts = [
        (HostPart::Flow, 443, FLOW_REMEMBERED),
        (HostPart::Destination, 444, DESTINATION_REMEMBERED),
    ];
    for (mut gateway, questions) in routers() {
        for (part, like, remembered) in parts {
            let packet = tcp(&probe(), (443, 5000), ACK, (7, 7));
            let like = tcp(&probe(), (like, 5000), ACK, (7, 7));
            let unlike = tcp(&probe(), (443, 5001), ACK, (7, 7));
            for _ in 0..3 {
                assert_eq!(gateway.probed([packet.clone()]), []);
                assert_eq!(answer(&questions, part).len(), 1);
                for _ in 0..10 {
                    assert_eq!(gateway.probed([packet.clone()]), []);
                    assert_eq!(answer(&questions, part), []);
                }
                // Each worker remembers what it has asked about itself.
                if gateway.workers.len() == 1 {
                    assert_eq!(gateway.probed([like.clone()]), []);
                    assert_eq!(answer(&questions, part), []);
                }
                assert_eq!(gateway.probed([unlike.clone()]), []);
                assert_eq!(answer(&questions, HostPart::Nothing).len(), 1);
                assert_eq!(gateway.probed([]).len(), 1);
                gateway.now = gateway.now.after(remembered);
            }
            assert_eq!(gateway.probed([packet]), []);
            assert_eq!(answer(&questions, HostPart::Nothing).len(), 1);
            assert_eq!(gateway.probed([]).len(), 1);
        }
    }
}

#[test]
fn a_flood_of_probes_leads_to_bounded_questions_and_touches_no_connection() {
    const PROBES: u16 = 5000;
    for (mut gateway, questions) in routers() {
        let workers = gateway.workers.len();
        let inside = from_inside(CLIENT, SERVER);
        gateway.pass(0, &tcp(&inside, (5000, 443), SYN, (1, 0)));
        let flood =
            |first: u16| (0..PROBES).map(move |it| tcp(&probe(), (9, first + it), SYN, (1, 0)));
        // Nobody answers: no more wait than may, and the rest is the host's.
        assert_eq!(gateway.probed(flood(10_000)), []);
        assert_eq!(gateway.to_host(), u64::from(PROBES));
        let asked = answer(&questions, HostPart::Nothing).len();
        assert_eq!(asked, workers * MAX_WAITING);
        assert_eq!(gateway.probed([]).len(), asked);
        // Each is answered at once, for a second.
        let mut asked = 0;
        for bytes in flood(20_000) {
            gateway.now = gateway.now.after(Duration::from_secs(1) / u32::from(PROBES));
            assert_eq!(gateway.probed([bytes]), []);
            let refused = answer(&questions, HostPart::Nothing).len();
            assert_eq!(gateway.probed([]).len(), refused);
            asked += refused;
            // The connection goes on meanwhile.
            gateway.pass(0, &tcp(&inside, (5000, 443), ACK, (2, 2)));
        }
        let least = QUESTIONS_PER_SECOND as usize - MAX_WAITING;
        let most = workers * (QUESTIONS_PER_SECOND as usize + MAX_WAITING);
        assert!((least..=most).contains(&asked), "{asked} questions of {workers} workers");
        assert_eq!((gateway.dropped(), gateway.connections()), (0, 1));
    }
}

#[test]
fn a_connection_that_opens_meanwhile_is_not_reset() {
    for (mut gateway, questions) in routers() {
        // The probe looks like a segment of the connection.
        assert_eq!(gateway.probed([tcp(&probe(), (443, 5000), SYN | ACK, (7, 2))]), []);
        let opened = gateway.pass(0, &tcp(&from_inside(CLIENT, SERVER), (5000, 443), SYN, (1, 0)));
        assert_eq!(ends(&opened), [(OWN.into(), 5000), (SERVER.into(), 443)]);
        assert_eq!(answer(&questions, HostPart::Nothing).len(), 1);
        assert_eq!(gateway.probed([]), []);
        assert_eq!(gateway.connections(), 1);
    }
}

#[test]
fn a_bucket_that_has_left_takes_the_answer_with_it() {
    let (mut gateway, questions) = routers().last().unwrap();
    for port in 5000..5030 {
        assert_eq!(gateway.probed([tcp(&probe(), (443, port), SYN, (7, 0))]), []);
    }
    for bucket in 0..16 {
        gateway.start_move(bucket, (bucket + 1) % 3);
        gateway.run_until_idle();
    }
    assert_eq!(answer(&questions, HostPart::Nothing).len(), 30);
    assert_eq!(gateway.probed([]), []);
    // The next packets are answered.
    assert_eq!(gateway.probed([tcp(&probe(), (443, 5000), SYN, (7, 0))]), []);
    assert_eq!(answer(&questions, HostPart::Nothing).len(), 1);
    assert_eq!(gateway.probed([]).len(), 1);
}

#[test]
fn nobody_is_asked_about_packets_that_no_host_answers() {
    let mut corrupt = udp(&probe(), (53, 5000), b"ask");
    *corrupt.last_mut().unwrap() ^= 1;
    let mut quoted = Vec::new();
    PacketBuilder::v4(OWN, SERVER).udp(5000, 53, b"", &mut quoted);
    let mut error = Vec::new();
    probe().icmp_error(3, 3, [0; 4], &quoted[14..], &mut error);
    let mut fragments = vec![Vec::new(); 2];
    let datagram = &udp(&probe(), (53, 5000), &[0; 24])[34..];
    for (place, fragment) in fragments.iter_mut().enumerate() {
        let part = &datagram[16 * place..16 * (place + 1)];
        probe().fragment(17, 16 * place as u16, place == 0, part, fragment);
    }
    let to_group = udp(&probe().macs(OUTSIDE, [1, 0, 0x5e, 0, 0, 1]), (53, 5000), b"ask");
    let from_own = udp(&from_outside(OWN, OWN), (53, 5000), b"ask");
    let from_group = udp(&from_outside([224, 0, 0, 9], OWN), (53, 5000), b"ask");
    let from_loopback = udp(&from_outside([127, 0, 0, 1], OWN), (53, 5000), b"ask");
    let never = [
        vec![tcp(&probe(), (443, 5000), RST, (7, 0))],
        vec![tcp(&probe(), (443, 5000), RST | ACK, (7, 7))],
        vec![corrupt],
        vec![error],
        fragments,
        vec![to_group],
        vec![from_own],
        vec![from_group],
        vec![from_loopback],
        // A rule leads it elsewhere, or it is for a host outside.
        vec![tcp(&probe(), (443, 8080), SYN, (7, 0))],
        vec![udp(&from_outside(SERVER, [198, 51, 100, 77]), (53, 5000), b"ask")],
    ];
    for (mut gateway, questions) in routers() {
        for (case, packets) in never.iter().enumerate() {
            gateway.probed(packets.clone());
            let asked = answer(&questions, HostPart::Nothing);
            assert_eq!(asked, [], "case {case}");
        }
    }
}

#[test]
fn a_worker_that_ends_lets_go_of_what_waits() {
    let (mut gateway, questions) = routers().next().unwrap();
    assert_eq!(gateway.probed([udp(&probe(), (53, 5000), b"ask")]), []);
    gateway.workers[0].path.end();
    assert_eq!(answer(&questions, HostPart::Nothing).len(), 1);
    assert_eq!(gateway.probed([]), []);
}
