//! Connections that a helper has seen announced at one of two gateways, and that begin at the other
//! one, and a ban.

use lab::{Background, Namespace, Result};

use crate::scenario::cluster::{Cluster, STRICT_NAT, wait_for, wait_until};
use crate::scenario::{beside_others, ready};

/// Nobody outside may open a connection that is not announced. A sender to port 9 is banned.
const RULES: &str = "
table inet announced {
    set banned {
        type ipv4_addr
        flags dynamic,timeout
        size 1000
    }
    chain forward {
        type filter hook forward priority filter + 10; policy accept;
        ip saddr @banned drop
        udp dport 9 add @banned { ip saddr timeout 1h } drop
        iifname \"wan0\" ct state new drop
    }
}";

/// Answers calls of SIP and PPTP. When the caller acknowledges a call of SIP, it sends sound to the
/// address in the description that it has read. It echoes what comes in a call of PPTP, and each
/// datagram to port 7001.
const SERVER: &str = "
import re, select, socket, struct, sys
own = sys.argv[1]
def datagrams(port):
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.bind((own, port))
    return s
sip, sound, echo = datagrams(5060), datagrams(7400), datagrams(7001)
gre = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_GRE)
listener = socket.create_server((own, 1723))
LENGTHS = {2: 156, 8: 32}
def message(kind, body):
    head = struct.pack('>HHIHH', LENGTHS[kind], 1, 0x1A2B3C4D, kind, 0)
    return (head + body).ljust(LENGTHS[kind], b'\\0')
places, controls, calls = {}, [], {}
print('ready', flush=True)
while True:
    for one in select.select([sip, echo, gre, listener, *controls], [], [])[0]:
        if one is listener:
            controls.append(listener.accept()[0])
        elif one is echo:
            data, sender = echo.recvfrom(100)
            echo.sendto(data, sender)
        elif one is gre:
            packet, (source, _) = gre.recvfrom(2000)
            packet = packet[4 * (packet[0] & 15):]
            theirs = calls.get(struct.unpack('>H', packet[6:8])[0])
            if theirs is not None:
                head = struct.pack('>HHHHI', 0x3001, 0x880B, len(packet) - 12, theirs, 1)
                gre.sendto(head + packet[12:], (source, 0))
        elif one is sip:
            data, sender = sip.recvfrom(4000)
            text = data.decode()
            if text.startswith('INVITE'):
                address = re.search('c=IN IP4 (\\\\S+)', text)[1]
                places[sender] = (address, int(re.search('m=audio (\\\\d+)', text)[1]))
                body = ('v=0\\r\\no=- 1 1 IN IP4 %s\\r\\ns=-\\r\\nc=IN IP4 %s\\r\\nt=0 0\\r\\n'
                    'm=audio 7400 RTP/AVP 0\\r\\n' % (own, own))
                kept = [it for it in text.split('\\r\\n')
                    if it.startswith(('Via', 'From', 'To', 'Call-ID', 'CSeq'))]
                head = ['SIP/2.0 200 OK', *kept, 'Contact: <sip:b@%s>' % own,
                    'Content-Type: application/sdp', 'Content-Length: %d' % len(body), '', body]
                sip.sendto('\\r\\n'.join(head).encode(), sender)
            elif text.startswith('ACK'):
                sound.sendto(b'sound', places[sender])
        else:
            head = one.recv(12)
            if not head:
                controls.remove(one)
                continue
            length, _, _, kind, _ = struct.unpack('>HHIHH', head)
            body = b''
            while len(body) < length - 12: body += one.recv(length - 12 - len(body))
            if kind == 1:
                one.sendall(message(2, struct.pack('>HB', 0x100, 1)))
            elif kind == 7:
                theirs = struct.unpack('>H', body[:2])[0]
                calls[theirs ^ 1] = theirs
                one.sendall(message(8, struct.pack('>HHB', theirs ^ 1, theirs, 1)))
";

/// Calls the server by SIP and by PPTP. When the file exists it acknowledges the call and sends in the
/// other one, and tells what has come.
const CLIENT: &str = "
import os, re, select, socket, struct, sys, time
go, number, server = sys.argv[1], int(sys.argv[2]), sys.argv[3]
own, port, media, call = '198.51.100.10', 5070 + number, 7000 + 2 * number, 20 + 2 * number
sip = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
sip.bind((own, port))
sip.settimeout(5)
sound = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
sound.bind((own, media))
def request(kind, body):
    return ('%s sip:b@%s SIP/2.0\\r\\nVia: SIP/2.0/UDP %s:%d;branch=z9hG4bK%d\\r\\n'
        'From: <sip:a@example.com>;tag=1\\r\\nTo: <sip:b@example.com>\\r\\nCall-ID: %d@example.com\\r\\n'
        'CSeq: 1 %s\\r\\nContact: <sip:a@%s:%d>\\r\\nContent-Type: application/sdp\\r\\n'
        'Content-Length: %d\\r\\n\\r\\n%s'
        % (kind, server, own, port, number, number, kind, own, port, len(body), body)).encode()
body = ('v=0\\r\\no=- 1 1 IN IP4 %s\\r\\ns=-\\r\\nc=IN IP4 %s\\r\\nt=0 0\\r\\n'
    'm=audio %d RTP/AVP 0\\r\\n' % (own, own, media))
