use proptest::prelude::*;

use super::super::progress::TcpState;
use super::super::state::Numbers;
use super::*;

fn tcp(state: TcpState, sequence: u32) -> TcpPeer {
    TcpPeer { state, numbers: Numbers { sequence, ..Numbers::default() } }
}

fn established(sequences: [u32; 2]) -> Peers {
    Peers::Tcp(sequences.map(|it| tcp(TcpState::Established, it)))
}

/// Numbers of a real connection that was rolled back.
#[test]
fn a_stale_update_rolls_no_sequence_number_back() {
    let ours = established([3_016_315_118, 77]);
    let merged = merge(&ours, &established([3_016_208_802, 77])).unwrap();
    assert_eq!(merged, Merged { peers: ours, is_stale: true, is_news: false });
    // The other way round it is news.
    let merged = merge(&established([3_016_208_802, 77]), &ours).unwrap();
    assert_eq!(merged, Merged { peers: ours, is_stale: false, is_news: true });
}

#[test]
fn each_end_is_compared_by_itself() {
    let merged = merge(&established([20, 10]), &established([10, 20])).unwrap();
    assert_eq!(merged, Merged { peers: established([20, 20]), is_stale: true, is_news: true });
}

#[test]
fn sequence_numbers_come_round() {
    let merged = merge(&established([u32::MAX - 5, 0]), &established([10, 0])).unwrap();
    assert_eq!(merged.peers, established([10, 0]));
    let merged = merge(&established([10, 0]), &established([u32::MAX - 5, 0])).unwrap();
    assert_eq!(merged.peers, established([10, 0]));
}

/// Otherwise both would tell each other theirs for ever.
#[test]
fn of_numbers_half_the_ring_apart_both_ends_keep_the_same() {
    let (one, other) = (established([5, 0]), established([5 + (1 << 31), 0]));
    let merged = [merge(&one, &other).unwrap(), merge(&other, &one).unwrap()];
    assert_eq!(merged[0].peers, merged[1].peers);
    assert_ne!(merged[0].is_stale, merged[1].is_stale);
}

#[test]
fn a_state_that_is_further_on_stays_whatever_its_numbers_are() {
    for (at, later) in TcpState::ALL.iter().enumerate().take(11) {
        for earlier in &TcpState::ALL[..at] {
            let end = tcp(TcpState::Listen, 0);
            let ours = Peers::Tcp([tcp(*later, 5), end]);
            let theirs = Peers::Tcp([tcp(*earlier, 500), end]);
            assert!(merge(&ours, &theirs).unwrap().is_stale, "{later:?} {earlier:?}");
            assert_eq!(merge(&ours, &theirs).unwrap().peers, ours);
            assert_eq!(merge(&theirs, &ours).unwrap().peers, ours);
        }
    }
}

#[test]
fn the_syn_proxy_comes_before_the_handshake_of_the_ends() {
    let proxy = [TcpState::ProxySource, TcpState::ProxyDestination];
    let pair = |state| Peers::Tcp([tcp(state, 1), tcp(TcpState::Closed, 0)]);
    for other in &TcpState::ALL[..11] {
        for proxy in proxy {
            assert_eq!(merge(&pair(*other), &pair(proxy)).unwrap().peers, pair(*other));
            assert_eq!(merge(&pair(proxy), &pair(*other)).unwrap().peers, pair(*other));
        }
    }
    assert!(merge(&pair(proxy[1]), &pair(proxy[0])).unwrap().is_stale);
}

#[test]
fn protocols_do_not_mix() {
    let udp = Peers::Flow([FlowState::Single, FlowState::Silent]);
    assert_eq!(merge(&udp, &established([1, 2])), None);
}

fn any_tcp() -> impl Strategy<Value = Peers> {
    let end = (0..TcpState::ALL.len(), 0u32..40)
        .prop_map(|(at, sequence)| tcp(TcpState::ALL[at], sequence));
    [end.clone(), end].prop_map(Peers::Tcp)
}

proptest! {
    /// Both have the same in the end, whichever of them hears of the other first.
    #[test]
    fn two_ends_agree_after_an_exchange(ours in any_tcp(), theirs in any_tcp()) {
        let here = merge(&ours, &theirs).unwrap();
        let there = merge(&theirs, &ours).unwrap();
        prop_assert_eq!(here.peers, there.peers);
        prop_assert_eq!(here.is_stale, there.is_news);
        let again = merge(&here.peers, &theirs).unwrap();
        prop_assert_eq!(again.peers, here.peers, "an account that comes twice changes nothing");
    }
}
