//! Ways through the host's own kernel: packets for the station of one of the gateway's interfaces
//! that the kernel would forward, around the rules.

use lab::{Lab, Result, StatewaySpec, ping};
use wire::build::PacketBuilder;

use crate::scenario::{
    CLOSED, beside_others, bridge, closed_router, echos_at_server, frames, kernel_bridge, listen,
    load, send_frames, soon, start_in, stateway_binary, stop_cleanly, with_config,
};

const CLIENT: [u8; 4] = [192, 0, 2, 1];
const CLIENT_V6: [u8; 16] = [0x20, 1, 0xd, 0xb8, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
/// The gateway's own, where the client is.
const OWN: [u8; 4] = [192, 0, 2, 254];
const OWN_V6: [u8; 16] = [0x20, 1, 0xd, 0xb8, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xfe];
const SERVER: [u8; 4] = [198, 51, 100, 2];
const SERVER_V6: [u8; 16] = [0x20, 1, 0xd, 0xb8, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2];

/// Numbers of routing headers (IANA, IPv6 routing types) and of their header.
const RPL: u8 = 3;
const SEGMENTS: u8 = 4;
const ROUTING: u8 = 43;
const UDP: u8 = 17;

/// Asks the server behind a bridge by way of the gateway's kernel; how many requests have arrived,
/// by family.
fn ask_past_bridge(lab: &Lab) -> Result<[u64; 2]> {
    let before = echos_at_server(lab)?;
    for address in ["192.0.2.2", "2001:db8:1::2"] {
        let args = ["-n", "-q", "-i", "0.05", "-c", "10", "-W", "1", address];
        lab.on_client("ping").args(args).run()?;
    }
    let after = echos_at_server(lab)?;
    Ok([after[0] - before[0], after[1] - before[1]])
}

#[test]
fn the_kernel_forwards_nothing_past_the_rules_of_a_bridge() {
    beside_others(|| {
        let mut lab = bridge(2)?;
        load(&lab, CLOSED)?;
        // As on a host with containers, that is managed from the side of the server.
        lab.gateway().ip(&[
            "addr add 192.0.2.254/24 dev wan0",
            "addr add 2001:db8:1::fe/64 dev wan0 nodad",
        ])?;
        lab.gateway().sysctl(["net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1"])?;
        let link = lab.gateway().program("cat").args(["/sys/class/net/lan0/address"]).check()?;
        for address in ["192.0.2.2", "2001:db8:1::2"] {
            let link = link.trim();
            lab.client()
                .ip(&[&format!("neigh replace {address} lladdr {link} dev eth0 nud permanent")])?;
        }
        assert_eq!(ask_past_bridge(&lab)?, [0, 0]);
        for own in ["192.0.2.254", "2001:db8:1::fe"] {
            let managed = ping(lab.on_server("ping"), own.parse().unwrap(), 5)?;
            assert_eq!((managed.received, managed.duplicates), (5, 0), "{own} is the host's");
        }
        stop_cleanly(&mut lab)?;
        assert_ne!(ask_past_bridge(&lab)?.map(|requests| requests > 0), [false; 2], "it would");
        Ok(())
    });
}

/// The station of a macvlan device.
const STATION: &str = "02:00:00:00:00:77";
/// How often the way past the rules is tried until the guard has to have closed it.
const TRIES: usize = 5;

/// True if soon no request gets past the rules.
fn is_closed_soon(lab: &Lab) -> Result<bool> {
    for _ in 0..TRIES {
        if ask_past_bridge(lab)? == [0, 0] {
            return Ok(true);
        }
    }
    Ok(false)
}

#[test]
fn the_kernel_forwards_nothing_that_comes_in_by_a_device_on_top_of_an_interface() {
    beside_others(|| {
        let mut lab = bridge(2)?;
        load(&lab, CLOSED)?;
        lab.gateway().ip(&[
            "addr add 192.0.2.254/24 dev wan0",
            "addr add 2001:db8:1::fe/64 dev wan0 nodad",
            &format!("link add link lan0 name mv0 address {STATION} type macvlan mode bridge"),
            "link set mv0 up",
        ])?;
        lab.gateway().sysctl(["net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1"])?;
        for address in ["192.0.2.2", "2001:db8:1::2"] {
            lab.client().ip(&[&format!(
                "neigh replace {address} lladdr {STATION} dev eth0 nud permanent"
            )])?;
        }
        assert!(is_closed_soon(&lab)?);
        // Another takes its place.
        lab.gateway().ip(&[
            "link del mv0",
            &format!("link add link lan0 name mv1 address {STATION} type macvlan mode bridge"),
            "link set mv1 up",
        ])?;
        assert!(is_closed_soon(&lab)?, "the other device");
        let managed = ping(lab.on_server("ping"), "192.0.2.254".parse().unwrap(), 5)?;
        assert_eq!((managed.received, managed.duplicates), (5, 0), "the host is reached");
        stop_cleanly(&mut lab)?;
        assert_ne!(ask_past_bridge(&lab)?.map(|requests| requests > 0), [false; 2], "it would");
        Ok(())
    });
}

/// A datagram for the gateway itself that names the server as the next to go to, by an option of
/// IPv4.
fn by_option(kind: u8) -> Vec<u8> {
    let [a, b, c, d] = SERVER;
    let mut frame = Vec::new();
    PacketBuilder::v4(CLIENT, OWN).options(&[kind, 7, 4, a, b, c, d, 0]).udp(
        7,
        9,
        b"past the rules",
        &mut frame,
    );
    frame
}

/// The same by a routing header of this type, which lists these addresses with some left.
fn by_header(kind: u8, left: u8, rest: [u8; 4], addresses: &[[u8; 16]]) -> Vec<u8> {
    let mut whole = Vec::new();
    PacketBuilder::v6(CLIENT_V6, SERVER_V6).udp(7, 9, b"past the rules", &mut whole);
    let datagram = &whole[14 + 40..];
    let mut header = vec![UDP, 2 * addresses.len() as u8, kind, left];
    header.extend(rest);
    header.extend(addresses.iter().flatten());
    header.extend(datagram);
    let mut frame = Vec::new();
    PacketBuilder::v6(CLIENT_V6, OWN_V6).transport(ROUTING, &header, &mut frame);
    frame
}

/// Sends packets with source routing to the gateway; by how many ways the server was reached.
fn reached_by_source_routing(lab: &Lab) -> Result<usize> {
    let packets = [
        by_option(131),
        by_option(137),
        by_header(RPL, 1, [0; 4], &[SERVER_V6]),
        by_header(SEGMENTS, 1, [1, 0, 0, 0], &[SERVER_V6, OWN_V6]),
    ];
    let heard = listen(lab.server())?;
    let to_gateway = packets.map(|frame| [&lab.next_hop_mac()[..], &frame[6..]].concat());
    send_frames(lab.client(), &to_gateway)?;
    // When these are answered, the packets before them are through.
    ping(lab.on_client("ping"), OWN.into(), 3)?;
    let is_one = |frame: &Vec<u8>| frame.windows(14).any(|part| part == b"past the rules");
    Ok(frames(heard)?.iter().filter(|frame| is_one(frame)).count())
}

#[test]
fn source_routing_leads_nothing_past_the_rules_of_a_router() {
    beside_others(|| {
        let mut lab = closed_router()?;
        // The server is known on its link.
        ping(lab.gateway().program("ping"), SERVER.into(), 1)?;
        for name in ["all", "lan0"] {
            let v4 = format!("net.ipv4.conf.{name}.accept_source_route=1");
            let v6 = |key: &str| format!("net.ipv6.conf.{name}.{key}=1");
            lab.gateway().sysctl([&v4, &v6("seg6_enabled"), &v6("rpl_seg_enabled")])?;
        }
        assert_eq!(reached_by_source_routing(&lab)?, 0);
        stop_cleanly(&mut lab)?;
        assert_eq!(reached_by_source_routing(&lab)?, 4, "the kernel forwards each");
        Ok(())
    });
}

/// The parts of the text about an interface that belongs to something else.
fn belongs(interface: &str, to: &str) -> [String; 2] {
    [
        format!("interface {interface} belongs to {to}"),
        format!("`ip link set {interface} nomaster` takes it out"),
    ]
}

#[test]
fn an_interface_that_belongs_to_another_is_refused_and_told_of() {
    beside_others(|| {
        let lab = kernel_bridge()?;
        let binary = stateway_binary()?;
        let refused = |routed: bool, lan0: &str, wan0: &str| -> Result<()> {
            let spec = StatewaySpec { routed, ..StatewaySpec::new(binary.clone(), 1) };
            let config = spec.config(&["lan0", "wan0"]);
            for command in ["check", "run"] {
                let output = with_config(lab.gateway(), command, &config)?.run()?;
                assert_eq!(output.code, Some(2), "{command}: {output:?}");
                let messages = belongs("lan0", lan0).into_iter().chain(belongs("wan0", wan0));
                for part in messages {
                    assert!(output.stderr.contains(&part), "{command}: no {part} in {output:?}");
                }
            }
            Ok(())
        };
        for routed in [false, true] {
            refused(routed, "bridge br0", "bridge br0")?;
        }
        if lab.gateway().ip(&["link add vrf0 type vrf table 9"]).is_ok() {
            lab.gateway().ip(&["link set lan0 nomaster", "link set lan0 master vrf0"])?;
            refused(false, "vrf vrf0", "bridge br0")?;
        } else {
            println!("SKIPPED: this kernel has no VRF");
        }
        lab.gateway().ip(&["link set lan0 nomaster", "link set wan0 nomaster"])?;
        let spec = StatewaySpec::new(binary.clone(), 1);
        let stateway = start_in(lab.gateway(), &spec)?;
        let warnings =
            || -> Result<String> { Ok(stateway.query(&["status"])?["warnings"].to_string()) };
        assert_eq!(warnings()?, "[]");
        lab.gateway().ip(&["link set wan0 master br0"])?;
        let messages = belongs("wan0", "bridge br0");
        soon("people are told", || {
            let warnings = warnings()?;
            Ok(messages.iter().all(|part| warnings.contains(part) && stateway.log().contains(part)))
        })?;
        lab.gateway().ip(&["link set wan0 nomaster"])?;
        soon("it is its own again", || Ok(warnings()? == "[]"))?;
        assert_eq!(stateway.stop()?.code, Some(0));
        Ok(())
    });
}
