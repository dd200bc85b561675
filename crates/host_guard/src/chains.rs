//! A filter as chains and rules of nf_tables.

use std::net::IpAddr;
use std::ops::RangeInclusive;

use netlink::nf_tables::{
    Chain, Field, Hook, HookPoint, MAX_RANGES, Match, PACKET_OTHERHOST, RecentKeys, Rule, Table,
    Verdict,
};
use ruleset::{Forwarded, Interval, address_bits};
use wire::Family;

use crate::filter::HostFilter;
use crate::interface::{Interface, NameTime};

/// Keeps a packet from the host, in front of routing.
///
/// The chain `away` drops it, unless it came in by a bridge of the kernel. With br_netfilter
/// (`bridge-nf-call-iptables` of ip-sysctl), the hook of prerouting meets a frame in the bridge,
/// before the bridge forwards the frame or gives it to the packet sockets of the bridge, and does
/// not meet it again. So such a packet counts as one for another station instead. A bridge forwards
/// it all the same, packet sockets receive it, and routing drops it without an answer.
const AWAY: Verdict = Verdict::Goto("away");

/// Priorities of chains: before reassembly, before tracking, right behind those before it, right
/// behind tracking, and behind the translation of destinations. The chain of output has the usual one.
const BEFORE_REASSEMBLY: i32 = -450;
const RAW: i32 = -300;
const BEHIND_RAW: i32 = -299;
const BEHIND_TRACKING: i32 = -199;
const BEHIND_DSTNAT: i32 = -99;
const FILTER: i32 = 0;

/// Address families (linux/netfilter.h).
const IPV4: u128 = 2;
const IPV6: u128 = 10;

/// Protocols.
const ICMP: u128 = 1;
const TCP: u128 = 6;
const UDP: u128 = 17;
const ICMPV6: u128 = 58;
/// Protocols with ports: TCP, UDP, DCCP, SCTP, UDP-Lite.
const WITH_PORTS: [u128; 5] = [TCP, UDP, 33, 132, 136];

/// The last port of services (RFC 6335 section 6: system ports). Sources rarely have one.
pub const LAST_SERVICE: u128 = 1023;

/// Types of ICMP and ICMPv6 messages.
const ICMP_UNREACHABLE: u128 = 3;
const ECHO_REQUESTS: [(u128, u128); 2] = [(ICMP, 8), (ICMPV6, 128)];
const ECHO_REPLY: u128 = 0;
const ECHO_REPLY_V6: u128 = 129;
/// Errors: destination unreachable, time exceeded, parameter problem; for ICMPv6 all types below 128
/// (RFC 4443 section 2.1).
const ICMP_ERRORS: [u128; 3] = [ICMP_UNREACHABLE, 11, 12];
const ICMPV6_ERRORS: (u128, u128) = (0, 127);
/// Code: protocol unreachable.
const PROTOCOL_UNREACHABLE: u128 = 2;
/// The ICMPv6 counterpart: type and code.
const PARAMETER_PROBLEM: u128 = 4;
const UNKNOWN_NEXT_HEADER: u128 = 1;

/// Type and code of an ICMP message.
const ICMP_TYPE: Field = Field::Transport { offset: 0, length: 1 };
const ICMP_CODE: Field = Field::Transport { offset: 1, length: 1 };
/// Flags of TCP: SYN and ACK, and SYN alone.
const TCP_FLAGS: Field = Field::Transport { offset: 13, length: 1 };
const SYN_ACK: u128 = 0x12;
const SYN: u128 = 0x02;

/// Types of addresses (`RTN_` of linux/rtnetlink.h) whose packets are for the host: local,
/// broadcast, anycast, multicast.
const FOR_HOST: [u128; 4] = [2, 3, 4, 5];

/// Bits of the kernel's connections (`IPS_`): expected, confirmed, source or destination translated.
const EXPECTED: u128 = 1;
const CONFIRMED: u128 = 1 << 3;
const SOURCE_TRANSLATED: u128 = 1 << 4;
const DESTINATION_TRANSLATED: u128 = 1 << 5;
/// The way of replies in one of these.
const REPLY: u128 = 1;

