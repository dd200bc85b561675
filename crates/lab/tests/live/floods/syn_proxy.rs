//! Real clients and servers with a gateway in between that answers SYNs, and a flood of SYNs with
//! spoofed addresses.

use std::net::IpAddr;
use std::time::Duration;

use lab::{
    Capture, Datagrams, Error, Family, HttpServer, Lab, Result, StatewaySpec, Tracking, at_pace,
    iperf_tcp,
};
use serde_json::Value;
use wire::build::{PacketBuilder, Tcp};
use wire::tcp_option::{TcpOptions, of_segment};
use wire::{TcpFlags, TcpInfo, Transport, dissect};

use crate::scenario::{
    FAMILIES, SHORT, StatewayLab, alone, bridge_spec, every_client, kernel_router, load,
    router_spec, start, stateway, stateway_binary, stop_cleanly, web_pages_arrive_intact,
};

const PORT: u16 = 8080;
/// The number of SYNs in the flood, and their rate per second.
const FLOOD: u32 = 12_000;
const RATE: u32 = 4_000;
/// The number of connections that are opened during the flood.
const HONEST: u64 = 16;

fn lab_with(workers: u32, tunables: &str) -> Result<StatewayLab> {
    let spec = StatewaySpec { more: format!("[tunables]\n{tunables}\n"), ..bridge_spec(workers)? };
    start(spec)
}

fn totals(lab: &Lab) -> Result<Value> {
    let status = stateway(lab).query(&["status"])?;
    Ok(status["totals"].clone())
}

fn counter(totals: &Value, group: &str, name: &str) -> u64 {
    totals[group][name].as_u64().expect("a counter")
}

/// Servers that send first. The client sends nothing that would probe its closed window.
const GREET: &str = "
import socket
s = socket.create_server(('::', 8025), family=socket.AF_INET6, dualstack_ipv6=True)
while True:
    c, _ = s.accept()
    c.sendall(b'220 mail.example\\r\\n')
    print(c.recv(100), flush=True)
    c.close()
";
const BE_GREETED: &str = "
import socket, sys
s = socket.create_connection((sys.argv[1], 8025), 5)
print(s.recv(100).decode().strip())
s.sendall(b'QUIT')
assert s.recv(1) == b''
";

fn servers_may_speak_first(lab: &Lab) -> Result<()> {
    let mut server = lab.on_server("python3").args(["-c", GREET]).spawn()?;
    server.wait_for_port(lab::Transport::Tcp, 8025)?;
    for family in FAMILIES {
        let to = lab.server_address(family).to_string();
        let said = lab.on_client("python3").args(["-c", BE_GREETED, &to]).check()?;
        assert_eq!(said.trim(), "220 mail.example", "{family:?}");
    }
    Ok(())
}

/// Checks a closed port: the client is connected and then reset.
fn refusals_arrive(lab: &Lab) -> Result<()> {
    for family in FAMILIES {
        let url = match lab.server_address(family) {
            IpAddr::V4(to) => format!("http://{to}:9/"),
            IpAddr::V6(to) => format!("http://[{to}]:9/"),
        };
        let curl = ["-sS", "--globoff", "--noproxy", "*", "-m", "5", &url];
        let output = lab.on_client("curl").args(curl).run()?;
        // The code depends on whether curl was connecting, sending or receiving when the reset
        // came. No code is that of a timeout.
        assert!(matches!(output.code, Some(7 | 55 | 56)), "{family:?}: {output:?}");
    }
    Ok(())
}

