//! Services that announce connections: a scanner, a backup, and broadcast questions on the link.
//! The gateway lets the server's side open only expected connections.
//!
//! With SANE and Amanda the same side opens both connections, so the first of them has to be
//! expected as well: the client's side announces it by FTP or TFTP.

use std::thread;

use lab::{Background, Error, Family, Lab, Namespace, Program, Result, StatewaySpec, Tracking};

use crate::scenario::{
    beside_others, conntrack_counter, guarded_bridge, kernel_router, ready, router_spec, start_in,
    stateway_binary, stop_cleanly,
};

/// The helpers that let the first connections through.
const FIRST: &str = "[[helper]]\nname = \"ftp\"\n\n[[helper]]\nname = \"tftp\"\n\n";
const ALL: &str = "[[helper]]\nname = \"sane\"\n\n[[helper]]\nname = \"amanda\"\n\n\
    [[helper]]\nname = \"snmp\"\n\n[[helper]]\nname = \"netbios-ns\"\n\n";
/// The time in seconds that one end waits for another.
const LIMIT: &str = "3";

/// The same policy as rules. If several helpers are assigned, the first that fits the packet's
/// protocol applies.
const RULES: &str = "
table inet guarded {
    ct helper ftp { type \"ftp\" protocol tcp; }
    ct helper tftp { type \"tftp\" protocol udp; }
    ct helper sane { type \"sane\" protocol tcp; }
    ct helper amanda { type \"amanda\" protocol udp; }
    chain forward {
        type filter hook forward priority filter - 1; policy accept;
        ct helper set tcp dport map { 21 : \"ftp\", 6566 : \"sane\" }
        udp dport 69 ct helper set \"ftp\"
        udp dport 69 ct helper set \"tftp\"
        udp dport 69 ct helper set \"amanda\"
        udp dport 10080 ct helper set \"amanda\"
        iifname wan0 ct state new drop
    }
}
";

/// Accepts the announcements of the client's side by FTP and TFTP.
const TAKER: &str = "
import socket, sys, time
own = sys.argv[1]
control = socket.create_server((own, 21))
requests = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
requests.bind((own, 69))
print('ready', flush=True)
connection, _ = control.accept()
connection.sendall(b'220 ready\\r\\n')
connection.recv(100)
connection.sendall(b'230 welcome\\r\\n')
connection.recv(100)
requests.recv(100)
print('taken', flush=True)
time.sleep(60)
";

/// Announces the scanner's port by FTP and Amanda's port by TFTP. Then it plays the Amanda client
/// of the host to back up.
const HOST: &str = "
import socket, sys
own, peer, limit = sys.argv[1], sys.argv[2], float(sys.argv[3])
control = socket.create_connection((peer, 21))
control.recv(100)
control.sendall(b'USER a\\r\\n')
control.recv(100)
control.sendall(f'PORT {own.replace(\".\", \",\")},{6566 >> 8},{6566 & 255}\\r\\n'.encode())
amanda = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
amanda.bind((own, 10080))
amanda.sendto(b'\\0\\1file\\0octet\\0', (peer, 69))
print('announced', flush=True)
streams = [socket.create_server((own, 0)) for _ in range(3)]
request, server = amanda.recvfrom(2000)
assert b'REQ' in request and b'SERVICE sendbackup' in request, request
head = b'Amanda 2.6 %s HANDLE 000-00000000 SEQ 7\\n'
ports = [stream.getsockname()[1] for stream in streams]
amanda.sendto(head % b'ACK', server)
connect = 'CONNECT DATA %d MESG %d INDEX %d\\n\\nOPTIONS ;\\n' % tuple(ports)
amanda.sendto(head % b'REP' + connect.encode(), server)
for stream, content in zip(streams, (b'data', b'mesg', b'index')):
    stream.settimeout(limit)
    stream.accept()[0].sendall(content)
";

/// The backup server.
const BACKUP: &str = "
import socket, sys
own, peer, limit = sys.argv[1], sys.argv[2], float(sys.argv[3])
amanda = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
amanda.bind((own, 840))
amanda.settimeout(limit)
service = b'SECURITY USER backup\\nSERVICE sendbackup\\nOPTIONS ;\\nGNUTAR /home  0 1970:1:1:0:0:0\\n'
amanda.sendto(b'Amanda 2.6 REQ HANDLE 000-00000000 SEQ 7\\n' + service, (peer, 10080))
reply = b''
try:
    while b'CONNECT' not in reply:
        reply = amanda.recv(2000)
    words = reply.split(b'CONNECT ')[1].split(b'\\n')[0].split()
    streams = [socket.create_connection((peer, int(port)), limit) for port in words[1::2]]
    print(b' '.join(stream.recv(100) for stream in streams).decode(), end='')
except TimeoutError:
    print('no connection' if reply else 'no reply', end='')
";

/// Asks every agent on the link for its name (SNMPv2c, GetRequest of sysName.0).
const ASKER: &str = "
import socket, sys
everybody, limit = sys.argv[1], float(sys.argv[2])
asker = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
asker.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
asker.settimeout(limit)
binding = bytes.fromhex('300c06082b060102010105000500')
request = bytes.fromhex('020101020100020100') + bytes([0x30, len(binding)]) + binding
request = bytes([0xa0, len(request)]) + request
message = bytes.fromhex('0201010406') + b'public' + request
asker.sendto(bytes([0x30, len(message)]) + message, (everybody, 161))
try:
    answer, (source, port) = asker.recvfrom(2000)
    print(source, port, b'public\\xa2' in answer, end='')
except TimeoutError:
    print('no answer', end='')
";

/// An agent that returns each request as a response.
const AGENT: &str = "
import socket
agent = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
agent.bind(('', 161))
print('ready', flush=True)
while True:
    request, asker = agent.recvfrom(2000)
    agent.sendto(request.replace(b'public\\xa0', b'public\\xa2'), asker)
";

/// A host that claims every name (RFC 1002 section 4.2.13).
const NAMED: &str = "
import socket, sys
own = sys.argv[1]
names = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
names.bind(('', 137))
print('ready', flush=True)
while True:
    query, asker = names.recvfrom(600)
    head = query[:2] + bytes.fromhex('85000000000100000000')
    facts = bytes.fromhex('00200001000493e000060000') + socket.inet_aton(own)
    names.sendto(head + query[12:46] + facts, asker)
";

/// A program in Python at one end.
fn script(at: &Namespace, name: &str, text: &str, args: &[String]) -> Result<Program> {
    let file = at.write_file(name, text.as_bytes())?;
    Ok(at.program("/usr/bin/python3").args([file]).args(args))
}

struct Ends {
    client: String,
    server: String,
}

impl Ends {
    fn of(lab: &Lab) -> Self {
        let [client, server] = [lab.client_address(Family::V4), lab.server_address(Family::V4)];
        Self { client: client.to_string(), server: server.to_string() }
    }
}

/// A scanner on the client's side, and the two programs that announce.
struct Host {
    _taker: Background,
    _host: Background,
    _scanner: Background,
}

impl Host {
    fn start(lab: &Lab) -> Result<Self> {
        let Ends { client, server } = Ends::of(lab);
        let at = lab.client();
        at.write_file("dll.conf", b"test\n")?;
        at.write_file("saned.conf", format!("{server}\n").as_bytes())?;
        let scanner = at.program("saned").args(["-l", "-e", "-b", &client]);
        let mut scanner = scanner.env("SANE_CONFIG_DIR", Namespace::SCRATCH).spawn()?;
        scanner.wait_for_port(lab::Transport::Tcp, 6566)?;
        let mut taker =
            ready(script(lab.server(), "taker.py", TAKER, std::slice::from_ref(&server))?)?;
        let host = script(at, "host.py", HOST, &[client, server, LIMIT.to_owned()])?.spawn()?;
        taker.wait_for_text("taken")?;
        Ok(Self { _taker: taker, _host: host, _scanner: scanner })
    }
}

/// The server's side scans a picture. Returns true if it arrived.
fn scanned(lab: &Lab) -> Result<bool> {
    let at = lab.server();
    at.write_file("dll.conf", b"net\n")?;
    at.write_file("net.conf", format!("connect_timeout = {LIMIT}\n").as_bytes())?;
    let device = format!("net:{}:test:0", Ends::of(lab).client);
    let scan = at.program("scanimage").args(["-d", &device, "-x", "10", "-y", "10"]);
    let scan = scan.env("SANE_CONFIG_DIR", Namespace::SCRATCH);
    match scan.limit(std::time::Duration::from_secs(3)).run() {
        Ok(output) => Ok(output.stdout.starts_with("P5\n# SANE data follows\n")),
        Err(Error::TimedOut { .. }) => Ok(false),
        Err(error) => Err(error),
    }
}

/// The server's side backs up the client's files. Returns the outcome of each stream.
fn saved(lab: &Lab) -> Result<String> {
    let Ends { client, server } = Ends::of(lab);
    let args = [server, client, LIMIT.to_owned()];
    Ok(script(lab.server(), "backup.py", BACKUP, &args)?.run()?.stdout)
}

/// Asks every agent on the server's side.
fn asked(lab: &Lab) -> Result<String> {
    let _agent = ready(script(lab.server(), "agent.py", AGENT, &[])?)?;
    let args = ["192.0.2.255".to_owned(), LIMIT.to_owned()];
    Ok(script(lab.client(), "asker.py", ASKER, &args)?.run()?.stdout)
}

/// Asks the link for the owner of a name. Returns true if the answer came.
fn named(lab: &Lab) -> Result<bool> {
    let server = Ends::of(lab).server;
    let _named = ready(script(lab.server(), "named.py", NAMED, std::slice::from_ref(&server))?)?;
    let ask = lab.client().program("nmblookup").args(["-s", "/dev/null", "-B", "192.0.2.255"]);
    let answer = ask.args(["printer"]).run()?.stdout;
    Ok(answer.contains(&format!("{server} printer<00>")))
}

/// Runs all at once, because they mostly wait.
fn everything(lab: &Lab) -> Result<(bool, String, String, bool)> {
    let _host = Host::start(lab)?;
    thread::scope(|scope| {
        let scanned = scope.spawn(|| scanned(lab));
        let saved = scope.spawn(|| saved(lab));
        let asked = scope.spawn(|| asked(lab));
        let named = scope.spawn(|| named(lab));
        let panicked = "an end does not panic";
        Ok((
            scanned.join().expect(panicked)?,
            saved.join().expect(panicked)?,
            asked.join().expect(panicked)?,
            named.join().expect(panicked)?,
        ))
    })
}

#[test]
fn scanners_backups_and_questions_to_everybody_work_with_helpers() {
    beside_others(|| {
        let mut lab = guarded_bridge(2, &format!("{FIRST}{ALL}"))?;
        let (scanned, saved, asked, named) = everything(&lab)?;
        assert!(scanned, "SANE");
        assert_eq!(saved, "data mesg index", "Amanda");
        assert_eq!(asked, "192.0.2.2 161 True", "SNMP");
        assert!(named, "NetBIOS");
        // The scanner's control and data connection, four of Amanda's, and two answers.
        assert_eq!(conntrack_counter(&lab, "expect_new")?, 8);
        stop_cleanly(&mut lab)
    });
}

#[test]
fn scanners_backups_and_questions_to_everybody_do_not_work_without() {
    beside_others(|| {
        let mut lab = guarded_bridge(2, FIRST)?;
        let (scanned, saved, asked, named) = everything(&lab)?;
        assert!(!scanned && !named, "{scanned} {named}");
        assert_eq!((&*saved, &*asked), ("no connection", "no answer"));
        assert_eq!(conntrack_counter(&lab, "expect_new")?, 2, "the first connections");
        stop_cleanly(&mut lab)
    });
}

/// Shows that the programs speak the real protocols: the kernel's helpers let them through too.
#[test]
fn the_kernel_lets_the_scanner_and_the_backup_through_as_well() {
    beside_others(|| {
        stateway_binary()?;
        let lab = kernel_router(Tracking::Conntrack)?;
        lab.gateway().load_rules(RULES).map_err(|error| Error::Unavailable {
            why: format!("this kernel lacks some helpers: {error}"),
        })?;
        let _host = Host::start(&lab)?;
        assert!(scanned(&lab)?, "SANE");
        assert_eq!(saved(&lab)?, "data mesg index", "Amanda");
        Ok(())
    });
}

#[test]
fn the_scanner_and_the_backup_get_through_by_rules() {
    beside_others(|| {
        let lab = kernel_router(Tracking::Off)?;
        let spec = StatewaySpec { ruleset: Some(RULES.to_owned()), ..router_spec(2)? };
        let running = start_in(lab.gateway(), &spec)?;
        let _host = Host::start(&lab)?;
        assert!(scanned(&lab)?, "SANE");
        assert_eq!(saved(&lab)?, "data mesg index", "Amanda");
        assert_eq!(running.stop()?.code, Some(0));
        Ok(())
    });
}
