//! Rates, quotas and counts of connections that rules keep for each address, beside the kernel:
//! the same traffic has the same outcome, however many workers share it.

use lab::{Family, Lab, Result, Tracking, Transport};
use serde_json::Value;

use crate::scenario::{
    beside_others, bridge_spec, kernel_router, load, start, stateway, stateway_binary,
    stop_cleanly, wait_for_pings,
};

/// Refuses connections over rates and quotas, of an address and of all. The server has no
/// listener, so every connection ends at once with a reset, by one side or the other. An element
/// that the ruleset has without a statement lets the rule go on with each packet.
const MEASURING: &str = "
table inet meters {
    set rates {
        type ipv4_addr
        flags dynamic
        size 4096
    }
    set rates_of_ports {
        type ipv4_addr . inet_service
        flags dynamic,timeout
        timeout 1h
        size 4096
    }
    set quotas {
        type ipv4_addr
        flags dynamic
        size 4096
    }
    set full {
        type inet_service
        flags dynamic
        size 7
    }
    set some_bare {
        type inet_service
        flags dynamic
        size 4096
        elements = { 8008, 8010 limit rate over 1/minute burst 3 packets }
    }
    set some_counted {
        type inet_service
        flags dynamic
        size 4096
        elements = { 8008 }
    }
    limit slow { rate over 3/hour burst 9 packets }
    quota little { over 1000 bytes }
    chain forward {
        type filter hook forward priority filter; policy accept;
        tcp flags & (syn | ack) != syn return
        tcp dport 8000 add @rates { ip saddr limit rate over 1/minute burst 3 packets } \
            counter reject with tcp reset
        tcp dport { 8001, 8002 } update @rates_of_ports { ip saddr . tcp dport \
            limit rate 2/hour burst 4 packets } counter
        tcp dport 8003 add @quotas { ip saddr quota over 500 bytes } counter reject with tcp reset
        tcp dport 8004 limit name \"slow\" counter reject with tcp reset
        tcp dport 8005 quota name \"little\" counter reject with tcp reset
        tcp dport 8006 add @full { tcp sport } counter
        tcp dport 8007 limit rate 300000/second burst 20 packets counter
        tcp dport 8008-8010 add @some_counted { tcp dport ct count over 0 } counter
        tcp dport 8008-8010 add @some_bare { tcp dport limit rate over 1/minute burst 3 packets } \
            counter reject with tcp reset
        tcp dport 8000-8010 counter
    }
}
";

/// The client connects so often to each port.
const TIMES: u32 = 40;

/// Opens connections one after the other, each from a port of its own.
const CONNECTS: &str = "
import socket, sys
address, times = sys.argv[1], int(sys.argv[2])
for number in range(times):
    for port in range(8000, 8011):
        with socket.socket() as client:
            client.settimeout(10)
            client.bind(('', 20000 + 16 * number + port - 8000))
            try:
                client.connect((address, port))
            except ConnectionRefusedError:
                pass
";

fn connect(lab: &Lab) -> Result<()> {
    wait_for_pings(lab)?;
    let server = lab.server_address(Family::V4).to_string();
    let times = TIMES.to_string();
    lab.on_client("python3").args(["-c", CONNECTS, &server, &times]).check().map(drop)
}

/// The packets that each rule has counted.
fn counted(document: &Value) -> Vec<u64> {
    let rules = document["nftables"].as_array().expect("a list").iter();
    let statements = rules.filter_map(|object| object["rule"]["expr"].as_array()).flatten();
    statements.filter_map(|statement| statement["counter"]["packets"].as_u64()).collect()
}

