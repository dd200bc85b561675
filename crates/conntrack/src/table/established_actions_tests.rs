//! Random events in the life of connections, for the comparison of the two paths.

use flow::{KeyedPacket, Zone, ZonePair};
use proptest::prelude::*;
use wire::{Family, Network, TcpFlags, Transport, protocol};

use crate::testing::{tcp, udp};
use crate::{Changes, Direction};

pub(super) const SYN: u8 = TcpFlags::SYN.0;
pub(super) const ACK: u8 = TcpFlags::ACK.0;
const PSH: u8 = TcpFlags::PSH.0;
const FIN: u8 = TcpFlags::FIN.0;
const RST: u8 = TcpFlags::RST.0;

/// Servers speak FTP here.
pub(super) const FTP: u16 = 1;
/// Clients send datagrams from here, and segments from all other ports.
pub(super) const DATAGRAMS: u16 = 2;
/// The payload of a segment that announces another connection; other segments carry its first 8
/// bytes. The address of a translated client has more digits, which take more room.
pub(super) const COMMAND: &[u8] = b"\nPORT 192,0,2,1,0,3\n";
/// Behind Ethernet, IPv4 and TCP, as in the packets that are made here.
pub(super) const PAYLOAD: usize = 14 + 20 + 20;
/// The zones of connections from the zone of a tenant.
const ONE_WAY: ZonePair = ZonePair { original: Zone(5), reply: Zone(0) };

/// Tunables, with the values that they take while connections live.
const TUNED: [(&str, [u64; 2]); 10] = [
    ("nf_conntrack_acct", [0, 1]),
    ("nf_conntrack_timestamp", [0, 1]),
    ("nf_conntrack_events", [0, 1]),
    ("nf_conntrack_tcp_be_liberal", [0, 1]),
    ("nf_conntrack_tcp_loose", [0, 1]),
    ("nf_conntrack_tcp_max_retrans", [1, 3]),
    ("nf_conntrack_tcp_timeout_established", [1000, 432_000]),
    ("nf_conntrack_tcp_timeout_unacknowledged", [200, 300]),
    ("nf_conntrack_udp_timeout", [20, 30]),
    ("nf_conntrack_udp_timeout_stream", [60, 120]),
];

/// A new connection.
#[derive(Clone, Debug)]
pub(super) struct Opened {
    pub family: Family,
    pub from: (u8, u16),
    pub to: (u8, u16),
    pub zones: Option<ZonePair>,
    pub flags: u8,
    /// Last bytes of the addresses to which rules translate its ends.
    pub translated: [Option<u8>; 2],
    pub has_policy: bool,
    /// Both ends send packets until it is assured.
    pub greets: bool,
}

/// One more packet of a connection.
#[derive(Clone, Debug)]
pub(super) struct Sent {
    pub direction: Direction,
    pub flags: u8,
    pub numbers: (u8, u8),
    pub window: u16,
    pub segments: u32,
    pub announces: bool,
    /// Its zone had another map when the packet came.
    pub is_late: bool,
}

/// Connections are named by their number among those that there are.
#[derive(Clone, Debug)]
pub(super) enum Action {
    Open(Opened),
    Send(usize, Sent),
    Reset(usize),
    Delete(usize),
    Update(usize, Changes),
    FlushMarked(u32),
    Tune(&'static str, u64),
    NextMap,
    WaitMillis(u64),
    Expire(usize),
}

/// Few ends, so that connections meet.
fn any_opened() -> impl Strategy<Value = Opened> {
    let end = || (1u8..4, 1u16..4);
    let family = prop_oneof![2 => Just(Family::V4), 1 => Just(Family::V6)];
    let zones = prop::option::weighted(0.3, Just(ONE_WAY));
    let flags = prop_oneof![3 => Just(SYN), 2 => Just(ACK)];
    let translated = [prop::option::of(Just(208)), prop::option::of(Just(9))];
    let rest = (prop::bool::weighted(0.1), any::<bool>());
    (family, end(), end(), zones, flags, translated, rest).prop_map(
        |(family, from, to, zones, flags, translated, (has_policy, greets))| Opened {
            family,
            from,
            to,
            zones,
            flags,
            translated,
            has_policy,
            greets,
        },
    )
}

/// Most segments only refresh a connection. Others are outside the windows, so that they pick
/// it up if it may have continued elsewhere.
fn any_sent() -> impl Strategy<Value = Sent> {
    let direction = prop_oneof![Just(Direction::Original), Just(Direction::Reply)];
    let other = prop::sample::select(&[SYN, SYN | ACK, FIN | ACK, RST][..]);
    let flags = prop_oneof![30 => Just(ACK), 5 => Just(ACK | PSH), 1 => other];
    let numbers = prop_oneof![3 => (10u8..40, 8u8..20), 1 => any::<(u8, u8)>()];
    let window = prop_oneof![2 => Just(100u16), 1 => Just(0), 1 => 0u16..150];
    let segments = prop_oneof![9 => Just(1u32), 1 => 2u32..5];
    let rest = (prop::bool::weighted(0.2), prop::bool::weighted(0.1));
    (direction, flags, numbers, window, segments, rest).prop_map(
        |(direction, flags, numbers, window, segments, (announces, is_late))| Sent {
            direction,
            flags,
            numbers,
            window,
            segments,
            announces,
            is_late,
        },
    )
}

pub(super) fn any_action() -> impl Strategy<Value = Action> {
    let which = any::<usize>;
    let changes = (0u32..3, prop::option::of(0u32..500)).prop_map(|(mark, timeout_s)| Changes {
        mark: Some((mark, u32::MAX)),
        timeout_s,
        ..Changes::default()
    });
    let tuned = (prop::sample::select(&TUNED[..]), 0usize..2);
    prop_oneof![
        6 => any_opened().prop_map(Action::Open),
        40 => (which(), any_sent()).prop_map(|(which, sent)| Action::Send(which, sent)),
        1 => which().prop_map(Action::Reset),
        1 => which().prop_map(Action::Delete),
        1 => (which(), changes).prop_map(|(which, changes)| Action::Update(which, changes)),
        1 => (0u32..3).prop_map(Action::FlushMarked),
        2 => tuned.prop_map(|((name, values), which)| Action::Tune(name, values[which])),
        1 => Just(Action::NextMap),
        3 => (0u64..4000).prop_map(Action::WaitMillis),
        1 => (0u64..400_000_000).prop_map(Action::WaitMillis),
        1 => (0usize..20).prop_map(Action::Expire),
    ]
}

impl Sent {
    pub fn by(direction: Direction, flags: u8, numbers: (u8, u8)) -> Self {
        let (window, segments, announces, is_late) = (100, 1, false, false);
        Self { direction, flags, numbers, window, segments, announces, is_late }
    }

    /// Numbers and flags are for segments only.
    pub fn packet(&self, flow: &KeyedPacket) -> Network {
        let KeyedPacket { key, sender } = *flow;
        let [from, to] = [sender, sender.opposite()].map(|side| {
            let end = key.endpoint(side);
            (end.address[15], end.port)
        });
        if key.protocol == protocol::UDP {
            return udp(key.family, from, to);
        }
        let mut packet = tcp(key.family, from, to, self.flags, self.numbers);
        if let Transport::Tcp(tcp) = &mut packet.transport {
            tcp.window = self.window;
        }
        if self.announces {
            packet.end = (PAYLOAD + COMMAND.len()) as u32;
        }
        packet
    }
}
