//! The four structures of a full state, and the structures in them.
//!
//! docs/internals/pfsync.md has the layouts. Fields follow each other without gaps, so they are read
//! and written in the order of their offsets. Padding is written as zeros and not looked at.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::dialect::StateForm;
use super::identity::{CreatorId, InterfaceName, StateId, TagName};
use super::progress::{Direction, FlowState, TcpState, Timeout};
use super::refusal::Refusal;
use super::state::{
    Addresses, Counts, Key, Numbers, Peers, Policy, SCTP, Scrub, SctpPeer, State, StateFlags,
    StateParts, TCP, TcpPeer, WindowScale, protocol_inside,
};
use crate::cursor::Reader;

/// AF_INET, the same everywhere.
const IPV4: u8 = 2;
/// A peer's scrub values are valid.
const SCRUB_VALID: u8 = 1;
/// A peer's window scale is known.
const SCALE_KNOWN: u8 = 0x80;
const SCALE_MASK: u8 = 0x0f;

/// A state that a dialect can not carry: its keys have addresses of different families.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this version of pfsync has one address family for both keys of a state")]
pub struct Inexpressible;

type Decoded<T> = Result<T, Refusal>;

/// A field that a reader could not read: only a caller that passes too few bytes gets it.
pub(super) fn whole<T>(field: Option<T>) -> Decoded<T> {
    field.ok_or(Refusal::Truncated)
}

/// One end of a state, before its protocol is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RawPeer {
    /// How far it has come: a number of its protocol.
    pub state: u8,
    /// Its numbers.
    pub numbers: Numbers,
}

impl Peers {
    /// Both ends without their protocol.
    pub(super) fn raw(&self) -> [RawPeer; 2] {
        match self {
            Self::Tcp(peers) => {
                peers.map(|it| RawPeer { state: it.state as u8, numbers: it.numbers })
            }
            Self::Sctp(peers) => peers.map(|it| RawPeer { state: it.state, numbers: it.numbers }),
            Self::Flow(peers) => {
                peers.map(|it| RawPeer { state: it as u8, numbers: Numbers::default() })
            }
        }
    }

    /// Both ends of a protocol.
    pub(super) fn of_protocol(protocol: u8, [one, other]: [RawPeer; 2]) -> Decoded<Self> {
        match protocol {
            TCP => {
                let peer = |RawPeer { state, numbers }| {
                    let state = TcpState::of_number(state).ok_or(Refusal::UnknownState)?;
                    Ok(TcpPeer { state, numbers })
                };
                Ok(Self::Tcp([peer(one)?, peer(other)?]))
            }
            SCTP => Ok(Self::Sctp(
                [one, other].map(|RawPeer { state, numbers }| SctpPeer { state, numbers }),
            )),
            _ => {
                let peer =
                    |it: RawPeer| FlowState::of_number(it.state).ok_or(Refusal::UnknownState);
                Ok(Self::Flow([peer(one)?, peer(other)?]))
            }
        }
    }
}

impl RawPeer {
    pub(super) fn encode(&self, to: &mut Vec<u8>) {
        let Numbers { sequence, sequence_max, sequence_shift, .. } = self.numbers;
        let Numbers { window_max, segment_max, window_scale, scrub, .. } = self.numbers;
        let (valid, scrub) = scrub.map_or((0, Scrub::default()), |it| (SCRUB_VALID, it));
        to.extend(scrub.flags.to_be_bytes());
        to.extend([scrub.ttl, valid]);
        for number in [scrub.timestamp_shift, sequence, sequence_max, sequence_shift] {
            to.extend(number.to_be_bytes());
        }
        to.extend(window_max.to_be_bytes());
        to.extend(segment_max.to_be_bytes());
        to.extend([self.state, window_scale.map_or(0, |it| SCALE_KNOWN | it.get())]);
        to.extend([0; 6]);
    }