impl HostFilter {
    /// The table with this name that applies the filter.
    pub fn table(&self, name: String) -> Table {
        let came_in = Match::one_of(Field::InputIndex, numbers(&self.interfaces));
        let to_left = Rule::new([came_in.clone()], Verdict::Jump("left"));
        let not_for_host = Rule::new([came_in.clone(), not_for_host()], AWAY);
        let is_away = Match::is(Field::PacketType, PACKET_OTHERHOST.into());
        let never_in = vec![Rule::new([came_in.clone(), is_away], Verdict::Drop)];
        let first = vec![self.unseen(), to_left.clone(), not_for_host.clone()];
        let mut chains = vec![
            base("prerouting", HookPoint::Prerouting, RAW, first),
            base("input", HookPoint::Input, RAW, never_in),
            base("forward", HookPoint::Forward, RAW, self.forwarded_by_kernel()),
            chain("left", self.redirected_rules()),
            chain("away", away_rules()),
        ];
        if !self.bridges.is_empty() {
            let rules = self.untracked_rules();
            chains.push(base("bridged", HookPoint::Prerouting, BEFORE_REASSEMBLY, rules));
        }
        // Without translation, the table needs fewer features of the kernel.
        if !self.translates() {
            return Table { name, recent: Vec::new(), chains };
        }
        let to_translated = Rule::new([came_in.clone()], Verdict::Jump("translated"));
        let mut host = vec![to_left, to_translated.clone()];
        // Tracking costs the kernel time for each packet to a translation address, which it drops
        // here before it keeps a connection of it. So the chain is behind tracking only if needed.
        let priority = if self.kernel_translates { BEHIND_TRACKING } else { BEHIND_RAW };
        if self.kernel_translates {
            host.insert(0, replies_to_kernel().only_for([came_in.clone()]));
        }
        chains.extend([
            base("host", HookPoint::Prerouting, priority, host),
            chain("translated", self.translated_rules()),
            chain("sources", self.sources_rules()),
            chain("former", opens_or_belongs_to_host(self.expects)),
        ]);
        if self.redirects_any() {
            let translated = Match::some_of(Field::TrackStatus, DESTINATION_TRANSLATED);
            let to_led = Rule::new([came_in.clone(), translated], Verdict::Goto("led"));
            let mut behind = vec![not_for_host, to_led, to_translated];
            if self.kernel_translates {
                behind.insert(1, replies_to_kernel().only_for([came_in.clone()]));
            }
            chains.push(base("behind", HookPoint::Prerouting, BEHIND_DSTNAT, behind));
            chains.push(chain("led", self.led_rules()));
        }
        if !self.translation_addresses.is_empty() || !self.forwarded.is_empty() {
            let goes_out = Match::one_of(Field::OutputIndex, numbers(&self.interfaces));
            let answers = refusals_of_protocols(&goes_out).to_vec();
            chains.push(base("answers", HookPoint::Output, FILTER, answers));
        }
        if self.translation_addresses.is_empty() {
            return Table { name, recent: Vec::new(), chains };
        }
        chains.push(base("asked", HookPoint::Output, FILTER, remembered_echoes()));
        Table { name, recent: vec![ECHOES_V4, ECHOES_V6], chains }
    }

    /// Drops packets from an interface that has come back under a known name and that the guard has
    /// not seen yet.
    fn unseen(&self) -> Rule {
        let names = self.interfaces.iter().flat_map(Interface::names).map(Field::name);
        let not_own = Match::none_of(Field::InputIndex, numbers(&self.interfaces));
        Rule::new([not_own, Match::one_of(Field::InputName, names)], Verdict::Drop)
    }

    /// Has the kernel leave alone what a bridge is to hand up and is not for the host. With
    /// br_netfilter, the hook of prerouting is in the bridge. A kernel that tracks connections there
    /// reassembles fragments, and packet sockets would get one packet that is longer than the link
    /// takes. Frames that the bridge forwards between its ports are sent to other stations than its
    /// own, and go on as they were.
    fn untracked_rules(&self) -> Vec<Rule> {
        // The kernel tracks what it may redirect. Only a first fragment has ports.
        let redirected = self.redirected.iter().chain(&self.formerly_redirected);
        let redirected = redirected.filter_map(|packets| {
            let any_port = Forwarded { ports: None, ..*packets };
            self.matches_of(&any_port, NameTime::Ever, Tuple::Current)
        });
        let mut rules: Vec<_> =
            redirected.map(|matches| Rule::new(matches, Verdict::Accept)).collect();
        rules.extend(self.bridges.iter().map(|(number, station)| {
            let station = station.iter().fold(0, |bits, byte| bits << 8 | u128::from(*byte));
            let came_in = Match::is(Field::InputIndex, (*number).into());
            let to_bridge = Match::is(Field::Station, station);
            Rule::new([came_in, to_bridge, not_for_host()], Verdict::Untracked)
        }));
        rules
    }

