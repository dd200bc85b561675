//! Helpers for FTP and TFTP, with real servers and clients. The gateway lets the server's side open
//! a connection only if a helper expects it.

use std::net::IpAddr;
use std::thread;
use std::time::Duration;

use lab::{
    Background, Family, FileProtocol, FileServer, Lab, Program, Result, Tracking,
    attach_kernel_helpers,
};

use crate::scenario::{
    FAMILIES, beside_others, conntrack_counter, ftp_modes, guarded_bridge, kernel_router, stateway,
    stateway_binary, stop_cleanly, transfers_while_workers_change,
};

const HELPERS: &str = "[[helper]]\nname = \"ftp\"\n\n[[helper]]\nname = \"tftp\"\n";
/// The length of a file in bytes: several TCP windows.
const BYTES: usize = 300_000;

fn files_come_with_helpers(workers: u32) {
    beside_others(|| {
        let mut lab = guarded_bridge(workers, HELPERS)?;
        let mut expected = 0;
        for family in FAMILIES {
            let server = FileServer::start(&lab, FileProtocol::Ftp, family, BYTES)?;
            for (options, _) in ftp_modes(family) {
                assert!(server.download(&lab, options)?, "{family:?} {options:?}");
                expected += 1;
                assert_eq!(
                    conntrack_counter(&lab, "expect_new")?,
                    expected,
                    "{family:?} {options:?}"
                );
            }
            let server = FileServer::start(&lab, FileProtocol::Tftp, family, BYTES)?;
            assert!(server.download(&lab, &[])?, "{family:?} TFTP");
            expected += 1;
            assert_eq!(conntrack_counter(&lab, "expect_new")?, expected, "{family:?} TFTP");
        }
        assert_eq!(conntrack_counter(&lab, "expect_create")?, expected);
        stop_cleanly(&mut lab)
    });
}

#[test]
fn files_come_with_helpers_through_one_worker() {
    files_come_with_helpers(1);
}

#[test]
fn files_come_with_helpers_through_two_workers() {
    files_come_with_helpers(2);
}

/// The SYN proxy opens connections on behalf of clients. Helpers must still see where the stream of
/// each end begins.
#[test]
fn files_come_with_helpers_while_the_syn_proxy_answers() {
    beside_others(|| {
        let more = format!("{HELPERS}\n[tunables]\nstateway_syn_proxy_half_open = 1\n");
        let mut lab = guarded_bridge(2, &more)?;
        let server = FileServer::start(&lab, FileProtocol::Ftp, Family::V4, BYTES)?;
        for (expected, (options, _)) in (1..).zip(ftp_modes(Family::V4)) {
            assert!(server.download(&lab, options)?, "{options:?}");
            assert_eq!(conntrack_counter(&lab, "expect_new")?, expected, "{options:?}");
        }
        assert_eq!(conntrack_counter(&lab, "helper_left")?, 0);
        stop_cleanly(&mut lab)
    });
}

/// A control connection moves to another worker together with the state of its helper. The
/// announced data connections find it whichever worker owns them.
#[test]
fn files_come_while_workers_change() {
    beside_others(|| {
        let mut live = guarded_bridge(2, HELPERS)?;
        let lab: &Lab = &live;
        let server = FileServer::start(lab, FileProtocol::Ftp, Family::V4, BYTES)?;
        let transfers = transfers_while_workers_change(lab, &server)?;
        println!("{transfers} transfers");
        assert!(transfers > 4);
        assert_eq!(conntrack_counter(lab, "expect_new")?, transfers);
        stop_cleanly(&mut live)
    });
}

#[test]
fn files_whose_server_opens_the_connection_do_not_come_without_helpers() {
    beside_others(|| {
        let mut lab = guarded_bridge(2, "")?;
        for family in FAMILIES {
            let server = FileServer::start(&lab, FileProtocol::Ftp, family, BYTES)?;
            for (options, server_opens) in ftp_modes(family).iter().take(2) {
                assert_ne!(server.download(&lab, options)?, *server_opens, "{options:?}");
            }
        }
        let server = FileServer::start(&lab, FileProtocol::Tftp, Family::V4, BYTES)?;
        assert!(!server.download(&lab, &[])?);
        assert_eq!(conntrack_counter(&lab, "expect_new")?, 0);
        let drops = stateway(&lab).query(&["drops"])?;
        assert!(drops.to_string().contains("new_refused"), "{drops}");
        stop_cleanly(&mut lab)
    });
}

/// Has the server announce a data connection, prints its port and does not open it.
const CLIENT: &str = "
import ftplib, sys, time
server, own = sys.argv[1:]
client = ftplib.FTP()
client.connect(server, 21, source_address=(own, 40021))
client.login()
print('announced', client.makepasv()[1], flush=True)
time.sleep(60)
";

