//! PPTP calls with both ends in labs: a minimal control connection, and GRE from raw sockets,
//! because few machines have PPP.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use lab::{
    Background, Family, Gateway, Lab, Placement, Program, Result, Tracking, attach_kernel_helpers,
};

use crate::announced::{counter, guarded_lab};
use crate::scenario::{alone, stateway_binary};
use crate::stateway::stop_cleanly;

const HELPER: &str = "[[helper]]\nname = \"pptp\"\n";

/// The part of the scripts that both ends share.
pub const COMMON: &str = "
import select, socket, struct, sys, time

LENGTHS = {1: 156, 2: 156, 7: 168, 8: 32, 12: 16, 13: 148}

def message(kind, *fields):
    body = b''.join(fields)
    head = struct.pack('>HHIHH', LENGTHS[kind], 1, 0x1A2B3C4D, kind, 0)
    return (head + body).ljust(LENGTHS[kind], b'\\0')

def word(number):
    return struct.pack('>H', number)

def read(connection):
    head = b''
    while len(head) < 12:
        more = connection.recv(12 - len(head))
        if not more:
            return None, b''
        head += more
    length, _, cookie, kind, _ = struct.unpack('>HHIHH', head)
    assert cookie == 0x1A2B3C4D, head
    while len(head) < length:
        head += connection.recv(length - len(head))
    return kind, head

def frame(call_id, payload):
    return struct.pack('>HHHHI', 0x3001, 0x880B, len(payload), call_id, 1) + payload

def heard(raw, call_id, limit):
    '''What comes for a call, and from whom.'''
    until = time.monotonic() + limit
    while True:
        left = until - time.monotonic()
        if left <= 0 or not select.select([raw], [], [], left)[0]:
            return None, None
        packet, (source, _) = raw.recvfrom(2000)
        gre = packet[4 * (packet[0] & 15):]
        if struct.unpack('>H', gre[6:8])[0] == call_id:
            return gre[12:], source

def opened():
    raw = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_GRE)
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
    return raw
";

/// Accepts calls, sends the first packet of each, and echoes all packets.
pub const SERVER: &str = "
import threading

address = sys.argv[1]
listener = socket.create_server((address, 1723))

def serve(connection, client):
    raw, calls, asked = opened(), {}, []
    while True:
        ready = select.select([connection, raw], [], [], 0.05)[0]
        # Repeats the packet until the client has answered, as PPP does.
        for (own, theirs), answered in calls.items():
            if not answered:
                raw.sendto(frame(theirs, b'hello %d' % own), (client, 0))
        if raw in ready:
            packet, (source, _) = raw.recvfrom(2000)
            gre = packet[4 * (packet[0] & 15):]
            for call in calls:
                if source == client and call[0] == struct.unpack('>H', gre[6:8])[0]:
                    calls[call] = True
                    raw.sendto(frame(call[1], b'echo ' + gre[12:]), (client, 0))
        if connection not in ready:
            continue
        kind, bytes = read(connection)
        if kind is None:
            return
        if kind == 1:
            connection.sendall(message(2, word(0x100), b'\\1'))
        elif kind == 7:
            theirs = struct.unpack('>H', bytes[12:14])[0]
            # An id that the client uses for another call.
            own = theirs ^ 1
            calls[(own, theirs)] = False
            connection.sendall(message(8, word(own), word(theirs), b'\\1'))
        elif kind == 12:
            theirs = struct.unpack('>H', bytes[12:14])[0]
            for call in [call for call in calls if call[1] == theirs]:
                del calls[call]
                connection.sendall(message(13, word(call[0]), b'\\4'))

print('ready', flush=True)
while True:
    connection, (client, *_) = listener.accept()
    threading.Thread(target=serve, args=(connection, client), daemon=True).start()
";

/// Makes several calls at once, some of them on one control connection. Prints what it heard in
/// each, and keeps them until its input ends them.
pub const CLIENT: &str = "
own, server, limit = sys.argv[1], sys.argv[2], float(sys.argv[3])
controls = []
for ids in sys.argv[4].split(','):
    connection = socket.create_connection((server, 1723), source_address=(own, 0))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.sendall(message(1, word(0x100)))
    assert read(connection)[0] == 2
    controls.append((connection, [int(id) for id in ids.split('+')]))
calls = {}
for connection, ids in controls:
    for id in ids:
        raw = opened()
        raw.bind((own, 0))
        asks, cut = message(7, word(id)), int(sys.argv[5])
        connection.sendall(asks[:cut])
        time.sleep(0.02)
        connection.sendall(asks[cut:])
        kind, answer = read(connection)
        assert kind == 8 and answer[16] == 1
        calls[id] = (raw, struct.unpack('>H', answer[12:14])[0], connection)
