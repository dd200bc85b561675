//! SYN proxies that rules ask for.

use wire::build::Tcp;

use crate::testing::syn_proxy::*;

/// The proxy gets untracked SYNs to port 80, and segments that tracking calls invalid. Beside that
/// only replies may pass.
fn rules(proxy: &str) -> String {
    let chain = |name: &str, hook: &str, prio: i32, policy: &str| {
        format!(
            r#"{{"chain":{{"family":"inet","table":"t","name":"{name}","handle":1,"type":"filter",
                "hook":"{hook}","prio":{prio},"policy":"{policy}"}}}}"#
        )
    };
    let rule = |chain: &str, expr: &str| {
        format!(r#"{{"rule":{{"family":"inet","table":"t","chain":"{chain}","expr":[{expr}]}}}}"#)
    };
    let port =
        r#"{"match":{"op":"==","left":{"payload":{"protocol":"tcp","field":"dport"}},"right":80}}"#;
    let syn = r#"{"match":{"op":"==","left":{"&":[{"payload":{"protocol":"tcp","field":"flags"}},
        ["fin","syn","rst","ack"]]},"right":"syn"}}"#;
    let state = |states: &str| {
        format!(r#"{{"match":{{"op":"in","left":{{"ct":{{"key":"state"}}}},"right":{states}}}}}"#)
    };
    let parts = [
        r#"{"table":{"family":"inet","name":"t","handle":1}}"#.to_owned(),
        r#"{"synproxy":{"family":"inet","table":"t","name":"p","handle":2,"mss":1300,"wscale":5,
            "flags":["timestamp"]}}"#
            .to_owned(),
        chain("raw", "prerouting", -300, "accept"),
        chain("fwd", "forward", 0, "drop"),
        rule("raw", &format!(r#"{port},{syn},{{"notrack":null}}"#)),
        rule("fwd", &format!(r#"{port},{},{proxy}"#, state(r#"["invalid","untracked"]"#))),
        rule("fwd", &format!(r#"{},{{"accept":null}}"#, state(r#"["established"]"#))),
    ];
    format!(r#"{{"nftables":[{}]}}"#, parts.join(","))
}

const NAMED: &str = r#"{"synproxy":"p"}"#;
const BARE: &str = r#"{"synproxy":null}"#;
const FULL: &str = r#"{"synproxy":{"mss":1460,"wscale":9,"flags":["timestamp","sack-perm"]}}"#;

impl Scene {
    /// A scene in which unknown connections are invalid, as the proxy needs it.
    fn ruled(v6: bool, half_open: u64, proxy: &str) -> Self {
        let mut scene = Self::new(v6, half_open);
        scene.set("nf_conntrack_tcp_loose", 0);
        scene.load(&rules(proxy));
        scene
    }
}

#[test]
fn a_rule_has_its_connections_opened_and_says_what_is_promised() {
    // The options of the answer are segment size, scale, SACK, timestamps. Those of the SYN to the
    // server follow.
    let offered = |size: u16| Some(size.to_be_bytes().to_vec());
    for (v6, proxy, promised, passed) in [
        (false, NAMED, (offered(1300), Some(vec![5]), false, true), (Some(3), false)),
        (true, FULL, (offered(1460), Some(vec![9]), true, true), (Some(3), true)),
        (false, BARE, (None, None, false, false), (None, false)),
    ] {
        // The zone has a proxy too, which is not asked, or none.
        for half_open in [0, 1000] {
            let mut scene = Scene::ruled(v6, half_open, proxy);
            let answer = scene.knock(&OFFER);
            let option = |seen: &Seen, kind| seen.option(kind).map(<[u8]>::to_vec);
            let seen = |kind| option(&answer, kind);
            assert_eq!((seen(2), seen(3), seen(4).is_some(), seen(8).is_some()), promised);
            assert_eq!(scene.rig.connections(), 0, "nothing is kept");
            let stamps = promised.3.then(|| stamped(5001, answer.stamps()[0]));
            let [back, on] = scene.come_back(&answer, &stamps.unwrap_or_default());
            assert_eq!((back.len(), on.len()), (0, 1), "{proxy}");
            // No forward chain was asked about it: none would let it pass.
            let syn = &on[0];
            assert_eq!((syn.tcp.flags, syn.tcp.sequence), (SYN, 100));
            assert_eq!(syn.option(2), Some(&1400u16.to_be_bytes()[..]));
            let scale = syn.option(3).map(|body| body[0]);
            assert_eq!((scale, syn.option(4).is_some()), passed);
            let [update, ack] = scene.accept(900, 60_000);
            assert_eq!((update.len(), ack[0].tcp.acknowledgment), (1, 901));
            let cookie = answer.tcp.sequence;
            let data = Tcp {
                sequence: 101,
                acknowledgment: cookie.wrapping_add(1),
                flags: ACK,
                window: 400,
                ..Tcp::default()
            };
            let [_, on] = scene.send(OUTSIDE, &data);
            assert_eq!(on[0].tcp.acknowledgment, 901);
            let counts = scene.counts();
            assert_eq!((counts.syn_received, counts.cookie_valid, scene.dropped()), (1, 1, 0));
        }
    }
}

#[test]
fn only_a_cookie_of_the_rule_opens_a_connection() {
    let mut scene = Scene::ruled(false, 0, FULL);
    let answer = scene.knock(&[]);
    let mut forged = answer.clone();
    forged.tcp.sequence ^= 0x10;
    assert!(scene.come_back(&forged, &[]).iter().all(Vec::is_empty));
    assert_eq!((scene.counts().cookie_invalid, scene.dropped()), (1, 1));
    // The rule has another promise now, so it can not keep the one before.
    scene.load(&rules(NAMED));
    assert!(scene.come_back(&answer, &[]).iter().all(Vec::is_empty));
    scene.load(&rules(FULL));
    assert_eq!(scene.come_back(&answer, &[])[1].len(), 1);
    assert_eq!((scene.counts().cookie_valid, scene.rig.connections()), (1, 1));
    // The rule does not accept a cookie of the zone's proxy.
    let mut zone = Scene::new(false, 1);
    let of_zone = zone.knock(&[]);
    let mut ruled = Scene::ruled(false, 0, FULL);
    assert!(ruled.come_back(&of_zone, &[]).iter().all(Vec::is_empty));
}

#[test]
fn a_client_that_opens_a_closed_connection_anew_is_promised_another() {
    let mut scene = Scene::ruled(false, 0, FULL);
    for _ in 0..3 {
        let cookie = scene.open(700);
        let reset =
            Tcp { sequence: 101, flags: RST, acknowledgment: 0, window: 0, ..Tcp::default() };
        let [_, on] = scene.send(OUTSIDE, &reset);
        assert_eq!((on.len(), scene.rig.connections()), (1, 1), "{cookie}");
    }
    assert_eq!((scene.counts().cookie_valid, scene.dropped()), (3, 0));
}