    pub(super) fn decode(from: &mut Reader<'_>) -> Option<Self> {
        let flags = from.u16()?;
        let [ttl, valid] = from.array()?;
        let timestamp_shift = from.u32()?;
        let scrub = Scrub { flags, ttl, timestamp_shift };
        let (sequence, sequence_max, sequence_shift) = (from.u32()?, from.u32()?, from.u32()?);
        let (window_max, segment_max) = (from.u16()?, from.u16()?);
        let [state, scale, ..] = from.array::<8>()?;
        let numbers = Numbers {
            sequence,
            sequence_max,
            sequence_shift,
            window_max,
            segment_max,
            window_scale: (scale & SCALE_KNOWN != 0).then(|| WindowScale::new(scale & SCALE_MASK)),
            scrub: (valid == SCRUB_VALID).then_some(scrub),
        };
        Some(Self { state, numbers })
    }
}

/// The 16 bytes of an address. IPv4 has the first four.
fn address_field(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => {
            let [a, b, c, d] = address.octets();
            [a, b, c, d, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]
        }
        IpAddr::V6(address) => address.octets(),
    }
}

fn v4_of([a, b, c, d, ..]: [u8; 16]) -> Ipv4Addr {
    [a, b, c, d].into()
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Family {
    V4,
    V6,
}

impl Family {
    fn of(addresses: &Addresses) -> Self {
        match addresses {
            Addresses::V4(_) => Self::V4,
            Addresses::V6(_) => Self::V6,
        }
    }

    fn number(self, form: StateForm) -> u8 {
        match self {
            Self::V4 => IPV4,
            Self::V6 => form.ipv6(),
        }
    }

    fn of_number(form: StateForm, number: u8) -> Decoded<Self> {
        match number {
            IPV4 => Ok(Self::V4),
            it if it == form.ipv6() => Ok(Self::V6),
            _ => Err(Refusal::UnknownFamily),
        }
    }

    fn address(self, field: [u8; 16]) -> IpAddr {
        match self {
            Self::V4 => v4_of(field).into(),
            Self::V6 => Ipv6Addr::from(field).into(),
        }
    }
}

/// A key as it is on the wire. FreeBSD has its family and protocol elsewhere in the state.
struct RawKey {
    addresses: [[u8; 16]; 2],
    ports: [u16; 2],
    /// OpenBSD's routing domain and family.
    domain_and_family: Option<(u16, u8)>,
}

impl RawKey {
    fn encode(key: &Key, form: StateForm, to: &mut Vec<u8>) {
        match key.addresses {
            Addresses::V4(pair) => {
                pair.iter().for_each(|it| to.extend(address_field((*it).into())))
            }
            Addresses::V6(pair) => pair.iter().for_each(|it| to.extend(it.octets())),
        }
        key.ports.iter().for_each(|it| to.extend(it.to_be_bytes()));
        if form == StateForm::OpenBsd {
            to.extend(key.routing_domain.to_be_bytes());
            to.extend([Family::of(&key.addresses).number(form), 0]);
        }
    }

    fn decode(form: StateForm, from: &mut Reader<'_>) -> Option<Self> {
        let addresses = [from.array()?, from.array()?];
        let ports = [from.u16()?, from.u16()?];
        let domain_and_family = match form {
            StateForm::OpenBsd => {
                let domain = from.u16()?;
                let [family, _] = from.array()?;
                Some((domain, family))
            }
            StateForm::V1301 | StateForm::V1400 | StateForm::V1500 => None,
        };
        Some(Self { addresses, ports, domain_and_family })
    }

    fn key(&self, family: Family, protocol: u8) -> Key {
        let addresses = match family {
            Family::V4 => Addresses::V4(self.addresses.map(v4_of)),
            Family::V6 => Addresses::V6(self.addresses.map(Ipv6Addr::from)),
        };
        let routing_domain = self.domain_and_family.map_or(0, |(domain, _)| domain);
        Key { addresses, ports: self.ports, protocol, routing_domain }
    }
}

/// The fields that all structures share, in one order.
struct Prefix {
    id: u64,
    interface: [u8; 16],
    keys: [RawKey; 2],
    peers: [RawPeer; 2],
    route_address: [u8; 16],
    /// Rule, anchor, rule that translates, age, time left.
    words: [u32; 5],
    counts: [Counts; 2],
    creator: u32,
}

impl Prefix {
    fn encode(parts: &StateParts, form: StateForm, to: &mut Vec<u8>) {
        let StateParts { id, interface, wire, stack, peers, age, left, counts, policy, .. } = parts;
        to.extend(id.id.to_be_bytes());
        to.extend(interface.field());
        RawKey::encode(wire, form, to);
        RawKey::encode(stack, form, to);
        peers.raw().iter().for_each(|peer| peer.encode(to));
        // Only 1500 tells the family of a next hop.
        let is_encoded = |it: &IpAddr| form == StateForm::V1500 || it.is_ipv4() == wire.is_ipv4();
        to.extend(policy.route_address.filter(is_encoded).map_or([0; 16], address_field));
        for word in [policy.rule, policy.anchor, policy.nat_rule, *age, *left] {
            to.extend(word.to_be_bytes());
        }
        let [packets, bytes] = [counts.map(|it| it.packets), counts.map(|it| it.bytes)];
        packets.iter().chain(&bytes).for_each(|it| to.extend(it.to_be_bytes()));
        to.extend(id.creator.get().to_be_bytes());
    }

    fn decode(form: StateForm, from: &mut Reader<'_>) -> Option<Self> {
        let (id, interface) = (from.u64()?, from.array()?);
        let keys = [RawKey::decode(form, from)?, RawKey::decode(form, from)?];
        let peers = [RawPeer::decode(from)?, RawPeer::decode(from)?];
        let route_address = from.array()?;
        let words = [from.u32()?, from.u32()?, from.u32()?, from.u32()?, from.u32()?];
        let [packets, answered] = [from.u64()?, from.u64()?];
        let [bytes, answered_bytes] = [from.u64()?, from.u64()?];
        let counts =
            [Counts { packets, bytes }, Counts { packets: answered, bytes: answered_bytes }];
        let creator = from.u32()?;
        Some(Self { id, interface, keys, peers, route_address, words, counts, creator })
    }

    /// Makes the state, together with what follows the prefix.
    fn complete(self, tail: Tail) -> Decoded<State> {
        let Self { interface, keys: [wire, stack], words, counts, .. } = self;
        let Tail { families, protocols, direction, flags, timeout, updates, route, mut policy } =
            tail;
        let creator = CreatorId::new(self.creator).ok_or(Refusal::CreatorZero)?;
        let wire = wire.key(families[0], protocols[0]);
        let stack = stack.key(families[1], protocols[1]);
        let [rule, anchor, nat_rule, age, left] = words;
        (policy.rule, policy.anchor, policy.nat_rule) = (rule, anchor, nat_rule);
        policy.route_address = match route {
            RouteFamily::Of(family) => Some(family.address(self.route_address)),
            RouteFamily::IfNotZero(family) => {
                (self.route_address != [0; 16]).then(|| family.address(self.route_address))
            }
            RouteFamily::None => None,
        };
        let peers = Peers::of_protocol(protocols[0], self.peers)?;
        let parts = StateParts {
            id: StateId { id: self.id, creator },
            interface: InterfaceName::from_field(interface).ok_or(Refusal::BadName)?,
            direction: Direction::of_number(direction).ok_or(Refusal::UnknownDirection)?,
            wire,
            stack,
            peers,
            timeout: Timeout::of_number(timeout).ok_or(Refusal::UnknownTimeout)?,
            age,
            left,
            counts,
            flags: StateFlags(flags),
            updates,
            policy,
        };
        State::new(parts).ok_or(Refusal::ProtocolsDiffer)
    }
}

/// The family of the next hop of a route, if there is one.
enum RouteFamily {
    None,
    Of(Family),
    IfNotZero(Family),
}

/// The fields behind the prefix.
struct Tail {
    families: [Family; 2],
    protocols: [u8; 2],
    direction: u8,
    flags: u16,
    timeout: u8,
    updates: u8,
    route: RouteFamily,
    policy: Policy,
}

fn name(field: Option<[u8; 16]>) -> Decoded<InterfaceName> {
    InterfaceName::from_field(whole(field)?).ok_or(Refusal::BadName)
}

impl Tail {
    fn decode_1301(from: &mut Reader<'_>) -> Decoded<Self> {
        let [family, protocol, direction, _, _, log, flags, timeout, message_flags, updates] =
            whole(from.array())?;
        let family = Family::of_number(StateForm::V1301, family)?;
        Ok(Self {
            families: [family; 2],
            protocols: [protocol; 2],
            direction,
            flags: flags.into(),
            timeout,
            updates,
            route: RouteFamily::IfNotZero(family),
            policy: Policy { log, message_flags, ..Policy::default() },
        })
    }

    fn decode_1400(from: &mut Reader<'_>) -> Decoded<Self> {
        let [family, protocol, direction] = whole(from.array())?;
        let flags = whole(from.u16())?;
        let [log, _, timeout, message_flags, updates] = whole(from.array())?;
        let [queue, urgent, pipe, answers] = whole(from.array::<8>().map(words))?;
        let table = i32::from_be_bytes(whole(from.array())?);
        let [ttl_min, type_of_service] = whole(from.array())?;
        let segment_max = whole(from.u16())?;
        let [usual, first, route_kind] = whole(from.array())?;
        let route_interface = name(from.array())?;
        let family = Family::of_number(StateForm::V1400, family)?;
        Ok(Self {
            families: [family; 2],
            protocols: [protocol; 2],
            direction,
            flags,
            timeout,
            updates,
            route: RouteFamily::IfNotZero(family),
            policy: Policy {
                route_kind,
                route_interface,
                routing_tables: [table, 0],
                queues: [queue, urgent],
                pipes: [pipe, answers],
                ttl_min,
                type_of_service,
                segment_max,
                priorities: [usual, first],
                log,
                message_flags,
                ..Policy::default()
            },
        })
    }

    fn decode_1500(from: &mut Reader<'_>) -> Decoded<Self> {
        const FORM: StateForm = StateForm::V1500;
        let tag = TagName::from_field(whole(from.array())?).ok_or(Refusal::BadName)?;
        let (route_interface, original_interface) = (name(from.array())?, name(from.array())?);
        let table = i32::from_be_bytes(whole(from.array())?);
        let flags = whole(from.u16())?;
        let [queue, urgent, pipe, answers] = whole(from.array::<8>().map(words))?;
        let segment_max = whole(from.u16())?;
        let [wire, stack, route] = whole(from.array())?;
        let protocols = whole(from.array())?;
        let [log, timeout, direction, route_kind] = whole(from.array())?;
        let [ttl_min, type_of_service, usual, first, ..] = whole(from.array::<7>())?;
        Ok(Self {
            families: [Family::of_number(FORM, wire)?, Family::of_number(FORM, stack)?],
            protocols,
            direction,
            flags,
            timeout,
            updates: 0,
            route: match route {
                0 => RouteFamily::None,
                family => RouteFamily::Of(Family::of_number(FORM, family)?),
            },
            policy: Policy {
                route_kind,
                route_interface,
                original_interface,
                tag,
                routing_tables: [table, 0],
                queues: [queue, urgent],
                pipes: [pipe, answers],
                ttl_min,
                type_of_service,
                segment_max,
                priorities: [usual, first],
                log,
                ..Policy::default()
            },
        })
    }

    fn decode_openbsd(keys: &[RawKey; 2], from: &mut Reader<'_>) -> Decoded<Self> {
        const FORM: StateForm = StateForm::OpenBsd;
        let tables = [whole(from.array())?, whole(from.array())?].map(i32::from_be_bytes);
        let segment_max = whole(from.u16())?;
        let [family, protocol, direction, log, route_kind] = whole(from.array())?;
        let [timeout, message_flags, updates, ttl_min, type_of_service] = whole(from.array())?;
        let flags = whole(from.u16())?;
        let priorities = whole(from.array())?;
        let route = Family::of_number(FORM, family)?;
        let families = [key_family(&keys[0])?, key_family(&keys[1])?];
        let wire = keys[0].key(families[0], protocol);
        let stack = keys[1].key(families[1], protocol).addresses;
        let protocols = [protocol, protocol_inside(&wire, &stack)];
        Ok(Self {
            families,
            protocols,
            direction,
            flags,
            timeout,
            updates,
            route: RouteFamily::IfNotZero(route),
            policy: Policy {
                route_kind,
                routing_tables: tables,
                ttl_min,
                type_of_service,
                segment_max,
                priorities,
                log,
                message_flags,
                ..Policy::default()
            },
        })
    }

    fn encode(parts: &StateParts, form: StateForm, to: &mut Vec<u8>) -> Result<(), Inexpressible> {
        let StateParts { wire, stack, direction, flags, timeout, updates, policy, .. } = parts;
        let [family, inside] = [wire, stack].map(|it| Family::of(&it.addresses));
        let [af, inside_af] = [family, inside].map(|it| it.number(form));
        let (protocol, direction, timeout) = (wire.protocol, *direction as u8, *timeout as u8);
        let [queue, urgent] = policy.queues.map(u16::to_be_bytes);
        let [pipe, answers] = policy.pipes.map(u16::to_be_bytes);
        let [table, stack_table] = policy.routing_tables.map(i32::to_be_bytes);
        let [usual, first] = policy.priorities;
        if form != StateForm::V1500 && form != StateForm::OpenBsd && family != inside {
            return Err(Inexpressible);
        }
        match form {
            StateForm::V1301 => {
                to.extend([af, protocol, direction, 0, 0, policy.log, flags.0 as u8]);
                to.extend([timeout, policy.message_flags, *updates]);
            }
            StateForm::V1400 => {
                to.extend([af, protocol, direction]);
                to.extend(flags.0.to_be_bytes());
                to.extend([policy.log, 0, timeout, policy.message_flags, *updates]);
                [queue, urgent, pipe, answers].iter().for_each(|it| to.extend(it));
                to.extend(table);
                to.extend([policy.ttl_min, policy.type_of_service]);
                to.extend(policy.segment_max.to_be_bytes());
                to.extend([usual, first, policy.route_kind]);
                to.extend(policy.route_interface.field());
            }
            StateForm::V1500 => {
                to.extend(policy.tag.field());
                to.extend(policy.route_interface.field());
                to.extend(policy.original_interface.field());
                to.extend(table);
                to.extend(flags.0.to_be_bytes());
                [queue, urgent, pipe, answers].iter().for_each(|it| to.extend(it));
                to.extend(policy.segment_max.to_be_bytes());
                let route = policy.route_address.map_or(0, |it| match it {
                    IpAddr::V4(_) => IPV4,
                    IpAddr::V6(_) => form.ipv6(),
                });
                to.extend([af, inside_af, route, protocol, stack.protocol]);
                to.extend([policy.log, timeout, direction, policy.route_kind]);
                to.extend([policy.ttl_min, policy.type_of_service, usual, first, 0, 0, 0]);
            }
            StateForm::OpenBsd => {
                to.extend(table.iter().chain(&stack_table));
                to.extend(policy.segment_max.to_be_bytes());
                to.extend([af, protocol, direction, policy.log, policy.route_kind, timeout]);
                to.extend([policy.message_flags, *updates]);
                to.extend([policy.ttl_min, policy.type_of_service]);
                to.extend(flags.0.to_be_bytes());
                to.extend([usual, first]);
            }
        }
        Ok(())
    }
}

fn key_family(key: &RawKey) -> Decoded<Family> {
    let number = key.domain_and_family.map_or(0, |(_, family)| family);
    Family::of_number(StateForm::OpenBsd, number)
}

/// Four words of 16 bits.
fn words([a, b, c, d, e, f, g, h]: [u8; 8]) -> [u16; 4] {
    [[a, b], [c, d], [e, f], [g, h]].map(u16::from_be_bytes)
}

/// Appends a state.
///
/// # Errors
/// [`Inexpressible`]; nothing is appended then.
pub(super) fn encode(
    state: &State,
    form: StateForm,
    to: &mut Vec<u8>,
) -> Result<(), Inexpressible> {
    let start = to.len();
    Prefix::encode(state.parts(), form, to);
    Tail::encode(state.parts(), form, to).inspect_err(|_| to.truncate(start))
}

/// Reads a state from as many bytes as its form has.
pub(super) fn decode(form: StateForm, from: &mut Reader<'_>) -> Decoded<State> {
    let prefix = whole(Prefix::decode(form, from))?;
    let tail = match form {
        StateForm::V1301 => Tail::decode_1301(from),
        StateForm::V1400 => Tail::decode_1400(from),
        StateForm::V1500 => Tail::decode_1500(from),
        StateForm::OpenBsd => Tail::decode_openbsd(&prefix.keys, from),
    }?;
    prefix.complete(tail)
}