    /// Drops what the kernel is about to forward. With source routing that was for the host when it
    /// came in: the host takes the next address out of an option (RFC 791 section 3.1) or a
    /// routing header (RFC 8200 section 4.4) only then. An interface that stands on one of the
    /// gateway's has a station of its own, so its packets are for the host too. With br_netfilter,
    /// what a bridge of the kernel forwards between its own ports comes in and goes out by the
    /// bridge here, and is left to it.
    fn forwarded_by_kernel(&self) -> Vec<Rule> {
        let mut all = numbers(&self.interfaces);
        let bridged = all.iter().map(|number| {
            let within = [Field::InputIndex, Field::OutputIndex].map(|it| Match::is(it, *number));
            Rule::new(within.into_iter().chain([by_bridge()]), Verdict::Accept)
        });
        let mut rules: Vec<_> = bridged.collect();
        all.extend(self.stacked.iter().copied().map(u128::from));
        rules.push(Rule::new([Match::one_of(Field::InputIndex, all)], Verdict::Drop));
        rules
    }

    /// True if the kernel gets, or got, packets that are not for the host.
    fn redirects_any(&self) -> bool {
        !self.redirected.is_empty() || !self.formerly_redirected.is_empty()
    }

    /// Accepts packets that the kernel may redirect.
    fn redirected_rules(&self) -> Vec<Rule> {
        if !self.redirects_any() {
            return Vec::new();
        }
        let left = self.redirected.iter().chain(&self.formerly_redirected);
        let left =
            left.filter_map(|packets| self.matches_of(packets, NameTime::Ever, Tuple::Current));
        let mut rules: Vec<_> = left.map(|matches| Rule::new(matches, Verdict::Accept)).collect();
        // An error about a packet of the host goes to the address that its receiver takes for the
        // sender.
        rules.extend([
            icmp(ICMP, Match::one_of(ICMP_TYPE, ICMP_ERRORS), Verdict::Accept),
            icmp(ICMPV6, Match::ranges(ICMP_TYPE, [ICMPV6_ERRORS]), Verdict::Accept),
        ]);
        rules
    }

    /// Drops packets that the gateway translates.
    fn translated_rules(&self) -> Vec<Rule> {
        let forwarded = self.forwarded.iter();
        let mut rules: Vec<Rule> = forwarded.flat_map(|it| self.forwarded_rules(it)).collect();
        // For an interface that had a name, rules about the name count as former ones.
        let renamed = self.forwarded.iter().filter(|packets| packets.interfaces.is_some());
        let renamed = renamed.map(|packets| (packets, NameTime::Before));
        let former =
            renamed.chain(self.formerly_forwarded.iter().map(|packets| (packets, NameTime::Ever)));
        let former = former.filter_map(|(it, named)| self.matches_of(it, named, Tuple::Current));
        rules.extend(former.map(|matches| Rule::new(matches, Verdict::Jump("former"))));
        for is_v4 in [true, false] {
            let of_family = |range: &&RangeInclusive<IpAddr>| range.start().is_ipv4() == is_v4;
            let bits = |range: &RangeInclusive<IpAddr>| {
                (address_bits(*range.start()), address_bits(*range.end()))
            };
            let ranges: Vec<_> =
                self.translation_addresses.iter().filter(of_family).map(bits).collect();
            let family = if is_v4 { Family::V4 } else { Family::V6 };
            for addresses in ranges.chunks(MAX_RANGES) {
                let address = Match::ranges(destination(family), addresses.iter().copied());
                let with_ports = Match::one_of(Field::Protocol, WITH_PORTS);
                let to_address = [is_of(family), address];
                let with_ports = to_address.iter().cloned().chain([with_ports]);
                rules.push(Rule::new(with_ports, Verdict::Jump("sources")));
                rules.extend(echo_rules(family).map(|it| it.only_for(to_address.iter().cloned())));
            }
        }
        rules
    }

