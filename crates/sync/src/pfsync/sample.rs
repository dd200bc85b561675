//! Random states and messages for tests.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::*;

/// Numbers that a seed decides: a permuted congruential generator (O'Neill, 2014: RXS M XS).
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let shift = (self.0 >> 59) + 5;
        let word = ((self.0 >> shift) ^ self.0).wrapping_mul(0xaef1_7502_108e_f2d9);
        (word >> 43) ^ word
    }

    /// From `low` to `high`, both included.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.next() % (high - low + 1)
    }

    /// True in so many of a hundred cases.
    pub fn percent(&mut self, chance: u64) -> bool {
        self.between(1, 100) <= chance
    }

    pub fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.between(0, all.len() as u64 - 1) as usize]
    }
}

pub fn state_id(random: &mut Random) -> StateId {
    let creator = CreatorId::new(random.next() as u32 | 1).unwrap();
    StateId { id: random.next(), creator }
}

fn interface(random: &mut Random) -> InterfaceName {
    let name = random.one_of(&["em0", "igc1.100", "all", "wg0", "a123456789bcdef"]);
    InterfaceName::new(name).unwrap()
}

fn is_v6(addresses: &Addresses) -> bool {
    matches!(addresses, Addresses::V6(_))
}

fn addresses(random: &mut Random, v6: bool) -> Addresses {
    match v6 {
        false => {
            let host = |random: &mut Random| Ipv4Addr::new(192, 0, 2, random.next() as u8);
            Addresses::V4([host(random), host(random)])
        }
        true => Addresses::V6([0, 1].map(|_| {
            let [a, b, c, d, e, f, g, h] = random.next().to_be_bytes();
            let low = [a, b, c, d, e, f, g, h];
            let mut octets = [0x20, 1, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
            octets[8..].copy_from_slice(&low);
            Ipv6Addr::from(octets)
        })),
    }
}

pub fn numbers(random: &mut Random) -> Numbers {
    Numbers {
        sequence: random.next() as u32,
        sequence_max: random.next() as u32,
        sequence_shift: random.next() as u32,
        window_max: random.next() as u16,
        segment_max: random.next() as u16,
        window_scale: random.percent(60).then(|| WindowScale::new(random.between(0, 14) as u8)),
        scrub: random.percent(40).then(|| Scrub {
            flags: random.between(0, 1) as u16,
            ttl: random.next() as u8,
            timestamp_shift: random.next() as u32,
        }),
    }
}

pub fn peers(random: &mut Random, protocol: u8) -> Peers {
    match protocol {
        6 => Peers::Tcp(
            [0, 1]
                .map(|_| TcpPeer { state: random.one_of(TcpState::ALL), numbers: numbers(random) }),
        ),
        132 => Peers::Sctp(
            [0, 1].map(|_| SctpPeer { state: random.next() as u8, numbers: numbers(random) }),
        ),
        _ => Peers::Flow([0, 1].map(|_| random.one_of(FlowState::ALL))),
    }
}

/// A state of which the dialect carries everything.
pub fn state(random: &mut Random, dialect: Dialect) -> State {
    let v6 = random.percent(50);
    let is_across = matches!(dialect, Dialect::Version1500 | Dialect::Version6);
    let inside_v6 = if is_across && random.percent(20) { !v6 } else { v6 };
    let icmp = if v6 { 58 } else { 1 };
    let protocol = random.one_of(&[6, 6, 17, icmp, 47, 132]);
    let inside_protocol = match (protocol, inside_v6) {
        (1 | 58, false) => 1,
        (1 | 58, true) => 58,
        _ => protocol,
    };
    let mut key = |v6, protocol| Key {
        addresses: addresses(random, v6),
        ports: [random.next() as u16, random.next() as u16],
        protocol,
        routing_domain: random.next() as u16,
    };
    let (wire, stack) = (key(v6, protocol), key(inside_v6, inside_protocol));
    let mut counts = || Counts { packets: random.next(), bytes: random.next() };
    let counts = [counts(), counts()];
    let parts = StateParts {
        id: state_id(random),
        interface: interface(random),
        direction: random.one_of(Direction::ALL),
        wire,
        stack,
        peers: peers(random, protocol),
        timeout: random.one_of(Timeout::ALL),
        age: random.next() as u32,
        left: random.next() as u32,
        counts,
        flags: StateFlags(random.next() as u16),
        updates: random.next() as u8,
        policy: policy(random, v6),
    };
    State::new(carried(parts, dialect)).unwrap()
}

fn policy(random: &mut Random, v6: bool) -> Policy {
    let address = || -> IpAddr {
        match v6 {
            false => Ipv4Addr::new(198, 51, 100, 7).into(),
            true => Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 7).into(),
        }
    };
    Policy {
        rule: random.next() as u32,
        anchor: random.next() as u32,
        nat_rule: random.one_of(&[NO_RULE, 3]),
        route_kind: random.next() as u8,
        route_address: random.percent(50).then(address),
        route_interface: interface(random),
        original_interface: interface(random),
        tag: TagName::new(random.one_of(&[&b""[..], b"voice", &[b'x'; 63]])).unwrap(),
        routing_tables: [random.next() as i32, random.next() as i32],
        queues: [random.next() as u16, random.next() as u16],
        pipes: [random.next() as u16, random.next() as u16],
        ttl_min: random.next() as u8,
        type_of_service: random.next() as u8,
        segment_max: random.next() as u16,
        priorities: [random.next() as u8, random.next() as u8],
        log: random.next() as u8,
        message_flags: random.next() as u8,
    }
}

