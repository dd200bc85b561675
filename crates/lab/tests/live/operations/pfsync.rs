//! Two routers that speak pfsync, of which the other one takes over because the first one has died.

use lab::{Background, Capture, Namespace, Result, Stateway};
use serde_json::Value;

use crate::scenario::cluster::{Cluster, STRICT_NAT, connections, refused, wait_for, wait_until};
use crate::scenario::{TALKS, beside_others, echo};

/// Connections of TCP that carry data meanwhile, half of each family.
const CONNECTIONS: usize = 20;
/// The capture of the sync link.
const CAPTURE: &str = "sync.pcap";
/// The protocol's number.
const PFSYNC: u8 = 240;
const ETHERNET_BYTES: usize = 14;

/// Begins to capture pfsync on the sync link of a router.
fn listen(router: &Namespace) -> Result<Background> {
    let file = format!("{}/{CAPTURE}", Namespace::SCRATCH);
    let mut tcpdump = router
        .program("tcpdump")
        .args(["-i", "sync0", "-n", "-U", "-Z", "root", "-w", &file, "ip proto 240"])
        .spawn()?;
    tcpdump.wait_for_text("listening on")?;
    Ok(tcpdump)
}

fn counter(gateway: &Stateway, name: &str) -> Result<u64> {
    let status = gateway.query(&["sync", "status"])?;
    Ok(status["counters"][name].as_u64().unwrap_or_default())
}

/// Waits until the gateway has copies of so many connections.
fn wait_for_copies(gateway: &Stateway, least: u64) -> Result<()> {
    wait_until(gateway, "copies", |status: &Value| status["copies"].as_u64() >= Some(least))
}

/// Connections, of which those over IPv4 are translated, go on at the second router. Returns what was
/// captured.
fn fail_over(cluster: &Cluster, gateways: [Stateway; 2]) -> Result<Vec<Vec<u8>>> {
    let tcpdump = listen(&cluster.routers[1])?;
    let _keepers = cluster.keep_alive(&gateways)?;
    let [one, two] = gateways;
    let _echo = echo(&cluster.server, 7000)?;
    let half = (CONNECTIONS / 2).to_string();
    let [v4, v6] = Cluster::SERVERS;
    let talks = cluster.python(TALKS, &[&half, v4, v6], "talking")?;
    let stream = cluster.stream()?;
    wait_for_copies(&two, CONNECTIONS as u64 + 10)?;
    cluster.crash(0)?;
    wait_for(&two, "/role", "active")?;
    std::thread::sleep(std::time::Duration::from_secs(2));
    let after = connections(&two)?;
    cluster.end_scripts()?;
    let talks = talks.finish()?.stdout;
    let losses = stream.finish(cluster)?;
    println!("connections after: {after}; {losses}");
    println!("refused by the second gateway: {:?}", refused(&two)?);
    println!("sync: {}", two.query(&["sync", "status"])?);
    println!("log of the second gateway:\n{}", two.log());
    assert_eq!(talks.lines().last(), Some(&*format!("well: {CONNECTIONS}")), "{talks}");
    assert_eq!((losses.ports, losses.lost_at_the_end, losses.resets), (1, 0, 0), "{losses:?}");
    assert_eq!(counter(&two, "lost_ends")?, 0);
    two.stop()?;
    one.stop()?;
    tcpdump.terminate()?;
    let captured = std::fs::read(cluster.routers[1].scratch().join(CAPTURE)).expect("a capture");
    let frames = Capture::read(&captured).expect("a capture");
    Ok(frames.into_iter().map(<[u8]>::to_vec).collect())
}

#[test]
fn connections_go_on_over_pfsync_when_the_active_router_dies() {
    beside_others(|| {
        let cluster = Cluster::new()?;
        let sync = "protocol = \"pfsync\"\nversion = 1400\ninterface = \"sync0\"\n";
        let gateways =
            [cluster.start_with(0, STRICT_NAT, sync)?, cluster.start_with(1, STRICT_NAT, sync)?];
        let frames = fail_over(&cluster, gateways)?;
        assert!(frames.len() > 3, "{} frames", frames.len());
        for frame in &frames {
            let packet = &frame[ETHERNET_BYTES..];
            let [first, service, _, _, _, _, flags, _, ttl, protocol, ..] = *packet else {
                panic!("{packet:?}")
            };
            assert_eq!((first, service), (0x45, 0x10));
            assert_eq!((ttl, protocol, flags & 0x40), (255, PFSYNC, 0x40));
            assert_eq!(packet[16..20], [224, 0, 0, 240]);
            // The header version of FreeBSD.
            assert_eq!(packet[20], 5);
        }
        Ok(())
    });
}