fn every_client_is_answered_for(workers: u32) {
    alone(|| {
        let mut lab = lab_with(workers, "stateway_syn_proxy_half_open = 1")?;
        every_client(&lab)?;
        servers_may_speak_first(&lab)?;
        refusals_arrive(&lab)?;
        let totals = totals(&lab)?;
        let of = |name| counter(&totals, "syn_proxy", name);
        // In both families: two pages, two names, two greetings, two refusals, and the connections
        // of iperf3.
        assert!(of("cookie_valid") >= 14, "{totals}");
        assert_eq!((of("cookie_invalid"), of("conn_reopened")), (0, 0), "{totals}");
        let stats = stateway(&lab).query(&["conntrack", "stats"])?;
        assert!(counter(&stats, "syn_proxy", "cookie_valid") >= 14, "{stats}");
        let dropped = totals["drops"].as_object().expect("an object");
        let unwanted = dropped
            .iter()
            .filter(|(name, count)| name.starts_with("tcp_") && count.as_u64() != Some(0));
        assert_eq!(unwanted.count(), 0, "{totals}");
        stop_cleanly(&mut lab)
    });
}

#[test]
fn every_client_is_answered_for_by_one_worker() {
    every_client_is_answered_for(1);
}

#[test]
fn every_client_is_answered_for_by_two_workers() {
    every_client_is_answered_for(2);
}

/// The ends lack options that the proxy promises to the other side; both directions are tested.
#[test]
fn ends_that_offer_less_still_talk() {
    const BYTES: usize = 3_000_000;
    alone(|| {
        let mut lab = lab_with(2, "stateway_syn_proxy_half_open = 1")?;
        let http = HttpServer::start(&lab, BYTES)?;
        let ends = [lab.client(), lab.server()];
        for name in ["tcp_timestamps", "tcp_window_scaling", "tcp_sack"] {
            for end in ends {
                let set = |value| {
                    let setting = format!("net.ipv4.{name}={value}");
                    end.sysctl([&setting])
                };
                set(0)?;
                for family in FAMILIES {
                    let got = http.download(&lab, family)?;
                    assert_eq!((got.bytes, got.intact), (BYTES as u64, true), "{name} {family:?}");
                }
                let there = iperf_tcp(&lab, Family::V4, SHORT, 1)?;
                println!("without {name}: {there:?}");
                assert!(there.bytes > 1_000_000, "{name}: {there:?}");
                set(1)?;
            }
        }
        let totals = totals(&lab)?;
        assert_eq!(counter(&totals, "syn_proxy", "cookie_invalid"), 0, "{totals}");
        stop_cleanly(&mut lab)
    });
}

/// A flood from 203.0.113.0/24.
fn flood(lab: &Lab) -> Result<Capture> {
    let IpAddr::V4(server) = lab.server_address(Family::V4) else { panic!("no IPv4") };
    let syn = |number: u32| {
        let tcp = Tcp {
            source_port: 1024 + (number / 250) as u16,
            destination_port: PORT,
            sequence: number,
            flags: TcpFlags::SYN,
            window: 64_000,
            options: &[2, 4, 5, 180],
            ..Tcp::default()
        };
        let mut frame = Vec::new();
        PacketBuilder::v4([203, 0, 113, (1 + number % 250) as u8], server.octets())
            .macs([0, 0, 0x5e, 0, 0x53, 0x77], lab.next_hop_mac())
            .tcp(&tcp, &[], &mut frame);
        frame
    };
    Ok(at_pace(&(0..FLOOD).map(syn).collect::<Vec<_>>(), RATE))
}

const COUNT_SPOOFED: &str = "
table ip spoofed {
    counter syns { }
    chain input {
        type filter hook input priority filter; policy accept;
        ip saddr 203.0.113.0/24 tcp flags & (syn | ack) == syn counter name syns
    }
}
";

/// The number of SYNs of the flood that reached the server.
fn reached(lab: &Lab) -> Result<u64> {
    let text = lab.on_server("nft").args(["list", "counters"]).check()?;
    let mut words = text.split_whitespace().skip_while(|word| *word != "packets");
    Ok(words.nth(1).and_then(|word| word.parse().ok()).expect("a counter"))
}

/// Routes the server's answers to the spoofed network through the client.
fn lead_answers_back(lab: &Lab) -> Result<()> {
    let route = format!("route add 203.0.113.0/24 via {}", lab.client_address(Family::V4));
    lab.server().ip(&[&route])
}

