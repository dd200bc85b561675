use flow::Zone;
use proptest::prelude::*;
use wire::{Family, TcpFlags, protocol};

use super::*;
use crate::proto::tcp::{SenderOutline, TcpState};
use crate::testing::{Lab, tcp, udp};
use crate::{Direction, InterfaceName};

const CLIENT: (u8, u16) = (1, 40_000);
const SERVER: (u8, u16) = (9, 443);

/// A connection of TCP after these segments: from the client or not, flags, numbers.
fn after(segments: &[(bool, TcpFlags, (u8, u8))]) -> ConnectionRecord {
    let mut lab = Lab::new();
    for (is_client, flags, numbers) in segments {
        let (from, to) = if *is_client { (CLIENT, SERVER) } else { (SERVER, CLIENT) };
        lab.track(&tcp(Family::V4, from, to, flags.0, *numbers));
    }
    lab.records().remove(0)
}

const SYN_ACK: TcpFlags = TcpFlags::SYN.with(TcpFlags::ACK);
const FIN_ACK: TcpFlags = TcpFlags::FIN.with(TcpFlags::ACK);
const OPENING: [(bool, TcpFlags, (u8, u8)); 3] =
    [(true, TcpFlags::SYN, (1, 0)), (false, SYN_ACK, (7, 10)), (true, TcpFlags::ACK, (10, 16))];

fn tracker_of(outline: &Outline) -> TcpOutline {
    match outline.state {
        OutlineState::Tcp { tracker, .. } => tracker,
        OutlineState::Flow { .. } => panic!("no TCP"),
    }
}

#[test]
fn others_know_states_and_numbers_of_tcp() {
    let outline = after(&OPENING[..1]).outline().unwrap();
    let tracker = tracker_of(&outline);
    assert_eq!((tracker.state, tracker.senders[1]), (TcpState::SynSent, None));
    let outline = after(&OPENING).outline().unwrap();
    let tracker = tracker_of(&outline);
    assert!(matches!(outline.state, OutlineState::Tcp { seen_reply: true, .. }));
    assert_eq!(outline.leaves_as, outline.original);
    assert_eq!((tracker.state, tracker.closed_first), (TcpState::Established, None));
    let ends = tracker.senders.map(|it| it.map(|it| it.end));
    assert_eq!(ends, [Some(18), Some(16)]);
    assert!(!tracker.is_picked_up);
}

#[test]
fn the_first_fin_has_a_sender() {
    for is_client in [true, false] {
        let (sequence, acknowledgment) = if is_client { (18, 16) } else { (16, 18) };
        let fin = (is_client, FIN_ACK, (sequence, acknowledgment));
        let tracker = tracker_of(&after(&[&OPENING[..], &[fin]].concat()).outline().unwrap());
        let sender = if is_client { Direction::Original } else { Direction::Reply };
        assert_eq!((tracker.state, tracker.closed_first), (TcpState::FinWait, Some(sender)));
    }
}

#[test]
fn a_connection_that_others_would_take_for_another_one_is_not_told() {
    let record = || after(&OPENING);
    let mut zoned = record();
    zoned.original.key.zone = Zone(7);
    assert_eq!(zoned.outline(), Err(Untold::Zone));
    let mut shifted = record();
    shifted.shifts = Some([crate::seqadj::Shift::fixed(9), Default::default()]);
    assert_eq!(shifted.outline(), Err(Untold::Adjusted));
    let mut tunnel = record();
    tunnel.state = RecordedState::Tunnel;
    assert_eq!(tunnel.outline(), Err(Untold::Protocol));
}

#[test]
fn a_flow_of_udp_comes_back() {
    let mut lab = Lab::new();
    lab.track(&udp(Family::V6, (1, 2000), (9, 53)));
    let outline = lab.records()[0].outline().unwrap();
    assert_eq!(outline.state, OutlineState::Flow { seen_reply: false, is_stream: false });
    let again = ConnectionRecord::of_outline(&outline).unwrap();
    assert_eq!(again.outline(), Ok(outline));
}

#[test]
fn an_outline_that_no_table_makes_is_refused() {
    let outline = after(&OPENING).outline().unwrap();
    let is_refused = |change: &dyn Fn(&mut Outline)| {
        let mut outline = outline.clone();
        change(&mut outline);
        ConnectionRecord::of_outline(&outline).is_err()
    };
    assert!(!is_refused(&|_| {}));
    assert!(is_refused(&|it| it.left = Duration::ZERO));
    assert!(is_refused(&|it| {
        it.state = OutlineState::Flow { seen_reply: true, is_stream: true };
    }));
    assert!(is_refused(&|it| it.original.key.protocol = protocol::UDP));
    assert!(is_refused(&|it| it.leaves_as.key.protocol = protocol::UDP));
    assert!(is_refused(&|it| std::mem::swap(&mut it.original.key.low, &mut it.original.key.high)));
    // Replies that are the packets themselves.
    assert!(is_refused(&|it| it.leaves_as.sender = it.leaves_as.sender.opposite()));
    for protocol in [protocol::SCTP, protocol::DCCP, protocol::GRE, protocol::IPIP] {
        assert!(is_refused(&|it| {
            it.state = OutlineState::Flow { seen_reply: true, is_stream: true };
            it.original.key.protocol = protocol;
            it.leaves_as.key.protocol = protocol;
        }));
    }
}

#[test]
fn a_masquerade_becomes_a_translation() {
    let mut record = after(&OPENING);
    let KeyedPacket { key, sender } = record.original;
    let [source, destination] = [sender, sender.opposite()].map(|side| key.endpoint(side));
    let address = crate::testing::address(Family::V4, 200);
    let leaves_as = key.between(sender, flow::Endpoint { address, ..source }, destination);
    let interface = InterfaceName::new("wan0");
    record.translation = Some(RecordedTranslation { leaves_as, interface, is_counted: true });
    let outline = record.outline().unwrap();
    assert_eq!(outline.leaves_as, leaves_as);
    let again = ConnectionRecord::of_outline(&outline).unwrap();
    assert_eq!((again.reply(), again.interface()), (record.reply(), None));
}

fn sender() -> impl Strategy<Value = SenderOutline> {
    let scale = prop::option::of(0_u8..=14);
    (any::<u32>(), any::<u32>(), 1_u16.., scale).prop_map(|(end, max_end, max_window, scale)| {
        SenderOutline { end, max_end, max_window, scale }
    })
}

fn closed_by() -> impl Strategy<Value = Option<Direction>> {
    prop::option::of(prop::sample::select(vec![Direction::Original, Direction::Reply]))
}

proptest! {
    /// All that others know comes back, but a scale that the other end does not have.
    #[test]
    fn a_tracker_of_an_outline_has_that_outline(
        state in prop::sample::select(TcpState::ALL.to_vec()),
        closed_first in closed_by(),
        is_picked_up: bool,
        first in sender(),
        second in prop::option::of(sender()),
    ) {
        let closed_first = closed_first.filter(|_| state.is_closing());
        let senders = [Some(first), second];
        let outline = TcpOutline { state, closed_first, is_picked_up, senders };
        let mut wanted = outline;
        if second.is_some_and(|it| it.scale.is_some() != first.scale.is_some()) {
            wanted.senders.iter_mut().flatten().for_each(|it| it.scale = None);
        }
        prop_assert_eq!(TcpTracker::of_outline(&outline).outline(), wanted);
    }
}
