use proptest::prelude::*;

use super::*;

#[test]
fn the_backlog_is_bounded() {
    let mut backlog = Backlog::new(BacklogLimits { max_backlog: 4, flow_limit_table_len: None });
    let admitted = (0..4).filter(|&waiting| backlog.admit(waiting, || 7).is_ok()).count();
    assert_eq!(admitted, 4);
    assert_eq!(backlog.admit(4, || 7), Err(DropReason::BacklogFull));
    assert_eq!(backlog.admit(usize::MAX, || 7), Err(DropReason::BacklogFull));
    assert_eq!(backlog.counters(), BacklogCounters { dropped: 2, flow_limit_count: 0 });
}

#[test]
fn below_half_a_single_flow_may_have_everything() {
    let mut backlog = Backlog::new(BacklogLimits::default());
    assert!((0..10_000).all(|packet| backlog.admit(packet % 500, || 1).is_ok()));
}

#[test]
fn from_half_up_a_flow_gets_64_of_128() {
    let mut backlog = Backlog::new(BacklogLimits::default());
    for _ in 0..64 {
        assert_eq!(backlog.admit(500, || 1), Ok(()));
    }
    assert_eq!(backlog.admit(500, || 1), Err(DropReason::FlowLimit));
    assert_eq!(backlog.admit(999, || 2), Ok(()), "another flow is let in");
    assert_eq!(backlog.admit(1000, || 2), Err(DropReason::BacklogFull));
    assert_eq!(backlog.counters(), BacklogCounters { dropped: 1, flow_limit_count: 1 });
}

#[test]
fn a_flow_is_let_in_again_when_others_have_displaced_it() {
    let mut backlog = Backlog::new(BacklogLimits::default());
    let refused = (0..128).filter(|_| backlog.admit(600, || 1).is_err()).count();
    assert_eq!(refused, 64);
    for other in 0..63 {
        assert!(backlog.admit(600, || 1000 + other).is_ok());
    }
    assert!(backlog.admit(600, || 1).is_err(), "65 of the last 128");
    assert!(backlog.admit(600, || 2000).is_ok());
    assert!(backlog.admit(600, || 1).is_ok(), "64 of the last 128");
}

#[test]
fn new_limits_keep_the_history() {
    let mut backlog = Backlog::new(BacklogLimits::default());
    for _ in 0..64 {
        assert!(backlog.admit(600, || 1).is_ok());
    }
    backlog.set_limits(BacklogLimits { max_backlog: 1200, ..BacklogLimits::default() });
    assert_eq!(backlog.admit(600, || 1), Err(DropReason::FlowLimit));
    backlog.set_limits(BacklogLimits { max_backlog: 1200, flow_limit_table_len: None });
    assert_eq!(backlog.admit(600, || 1), Ok(()));
}

proptest! {
    /// Against a plain model: the list of the last 128 packets.
    #[test]
    fn the_flow_limit_is_a_window_of_128(
        flows in prop::collection::vec(0..6_u64, 0..1000),
        table_len in 8..9000_u16,
    ) {
        let limits = BacklogLimits { max_backlog: 10, flow_limit_table_len: Some(table_len) };
        let mut backlog = Backlog::new(limits);
        let mut history = Vec::new();
        for flow in flows {
            history.push(flow);
            let recent = &history[history.len().saturating_sub(128)..];
            let held = recent.iter().filter(|&&other| other == flow).count();
            prop_assert_eq!(backlog.admit(5, || flow).is_err(), held > 64);
        }
    }
}