/// Runs a flood while clients connect. Returns how many clients were served, how many SYNs reached
/// the server (which `count` counts), and how many connections the gateway holds afterwards.
fn withstand(lab: &Lab, count: &str) -> Result<(u64, u64, u64)> {
    let http = HttpServer::start(lab, 20_000)?;
    lab.server().load_rules(count)?;
    let datagrams = Datagrams::new(lab, &stateway_binary()?)?;
    let flood = datagrams.start_sending(lab, &flood(lab)?)?;
    let mut served = 0;
    for number in 0..HONEST {
        let family = FAMILIES[number as usize % 2];
        served += u64::from(http.download(lab, family).is_ok_and(|got| got.intact));
        std::thread::sleep(Duration::from_millis(50));
    }
    flood.finish()?;
    let held = stateway(lab).query(&["status"])?;
    Ok((served, reached(lab)?, held["connections"].as_u64().expect("a count")))
}

#[test]
fn a_flood_of_syns_does_not_reach_the_server() {
    const THRESHOLD: u64 = 100;
    alone(|| {
        let mut lab = lab_with(2, &format!("stateway_syn_proxy_half_open = {THRESHOLD}"))?;
        lead_answers_back(&lab)?;
        let (served, reached, held) = withstand(&lab, COUNT_SPOOFED)?;
        let totals = totals(&lab)?;
        println!("with the proxy: {served} served, {reached} reached, {held} held: {totals}");
        assert_eq!(served, HONEST, "{totals}");
        assert!(reached <= THRESHOLD, "{reached}");
        assert!(held <= THRESHOLD + HONEST + 20, "{held}");
        let answered = counter(&totals, "syn_proxy", "syn_received");
        assert!(answered + reached >= u64::from(FLOOD), "{totals}");
        assert!(counter(&totals, "syn_proxy", "cookie_valid") >= HONEST / 2, "{totals}");
        stop_cleanly(&mut lab)?;

        let mut lab = lab_with(2, "nf_conntrack_max = 1000")?;
        lead_answers_back(&lab)?;
        let (served, reached, held) = withstand(&lab, COUNT_SPOOFED)?;
        println!("without: {served} served, {reached} reached, {held} held");
        assert!(reached > u64::from(FLOOD) / 2, "the flood is none: {reached}");
        stop_cleanly(&mut lab)
    });
}

const MASQUERADE: &str = "
table inet nat {
    chain postrouting {
        type nat hook postrouting priority srcnat; policy accept;
        oifname wan0 masquerade
    }
}
";

/// Counts all SYNs, because all come from one address.
const COUNT_ALL: &str = "
table inet counted {
    counter syns { }
    chain input {
        type filter hook input priority filter; policy accept;
        tcp flags & (syn | ack) == syn counter name syns
    }
}
";

#[test]
fn a_flood_of_syns_is_answered_for_in_front_of_a_masquerade() {
    const THRESHOLD: u64 = 100;
    alone(|| {
        let spec = StatewaySpec {
            more: format!("[tunables]\nstateway_syn_proxy_half_open = {THRESHOLD}\n"),
            ..router_spec(2)?
        };
        let mut lab = start(spec)?;
        load(&lab, MASQUERADE)?;
        let (served, reached, held) = withstand(&lab, COUNT_ALL)?;
        let totals = totals(&lab)?;
        println!("{served} served, {reached} reached, {held} held: {totals}");
        assert_eq!(served, HONEST, "{totals}");
        assert!(reached <= THRESHOLD + HONEST, "{reached}");
        assert!(held <= THRESHOLD + HONEST + 20, "{held}");
        assert!(counter(&totals, "syn_proxy", "cookie_valid") >= HONEST / 2, "{totals}");
        stop_cleanly(&mut lab)
    });
}

/// Sends frames and prints the SYN+ACK that each gets.
const KNOCK: &str = "
import socket, sys
s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
s.bind(('eth0', 0))
s.settimeout(3)
for syn in map(bytes.fromhex, sys.argv[1:]):
    s.send(syn)
    while True:
        f = s.recv(2000)
        if f[23] == 6 and f[36:38] == syn[34:36] and f[47] & 0x12 == 0x12:
            print(f.hex())
            break