#[test]
fn rates_and_quotas_of_addresses_are_the_kernels_with_any_number_of_workers() {
    beside_others(|| {
        stateway_binary()?;
        let kernel = kernel_router(Tracking::Conntrack)?;
        kernel.gateway().load_rules(MEASURING)?;
        connect(&kernel)?;
        let theirs = kernel.gateway().listed_rules()?;
        let theirs: Value = serde_json::from_str(&theirs).expect("JSON");
        let theirs = counted(&theirs);
        drop(kernel);
        assert_eq!(theirs[0], u64::from(TIMES) - 3, "{theirs:?}");

        for workers in [1, 2, 4, 8] {
            let mut lab = start(bridge_spec(workers)?)?;
            load(&lab, MEASURING)?;
            connect(&lab)?;
            let ours = stateway(&lab).query(&["rules", "list"])?;
            assert_eq!(counted(&ours), theirs, "{workers} workers");
            stop_cleanly(&mut lab)?;
        }
        Ok(())
    });
}

/// Bounds the connections of an address, and those of all. Ports 9002 and 9003 have no listener.
const BOUNDING: &str = "
table inet bounds {
    set clients {
        type ipv4_addr
        flags dynamic
        size 4096
    }
    set ports {
        type ipv4_addr . inet_service
        flags dynamic
        size 4096
    }
    chain forward {
        type filter hook forward priority filter; policy accept;
        tcp dport 9000 ct state new add @clients { ip saddr ct count over 3 } \
            counter reject with tcp reset
        tcp dport 9001 ct state new ct count over 5 counter reject with tcp reset
        tcp dport { 9000, 9002 } ct state new add @ports { ip saddr . tcp dport ct count 4 } counter
        tcp dport 9003 add @clients { ip saddr ct count over 3 } counter reject with tcp reset
        ct state new tcp dport 9000-9003 counter
    }
}
";

/// Takes every connection, returns each byte of it, and closes it when the client does.
const ECHOES: &str = "
import selectors, socket
wanted = selectors.DefaultSelector()
for port in (9000, 9001):
    listener = socket.create_server(('', port), backlog=64)
    wanted.register(listener, selectors.EVENT_READ, True)
while True:
    for key, _ in wanted.select():
        if key.data:
            client, _ = key.fileobj.accept()
            wanted.register(client, selectors.EVENT_READ, False)
            continue
        try:
            read = key.fileobj.recv(1)
        except ConnectionError:
            read = b''
        if read:
            key.fileobj.sendall(read)
        else:
            wanted.unregister(key.fileobj)
            key.fileobj.close()
";

/// Opens and closes connections one after the other, and tells which were refused. The kernel looks
/// once in a tick which connections have ended, hence the pauses.
const BOUNDED: &str = "
import socket, struct, sys, time
address, outcomes, opened = sys.argv[1], '', {}
def connect(port, times):
    global outcomes
    for number in range(times):
        time.sleep(0.03)
        client = socket.socket()
        client.settimeout(10)
        try:
            client.connect((address, port))
            opened.setdefault(port, []).append(client)
            outcomes += '+'
        except ConnectionRefusedError:
            client.close()
            outcomes += '-'
    outcomes += ' '
def close(port, times, abruptly=False):
    for number in range(times):
        client = opened[port].pop(0)
        if abruptly:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0))
        client.close()
    time.sleep(0.3)
for port in (9000, 9001):
    connect(port, 8)
    close(port, 2)
    connect(port, 5)
    close(port, 1, abruptly=True)
    connect(port, 3)
    close(port, 3)
    connect(port, 2)
connect(9002, 6)
connect(9003, 3)
connect(9000, 4)
print(outcomes)
";

fn bounded(lab: &Lab) -> Result<String> {
    wait_for_pings(lab)?;
    let mut server = lab.on_server("python3").args(["-c", ECHOES]).spawn()?;
    server.wait_for_port(Transport::Tcp, 9001)?;
    let address = lab.server_address(Family::V4).to_string();
    let output = lab.on_client("python3").args(["-c", BOUNDED, &address]).check()?;
    server.terminate()?;
    Ok(output)
}

