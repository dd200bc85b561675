use conntrack::Connection as Entry;
use flow::HashKey;
use ruleset::ValidRuleset;
use wire::build::{PacketBuilder, Tcp};
use wire::tcp_option::TcpOptions;
use wire::{TcpFlags, dissect, protocol};

use super::*;
use crate::Config;
use crate::egress::Mode;
use crate::path::drop_cause::DropCause;
use crate::path::rules::ruleset::Rules;
use crate::testing::many_workers::TestGateway;
use crate::testing::one_worker::Rig;
use crate::testing::router;
use crate::testing::rules::{one_chain, one_chain_with};
use crate::worker::command::{Command, Notice};
use netio::{Frame, PortId};
use wire::Transport;

const CLIENT: [u8; 4] = [192, 0, 2, 1];
const SERVER: [u8; 4] = [198, 51, 100, 2];
const SYN: u8 = 2;
const RST: u8 = 4;
const ACK: u8 = 16;

const PORT_22: &str =
    r#"{"match":{"op":"==","left":{"payload":{"protocol":"tcp","field":"dport"}},"right":22}}"#;
const KNOWN: &str =
    r#"{"match":{"op":"in","left":{"ct":{"key":"state"}},"right":["established","related"]}}"#;

fn rig(ruleset: ValidRuleset) -> Rig {
    let mut rig = Rig::new(&Config::new(HashKey(1, 2)));
    let names = ["lan0".to_owned(), "wan0".to_owned()];
    let rules = Rules::prepare(ruleset, Mode::Bridge, 7, &names).unwrap().load(3, rig.now);
    assert!(rig.commands.push(Command::Rules(Some(rules.for_worker()))).is_ok());
    rig.exchange(0, []);
    rig
}

fn segment(back: bool, port: u16, flags: u8, numbers: (u32, u32), options: &[u8]) -> Frame {
    let (ends, ports) = ((CLIENT, SERVER), (40_000, port));
    let swap = |(a, b)| if back { (b, a) } else { (a, b) };
    let ((from, to), (source_port, destination_port)) = (swap(ends), {
        let (a, b) = ports;
        if back { (b, a) } else { (a, b) }
    });
    let header = Tcp {
        source_port,
        destination_port,
        sequence: numbers.0,
        acknowledgment: numbers.1,
        flags: TcpFlags(flags),
        window: 5000,
        options,
    };
    let mut bytes = Vec::new();
    PacketBuilder::v4(from, to).tcp(&header, &[], &mut bytes);
    netio::FramePool::new(0, 0).copy_of(&bytes).unwrap()
}

impl Rig {
    /// The frames that leave by the port that a segment came in by, and by the other.
    fn say(&mut self, back: bool, port: u16, flags: u8, numbers: (u32, u32)) -> [Vec<Frame>; 2] {
        let [a, b] = self.exchange(usize::from(back), [segment(back, port, flags, numbers, &[])]);
        if back { [b, a] } else { [a, b] }
    }

    fn passes(&mut self, back: bool, port: u16, flags: u8, numbers: (u32, u32)) -> bool {
        self.say(back, port, flags, numbers)[1].len() == 1
    }

    fn open(&mut self, port: u16) {
        assert!(self.passes(false, port, SYN, (100, 0)));
        assert!(self.passes(true, port, SYN | ACK, (500, 101)));
        assert!(self.passes(false, port, ACK, (101, 501)));
    }

    fn listed(&self) -> Vec<Entry> {
        let mut found = Vec::new();
        for (_, bucket) in self.worker.path.buckets.owned() {
            bucket.connections.list(Default::default(), 1000, self.now, |it| found.push(it));
        }
        found
    }

    fn dropped(&self, reason: DropReason) -> u64 {
        self.worker.path.counters.dropped(reason)
    }

    fn counted(&self) -> Vec<u64> {
        let rules = self.worker.path.rules.as_ref().unwrap();
        rules.all_counted().iter().map(|counted| counted.packets).collect()
    }
}

fn tcp_of(frame: &Frame) -> wire::TcpInfo {
    let network = dissect(frame.bytes()).unwrap().network.unwrap();
    assert!(wire::checksum::verify_transport(frame.bytes(), &network));
    let Transport::Tcp(tcp) = network.transport else { panic!("no TCP") };
    tcp
}

