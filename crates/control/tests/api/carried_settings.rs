//! Settings that were changed while a gateway ran, at another one that goes on for it.

use control::schema::{ChangedSetting, ChangedSettings, DevicePolicy, SetZones, Zone, Zones};
use control::{SCHEMA, carry_settings};
use serde_json::{Value, json};

use super::*;

fn changed(running: &Running) -> ChangedSettings {
    running.client.get("/v1/settings/changed").unwrap()
}

fn tunable(running: &Running, name: &str) -> u64 {
    let all = running.gateway.tunables();
    all.into_iter().find(|(tunable, _)| tunable.name == name).expect("there is such a tunable").1
}

fn set_tunable(running: &Running, name: &str, value: u64) {
    let path = format!("/v1/tunables/{name}");
    running.client.put::<Done>(&path, &SetTunable { value }).unwrap();
}

#[test]
fn all_that_an_operator_has_changed_goes_on() {
    let [old, new] = [(); 2].map(|()| Running::start());
    assert_eq!(changed(&old).settings, []);
    set_tunable(&old, "nf_conntrack_max", 500);
    set_tunable(&old, "nf_conntrack_udp_timeout", 77);
    old.client.put::<Moves>("/v1/workers", &SetWorkers { workers: 3 }).unwrap();
    old.client.put::<Done>("/v1/balancer", &SetBalancer { interval_ms: Some(50) }).unwrap();
    let latency = DevicePolicy { device: "wan0".into(), policy: "latency".into() };
    old.client.put::<Done>("/v1/policies", &latency).unwrap();
    let five = Zone { zone: 5, vlans: Some(vec![5]), ..Zone::default() };
    let zones = SetZones { zones: vec![five.clone()], ..SetZones::default() };
    old.client.put::<Done>("/v1/zones", &zones).unwrap();

    let all = changed(&old);
    let names: Vec<_> = all.settings.iter().map(|it| it.name.as_str()).collect();
    let expected = [
        "gateway.balance",
        "gateway.workers",
        "interface.wan0.policy",
        "tunables.nf_conntrack_max",
        "tunables.nf_conntrack_udp_timeout",
        "zones",
    ];
    assert_eq!(names, expected);
    assert_eq!(carry_settings(&new.gateway, &all), [""; 0]);
    assert_eq!(tunable(&new, "nf_conntrack_max"), 500);
    assert_eq!(new.client.get::<Zones>("/v1/zones").unwrap().zones, [five]);
    assert_eq!(new.client.get::<Status>("/v1/status").unwrap().workers.len(), 3);
    // The next process gets all of them again.
    assert_eq!(changed(&new).settings, all.settings);

    // One that was taken back meanwhile is taken back there as well.
    let default = all.settings[3].at_start.as_u64().unwrap();
    set_tunable(&old, "nf_conntrack_max", default);
    old.client.put::<Done>("/v1/balancer", &SetBalancer { interval_ms: None }).unwrap();
    old.client.put::<Done>("/v1/zones", &SetZones::default()).unwrap();
    assert_eq!(carry_settings(&new.gateway, &changed(&old)), [""; 0]);
    assert_eq!(tunable(&new, "nf_conntrack_max"), default);
    assert_eq!(changed(&new).settings, changed(&old).settings);
    old.stop();
    new.stop();
}

#[test]
fn each_setting_that_does_not_go_on_is_named_with_the_reason() {
    let running = Running::start();
    let max = tunable(&running, "nf_conntrack_max");
    let setting = |name: &str, at_start: Value, now: Value| ChangedSetting {
        name: name.to_owned(),
        at_start,
        now,
    };
    let zone = |interface: &str| {
        let interfaces = Some(vec![interface.to_owned()]);
        let zones = vec![Zone { zone: 5, interfaces, ..Zone::default() }];
        json!(SetZones { zones, ..SetZones::default() })
    };
    let settings = vec![
        setting("gateway.balance", json!("1s"), json!(50)),
        setting("gateway.workers", json!(2), json!(900)),
        setting("interface.dmz0.policy", json!("none"), json!("bulk")),
        setting("interface.lan0.policy", json!("none"), json!("haste")),
        setting("tunables.nf_conntrack_max", json!(100), json!(200)),
        setting("tunables.nf_conntrack_udp_timeout", json!(7), json!(30)),
        setting("tunables.nf_conntrack_udp_timeout_stream", json!(120), json!("long")),
        setting("tunables.of_another_release", json!(1), json!(2)),
        setting("zones", json!(SetZones::default()), zone("dmz0")),
        setting("zones", zone("lan0"), zone("wan0")),
    ];
    let changes = ChangedSettings { schema: SCHEMA, settings, trial_s: Some(7) };
    let lost = carry_settings(&running.gateway, &changes);
    insta::assert_snapshot!(lost.join("\n"));
    assert_eq!(tunable(&running, "nf_conntrack_max"), max, "the file counts");
    assert_eq!(changed(&running).settings, []);
    running.stop();
}
