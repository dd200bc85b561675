use netio::TxReport;

use super::*;

/// Takes so many frames and breaks, as an interface does that is taken away while
/// a batch goes out.
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
fn what_left_before_a_port_broke_counts_as_sent() {
    let mut outputs = Outputs::new(2);
    let (mut pool, mut counters) = (FramePool::new(8, 0), Counters::default());
    outputs.set(PortId(1), Some(Box::new(Breaks { after: 3 })));
    let dropped = [2, 7, 12];
    for dropped in dropped {
        for _ in 0..5 {
            let frame = pool.copy_of(&[0x02; 60]).unwrap();
            outputs.forward(frame, 0, &mut pool, &mut counters);
        }
        outputs.flush(&mut pool, &mut counters);
        assert_eq!(outputs.sent()[1], Sent { frames: 3, bytes: 180 });
        assert_eq!((counters.transmitted, counters.transmitted_bytes), (3, 180));
        assert_eq!(counters.dropped(DropReason::NoOutputPort), dropped);
    }
}
