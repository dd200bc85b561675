//! Tables that a process owns, in a network namespace, as nft(8) shows them.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "only tests call these functions")]

// All tests that need a namespace of their own share this file.
#[path = "../../netio/tests/afpacket/namespace.rs"]
mod namespace;

use std::process::{Command, Output};

use namespace::isolated;
use netlink::nf_tables::{
    BaseChain, BaseChains, Chain, Field, Hook, HookPoint, Match, Owner, PACKET_OTHERHOST, Rule,
    Table, Verdict, base_chains,
};

fn nft(order: &str) -> Output {
    Command::new("nft").arg(order).output().unwrap()
}

fn listed(order: &str) -> String {
    let output = nft(order);
    assert!(output.status.success(), "{order}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn prerouting(rules: Vec<Rule>) -> Chain {
    let hook = Some(Hook { point: HookPoint::Prerouting, priority: -300 });
    Chain { name: "prerouting", hook, rules }
}

fn table(name: &str, chains: Vec<Chain>) -> Table {
    Table { name: name.to_owned(), recent: Vec::new(), chains }
}

/// Conditions, verdict, and the text by which nft shows the rule.
type Shown = (Vec<Match>, Verdict, &'static str);

const TCP: u128 = 6;
const UDP: u128 = 17;
const IPV4: u128 = 2;
const IPV6: u128 = 10;
/// 2001:db8::
const NETWORK: u128 = 0x2001_0db8 << 96;

/// Rules with conditions on interfaces, addresses and ports.
fn places() -> Vec<Shown> {
    let is = Match::is;
    let v4 = || is(Field::Family, IPV4);
    let (to_v4, to_v6) =
        (Field::Network { offset: 16, length: 4 }, Field::Network { offset: 24, length: 16 });
    let (lan, wan) = (Field::name("lan0"), Field::name("wan0"));
    vec![
        (vec![is(Field::InputIndex, 1)], Verdict::Drop, r#"iif "lo" drop"#),
        (
            vec![Match::one_of(Field::OutputIndex, [8, 7, 300])],
            Verdict::Drop,
            "oif { 7, 8, 300 } drop",
        ),
        (vec![is(Field::InputName, lan)], Verdict::Drop, r#"iifname "lan0" drop"#),
        (
            vec![Match::one_of(Field::InputName, [wan, lan])],
            Verdict::Jump("other"),
            r#"iifname { "lan0", "wan0" } jump other"#,
        ),
        (
            vec![Match::none_of(Field::DestinationType, [2, 3])],
            Verdict::Drop,
            "fib daddr type != local fib daddr type != broadcast drop",
        ),
        (
            vec![is(Field::Protocol, TCP), is(Field::DESTINATION_PORT, 80)],
            Verdict::Accept,
            "tcp dport 80 accept",
        ),
        (
            vec![
                Match::one_of(Field::Protocol, [TCP, UDP]),
                Match::ranges(Field::DESTINATION_PORT, [(9, 12), (1, 4), (3, 5), (6, 6)]),
            ],
            Verdict::Drop,
            "meta l4proto { tcp, udp } th dport { 1-6, 9-12 } drop",
        ),
        (
            vec![
                Match::one_of(Field::Protocol, [TCP, UDP]),
                Match::ranges(Field::DESTINATION_PORT, [(65_000, 65_535), (80, 80)]),
            ],
            Verdict::Drop,
            "meta l4proto { tcp, udp } th dport { 80, 65000-65535 } drop",
        ),
        (
            vec![
                v4(),
                Match::ranges(to_v4, [(0xc000_0201, 0xc000_0205), (0xc633_6401, 0xc633_6401)]),
            ],
            Verdict::Drop,
            "ip daddr { 192.0.2.1-192.0.2.5, 198.51.100.1 } drop",
        ),
        (
            vec![
                v4(),
                Match::ranges(
                    Field::Network { offset: 12, length: 4 },
                    [(0xc000_0201, 0xc000_0205)],
                ),
            ],
            Verdict::Drop,
            "ip saddr 192.0.2.1-192.0.2.5 drop",
        ),
        (
            vec![is(Field::Family, IPV6), Match::ranges(to_v6, [(NETWORK | 1, NETWORK | 5)])],
            Verdict::Drop,
            "ip6 daddr 2001:db8::1-2001:db8::5 drop",
        ),
    ]
}

/// Rules with conditions on packet types, flags, messages, sockets and connections.
fn states() -> Vec<Shown> {
    let is = Match::is;
    let (v4, icmp) = (|| is(Field::Family, IPV4), 1);
    let type_of_icmp = Field::Transport { offset: 0, length: 1 };
    vec![
        (
            vec![is(Field::InputKind, Field::name("bridge"))],
            Verdict::ForOtherStation,
            r#"meta iifkind "bridge" meta pkttype set other accept"#,
        ),
        (
            vec![is(Field::Station, 0x0000_5e00_5301)],
            Verdict::Untracked,
            "@ll,0,48 0x5e005301 notrack accept",
        ),
        (
            vec![is(Field::PacketType, PACKET_OTHERHOST.into())],
            Verdict::Drop,
            "meta pkttype other drop",
        ),
        (
            vec![
                is(Field::Protocol, TCP),
                Match::bits(Field::Transport { offset: 13, length: 1 }, 0x12, 0x02),
                Match::ranges(Field::IsSocketWildcard, [(0, 1)]),
                is(Field::IsSocketTransparent, 1),
            ],
            Verdict::Accept,
            "tcp flags syn / syn,ack socket wildcard 0-1 socket transparent 1 accept",
        ),
        (
            vec![v4(), is(Field::Protocol, icmp), Match::none_of(type_of_icmp, [8])],
            Verdict::Accept,
            "icmp type != echo-request accept",
        ),
        (
            vec![Match::some_of(Field::TrackStatus, 0x20)],
            Verdict::Goto("other"),
            "ct status dnat goto other",
        ),
        (
            vec![
                is(Field::OpenedFromV4, 0xc000_0201),
                is(Field::OpenedToV4, 0xc000_0202),
                is(Field::OpenedToPort, 80),
            ],
            Verdict::Accept,
            "ct original ip saddr 192.0.2.1 ct original ip daddr 192.0.2.2 ct original proto-dst 80 \
             accept",
        ),
        (
            vec![is(Field::OpenedFromV6, NETWORK | 1), is(Field::OpenedToV6, NETWORK | 2)],
            Verdict::Accept,
            "ct original ip6 saddr 2001:db8::1 ct original ip6 daddr 2001:db8::2 accept",
        ),
    ]
}

#[test]
fn rules_are_what_nft_shows() {
    isolated("rules_are_what_nft_shows", || {
        let all = places().into_iter().chain(states());
        let all = all.map(|(matches, verdict, text)| (Rule::new(matches, verdict), text));
        let (rules, texts): (Vec<_>, Vec<_>) = all.unzip();
        let mut owner = Owner::new().unwrap();
        let other = Chain { name: "other", hook: None, rules: Vec::new() };
        owner.make(&table("t", vec![prerouting(rules), other])).unwrap();
        // Versions of nft differ in the words.
        let shown = listed("list chain inet t prerouting")
            .replace("tcp flags & (syn | ack) == syn", "tcp flags syn / syn,ack")
            .replace("0x50 [invalid type]", "80");
        let mut lines = shown.lines().map(str::trim).skip_while(|line| !line.starts_with("type"));
        let begins = "type filter hook prerouting priority raw; policy accept;";
        assert_eq!(lines.next(), Some(begins), "{shown}");
        for text in texts {
            assert_eq!(lines.next(), Some(text), "{shown}");
        }
        assert_eq!(lines.next(), Some("}"), "{shown}");
    });
}

#[test]
fn a_table_is_its_owners_alone_and_goes_with_it() {
    isolated("a_table_is_its_owners_alone_and_goes_with_it", || {
        let mut owner = Owner::new().unwrap();
        let rules = || vec![Rule::new([], Verdict::Accept)];
        owner.make(&table("first", vec![prerouting(rules())])).unwrap();
        owner.make(&table("second", vec![prerouting(rules())])).unwrap();
        listed("flush ruleset");
        let refused = nft("delete table inet first");
        assert!(!refused.status.success(), "{refused:?}");
        assert_eq!(listed("list tables"), "table inet first\ntable inet second\n");
        Owner::new().unwrap().delete("first").unwrap_err();
        owner.delete("first").unwrap();
        let refused = owner.delete("first").unwrap_err();
        assert!(refused.to_string().contains("the end of table first: No such file"), "{refused}");
        assert_eq!(listed("list tables"), "table inet second\n");
        drop(owner);
        // The kernel deletes the table before `close` returns.
        assert_eq!(listed("list tables"), "");
    });
}

#[test]
fn a_table_of_many_transactions_is_made_as_a_whole_or_not() {
    isolated("a_table_of_many_transactions_is_made_as_a_whole_or_not", || {
        const RULES: u128 = 5000;
        let mut owner = Owner::new().unwrap();
        let ports = |from: u128| {
            Match::ranges(
                Field::DESTINATION_PORT,
                (0..512).map(|n| (from + 4 * n, from + 4 * n + 1)),
            )
        };
        let many = (0..RULES).map(|number| {
            let of = [
                Match::is(Field::Protocol, 6),
                if number % 100 == 0 {
                    ports(number)
                } else {
                    Match::is(Field::DESTINATION_PORT, number)
                },
            ];
            Rule::new(of, Verdict::Accept)
        });
        let of = |verdict| {
            let many = Chain { name: "many", hook: None, rules: many.clone().collect() };
            table("t", vec![prerouting(vec![Rule::new([], verdict)]), many])
        };
        let refused = owner.make(&of(Verdict::Jump("nowhere"))).unwrap_err();
        let why = "rule 1 of chain prerouting: No such file";
        assert!(refused.to_string().contains(why), "{refused}");
        assert_eq!(listed("list tables"), "");
        owner.make(&of(Verdict::Jump("many"))).unwrap();
        let shown = listed("list table inet t");
        assert_eq!(shown.lines().filter(|line| line.contains("dport")).count() as u128, RULES);
        let refused = owner.make(&of(Verdict::Accept)).unwrap_err();
        assert!(refused.to_string().contains("table t: File exists"), "{refused}");
        assert_eq!(listed("list tables"), "table inet t\n");
    });
}

#[test]
fn the_base_chains_of_the_kernel_are_listed_with_hook_and_policy() {
    isolated("the_base_chains_of_the_kernel_are_listed_with_hook_and_policy", || {
        assert_eq!(base_chains().unwrap(), []);
        let chain = |family, table: &str, name: &str, hook, accepts| BaseChain {
            family,
            table: table.to_owned(),
            name: name.to_owned(),
            hook,
            accepts,
            is_empty: true,
            is_nat: false,
        };
        let (mut expected, mut orders) = (Vec::new(), String::new());
        for family in ["ip", "ip6", "inet"] {
            // Enough for several messages of a listing.
            for number in 0..100 {
                let table = format!("t{number}");
                let (hook, accepts) =
                    if number % 2 == 0 { ("input", true) } else { ("output", false) };
                let policy = if accepts { "accept" } else { "drop" };
                orders += &format!(
                    "table {family} {table} {{ chain other {{ }}; chain own {{ \
                     type filter hook {hook} priority 0; policy {policy}; }}; }}\n"
                );
                expected.push(chain(family, &table, "own", hook, accepts));
            }
        }
        listed(&(orders + "table arp t { chain own { type filter hook input priority 0; }; }"));
        let mut found = base_chains().unwrap();
        let order = |chain: &BaseChain| (chain.family, chain.table.clone());
        found.sort_by_key(order);
        expected.sort_by_key(order);
        assert_eq!(found, expected);
    });
}

#[test]
fn base_chains_are_listed_anew_after_each_change() {
    isolated("base_chains_are_listed_anew_after_each_change", || {
        let mut chains = BaseChains::new().unwrap();
        let mut now = || -> Vec<(String, bool, bool, bool)> {
            let all = chains.now().unwrap().iter();
            all.map(|it| (it.name.clone(), it.accepts, it.is_empty, it.is_nat)).collect()
        };
        let own = |accepts, is_empty| ("own".to_owned(), accepts, is_empty, false);
        assert_eq!(now(), []);
        listed("table inet t { chain own { type filter hook input priority 0; }; }");
        assert_eq!(now(), [own(true, true)]);
        assert_eq!(now(), [own(true, true)]);
        listed("add chain inet t other; add rule inet t other drop");
        assert_eq!(now(), [own(true, true)]);
        listed("add rule inet t own counter");
        assert_eq!(now(), [own(true, false)]);
        listed("flush chain inet t own; add chain inet t own { policy drop; }");
        assert_eq!(now(), [own(false, true)]);
        listed("delete table inet t");
        assert_eq!(now(), []);
        listed("table ip t { chain own { type nat hook prerouting priority 0; }; }");
        assert_eq!(now(), [("own".to_owned(), true, true, true)]);
    });
}
