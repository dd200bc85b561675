//! A router whose LAN is a bridge of the kernel, as on most hosts with containers. With br_netfilter
//! the host's netfilter meets the frames in that bridge, and they have to get through it.

use std::net::IpAddr;

use lab::{Error, Family, Lab, Namespace, Result, StatewaySpec, Tracking, Transport, ping};

use crate::scenario::{
    CLOSED, FAMILIES, beside_others, echo, echos_at_server, every_client, fragments_arrive,
    kernel_router, load_of, router_spec, start_in, stateway_binary,
};

/// A second host on the bridge.
const NEIGHBOUR: [&str; 2] = ["192.0.2.7", "2001:db8:1::7"];

/// A router of the kernel whose `lan0` is a bridge between the client and a second host. With
/// `is_called`, br_netfilter has the host's netfilter see the frames in the bridge.
fn bridged(is_called: bool) -> Result<(Lab, Namespace)> {
    let lab = kernel_router(Tracking::Off)?;
    lab.gateway().ip(&[
        "link set lan0 down",
        "link set lan0 name port1",
        "link set port1 address 02:00:00:00:00:11",
        "addr flush dev port1",
        "link add lan0 address 00:00:5e:00:53:03 type bridge",
        "link set port1 master lan0",
        "link set port1 up",
        "link set lan0 up",
        "addr add 192.0.2.254/24 dev lan0",
        "addr add 2001:db8:1::fe/64 dev lan0 nodad",
    ])?;
    let neighbour = Namespace::new("neighbour")?;
    lab.gateway().join("port2", &neighbour, "eth0")?;
    lab.gateway().ip(&["link set port2 master lan0"])?;
    let [v4, v6] = NEIGHBOUR;
    neighbour.ip(&[
        &format!("addr add {v4}/24 dev eth0"),
        &format!("addr add {v6}/64 dev eth0 nodad"),
    ])?;
    let call = u8::from(is_called);
    let set = lab.gateway().sysctl([
        format!("net.bridge.bridge-nf-call-iptables={call}"),
        format!("net.bridge.bridge-nf-call-ip6tables={call}"),
    ]);
    if set.is_err() && is_called {
        return Err(Error::Unavailable { why: "this kernel has no br_netfilter".into() });
    }
    Ok((lab, neighbour))
}

/// Checks that each ping from the client gets exactly one answer.
fn pings_flow(lab: &Lab, to: IpAddr) -> Result<()> {
    let report = ping(lab.on_client("ping"), to, 5)?;
    assert_eq!((report.received, report.duplicates), (5, 0), "{to}");
    Ok(())
}

/// Checks what the bridge itself carries.
fn bridge_goes_on(lab: &Lab) -> Result<()> {
    NEIGHBOUR.into_iter().try_for_each(|to| pings_flow(lab, to.parse().unwrap()))?;
    // Some of a bridge's own traffic has options, such as that of groups.
    let options = lab.on_client("ping").args(["-R"]);
    let report = ping(options, NEIGHBOUR[0].parse().unwrap(), 3)?;
    assert_eq!((report.received, report.duplicates), (3, 0));
    Ok(())
}

fn is_a_lan(is_called: bool) {
    beside_others(|| {
        let (lab, _neighbour) = bridged(is_called)?;
        let stateway = start_in(lab.gateway(), &router_spec(2)?)?;
        every_client(&lab)?;
        fragments_arrive(&lab)?;
        bridge_goes_on(&lab)?;
        for own in ["192.0.2.254", "2001:db8:1::fe"] {
            pings_flow(&lab, own.parse().unwrap())?;
        }
        // The host's kernel answers nothing that the gateway answers.
        for family in FAMILIES {
            let to = lab.server_address(family).to_string();
            let args = ["-n", "-c", "3", "-i", "0.2", "-t", "1", &to];
            let said = lab.on_client("ping").args(args).run()?.stdout;
            assert!(said.contains(" 0 received, +3 errors"), "{said}");
        }
        load_of(&lab, &stateway, CLOSED)?;
        let before = echos_at_server(&lab)?;
        for family in FAMILIES {
            assert_eq!(ping(lab.on_client("ping"), lab.server_address(family), 3)?.received, 0);
        }
        assert_eq!(echos_at_server(&lab)?, before, "the kernel would forward");
        bridge_goes_on(&lab)?;
        assert_eq!(stateway.stop()?.code, Some(0));
        Ok(())
    });
}

#[test]
fn a_bridge_whose_frames_netfilter_sees_is_a_lan() {
    is_a_lan(true);
}

#[test]
fn a_bridge_whose_frames_netfilter_does_not_see_is_a_lan() {
    is_a_lan(false);
}

/// Has the kernel track connections, and reassemble fragments for that.
const TRACKED: &str = "
table inet k {
    chain forward {
        type filter hook forward priority filter; policy accept;
        ct state established accept
    }
}
";

