//! A bridge between three links, while a host on one of them sends from invented MAC addresses.

use lab::{Result, Stateway, at_pace, ping};
use wire::build::PacketBuilder;

use crate::scenario::{Segment, alone, bridge_spec, frames, listen, stateway_binary};

/// The number of invented MAC addresses, more than twice what a gateway remembers, and their rate
/// per second.
const MADE_UP: u32 = 40_000;
const RATE: u32 = 20_000;
const PORTS: [&str; 3] = ["lan0", "wan0", "opt0"];
/// The MAC addresses that the first two hosts take when the table is full.
const STATIONS: [[u8; 6]; 2] = [[0, 0, 0x5e, 0, 0x53, 1], [0, 0, 0x5e, 0, 0x53, 2]];

/// A packet of one flow from the invented MAC address with this number.
fn made_up(number: u32) -> Vec<u8> {
    let [a, b, c, d] = number.to_be_bytes();
    let mut frame = Vec::new();
    PacketBuilder::v4([192, 0, 2, 3], [192, 0, 2, 1])
        .macs([2, 1, a, b, c, d], STATIONS[0])
        .udp(9, 9, b"made up", &mut frame);
    frame
}

fn received(gateway: &Stateway, port: usize) -> Result<u64> {
    let status = gateway.query(&["status"])?;
    Ok(status["ports"][port]["received"].as_u64().expect("a number"))
}

#[test]
fn an_attacker_that_makes_up_stations_receives_no_unicast_of_others() {
    alone(|| {
        let binary = stateway_binary()?;
        let segment = Segment::new(PORTS)?;
        let [client, server, attacker] = &segment.hosts;
        // Each worker learns separately, so only one runs and sees every frame.
        let stateway = segment.stateway(bridge_spec(1)?)?;
        let heard = listen(attacker)?;

        let flood: Vec<_> = (0..MADE_UP).map(made_up).collect();
        let file = attacker.write_file("flood", at_pace(&flood, RATE).bytes())?;
        let flood = || {
            let program = attacker.program(&binary.to_string_lossy());
            program.args(["lab-traffic", "send", &file, "--interface", "eth0"]).spawn()
        };
        flood()?.finish()?;
        let received = received(&stateway, 2)?;
        assert!(received > u64::from(MADE_UP) / 2, "{received} frames fill no table");
        // These two addresses appear only now, while the flood goes on.
        for (number, host) in [(1, client), (2, server)] {
            host.ip(&[&format!("link set eth0 address 00:00:5e:00:53:0{number}")])?;
        }
        let flood = flood()?;
        let answered = ping(client.program("ping"), "192.0.2.2".parse().unwrap(), 50)?;
        assert_eq!((answered.sent, answered.received), (50, 50));
        flood.finish()?;

        let is_theirs = |frame: &&Vec<u8>| {
            STATIONS.iter().any(|it| frame[..6] == *it)
                && STATIONS.iter().any(|it| frame[6..12] == *it)
        };
        let heard = frames(heard)?;
        let theirs = heard.iter().filter(is_theirs).count();
        assert_eq!(theirs, 0, "frames between the two hosts");
        assert!(heard.iter().any(|frame| frame[..6] == [0xff; 6]), "it hears who asks everybody");
        assert_eq!(ping(server.program("ping"), "192.0.2.1".parse().unwrap(), 5)?.received, 5);
        let output = stateway.stop()?;
        assert_eq!(output.code, Some(0), "log of stateway:\n{}", output.stdout);
        Ok(())
    });
}
