//! The fields of messages as text, in the order of the layout tables.

use std::fmt::Write as _;
use std::net::IpAddr;

use super::super::{
    BulkStatus, CompressedUpdate, Dialect, Key, Message, RawPeer, Request, State, StateId,
    StateParts,
};

/// A line for each message.
pub fn of(dialect: Dialect, messages: &[Message]) -> String {
    messages.iter().map(|message| line(dialect, message)).collect()
}

fn line(dialect: Dialect, message: &Message) -> String {
    let mut text = message.number(dialect).to_string();
    match message {
        Message::Clear { interface, creator } => {
            write!(text, " ifname={} creatorid={}", interface.as_str(), creator.get())
        }
        Message::Insert(it) | Message::Update(it) | Message::Delete(it) => {
            text += &state(dialect, it);
            Ok(())
        }
        Message::InsertAck(StateId { id, creator })
        | Message::DeleteCompressed(StateId { id, creator })
        | Message::UpdateRequest(Request::One(StateId { id, creator })) => {
            write!(text, " id={id} creatorid={}", creator.get())
        }
        Message::UpdateRequest(Request::All) => write!(text, " id=0 creatorid=0"),
        Message::UpdateCompressed(update) => {
            text += &compressed(dialect, update);
            Ok(())
        }
        Message::BulkStatus(BulkStatus { creator, elapsed, edge }) => {
            let (creator, status) = (creator.get(), *edge as u8);
            write!(text, " creatorid={creator} endtime={elapsed} status={status}")
        }
    }
    .unwrap();
    text + "\n"
}

fn compressed(dialect: Dialect, update: &CompressedUpdate) -> String {
    let CompressedUpdate { id, peers, left, timeout, flags } = update;
    let [src, dst] = peers.each_ref().map(peer);
    let (creator, id, timeout) = (id.creator.get(), id.id, *timeout as u8);
    let mut text = format!(" id={id} src={src} dst={dst} creatorid={creator}");
    write!(text, " expire={left} timeout={timeout}").unwrap();
    if dialect == Dialect::Version6 {
        write!(text, " state_flags={}", flags.0).unwrap();
    }
    text
}

fn peer(RawPeer { state, numbers }: &RawPeer) -> String {
    let scrub =
        numbers.scrub.map_or([0; 4], |it| [it.flags.into(), it.ttl.into(), 1, it.timestamp_shift]);
    let scale = numbers.window_scale.map_or(0, |it| 0x80 | it.get());
    let rest = [
        numbers.sequence,
        numbers.sequence_max,
        numbers.sequence_shift,
        numbers.window_max.into(),
        numbers.segment_max.into(),
        u32::from(*state),
        scale.into(),
    ];
    let fields: Vec<String> = scrub.iter().chain(&rest).map(u32::to_string).collect();
    fields.join("/")
}

fn address(address: Option<IpAddr>) -> String {
    let octets = match address {
        None => [0; 16],
        Some(IpAddr::V6(it)) => it.octets(),
        Some(IpAddr::V4(it)) => (u128::from(it.to_bits()) << 96).to_be_bytes(),
    };
    super::to_hex(&octets)
}

fn family(dialect: Dialect, is_v6: bool) -> u8 {
    match (is_v6, dialect) {
        (false, _) => 2,
        (true, Dialect::Version6) => 24,
        (true, _) => 28,
    }
}

fn is_v6(key: &Key) -> bool {
    key.addresses.get(crate::pfsync::Index::First).is_ipv6()
}

fn key(dialect: Dialect, key: &Key) -> String {
    use crate::pfsync::Index::{First, Second};
    let [one, other] = [First, Second].map(|it| address(Some(key.addresses.get(it))));
    let [port, other_port] = key.ports;
    let mut text = format!("{one}/{other}/{port}/{other_port}");
    if dialect == Dialect::Version6 {
        write!(text, "/{}/{}", key.routing_domain, family(dialect, is_v6(key))).unwrap();
    }
    text
}