told = []
for id, (raw, theirs, _) in calls.items():
    hello, _ = heard(raw, id, limit)
    if hello is None:
        told.append('%d: nothing' % id)
        continue
    raw.sendto(frame(theirs, b'from %d' % id), (server, 0))
    echo = b''
    while not (echo or b'').startswith(b'echo'):
        echo, _ = heard(raw, id, limit)
        if echo is None:
            break
    told.append('%d: %s, %s' % (id, hello.decode(), (echo or b'nothing').decode()))
print('; '.join(told), flush=True)
for line in sys.stdin:
    id = int(line)
    raw, theirs, connection = calls[id]
    connection.sendall(message(12, word(id)))
    assert read(connection)[0] == 13
    print('cleared', id, flush=True)
";

fn serving(lab: &Lab) -> Result<Background> {
    let address = lab.server_address(Family::V4).to_string();
    let script = lab.server().write_file("pac.py", (COMMON.to_owned() + SERVER).as_bytes())?;
    let mut server = lab.on_server("/usr/bin/python3").args([script, address]).spawn()?;
    server.wait_for_text("ready")?;
    Ok(server)
}

/// The length of the first part of each request of the client: within the call id, or the whole
/// request. The kernel reads only whole requests.
pub const CUT: &str = "13";
pub const WHOLE: &str = "168";

/// The client with these calls. Commas separate control connections.
fn calling(lab: &Lab, calls: &str, limit: &str, cut: &str) -> Result<Program> {
    let [client, server] = [lab.client_address(Family::V4), lab.server_address(Family::V4)];
    let script = lab.client().write_file("pns.py", (COMMON.to_owned() + CLIENT).as_bytes())?;
    let program = lab.on_client("/usr/bin/python3").args([script]);
    Ok(program.args([&client.to_string(), &server.to_string(), limit, calls, cut]))
}

/// The expected output if all calls get through and none hears another.
fn all_heard(ids: &[u16]) -> String {
    let call = |id: &u16| format!("{id}: hello {}, echo from {id}", id ^ 1);
    ids.iter().map(call).collect::<Vec<_>>().join("; ")
}

fn calls_get_through(workers: u32) {
    alone(|| {
        let mut lab = guarded_lab(workers, HELPER)?;
        let _server = serving(&lab)?;
        // Two calls share a control connection and use each other's ids; two have their own
        // connections.
        let said = calling(&lab, "6+7,20,21", "3", CUT)?.input(String::new()).check()?;
        assert_eq!(said.trim(), all_heard(&[6, 7, 20, 21]));
        assert_eq!(counter(&lab, "expect_new")?, 4);
        assert_eq!(counter(&lab, "expect_create")?, 8);
        // The server opened the GRE flows.
        let [server, client] = [lab.server_address(Family::V4), lab.client_address(Family::V4)];
        let [server, client] = [server, client].map(|address| address.to_string());
        let ends = ["--proto", "gre", "--src", &server, "--dst", &client];
        let listing = [&["conntrack", "-L", "-o", "conntrack"][..], &ends].concat();
        let stateway = lab.stateway().expect("it runs");
        let one = [&listing[..], &["--srckey", "0x7", "--dstkey", "6"]].concat();
        assert!(stateway.command(&one).check()?.contains("srckey=0x7 dstkey=0x6 src="));
        // The control connections have ended, and their entries are still there. The ids are used
        // again. The notice ends one call and no other.
        let said = calling(&lab, "6,30", "3", CUT)?.input("6\n".to_owned()).check()?;
        assert_eq!(said.trim(), all_heard(&[6, 30]) + "\ncleared 6");
        let calls = || stateway.command(&listing).check();
        let is_listed = |text: &str| text.contains("srckey=0x7 dstkey=0x6 src=");
        assert!(!is_listed(&calls()?), "{}", calls()?);
        for id in ["7", "14", "15", "1e"] {
            assert!(calls()?.contains(&format!("dstkey=0x{id} ")), "{id}: {}", calls()?);
        }
        let delete = ["conntrack", "-D", "--proto", "tcp", "--dport", "1723"];
        stateway.command(&delete).check()?;
        assert!(!calls()?.contains("gre"), "all end with their control connections: {}", calls()?);
        stop_cleanly(&mut lab)
    });
}

#[test]
fn calls_get_through_with_the_helper_and_one_worker() {
    calls_get_through(1);
}

#[test]
fn calls_get_through_with_the_helper_and_two_workers() {
    calls_get_through(2);
}

