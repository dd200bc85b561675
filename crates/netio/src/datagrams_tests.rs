use std::net::Ipv4Addr;

use super::*;
use crate::{Ready, Waiter};

fn pair() -> [DatagramSocket; 2] {
    let [a, b] = [(); 2].map(|()| UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap());
    a.connect(b.local_addr().unwrap()).unwrap();
    b.connect(a.local_addr().unwrap()).unwrap();
    [a, b].map(|socket| DatagramSocket::new(socket).unwrap())
}

/// Datagrams that have come, until nothing more is there, and in how many visits.
fn received(socket: &mut DatagramSocket) -> (Vec<Vec<u8>>, usize) {
    let (mut datagrams, mut visits) = (Vec::new(), 0);
    loop {
        match socket.receive(|datagram| datagrams.push(datagram.to_vec())) {
            Ok(()) => visits += 1,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return (datagrams, visits),
            Err(error) => panic!("{error}"),
        }
    }
}

fn datagram(number: usize, length: usize) -> Vec<u8> {
    (0..length).map(|at| (number + at) as u8).collect()
}

#[test]
fn datagrams_arrive_as_they_were_sent_in_order_and_with_their_lengths() {
    let [mut a, mut b] = pair();
    // Equal ones, a shorter one that ends a train, a longer one, single ones.
    let lengths = [1400, 1400, 1400, 700, 700, 1400, 9, 1400, 1, 1400, 1400];
    let sent: Vec<_> = lengths.iter().enumerate().map(|(at, it)| datagram(at, *it)).collect();
    sent.iter().for_each(|datagram| a.send(datagram));
    a.flush();
    assert_eq!(received(&mut b).0, sent);
}

#[test]
fn many_datagrams_of_one_length_take_few_visits() {
    let [mut a, mut b] = pair();
    let sent: Vec<_> = (0..100).map(|at| datagram(at, 1400)).collect();
    sent.iter().for_each(|datagram| a.send(datagram));
    a.flush();
    let (datagrams, visits) = received(&mut b);
    assert_eq!(datagrams, sent);
    assert_eq!(a.single_from, usize::MAX, "the kernel cuts trains");
    // 46 of 1400 bytes fit in 64 KiB.
    assert_eq!(visits, 3);
}

#[test]
fn a_train_has_no_more_datagrams_than_the_kernel_takes() {
    let [mut a, mut b] = pair();
    let sent: Vec<_> = (0..3 * TRAIN_DATAGRAMS).map(|at| datagram(at, 20)).collect();
    sent.iter().for_each(|datagram| a.send(datagram));
    a.flush();
    assert_eq!(received(&mut b), (sent, 3));
}

#[test]
fn without_trains_each_datagram_leaves_alone() {
    let [mut a, mut b] = pair();
    a.single_from = 1;
    let sent: Vec<_> = (0..20).map(|at| datagram(at, 1000)).collect();
    sent.iter().for_each(|datagram| a.send(datagram));
    a.flush();
    assert_eq!(received(&mut b).0, sent);
}

#[test]
fn datagrams_that_do_not_fit_the_link_leave_in_fragments() {
    let [mut a, mut b] = pair();
    // Two of them are too long for one train, so they leave alone; the loopback interface has
    // 65,536 bytes.
    let sent = [datagram(0, 40_000), datagram(1, 40_000)];
    sent.iter().for_each(|datagram| a.send(datagram));
    a.flush();
    assert_eq!(received(&mut b).0, sent);
}

#[test]
fn a_peer_that_is_not_there_is_an_error_and_not_the_end() {
    let [mut a, b] = pair();
    drop(b);
    a.send(&[1]);
    a.flush();
    let mut waiter = Waiter::new();
    let _: Ready<'_> = waiter.wait([a.as_fd()], None).unwrap();
    let error = a.receive(|_| panic!("nothing has come")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
    assert_eq!(a.receive(|_| ()).unwrap_err().kind(), ErrorKind::WouldBlock);
}

#[test]
fn shorter_datagrams_still_leave_together_if_long_ones_can_not() {
    let [mut a, mut b] = pair();
    a.single_from = 9000;
    let sent: Vec<_> = [9000, 1000, 1000, 1000, 9000, 9000].map(|it| datagram(it, it)).into();
    sent.iter().for_each(|datagram| a.send(datagram));
    a.flush();
    let (datagrams, visits) = received(&mut b);
    assert_eq!(datagrams, sent);
    // Neither joins a train that begins with a long one.
    assert_eq!(visits, 4);
}
