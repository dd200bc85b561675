//! Calls by SIP whose media comes from the server's side, and direct connections between IRC
//! clients. The gateway lets the server's side open only expected connections.

use std::net::{IpAddr, SocketAddr};

use lab::{Background, Family, Lab, Program, Result, Tracking, Transport, attach_kernel_helpers};

use crate::scenario::{
    FAMILIES, beside_others, conntrack_counter, guarded_bridge, kernel_router, ready, stateway,
    stateway_binary, stop_cleanly,
};

const HELPERS: &str = "[[helper]]\nname = \"sip\"\n\n[[helper]]\nname = \"irc\"\n";
/// The time in seconds that a program waits for its peer.
const LIMIT: &str = "3";

/// Sends sound to the port where the caller listens. The caller's `sipp` returns it.
const MEDIA: &str = "
import socket, sys, time
own, port, peer = sys.argv[1], int(sys.argv[2]), sys.argv[3]
limit = time.monotonic() + float(sys.argv[4])
media = socket.socket(socket.AF_INET6 if ':' in own else socket.AF_INET, socket.SOCK_DGRAM)
media.bind((own, port))
media.settimeout(0.05)
packet = bytes([0x80, 0]) + bytes(170)
while time.monotonic() < limit:
    media.sendto(packet, (peer, 6000))
    try:
        if media.recv(2000) == packet:
            print('heard', end='')
            break
    except TimeoutError:
        pass
";

/// A `sipp` at `address` that plays one of its built-in scenarios.
fn sipp(program: Program, part: &str, address: IpAddr, transport: &str) -> Program {
    let address = address.to_string();
    let program = program.env("TERM", "dumb").args(["-sn", part, "-t", transport, "-nostdin"]);
    program.args(["-i", &address, "-mi", &address, "-p", "5060"])
}

/// The `sipp` on the client, which calls the server once.
fn calling(lab: &Lab, family: Family, transport: &str) -> Program {
    let callee = SocketAddr::new(lab.server_address(family), 5060);
    let program = sipp(lab.on_client("sipp"), "uac", lab.client_address(family), transport);
    program.args(["-m", "1", &callee.to_string()])
}

/// The transport of the signalling, its name in `sipp`, and the port from which the sound comes.
/// Each carrier has a port of its own, so that no call uses the flow of the one before.
type Carrier = (Transport, &'static str, &'static str);
const CARRIERS: [Carrier; 2] = [(Transport::Udp, "u1", "7100"), (Transport::Tcp, "t1", "7200")];

/// Calls the server. Returns true if sound from its side got through during the call.
fn sound_is_heard(lab: &Lab, family: Family, carrier: Carrier) -> Result<bool> {
    let [caller, callee] = [lab.client_address(family), lab.server_address(family)];
    // Returns `Unavailable` if `sipp` is not installed.
    lab.on_client("sipp").args(["-v"]).run()?;
    let mut answering = sipp(lab.on_server("sipp"), "uas", callee, carrier.1).spawn()?;
    answering.wait_for_port(carrier.0, 5060)?;
    let script = lab.server().write_file("media.py", MEDIA.as_bytes())?;
    let media = lab.on_server("/usr/bin/python3").args([script]);
    let media = media.args([&callee.to_string(), carrier.2, &caller.to_string(), LIMIT]).spawn()?;
    // The call lasts a second.
    let options = ["-mp", "6000", "-rtp_echo", "-d", "1000", "-timeout", "5s", "-timeout_error"];
    calling(lab, family, carrier.1).args(options).check()?;
    Ok(output(media)? == "heard")
}

fn output(program: Background) -> Result<String> {
    program.finish().map(|output| output.stdout)
}

fn calls_are_heard(workers: u32) {
    beside_others(|| {
        let mut lab = guarded_bridge(workers, HELPERS)?;
        let kinds = FAMILIES.iter().flat_map(|&family| CARRIERS.map(|carrier| (family, carrier)));
        let (mut created, mut plain) = (0, 0);
        for (calls, (family, carrier)) in (1..).zip(kinds) {
            assert!(sound_is_heard(&lab, family, carrier)?, "{family:?} {carrier:?}");
            assert_eq!(conntrack_counter(&lab, "expect_new")?, calls, "{family:?} {carrier:?}");
            // Each end announces a pair of ports. It announces the same pair again if it repeats
            // its message because an answer was late on a busy machine; `sipp` or TCP may repeat
            // it. The kernel's helper counts those expectations, too.
            let all = conntrack_counter(&lab, "expect_create")?;
            let announced = all - std::mem::replace(&mut created, all);
            assert!(announced >= 4 && announced % 2 == 0, "{announced} {family:?} {carrier:?}");
            plain += u32::from(announced == 4);
            let listing = ["conntrack", "-L", "expect", "-o", "conntrack"];
            let expected = stateway(&lab).command(&listing).check()?;
            assert!(!expected.contains("dport="), "the call is over: {expected}");
        }
        assert_ne!(plain, 0, "not in every call something was late");
        stop_cleanly(&mut lab)
    });
}

