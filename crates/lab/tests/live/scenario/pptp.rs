//! The ends of PPTP calls: a minimal control connection, and GRE from raw sockets, because few
//! machines have PPP.

use crate::scenario::ready;
use lab::{Background, Namespace, Program, Result};

/// The length of the first part of each request of a client: within the call id, or the whole
/// request. The kernel reads only whole requests.
pub const CUT: &str = "13";
pub const WHOLE: &str = "168";

/// The part of the scripts that both ends share.
const COMMON: &str = "
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
const SERVER: &str = "
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
const CLIENT: &str = "
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

fn end(host: &Namespace, name: &str, script: &str) -> Result<Program> {
    let script = host.write_file(name, (COMMON.to_owned() + script).as_bytes())?;
    Ok(host.program("/usr/bin/python3").args([script]))
}

/// Starts a host that accepts calls at this address.
pub fn server(host: &Namespace, address: &str) -> Result<Background> {
    ready(end(host, "pac.py", SERVER)?.args([address]))
}

/// A host that calls, and keeps its calls until its input ends. `ends` are its own address and that
/// of the server. Commas between `ids` separate control connections. The `limit` is the time in
/// seconds for which it waits for the server.
pub fn client(
    host: &Namespace,
    ends: [&str; 2],
    ids: &str,
    limit: &str,
    cut: &str,
) -> Result<Program> {
    let name = format!("pns-{}.py", ends[0]);
    Ok(end(host, &name, CLIENT)?.args(ends).args([limit, ids, cut]))
}
