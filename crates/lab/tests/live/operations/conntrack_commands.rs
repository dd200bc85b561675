//! The commands for connections, beside the kernel's tool.

use std::thread;
use std::time::Duration;

use lab::{
    ConntrackLine, Family, HttpServer, Lab, Result, StatewaySpec, Tracking, kernel_conntrack, ping,
};

use crate::scenario::{
    beside_others, bridge, bridge_spec, kernel_router, start, stateway, stateway_binary,
    stop_cleanly, streams_are_assured, table,
};

/// The line of a download's connection, and the client's port.
fn line_of_download(
    lab: &Lab,
    family: Family,
    table: fn(&Lab) -> Result<Vec<ConntrackLine>>,
) -> Result<(ConntrackLine, u16)> {
    let server = HttpServer::start(lab, 1000)?;
    let mut tries = 3;
    loop {
        let port = server.download(lab, family)?.client_port;
        let lines = table(lab)?;
        let line = lines.iter().find(|line| line.original.ports == Some((port, 8080)));
        let line = line.unwrap_or_else(|| panic!("no port {port} in {lines:#?}"));
        tries -= 1;
        // A busy host may send its FIN twice, and gets a reset because the connection has ended.
        if tries == 0 || line.state.as_deref() != Some("CLOSE") {
            return Ok((line.clone(), port));
        }
    }
}

#[test]
fn the_table_reads_like_the_kernels() {
    beside_others(|| {
        stateway_binary()?;
        for family in [Family::V4, Family::V6] {
            let kernel = kernel_router(Tracking::Conntrack)?;
            let (mut expected, _) = line_of_download(&kernel, family, kernel_conntrack)?;
            let mut lab = bridge(2)?;
            let (line, port) = line_of_download(&lab, family, table)?;

            // The lines may differ only in the server's address and the client's port.
            for address in [&mut expected.original.destination, &mut expected.reply.source] {
                assert_eq!(*address, kernel.server_address(family));
                *address = lab.server_address(family);
            }
            expected.original.ports = Some((port, 8080));
            expected.reply.ports = Some((8080, port));
            assert_eq!(line, expected);
            stop_cleanly(&mut lab)?;
        }
        Ok(())
    });
}

/// Commands on one ICMP connection, in this order: each word for a table, filters that match
/// nothing, and masked marks.
const ASKED: [&str; 43] = [
    "-U -f ipv4 -m 0x37",
    "-U -f ipv4 -m 0x37",
    "-U -f ipv4 -m 067",
    "-U -f ipv4 -m 0X37 -t 25",
    "-U conntrack -f ipv4 -m 0x10/0xf0",
    "-U -f ipv4 -m 0x123/0xf",
    "-U -f ipv4 -m 0xff/0",
    "-U -f ipv4 -p icmp -m 5/0x0f",
    "-U -f ipv4 -m 12/0xffffffff",
    "-U -f ipv4 -m 077/010",
    "-U -f ipv4 -m 0/07",
    "-U -f ipv4 -m 4294967295/16",
    "-U -f ipv4 -m 9 -s 198.18.7.7",
    "-U -f ipv4 -m 9 -p udp",
    "-U expect -m 1",
    "-L",
    "-L conntrack",
    "-L -f ipv4 -s 198.18.7.7",
    "-L expect",
    "-L nosuch",
    "-C",
    "-C conntrack",
    "-C expect",
    "-C nosuch",
    "-S",
    "-S conntrack",
    "-S nosuch",
    "-E nosuch",
    "-D -f ipv4 -s 198.18.7.7",
    "-D conntrack -f ipv4 -p udp",
    "-D expect",
    "-D expect -s 198.18.7.7",
    "-D nosuch",
    "-F expect",
    "-F nosuch",
    "-D conntrack -f ipv4 -p icmp",
    "-D -f ipv4 -p icmp",
    "-U -f ipv4 -m 9",
    "-L",
    "-C",
    "-F",
    "-F conntrack",
    "-C",
];