#[test]
fn calls_are_heard_through_one_worker() {
    calls_are_heard(1);
}

#[test]
fn calls_are_heard_through_two_workers() {
    calls_are_heard(2);
}

#[test]
fn calls_are_not_heard_without_helper() {
    beside_others(|| {
        let mut lab = guarded_bridge(2, "")?;
        assert!(!sound_is_heard(&lab, Family::V4, CARRIERS[0])?);
        assert_eq!(conntrack_counter(&lab, "expect_new")?, 0);
        stop_cleanly(&mut lab)
    });
}

/// The expectations of a gateway during a call, sorted, without times and addresses.
fn expected_in_a_call(lab: &Lab, family: Family, listing: &Program) -> Result<Vec<String>> {
    let [caller, callee] = [lab.client_address(family), lab.server_address(family)];
    let mut answering = sipp(lab.on_server("sipp"), "uas", callee, "u1").spawn()?;
    answering.wait_for_port(Transport::Udp, 5060)?;
    let mut call = calling(lab, family, "u1").args(["-d", "9000"]).spawn()?;
    let mut lines = Vec::new();
    call.wait_for("the announcements of both ends", || {
        let text = listing.clone().check()?;
        let names = |line: &str| {
            let (_, line) = line.trim_start().split_once(' ').unwrap_or_default();
            let line = line.replace(&format!("={caller} "), "=CALLER ");
            line.replace(&format!("={callee} "), "=CALLEE ").trim().to_owned()
        };
        lines = text.lines().filter(|line| line.contains("helper=sip")).map(names).collect();
        lines.sort();
        Ok(lines.len() == 4)
    })?;
    Ok(lines)
}

#[test]
fn a_call_announces_to_us_what_it_does_to_the_kernel() {
    beside_others(|| {
        stateway_binary()?;
        for (family, name) in FAMILIES.into_iter().zip(["ipv4", "ipv6"]) {
            let kernel = kernel_router(Tracking::Conntrack)?;
            attach_kernel_helpers(kernel.gateway(), &[("sip", "udp", 5060)])?;
            let listing = kernel.gateway().program("conntrack").args(["-L", "expect", "-f", name]);
            let theirs = expected_in_a_call(&kernel, family, &listing)?;
            let mut lab = guarded_bridge(2, HELPERS)?;
            let listing = ["conntrack", "-L", "expect", "-o", "conntrack"];
            let listing = stateway(&lab).command(&listing);
            assert_eq!(expected_in_a_call(&lab, family, &listing)?, theirs, "{family:?}");
            stop_cleanly(&mut lab)?;
        }
        Ok(())
    });
}

/// An IRC server that connects to the first offer itself, as the other client would.
const CHAT: &str = "
import re, socket, sys
address, limit = sys.argv[1], float(sys.argv[2])
listener = socket.create_server((address, 6667))
listener.settimeout(limit)
print('ready', flush=True)
connection, (client, *_) = listener.accept()
connection.sendall(b':irc.example.net 001 alice :Welcome\\r\\n')
said = b''
while not said.endswith(b'\\x01\\r\\n'):
    said += connection.recv(1000)
port = int(re.search(rb'DCC SEND \\S+ \\d+ (\\d+)', said)[1])
socket.create_connection((client, port), limit / 2).sendall(b'got it')
";

/// An IRC client that offers a file and sends the offer in two segments.
const OFFER: &str = "
import ipaddress, socket, sys, time
own, server, limit = sys.argv[1], sys.argv[2], float(sys.argv[3])
listener = socket.create_server((own, 5000))
listener.settimeout(limit)
connection = socket.create_connection((server, 6667))
connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
connection.recv(1000)
offer = f'PRIVMSG bob :\\x01DCC SEND file {int(ipaddress.ip_address(own))} 5000 6\\x01\\r\\n'
connection.sendall(b'NICK alice\\r\\nUSER alice 0 * :Alice\\r\\n' + offer[:30].encode())
time.sleep(0.1)
connection.sendall(offer[30:].encode())
try:
    print(listener.accept()[0].recv(6).decode(), end='')
except TimeoutError:
    print('nobody came', end='')
";

fn offered_file(lab: &Lab) -> Result<String> {
    let [client, server] = [lab.client_address(Family::V4), lab.server_address(Family::V4)];
    let script = lab.server().write_file("chat.py", CHAT.as_bytes())?;
    let program = lab.on_server("/usr/bin/python3").args([&script]);
    let _chat = ready(program.args([&server.to_string(), LIMIT]))?;
    let script = lab.client().write_file("offer.py", OFFER.as_bytes())?;
    let program = lab.on_client("/usr/bin/python3").args([&script]);
    program.args([&client.to_string(), &server.to_string(), LIMIT]).check()
}

#[test]
fn clients_of_irc_meet_with_a_helper_only() {
    beside_others(|| {
        for (helpers, outcome) in [(HELPERS, "got it"), ("", "nobody came")] {
            let mut lab = guarded_bridge(2, helpers)?;
            assert_eq!(offered_file(&lab)?, outcome);
            stop_cleanly(&mut lab)?;
        }
        Ok(())
    });
}
