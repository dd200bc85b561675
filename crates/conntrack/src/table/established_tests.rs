use std::time::Duration;

use wire::{Family, Network};

use crate::proto::tcp::{TcpSettings, TcpState};
use crate::testing::{Lab, SECRET, keyed, tcp, udp};
use crate::{Counts, Table, TimeoutPolicy};

const SYN: u8 = 2;
const ACK: u8 = 16;

/// The segments of client and server after the handshake.
fn segments() -> [Network; 2] {
    [
        tcp(Family::V4, (1, 1000), (9, 80), ACK, (101, 201)),
        tcp(Family::V4, (9, 80), (1, 1000), ACK, (201, 101)),
    ]
}

fn shake_hands(lab: &mut Lab) {
    lab.track(&tcp(Family::V4, (1, 1000), (9, 80), SYN, (100, 0)));
    lab.track(&tcp(Family::V4, (9, 80), (1, 1000), SYN | ACK, (200, 101)));
    lab.track(&segments()[0]);
}

/// Remaining lifetime of a connection, seconds.
fn left(lab: &Lab, packet: &Network) -> u64 {
    let key = keyed(packet).key;
    lab.table.get(&key, key.hash(SECRET), lab.now).expect("it lives").timeout_s
}

#[test]
fn packets_on_an_established_connection_are_counted() {
    let mut lab = Lab::new();
    lab.settings.set("nf_conntrack_acct", 1).unwrap();
    shake_hands(&mut lab);
    for _ in 0..5 {
        for segment in &segments() {
            lab.track(segment);
        }
    }
    let listed = lab.listed();
    let counts = |packets| Counts { packets, bytes: packets * 48 };
    assert_eq!(listed[0].counters, Some([counts(7), counts(6)]));
}

#[test]
fn a_super_packet_counts_as_its_segments_on_the_wire() {
    let mut lab = Lab::new();
    lab.settings.set("nf_conntrack_acct", 1).unwrap();
    shake_hands(&mut lab);
    let mut data = segments()[0];
    data.end += 4000;
    lab.segments = 4;
    lab.track(&data);
    let listed = lab.listed();
    // Each of the four has an IPv4 and a TCP header.
    let sent = Counts { packets: 2 + 4, bytes: 2 * 48 + 48 + 4000 + 3 * 40 };
    assert_eq!(listed[0].counters.map(|counts| counts[0]), Some(sent));
}

#[test]
fn timeouts_of_its_own_stay_with_what_is_settled() {
    let mut lab = Lab::new();
    let mut timeouts = TcpSettings::default().timeouts;
    timeouts.set(TcpState::Established, 77);
    let opened = lab.offer(&tcp(Family::V4, (1, 1000), (9, 80), SYN, (100, 0)), Table::track);
    lab.run(|table, context| {
        table.set_policy(&opened, &TimeoutPolicy::Tcp(timeouts), context.now);
        table.confirm(opened.connection.unwrap(), context).unwrap();
    });
    shake_hands(&mut lab);
    for segment in segments() {
        lab.track(&segment);
        assert_eq!(left(&lab, &segment), 77);
    }
}

#[test]
fn memory_comes_back_when_the_timer_of_what_is_settled_was_cut() {
    let mut lab = Lab::new();
    shake_hands(&mut lab);
    // The wheel has found the deadline that is days away.
    lab.wait(Duration::from_secs(130));
    lab.run(|table, context| table.expire(10, context));
    let [request, response] = segments();
    lab.track(&response);
    assert_eq!(left(&lab, &response), 432_000);
    let mut data = request;
    data.end += 50;
    lab.track(&data);
    assert_eq!(left(&lab, &data), 300, "nobody has acknowledged it");
    lab.wait(Duration::from_secs(303));
    lab.run(|table, context| table.expire(10, context));
    assert!(lab.table.is_empty());
}

#[test]
fn a_stream_of_datagrams_lives_by_its_timer() {
    let mut lab = Lab::new();
    let there = udp(Family::V4, (1, 1000), (2, 53));
    let back = udp(Family::V4, (2, 53), (1, 1000));
    let mut lives = Vec::new();
    for packet in [&there, &back, &there, &back, &there] {
        lab.track(packet);
        lives.push(left(&lab, packet));
        lab.wait(Duration::from_secs(1));
    }
    assert_eq!(lives, [30, 30, 30, 120, 120]);
    lab.settings.set("nf_conntrack_udp_timeout_stream", 60).unwrap();
    lab.track(&back);
    assert_eq!(left(&lab, &back), 60);
}