/// A rule refuses packets of connections that have had more than two.
const MORE_THAN_TWO: &str =
    r#"{"match":{"op":">","left":{"ct":{"key":"packets"}},"right":2}},{"drop":null}"#;

#[test]
fn rules_that_ask_for_counts_have_connections_counted() {
    let mut rig = rig(one_chain("forward", 0, "accept", &[MORE_THAN_TWO]));
    assert!(rig.passes(false, 22, SYN, (100, 0)));
    assert!(rig.passes(true, 22, SYN | ACK, (500, 101)));
    assert!(!rig.passes(false, 22, ACK, (101, 501)), "the third packet");
    // A change of tunables does not end it, and neither does the switch itself.
    let mut settings = crate::Settings::default();
    for tunable in [0, 1, 0] {
        settings.set("nf_conntrack_acct", tunable).unwrap();
        assert!(rig.commands.push(Command::Settings(Box::new(settings.clone()))).is_ok());
        rig.exchange(0, []);
        assert!(rig.worker.path.tracking.settings().conntrack.accounting);
    }
    // Other rules that do not ask end it, and the tunable holds again.
    let names = ["lan0".to_owned(), "wan0".to_owned()];
    let other = one_chain("forward", 0, "accept", &[PORT_22]);
    let other = Rules::prepare(other, Mode::Bridge, 7, &names).unwrap().load(4, rig.now);
    assert!(rig.commands.push(Command::Rules(Some(other.for_worker()))).is_ok());
    rig.exchange(0, []);
    assert!(!rig.worker.path.tracking.settings().conntrack.accounting);
}

