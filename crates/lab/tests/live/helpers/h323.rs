//! An H.323 call to an endpoint on the client's side, which has registered with a gatekeeper on the
//! server's side. The gatekeeper's side opens every connection of the call.

use lab::{Background, Error, Family, Lab, Namespace, Result, Tracking, Transport};

use crate::scenario::h323::{TO_CALLER, TO_ENDPOINT};
use crate::scenario::{
    beside_others, conntrack_counter, guarded_bridge, kernel_router, stateway_binary, stop_cleanly,
};

const HELPERS: &str = "[[helper]]\nname = \"RAS\"\n\n";
/// The time in seconds for which one end waits for the other.
const LIMIT: &str = "3";

/// The same policy as a ruleset of the kernel.
const KERNEL_RULES: &str = "
table inet guarded {
    ct helper RAS { type \"RAS\" protocol udp; }
    chain forward {
        type filter hook forward priority filter - 1; policy accept;
        udp dport 1719 ct helper set \"RAS\"
        iifname wan0 ct state new drop
    }
}
";

/// The part of the scripts that both ends share.
const COMMON: &str = "
import socket, sys
own, peer, limit, *messages = sys.argv[1:]
socket.setdefaulttimeout(float(limit))
messages = [bytes.fromhex(message) for message in messages]

def tell(connection, message):
    connection.sendall(bytes([3, 0]) + (len(message) + 4).to_bytes(2, 'big') + message)

def hear(connection):
    head = connection.recv(4, socket.MSG_WAITALL)
    return connection.recv(int.from_bytes(head[2:], 'big') - 4, socket.MSG_WAITALL)

def datagrams(address, port):
    opened = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    opened.bind((address, port))
    return opened
";

/// Registers, accepts a call, and agrees on media twice: in its answer, and by H.245.
const ENDPOINT: &str = "
register, progress, open_ack = messages
signalling, control = (socket.create_server((own, port)) for port in (1722, 4000))
media = [datagrams(own, port) for port in (5000, 6000)]
registration = datagrams(own, 1719)
registration.sendto(register, (peer, 1719))
registration.recv(2000)
print('registered', flush=True)
try:
    call, _ = signalling.accept()
    hear(call)
    tell(call, progress)
    print('called', flush=True)
    talk, _ = control.accept()
    hear(talk)
    tell(talk, open_ack)
    for opened in media:
        print('heard', opened.recv(2000).decode(), flush=True)
except TimeoutError:
    print('nobody came', flush=True)
";

/// The gatekeeper, which is also the caller.
const CALLER: &str = "
confirm, setup, request = messages
gatekeeper = datagrams(own, 1719)
print('ready', flush=True)
_, endpoint = gatekeeper.recvfrom(2000)
gatekeeper.sendto(confirm, endpoint)
try:
    call = socket.create_connection((peer, 1722))
    tell(call, setup)
    hear(call)
    talk = socket.create_connection((peer, 4000))
    tell(talk, request)
    hear(talk)
    sound = datagrams(own, 7000)
    for port in (5000, 6000):
        sound.sendto(b'sound', (peer, port))
    print('spoke', end='')
except TimeoutError:
    print('no way', end='')
";

fn end(at: &Namespace, script: &str, ends: [&str; 2], messages: [&str; 3]) -> Result<Background> {
    let file = at.write_file("h323.py", format!("{COMMON}{script}").as_bytes())?;
    let program = at.program("/usr/bin/python3").args([&file]).args(ends).args([LIMIT]);
    program.args(messages).spawn()
}

/// The output of the caller and of the endpoint in a call.
fn call(lab: &Lab) -> Result<(String, String)> {
    let [client, server] = [lab.client_address(Family::V4), lab.server_address(Family::V4)];
    let [client, server] = [client, server].map(|address| address.to_string());
    let mut caller = end(lab.server(), CALLER, [&server, &client], TO_ENDPOINT)?;
    caller.wait_for_port(Transport::Udp, 1719)?;
    let endpoint = end(lab.client(), ENDPOINT, [&client, &server], TO_CALLER)?;
    let said = caller.finish()?.stdout.replace("ready\n", "");
    Ok((said, endpoint.finish()?.stdout))
}

const WELL: &str = "registered\ncalled\nheard sound\nheard sound\n";

#[test]
fn calls_by_h323_are_heard_with_helper_only() {
    beside_others(|| {
        for (helpers, said, heard, related) in
            [(HELPERS, "spoke", WELL, 4), ("", "no way", "registered\nnobody came\n", 0)]
        {
            let mut lab = guarded_bridge(2, helpers)?;
            let call = call(&lab)?;
            assert_eq!((&*call.0, &*call.1), (said, heard), "with {helpers:?}");
            assert_eq!(conntrack_counter(&lab, "expect_new")?, related);
            stop_cleanly(&mut lab)?;
        }
        Ok(())
    });
}

/// Shows that the messages are valid H.323: the kernel's helper accepts them too.
#[test]
fn the_kernel_lets_the_same_calls_by_h323_through() {
    beside_others(|| {
        stateway_binary()?;
        let lab = kernel_router(Tracking::Conntrack)?;
        lab.gateway().load_rules(KERNEL_RULES).map_err(|error| Error::Unavailable {
            why: format!("this kernel has no helper for H.323: {error}"),
        })?;
        let call = call(&lab)?;
        assert_eq!((&*call.0, &*call.1), ("spoke", WELL));
        Ok(())
    });
}
