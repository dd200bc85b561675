//! Connections that translated connections announce, with real programs: a client behind a
//! masquerade, and a server behind a port forward. Without the helper each end names an address
//! that the other can not reach.

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU16, Ordering};

use lab::{Family, FileProtocol, FileServer, Lab, Program, Result, Side, Transport};

use crate::scenario::{
    FAMILIES, StatewayLab, beside_others, conntrack_counter, edge_router, ftp_modes, nat_rules,
    outside, ready, stop_cleanly, transfers_while_workers_change,
};

const FTP: &str = "[[helper]]\nname = \"ftp\"\n\n[[helper]]\nname = \"tftp\"\n";
/// The length of a file in bytes: several TCP windows.
const BYTES: usize = 300_000;

fn translating_lab(workers: u32, helpers: &str) -> Result<StatewayLab> {
    let forwards = ["tcp dport 21", "tcp dport 5060", "udp dport 5060"].map(|it| (it, ""));
    edge_router(workers, &nat_rules(&forwards, "masquerade"), helpers)
}

/// The address by which the server on this side is reachable from the other side.
fn known_by(lab: &Lab, side: Side, family: Family) -> IpAddr {
    match side {
        Side::Client => outside(family).parse().expect("an address"),
        Side::Server => lab.server_address(family),
    }
}

const SIDES: [Side; 2] = [Side::Client, Side::Server];

/// The option that makes `curl` use the address that the server names.
fn believing<'a>(options: &[&'a str]) -> Vec<&'a str> {
    [options, &["--no-ftp-skip-pasv-ip"]].concat()
}

fn files_come_through_translation(workers: u32) {
    beside_others(|| {
        let mut lab = translating_lab(workers, FTP)?;
        let mut expected = 0;
        for family in FAMILIES {
            for side in SIDES {
                let server = FileServer::start_at(&lab, side, FileProtocol::Ftp, family, BYTES)?;
                let address = known_by(&lab, side, family);
                for (options, _) in ftp_modes(family) {
                    let what = format!("{side:?} {family:?} {options:?}");
                    assert!(server.download_from(&lab, address, &believing(options))?, "{what}");
                    expected += 1;
                    assert_eq!(conntrack_counter(&lab, "expect_new")?, expected, "{what}");
                }
            }
            let server = FileServer::start(&lab, FileProtocol::Tftp, family, BYTES)?;
            assert!(server.download(&lab, &[])?, "{family:?} TFTP");
            expected += 1;
            assert_eq!(conntrack_counter(&lab, "expect_new")?, expected, "{family:?} TFTP");
        }
        stop_cleanly(&mut lab)
    });
}

#[test]
fn files_come_through_translation_by_one_worker() {
    files_come_through_translation(1);
}

#[test]
fn files_come_through_translation_by_two_workers() {
    files_come_through_translation(2);
}

#[test]
fn files_come_through_translation_while_workers_change() {
    beside_others(|| {
        let mut live = translating_lab(2, FTP)?;
        let lab: &Lab = &live;
        let server = FileServer::start(lab, FileProtocol::Ftp, Family::V4, BYTES)?;
        let transfers = transfers_while_workers_change(lab, &server)?;
        assert!(transfers > 4, "{transfers} transfers");
        assert_eq!(conntrack_counter(lab, "expect_new")?, transfers);
        stop_cleanly(&mut live)
    });
}

#[test]
fn files_do_not_come_through_translation_without_helpers() {
    beside_others(|| {
        let mut lab = translating_lab(2, "")?;
        for family in FAMILIES {
            for side in SIDES {
                let server = FileServer::start_at(&lab, side, FileProtocol::Ftp, family, BYTES)?;
                let address = known_by(&lab, side, family);
                for (options, server_opens) in ftp_modes(family).iter().take(2) {
                    let got = server.download_from(&lab, address, &believing(options))?;
                    // Hosts inside reach every host outside.
                    let goes_out = *server_opens == (side == Side::Client);
                    assert_eq!(got, goes_out, "{side:?} {family:?} {options:?}");
                }
            }
        }
        let server = FileServer::start(&lab, FileProtocol::Tftp, Family::V4, BYTES)?;
        assert!(!server.download(&lab, &[])?);
        assert_eq!(conntrack_counter(&lab, "expect_new")?, 0);
        stop_cleanly(&mut lab)
    });
}

const SIP: &str = "[[helper]]\nname = \"sip\"\n";
const FAR_PHONE: &[u8] = include_bytes!("phone.py");
/// The transport of the signalling, its name for the far phone, and its name in `sipp`.
type Carrier = (Transport, &'static str, &'static str);
const CARRIERS: [Carrier; 2] = [(Transport::Udp, "udp", "u1"), (Transport::Tcp, "tcp", "t1")];

