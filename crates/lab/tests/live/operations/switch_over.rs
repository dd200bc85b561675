//! Two routers with state sync whose parts change while both live, and whose link or standby fails.

use std::thread::sleep;
use std::time::Duration;

use lab::{Background, Result, Stateway};

use crate::scenario::cluster::{
    Cluster, Losses, STRICT_NAT, Stream, connections, refused, wait_for, wait_until,
};
use crate::scenario::{TALKS, alone, beside_others, echo, soon};

/// Connections of TCP that carry data meanwhile, half of each family.
const CONNECTIONS: usize = 20;

/// Traffic through a cluster: connections of TCP, and datagrams that are counted.
struct Traffic {
    talks: Background,
    stream: Stream,
    _echo: Background,
}

impl Traffic {
    fn start(cluster: &Cluster) -> Result<Self> {
        let _echo = echo(&cluster.server, 7000)?;
        let [v4, v6] = Cluster::SERVERS;
        let half = (CONNECTIONS / 2).to_string();
        let talks = cluster.python(TALKS, &[&half, v4, v6], "talking")?;
        Ok(Self { talks, stream: cluster.stream()?, _echo })
    }

    /// Ends it. No connection has been lost, and none was reset.
    fn finish(self, cluster: &Cluster) -> Result<Losses> {
        cluster.end_scripts()?;
        let talks = self.talks.finish()?.stdout;
        let losses = self.stream.finish(cluster)?;
        println!("{losses}");
        assert_eq!(talks.lines().last(), Some(&*format!("well: {CONNECTIONS}")), "{talks}");
        assert_eq!((losses.ports, losses.lost_at_the_end, losses.resets), (1, 0, 0), "{losses:?}");
        Ok(losses)
    }
}

fn tell(what: &str, gateways: [&Stateway; 2]) -> Result<()> {
    for (name, gateway) in ["first", "second"].iter().zip(gateways) {
        let (count, refused) = (connections(gateway)?, refused(gateway)?);
        println!("{what}: the {name} gateway has {count} connections and has refused {refused:?}");
    }
    Ok(())
}

/// Waits until one is active, and the other one, on standby, has its connections.
fn wait_for_parts(active: &Stateway, standby: &Stateway) -> Result<()> {
    wait_for(active, "/role", "active")?;
    wait_for(standby, "/role", "standby")?;
    wait_for(standby, "/inflow/state", "level")?;
    wait_until(active, "nothing here that the peer owns", |status| status["copies"] == 0)
}

#[test]
fn an_orderly_switch_and_the_way_back_lose_no_packet() {
    // It counts each datagram.
    alone(|| {
        let cluster = Cluster::new()?;
        let ([one, two], _keepalived) = cluster.with_keepalived(STRICT_NAT)?;
        let traffic = Traffic::start(&cluster)?;
        tell("before", [&one, &two])?;
        cluster.set_back(0, true)?;
        wait_for_parts(&two, &one)?;
        tell("after the switch", [&one, &two])?;
        cluster.set_back(0, false)?;
        wait_for_parts(&one, &two)?;
        tell("after the way back", [&one, &two])?;
        let losses = traffic.finish(&cluster)?;
        assert_eq!(losses.lost, 0, "{losses:?}");
        one.stop()?;
        two.stop()?;
        Ok(())
    });
}

