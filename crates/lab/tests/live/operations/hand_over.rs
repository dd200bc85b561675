//! A gateway hands over to a new process, in the middle of traffic.

mod disturbed;
mod upgrade;

use std::collections::BTreeSet;
use std::time::Duration;

use lab::{
    Background, Family, Lab, Namespace, PYTHON, Placement, Result, Stateway, StatewaySpec,
    ftp_server,
};
use wire::build::PacketBuilder;

use crate::scenario::cluster::{Cluster, STRICT_NAT, connections, wait_for, wait_until};
use crate::scenario::{
    FAMILIES, FTP_SESSIONS, Segment, StatewayLab, TALKS, alone, beside_others, bridge_spec, echo,
    frames, listen, nat_rules, own_tables, ready, router_spec, send_frames, soon, start, stateway,
    stop_cleanly,
};

/// Connections of TCP that carry data meanwhile, half of each family.
const CONNECTIONS: usize = 20;

/// No connection is picked up from its middle, so each that the new process lacks ends. A rule and an
/// element count the numbered datagrams.
const STRICT: &str = "
table inet strict {
    set senders {
        typeof ip saddr
        flags dynamic,timeout
        timeout 10m
        counter
    }
    set banned {
        type ipv4_addr
        flags timeout
    }
    chain forward {
        type filter hook forward priority filter; policy accept;
        ip saddr @banned drop
        ct state invalid drop
        ct state new tcp flags & (fin | syn | rst | ack) != syn drop
        udp dport 7009 counter
        udp dport 7009 update @senders { ip saddr counter }
        udp dport 7009 quota 1000 mbytes
    }
}";

/// Sends numbered datagrams in several flows until the file exists, and prints how many.
const NUMBERED: &str = "
import os, socket, sys, time
end, *servers = sys.argv[1:]
flows = []
for server in servers * 3:
    kind, _, _, _, place = socket.getaddrinfo(server, 7009, type=socket.SOCK_DGRAM)[0]
    flow = socket.socket(kind, socket.SOCK_DGRAM)
    flow.connect(place)
    flows.append(flow)
number = 0
print('sending', flush=True)
while not os.path.exists(end):
    for at, flow in enumerate(flows): flow.send(b'%d %d' % (at, number))
    number += 1
    time.sleep(0.001)
time.sleep(0.5)
for flow in flows: flow.send(b'end')
print('sent:', number * len(flows), flush=True)
";

/// Takes them, and prints how many came, how many of them not in order, and how many source ports the
/// flows had.
const TAKEN: &str = "
import socket
s = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 24)
s.bind(('::', 7009))
s.settimeout(20)
print('ready', flush=True)
last, came, disorder, sources = {}, 0, 0, set()
while True:
    data, source = s.recvfrom(100)
    if data == b'end': break
    at, number = map(int, data.split())
    came += 1
    if number != last.get(at, -1) + 1: disorder += 1
    last[at] = number
    sources.add(source[:2])
print('came:', came, 'disorder:', disorder, 'sources:', len(sources), flush=True)
";

