//! Comparison of our translation with the kernel's: both get the same first packets of connections,
//! and the ends of the replies are compared.
//!
//! Where the kernel has no choice, ours has to be the same: destinations, mapped networks, and kept
//! ports. Each may choose from ranges and from other ports, within the rule, and no two connections
//! may share their replies.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::net::IpAddr;

use conntrack::nat::{Addresses, BucketPorts, Ports, Request, Supply, TranslatedEnd};
use conntrack::{Connection, Settings, TupleTransport};
use flow::DropReason;
use lab::{Random, Result};
use wire::TcpFlags;
use wire::build::Tcp;

use crate::scenario::cables::{forwarding_namespace, player};
use crate::scenario::own_table::{NOW, OwnTable, hash};
use crate::scenario::trackers::dialogue::packet;
use crate::scenario::{beside_others, hex};

/// The destination port of the first rule. Each rule has its own port.
const PORT: u16 = 1000;

/// A rule as text for the kernel and as a request for our table.
struct Rule {
    destination: Option<(&'static str, Request)>,
    source: Option<(&'static str, Request)>,
}

fn addresses(first: &str, last: &str) -> Option<Addresses> {
    Addresses::new(first.parse().unwrap(), last.parse().unwrap())
}

fn to(end: TranslatedEnd, first: &str, last: &str) -> Request {
    Request { addresses: addresses(first, last), ..Request::of(end) }
}

fn rules() -> Vec<Rule> {
    let (outside, inside) = ("203.0.113.1", "198.51.100.200");
    let snat = to(TranslatedEnd::Source, outside, outside);
    let pool = to(TranslatedEnd::Source, outside, "203.0.113.4");
    let dnat = to(TranslatedEnd::Destination, inside, inside);
    let source = |text, request| Rule { destination: None, source: Some((text, request)) };
    let destination = |text, request| Rule { destination: Some((text, request)), source: None };
    let ports =
        |request: Request, first, last| Request { ports: Ports::new(first, last), ..request };
    vec![
        source("snat to 203.0.113.1", snat),
        source("snat to 203.0.113.1-203.0.113.4", pool),
        source("snat to 203.0.113.1-203.0.113.4 persistent", Request { persistent: true, ..pool }),
        source("snat to 203.0.113.1:3000-3003", ports(snat, 3000, 3003)),
        source("snat to 203.0.113.1:2000-2009", ports(snat, 2000, 2009)),
        source("snat to 203.0.113.1 random", Request { random: true, ..snat }),
        source("masquerade", to(TranslatedEnd::Source, "203.0.113.9", "203.0.113.9")),
        source("masquerade to :5000-6000", {
            ports(to(TranslatedEnd::Source, "203.0.113.9", "203.0.113.9"), 5000, 6000)
        }),
        source(
            "snat ip prefix to ip saddr map { 192.0.2.0/24 : 203.0.113.0/24 }",
            Request { netmap: true, ..to(TranslatedEnd::Source, "203.0.113.0", "203.0.113.255") },
        ),
        destination("dnat to 198.51.100.200", dnat),
        destination("dnat to 198.51.100.200:80", ports(dnat, 80, 80)),
        destination("dnat to 198.51.100.200:8000-8003", ports(dnat, 8000, 8003)),
        Rule {
            destination: Some(("dnat to 198.51.100.200", dnat)),
            source: Some(("snat to 203.0.113.1", snat)),
        },
        Rule { destination: None, source: None },
    ]
}

/// The ruleset for the kernel. Each rule applies to one destination port, and to the echo requests
/// to one host.
fn ruleset(rules: &[Rule]) -> String {
    let mut chains = [String::new(), String::new()];
    for (number, rule) in rules.iter().enumerate() {
        let port = usize::from(PORT) + number;
        for (chain, part) in chains.iter_mut().zip([&rule.destination, &rule.source]) {
            let Some((text, _)) = part else { continue };
            // Matches the original port, because an earlier rule may have translated it.
            let of = format!("ct original proto-dst {port}");
            writeln!(chain, "meta l4proto {{ tcp, udp }} {of} {text}").unwrap();
            if !text.contains(':') || text.contains("map") {
                let host = format!("ct original ip daddr 198.51.100.{}", 100 + number);
                writeln!(chain, "meta l4proto icmp {host} {text}").unwrap();
            }
        }
    }
    let [prerouting, postrouting] = chains;
    format!(
        "table ip translated {{\n\
         chain prerouting {{ type nat hook prerouting priority dstnat; policy accept;\n\
         {prerouting}}}\n\
         chain postrouting {{ type nat hook postrouting priority srcnat; policy accept;\n\
         {postrouting}}}\n}}\n"
    )
}

/// The identity of a connection on both sides: protocol, client, server, and both ports or twice
/// the identifier.
type Name = (u8, IpAddr, IpAddr, u16, u16);

/// The first packet of a connection.
struct First {
    rule: usize,
    name: Name,
    frame: Vec<u8>,
}

/// First packets with few clients and ports, so that they collide, in the order of their arrival.
fn firsts(rules: &[Rule]) -> Vec<First> {
    let mut random = Random::new(7);
    let mut seen = BTreeSet::new();
    let mut firsts = Vec::new();
    for _ in 0..1500 {
        let rule = random.between(0, rules.len() - 1);
        let client: IpAddr = format!("192.0.2.{}", random.between(1, 5)).parse().unwrap();
        let protocol = random.one_of(&[6, 17, 17, 1]);
        let host = if protocol == 1 { 100 + rule } else { random.between(1, 2) };
        let server: IpAddr = format!("198.51.100.{host}").parse().unwrap();
        let from = random.between(2000, 2004) as u16;
        let to = if protocol == 1 { from } else { PORT + rule as u16 };
        let name = (protocol, client, server, from, to);
        if !seen.insert(name) {
            continue;
        }
        let mut frame = Vec::new();
        let builder = packet(client, server);
        match protocol {
            6 => {
                let flags = TcpFlags::SYN;
                let (source_port, destination_port) = (from, to);
                let syn = Tcp { source_port, destination_port, flags, ..Tcp::default() };
                builder.tcp(&syn, b"", &mut frame);
            }
            17 => builder.udp(from, to, b"x", &mut frame),
            _ => builder.echo(false, from, 1, b"x", &mut frame),
        }
        firsts.push(First { rule, name, frame });
    }
    firsts
}

/// The addresses and ports of the replies, which are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Reply {
    source: IpAddr,
    destination: IpAddr,
    ports: (u16, u16),
}

const SENDER: &str = "
import sys
from cables import far_ends, stations
cable, mac = far_ends()['client'], stations()['client']
for line in sys.stdin:
    cable.send(mac + bytes.fromhex(line)[6:])
";

fn kernels(rules: &[Rule], firsts: &[First]) -> Result<BTreeMap<Name, Reply>> {
    let namespace = forwarding_namespace("kernel")?;
    namespace.ip(&["addr add 203.0.113.9/32 dev server0", "link set lo up"])?;
    namespace.load_rules(&ruleset(rules))?;
    let frames: String = firsts.iter().map(|first| hex(&first.frame) + "\n").collect();
    player(&namespace, SENDER.as_bytes())?.input(frames).check()?;
    let listed = namespace.program("conntrack").args(["-L"]).check()?;
    Ok(listed.lines().filter_map(read).collect())
}

/// A line of `conntrack -L`.
fn read(line: &str) -> Option<(Name, Reply)> {
    let protocol: u8 = line.split_whitespace().nth(1)?.parse().ok()?;
    let all = |name: &str| {
        line.split_whitespace().filter_map(|field| field.strip_prefix(name)).collect::<Vec<_>>()
    };
    let address = |name, at: usize| all(name).get(at)?.parse::<IpAddr>().ok();
    let number = |name, at: usize| all(name).get(at)?.parse::<u16>().ok();
    let ports = |at| match protocol {
        1 => Some((number("id=", at)?, number("id=", at)?)),
        _ => Some((number("sport=", at)?, number("dport=", at)?)),
    };
    let (from, to) = ports(0)?;
    let name = (protocol, address("src=", 0)?, address("dst=", 0)?, from, to);
    let (source, destination) = (address("src=", 1)?, address("dst=", 1)?);
    Some((name, Reply { source, destination, ports: ports(1)? }))
}

fn ours(rules: &[Rule], firsts: &[First]) -> BTreeMap<Name, Reply> {
    // The kernel limits no source and evicts no connection for a port.
    let mut own = OwnTable::new(Settings { nat_source_share: 100, ..Settings::default() });
    for (number, first) in firsts.iter().enumerate() {
        let supply = Supply { own: BucketPorts::ALL, seed: number as u64 * 7919, hash: &hash };
        let rule = &rules[first.rule];
        let is_echo = first.name.0 == 1;
        let meant = |part: &Option<(&'static str, Request)>| {
            part.map(|(_, request)| request).filter(|it| !is_echo || it.ports.is_none())
        };
        let requests = [meant(&rule.destination), meant(&rule.source)];
        own.offer(&first.frame, |table, tracked, _, context| {
            let id = tracked.connection.expect("there is room");
            let mut outcome = Ok(());
            for request in requests.into_iter().flatten() {
                outcome = outcome.and_then(|()| table.translate(id, &request, supply, context));
            }
            match outcome.and_then(|()| table.make_reply_unique(id, supply, context)) {
                Ok(()) => table.confirm(id, context).unwrap(),
                Err(DropReason::PortPoolFull) => table.withdraw(id, context),
                Err(reason) => panic!("{reason}"),
            }
        });
    }
    let mut replies = BTreeMap::new();
    own.table.list(Default::default(), u32::MAX, NOW, |connection| {
        let Connection { protocol, original, reply, .. } = connection;
        let ports = |transport| match transport {
            TupleTransport::Ports { source, destination } => (source, destination),
            TupleTransport::Icmp { id, .. } => (id, id),
            other => panic!("{other:?}"),
        };
        let (from, to) = ports(original.transport);
        let name = (protocol, original.source, original.destination, from, to);
        let (source, destination) = (reply.source, reply.destination);
        replies.insert(name, Reply { source, destination, ports: ports(reply.transport) });
    });
    replies
}

/// Compares the kernel's translation with ours.
fn compare() -> Result<()> {
    let rules = rules();
    let firsts = firsts(&rules);
    let (kernel, ours) = (kernels(&rules, &firsts)?, ours(&rules, &firsts));
    assert!(kernel.len() > 300, "the kernel lists {} of {}", kernel.len(), firsts.len());
    let mut counts: BTreeMap<usize, (usize, usize)> = BTreeMap::new();
    let mut keepers: BTreeMap<_, (usize, usize)> = BTreeMap::new();
    let mut persistent: BTreeMap<IpAddr, BTreeSet<IpAddr>> = BTreeMap::new();
    for First { rule: number, name, .. } in &firsts {
        let rule = &rules[*number];
        let (theirs, own) = (kernel.get(name), ours.get(name));
        let count = counts.entry(*number).or_default();
        count.0 += usize::from(theirs.is_some());
        count.1 += usize::from(own.is_some());
        let (Some(theirs), Some(own)) = (theirs, own) else { continue };
        let what = || format!("rule {number} {name:?}\nkernel {theirs:?}\nours   {own:?}");
        assert_eq!(theirs.source, own.source, "{}", what());
        let is_echo = name.0 == 1;
        // The first free port of a range depends on the ports that are in use by then.
        let range = rule.destination.and_then(|(_, request)| request.ports);
        if range.is_none_or(|range| range.first() == range.last()) && !is_echo {
            assert_eq!(theirs.ports.0, own.ports.0, "{}", what());
        }
        let source = rule.source.as_ref().filter(|(_, it)| !is_echo || it.ports.is_none());
        let Some((_, request)) = source else {
            assert_eq!(theirs.destination, own.destination, "{}", what());
            continue;
        };
        match request.addresses.unwrap() {
            range if range == Addresses::one(own.destination) || request.netmap => {
                assert_eq!(theirs.destination, own.destination, "{}", what());
            }
            range => {
                for address in [theirs.destination, own.destination] {
                    assert!(addresses("203.0.113.1", "203.0.113.4") == Some(range));
                    let last = address.to_string().rsplit('.').next().unwrap().parse::<u8>();
                    assert!((1..=4).contains(&last.unwrap()), "{}", what());
                }
            }
        }
        if request.persistent {
            // The kernel does not keep this if another rule uses the port of the client.
            persistent.entry(name.1).or_default().insert(own.destination);
        }
        let single = request.addresses == Some(Addresses::one(own.destination));
        // The first connection keeps its port, unless its source has another one already, because a
        // client port has the same translation towards all servers.
        if single && request.ports.is_none() && !request.random && !request.netmap {
            let group = (*number, name.0, own.source, own.ports.0.min(PORT + 99), name.3);
            let kept = keepers.entry(group).or_default();
            kept.0 += usize::from(theirs.ports.1 == name.3);
            kept.1 += usize::from(own.ports.1 == name.3);
        }
        if let Some(range) = request.ports {
            for port in [theirs.ports.1, own.ports.1] {
                assert!((range.first()..=range.last()).contains(&port), "{}", what());
            }
        }
    }
    // Both refuse the same number of connections, by rules with few ports.
    println!("by rule: (kernel's, ours) {counts:?}");
    assert!(counts.values().all(|(kernels, ours)| kernels == ours), "{counts:?}");
    assert!(keepers.values().all(|&(kernels, ours)| kernels <= 1 && ours <= 1), "{keepers:?}");
    let kept = keepers.values().fold((0, 0), |sum, kept| (sum.0 + kept.0, sum.1 + kept.1));
    let least = kept.0.min(kept.1);
    assert!(least * 2 > keepers.len() && keepers.len() > 50, "{kept:?} of {}", keepers.len());
    assert!(persistent.values().all(|chosen| chosen.len() == 1), "{persistent:?}");
    Ok(())
}

#[test]
fn rules_choose_the_same_translations_as_in_the_kernel() {
    beside_others(compare);
}
