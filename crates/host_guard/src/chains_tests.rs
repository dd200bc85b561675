use engine::{LinkId, PortLink};
use ruleset::name_bits;

use super::*;

fn port(port: u16) -> Forwarded {
    Forwarded { protocol: Some(6), ports: Some((port, port)), ..Forwarded::default() }
}

fn filter(ports: impl IntoIterator<Item = u16>) -> HostFilter {
    HostFilter { forwarded: ports.into_iter().map(port).collect(), ..HostFilter::default() }
}

/// The rules of a chain that the table must have.
fn rules(filter: &HostFilter, chain: &str) -> Vec<Rule> {
    let table = filter.table("t".to_owned());
    let chain = table.chains.into_iter().find(|it| it.name == chain);
    chain.expect("there is such a chain").rules
}

/// The priority of a base chain.
fn priority(filter: &HostFilter, chain: &str) -> i32 {
    let table = filter.table("t".to_owned());
    let chain = table.chains.into_iter().find(|it| it.name == chain);
    chain.and_then(|it| it.hook).expect("there is such a base chain").priority
}

#[test]
fn replies_to_sources_that_the_kernel_translates_reach_it_behind_its_tracking() {
    let mut own = filter([80]);
    own.interfaces = vec![Interface::test(Some(3), "wan0")];
    let others = rules(&own, "host");
    assert_eq!(priority(&own, "host"), BEHIND_RAW);
    own.kernel_translates = true;
    assert_eq!(priority(&own, "host"), BEHIND_TRACKING);
    let replies = [
        by(&[3]),
        Match::some_of(Field::TrackStatus, SOURCE_TRANSLATED),
        Match::is(Field::TrackWay, REPLY),
    ];
    let first = [Rule::new(replies, Verdict::Accept)];
    assert_eq!(rules(&own, "host"), [&first[..], &others].concat());
}

fn for_port(port: u128) -> Vec<Match> {
    vec![Match::is(Field::Protocol, TCP), Match::is(Field::DESTINATION_PORT, port)]
}

#[test]
fn packets_of_former_rules_go_to_a_chain_that_spares_the_host() {
    let former = HostFilter { formerly_forwarded: vec![port(80), port(443)], ..filter([]) };
    let jumps = [80, 443].map(|port| Rule::new(for_port(port), Verdict::Jump("former")));
    assert_eq!(rules(&former, "translated"), jumps);
}

#[test]
fn former_rules_let_no_connection_in_that_a_current_rule_may_take() {
    let former = HostFilter { formerly_forwarded: vec![port(80)], ..filter([]) };
    let vague = HostFilter { expects: true, ..former.clone() };
    let opens =
        |more: Option<Match>| Rule::new(opens_tcp().into_iter().chain(more), Verdict::Accept);
    assert!(rules(&former, "former").contains(&opens(None)));
    assert!(!rules(&vague, "former").contains(&opens(None)));
    assert!(rules(&vague, "former").contains(&opens(Some(comes_to_socket()))));
}

/// The match on an input interface with one of these numbers.
fn by(numbers: &[u128]) -> Match {
    Match::one_of(Field::InputIndex, numbers.iter().copied())
}

#[test]
fn packets_of_an_unknown_interface_with_a_known_name_are_dropped() {
    let called = |names: &[&str]| {
        Match::one_of(Field::InputName, names.iter().map(|name| Field::name(name)))
    };
    let mut all = filter([]);
    all.interfaces = vec![Interface::test(Some(3), "wan0"), Interface::test(Some(4), "lan0")];
    assert!(!all.translates());
    let is_own = by(&[3, 4]);
    let not_own = Match::none_of(Field::InputIndex, [3, 4]);
    let first = [
        Rule::new([not_own, called(&["lan0", "wan0"])], Verdict::Drop),
        Rule::new([is_own.clone()], Verdict::Jump("left")),
        Rule::new([is_own, not_for_host()], AWAY),
    ];
    assert_eq!(rules(&all, "prerouting"), first);
    // No number is left, and the awaited interface has another name.
    for it in &mut all.interfaces {
        it.follow(&PortLink { link: None, name: "dsl0".into() });
    }
    let nobody = Match::none_of(Field::InputIndex, [0]);
    let names = called(&["dsl0", "wan0", "lan0"]);
    let first = rules(&all, "prerouting");
    assert_eq!(first[0], Rule::new([nobody, names], Verdict::Drop));
    assert_eq!(first[1], Rule::new([by(&[0])], Verdict::Jump("left")));
}

#[test]
fn the_kernel_forwards_nothing_from_what_stands_on_an_interface() {
    let mut all = filter([]);
    all.interfaces = vec![Interface::test(Some(3), "wan0")];
    // A bridge of the kernel goes on forwarding between its ports.
    let within =
        Rule::new([by(&[3]), Match::is(Field::OutputIndex, 3), by_bridge()], Verdict::Accept);
    let drops = |numbers: &[u128]| Rule::new([by(numbers)], Verdict::Drop);
    assert_eq!(rules(&all, "forward"), [within.clone(), drops(&[3])]);
    all.stacked = vec![7, 9];
    assert_eq!(rules(&all, "forward"), [within, drops(&[3, 7, 9])]);
    assert!(!all.translates());
    let request = HostFilter { forwarded: vec![port(80)], ..filter([]) };
    assert_eq!(request.after(&all).stacked, [7, 9], "other rules change nothing of that");
}

