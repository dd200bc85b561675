//! NAT slipstreaming: a web page makes a browser send to the ports of protocols that announce
//! connections. The gateway lets the server's side open only expected connections.
//!
//! A page chooses the body of a request. By the length of the path it also chooses where segments
//! begin. It can not choose how the request begins.

use std::net::IpAddr;

use lab::{Family, Lab, Result};

use crate::scenario::{
    beside_others, conntrack_counter, guarded_bridge, ready, stateway, stop_cleanly,
};

const HELPERS: &str = "[[helper]]\nname = \"ftp\"\n\n[[helper]]\nname = \"irc\"\n\n\
    [[helper]]\nname = \"sip\"\n";
/// The ports of the browser's host that the attacker's server tries to reach.
const SERVICES: &str = "22,445,8080";
/// The time in seconds that one end waits for another.
const LIMIT: &str = "2";

/// Runs on the browser's host: services that must be unreachable from outside.
const HOST: &str = "
import selectors, socket, sys
own, services = sys.argv[1], sys.argv[2]
selector = selectors.DefaultSelector()
for port in services.split(','):
    selector.register(socket.create_server((own, int(port))), selectors.EVENT_READ)
print('ready', flush=True)
while True:
    for key, _ in selector.select():
        key.fileobj.accept()[0].sendall(b'reached')
";

/// Greets, answers every request as a server of the protocol would, and then tries to reach the
/// services.
const ATTACKER: &str = "
import concurrent.futures, socket, sys
own, victim, port, services, limit = sys.argv[1:]
listener = socket.create_server((own, int(port)))
print('ready', flush=True)
connection, _ = listener.accept()
connection.settimeout(float(limit))
connection.sendall({'21': b'220 ready\\r\\n', '6667': b':irc 001 a :Welcome\\r\\n'}.get(port, b''))
said = b''
try:
    while not said.endswith(b'END\\r\\n'):
        said += connection.recv(100000)
except TimeoutError:
    pass
for text in said.split(b'REGISTER sip:')[1:]:
    contact = text.split(b'Contact: ')[1].split(b'\\r\\n')[0]
    number = text.split(b'CSeq: ')[1].split(b'\\r\\n')[0]
    connection.sendall(b'SIP/2.0 200 OK\\r\\nCSeq: ' + number + b'\\r\\nContact: ' + contact +
                       b';expires=600\\r\\nContent-Length: 0\\r\\n\\r\\n')
def reach(service):
    try:
        print(service, socket.create_connection((victim, int(service)), float(limit)).recv(7))
    except OSError:
        pass
with concurrent.futures.ThreadPoolExecutor() as pool:
    list(pool.map(reach, services.split(',')))
print('tried', flush=True)
connection.recv(1)
";

/// A browser. Each line of the body starts a new segment, behind a long path or a short one.
const BROWSER: &str = "
import ipaddress, socket, sys, time
own, attacker, port, services, path = sys.argv[1:]
number = int(ipaddress.ip_address(own))
def lines(service):
    numbers = own.replace('.', ',') + f',{service >> 8},{service & 255}'
    sip = ('REGISTER sip:example.com SIP/2.0\\r\\nCall-ID: %d@example.com\\r\\nCSeq: %d REGISTER\\r\\n'
           'Contact: <sip:a@%s:%d;transport=tcp>\\r\\nContent-Length: 0\\r\\n\\r\\n')
    yield {'21': f'PORT {numbers}\\r\\n',
           '6667': f'PRIVMSG bob :\\x01DCC SEND file {number} {service} 6\\x01\\r\\n',
           '5060': sip % (service, service, own, service)}[port]
connection = socket.create_connection((attacker, int(port)))
connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
body = [line for service in services.split(',') for line in lines(int(service))]
before = {'21': ['USER a\\r\\n'], '6667': ['NICK a\\r\\nUSER a 0 * :a\\r\\n']}.get(port, [])
head = f'POST /{\"a\" * int(path)} HTTP/1.1\\r\\nHost: {attacker}:{port}\\r\\nContent-Length: 9999\\r\\n\\r\\n'
time.sleep(0.2)
for segment in [head, *before, *body, 'END\\r\\n']:
    connection.sendall(segment.encode())
    time.sleep(0.1)
connection.settimeout(30)
try:
    while connection.recv(1000):
        pass
except TimeoutError:
    pass
";