struct Talk {
    _server: FileServer,
    client: Background,
}

fn announcing(lab: &Lab, family: Family) -> Result<Talk> {
    let server = FileServer::start(lab, FileProtocol::Ftp, family, 1)?;
    let script = lab.client().write_file("announce.py", CLIENT.as_bytes())?;
    let addresses = [lab.server_address(family), lab.client_address(family)];
    let addresses = addresses.map(|address| address.to_string());
    let program = lab.on_client("/usr/bin/python3").args([&script]).args(addresses);
    let mut client = program.spawn()?;
    client.wait_for_text("\n")?;
    Ok(Talk { _server: server, client })
}

/// The lines that a program lists about a talk, without the parts that differ between two talks.
fn lines(program: Program, talk: &Talk, server: IpAddr) -> Result<Vec<String>> {
    Ok(comparable(&program.check()?, talk, server))
}

/// The lines of a text that are about a talk, without the parts that differ between two talks.
fn comparable(text: &str, talk: &Talk, server: IpAddr) -> Vec<String> {
    let log = talk.client.log();
    let port = log.trim().strip_prefix("announced ").unwrap_or_else(|| panic!("{log}"));
    let differs = [format!("={server}"), format!("={port}")];
    let line = |line: &str| {
        let line = line.replace(&differs[0], "=SERVER").replace(&differs[1], "=PORT");
        // The time left is the only number of three digits or more that stands alone.
        let words = line.split(' ');
        let is_time = |word: &str| word.len() > 2 && word.parse::<u32>().is_ok();
        words.map(|word| if is_time(word) { "TIME" } else { word }).collect::<Vec<_>>().join(" ")
    };
    text.lines().filter(|text| text.contains("dport=21 ")).map(line).collect()
}

/// Runs a command that deletes connections or expectations. Returns the events up to the first
/// deletion.
fn end(forget: Program, events: &mut Background) -> Result<String> {
    forget.check()?;
    events.wait_for_text("[DESTROY]")?;
    Ok(events.log())
}

#[test]
fn expectations_read_like_the_kernels() {
    beside_others(|| {
        stateway_binary()?;
        for family in FAMILIES {
            let kernel = kernel_router(Tracking::Conntrack)?;
            attach_kernel_helpers(kernel.gateway(), &[("ftp", "tcp", 21)])?;
            let listening = ["-E", "expect"];
            let mut their_events = kernel.gateway().program("conntrack").args(listening).spawn()?;
            // It prints nothing before the first event, so nothing shows that it is ready.
            thread::sleep(Duration::from_millis(500));
            let their_talk = announcing(&kernel, family)?;
            let mut lab = guarded_bridge(2, HELPERS)?;
            let stateway = stateway(&lab);
            let listening = ["conntrack", "-E", "expect", "-o", "conntrack"];
            let mut events = stateway.command(&listening).spawn()?;
            thread::sleep(Duration::from_millis(500));
            let talk = announcing(&lab, family)?;
            let name = if family == Family::V4 { "ipv4" } else { "ipv6" };
            for table in ["expect", "conntrack"] {
                let listing = kernel.gateway().program("conntrack");
                let listing = listing.args(["-L", table, "-f", name]);
                let theirs = lines(listing, &their_talk, kernel.server_address(family))?;
                let listing = stateway.command(&["conntrack", "-L", table, "-o", "conntrack"]);
                let ours = lines(listing, &talk, lab.server_address(family))?;
                assert_eq!(ours, theirs, "{family:?}");
                assert_eq!(theirs.len(), 1, "{theirs:?}");
                assert!(theirs[0].contains("helper=ftp"), "{theirs:?}");
            }
            let expected = stateway.query(&["conntrack", "expect"])?;
            assert_eq!(expected["master"]["source"], lab.client_address(family).to_string());
            assert_eq!(expected["helper"], "ftp");
            let table = stateway.command(&["conntrack", "expect"]).check()?;
            assert_eq!(table.lines().count(), 2, "{table}");
            // An expectation ends with its connection, or is deleted alone.
            let forget: &[&str] = if family == Family::V4 { &["-F"] } else { &["-F", "expect"] };
            let theirs =
                end(kernel.gateway().program("conntrack").args(forget), &mut their_events)?;
            let theirs = comparable(&theirs, &their_talk, kernel.server_address(family));
            let forget = [&["conntrack"], forget].concat();
            let ours = end(stateway.command(&forget), &mut events)?;
            assert_eq!(comparable(&ours, &talk, lab.server_address(family)), theirs);
            assert_eq!(theirs.len(), 2, "{theirs:?}");
            assert_eq!(stateway.command(&["conntrack", "-C", "expect"]).check()?.trim(), "0");
            drop((events, their_events));
            stop_cleanly(&mut lab)?;
        }
        Ok(())
    });
}