/// The parts of a state that a dialect carries.
pub fn carried(mut parts: StateParts, dialect: Dialect) -> StateParts {
    let empty = Policy::default();
    let kept = parts.policy;
    if dialect != Dialect::Version6 {
        parts.wire.routing_domain = 0;
        parts.stack.routing_domain = 0;
        parts.policy.routing_tables[1] = 0;
    }
    if dialect != Dialect::Version1500 {
        parts.policy.tag = empty.tag;
        parts.policy.original_interface = empty.original_interface;
        if kept.route_address.is_some_and(|it| it.is_ipv6() != is_v6(&parts.wire.addresses)) {
            parts.policy.route_address = None;
        }
    }
    match dialect {
        Dialect::Version1301 => {
            let Policy { rule, anchor, nat_rule, route_address, log, message_flags, .. } =
                parts.policy;
            parts.policy =
                Policy { rule, anchor, nat_rule, route_address, log, message_flags, ..empty };
            parts.flags.0 &= 0xff;
        }
        Dialect::Version1400 => {}
        Dialect::Version1500 => {
            parts.policy.message_flags = 0;
            parts.updates = 0;
        }
        Dialect::Version6 => {
            parts.policy.route_interface = empty.route_interface;
            parts.policy.queues = empty.queues;
            parts.policy.pipes = empty.pipes;
        }
    }
    parts
}

/// Any message of a dialect.
pub fn message(random: &mut Random, dialect: Dialect) -> Message {
    match random.between(0, 9) {
        0 => {
            let interface = random.one_of(&["", "em0"]);
            let interface = InterfaceName::new(interface).unwrap();
            Message::Clear { interface, creator: state_id(random).creator }
        }
        1 => Message::Insert(Box::new(state(random, dialect))),
        2 => Message::InsertAck(state_id(random)),
        3 => Message::Update(Box::new(state(random, dialect))),
        4 => Message::UpdateCompressed(Box::new(compressed(random, dialect))),
        5 => Message::UpdateRequest(Request::One(state_id(random))),
        6 => Message::UpdateRequest(Request::All),
        7 if matches!(dialect, Dialect::Version1301 | Dialect::Version6) => {
            Message::Delete(Box::new(state(random, dialect)))
        }
        7 | 8 => Message::DeleteCompressed(state_id(random)),
        _ => Message::BulkStatus(BulkStatus {
            creator: state_id(random).creator,
            elapsed: random.next() as u32,
            edge: random.one_of(&[BulkEdge::Start, BulkEdge::End]),
        }),
    }
}

fn compressed(random: &mut Random, dialect: Dialect) -> CompressedUpdate {
    let mut peer = || RawPeer { state: random.next() as u8, numbers: numbers(random) };
    CompressedUpdate {
        peers: [peer(), peer()],
        id: state_id(random),
        left: random.next() as u32,
        timeout: random.one_of(Timeout::ALL),
        flags: match dialect {
            Dialect::Version6 => StateFlags((random.next() as u8).into()),
            _ => StateFlags::default(),
        },
    }
}

/// Random messages that fit into a packet of a limited length, and the packet.
pub fn packet(random: &mut Random, dialect: Dialect, limit: usize) -> (Vec<Message>, Vec<u8>) {
    let mut writer = PacketWriter::new(dialect, limit);
    let mut messages = Vec::new();
    for _ in 0..random.between(0, 8) {
        let message = message(random, dialect);
        // Now and then several of one kind.
        for _ in 0..random.between(1, 2) {
            match writer.push(&message) {
                Ok(()) => messages.push(message.clone()),
                Err(NotWritten::Full) => {}
                Err(NotWritten::Inexpressible) => panic!("{message:?}"),
            }
        }
    }
    (messages, writer.finish())
}