fn state(dialect: Dialect, state: &State) -> String {
    let parts = state.parts();
    let StateParts { id, interface, wire, stack, peers, counts, policy, .. } = parts;
    let [src, dst] = peers.raw().each_ref().map(peer);
    let mut text = format!(" id={} ifname={}", id.id, interface.as_str());
    write!(text, " key0={} key1={}", key(dialect, wire), key(dialect, stack)).unwrap();
    write!(text, " src={src} dst={dst} rt_addr={}", address(policy.route_address)).unwrap();
    for (name, value) in [
        ("rule", policy.rule),
        ("anchor", policy.anchor),
        ("nat_rule", policy.nat_rule),
        ("creation", parts.age),
        ("expire", parts.left),
    ] {
        write!(text, " {name}={value}").unwrap();
    }
    let [there, back] = counts;
    write!(text, " packets0={} packets1={}", there.packets, back.packets).unwrap();
    write!(text, " bytes0={} bytes1={}", there.bytes, back.bytes).unwrap();
    write!(text, " creatorid={}", id.creator.get()).unwrap();
    text + &tail(dialect, parts)
}

/// The fields behind the creator, which each structure has in its own order.
fn tail(dialect: Dialect, parts: &StateParts) -> String {
    const V1301: &str = "af proto dir log state_flags timeout sync_flags updates";
    const V1400: &str = "af proto dir state_flags log timeout sync_flags updates qid pqid dnpipe \
        dnrpipe rtableid min_ttl set_tos max_mss set_prio0 set_prio1 rt rt_ifname";
    const V1500: &str = "tagname rt_ifname orig_ifname rtableid state_flags qid pqid dnpipe dnrpipe \
        max_mss wire_af stack_af rt_af wire_proto stack_proto log timeout dir rt min_ttl set_tos \
        set_prio0 set_prio1";
    const V6: &str = "rtableid0 rtableid1 max_mss af proto dir log rt timeout sync_flags updates \
        min_ttl set_tos state_flags set_prio0 set_prio1";
    let names = match dialect {
        Dialect::Version1301 => V1301,
        Dialect::Version1400 => V1400,
        Dialect::Version1500 => V1500,
        Dialect::Version6 => V6,
    };
    let field = |name| format!(" {name}={}", value(dialect, parts, name));
    names.split_whitespace().map(field).collect()
}

fn value(dialect: Dialect, parts: &StateParts, name: &str) -> String {
    let StateParts { wire, stack, direction, timeout, flags, updates, policy, .. } = parts;
    let number: u32 = match name {
        "tagname" => return String::from_utf8(policy.tag.as_bytes().to_vec()).unwrap(),
        "rt_ifname" => return policy.route_interface.as_str().to_owned(),
        "orig_ifname" => return policy.original_interface.as_str().to_owned(),
        "af" | "wire_af" => family(dialect, is_v6(wire)).into(),
        "stack_af" => family(dialect, is_v6(stack)).into(),
        "rt_af" => policy.route_address.map_or(0, |it| family(dialect, it.is_ipv6())).into(),
        "proto" | "wire_proto" => wire.protocol.into(),
        "stack_proto" => stack.protocol.into(),
        "dir" => *direction as u32,
        "log" => policy.log.into(),
        "state_flags" => flags.0.into(),
        "timeout" => *timeout as u32,
        "sync_flags" => policy.message_flags.into(),
        "updates" => (*updates).into(),
        "qid" => policy.queues[0].into(),
        "pqid" => policy.queues[1].into(),
        "dnpipe" => policy.pipes[0].into(),
        "dnrpipe" => policy.pipes[1].into(),
        "rtableid" | "rtableid0" => policy.routing_tables[0] as u32,
        "rtableid1" => policy.routing_tables[1] as u32,
        "min_ttl" => policy.ttl_min.into(),
        "set_tos" => policy.type_of_service.into(),
        "max_mss" => policy.segment_max.into(),
        "set_prio0" => policy.priorities[0].into(),
        "set_prio1" => policy.priorities[1].into(),
        "rt" => policy.route_kind.into(),
        other => panic!("no structure has a field {other}"),
    };
    number.to_string()
}
