use std::time::Duration;

use super::*;
use crate::{MAX_FRAME, Waiter};

const PORT: PortId = PortId(7);

fn bytes(frames: &[Frame]) -> Vec<&[u8]> {
    frames.iter().map(Frame::bytes).collect()
}

#[test]
fn packets_come_in_order_and_end() {
    let mut source = Source::packets(PORT, vec![vec![1], vec![2; MAX_FRAME + 1], vec![3, 4]]);
    let (mut frames, mut pool) = (Vec::new(), FramePool::new(4, 4));
    assert_eq!(source.receive(&mut frames, 1, &mut pool).unwrap(), 1);
    assert_eq!(source.receive(&mut frames, 64, &mut pool).unwrap(), 1);
    assert!(matches!(source.receive(&mut frames, 64, &mut pool), Err(PortError::Finished)));
    assert_eq!(bytes(&frames), [&[1][..], &[3, 4]]);
    let numbers: Vec<_> = frames.iter().map(|frame| (frame.port, frame.sequence)).collect();
    assert_eq!(numbers, [(PORT, 0), (PORT, 1)]);
}

#[test]
fn a_generator_runs_on_the_buffers_of_the_pool() {
    let mut left = 1000_u32;
    let mut source = Source::generate(PORT, move |pool| {
        left = left.checked_sub(1)?;
        pool.copy_of(&left.to_be_bytes())
    });
    let (mut frames, mut pool) = (Vec::new(), FramePool::new(64, 0));
    let mut total = 0;
    while let Ok(count) = source.receive(&mut frames, 64, &mut pool) {
        total += count;
        assert_eq!(Discard.transmit(&mut frames, &mut pool).unwrap().sent, count as u64);
    }
    assert_eq!(total, 1000);
}

#[test]
fn a_sink_keeps_what_it_is_sent() {
    let mut pool = FramePool::new(4, 4);
    let sink = Sink::new();
    let mut frames = vec![pool.copy_of(b"first").unwrap(), pool.copy_of(b"second").unwrap()];
    let report = sink.clone().transmit(&mut frames, &mut pool).unwrap();
    assert_eq!(report, TxReport { sent: 2, sent_bytes: 11, ..TxReport::default() });
    assert!(frames.is_empty());
    assert_eq!(bytes(&sink.take()), [&b"first"[..], b"second"]);
    assert!(sink.take().is_empty());
}

#[test]
fn a_channel_is_bounded_and_ends_with_its_sender() {
    let mut pool = FramePool::new(8, 8);
    let (mut transmit, mut receive) = channel(PORT, 2).unwrap();
    let mut frames: Vec<_> = (0..3).map(|n| pool.copy_of(&[n]).unwrap()).collect();
    let report = transmit.transmit(&mut frames, &mut pool).unwrap();
    assert_eq!((report.sent, report.refused_full), (2, 1));
    drop(transmit);
    assert_eq!(receive.receive(&mut frames, 64, &mut pool).unwrap(), 2);
    assert_eq!(bytes(&frames), [&[0][..], &[1]]);
    assert!(matches!(receive.receive(&mut frames, 64, &mut pool), Err(PortError::Finished)));
}

#[test]
fn a_channel_without_receiver_is_gone() {
    let mut pool = FramePool::new(8, 8);
    let (mut transmit, receive) = channel(PORT, 4).unwrap();
    drop(receive);
    let mut frames = vec![pool.copy_of(b"lost").unwrap()];
    assert!(matches!(transmit.transmit(&mut frames, &mut pool), Err(PortError::Gone { .. })));
    assert!(frames.is_empty());
}

#[test]
fn the_bell_of_a_channel_rings_while_frames_wait() {
    let mut pool = FramePool::new(8, 8);
    let (mut left, mut right) = channel(PORT, 8).unwrap();
    let mut waiter = Waiter::new();
    let mut rings = |queue: &ChannelRx| {
        let handle = queue.wait_handle().unwrap();
        !waiter.wait([handle], Some(Duration::ZERO)).unwrap().is_empty()
    };
    assert!(!rings(&right));
    let mut frames: Vec<_> = (0..3).map(|n| pool.copy_of(&[n]).unwrap()).collect();
    left.transmit(&mut frames, &mut pool).unwrap();
    assert!(rings(&right));
    assert_eq!(right.receive(&mut frames, 2, &mut pool).unwrap(), 2);
    assert!(rings(&right));
    assert_eq!(right.receive(&mut frames, 2, &mut pool).unwrap(), 1);
    assert!(!rings(&right));
    assert_eq!(frames[2].port, PORT);
    drop(left);
    assert!(rings(&right));
}