/// Looks again and again which tables the host's kernel has, until the file exists, and prints how often
/// none was the gateway's.
const TABLES: &str = "
looks=0 without=0
echo ready
while [ ! -e \"$1\" ]; do
    looks=$((looks + 1))
    nft list tables | grep -q stateway_ || without=$((without + 1))
done
echo looks: $looks without: $without
";

/// A router that masquerades, and the way to start another one like it.
fn strict_router(workers: u32, more: &str) -> Result<(StatewayLab, StatewaySpec)> {
    let rules = nat_rules(&[], "masquerade") + STRICT;
    let spec = router_spec(workers)?;
    let spec = StatewaySpec { ruleset: Some(rules), more: more.to_owned(), ..spec };
    let lab = start(spec.clone())?;
    lab.server().ip(&["route del 192.0.2.0/24", "route del 2001:db8:1::/64"])?;
    // The other one reads the same file, because nft would now print the gateway's table too.
    let file = format!("\n[rules]\nfile = \"{}/rules.json\"\n", Namespace::SCRATCH);
    let spec = StatewaySpec { ruleset: None, more: more.to_owned() + &file, ..spec };
    Ok((lab, spec))
}

/// Starts a new process that takes over.
fn take_over(lab: &Lab, spec: &StatewaySpec) -> Result<Stateway> {
    Stateway::spawn(lab.gateway(), spec, &Placement::free(), &["--take-over"])
}

/// Traffic through a gateway.
struct Traffic {
    talks: Background,
    numbered: Background,
    taken: Background,
    tables: Background,
    _echo: Background,
}

const END: &str = "/dev/shm/end";

impl Traffic {
    fn start(lab: &Lab) -> Result<Self> {
        let _echo = echo(lab.server(), 7000)?;
        let taken = ready(lab.on_server("python3").args(["-c", TAKEN]))?;
        let [v4, v6] = FAMILIES.map(|family| lab.server_address(family).to_string());
        let half = (CONNECTIONS / 2).to_string();
        let mut talks =
            lab.on_client("python3").args(["-c", TALKS, END, &half, &v4, &v6]).spawn()?;
        talks.wait_for_text("talking")?;
        let mut numbered =
            lab.on_client("python3").args(["-c", NUMBERED, END, &v4, &v6]).spawn()?;
        numbered.wait_for_text("sending")?;
        let tables = ready(lab.gateway().program("sh").args(["-c", TABLES, "sh", END]))?;
        Ok(Self { talks, numbered, taken, tables, _echo })
    }

    /// Ends it, and returns the number of numbered datagrams. Nothing was lost, nothing came twice or out of order, no connection ended, and the
    /// kernel has forwarded nothing.
    fn finish(self, lab: &Lab) -> Result<u64> {
        lab.client().write_file("end", b"")?;
        lab.gateway().write_file("end", b"")?;
        let talks = self.talks.finish()?.stdout;
        assert_eq!(talks.lines().last(), Some(&*format!("well: {CONNECTIONS}")), "{talks}");
        let sent = self.numbered.finish()?.stdout;
        let sent = sent.lines().last().and_then(|it| it.strip_prefix("sent: ")).expect("a number");
        let came = self.taken.finish()?.stdout;
        let expected = format!("came: {sent} disorder: 0 sources: 6");
        assert_eq!(came.lines().last(), Some(&*expected));
        let tables = self.tables.finish()?.stdout;
        println!("{expected}; {tables}");
        assert!(tables.trim_end().ends_with("without: 0"), "{tables}");
        for host in [lab.client(), lab.server()] {
            assert_eq!(snmp(host, "Tcp: ", "OutRsts")?, 0, "{}", host.name());
        }
        assert_eq!(snmp(lab.gateway(), "Ip: ", "ForwDatagrams")?, 0, "the kernel forwarded");
        Ok(sent.parse().expect("a number"))
    }
}

/// A counter of the kernel.
fn snmp(host: &Namespace, group: &str, name: &str) -> Result<u64> {
    let text = host.program("cat").args(["/proc/net/snmp"]).check()?;
    let mut lines = text.lines().filter(|line| line.starts_with(group));
    let (names, values) = (lines.next().unwrap(), lines.next().unwrap());
    let mut both = names.split(' ').zip(values.split(' '));
    let (_, value) = both.find(|(found, _)| *found == name).expect("the kernel has this counter");
    Ok(value.parse().expect("a number"))
}

/// The connections of TCP and UDP, each with its translation.
fn flows(gateway: &Stateway) -> Result<BTreeSet<String>> {
    let list = gateway.command(&["conntrack", "list", "-o", "conntrack"]).check()?;
    let flows = list.lines().filter(|line| line.starts_with("tcp") || line.starts_with("udp"));
    // The time that is left differs, and a flow of UDP is assured after a while.
    let steady = |line: &str| Some(line[line.find("src=")?..].replace("[ASSURED] ", ""));
    Ok(flows.filter_map(steady).collect())
}

/// The gateway of the lab hands over to one with so many workers.
fn hand_over(mut lab: StatewayLab, spec: &StatewaySpec) -> Result<StatewayLab> {
    let old = lab.take_stateway().expect("the lab has a Stateway");
    let mut new = take_over(&lab, spec)?;
    let is_ready = new.wait_for_text("stateway: ready");
    println!("new:\n{}\nold:\n{}", new.log(), old.log());
    is_ready?;
    let ended = old.finish()?;
    assert_eq!(ended.code, Some(0), "{}", ended.stdout);
    assert!(ended.stdout.contains("handed over to a new process"), "{}", ended.stdout);
    lab.put_stateway(new);
    Ok(lab)
}

#[test]
fn an_upgrade_loses_no_packet_and_no_connection() {
    beside_others(|| {
        let (lab, spec) = strict_router(2, "")?;
        let traffic = Traffic::start(&lab)?;
        let before = flows(stateway(&lab))?;
        let mut lab = hand_over(lab, &spec)?;
        let tables = lab.gateway().program("nft").args(["list", "tables"]).check()?;
        assert_eq!(own_tables(&tables).len(), 1, "{tables}");
        assert_eq!(flows(stateway(&lab))?, before);
        // And once more, with other numbers of workers and buckets.
        for (workers, buckets) in [(1, 64), (3, 512)] {
            let gateway = format!("buckets = {buckets}\n");
            let spec = StatewaySpec { workers, gateway, ..spec.clone() };
            lab = hand_over(lab, &spec)?;
            assert_eq!(flows(stateway(&lab))?, before);
        }
        let sent = traffic.finish(&lab)?;
        // Six more have said the end. Half of all come over IPv4.
        let list = stateway(&lab).command(&["rules", "list"]).check()?;
        for counted in [
            format!("udp dport 7009 counter packets {}", sent + 6),
            format!("192.0.2.1 counter packets {}", sent / 2 + 3),
        ] {
            assert!(list.contains(&counted), "no {counted} in {list}");
        }
        assert!(list.contains("used "), "{list}");
        stop_cleanly(&mut lab)
    });
}

#[test]
fn a_bridge_hands_over_as_a_router_does() {
    beside_others(|| {
        let spec = StatewaySpec { interface: "rx_queues = 2\n".to_owned(), ..bridge_spec(2)? };
        let lab = start(spec.clone())?;
        let traffic = Traffic::start(&lab)?;
        let before = flows(stateway(&lab))?;
        let spec = StatewaySpec { workers: 1, ..spec };
        let mut lab = hand_over(lab, &spec)?;
        assert_eq!(flows(stateway(&lab))?, before);
        traffic.finish(&lab)?;
        stop_cleanly(&mut lab)
    });
}

/// The numbered datagrams are in the lane for latency, and the rest is in that for bulk.
#[test]
fn a_device_with_lanes_hands_over_both_of_its_queues() {
    beside_others(|| {
        let interface = "policy = \"mix\"\n".to_owned();
        let more = "[[selector]]\nservice = \"latency\"\nport = 7009\n".to_owned();
        let spec = StatewaySpec { interface, more, ..bridge_spec(2)? };
        let mut lab = start(spec.clone())?;
        let traffic = Traffic::start(&lab)?;
        // A new process has the queues of the former one, whatever its own file says.
        let without = StatewaySpec { more: String::new(), ..spec.clone() };
        for next in [&spec, &without, &StatewaySpec { workers: 1, ..spec.clone() }] {
            lab = hand_over(lab, next)?;
            soon("packets in both lanes", || {
                let lanes = &stateway(&lab).query(&["status"])?["ports"][0]["lanes"];
                let received = |lane: &str| lanes[lane]["received"].as_u64() > Some(0);
                Ok(received("latency") && received("bulk"))
            })?;
            let explained = stateway(&lab).query(&["policy", "explain", "lan0"])?;
            assert_eq!(explained["lanes"], "of_former_process", "{explained}");
        }
        traffic.finish(&lab)?;
        stop_cleanly(&mut lab)
    });
}

/// The third host must not see what the first two say to each other, also after the hand-over, and with
/// the ports in another order.
#[test]
fn a_bridge_that_takes_over_knows_the_stations() {
    beside_others(|| {
        let segment = Segment::new(["lan0", "wan0", "dmz0"])?;
        let old = segment.stateway(bridge_spec(2)?)?;
        let [one, _, three] = &segment.hosts;
        let ping = || one.program("ping").args(["-c1", "-W5", "192.0.2.2"]).check();
        ping()?;
        let interfaces = ["dmz0", "lan0", "wan0"].map(str::to_owned).to_vec();
        let spec = StatewaySpec { interfaces, ..bridge_spec(1)? };
        let free = Placement::free();
        let mut new = Stateway::spawn(&segment.gateway, &spec, &free, &["--take-over"])?;
        new.wait_for_text("stateway: ready")?;
        assert_eq!(old.finish()?.code, Some(0));
        let listening = listen(three)?;
        let stations = [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]];
        let packet =
            PacketBuilder::v4([192, 0, 2, 1], [192, 0, 2, 2]).macs(stations[0], stations[1]);
        let mut frame = Vec::new();
        packet.udp(1000, 9, b"for the second host alone", &mut frame);
        send_frames(one, &[frame])?;
        ping()?;
        let seen = frames(listening)?;
        let strange: Vec<_> = seen.iter().filter(|it| it.starts_with(&stations[1])).collect();
        assert!(strange.is_empty(), "{strange:?}");
        assert_eq!(new.stop()?.code, Some(0));
        Ok(())
    });
}