#[test]
fn a_logged_packet_has_the_port_that_it_leaves_by_where_that_is_known() {
    for (hook, output) in [("prerouting", None), ("forward", Some(PortId(1)))] {
        let mut rig = rig(one_chain(hook, 0, "accept", &[r#"{"log":{"prefix":"seen "}}"#]));
        assert!(rig.passes(false, 22, SYN, (100, 0)));
        let logged = rig.notices.try_iter().find_map(|notice| match notice {
            Notice::Logged(_, line) => Some(line),
            _ => None,
        });
        let logged = logged.unwrap();
        assert_eq!((logged.port, logged.output), (PortId(0), output), "{hook}");
    }
}

#[test]
fn a_rejected_packet_is_answered_and_leaves_no_connection() {
    let reject = format!(
        r#"{PORT_22},{{"counter":{{"packets":0,"bytes":0}}}},{{"reject":{{"type":"tcp reset"}}}}"#
    );
    let mut rig = rig(one_chain("forward", 0, "accept", &[&reject]));
    let [back, on] = rig.say(false, 22, SYN, (100, 0));
    assert!(on.is_empty());
    let reset = tcp_of(&back[0]);
    assert_eq!((reset.sequence, reset.acknowledgment, reset.flags.0), (0, 101, RST | ACK));
    assert_eq!((reset.source_port, reset.destination_port), (22, 40_000));
    assert_eq!(rig.listed(), []);
    // A reset is not answered by another, and one with a number is answered by that.
    assert_eq!(rig.say(false, 22, RST, (101, 0)).map(|frames| frames.len()), [0, 0]);
    let [back, _] = rig.say(false, 22, ACK, (101, 777));
    assert_eq!((tcp_of(&back[0]).sequence, tcp_of(&back[0]).flags.0), (777, RST));
    assert_eq!((rig.dropped(DropReason::RuleRefused), rig.counted()[0]), (3, 3));
    assert_eq!(rig.worker.path.counters.output.tcp_resets, 2);
    let recent = rig.worker.path.recent_drops.kept();
    assert_eq!(recent[0].why, DropCause::Rule { rule: 0, revision: 3, invalid: None });
    let text = rig.worker.path.rules.as_ref().unwrap().shared().tell(&recent[0].why);
    assert_eq!(text.as_deref(), Some("inet t chain c rule handle 10 refuses it"));
    assert!(rig.passes(false, 80, SYN, (100, 0)));
    assert_eq!(rig.listed().len(), 1);
}

#[test]
fn a_reset_closes_a_connection_that_is_there() {
    // The rule rejects segments of the client with a number from 200 on.
    let late = r#"{"match":{"op":">=","left":{"payload":{"protocol":"tcp","field":"sequence"}},
        "right":200}},{"match":{"op":"==","left":{"payload":{"protocol":"tcp","field":"dport"}},
        "right":80}},{"reject":{"type":"tcp reset"}}"#;
    let mut rig = rig(one_chain("forward", 0, "accept", &[late]));
    rig.open(80);
    assert_eq!(rig.listed()[0].state, Some("ESTABLISHED"));
    let [back, on] = rig.say(false, 80, ACK, (200, 501));
    assert_eq!((tcp_of(&back[0]).sequence, on.len()), (501, 0));
    let entry = &rig.listed()[0];
    assert_eq!((entry.state, entry.timeout_s), (Some("CLOSE"), 10));
}

#[test]
fn icmp_is_sent_for_its_family_and_code() {
    let rule = format!(r#"{PORT_22},{{"reject":{{"type":"icmpx","expr":"admin-prohibited"}}}}"#);
    let mut rig = rig(one_chain("forward", 0, "accept", &[&rule]));
    let [back, _] = rig.say(false, 22, SYN, (100, 0));
    let network = dissect(back[0].bytes()).unwrap().network.unwrap();
    let Transport::IcmpError(error) = network.transport else { panic!("no error") };
    assert_eq!((error.kind, error.code), (3, 13));
    assert_eq!(rig.listed(), []);
}

#[test]
fn rules_see_the_connection_that_a_packet_ends() {
    let whose = |direction, end, address| {
        format!(
            r#"{{"match":{{"op":"==","left":{{"ct":{{"key":"ip {end}","dir":"{direction}"}}}},
                "right":"{address}"}}}},{{"counter":{{"packets":0,"bytes":0}}}}"#
        )
    };
    let [asked, answered] =
        [whose("original", "saddr", "192.0.2.1"), whose("reply", "saddr", "198.51.100.2")];
    let mut rig = rig(one_chain("forward", 0, "accept", &[&asked, &answered]));
    assert!(rig.passes(false, 80, SYN, (100, 0)));
    assert!(rig.passes(true, 80, RST | ACK, (0, 101)));
    assert_eq!((rig.listed().len(), rig.counted()), (0, vec![2, 2]));
}