#[test]
fn what_a_bridge_hands_up_is_untracked_unless_the_kernel_may_redirect_it() {
    let mut all = filter([]);
    all.interfaces = vec![Interface::test(Some(3), "lan0")];
    let has_chain = |filter: &HostFilter| {
        filter.table("t".to_owned()).chains.iter().any(|chain| chain.name == "bridged")
    };
    assert!(!has_chain(&all));
    all.bridges = vec![(3, [0, 0, 0x5e, 0, 0x53, 3])];
    let untracked = Rule::new(
        [by(&[3]), Match::is(Field::Station, 0x5e00_5303), not_for_host()],
        Verdict::Untracked,
    );
    assert_eq!(rules(&all, "bridged"), vec![untracked.clone()]);
    all.redirected = vec![port(80)];
    // A later fragment has no ports, and must not be taken from its datagram.
    let redirected = Rule::new([Match::is(Field::Protocol, TCP)], Verdict::Accept);
    assert_eq!(rules(&all, "bridged"), [redirected, untracked]);
    assert!(has_chain(&filter([]).after(&all)), "other rules change nothing of that");
}

#[test]
fn rules_for_an_interface_name_end_when_the_interface_is_renamed() {
    let named = Some(Interval::one(name_bits("wan0").unwrap()));
    let mut all = filter([]);
    all.forwarded.push(Forwarded { interfaces: named, ..port(443) });
    all.redirected.push(Forwarded { interfaces: named, ..port(80) });
    all.interfaces = vec![Interface::test(Some(3), "wan0"), Interface::test(Some(4), "lan0")];
    let at = |number: u128, port: u128, verdict: Verdict| {
        Rule::new([by(&[number])].into_iter().chain(for_port(port)), verdict)
    };
    let opened = [by(&[3]), Match::is(Field::Protocol, TCP), Match::is(Field::OpenedToPort, 80)];
    let led = Rule::new(opened, Verdict::Accept);
    assert_eq!(rules(&all, "translated"), [at(3, 443, AWAY)]);
    assert!(rules(&all, "left").contains(&at(3, 80, Verdict::Accept)));
    assert!(rules(&all, "led").contains(&led));
    all.interfaces[0].follow(&PortLink { link: Some(LinkId(3)), name: "dsl0".into() });
    assert_eq!(rules(&all, "translated"), [at(3, 443, Verdict::Jump("former"))]);
    // The kernel goes on with connections that it has led to the host, and leads no new ones there.
    assert!(rules(&all, "left").contains(&at(3, 80, Verdict::Accept)));
    assert!(!rules(&all, "led").contains(&led));
    // Another interface has the name now.
    all.interfaces[1].follow(&PortLink { link: Some(LinkId(4)), name: "wan0".into() });
    let both = [at(4, 443, AWAY), at(3, 443, Verdict::Jump("former"))];
    assert_eq!(rules(&all, "translated"), both);
}

#[test]
fn all_ports_of_a_translation_address_are_kept_out() {
    let address = IpAddr::from([198, 51, 100, 1]);
    let filter =
        HostFilter { translation_addresses: vec![address..=address], ..HostFilter::default() };
    let to_address = [is_of(Family::V4), Match::is(destination(Family::V4), 0xc633_6401)];
    let with_ports = Match::one_of(Field::Protocol, WITH_PORTS);
    let sources = Rule::new([with_ports], Verdict::Jump("sources"));
    let [own, echo] = echo_rules(Family::V4);
    let expected = [sources, own, echo].map(|it| it.only_for(to_address.iter().cloned()));
    assert_eq!(rules(&filter, "translated"), expected);
}

#[test]
fn packets_that_may_be_redirected_pass_and_are_checked_after_the_translation() {
    let has_chain = |filter: &HostFilter, name: &str| {
        filter.table("t".to_owned()).chains.iter().any(|chain| chain.name == name)
    };
    assert!(!has_chain(&filter([80]), "behind"));
    let address: u128 = 0xc633_6401;
    let web = Forwarded { addresses: Some((Family::V4, Interval::one(address))), ..port(80) };
    let before = HostFilter { redirected: vec![web], ..filter([]) };
    assert!(has_chain(&before, "behind"));
    let is_v4 = is_of(Family::V4);
    let mut matches = vec![is_v4.clone(), Match::is(destination(Family::V4), address)];
    matches.extend(for_port(80));
    let through = Rule::new(matches, Verdict::Accept);
    let opened = [
        is_v4,
        Match::is(Field::OpenedToV4, address),
        Match::is(Field::Protocol, TCP),
        Match::is(Field::OpenedToPort, 80),
    ];
    let led = Rule::new(opened, Verdict::Accept);
    let drop = Rule::new([], AWAY);
    assert!(rules(&before, "left").contains(&through));
    assert!(rules(&before, "led").ends_with(&[led.clone(), drop.clone()]));
    // A former rule opens no connection there any more.
    let after = filter([]).after(&before);
    assert_eq!(after.formerly_redirected, [web]);
    assert!(rules(&after, "left").contains(&through));
    let led_after = rules(&after, "led");
    assert!(!led_after.contains(&led) && led_after.ends_with(&[drop]));
    let again = HostFilter { redirected: vec![web], ..filter([]) }.after(&after);
    let table = |filter: &HostFilter| filter.table("t".to_owned());
    assert_eq!(table(&again), table(&before));
}