#[test]
fn commands_end_as_those_of_the_kernels_tool() {
    beside_others(|| {
        stateway_binary()?;
        let kernel = kernel_router(Tracking::Conntrack)?;
        let mut lab = bridge(2)?;
        for lab in [&kernel, &*lab] {
            assert_eq!(ping(lab.on_client("ping"), lab.server_address(Family::V4), 1)?.received, 1);
        }
        let stateway = stateway(&lab);
        let mut marks = Vec::new();
        for asked in ASKED {
            let words: Vec<&str> = asked.split(' ').collect();
            let theirs = kernel.gateway().program("conntrack").args(&words).run()?;
            let ours = stateway.command(&[&["conntrack"], &words[..]].concat()).run()?;
            assert_eq!(ours.code, theirs.code, "{asked}: {ours:?} {theirs:?}");
            if asked.starts_with("-C") {
                assert_eq!(ours.stdout, theirs.stdout, "{asked}");
            }
            let listing = ["-L", "-f", "ipv4", "-p", "icmp"];
            let theirs = mark(&kernel.gateway().program("conntrack").args(listing).check()?);
            let listing = ["conntrack", "-L", "-p", "icmp", "-o", "conntrack"];
            assert_eq!(mark(&stateway.command(&listing).check()?), theirs, "{asked}");
            marks.extend(theirs);
        }
        marks.dedup();
        assert_eq!(marks.len(), 9, "each mask made another mark: {marks:?}");
        let nothing = ["conntrack", "-D", "-p", "icmp", "--json"];
        let nothing = stateway.command(&nothing).run()?;
        assert_eq!((nothing.code, nothing.stdout.contains("\"affected\":0")), (Some(1), true));
        stop_cleanly(&mut lab)
    });
}

/// The mark of the only listed connection.
fn mark(listed: &str) -> Option<String> {
    let mut words = listed.split_whitespace();
    words.find_map(|word| word.strip_prefix("mark=")).map(str::to_owned)
}

#[test]
fn streams_in_progress_are_established_and_assured() {
    beside_others(|| {
        let mut lab = bridge(2)?;
        streams_are_assured(&lab, table)?;
        stop_cleanly(&mut lab)
    });
}

/// The commands of the kernel's tool on connections in a zone.
#[test]
fn connections_of_a_zone_are_listed_marked_and_deleted() {
    beside_others(|| {
        let zone = "[[zone]]\nid = 7\ninterfaces = [\"lan0\", \"wan0\"]\nmax_connections = 100\n\
            [zone.timeouts]\nnf_conntrack_icmp_timeout = 77\n";
        let spec = StatewaySpec { more: zone.to_owned(), ..bridge_spec(2)? };
        let mut lab = start(spec)?;
        let server = lab.server_address(Family::V4);
        assert_eq!(ping(lab.on_client("ping"), server, 3)?.received, 3);
        let stateway = stateway(&lab);
        let icmp = |args: &[&str]| {
            stateway.command(&[&["conntrack"], args, &["-p", "icmp", "-w", "7"]].concat()).check()
        };
        let listed = icmp(&["-L", "-o", "conntrack"])?;
        assert!(listed.contains("zone=7") && listed.contains("mark=0"), "{listed}");
        let left: u32 = listed.split_whitespace().nth(2).and_then(|s| s.parse().ok()).unwrap();
        assert!((60..=77).contains(&left), "the zone's timeout: {listed}");
        icmp(&["-U", "-m", "0x10", "-t", "500"])?;
        let listed = icmp(&["-L", "-o", "conntrack"])?;
        assert!(listed.contains("mark=16"), "{listed}");
        let other = ["conntrack", "-L", "-o", "conntrack", "-w", "8"];
        assert_eq!(stateway.command(&other).check()?, "");
        icmp(&["-D"])?;
        assert_eq!(icmp(&["-L", "-o", "conntrack"])?, "");
        stop_cleanly(&mut lab)
    });
}

/// A download moves to another zone and back. The entry that it left in the first zone does not
/// have its current sequence numbers.
#[test]
fn a_connection_comes_back_to_a_zone_that_it_was_taken_from() {
    const BYTES: usize = 40_000_000;
    beside_others(|| {
        let mut lab = bridge(2)?;
        // With a larger window the whole file might be in flight or delivered when the zone
        // changes.
        let window = "net.ipv4.tcp_rmem=4096 131072 1000000";
        lab.client().sysctl([window])?;
        let server = HttpServer::start(&lab, BYTES)?;
        let stateway = stateway(&lab);
        let entries = || Ok::<_, lab::Error>(table(&lab)?.into_iter().filter(is_web).count());
        thread::scope(|scope| {
            // This takes some 10 s.
            let download = scope.spawn(|| server.download_at_rate(&lab, Family::V4, 4_000_000));
            thread::sleep(Duration::from_secs(1));
            assert_eq!(entries()?, 1);
            stateway.command(&["zone", "add", "5", "vlans=0"]).check()?;
            // The download transfers many windows meanwhile.
            thread::sleep(Duration::from_secs(4));
            assert_eq!(entries()?, 2, "it was picked up in the other zone");
            stateway.command(&["zone", "delete", "5"]).check()?;
            let got = download.join().expect("a client does not panic")?;
            assert_eq!((got.status, got.bytes, got.intact), (200, BYTES as u64, true));
            Ok::<_, lab::Error>(())
        })?;
        stop_cleanly(&mut lab)
    });
}

fn is_web(line: &ConntrackLine) -> bool {
    line.original.ports.is_some_and(|(from, to)| from == 8080 || to == 8080)
}