/// The bug of an interface that was down and forbade an upgrade.
#[test]
fn a_gateway_hands_over_while_an_interface_is_down_or_has_gone() {
    beside_others(|| {
        let ports = ["lan0", "wan0", "dmz0"];
        let segment = Segment::new(ports)?;
        let mut old = segment.stateway(bridge_spec(2)?)?;
        let [one, _, three] = &segment.hosts;
        let ping = |to: &str| one.program("ping").args(["-c1", "-W1", to]).run();
        let is_up = |gateway: &Stateway| -> Result<bool> {
            Ok(gateway.query(&["status"])?["ports"][2]["up"] == true)
        };
        let interfaces = ports.map(str::to_owned).to_vec();
        let spec = StatewaySpec { interfaces, ..bridge_spec(1)? };
        for gone in [false, true] {
            let away = if gone { "link del dmz0" } else { "link set dmz0 down" };
            segment.gateway.ip(&[away])?;
            soon("the interface is away", || Ok(!is_up(&old)?))?;
            let free = Placement::free();
            let mut new = Stateway::spawn(&segment.gateway, &spec, &free, &["--take-over"])?;
            let is_ready = new.wait_for_text("stateway: ready");
            println!("old:\n{}\nnew:\n{}", old.log(), new.log());
            is_ready?;
            assert_eq!(old.finish()?.code, Some(0));
            assert_eq!(ping("192.0.2.2")?.code, Some(0));
            if gone {
                segment.gateway.join("dmz0", three, "eth0")?;
                three.ip(&["addr add 192.0.2.3/24 dev eth0"])?;
            } else {
                segment.gateway.ip(&["link set dmz0 up"])?;
            }
            soon("the interface is back", || is_up(&new))?;
            soon("packets by it", || Ok(ping("192.0.2.3")?.code == Some(0)))?;
            old = new;
        }
        assert_eq!(old.stop()?.code, Some(0));
        Ok(())
    });
}