";

/// The parts of an answer that a client sees, without the cookie and the clock.
#[derive(Debug, PartialEq)]
struct Promise {
    acknowledgment: u32,
    flags: TcpFlags,
    window: u16,
    /// Sorted by kind. Of the timestamp only the lowest bits below the clock are kept.
    options: Vec<(u8, Vec<u8>)>,
}

/// The clock bits in the last byte of a timestamp.
const CLOCK: u8 = 0xc0;
/// The bit there that records the client's offer of ECN.
const ECN: u8 = 0x20;

impl Promise {
    fn read(line: &str) -> Self {
        let byte = |at: usize| u8::from_str_radix(&line[at..at + 2], 16).expect("hex digits");
        let frame: Vec<u8> = (0..line.len()).step_by(2).map(byte).collect();
        let network = dissect(&frame).unwrap().network.expect("a packet");
        let Transport::Tcp(tcp) = network.transport else { panic!("no TCP") };
        let options = TcpOptions::new(of_segment(&frame, &network, &tcp));
        let mut options: Vec<_> =
            options.map(|option| (option.kind, option.body.to_vec())).collect();
        options.sort();
        if let Some((_, stamps)) = options.iter_mut().find(|option| option.0 == 8) {
            let low = stamps[3] & !CLOCK;
            stamps[..4].copy_from_slice(&[0, 0, 0, low]);
        }
        let TcpInfo { acknowledgment, flags, window, .. } = tcp;
        Self { acknowledgment, flags, window, options }
    }
}

fn promises(lab: &Lab) -> Result<Vec<Promise>> {
    let (IpAddr::V4(from), IpAddr::V4(to)) =
        (lab.client_address(Family::V4), lab.server_address(Family::V4))
    else {
        panic!("no IPv4")
    };
    let ecn = TcpFlags::SYN.with(TcpFlags::ECE).with(TcpFlags::CWR);
    let offers: [(TcpFlags, &[u8]); 5] = [
        (TcpFlags::SYN, &[]),
        (TcpFlags::SYN, &[2, 4, 5, 180, 1, 3, 3, 10]),
        (TcpFlags::SYN, &[2, 4, 5, 180, 4, 2, 8, 10, 0, 0, 0, 9, 0, 0, 0, 0, 1, 3, 3, 10]),
        (ecn, &[2, 4, 5, 180, 4, 2, 8, 10, 0, 0, 0, 9, 0, 0, 0, 0, 1, 3, 3, 14]),
        (TcpFlags::SYN, &[1, 1, 8, 10, 0, 0, 0, 9, 0, 0, 0, 0]),
    ];
    let frame = |(number, (flags, options)): (u16, (TcpFlags, &[u8]))| {
        let tcp = Tcp {
            source_port: 50_000 + number,
            destination_port: PORT,
            sequence: 7,
            flags,
            window: 64_000,
            options,
            ..Tcp::default()
        };
        let mut frame = Vec::new();
        PacketBuilder::v4(from.octets(), to.octets())
            .macs([0, 0, 0x5e, 0, 0x53, 1], lab.next_hop_mac())
            .tcp(&tcp, &[], &mut frame);
        frame.iter().map(|byte| format!("{byte:02x}")).collect::<String>()
    };
    let frames = (0..).zip(offers).map(frame);
    let text = lab.on_client("python3").args(["-c", KNOCK]).args(frames).check()?;
    Ok(text.lines().map(Promise::read).collect())
}

/// Rules that make the proxy answer for all servers, and accept only packets of connections and
/// packets that are not TCP.
fn proxy_rules(promise: &str) -> String {
    format!(
        "
table inet proxy {{ }}
delete table inet proxy
table inet proxy {{
    chain early {{
        type filter hook prerouting priority raw; policy accept;
        tcp flags & (fin | syn | rst | ack) == syn notrack
    }}
    chain forward {{
        type filter hook forward priority -10; policy drop;
        ct state invalid,untracked synproxy {promise}
        ct state established,related accept
        meta l4proto != tcp accept
    }}
}}
"
    )
}

