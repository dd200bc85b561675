//! One client that wants all ports towards a server, beside others that want a few.

use flow::HashKey;

use super::*;
use crate::Config;
use crate::testing::many_workers::TestGateway;
use crate::testing::router::*;

/// The ports that a rule names.
const RANGE: (u16, u16) = (20_000, 23_999);
/// The smallest range of ports that there can be if no rule names one.
const LEAST: (u16, u16) = (8192, 16_383);
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

/// Routers that masquerade to few ports, because a rule says so or because they have no others.
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
    let plain = |workers| {
        let mut config = Config::new(HashKey(3, 4));
        let (first, last) = LEAST;
        config.settings.set("stateway_nat_port_max", last.into()).unwrap();
        config.settings.set("stateway_nat_port_min", first.into()).unwrap();
        (workers, last - first + 1, gateway_of(workers, RULES, routing(), OWN.into(), config))
    };
    (1..4).map(ranged).chain((1..4).map(plain))
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
fn is_told(gateway: &mut TestGateway, bytes: &[u8], client: (u8, u16)) -> bool {
    gateway.arrive(1, bytes);
    gateway.run_until_idle();
    let told = gateway.sent(0);
    told.len() == 1 && ends(&seen(&told[0]))[1] == (ip(&format!("192.0.2.{}", client.0)), client.1)
}

/// Sends a question. True if the client gets the answer.
fn is_answered(gateway: &mut TestGateway, client: (u8, u16)) -> bool {
    let question = udp(&from_inside([192, 0, 2, client.0], SERVER), (client.1, 53), b"ask");
    let Some(port) = ask(gateway, &question) else { return false };
    is_told(gateway, &udp(&from_outside(SERVER, OWN), (53, port), b"answer"), client)
}

/// Opens a connection. True if it is established.
fn is_connected(gateway: &mut TestGateway, client: (u8, u16)) -> bool {
    let to_server = from_inside([192, 0, 2, client.0], SERVER);
    let Some(port) = ask(gateway, &tcp(&to_server, (client.1, 443), 2, (100, 0))) else {
        return false;
    };
    let answer = tcp(&from_outside(SERVER, OWN), (443, port), 0x12, (500, 101));
    is_told(gateway, &answer, client)
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