    /// For packets to a translation address: accepts those that the host has a socket for. It also
    /// accepts those that open a TCP connection to a port of a service, so that the host refuses it
    /// where nobody listens. A packet that opens a connection to another port may be a reply: both
    /// ends of a masqueraded connection may open it at once (RFC 5382 section 4.2), and helpers
    /// expect connections.
    fn sources_rules(&self) -> Vec<Rule> {
        let to_service = Match::ranges(Field::DESTINATION_PORT, [(0, LAST_SERVICE)]);
        let to_other = Match::ranges(Field::DESTINATION_PORT, [(LAST_SERVICE + 1, 0xffff)]);
        let refusable = match self.expects {
            true => comes_to_socket(),
            false => to_service,
        };
        vec![
            Rule::new(opens_tcp().into_iter().chain([refusable]), Verdict::Accept),
            Rule::new(opens_tcp().into_iter().chain([comes_to_socket()]), Verdict::Accept),
            Rule::new([Match::is(Field::Protocol, UDP), comes_to_socket()], Verdict::Accept),
            waits_for_anybody().only_for([to_other]),
            Rule::new([belongs_to_socket()], Verdict::Accept),
            Rule::new([], AWAY),
        ]
    }

    /// A packet that the kernel's rules have led to the host is the host's in three cases. It
    /// belongs to a connection that the kernel knows or expects, or rules here leave it to the
    /// kernel too. A packet in the middle of a connection must not look like the beginning of
    /// another, because the gateway has its connection.
    fn led_rules(&self) -> Vec<Rule> {
        let known = Match::some_of(Field::TrackStatus, CONFIRMED | EXPECTED);
        let goes_on = [Match::is(Field::Protocol, TCP), Match::other_bits(TCP_FLAGS, SYN_ACK, SYN)];
        let mut rules = vec![Rule::new([known], Verdict::Accept), Rule::new(goes_on, AWAY)];
        let left = self.redirected.iter();
        let left =
            left.filter_map(|packets| self.matches_of(packets, NameTime::Now, Tuple::Original));
        rules.extend(left.map(|matches| Rule::new(matches, Verdict::Accept)));
        rules.push(Rule::new([], AWAY));
        rules
    }

    /// The matches for one kind of packets; `None` if it concerns none of the interfaces.
    fn matches_of(&self, packets: &Forwarded, named: NameTime, tuple: Tuple) -> Option<Vec<Match>> {
        let mut matches = Vec::new();
        if let Some(names) = packets.interfaces {
            let mut meant =
                self.interfaces.iter().filter(|it| it.is_named(names, named)).peekable();
            meant.peek()?;
            matches.push(Match::one_of(Field::InputIndex, numbers(meant)));
        }
        let families = [packets.sources, packets.addresses].map(|it| it.map(|(family, _)| family));
        let family = packets.family.into_iter().chain(families.into_iter().flatten()).next();
        matches.extend(family.map(is_of));
        if let Some((family, Interval { low, high })) = packets.sources {
            let field = match (tuple, family) {
                (Tuple::Current, _) => source(family),
                (Tuple::Original, Family::V4) => Field::OpenedFromV4,
                (Tuple::Original, Family::V6) => Field::OpenedFromV6,
            };
            matches.push(Match::ranges(field, [(low, high)]));
        }
        if let Some((family, Interval { low, high })) = packets.addresses {
            let field = match (tuple, family) {
                (Tuple::Current, _) => destination(family),
                (Tuple::Original, Family::V4) => Field::OpenedToV4,
                (Tuple::Original, Family::V6) => Field::OpenedToV6,
            };
            matches.push(Match::ranges(field, [(low, high)]));
        }
        match (packets.protocol, packets.ports) {
            (Some(protocol), _) => matches.push(Match::is(Field::Protocol, protocol.into())),
            (None, Some(_)) => matches.push(Match::one_of(Field::Protocol, WITH_PORTS)),
            (None, None) => {}
        }
        if let Some((low, high)) = packets.ports {
            let field = match tuple {
                Tuple::Current => Field::DESTINATION_PORT,
                Tuple::Original => Field::OpenedToPort,
            };
            matches.push(Match::ranges(field, [(low.into(), high.into())]));
        }
        Some(matches)
    }

