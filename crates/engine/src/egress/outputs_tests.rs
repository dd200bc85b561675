use netio::PortError;

use super::*;

/// Takes this many frames and breaks, like an interface that disappears while a batch goes out.
struct Breaks {
    after: u64,
}

impl TxQueue for Breaks {
    fn transmit(
        &mut self,
        frames: &mut Vec<Frame>,
        pool: &mut FramePool,
    ) -> Result<TxReport, PortError> {
        let mut report = TxReport::default();
        for frame in frames.drain(..) {
            if report.sent < self.after {
                report.sent += 1;
                report.sent_bytes += frame.len() as u64;
            } else {
                report.refused_gone += 1;
            }
            pool.give_back(frame);
        }
        self.after -= report.sent;
        if report.sent == 0 {
            return Err(PortError::Gone { interface: "breaks".into() });
        }
        Ok(report)
    }
}

#[test]
fn frames_that_left_before_a_port_broke_count_as_sent() {
    let mut outputs = Outputs::new(2, StationLimits::default(), HashKey(1, 2));
    let (mut pool, mut counters) = (FramePool::new(8, 0), Counters::default());
    outputs.set(PortId(1), Some(Box::new(Breaks { after: 3 })));
    // The last five frames find no queue.
    for (dropped, gone) in [(2, 0), (7, 0), (7, 5)] {
        for _ in 0..5 {
            let frame = pool.copy_of(&[0x02; 60]).unwrap();
            outputs.forward(frame, 0, &mut pool, &mut counters);
        }
        outputs.flush(&mut pool, &mut counters);
        assert_eq!(outputs.sent()[1], Sent { frames: 3, bytes: 180 });
        assert_eq!((counters.transmitted, counters.transmitted_bytes), (3, 180));
        assert_eq!(counters.dropped(DropReason::NoOutputPort), dropped);
        assert_eq!(refused(&mut outputs), vec![DropReason::NoOutputPort; gone]);
    }
}

#[test]
fn frames_that_a_queue_does_not_send_are_handed_on_to_be_dropped() {
    let mut outputs = Outputs::new(2, StationLimits::default(), HashKey(1, 2));
    let (mut pool, mut counters) = (FramePool::new(8, 0), Counters::default());
    let (transmit, receive) = netio::memory::channel(PortId(1), 3).unwrap();
    outputs.set(PortId(1), Some(Box::new(transmit)));
    let mut send = |outputs: &mut Outputs| {
        for _ in 0..5 {
            outputs.forward(pool.copy_of(&[0x02; 60]).unwrap(), 0, &mut pool, &mut counters);
        }
        outputs.flush(&mut pool, &mut counters);
        // The driver drops these frames and counts them.
        assert_eq!((counters.dropped_total(), counters.transmitted), (0, 3));
        let refused: Vec<_> = std::iter::from_fn(|| outputs.take_refused()).collect();
        assert!(refused.iter().all(|(frame, _)| frame.bytes() == [0x02; 60]));
        refused.into_iter().map(|(_, reason)| reason).collect::<Vec<_>>()
    };
    assert_eq!(send(&mut outputs), [DropReason::OutputFull; 2]);
    drop(receive);
    assert_eq!(send(&mut outputs), [DropReason::NoOutputPort; 5]);
}

fn datagram(pool: &mut FramePool, builder: &wire::build::PacketBuilder) -> Frame {
    let mut bytes = Vec::new();
    builder.udp(7, 9, &[0; 4000], &mut bytes);
    let mut frame = pool.copy_of(&bytes).unwrap();
    frame.port = PortId(0);
    frame
}

/// Outputs of this many ports, of which the last has an MTU of 1500, and their sinks.
fn a_step(ports: usize) -> (Outputs, Vec<netio::memory::Sink>) {
    let mut outputs = Outputs::new(ports, StationLimits::default(), HashKey(1, 2));
    let sinks: Vec<_> = (0..ports).map(|_| netio::memory::Sink::new()).collect();
    for (port, sink) in sinks.iter().enumerate() {
        outputs.set(PortId(port as u16), Some(Box::new(sink.clone())));
    }
    let mut mtus = vec![None; ports];
    mtus[ports - 1] = Some(1500);
    outputs.set_mtus(&mtus);
    (outputs, sinks)
}

fn refused(outputs: &mut Outputs) -> Vec<DropReason> {
    std::iter::from_fn(|| outputs.take_refused()).map(|(_, reason)| reason).collect()
}

fn lengths(sink: &netio::memory::Sink) -> Vec<usize> {
    sink.take().iter().map(Frame::len).collect()
}

#[test]
fn a_frame_that_is_too_long_goes_on_in_pieces_or_is_answered() {
    let (mut outputs, sinks) = a_step(2);
    let (mut pool, mut counters) = (FramePool::new(8, 8), Counters::default());
    let plain = wire::build::PacketBuilder::v4([192, 0, 2, 1], [192, 0, 2, 2]);
    for builder in [plain.clone(), plain.dont_fragment()] {
        let frame = datagram(&mut pool, &builder);
        outputs.forward(frame, 0, &mut pool, &mut counters);
    }
    outputs.flush(&mut pool, &mut counters);
    assert_eq!(lengths(&sinks[1]), [1514, 1514, 1082]);
    assert_eq!(lengths(&sinks[0]), [14 + 576]);
    assert_eq!(refused(&mut outputs), [DropReason::FragNeeded]);
    assert_eq!((counters.dropped_total(), counters.transmitted), (0, 4));
}

#[test]
fn a_frame_that_is_flooded_is_cut_but_not_answered() {
    let (mut outputs, sinks) = a_step(3);
    let (mut pool, mut counters) = (FramePool::new(8, 8), Counters::default());
    let plain = wire::build::PacketBuilder::v4([192, 0, 2, 1], [192, 0, 2, 2]);
    for (builder, pieces) in
        [(plain.clone(), vec![1514, 1514, 1082]), (plain.dont_fragment(), vec![])]
    {
        let frame = datagram(&mut pool, &builder);
        outputs.forward(frame, 0, &mut pool, &mut counters);
        outputs.flush(&mut pool, &mut counters);
        assert_eq!(lengths(&sinks[0]), [0; 0]);
        assert_eq!(lengths(&sinks[1]), [4042]);
        assert_eq!(lengths(&sinks[2]), pieces);
    }
    assert_eq!(refused(&mut outputs), [DropReason::FragNeeded]);
}
