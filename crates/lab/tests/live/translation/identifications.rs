//! Identifications of datagrams from a router that masquerades, as the server sees them.

use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr};

use lab::{
    Datagrams, END, Family, Lab, Piece, Random, Result, StatewaySpec, Tracking, at_pace, digest,
    udp,
};

use crate::scenario::{
    StatewayLab, beside_others, kernel_router, ready, router_spec, start, stateway_binary,
    stop_cleanly,
};

fn masquerading() -> Result<StatewayLab> {
    let spec = StatewaySpec { rules: Tracking::Masquerade, ..router_spec(2)? };
    start(spec)
}

/// Two hosts with a server each. The first sends one datagram and the second sends two, repeatedly;
/// routers may fragment all of them.
const TWO_HOSTS: &str = "
import socket, time
hosts = []
for number in (0, 1):
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.setsockopt(socket.IPPROTO_IP, 10, 0)
    s.bind((f'192.0.2.{10 + number}', 5000))
    s.connect((f'198.51.100.{10 + number}', 7000))
    hosts.append(s)
for number in range(300):
    for host in (hosts[0], hosts[1], hosts[1]):
        host.send(b'x')
        time.sleep(0.001)
";
/// Prints the last byte of the destination and the identification of each datagram.
const SEEN: &str = "
import socket, struct
quiet = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
quiet.bind(('0.0.0.0', 7000))
s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x0800))
s.bind(('eth0', 0x0800))
s.settimeout(8)
print('ready', flush=True)
count = 0
while count < 900:
    frame = s.recv(2000)
    if frame[23] == 17 and frame[36:38] == b'\\x1b\\x58':
        count += 1
        print(frame[33], struct.unpack('!H', frame[18:20])[0])
";

#[test]
fn a_server_learns_nothing_of_what_others_get() {
    beside_others(|| {
        let mut lab = masquerading()?;
        for (side, network) in [(lab.client(), "192.0.2"), (lab.server(), "198.51.100")] {
            let add = [10, 11].map(|host| format!("addr add {network}.{host}/24 dev eth0"));
            side.ip(&add.each_ref().map(String::as_str))?;
        }
        let seen = ready(lab.on_server("python3").args(["-c", SEEN]))?;
        lab.on_client("python3").args(["-c", TWO_HOSTS]).check()?;
        let text = seen.finish()?.stdout;
        let lines = text.lines().filter_map(|line| line.split_once(' '));
        let all: Vec<(u8, u16)> = lines
            .map(|(to, id)| (to.parse().expect("a number"), id.parse().expect("a number")))
            .collect();
        assert_eq!(all.len(), 900);
        let near = |one: u16, other: u16| one.wrapping_sub(other).cast_signed().unsigned_abs() < 32;
        // By chance this happens in one of 1000 steps, and in one of 64 steps to the same server.
        let one_after_another = all.windows(2).filter(|two| near(two[0].1, two[1].1)).count();
        assert!(one_after_another < 30, "{one_after_another} are near the one before");
        for to in [10, 11] {
            let own: Vec<u16> = all.iter().filter(|it| it.0 == to).map(|it| it.1).collect();
            let steps = own.windows(2).map(|two| two[1].wrapping_sub(two[0]));
            let steps: HashSet<u16> = steps.collect();
            assert!(steps.len() > own.len() * 9 / 10, "{} steps of {}", steps.len(), own.len());
            assert_eq!(own.iter().collect::<HashSet<_>>().len(), own.len(), "none comes twice");
        }
        stop_cleanly(&mut lab)
    });
}

/// The port where the server records arrivals.
const PORT: u16 = 7001;
/// The number of hosts; their datagrams use the same identifications.
const HOSTS: u8 = 20;
/// The number of datagrams of each host.
const DATAGRAMS: u32 = 100;
/// The server gets two of three fragments, as if the third were lost behind the gateway.
const LOSSES: &str = "
table ip lossy {
    chain first {
        type filter hook prerouting priority -500; policy accept;
        ip frag-off & 0x3fff != 0 numgen random mod 3 == 0 drop
    }
}";

/// The number of datagrams that reach the server, and how many of those nobody sent.
fn arrived(lab: &Lab) -> Result<(usize, usize)> {
    let addresses: Vec<_> =
        (0..HOSTS).map(|host| format!("addr add 192.0.2.{}/24 dev eth0", host + 10)).collect();
    lab.client().ip(&addresses.iter().map(String::as_str).collect::<Vec<_>>())?;
    let datagrams = Datagrams::new(lab, &stateway_binary()?)?;
    lab.server().load_rules(LOSSES)?;
    let server = lab.server_address(Family::V4);
    let (mut random, mut frames, mut sent) = (Random::new(1), Vec::new(), HashSet::new());
    for number in 0..DATAGRAMS {
        for host in 0..HOSTS {
            let source: IpAddr = Ipv4Addr::new(192, 0, 2, host + 10).into();
            let payload = random.bytes(1600);
            sent.insert(digest(&payload));
            let datagram = udp((source, server), (4000, PORT), &payload, false);
            for (offset, bytes) in [(0, &datagram[..800]), (800, &datagram[800..])] {
                let more = offset == 0;
                let (destination, bytes) = (server, bytes.to_vec());
                let piece = Piece { source, destination, id: number, offset, more, ecn: 0, bytes };
                frames.push(piece.frame(lab.next_hop_mac()));
            }
        }
    }
    let client = lab.client_address(Family::V4);
    let bytes = udp((client, server), (PORT, PORT), END, true);
    let end = Piece {
        source: client,
        destination: server,
        id: 0x8000,
        offset: 0,
        more: false,
        ecn: 0,
        bytes,
    };
    frames.push(end.frame(lab.next_hop_mac()));
    let recorder = datagrams.start_recording(lab, PORT)?;
    datagrams.start_sending(lab, &at_pace(&frames, 4000))?.finish()?;
    let arrived = recorder.finish()?;
    let mixed = arrived.iter().filter(|arrival| !sent.contains(&arrival.digest)).count();
    Ok((arrived.len(), mixed))
}

/// The kernel's masquerade mixes them up, because it keeps identifications.
#[test]
fn fragments_of_hosts_behind_one_address_are_never_mixed_up() {
    beside_others(|| {
        let kernel = arrived(&kernel_router(Tracking::Masquerade)?)?;
        let mut lab = masquerading()?;
        let (own, mixed) = arrived(&lab)?;
        println!("{mixed} of {own} are mixed up; behind the kernel {} of {}", kernel.1, kernel.0);
        assert!(own > 500, "{own} arrive");
        assert_eq!(mixed, 0, "of {own}");
        assert!(kernel.1 > 0, "the test would see it");
        stop_cleanly(&mut lab)
    });
}