#[test]
fn a_cut_link_between_the_gateways_costs_nothing() {
    // It counts each datagram.
    alone(|| {
        let cluster = Cluster::new()?;
        let ([one, two], _keepalived) = cluster.with_keepalived(STRICT_NAT)?;
        let traffic = Traffic::start(&cluster)?;
        cluster.routers[0].ip(&["link set sync0 down"])?;
        wait_for(&one, "/presence", "away")?;
        wait_for(&two, "/presence", "away")?;
        // Connections that begin and end meanwhile.
        let more = cluster.python(TALKS, &["5", Cluster::SERVERS[0]], "talking")?;
        tell("while the link is cut", [&one, &two])?;
        cluster.routers[0].ip(&["link set sync0 up"])?;
        wait_until(&two, "level and there", |status| {
            status["presence"] == "there" && status["inflow"]["state"] == "level"
        })?;
        wait_for_parts(&one, &two)?;
        tell("after it was healed", [&one, &two])?;
        // All go on at the other one, also those that have begun meanwhile.
        cluster.set_back(0, true)?;
        wait_for_parts(&two, &one)?;
        sleep(Duration::from_millis(500));
        let losses = traffic.finish(&cluster)?;
        let more = more.finish()?.stdout;
        assert_eq!(more.lines().last(), Some("well: 5"), "{more}");
        assert_eq!(losses.lost, 0, "{losses:?}");
        one.stop()?;
        two.stop()?;
        Ok(())
    });
}

#[test]
fn a_standby_that_starts_anew_takes_over_all_the_same() {
    beside_others(|| {
        let cluster = Cluster::new()?;
        let ([one, two], _keepalived) = cluster.with_keepalived(STRICT_NAT)?;
        let traffic = Traffic::start(&cluster)?;
        two.stop()?;
        let two = cluster.start(1, STRICT_NAT, "")?;
        wait_for_parts(&one, &two)?;
        tell("after the standby has started anew", [&one, &two])?;
        let all = connections(&one)?;
        assert!(all >= CONNECTIONS as u64, "{all}");
        cluster.crash(0)?;
        wait_for(&two, "/role", "active")?;
        sleep(Duration::from_secs(2));
        traffic.finish(&cluster)?;
        println!("refused by the second gateway: {:?}", refused(&two)?);
        two.stop()?;
        Ok(())
    });
}

/// Opens connections one after the other.
const OPENS: &str = "
import socket, sys
_, server = sys.argv[1:]
for _ in range(2):
    with socket.create_connection((server, 7000), timeout=20) as s:
        s.sendall(b'x')
        assert s.recv(10) == b'x'
print('opened', flush=True)
";

/// Opens two connections whose packets leave by one gateway and whose answers come by the other one.
/// Both are strict. Returns the number of answers that the second one has refused, and the first one.
fn open_asymmetrically(sync: &str) -> Result<(u64, Stateway)> {
    let cluster = Cluster::new()?;
    let strict = &STRICT_NAT[STRICT_NAT.find("table inet").expect("it is there")..];
    let gateways = [cluster.start(0, strict, sync)?, cluster.start(1, strict, sync)?];
    for gateway in &gateways {
        gateway.command(&["ha", "active"]).check()?;
    }
    for gateway in &gateways {
        wait_for(gateway, "/inflow/state", "level")?;
        wait_for(gateway, "/outflow/state", "level")?;
    }
    cluster.client.ip(&["route replace default via 198.51.100.2"])?;
    cluster.server.ip(&["route add 198.51.100.0/24 via 192.0.2.3"])?;
    let _echo = echo(&cluster.server, 7000)?;
    cluster.python(OPENS, &[Cluster::SERVERS[0]], "opened")?.finish()?;
    let [one, two] = gateways;
    let by_rules = refused(&two)?.into_iter().find(|(name, _)| name == "rule_refused");
    two.stop()?;
    Ok((by_rules.map_or(0, |(_, count)| count), one))
}

#[test]
fn asymmetric_connections_open_at_once_if_first_packets_wait_for_the_peer() {
    beside_others(|| {
        let (refused, one) = open_asymmetrically("")?;
        println!("without: {refused} answers refused");
        one.stop()?;
        // The limit is high, because the machine may be busy.
        let (refused, one) = open_asymmetrically("defer_ms = 1000\n")?;
        assert_eq!(refused, 0);
        let status = one.query(&["sync", "status"])?;
        let counted = |name: &str| status["counters"][name].as_u64();
        assert_eq!(counted("deferred_packets"), Some(2), "{status}");
        assert_eq!(counted("deferred_acknowledged"), Some(2), "{status}");
        one.stop()?;
        Ok(())
    });
}

