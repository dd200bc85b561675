//! Observers learn nothing about other clients from the identifications of translated datagrams.

use wire::build::PacketBuilder;

use crate::testing::many_workers::TestGateway;
use crate::testing::router::*;

/// The identification of a datagram that a client sends to a server.
fn identification(
    gateway: &mut TestGateway,
    client: u8,
    server: [u8; 4],
    more: fn(PacketBuilder) -> PacketBuilder,
) -> u16 {
    let builder = more(from_inside([192, 0, 2, client], server).id(7));
    gateway.arrive(0, &udp(&builder, (2000, 53), b"ask"));
    gateway.run_until_idle();
    let sent = gateway.sent(1);
    assert_eq!(sent.len(), 1, "dropped: {:?}", gateway.reasons());
    let header = &sent[0].bytes()[14..];
    u16::from_be_bytes([header[4], header[5]])
}

const OTHER_SERVER: [u8; 4] = [203, 0, 113, 200];

#[test]
fn identifications_of_one_client_say_nothing_of_another() {
    for workers in 1..4 {
        let [mut quiet, mut busy] = [gateway(workers), gateway(workers)];
        let mut steps = Vec::new();
        let mut last = None;
        for number in 0..200_u32 {
            let seen = identification(&mut quiet, 2, OTHER_SERVER, |it| it);
            assert_eq!(identification(&mut busy, 2, OTHER_SERVER, |it| it), seen, "{workers}");
            // The other client sends only in one of the two networks.
            for _ in 0..number % 3 {
                let other = identification(&mut busy, 1, SERVER, |it| it);
                steps.push(other.wrapping_sub(seen).cast_signed().unsigned_abs());
            }
            steps.extend(last.map(|last| seen.wrapping_sub(last).cast_signed().unsigned_abs()));
            last = Some(seen);
        }
        // By chance one in 2000 is small, and up to sixty of one pair, because they are of one
        // block.
        let small = steps.iter().filter(|&&step| step <= 16).count();
        assert!(small < 16, "{small} of {} are near the one before", steps.len());
    }
}

#[test]
fn a_datagram_that_can_not_be_cut_keeps_the_identification_of_its_sender() {
    let mut gateway = gateway(2);
    for client in 1..5 {
        assert_eq!(identification(&mut gateway, client, SERVER, PacketBuilder::dont_fragment), 7);
    }
}