/// Promises that rules can make: all options, some, few.
const PROMISES: [&str; 4] = [
    "mss 1460 wscale 7 timestamp sack-perm",
    "mss 1300 wscale 3 timestamp",
    "mss 1400 timestamp sack-perm",
    "mss 900",
];

/// A gateway whose rules may enable the proxy.
fn ruled_lab() -> Result<StatewayLab> {
    lab_with(2, "nf_conntrack_tcp_loose = 0")
}

fn load_proxy(lab: &Lab, promise: &str) -> Result<()> {
    load(lab, &proxy_rules(promise))
}

#[test]
fn rules_have_every_client_answered_for() {
    alone(|| {
        let mut lab = ruled_lab()?;
        let valid = || Ok(counter(&totals(&lab)?, "syn_proxy", "cookie_valid"));
        let mut before = 0;
        for promise in PROMISES {
            load_proxy(&lab, promise)?;
            match promise == PROMISES[0] {
                true => every_client(&lab)?,
                false => web_pages_arrive_intact(&lab)?,
            }
            servers_may_speak_first(&lab)?;
            refusals_arrive(&lab)?;
            let now = valid()?;
            assert!(now >= before + 4, "{promise}: {before}, then {now}");
            before = now;
        }
        stop_cleanly(&mut lab)
    });
}

/// The kernel's promise in place of ours. The kernel announces no segment size to a client that
/// announced none, and still accepts other sizes than the default (RFC 9293 section 3.7.1 says that
/// it should announce one). It does not support ECN.
fn as_the_kernel(mut ours: Promise, sent_size: bool) -> Promise {
    ours.flags = ours.flags.without(TcpFlags::ECE);
    ours.options.retain(|option| sent_size || option.0 != 2);
    if let Some((_, stamps)) = ours.options.iter_mut().find(|option| option.0 == 8) {
        stamps[3] &= !ECN;
    }
    ours
}

fn kernel_proxy(lab: &Lab, promise: &str) -> Result<()> {
    let loaded = lab.gateway().load_rules(&proxy_rules(promise));
    loaded.map_err(|error| Error::Unavailable { why: format!("no SYNPROXY: {error}") })
}

/// Both sides have the same rules.
#[test]
fn clients_see_what_the_kernels_rules_promise() {
    alone(|| {
        let mut lab = ruled_lab()?;
        let mut ours = Vec::new();
        for promise in PROMISES {
            load_proxy(&lab, promise)?;
            ours.push(promises(&lab)?);
        }
        stop_cleanly(&mut lab)?;
        let lab = kernel_router(Tracking::Conntrack)?;
        for (promise, ours) in PROMISES.into_iter().zip(ours) {
            kernel_proxy(&lab, promise)?;
            let expected = ours.into_iter().zip([false, true, true, true, false]);
            let expected: Vec<_> = expected.map(|(ours, sent)| as_the_kernel(ours, sent)).collect();
            assert_eq!((expected.len(), &expected), (5, &promises(&lab)?), "{promise}");
        }
        Ok(())
    });
}

/// The kernel's own proxy with the same settings. The two gateways differ in everything else.
#[test]
fn clients_see_what_the_kernels_proxy_shows() {
    alone(|| {
        let mut lab = lab_with(2, "stateway_syn_proxy_half_open = 1")?;
        let ours = promises(&lab)?;
        stop_cleanly(&mut lab)?;
        let lab = kernel_router(Tracking::Conntrack)?;
        kernel_proxy(&lab, PROMISES[0])?;
        let expected = ours.into_iter().zip([false, true, true, true, false]);
        let expected: Vec<_> = expected.map(|(ours, sent)| as_the_kernel(ours, sent)).collect();
        assert_eq!(expected, promises(&lab)?);
        assert_eq!(expected.len(), 5);
        Ok(())
    });
}