#[test]
fn a_gateway_that_differs_is_refused_and_says_in_what() {
    beside_others(|| {
        let (lab, spec) = strict_router(2, "")?;
        let rules = format!("{}/rules.json", Namespace::SCRATCH);
        let third = ["link add third0 type veth peer name third1", "link set third0 up"];
        lab.gateway().ip(&third)?;
        let other = StatewaySpec {
            interface: "rx_queues = 2\n".to_owned(),
            interfaces: vec!["lan0".to_owned(), "third0".to_owned()],
            more: String::new(),
            ..spec.clone()
        };
        let said = take_over(&lab, &other)?.finish()?;
        assert_eq!(said.code, Some(2), "{said:?}");
        for part in ["2 here", "third0 is none", "has interface wan0", "other rules in force"] {
            assert!(said.stdout.contains(part), "no {part} in {}", said.stdout);
        }
        // Other rules are for an operator to allow.
        let without = StatewaySpec { more: String::new(), ..spec.clone() };
        let said = take_over(&lab, &without)?.finish()?;
        assert_eq!(said.code, Some(2), "{said:?}");
        assert!(said.stdout.contains("--other-rules"), "{}", said.stdout);
        let said = take_over(&lab, &StatewaySpec { routed: false, ..spec.clone() })?.finish()?;
        assert_eq!(said.code, Some(2), "{said:?}");
        assert!(said.stdout.contains("mode"), "{}", said.stdout);
        // Connections that have no place in the new process keep the old one.
        let traffic = Traffic::start(&lab)?;
        let before = flows(stateway(&lab))?;
        let few = format!("\n[tunables]\nnf_conntrack_max = 10\n\n[rules]\nfile = \"{rules}\"\n");
        let said = take_over(&lab, &StatewaySpec { more: few, ..spec })?.finish()?;
        assert_eq!(said.code, Some(1), "{said:?}");
        assert!(said.stdout.contains("the table is full (nf_conntrack_max)"), "{}", said.stdout);
        assert_eq!(flows(stateway(&lab))?, before);
        // Without a gateway there is nothing to take over.
        traffic.finish(&lab)?;
        let mut lab = lab;
        stop_cleanly(&mut lab)?;
        let said = take_over(&lab, &router_spec(1)?)?.finish()?;
        assert_eq!(said.code, Some(2), "{said:?}");
        assert!(said.stdout.contains("start without --take-over"), "{}", said.stdout);
        Ok(())
    });
}