    /// The rules for one kind of packets whose destination is translated.
    fn forwarded_rules(&self, packets: &Forwarded) -> Vec<Rule> {
        let Some(matches) = self.matches_of(packets, NameTime::Now, Tuple::Current) else {
            return Vec::new();
        };
        if packets.ports.is_some() {
            return vec![Rule::new(matches, AWAY)];
        }
        // Connections that the host itself has opened are not translated, nor is ICMP other than
        // echo requests.
        let talk = ECHO_REQUESTS.map(|(protocol, echo)| {
            icmp(protocol, Match::none_of(ICMP_TYPE, [echo]), Verdict::Accept)
        });
        let [talk_v4, talk_v6] = talk;
        let belongs = Rule::new([belongs_to_socket()], Verdict::Accept);
        let rest = Rule::new([], AWAY);
        [waits_for_anybody(), belongs, talk_v4, talk_v6, rest]
            .map(|rule| rule.only_for(matches.iter().cloned()))
            .to_vec()
    }
}

fn base(name: &'static str, point: HookPoint, priority: i32, rules: Vec<Rule>) -> Chain {
    Chain { name, hook: Some(Hook { point, priority }), rules }
}

fn chain(name: &'static str, rules: Vec<Rule>) -> Chain {
    Chain { name, hook: None, rules }
}

/// The numbers of existing interfaces.
fn numbers<'a>(interfaces: impl IntoIterator<Item = &'a Interface>) -> Vec<u128> {
    let numbers: Vec<_> =
        interfaces.into_iter().filter_map(Interface::index).map(u128::from).collect();
    // No interface has the number 0.
    if numbers.is_empty() { vec![0] } else { numbers }
}

/// Matches packets that are not for the host.
fn not_for_host() -> Match {
    Match::none_of(Field::DestinationType, FOR_HOST)
}

/// Matches packets that came in by a bridge of the kernel.
fn by_bridge() -> Match {
    Match::is(Field::InputKind, Field::name("bridge"))
}

/// See [`AWAY`].
fn away_rules() -> Vec<Rule> {
    vec![Rule::new([by_bridge()], Verdict::ForOtherStation), Rule::new([], Verdict::Drop)]
}

/// Matches packets that open a TCP connection.
fn opens_tcp() -> [Match; 2] {
    [Match::is(Field::Protocol, TCP), Match::bits(TCP_FLAGS, SYN_ACK, SYN)]
}

/// Matches packets that any socket of the host gets.
fn comes_to_socket() -> Match {
    Match::ranges(Field::IsSocketWildcard, [(0, 1)])
}

/// Keeps packets away that only a listening socket of the host would get.
fn waits_for_anybody() -> Rule {
    Rule::new([Match::is(Field::IsSocketWildcard, 1)], AWAY)
}

/// Matches packets that belong to a socket. A socket is transparent or not, and the kernel can tell
/// also for connections that are being opened or are over. So both answers match.
fn belongs_to_socket() -> Match {
    Match::ranges(Field::IsSocketTransparent, [(0, 1)])
}

/// Accepts replies to packets whose source the kernel has translated. Another chain drops those that
/// the kernel would forward: it forwards nothing that comes in by an interface of the gateway.
fn replies_to_kernel() -> Rule {
    let translated = Match::some_of(Field::TrackStatus, SOURCE_TRANSLATED);
    Rule::new([translated, Match::is(Field::TrackWay, REPLY)], Verdict::Accept)
}

/// Accepts packets that open a connection of the host, or belong to a socket of it. `expects` says
/// that the gateway may take a connection to any port, so that the host gets only those to its sockets.
fn opens_or_belongs_to_host(expects: bool) -> Vec<Rule> {
    let to_socket = expects.then(comes_to_socket);
    vec![
        // Other protocols can not be told apart, and the host does not refuse their packets.
        Rule::new([Match::none_of(Field::Protocol, [TCP, UDP])], Verdict::Accept),
        Rule::new(opens_tcp().into_iter().chain(to_socket), Verdict::Accept),
        Rule::new([Match::is(Field::Protocol, UDP), comes_to_socket()], Verdict::Accept),
        waits_for_anybody(),
        Rule::new([belongs_to_socket()], Verdict::Accept),
        Rule::new([], AWAY),
    ]
}

