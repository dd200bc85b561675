//! Zones of a running gateway.

use control::schema::{NamedTimeouts, SetZones, Zone, Zones};

use super::*;

fn zone(number: u16, vlans: &[u16], limit: Option<u64>) -> Zone {
    let vlans = Some(vlans.to_vec());
    Zone { zone: number, vlans, max_connections: limit, ..Zone::default() }
}

fn set_zones(running: &Running, zones: &SetZones) -> Result<u64, ClientError> {
    running.client.put::<Done>("/v1/zones", zones).map(|done| done.affected)
}

fn zones(running: &Running) -> Zones {
    running.client.get("/v1/zones").unwrap()
}

fn count(running: &Running, zone: u16) -> u64 {
    let path = format!("/v1/connections/count?zone={zone}");
    running.client.get::<Count>(&path).unwrap().connections
}

/// Untagged packets are in zone 5, which has a timeout policy.
fn two_zones() -> SetZones {
    let timeouts = [("nf_conntrack_udp_timeout", 5000)].into_iter().collect();
    let five = Zone { timeout_policy: Some("long".into()), ..zone(5, &[0, 3], None) };
    SetZones {
        revision: None,
        timeout_policies: vec![NamedTimeouts { name: "long".into(), timeouts }],
        zones: vec![five, zone(6, &[1], Some(3))],
    }
}

#[test]
fn zones_change_while_the_gateway_runs() {
    let mut running = Running::start();
    // Nothing expires, however slow the machine is.
    let long = SetTunable { value: 10_000 };
    running.client.put::<Done>("/v1/tunables/nf_conntrack_udp_timeout", &long).unwrap();
    running.open_flows(10);
    let mut wanted = two_zones();
    assert_eq!(set_zones(&running, &wanted).unwrap(), 2);
    running.open_flows(200);
    assert_eq!([0, 5, 6, 7].map(|zone| count(&running, zone)), [10, 200, 0, 0]);
    let listed = running.lines("/v1/connections?zone=5&sport=100").unwrap();
    let one: Connection = serde_json::from_str(&listed[0]).unwrap();
    assert!((4000..=5000).contains(&one.timeout_s), "{}", one.timeout_s);

    // A limit evicts connections at all workers together, and holds for new ones.
    let now = zones(&running);
    assert_eq!((now.revision, now.zones[0].connections), (1, 200));
    wanted.zones[0].max_connections = Some(60);
    set_zones(&running, &wanted).unwrap();
    let begin = Instant::now();
    while count(&running, 5) > 60 {
        assert!(begin.elapsed() < PATIENCE, "{}", count(&running, 5));
    }
    running.send_flows(500);
    let status = loop {
        let status: Status = running.client.get("/v1/status").unwrap();
        if status.totals.softnet.get("processed") == 710 {
            break status;
        }
        assert!(begin.elapsed() < PATIENCE);
    };
    let five = status.zones[0];
    assert_eq!((five.zone, five.connections_limit), (5, Some(60)));
    assert!((45..=60).contains(&five.connections), "{}", five.connections);
    assert_eq!(status.connections, five.connections + 10);

    // After zones were removed, the connections of one are still found until they end.
    set_zones(&running, &SetZones::default()).unwrap();
    let done: Done = running.client.delete("/v1/connections?zone=5").unwrap();
    assert_eq!(done.affected, five.connections);
    assert_eq!([0, 5].map(|zone| count(&running, zone)), [10, 0]);
    running.stop();
}