/// Opens connections of UDP, so many from each of ten ports.
const MANY: &str = "
import socket, sys, time
server, count = sys.argv[1], int(sys.argv[2])
for _ in range(10):
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    for port in range(10000, 10000 + count):
        s.sendto(b'x', (server, port))
        if port % 100 == 0: time.sleep(0.001)
print('opened', flush=True)
";

/// The server says nothing to the datagrams.
const SILENT: &str = "
table inet silent {
    chain in {
        type filter hook prerouting priority -300; policy accept;
        udp dport 10000-19999 drop
    }
}";

/// Prints how long nothing is forwarded while a gateway with many connections hands over.
#[test]
fn an_upgrade_with_100_000_connections_is_short() {
    alone(|| {
        let more = "\n[tunables]\nnf_conntrack_udp_timeout = 600\n";
        let (lab, spec) = strict_router(2, more)?;
        lab.server().load_rules(SILENT)?;
        let server = lab.server_address(Family::V4).to_string();
        let traffic = Traffic::start(&lab)?;
        // A busy machine may lose some.
        for _ in 0..3 {
            let many = lab.on_client("python3").args(["-c", MANY, &server, "10000"]);
            many.limit(Duration::from_secs(60)).check()?;
        }
        let before = connections(stateway(&lab))?;
        assert!(before >= 100_000, "{before}");
        let mut lab = lab;
        for _ in 0..3 {
            lab = hand_over(lab, &spec)?;
            assert_eq!(connections(stateway(&lab))?, before);
        }
        traffic.finish(&lab)?;
        stop_cleanly(&mut lab)
    });
}

