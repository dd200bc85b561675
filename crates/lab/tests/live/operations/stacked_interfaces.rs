//! Gateways with an interface and another one on top of it. The devices on top are macvlans here. A
//! VLAN is one to the kernel in the same way.

use std::time::Duration;

use lab::{Error, Namespace, Result, StatewaySpec, Tracking, ping};

use crate::scenario::{
    beside_others, bridge_spec, echos_at_server, kernel_router, load_of, router_spec, start_in,
    with_config,
};

#[test]
fn a_bridge_refuses_an_interface_on_top_of_another_of_its_own() {
    beside_others(|| {
        let namespace = Namespace::new("stack")?;
        namespace.ip(&[
            "link add lan0 type veth peer name other",
            "link add wan0 type veth peer name outside",
            "link set lan0 up",
            "link set wan0 up",
        ])?;
        on_top(&namespace)?;
        for (interfaces, line) in [(["lan0", "top0"], 10), (["top0", "lan0"], 6)] {
            let config = bridge_spec(1)?.config(&interfaces);
            for command in ["check", "run"] {
                let program = with_config(&namespace, command, &config)?;
                let output = program.limit(Duration::from_secs(5)).run()?;
                let below = 16 - line;
                let said = format!(
                    "tried.toml:{line}: interface.name: \"top0\" stands on \"lan0\" of line {below}"
                );
                assert_eq!(output.code, Some(2), "{}", output.stderr);
                assert!(output.stderr.contains(&said), "{}", output.stderr);
            }
        }
        // Each of them alone will do.
        for interface in ["lan0", "top0"] {
            let config = bridge_spec(1)?.config(&[interface, "wan0"]);
            let output = with_config(&namespace, "check", &config)?.run()?;
            assert_eq!(output.code, Some(0), "{}", output.stderr);
        }
        Ok(())
    });
}

#[test]
fn a_bridge_refuses_a_bridge_of_the_kernel() {
    beside_others(|| {
        let namespace = Namespace::new("stack")?;
        namespace.ip(&[
            "link add lan0 type bridge",
            "link add wan0 type veth peer name outside",
            "link set lan0 up",
            "link set wan0 up",
        ])?;
        let config = bridge_spec(1)?.config(&["lan0", "wan0"]);
        let output = with_config(&namespace, "check", &config)?.run()?;
        let said = "tried.toml:6: interface.name: \"lan0\" is a bridge of the kernel";
        assert_eq!(output.code, Some(2), "{}", output.stderr);
        assert!(output.stderr.contains(said), "{}", output.stderr);
        let config = router_spec(1)?.config(&["lan0", "wan0"]);
        let output = with_config(&namespace, "check", &config)?.run()?;
        assert_eq!(output.code, Some(0), "{}", output.stderr);
        Ok(())
    });
}

/// Makes `top0` on top of `lan0`.
fn on_top(gateway: &Namespace) -> Result<()> {
    let made = gateway.ip(&[
        "link add link lan0 name top0 address 02:00:00:00:00:77 type macvlan mode bridge",
        "link set top0 up",
    ]);
    made.map_err(|error| Error::Unavailable { why: format!("no macvlan devices: {error}") })
}

#[test]
fn a_router_has_an_interface_and_another_on_top_of_it() {
    beside_others(|| {
        let lab = kernel_router(Tracking::Off)?;
        on_top(lab.gateway())?;
        lab.gateway().sysctl(["net.ipv4.conf.all.arp_ignore=1"])?;
        lab.gateway().ip(&["addr add 203.0.113.126/25 dev top0"])?;
        lab.client().ip(&["addr add 203.0.113.2/25 dev eth0"])?;
        lab.server().ip(&["route add 203.0.113.0/25 via 198.51.100.254"])?;
        let interfaces = ["lan0", "top0", "wan0"].map(str::to_owned).to_vec();
        let spec = StatewaySpec { interfaces, ..router_spec(2)? };
        let stateway = start_in(lab.gateway(), &spec)?;
        let server = "198.51.100.2".parse().unwrap();
        let pings = |source: &str, expected| -> Result<()> {
            let report = ping(lab.on_client("ping").args(["-I", source]), server, 5)?;
            assert_eq!((report.received, report.duplicates), (expected, 0), "{source}");
            Ok(())
        };
        pings("192.0.2.1", 5)?;
        lab.client().ip(&["route add 198.51.100.2 via 203.0.113.126"])?;
        pings("203.0.113.2", 5)?;
        // Rules tell the two apart.
        load_of(
            &lab,
            &stateway,
            "table inet filter {
                chain forward {
                    type filter hook forward priority filter; policy accept;
                    iifname \"top0\" drop
                }
            }",
        )?;
        let before = echos_at_server(&lab)?;
        pings("203.0.113.2", 0)?;
        assert_eq!(echos_at_server(&lab)?, before, "neither way leads past the rules");
        lab.client().ip(&["route del 198.51.100.2"])?;
        pings("192.0.2.1", 5)?;
        assert_eq!(stateway.stop()?.code, Some(0));
        Ok(())
    });
}