/// The echo requests that the host has sent: their destinations and identifiers. An answer takes
/// no longer than programs wait for it.
const ECHOES_V4: RecentKeys =
    RecentKeys { name: "echoes_v4", seconds: 30, most: 65_535, lengths: (4, 2) };
const ECHOES_V6: RecentKeys = RecentKeys { name: "echoes_v6", lengths: (16, 2), ..ECHOES_V4 };
/// The identifier of an echo.
const ECHO_ID: Field = Field::Transport { offset: 4, length: 2 };

/// Remembers echo requests of the host.
fn remembered_echoes() -> Vec<Rule> {
    let [v4, v6] = ECHO_REQUESTS;
    let each = [(Family::V4, v4, ECHOES_V4), (Family::V6, v6, ECHOES_V6)];
    each.map(|(family, (protocol, request), set)| {
        let asks =
            [is_of(family), Match::is(Field::Protocol, protocol), Match::is(ICMP_TYPE, request)];
        Rule::remember(asks, &set, (destination(family), ECHO_ID))
    })
    .to_vec()
}

/// For packets to a translation address: keeps echo replies away that the host has not asked for,
/// because the gateway has masqueraded the request.
fn echo_rules(family: Family) -> [Rule; 2] {
    let (protocol, reply, set) = match family {
        Family::V4 => (ICMP, ECHO_REPLY, ECHOES_V4),
        Family::V6 => (ICMPV6, ECHO_REPLY_V6, ECHOES_V6),
    };
    let answers = [Match::is(Field::Protocol, protocol), Match::is(ICMP_TYPE, reply)];
    let asked = Match::recent(&set, (source(family), ECHO_ID));
    let own = Rule::new(answers.iter().cloned().chain([asked]), Verdict::Accept);
    [own, Rule::new(answers, AWAY)]
}

/// Drops the host's answers that it does not know a protocol. Protocols without ports, such as GRE
/// and ESP, pass a translation that the host knows nothing of, and the host may speak them itself:
/// their packets can not be told apart before. So they come to the host, and only its answer is
/// dropped.
fn refusals_of_protocols(goes_out: &Match) -> [Rule; 2] {
    let unknown = [
        (Family::V4, ICMP, ICMP_UNREACHABLE, PROTOCOL_UNREACHABLE),
        (Family::V6, ICMPV6, PARAMETER_PROBLEM, UNKNOWN_NEXT_HEADER),
    ];
    unknown.map(|(family, protocol, kind, code)| {
        let matches = [
            goes_out.clone(),
            is_of(family),
            Match::is(Field::Protocol, protocol),
            Match::is(ICMP_TYPE, kind),
            Match::is(ICMP_CODE, code),
        ];
        Rule::new(matches, Verdict::Drop)
    })
}

fn icmp(protocol: u128, message: Match, verdict: Verdict) -> Rule {
    let family = if protocol == ICMP { Family::V4 } else { Family::V6 };
    Rule::new([is_of(family), Match::is(Field::Protocol, protocol), message], verdict)
}

fn is_of(family: Family) -> Match {
    Match::is(
        Field::Family,
        match family {
            Family::V4 => IPV4,
            Family::V6 => IPV6,
        },
    )
}

fn source(family: Family) -> Field {
    match family {
        Family::V4 => Field::Network { offset: 12, length: 4 },
        Family::V6 => Field::Network { offset: 8, length: 16 },
    }
}

fn destination(family: Family) -> Field {
    match family {
        Family::V4 => Field::Network { offset: 16, length: 4 },
        Family::V6 => Field::Network { offset: 24, length: 16 },
    }
}

/// The addresses and the port that a match compares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tuple {
    /// Those that the packet has now.
    Current,
    /// Those that the first packet of its connection had before the kernel translated it.
    Original,
}

#[cfg(test)]
#[path = "chains_tests.rs"]
mod tests;