#[test]
fn peers_compare_the_rules_that_are_in_force() {
    beside_others(|| {
        let cluster = Cluster::new()?;
        let gateways = [cluster.start(0, STRICT_NAT, "")?, cluster.start(1, STRICT_NAT, "")?];
        let differ = |differ: bool| {
            for gateway in &gateways {
                let what = if differ { "rules that differ" } else { "no difference" };
                wait_until(gateway, what, |status| {
                    let found = status["differences"].as_array().expect("a list");
                    let names: Vec<_> = found.iter().map(|it| it["what"].as_str()).collect();
                    status["agreement"] == "together"
                        && names == if differ { vec![Some("rules")] } else { vec![] }
                })?;
            }
            Ok(())
        };
        differ(false)?;
        let other = format!(
            "{STRICT_NAT}\ntable inet more {{\n set bad {{ type ipv4_addr; }}\n chain c {{ type filter hook forward priority 1; ip saddr @bad drop; }}\n}}"
        );
        let other = cluster.client.printed_rules(&other)?;
        let add = ["rules", "element", "add", "inet", "more", "bad", "192.0.2.7"];
        for is_first in [true, false] {
            let number = usize::from(!is_first);
            let file = cluster.routers[number].write_file("other.json", other.as_bytes())?;
            gateways[number].command(&["rules", "load", &file]).check()?;
            differ(is_first)?;
        }
        for is_first in [true, false] {
            gateways[usize::from(!is_first)].command(&add).check()?;
            differ(is_first)?;
        }
        let [one, two] = gateways;
        one.stop()?;
        two.stop()?;
        Ok(())
    });
}

/// The bug of a socket on an interface that had been deleted, and of pfsync that a new process without
/// the interface did not begin.
#[test]
fn state_sync_goes_on_when_its_interface_is_deleted_and_made_anew() {
    beside_others(|| {
        let pfsync = "protocol = \"pfsync\"\nversion = 1400\ninterface = \"sync0\"\n";
        for is_native in [true, false] {
            let cluster = Cluster::new()?;
            let sync = |router| match is_native {
                true => cluster.sync(router),
                false => Ok(pfsync.to_owned()),
            };
            let start = |router| cluster.start_with(router, STRICT_NAT, &sync(router)?);
            let [one, two] = [start(0)?, start(1)?];
            one.command(&["ha", "active"]).check()?;
            let addresses = ["addr add 198.51.100.1/24 dev lan0", "addr add 192.0.2.1/24 dev wan0"];
            cluster.routers[0].ip(&addresses)?;
            let opens = |count: &str| {
                let ping = ["-c", count, "-i", "0.2", "-W", "1", Cluster::SERVERS[0]];
                cluster.client.program("ping").args(ping).run().map(drop)
            };
            let has_copies = |gateway: &Stateway| {
                soon("copies", || {
                    opens("1")?;
                    Ok(gateway.query(&["sync", "status"])?["copies"].as_u64() > Some(0))
                })
            };
            has_copies(&two)?;
            cluster.routers[0].ip(&["link del sync0"])?;
            let config = format!("[sync]\n{}", sync(1)?);
            let mut new_two = cluster.take_over_with(1, &config)?;
            let is_ready = new_two.wait_for_text("stateway: ready");
            println!("old:\n{}\nnew:\n{}", two.finish()?.stdout, new_two.log());
            is_ready?;
            // Each looks once a second.
            soon("both miss it", || {
                let misses = |gateway: &Stateway| gateway.log().contains("no interface sync0");
                Ok(misses(&one) && misses(&new_two))
            })?;
            cluster.join_sync()?;
            new_two.command(&["conntrack", "-F"]).check()?;
            has_copies(&new_two)?;
            for gateway in [one, new_two] {
                println!("{}", gateway.stop()?.stdout);
            }
        }
        Ok(())
    });
}
