//! One client that wants all ports towards a server, beside others that want a few.

use flow::HashKey;

use super::*;
use crate::Config;
use crate::testing::many_workers::TestGateway;
use crate::testing::router::*;

/// The ports that a rule names.
const RANGE: (u16, u16) = (20_000, 23_999);
const GREEDY: u8 = 1;
/// The clients beside it.
const HONEST: std::ops::Range<u8> = 50..150;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Greed {
    /// Datagrams without an answer.
    Unanswered,
    /// Questions with their answers.
    Answered,
    /// Connections that are kept open.
    Open,
}

/// Routers that masquerade to few ports, because a rule says so.
fn routers() -> impl Iterator<Item = (u16, u16, TestGateway)> {
    let ranged = |workers| {
        let (first, last) = RANGE;
        let range = format!(r#"{{"port":{{"range":[{first},{last}]}}}}"#);
        let named = |protocol| {
            format!(
                r#"{{"match":{{"op":"==","left":{{"meta":{{"key":"l4proto"}}}},
                    "right":"{protocol}"}}}},{{"masquerade":{range}}}]}}}},
                {{"rule":{{"family":"ip","table":"t","chain":"out","handle":6,"expr":[
                    {{"match":{{"op":"==","left":{{"meta":{{"key":"oifname"}}}},
                        "right":"wan0"}}}},"#
            )
        };
        let plain = r#"{"masquerade":null}"#;
        let all = format!("{}{}{plain}", named("udp"), named("tcp"));
        let rules = RULES.replace(plain, &all);
        let gateway =
            gateway_of(workers, &rules, routing(), OWN.into(), Config::new(HashKey(3, 4)));
        (workers, last - first + 1, gateway)
    };
    (1..4).map(ranged)
}

/// Sends a packet of a client. Returns the source port with which it leaves the router.
fn ask(gateway: &mut TestGateway, bytes: &[u8]) -> Option<u16> {
    // Time goes on, so that a pool does not fill at one moment.
    gateway.now = gateway.now.after(std::time::Duration::from_millis(1));
    gateway.arrive(0, bytes);
    gateway.run_until_idle();
    let sent = gateway.sent(1);
    let [(source, port), _] = ends(&seen(sent.first()?));
    assert_eq!((sent.len(), source), (1, OWN.into()));
    Some(port)
}

/// Sends a packet of the server. True if the client gets it.
fn is_delivered(gateway: &mut TestGateway, bytes: &[u8], client: (u8, u16)) -> bool {
    gateway.arrive(1, bytes);
    gateway.run_until_idle();
    let sent = gateway.sent(0);
    sent.len() == 1 && ends(&seen(&sent[0]))[1] == (ip(&format!("192.0.2.{}", client.0)), client.1)
}

/// Sends a question. True if the client gets the answer.
fn is_answered(gateway: &mut TestGateway, client: (u8, u16)) -> bool {
    let question = udp(&from_inside([192, 0, 2, client.0], SERVER), (client.1, 53), b"ask");
    let Some(port) = ask(gateway, &question) else { return false };
    is_delivered(gateway, &udp(&from_outside(SERVER, OWN), (53, port), b"answer"), client)
}

/// Opens a connection. True if it is established.
fn is_connected(gateway: &mut TestGateway, client: (u8, u16)) -> bool {
    let to_server = from_inside([192, 0, 2, client.0], SERVER);
    let Some(port) = ask(gateway, &tcp(&to_server, (client.1, 443), 2, (100, 0))) else {
        return false;
    };
    let answer = tcp(&from_outside(SERVER, OWN), (443, port), 0x12, (500, 101));
    is_delivered(gateway, &answer, client)
        && ask(gateway, &tcp(&to_server, (client.1, 443), 0x10, (101, 501))) == Some(port)
}

fn wants(gateway: &mut TestGateway, greed: Greed, client: (u8, u16)) -> bool {
    match greed {
        Greed::Unanswered => {
            let question = udp(&from_inside([192, 0, 2, client.0], SERVER), (client.1, 53), b"ask");
            ask(gateway, &question).is_some()
        }
        Greed::Answered => is_answered(gateway, client),
        Greed::Open => is_connected(gateway, client),
    }
}

/// The number of honest clients that get a connection while one client wants all ports.
fn honest_beside(gateway: &mut TestGateway, greed: Greed, ports: u16) -> usize {
    for port in 0..2 * ports {
        wants(gateway, greed, (GREEDY, 10_000 + port));
    }
    served(gateway, greed)
}

/// The number of honest clients that get a connection.
fn served(gateway: &mut TestGateway, greed: Greed) -> usize {
    let honest = if greed == Greed::Open { is_connected } else { is_answered };
    HONEST.filter(|&host| honest(gateway, (host, 5000))).count()
}

#[test]
fn unanswered_connections_give_way_before_any_client_is_refused() {
    for (workers, ports, mut gateway) in routers() {
        // There are so many clients that none has more than its part.
        let wanted =
            (0..ports + ports / 2).map(|number| ((number % 40) as u8 + 1, 10_000 + number));
        for client in wanted {
            assert!(
                wants(&mut gateway, Greed::Unanswered, client),
                "{client:?} {:?}",
                gateway.reasons()
            );
        }
        assert!(gateway.connections() <= ports.into());
        let served = served(&mut gateway, Greed::Answered);
        assert_eq!((served, gateway.reasons()), (HONEST.len(), vec![]), "{ports} ports, {workers}");
    }
}

#[test]
fn established_connections_give_way_to_nobody() {
    for (workers, ports, mut gateway) in routers() {
        let connected: Vec<_> = (0..ports + 500)
            .map(|number| ((number % 40) as u8 + 1, 10_000 + number))
            .filter(|&client| is_connected(&mut gateway, client))
            .collect();
        assert!(connected.len() <= ports.into());
        assert!(connected.len() > usize::from(ports) * 9 / 10, "{} of {ports}", connected.len());
        served(&mut gateway, Greed::Open);
        served(&mut gateway, Greed::Answered);
        for (host, port) in connected {
            let more = tcp(&from_inside([192, 0, 2, host], SERVER), (port, 443), 0x10, (101, 501));
            assert!(ask(&mut gateway, &more).is_some(), "{host} {port}, {workers} workers");
        }
        assert!(gateway.reasons().contains(&DropReason::PortPoolFull), "{:?}", gateway.reasons());
    }
}

#[test]
fn one_client_keeps_nobody_from_a_server() {
    for greed in [Greed::Unanswered, Greed::Answered, Greed::Open] {
        for (workers, ports, mut gateway) in routers() {
            let served = honest_beside(&mut gateway, greed, ports);
            let reasons = gateway.reasons();
            assert_eq!(served, HONEST.len(), "{greed:?}, {ports} ports, {workers}: {reasons:?}");
        }
    }
}

/// A router that lets a client have this part of the ports towards a server, in percent.
fn router_with_share(workers: u16, share: u64) -> TestGateway {
    let mut config = Config::new(HashKey(3, 4));
    config.settings.set("stateway_nat_source_share", share).unwrap();
    config.settings.set("nf_conntrack_udp_timeout", 1000).unwrap();
    gateway_of(workers, RULES, routing(), OWN.into(), config)
}

/// Sends a datagram of a client. Returns the source port with which it leaves.
fn port_of(gateway: &mut TestGateway, host: u8, port: u16, server: [u8; 4]) -> Option<u16> {
    let question = udp(&from_inside([192, 0, 2, host], server), (port, 53), b"ask");
    ask(gateway, &question)
}

#[test]
fn one_client_has_sixty_thousand_connections_to_one_server_and_keeps_its_ports() {
    for workers in [1, 2] {
        let mut gateway = router_with_share(workers, 94);
        for port in 1024..61_024 {
            assert_eq!(port_of(&mut gateway, 1, port, SERVER), Some(port), "{workers} workers");
        }
        assert_eq!((gateway.connections(), gateway.aliases()), (60_000, 0));
        // Another client has the same ports already, and gets others.
        let other = port_of(&mut gateway, 2, 1024, SERVER).unwrap();
        assert!(other != 1024 && other > 1023);
    }
}

#[test]
fn the_last_port_towards_a_server_is_given_away_before_the_pool_is_full() {
    for workers in [1, 2] {
        let mut gateway = router_with_share(workers, 100);
        for port in 1024..=u16::MAX {
            // The last ports have no room of their own: another client has some of the first.
            assert_eq!(port_of(&mut gateway, 1, port, SERVER), Some(port));
        }
        assert_eq!(gateway.connections(), 64_512);
        assert_eq!(port_of(&mut gateway, 2, 5000, SERVER), None);
        assert_eq!(gateway.reasons(), [DropReason::PortPoolFull]);
        // Another port of the server, another server, and ports with privileges are others.
        let question = udp(&from_inside([192, 0, 2, 2], SERVER), (5000, 54), b"ask");
        assert_eq!(ask(&mut gateway, &question), Some(5000));
        assert_eq!(port_of(&mut gateway, 2, 5000, [203, 0, 113, 8]), Some(5000));
        assert_eq!(port_of(&mut gateway, 2, 501, SERVER), Some(501));
    }
}

#[test]
fn a_port_that_is_taken_is_exchanged_for_any_other_of_its_kind() {
    for workers in [1, 2] {
        let mut gateway = router_with_share(workers, 100);
        // So many hosts with one port that their bucket has no other ports left.
        let mut ports: Vec<u16> = (0..200)
            .flat_map(|host| (0..40).map(move |port| (host + 1, 5060 + port * 16)))
            .map(|(host, port)| port_of(&mut gateway, host, port, SERVER).unwrap())
            .collect();
        assert_eq!(ports[..40], (0..40).map(|port| 5060 + port * 16).collect::<Vec<_>>());
        ports.sort_unstable();
        ports.dedup();
        assert_eq!((ports.len(), ports[0] > 1023), (8000, true));
        assert!(gateway.aliases() < 8000 / 20, "{} are led by aliases", gateway.aliases());
        let private: Vec<u16> =
            (1..=200).map(|host| port_of(&mut gateway, host, 600, SERVER).unwrap()).collect();
        assert!(private.iter().all(|port| (600..1024).contains(port)), "{private:?}");
    }
}

/// Traffic of a home or an office: clients that browse, a few with one fixed port, forwarded ports
/// that stay and that change, and a neighbour by the outside address.
#[test]
fn typical_traffic_needs_aliases_only_where_a_rule_changes_a_port() {
    let mut gateway = router_with_share(2, 94);
    for number in 0..1000_u16 {
        let server = [203, 0, 113, (number % 50) as u8];
        let port = 32_768 + number * 27;
        assert_eq!(port_of(&mut gateway, (number % 30) as u8 + 1, port, server), Some(port));
    }
    for host in 1..=30 {
        port_of(&mut gateway, host, 5060, SERVER).unwrap();
    }
    let masqueraded = gateway.aliases();
    for number in 0..100_u16 {
        // The rules lead port 8080 to port 80.
        let client = from_outside([203, 0, 113, (number % 50) as u8], OWN);
        gateway.pass(1, &tcp(&client, (40_000 + number, 8080), 2, (1, 0)));
    }
    let connections = gateway.connections();
    println!(
        "{connections} connections, {} aliases; of masqueraded ones {masqueraded}",
        gateway.aliases()
    );
    assert_eq!((connections, masqueraded), (1130, 0));
    // One in 16 changed ports stays in its bucket.
    assert!((80..=100).contains(&gateway.aliases()));
}