sip.sendto(request('INVITE', body), (server, 5060))
assert sip.recv(4000).startswith(b'SIP/2.0 200')
LENGTHS = {1: 156, 7: 168}
def message(kind, body):
    head = struct.pack('>HHIHH', LENGTHS[kind], 1, 0x1A2B3C4D, kind, 0)
    return (head + body).ljust(LENGTHS[kind], b'\\0')
control = socket.create_connection((server, 1723))
def read(length):
    got = b''
    while len(got) < length: got += control.recv(length - len(got))
    return got
control.sendall(message(1, struct.pack('>H', 0x100)))
read(156)
control.sendall(message(7, struct.pack('>H', call)))
theirs = struct.unpack('>H', read(32)[12:14])[0]
gre = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_GRE)
print('called', flush=True)
while not os.path.exists(go): time.sleep(0.05)
heard, until = set(), time.monotonic() + 10
while len(heard) < 2 and time.monotonic() < until:
    sip.sendto(request('ACK', ''), (server, 5060))
    gre.sendto(struct.pack('>HHHHI', 0x3001, 0x880B, 4, theirs, 1) + b'ping', (server, 0))
    for one in select.select([sound, gre], [], [], 0.3)[0]:
        data = one.recv(2000)
        if one is sound: heard.add(data.decode())
        elif data[26:28] == struct.pack('>H', call): heard.add(data[-4:].decode())
print('heard:', *sorted(heard), flush=True)
";

/// Sends a datagram from an address to a port of the server. Says whether an answer comes.
const ASKS: &str = "
import socket, sys
own, server, port = sys.argv[1], sys.argv[2], int(sys.argv[3])
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind((own, 0))
s.settimeout(0.3)
for _ in range(3):
    s.sendto(b'there?', (server, port))
    try: print(s.recv(100).decode()); break
    except OSError: pass
else: print('nothing')
";

/// The address that is banned.
const BANNED: &str = "198.51.100.66";

/// A caller whose calls have been announced, and who has not used them.
struct Caller {
    process: Background,
    file: String,
}

impl Caller {
    fn new(cluster: &Cluster, number: u16) -> Result<Self> {
        let file = format!("go{number}");
        let path = format!("{}/{file}", Namespace::SCRATCH);
        let number = number.to_string();
        let program = cluster.client.program("python3");
        let args = ["-c", CLIENT, &path, &number, Cluster::SERVERS[0]];
        let mut process = program.args(args).spawn()?;
        process.wait_for_text("called")?;
        Ok(Self { process, file })
    }

    /// Uses the calls, and says what was heard in them.
    fn use_them(self, cluster: &Cluster) -> Result<String> {
        cluster.client.write_file(&self.file, b"")?;
        let said = self.process.finish()?.stdout;
        Ok(said.lines().last().unwrap_or_default().to_owned())
    }
}

fn asks(cluster: &Cluster, own: &str, port: &str) -> Result<String> {
    let program = cluster.client.program("python3");
    let said = program.args(["-c", ASKS, own, Cluster::SERVERS[0], port]).check()?;
    Ok(said.trim().to_owned())
}

#[test]
fn announced_connections_begin_and_bans_hold_at_the_gateway_that_has_taken_over() {
    beside_others(|| {
        let cluster = Cluster::new()?;
        cluster.client.ip(&[&format!("addr add {BANNED}/24 dev eth0")])?;
        let rules = STRICT_NAT.to_owned() + RULES;
        let ([one, two], _keepalived) = cluster.with_keepalived(&rules)?;
        let server = cluster.server.program("python3");
        let _server = ready(server.args(["-c", SERVER, Cluster::SERVERS[0]]))?;
        assert_eq!(asks(&cluster, BANNED, "7001")?, "there?");
        assert_eq!(asks(&cluster, BANNED, "9")?, "nothing");
        assert_eq!(asks(&cluster, BANNED, "7001")?, "nothing");

        // An orderly switch.
        let first = Caller::new(&cluster, 1)?;
        let has_all = |status: &serde_json::Value| status["shared_copies"].as_u64() >= Some(6);
        wait_until(&two, "announcements and the ban", has_all)?;
        cluster.set_back(0, true)?;
        wait_for(&two, "/role", "active")?;
        wait_until(&two, "all is its own", |status| status["shared_copies"] == 0)?;
        assert_eq!(first.use_them(&cluster)?, "heard: ping sound");
        assert_eq!(asks(&cluster, BANNED, "7001")?, "nothing");

        // The gateway that is active now dies.
        let second = Caller::new(&cluster, 2)?;
        wait_until(&one, "announcements and the ban", has_all)?;
        cluster.crash(1)?;
        wait_for(&one, "/role", "active")?;
        assert_eq!(second.use_them(&cluster)?, "heard: ping sound");
        assert_eq!(asks(&cluster, BANNED, "7001")?, "nothing");
        assert_eq!(asks(&cluster, "198.51.100.10", "7001")?, "there?");
        one.stop()?;
        let killed = two.stop()?;
        assert_ne!(killed.code, Some(0), "it was killed");
        Ok(())
    });
}