/// A phone on the server that uses the addresses in its messages.
fn far_phone(lab: &Lab, family: Family, role: &str, more: &[&str]) -> Result<Program> {
    let script = lab.server().write_file("phone.py", FAR_PHONE)?;
    let own = lab.server_address(family).to_string();
    Ok(lab.on_server("/usr/bin/python3").args([&script, role, &own]).args(more))
}

/// The client's `sipp`, which returns all sound. Each call has another port, because flows of sound
/// outlive their call.
fn near_phone(lab: &Lab, family: Family, part: &str, carrier: &str, port: &str) -> Program {
    static CALLS: AtomicU16 = AtomicU16::new(0);
    let own = lab.client_address(family).to_string();
    let sound = (6000 + 10 * CALLS.fetch_add(1, Ordering::Relaxed)).to_string();
    let program = lab.on_client("sipp").env("TERM", "dumb").args(["-sn", part, "-t", carrier]);
    let program = program.args(["-nostdin", "-i", &own, "-mi", &own, "-mp", &sound, "-rtp_echo"]);
    program.args(["-m", "1", "-p", port, "-timeout", "6s"])
}

/// The output of the far phone in a call from the near one.
fn calls_out(lab: &Lab, family: Family, carrier: Carrier) -> Result<String> {
    let (_, name, option) = carrier;
    let far = ready(far_phone(lab, family, "answer", &[name])?)?;
    let callee = SocketAddr::new(lab.server_address(family), 5060).to_string();
    let near = near_phone(lab, family, "uac", option, "5060");
    let near = near.args(["-d", "1000", &callee]).spawn()?;
    let said = far.finish()?.stdout.trim_start_matches("ready\n").to_owned();
    drop(near);
    Ok(said)
}

/// The output of the far phone in a call to the near one, whose port the router forwards.
fn calls_in(lab: &Lab, family: Family, carrier: Carrier) -> Result<String> {
    let (transport, name, option) = carrier;
    let mut near = near_phone(lab, family, "uas", option, "5060").spawn()?;
    near.wait_for_port(transport, 5060)?;
    let said = far_phone(lab, family, "call", &[name, outside(family), "5060"])?.check()?;
    drop(near);
    Ok(said)
}

/// The output of the far phone in a call to a near one that has registered with it.
fn calls_who_has_registered(lab: &Lab, family: Family) -> Result<String> {
    let mut near = near_phone(lab, family, "uas", "u1", "5062").spawn()?;
    near.wait_for_port(Transport::Udp, 5062)?;
    let far = ready(far_phone(lab, family, "registrar", &["udp"])?)?;
    let script = lab.client().write_file("phone.py", FAR_PHONE)?;
    let ends = [lab.client_address(family), lab.server_address(family)].map(|it| it.to_string());
    let [own, registrar] = &ends;
    let registered = lab
        .on_client("/usr/bin/python3")
        .args([&script, "register", own, "udp", registrar, "5060"])
        .check()?;
    assert_eq!(registered, "registered", "{family:?}");
    let said = far.finish()?.stdout.trim_start_matches("ready\n").to_owned();
    drop(near);
    Ok(said)
}

fn calls_are_heard_through_translation(workers: u32) {
    beside_others(|| {
        let mut lab = translating_lab(workers, SIP)?;
        // Returns `Unavailable` if `sipp` is not installed.
        lab.on_client("sipp").args(["-v"]).run()?;
        for family in FAMILIES {
            for carrier in CARRIERS {
                let what = format!("{family:?} {}", carrier.1);
                assert_eq!(calls_out(&lab, family, carrier)?, "heard", "{what} out");
                assert_eq!(calls_in(&lab, family, carrier)?, "heard", "{what} in");
            }
            assert_eq!(calls_who_has_registered(&lab, family)?, "heard", "{family:?}");
        }
        stop_cleanly(&mut lab)
    });
}

#[test]
fn calls_are_heard_through_translation_by_one_worker() {
    calls_are_heard_through_translation(1);
}

#[test]
fn calls_are_heard_through_translation_by_two_workers() {
    calls_are_heard_through_translation(2);
}

#[test]
fn calls_are_not_heard_through_translation_without_helper() {
    beside_others(|| {
        let mut lab = translating_lab(2, "")?;
        lab.on_client("sipp").args(["-v"]).run()?;
        for said in
            [calls_out(&lab, Family::V4, CARRIERS[0])?, calls_in(&lab, Family::V4, CARRIERS[0])?]
        {
            assert!(said.contains("names ['192.0.2.1']") && !said.contains("heard"), "{said}");
        }
        stop_cleanly(&mut lab)
    });
}