#[test]
fn connections_are_counted_as_by_the_kernel_with_any_number_of_workers() {
    beside_others(|| {
        stateway_binary()?;
        let kernel = kernel_router(Tracking::Conntrack)?;
        kernel.gateway().load_rules(BOUNDING)?;
        let said = bounded(&kernel)?;
        let theirs = kernel.gateway().listed_rules()?;
        let theirs: Value = serde_json::from_str(&theirs).expect("JSON");
        let theirs = counted(&theirs);
        drop(kernel);
        assert!(said.starts_with("+++----- ++--- "), "{said}");

        for workers in [1, 2, 4, 8] {
            let mut lab = start(bridge_spec(workers)?)?;
            load(&lab, BOUNDING)?;
            assert_eq!(bounded(&lab)?, said, "{workers} workers");
            let ours = stateway(&lab).query(&["rules", "list"])?;
            assert_eq!(counted(&ours), theirs, "{workers} workers");
            stop_cleanly(&mut lab)?;
        }
        Ok(())
    });
}

/// Bounds all connections, and those of an address, also by packets that open none.
const LATE: &str = "
table inet late {
    set clients {
        type ipv4_addr
        flags dynamic
        size 4096
    }
    chain forward {
        type filter hook forward priority filter; policy accept;
        tcp dport 9000 ct count over 3 counter reject with tcp reset
        tcp dport 9001 add @clients { ip saddr ct count over 3 } counter reject with tcp reset
    }
}
";

/// Opens connections, talks on them and opens more when it gets a signal, and tells what became of
/// each attempt and of each byte.
const TALKS: &str = "
import signal, socket, sys
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
address, outcomes, opened = sys.argv[1], '', []
def open_some():
    global outcomes
    for port in (9000, 9001):
        for number in range(5):
            client = socket.socket()
            client.settimeout(10)
            try:
                client.connect((address, port))
                opened.append(client)
                outcomes += '+'
            except ConnectionRefusedError:
                outcomes += '-'
    outcomes += ' '
open_some()
print('open', flush=True)
signal.sigwait({signal.SIGUSR1})
for client in opened * 2:
    client.sendall(b'a')
    outcomes += '.' if client.recv(1) else '!'
open_some()
print(outcomes)
";

/// Loads the rules while connections are open.
fn bounded_late(lab: &Lab, load: impl FnOnce() -> Result<()>) -> Result<String> {
    wait_for_pings(lab)?;
    let mut server = lab.on_server("python3").args(["-c", ECHOES]).spawn()?;
    server.wait_for_port(Transport::Tcp, 9001)?;
    let address = lab.server_address(Family::V4).to_string();
    let mut client = lab.on_client("python3").args(["-c", TALKS, &address]).spawn()?;
    client.wait_for_text("open")?;
    load()?;
    client.signal("USR1");
    let output = client.finish()?;
    server.terminate()?;
    Ok(output.stdout)
}

/// A load with a lower bound ends no connection. The kernel counts those that were there before not at
/// all, so that a load lets as many new ones pass once more. Here they take the places that there are.
#[test]
fn connections_from_before_the_rules_are_not_refused() {
    beside_others(|| {
        stateway_binary()?;
        let (opened, talked) = ("+".repeat(10), ".".repeat(20));
        let kernel = kernel_router(Tracking::Conntrack)?;
        // The kernel tracks from the first rule on that asks.
        kernel.gateway().load_rules(
            "table inet first {
                chain forward {
                    type filter hook forward priority filter;
                    ct state new counter
                }
            }",
        )?;
        let said = bounded_late(&kernel, || kernel.gateway().load_rules(LATE))?;
        assert_eq!(said, format!("open\n{opened} {talked}+++--+++-- \n"), "the kernel");
        drop(kernel);

        for workers in [1, 2] {
            let mut lab = start(bridge_spec(workers)?)?;
            let said = bounded_late(&lab, || load(&lab, LATE))?;
            let refused = "-".repeat(10);
            assert_eq!(said, format!("open\n{opened} {talked}{refused} \n"), "{workers} workers");
            stop_cleanly(&mut lab)?;
        }
        Ok(())
    });
}
