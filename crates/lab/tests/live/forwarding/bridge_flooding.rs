//! A bridge between three links whose rules ask by which one a packet leaves, beside a bridge of the
//! kernel with the same rules.

use std::collections::BTreeSet;

use lab::{Background, Result, Stateway, StatewaySpec, ping};
use wire::build::PacketBuilder;

use crate::scenario::{Segment, beside_others, bridge_spec, frames, hex, listen, send_frames};

const PORTS: [&str; 3] = ["wan0", "lan0", "dmz0"];
/// Packets of each kind: they come to all workers.
const FLOWS: u16 = 12;
/// The text of each packet before its number.
const MARK: &[u8] = b"packet ";

/// Nothing of this looks at connections, so a bridge of the kernel needs none.
const RULES: &str = "
    chain forward {
        type filter hook forward priority 0; policy drop;
        iifname \"wan0\" oifname \"dmz0\" drop
        iifname \"wan0\" accept
        iifname \"lan0\" oifname \"wan0\" udp dport 9 accept
        iifname \"lan0\" oifname { \"wan0\", \"dmz0\" } udp dport 10 accept
        iifname \"dmz0\" oifname != \"wan0\" accept
    }
";

fn station(host: usize) -> [u8; 6] {
    [2, 0, 0, 0, 0, host as u8 + 1]
}

/// A frame that is no packet, from a host to all.
fn hello(host: usize) -> Vec<u8> {
    [&[0xff; 6][..], &station(host), &[8, 6], &[0; 46]].concat()
}

/// Has the kernel be the bridge.
fn bridge_of_kernel(segment: &Segment) -> Result<()> {
    let mut commands = vec!["link add br0 type bridge".to_owned()];
    commands.extend(PORTS.map(|port| format!("link set {port} master br0")));
    commands.push("link set br0 up".to_owned());
    let commands: Vec<_> = commands.iter().map(String::as_str).collect();
    segment.gateway.ip(&commands)?;
    // The gateway passes ARP unasked.
    let rules = RULES.replace("policy drop;", "policy drop; ether type arp accept");
    let table = format!("table bridge filter {{ {rules} }}");
    segment.gateway.load_rules(&table)
}

/// A gateway with two workers and these rules.
fn stateway(segment: &Segment, rules: &str) -> Result<Stateway> {
    let ruleset = Some(format!("table inet filter {{ {rules} }}"));
    segment.stateway(StatewaySpec { ruleset, ..bridge_spec(2)? })
}

/// Has each host send packets to stations that are known and not, to all and to a group.
/// Returns each packet with each host that has received it.
fn exchange(segment: &Segment) -> Result<BTreeSet<(usize, u16)>> {
    // All are known on their links.
    for host in 0..3 {
        send_frames(&segment.hosts[host], &[hello(host)])?;
    }
    let mut listening = Vec::new();
    for host in &segment.hosts {
        listening.push(listen(host)?);
    }
    let mut number = 0;
    for from in 0..3 {
        let others = [station((from + 1) % 3), station((from + 2) % 3), station(8)];
        let to = others.into_iter().chain([[0xff; 6], [1, 0, 0x5e, 0, 0, 9]]);
        let mut sent = Vec::new();
        for (to, port) in to.flat_map(|to| [(to, 9), (to, 10)]) {
            for flow in 0..FLOWS {
                sent.push(packet(from, to, (2000 + flow, port), number));
                number += 1;
            }
        }
        send_frames(&segment.hosts[from], &sent)?;
    }
    for from in 0..3 {
        send_frames(&segment.hosts[from], &[hello(from)])?;
    }
    for (host, listening) in listening.iter_mut().enumerate() {
        for from in (0..3).filter(|from| *from != host) {
            listening.wait_for_text(&hex(&hello(from)))?;
        }
    }
    // Workers that were handed packets may be a moment behind.
    std::thread::sleep(std::time::Duration::from_secs(1));
    let mut heard = BTreeSet::new();
    for (host, listening) in listening.into_iter().enumerate() {
        heard.extend(numbers(listening)?.into_iter().map(|number| (host, number)));
    }
    Ok(heard)
}

fn packet(from: usize, to: [u8; 6], ports: (u16, u16), number: u16) -> Vec<u8> {
    let mut frame = Vec::new();
    let says = [MARK, &number.to_be_bytes()].concat();
    PacketBuilder::v4([192, 0, 2, from as u8 + 1], [192, 0, 2, 99])
        .macs(station(from), to)
        .udp(ports.0, ports.1, &says, &mut frame);
    frame
}

/// The numbers of the packets that a host has heard from others, each as often as it was heard.
fn numbers(listening: Background) -> Result<Vec<u16>> {
    let number = |frame: Vec<u8>| {
        let at = frame.windows(MARK.len()).position(|part| part == MARK)?;
        let number = frame.get(at + MARK.len()..)?.first_chunk()?;
        Some(u16::from_be_bytes(*number))
    };
    let numbers: Vec<_> = frames(listening)?.into_iter().filter_map(number).collect();
    let each: BTreeSet<_> = numbers.iter().collect();
    assert_eq!(each.len(), numbers.len(), "nothing comes twice");
    Ok(numbers)
}

#[test]
fn rules_that_ask_for_the_output_hold_on_three_ports_as_on_a_bridge_of_the_kernel() {
    beside_others(|| {
        let kernel = Segment::new(PORTS)?;
        bridge_of_kernel(&kernel)?;
        let theirs = exchange(&kernel)?;
        drop(kernel);
        assert!(theirs.len() > 100, "{theirs:?}");
        let segment = Segment::new(PORTS)?;
        let stateway = stateway(&segment, RULES)?;
        let ours = exchange(&segment)?;
        let said =
            |these: &BTreeSet<_>, those| these.difference(those).copied().collect::<Vec<_>>();
        assert_eq!((said(&ours, &theirs), said(&theirs, &ours)), (vec![], vec![]));
        assert_eq!(stateway.stop()?.code, Some(0));
        Ok(())
    });
}

#[test]
fn pings_allowed_by_their_output_port_are_answered_whichever_worker_receives_them() {
    const OPEN_TO_DMZ: &str = "
        chain forward {
            type filter hook forward priority 0; policy drop;
            ct state established accept
            iifname \"wan0\" oifname \"dmz0\" accept
        }
    ";
    beside_others(|| {
        let segment = Segment::new(PORTS)?;
        let stateway = stateway(&segment, OPEN_TO_DMZ)?;
        let [wan, lan, dmz] = &segment.hosts;
        // Each `ping` is a connection of its own, and each has to ask for the station first.
        for _ in 0..12 {
            wan.ip(&["neigh flush dev eth0"])?;
            let answered = ping(wan.program("ping"), "192.0.2.3".parse().unwrap(), 1)?;
            assert_eq!(answered.received, 1, "{}", stateway.log());
        }
        for (from, to) in [(dmz, "192.0.2.1"), (lan, "192.0.2.3"), (wan, "192.0.2.2")] {
            for _ in 0..4 {
                from.ip(&["neigh flush dev eth0"])?;
                let refused = ping(from.program("ping"), to.parse().unwrap(), 1)?;
                assert_eq!(refused.received, 0, "to {to}");
            }
        }
        assert_eq!(stateway.stop()?.code, Some(0));
        Ok(())
    });
}