#[test]
fn calls_do_not_get_through_without_helper() {
    alone(|| {
        let mut lab = guarded_lab(2, "")?;
        let _server = serving(&lab)?;
        let said = calling(&lab, "6", "0.5", CUT)?.input(String::new()).check()?;
        assert_eq!(said.trim(), "6: nothing");
        assert_eq!(counter(&lab, "expect_new")?, 0);
        stop_cleanly(&mut lab)
    });
}

#[test]
fn calls_come_and_go_while_workers_change() {
    alone(|| {
        let mut live = guarded_lab(2, HELPER)?;
        let lab: &Lab = &live;
        let _server = serving(lab)?;
        let done = AtomicBool::new(false);
        let calls = thread::scope(|scope| {
            let client = scope.spawn(|| -> Result<u64> {
                let mut calls = 0;
                while !done.load(Ordering::Relaxed) {
                    let program = calling(lab, "6+7,20,21", "3", CUT)?;
                    let said = program.input("6\n7\n20\n21\n".to_owned()).check()?;
                    let cleared = "\ncleared 6\ncleared 7\ncleared 20\ncleared 21";
                    assert_eq!(said.trim(), all_heard(&[6, 7, 20, 21]) + cleared, "after {calls}");
                    calls += 4;
                }
                Ok(calls)
            });
            let stateway = lab.stateway().expect("it runs");
            let changed = ["1", "2"].iter().cycle().take(20).try_for_each(|workers| {
                thread::sleep(Duration::from_millis(100));
                stateway.command(&["steer", "set", "--workers", workers]).check().map(drop)
            });
            done.store(true, Ordering::Relaxed);
            let calls = client.join().expect("a client does not panic");
            changed.and(calls)
        })?;
        println!("{calls} calls");
        assert!(calls > 8);
        assert_eq!(counter(lab, "expect_new")?, calls, "each is a connection of its own");
        stop_cleanly(&mut live)
    });
}

/// The lines that a program lists about GRE. The remaining time is separate.
fn listed(program: Program, lab: &Lab) -> Result<Vec<(String, u64)>> {
    let names = [Family::V4].map(|family| {
        [
            (format!("={} ", lab.client_address(family)), "=CLIENT "),
            (format!("={} ", lab.server_address(family)), "=SERVER "),
        ]
    });
    let line = |line: &str| {
        let names = names.iter().flatten();
        let line = names.fold(line.to_owned(), |line, (from, to)| line.replace(from, to));
        let mut words: Vec<&str> = line.split_whitespace().collect();
        let at = words.iter().position(|word| word.parse::<u64>().is_ok_and(|n| n != 47)).unwrap();
        let time = words.remove(at).parse().unwrap();
        (words.join(" "), time)
    };
    let text = program.check()?;
    let mut lines: Vec<_> = text.lines().filter(|text| text.contains("key=")).map(line).collect();
    lines.sort();
    Ok(lines)
}

#[test]
fn calls_read_like_the_kernels() {
    alone(|| {
        stateway_binary()?;
        let kernel = Lab::new(Gateway::KernelForwarding(Tracking::Conntrack), Placement::free())?;
        attach_kernel_helpers(kernel.gateway(), &[("pptp", "tcp", 1723)])?;
        let mut lab = guarded_lab(2, HELPER)?;
        let mut both = Vec::new();
        for lab in [&kernel, &*lab] {
            let _server = serving(lab)?;
            let said = calling(lab, "6,20", "3", WHOLE)?.input(String::new()).check()?;
            assert_eq!(said.trim(), all_heard(&[6, 20]));
            let list = |table: &str| match lab.stateway() {
                Some(stateway) => {
                    listed(stateway.command(&["conntrack", "-L", table, "-o", "conntrack"]), lab)
                }
                None => listed(lab.gateway().program("conntrack").args(["-L", table]), lab),
            };
            both.push([list("conntrack")?, list("expect")?]);
        }
        let [[theirs, none], [ours, nothing]] = &both[..] else { panic!("two gateways") };
        let lines = |list: &[(String, u64)]| list.iter().map(|it| it.0.clone()).collect::<Vec<_>>();
        assert_eq!(lines(ours), lines(theirs));
        assert_eq!((ours.len(), none.len(), nothing.len()), (2, 0, 0), "{both:?}");
        for (_, left) in ours {
            assert!((17_900..=18_000).contains(left), "{both:?}");
        }
        // The kernel's helper sets the same timeout, but in newer kernels the first packet of a
        // connection resets it.
        for (_, left) in theirs {
            assert!((100..=180).contains(left) || (17_900..=18_000).contains(left), "{both:?}");
        }
        stop_cleanly(&mut lab)
    });
}