#[test]
fn zones_that_do_not_fit_are_refused_as_a_whole() {
    let running = Running::start();
    set_zones(&running, &two_zones()).unwrap();
    let refused = |change: &dyn Fn(&mut SetZones)| {
        let mut zones = two_zones();
        change(&mut zones);
        match set_zones(&running, &zones).unwrap_err() {
            ClientError::BadRequest(refused) | ClientError::Refused(refused) => {
                format!("{}: {}", refused.place, refused.what)
            }
            other => panic!("{other}"),
        }
    };
    let one_side = || Some(vec!["lan0".into()]);
    let unknown = || Some(vec!["lan0".into(), "lan9".into()]);
    let table = || [("nf_conntrack_max", 5)].into_iter().collect();
    let refusals = [
        refused(&|zones| zones.revision = Some(0)),
        refused(&|zones| zones.zones[1].zone = 5),
        refused(&|zones| zones.zones[0].vlans = None),
        refused(&|zones| zones.zones[1].interfaces = unknown()),
        refused(&|zones| zones.zones[1].interfaces = one_side()),
        refused(&|zones| zones.timeout_policies.clear()),
        refused(&|zones| zones.zones[1].tunables = table()),
        refused(&|zones| zones.zones[1].vlans = Some(vec![4095])),
        refused(&|zones| zones.zones[1].max_connections = Some(0)),
        refused(&|zones| zones.zones[1].zone = 0),
        refused(&|zones| zones.zones[1].interfaces = Some(vec!["lan0".into(), "lan0".into()])),
        refused(&|zones| zones.zones[1].vlans = Some(vec![])),
        refused(&|zones| zones.zones[1].vlans = Some(vec![1, 2, 1])),
        refused(&|zones| zones.timeout_policies[0].name = "two words".into()),
        refused(&|zones| zones.zones = (1..=1025).map(|id| zone(id, &[id], None)).collect()),
    ];
    insta::assert_snapshot!(refusals.join("\n"), @r#"
    zones: the zones have been changed meanwhile: this is for revision 0, and now it is 1
    zones: 5 is already another zone
    zones: zone 6 takes no packet, because zone 5 and those before it take them all; put zone 6 before them or take it out
    zone 6: there is no interface "lan9"
    zone 6: interfaces: names one side only: replies come in by another interface, and both directions of a flow must be in one zone
    zone 5: there is no timeout policy "long"
    zone 6: no tunable is named "nf_conntrack_max"; `stateway tunable list` shows all
    zone 6: vlans: 4095 is not allowed; allowed: a whole number from 0 to 4094
    zone 6: max_connections: 0 is not allowed; allowed: a whole number from 1 to 4294967296
    zones: zone 0 is what no other takes; give a number from 1
    zone 6: interfaces: an interface is there twice
    zone 6: vlans: names no VLAN; leave it out for all
    zone 6: vlans: 1 is there twice
    zones: "two words" can not name a policy; allowed: 1 to 63 characters without blank
    zones: there may be 1024 zones at most
    "#);
    let now = zones(&running);
    assert_eq!((now.revision, now.zones.len()), (1, 2), "nothing has changed");
    assert_eq!(now.zones, two_zones().zones);
    running.stop();
}

#[test]
fn zones_that_change_under_load_leave_the_books_in_order() {
    let mut running = Running::start();
    let client = Client::new(&running.socket).unwrap();
    let changes = std::thread::spawn(move || {
        for round in 0..60 {
            let limit = [None, Some(30), Some(300)][round % 3];
            let zones = match round % 4 {
                0 => vec![],
                1 => vec![zone(1, &[0], limit)],
                2 => vec![zone(2, &[0], limit), zone(1, &[5], None)],
                _ => vec![zone(round as u16, &[0], limit)],
            };
            let _: Done =
                client.put("/v1/zones", &SetZones { zones, ..SetZones::default() }).unwrap();
        }
    });
    while !changes.is_finished() {
        running.send_flows(200);
        std::thread::sleep(Duration::from_millis(1));
    }
    changes.join().unwrap();
    running.client.delete::<Done>("/v1/connections").unwrap();
    let begin = Instant::now();
    // Packets that were on their way are tracked after that.
    let rest = loop {
        running.client.delete::<Done>("/v1/connections").unwrap();
        let status: Status = running.client.get("/v1/status").unwrap();
        if status.totals.softnet.get("processed") >= running.sent && status.connections == 0 {
            break status;
        }
        assert!(begin.elapsed() < PATIENCE);
    };
    let configured: Vec<_> = zones(&running).zones.iter().map(|zone| zone.zone).collect();
    let known: Vec<_> = rest.zones.iter().map(|zone| zone.zone).collect();
    assert_eq!(known, configured, "those that are gone are forgotten");
    assert!(rest.zones.iter().all(|zone| zone.connections == 0));
    running.stop();
}