/// The services that the attacker reaches after a browser's post, and the gateway's expectations
/// then.
fn post(lab: &Lab, port: &str, path: &str) -> Result<(String, String)> {
    let ends = [lab.client_address(Family::V4), lab.server_address(Family::V4)];
    let [victim, outside] = ends.map(|end: IpAddr| end.to_string());
    let script = lab.server().write_file("attacker.py", ATTACKER.as_bytes())?;
    let program = lab.on_server("/usr/bin/python3").args([&script]);
    let arguments = [&outside, &victim, port, SERVICES, LIMIT];
    let mut attacker = ready(program.args(arguments))?;
    let script = lab.client().write_file("browser.py", BROWSER.as_bytes())?;
    let program = lab.on_client("/usr/bin/python3").args([&script]);
    let browser = program.args([&victim, &outside, port, SERVICES, path]).spawn()?;
    attacker.wait_for_text("tried")?;
    let stateway = stateway(lab);
    let expected = stateway.command(&["conntrack", "-L", "expect", "-o", "conntrack"]).check()?;
    drop(browser);
    let reached = attacker.log().replace("ready\n", "").replace("tried\n", "");
    Ok((reached, expected))
}

#[test]
fn posts_of_a_web_page_open_no_port() {
    beside_others(|| {
        let mut lab = guarded_bridge(2, HELPERS)?;
        let script = lab.client().write_file("host.py", HOST.as_bytes())?;
        let program = lab.on_client("/usr/bin/python3").args([&script]);
        let own = lab.client_address(Family::V4).to_string();
        let host = ready(program.args([&own, SERVICES]))?;
        let mut posts = 0;
        for port in ["21", "6667", "5060"] {
            // The longer path exceeds the bytes that helpers keep of a message.
            for path in ["1", "9000"] {
                let (reached, expected) = post(&lab, port, path)?;
                assert_eq!(reached, "", "by port {port}, behind {path} bytes");
                assert!(!expected.contains("dport="), "{port} {path}: {expected}");
                posts += 1;
                assert_eq!(conntrack_counter(&lab, "helper_left")?, posts, "{port} {path}");
            }
        }
        assert_eq!(
            (conntrack_counter(&lab, "expect_create")?, conntrack_counter(&lab, "expect_new")?),
            (0, 0)
        );
        drop(host);
        stop_cleanly(&mut lab)
    });
}

/// An FTP server that accepts every announcement and connects to the announced port.
const SERVER_PROGRAM: &str = "
import socket, sys
own, limit = sys.argv[1], float(sys.argv[2])
listener = socket.create_server((own, 21))
print('ready', flush=True)
connection, (client, _) = listener.accept()
connection.sendall(b'220 ready\\r\\n')
lines = connection.makefile('rb')
for line in lines:
    connection.sendall(b'200 ok\\r\\n')
    if line.startswith(b'PORT'):
        numbers = [int(number) for number in line[5:].split(b',')]
        try:
            data = socket.create_connection((client, numbers[4] << 8 | numbers[5]), limit)
            data.sendall(b'data')
            data.close()
        except OSError:
            pass
        connection.sendall(b'226 done\\r\\n')
";

/// An FTP client that announces several of its own ports in turn.
const TELLER: &str = "
import select, socket, sys
own, server, limit, *ports = sys.argv[1:]
connection = socket.create_connection((server, 21))
lines = connection.makefile('rb')
def say(text):
    connection.sendall(text.encode() + b'\\r\\n')
    return lines.readline()
lines.readline()
say('USER a')
for port in map(int, ports):
    listener = socket.create_server((own, port))
    say(f'PORT {own.replace(\".\", \",\")},{port >> 8},{port & 255}')
    came = select.select([listener, connection], [], [], 4 * float(limit))[0]
    print(port, 'data' if listener in came else 'nothing', flush=True)
    lines.readline()
";

/// The announced ports that the server reaches.
fn reached_ports(lab: &Lab) -> Result<String> {
    let ends = [lab.client_address(Family::V4), lab.server_address(Family::V4)];
    let [client, server] = ends.map(|end: IpAddr| end.to_string());
    let script = lab.server().write_file("server.py", SERVER_PROGRAM.as_bytes())?;
    let program = lab.on_server("/usr/bin/python3").args([&script]);
    let _taker = ready(program.args([&server, LIMIT]))?;
    let script = lab.client().write_file("teller.py", TELLER.as_bytes())?;
    let program = lab.on_client("/usr/bin/python3").args([&script]);
    program.args([&client, &server, LIMIT, "22", "8080", "1023", "1024"]).check()
}

#[test]
fn privileged_ports_are_reached_only_if_that_is_allowed() {
    beside_others(|| {
        let mut lab = guarded_bridge(2, HELPERS)?;
        assert_eq!(reached_ports(&lab)?, "22 nothing\n8080 data\n1023 nothing\n1024 data\n");
        assert_eq!(conntrack_counter(&lab, "expect_refused")?, 2);
        let stateway = stateway(&lab);
        let allow = ["tunable", "set", "stateway_expect_privileged_ports", "1"];
        stateway.command(&allow).check()?;
        assert_eq!(reached_ports(&lab)?, "22 data\n8080 data\n1023 data\n1024 data\n");
        assert_eq!(conntrack_counter(&lab, "expect_refused")?, 2);
        stop_cleanly(&mut lab)
    });
}