#[test]
fn a_policy_lets_only_known_connections_back() {
    let new =
        r#"{"match":{"op":"==","left":{"meta":{"key":"iifname"}},"right":"lan0"}},{"accept":null}"#;
    let known = format!(r#"{KNOWN},{{"accept":null}}"#);
    let mut rig = rig(one_chain("forward", 0, "drop", &[&known, new]));
    assert!(!rig.passes(true, 80, SYN, (1, 0)));
    assert_eq!((rig.listed().len(), rig.dropped(DropReason::PolicyRefused)), (0, 1));
    rig.open(80);
    assert!(rig.passes(true, 80, ACK, (501, 101)));
    // Without rules this is dropped; they say nothing of invalid packets but the policy.
    assert!(!rig.passes(true, 80, ACK, (1_000_000_000, 101)));
    assert_eq!(rig.dropped(DropReason::PolicyRefused), 2);
}

#[test]
fn rules_decide_whether_invalid_packets_are_dropped() {
    let mut open = rig(one_chain("forward", 0, "accept", &[]));
    let rule =
        r#"{"match":{"op":"in","left":{"ct":{"key":"state"}},"right":"invalid"}},{"drop":null}"#;
    let mut strict = rig(one_chain("forward", 0, "accept", &[rule]));
    for (rig, passes) in [(&mut open, true), (&mut strict, false)] {
        rig.open(80);
        assert_eq!(rig.passes(true, 80, ACK, (1_000_000_000, 101)), passes);
        assert_eq!(rig.worker.path.counters.classes[3], 1);
    }
    let why = strict.worker.path.recent_drops.kept()[0].why;
    assert!(why.invalid().is_some_and(|check| check.reason() == DropReason::TcpSequence), "{why}");
    let text = strict.worker.path.rules.as_ref().unwrap().shared().tell(&why).unwrap();
    assert!(text.contains("; it is INVALID: sequence"), "{text}");
}

#[test]
fn a_notrack_rule_leaves_packets_untracked() {
    let rule = format!(r#"{PORT_22},{{"notrack":null}}"#);
    let mut rig = rig(one_chain("prerouting", -300, "accept", &[&rule]));
    assert!(rig.passes(false, 22, SYN, (100, 0)));
    assert_eq!((rig.listed().len(), rig.worker.path.counters.classes[4]), (0, 1));
    assert!(rig.passes(false, 80, SYN, (100, 0)));
    assert_eq!(rig.listed().len(), 1);
}

#[test]
fn a_connection_gets_mark_and_labels_and_later_rules_see_them() {
    let set = r#"{"match":{"op":"in","left":{"ct":{"key":"state"}},"right":"new"}},
        {"mangle":{"key":{"ct":{"key":"mark"}},"value":7}}"#;
    let ask = r#"{"match":{"op":"==","left":{"ct":{"key":"mark"}},"right":7}},
        {"counter":{"packets":0,"bytes":0}}"#;
    let mut rig = rig(one_chain("forward", 0, "accept", &[set, ask]));
    rig.open(80);
    assert_eq!((rig.listed()[0].mark, rig.counted()[0]), (7, 3));
}

#[test]
fn a_connection_has_the_timeouts_that_a_rule_gave_it_also_when_the_rule_is_gone() {
    let object = |name, protocol, policy| {
        format!(
            r#"{{"ct timeout":{{"family":"inet","table":"t","name":"{name}","handle":3,
                "protocol":"{protocol}","l3proto":"ip","policy":{{{policy}}}}}}},"#
        )
    };
    let objects = object("short", "tcp", r#""syn_sent":3,"established":7,"close":1"#)
        + &object("other", "udp", r#""unreplied":9"#);
    // Of two policies only that of the packet's protocol counts.
    let rules = [r#"{"ct timeout":"short"}"#, r#"{"ct timeout":"other"}"#];
    let mut rig = rig(one_chain_with(&objects, "forward", 0, "accept", &rules));
    assert!(rig.passes(false, 80, SYN, (100, 0)));
    assert_eq!(rig.listed()[0].timeout_s, 3);
    assert!(rig.passes(true, 80, SYN | ACK, (500, 101)));
    assert_eq!(rig.listed()[0].timeout_s, 60, "what nft has by default");
    assert!(rig.passes(false, 80, ACK, (101, 501)));
    assert_eq!(rig.listed()[0].timeout_s, 7);
    assert!(rig.commands.push(Command::Rules(None)).is_ok());
    rig.exchange(0, []);
    assert!(rig.passes(false, 80, ACK, (101, 501)));
    assert_eq!(rig.listed()[0].timeout_s, 7);
    assert!(rig.passes(false, 80, RST, (101, 0)));
    assert_eq!(rig.listed()[0].timeout_s, 1);
    // The next connection in its place in memory has nothing of it.
    rig.now = rig.now.after(std::time::Duration::from_secs(3));
    rig.exchange(0, []);
    assert!(rig.passes(false, 81, SYN, (100, 0)));
    assert_eq!(rig.listed()[0].timeout_s, 120);
}

#[test]
fn the_first_zone_that_a_rule_sets_is_where_a_packet_is_tracked() {
    let zone = |zone| format!(r#"{{"mangle":{{"key":{{"ct":{{"key":"zone"}}}},"value":{zone}}}}}"#);
    let first = format!("{PORT_22},{}", zone(7));
    let ask = r#"{"match":{"op":"==","left":{"ct":{"key":"zone"}},"right":7}},
        {"counter":{"packets":0,"bytes":0}}"#;
    let mut rig = rig(one_chain(
        "prerouting",
        -300,
        "accept",
        &[&first, &zone(8), r#"{"notrack":null}"#, ask],
    ));
    assert!(rig.passes(false, 22, SYN, (100, 0)));
    assert_eq!((rig.listed()[0].zone, rig.counted()[0]), (7, 1));
    // The answer is in another zone by these rules, and so does not belong to it.
    assert!(rig.passes(true, 22, SYN | ACK, (500, 101)));
    assert_eq!((rig.listed().len(), rig.listed()[0].seen_reply), (1, false));
    rig.open(80);
    let entry = rig.listed().into_iter().find(|entry| entry.zone == 8).unwrap();
    assert_eq!((entry.state, rig.counted()[0]), (Some("ESTABLISHED"), 1));
    // Every packet counts once, whatever way it took.
    assert_eq!(rig.worker.path.counters.softnet.processed, 5);
}

#[test]
fn segment_sizes_are_lowered_and_never_raised() {
    let rule = r#"{"mangle":{"key":{"tcp option":{"name":"maxseg","field":"size"}},"value":1200}}"#;
    let mut rig = rig(one_chain("forward", 0, "accept", &[rule]));
    for (port, (announced, passed)) in (1..).zip([(1460u16, 1200u16), (1200, 1200), (536, 536)]) {
        let [high, low] = announced.to_be_bytes();
        // Behind an option of one byte, so that nothing is aligned.
        let frame = segment(false, port, SYN, (5, 0), &[1, 2, 4, high, low, 1, 1, 1]);
        let [_, on] = rig.exchange(0, [frame]);
        tcp_of(&on[0]);
        let network = dissect(on[0].bytes()).unwrap().network.unwrap();
        assert_eq!(network.protocol, protocol::TCP);
        let options = &on[0].bytes()[usize::from(network.transport_offset) + 20..];
        let size = TcpOptions::new(options).find(|option| option.kind == 2).unwrap();
        assert_eq!(size.body, passed.to_be_bytes());
    }
}

#[test]
fn a_ruleset_that_asks_for_what_is_not_done_is_refused_with_its_place() {
    let objects = r#"{"ct helper":{"family":"inet","table":"t","name":"h","handle":3,
        "type":"nothing","protocol":"tcp","l3proto":"ip"}},"#;
    let helper = [r#"{"accept":null}"#, r#"{"ct helper":"h"}"#];
    let rules = one_chain_with(objects, "prerouting", -300, "accept", &helper);
    let refused = Rules::prepare(rules, Mode::Bridge, 7, &[]).err().unwrap().to_string();
    assert!(refused.contains("inet t chain c rule handle 11"), "{refused}");
    assert!(refused.contains("there is no helper nothing"), "{refused}");
}

/// A router whose forward chain has this rule, and refuses all other packets.
fn router_with(rule: &str) -> TestGateway {
    let rules = format!(
        r#"{{"nftables":[{{"table":{{"family":"ip","name":"t","handle":1}}}},
            {{"chain":{{"family":"ip","table":"t","name":"c","handle":2,"type":"filter",
                "hook":"forward","prio":0,"policy":"drop"}}}},
            {{"rule":{{"family":"ip","table":"t","chain":"c","handle":3,"expr":[{rule}]}}}}]}}"#
    );
    let own = router::OWN.into();
    router::gateway_of(1, &rules, router::routing(), own, Config::new(HashKey(3, 4)))
}

#[test]
fn rules_of_a_router_and_senders_that_they_refuse_see_a_packet_with_a_hop_less() {
    let from_inside = router::from_inside(CLIENT, router::SERVER);
    let packet = router::udp(&from_inside, (2000, 53), b"query");
    let of_ttl = r#"{"match":{"op":"==","left":{"payload":{"protocol":"ip","field":"ttl"}},
        "right":63}},{"accept":null}"#;
    for rule in [of_ttl, r#"{"accept":null}"#] {
        assert_eq!(router_with(rule).pass(0, &packet).ttl, 63, "{rule}");
    }
    let mut gateway = router_with(r#"{"reject":{"type":"icmp","expr":"admin-prohibited"}}"#);
    gateway.arrive(0, &packet);
    gateway.run_until_idle();
    let errors = gateway.sent(0);
    // The quote lies behind the headers of Ethernet, IP and ICMP.
    assert_eq!(errors[0].bytes()[14 + 20 + 8 + 8], 63);
}