#[test]
fn a_bridge_whose_frames_the_kernel_tracks_is_a_lan() {
    beside_others(|| {
        let (lab, _neighbour) = bridged(true)?;
        lab.gateway().load_rules(TRACKED)?;
        let stateway = start_in(lab.gateway(), &router_spec(2)?)?;
        every_client(&lab)?;
        bridge_goes_on(&lab)?;
        // They come to the gateway one by one, although the kernel would reassemble them in the
        // bridge.
        fragments_arrive(&lab)?;
        for to in NEIGHBOUR {
            let fragments = lab.on_client("ping").args(["-s", "4000"]);
            assert_eq!(ping(fragments, to.parse().unwrap(), 5)?.received, 5, "{to}");
        }
        // Frames that the bridge itself forwards are tracked as before.
        lab.gateway().load_rules(
            "table inet k {
                chain only_tracked {
                    type filter hook forward priority filter - 1;
                    iifname \"lan0\" oifname \"lan0\" ct state untracked drop
                }
            }",
        )?;
        bridge_goes_on(&lab)?;
        assert_eq!(stateway.stop()?.code, Some(0));
        Ok(())
    });
}

/// Isolates the ports of the bridge, as rules for containers do.
const ISOLATED: &str = "
table inet t {
    chain forward {
        type filter hook forward priority filter; policy accept;
        iifname \"lan0\" oifname \"lan0\" drop
    }
}
";

/// Packets from port to port of the bridge do not come to the gateway. An operator who moves such a
/// rule from the kernel to the gateway hears that it does nothing there.
#[test]
fn rules_between_ports_of_a_bridge_are_warned_of_while_the_kernel_has_none() {
    beside_others(|| {
        let (lab, _neighbour) = bridged(true)?;
        let spec = StatewaySpec { ruleset: Some(ISOLATED.to_owned()), ..router_spec(1)? };
        let stateway = start_in(lab.gateway(), &spec)?;
        bridge_goes_on(&lab)?;
        let warnings = || {
            let status = stateway.query(&["status"])?;
            let is_of_bridge = |it: &&serde_json::Value| it.to_string().contains("ports of lan0");
            Ok(status["warnings"].as_array().unwrap().iter().filter(is_of_bridge).count())
        };
        assert_eq!(warnings()?, 1);
        lab.gateway().load_rules(ISOLATED)?;
        assert_eq!(warnings()?, 0);
        let report = ping(lab.on_client("ping"), NEIGHBOUR[0].parse().unwrap(), 2)?;
        assert_eq!(report.received, 0, "the kernel isolates the ports");
        assert_eq!(stateway.stop()?.code, Some(0));
        Ok(())
    });
}

/// Leads a port of the router's own address on the bridge to the server.
const FORWARD: &str = "
table inet t {
    chain in {
        type nat hook prerouting priority dstnat; policy accept;
        iifname \"lan0\" ip daddr 192.0.2.254 tcp dport 8080 dnat ip to 198.51.100.2:8000
        iifname \"lan0\" ip daddr 192.0.2.254 udp dport 8080 dnat ip to 198.51.100.2:8000
    }
}
";

/// Says from which port the first datagram comes that reaches the host.
const HEARS: &str = "
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind(('0.0.0.0', 8080))
print('ready', flush=True)
print('heard', s.recvfrom(100), flush=True)
";

/// Sends the word over UDP or TCP and prints what comes back.
const ASKS: &str = "
import socket, sys
kind = socket.SOCK_STREAM if sys.argv[1] == 'tcp' else socket.SOCK_DGRAM
s = socket.socket(socket.AF_INET, kind)
s.settimeout(5)
s.connect(('192.0.2.254', 8080))
s.sendall(b'word')
print(s.recv(100).decode())
";

fn translates(is_called: bool) {
    beside_others(|| {
        stateway_binary()?;
        let (lab, _neighbour) = bridged(is_called)?;
        let mut server = echo(lab.server(), 8000)?;
        server.wait_for_port(Transport::Tcp, 8000)?;
        let mut host = lab.gateway().program("python3").args(["-c", HEARS]).spawn()?;
        host.wait_for_text("ready")?;
        let stateway = start_in(lab.gateway(), &router_spec(2)?)?;
        load_of(&lab, &stateway, FORWARD)?;
        for protocol in ["tcp", "udp"] {
            let said = lab.on_client("python3").args(["-c", ASKS, protocol]).check()?;
            assert_eq!(said, "word\n", "{protocol}");
        }
        assert!(!host.log().contains("heard"), "{}", host.log());
        pings_flow(&lab, lab.server_address(Family::V4))?;
        assert_eq!(stateway.stop()?.code, Some(0));
        Ok(())
    });
}

#[test]
fn packets_that_rules_translate_are_kept_from_the_host_behind_a_bridge_that_netfilter_sees() {
    translates(true);
}

#[test]
fn packets_that_rules_translate_are_kept_from_the_host_behind_another_bridge() {
    translates(false);
}