/// Begins to get a file with an active and with a passive data connection. When the file `end` exists,
/// it gets the rest, and the file once more in both ways.
const FTP: &str = "
sessions = [session(passive) for passive in (False, True)]
open_now = [ftp.transfercmd('RETR payload.bin') for ftp in sessions]
begun = [len(connection.recv(1000)) for connection in open_now]
waiting = session(False)
listener = waiting.makeport()
print('talking', flush=True)
while not os.path.exists(end): time.sleep(0.05)
got = [a + read(ftp, it) for a, ftp, it in zip(begun, sessions, open_now)]
got += [read(ftp, ftp.transfercmd('RETR payload.bin')) for ftp in sessions]
waiting.sendcmd('RETR payload.bin')
got += [read(waiting, listener.accept()[0])]
print('got:', *got, flush=True)
";
/// Length of a file in bytes: more than buffers hold.
const BYTES: usize = 8_000_000;

#[test]
fn both_gateways_of_a_pair_are_upgraded_and_each_has_all_of_the_other_one() {
    beside_others(|| {
        let cluster = Cluster::new()?;
        let ([one, two], _keepalived) = cluster.with_keepalived(STRICT_NAT)?;
        let _echo = echo(&cluster.server, 7000)?;
        cluster.server.write_file("payload.bin", &vec![7; BYTES])?;
        let _files = ftp_server(cluster.server.program(PYTHON), Cluster::SERVERS[0])?;
        let half = (CONNECTIONS / 2).to_string();
        let [v4, v6] = Cluster::SERVERS;
        let talks = cluster.python(TALKS, &[&half, v4, v6], "talking")?;
        let transfer = cluster.python(&(FTP_SESSIONS.to_owned() + FTP), &[v4], "talking")?;
        let stream = cluster.stream()?;
        let before = flows(&one)?;
        let take_over = |router: usize| {
            let mut new = cluster.take_over(router, "")?;
            new.wait_for_text("stateway: ready").map(|()| new)
        };
        let settle = |active: &Stateway, standby: &Stateway| {
            wait_for(active, "/role", "active")?;
            wait_for(active, "/presence", "there")?;
            wait_for(standby, "/role", "standby")?;
            wait_for(standby, "/inflow/state", "level")?;
            wait_until(active, "nothing here that the peer owns", |it| it["copies"] == 0)?;
            wait_until(standby, "all here", |it| it["copies"].as_u64() >= Some(before.len() as u64))
        };
        // State sync goes on if nobody takes over.
        let few = "[tunables]\nnf_conntrack_max = 10\n\n";
        let refused = cluster.take_over(0, few)?.finish()?;
        assert!(refused.stdout.contains("the table is full"), "{refused:?}");
        settle(&one, &two)?;
        assert_eq!((flows(&one)?, flows(&two)?), (before.clone(), before.clone()));
        let new_one = take_over(0)?;
        println!("old:\n{}\nnew:\n{}", one.finish()?.stdout, new_one.log());
        assert_eq!(flows(&new_one)?, before);
        settle(&new_one, &two)?;
        // Without the link between the two, and it comes back.
        cluster.routers[1].ip(&["link set sync0 down"])?;
        let new_two = take_over(1)?;
        wait_for(&new_two, "/presence", "unknown")?;
        cluster.routers[1].ip(&["link set sync0 up"])?;
        println!("old:\n{}\nnew:\n{}", two.finish()?.stdout, new_two.log());
        settle(&new_one, &new_two)?;
        assert_eq!(flows(&new_two)?, before);
        // The standby takes over, as ever.
        cluster.set_back(0, true)?;
        wait_for(&new_two, "/role", "active")?;
        std::thread::sleep(Duration::from_millis(500));
        cluster.end_scripts()?;
        let (talks, transfer) = (talks.finish()?.stdout, transfer.finish()?.stdout);
        let losses = stream.finish(&cluster)?;
        println!("{losses}");
        assert_eq!(talks.lines().last(), Some(&*format!("well: {CONNECTIONS}")), "{talks}");
        let got = [BYTES; 5].map(|it| it.to_string()).join(" ");
        assert_eq!(transfer.lines().last(), Some(&*format!("got: {got}")), "{transfer}");
        assert_eq!((losses.ports, losses.lost, losses.resets), (1, 0, 0), "{losses:?}");
        new_one.stop()?;
        new_two.stop()?;
        Ok(())
    });
}
