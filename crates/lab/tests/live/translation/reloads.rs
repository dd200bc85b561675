//! Rules that translate are replaced again and again while flows run through them.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use lab::{Family, Lab, Namespace, Result, iperf_tcp, iperf_udp, ping};
use serde_json::Value;

use crate::scenario::{
    beside_others, drops, edge_router, ready, ruleset_file, source_echo, stateway, stop_cleanly,
};

/// The number of times that the rules are replaced.
const RELOADS: usize = 100;
/// The number of flows that ask all the time. One in four of them opens a new socket after a while.
const FLOWS: u32 = 200;
/// The duration of a stream and of datagrams while sets change.
const STREAM: Duration = Duration::from_secs(3);

/// A ruleset that translates, marks every packet with its number, and drops packets with another
/// mark in all later stages: half of one ruleset with half of another drops everything. The two
/// rulesets translate alike in different words.
fn rules(number: u32) -> String {
    let (forwards, masquerades) = if number == 1 {
        (
            "iifname lan0 udp dport 701 counter dnat ip to 198.51.100.2:7000",
            "oifname wan0 counter masquerade",
        )
    } else {
        (
            "ip daddr 198.51.100.254 meta l4proto udp dnat ip to udp dport map { \
             701 : 198.51.100.2 . 7000, 702 : 198.51.100.2 . 7 }",
            "meta nfproto ipv4 udp dport 7000 counter masquerade",
        )
    };
    format!(
        "table inet t{number} {{
    set seen {{
        type ipv4_addr
        flags interval
        elements = {{ 192.0.2.0/24, 198.51.100.0/24 }}
    }}
    chain first {{
        type filter hook prerouting priority raw; policy accept;
        meta mark set {number}
    }}
    chain in {{
        type nat hook prerouting priority dstnat; policy accept;
        {forwards}
    }}
    chain forward {{
        type filter hook forward priority filter; policy drop;
        meta mark != {number} counter drop
        ip saddr @seen counter accept
    }}
    chain last {{
        type filter hook postrouting priority mangle; policy accept;
        meta mark != {number} counter drop
    }}
    chain out {{
        type nat hook postrouting priority srcnat; policy accept;
        {masquerades}
    }}
}}
"
    )
}

/// Every flow asks, and asks again after each answer, until a file `stop` exists. Prints the number
/// of questions, the number that had no answer within two seconds, and the number of flows that had
/// more than one source.
const ASK: &str = "
import os, selectors, socket, sys, time
flows, stop = int(sys.argv[1]), sys.argv[2]
selector, asked, moved = selectors.DefaultSelector(), 0, 0
class Flow:
    def __init__(self, number):
        # Half of the flows use the translated address, with a destination port outside those for
        # sources: all packets to such a port share a bucket.
        self.to = ('198.51.100.2', 7000) if number % 2 else ('198.51.100.254', 701)
        self.renewed = number % 4 == 0
        self.open()
    def open(self):
        self.s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.s.connect(self.to)
        self.s.setblocking(False)
        self.sources, self.count = set(), 0
        selector.register(self.s, selectors.EVENT_READ, self)
    def ask(self):
        global asked
        asked += 1
        self.count += 1
        self.at = time.monotonic()
        self.s.send(b'%d' % self.count)
    def close(self):
        global moved
        moved += len(self.sources) > 1
        selector.unregister(self.s)
        self.s.close()
all = [Flow(number) for number in range(flows)]
for flow in all:
    flow.ask()
print('ready', flush=True)
lost, waiting = 0, set(all)
def over():
    return os.path.exists(stop)
last, ending = 0, False
while waiting:
    for key, _ in selector.select(0.05):
        flow = key.data
        count, source = flow.s.recv(200).split(maxsplit=1)
        if int(count) != flow.count:
            continue
        flow.sources.add(source)
        if ending:
            waiting.discard(flow)
            continue
        if flow.renewed and flow.count == 20:
            flow.close()
            flow.open()
        flow.ask()
    now = time.monotonic()
    if now - last > 0.2:
        last, ending = now, over()
        for flow in list(waiting):
            if now - flow.at > 2:
                lost += 1
                waiting.discard(flow) if ending else flow.ask()
for flow in all:
    flow.close()
print('told', asked, lost, moved, flush=True)
";

/// Large rulesets take the command a while.
fn load_file(lab: &Lab, file: &str) -> Result<()> {
    let program = stateway(lab).command(&["rules", "load", file]);
    program.limit(Duration::from_secs(60)).check().map(drop)
}

#[test]
fn rules_that_translate_are_exchanged_and_no_flow_notices() {
    beside_others(|| {
        let mut lab = edge_router(2, "", "")?;
        let mut files = Vec::new();
        for number in [1, 2] {
            files.push(ruleset_file(&lab, &format!("{number}.json"), &rules(number))?);
        }
        load_file(&lab, &files[0])?;
        let _echo = source_echo(lab.server(), 7000)?;
        // All flows ask at once, which is more than may wait for an unresolved link address.
        let first = ping(lab.on_client("ping"), lab.server_address(Family::V4), 1)?;
        assert_eq!(first.received, 1);
        let stop = format!("{}/stop", Namespace::SCRATCH);
        let flows = FLOWS.to_string();
        let mut asking = ready(lab.client().program("python3").args(["-c", ASK, &flows, &stop]))?;
        for number in 1..=RELOADS {
            load_file(&lab, &files[number % 2])?;
        }
        lab.client().write_file("stop", b"")?;
        asking.wait_for_text("told")?;
        let said = asking.log();
        let numbers: Vec<u64> =
            said.split_whitespace().filter_map(|word| word.parse().ok()).collect();
        let [asked, lost, moved] = numbers[..] else { panic!("{said}") };
        println!("{asked} questions while rules were exchanged {RELOADS} times");
        assert!(asked > 10 * u64::from(FLOWS), "{said}");
        assert_eq!((lost, moved), (0, 0), "{said}");
        assert_eq!(
            drops(stateway(&lab), "rule_refused")? + drops(stateway(&lab), "policy_refused")?,
            0
        );
        stop_cleanly(&mut lab)
    });
}

/// The ruleset with this many elements in its set. None is the address of a host, and each `change`
/// gives other elements.
fn with_elements(printed: &str, count: u32, change: u32) -> String {
    let mut document: Value = serde_json::from_str(printed).expect("nft prints JSON");
    let objects = document["nftables"].as_array_mut().expect("a list of objects");
    let set = objects.iter_mut().find_map(|object| object.get_mut("set")).expect("a set");
    let address = |number: u32| {
        // From the network for benchmarks (RFC 2544).
        std::net::Ipv4Addr::from(0xc612_0000 + number).to_string()
    };
    let elements = (0..count).map(|number| Value::from(address(number + change)));
    set["elem"] = elements.collect();
    document.to_string()
}

#[test]
fn streams_go_on_while_a_hundred_thousand_elements_change() {
    const ELEMENTS: u32 = 100_000;
    const RULES: &str = "
table inet t {
    set blocked {
        type ipv4_addr
        elements = { 198.18.0.0 }
    }
    chain forward {
        type filter hook forward priority filter; policy drop;
        ip saddr @blocked counter drop
        ip daddr @blocked counter drop
        iifname lan0 counter accept
        ct state established,related counter accept
    }
    chain out {
        type nat hook postrouting priority srcnat; policy accept;
        oifname wan0 counter masquerade
    }
}
";
    beside_others(|| {
        let mut lab = edge_router(2, "", "")?;
        let printed = lab.server().printed_rules(RULES)?;
        let mut files = Vec::new();
        for change in 0..2 {
            let rules = with_elements(&printed, ELEMENTS, change * 1000);
            files.push(lab.gateway().write_file(&format!("{change}.json"), rules.as_bytes())?);
        }
        load_file(&lab, &files[0])?;
        let is_over = AtomicBool::new(false);
        let (reloads, stream, datagrams) = thread::scope(|scope| {
            let traffic = scope.spawn(|| {
                let both = iperf_tcp(&lab, Family::V4, STREAM, 4).and_then(|tcp| {
                    Ok((tcp, iperf_udp(&lab, Family::V4, STREAM, 5_000_000, 1200)?))
                });
                is_over.store(true, Ordering::Relaxed);
                both
            });
            let mut reloads = 0;
            while !is_over.load(Ordering::Relaxed) {
                reloads += 1;
                load_file(&lab, &files[reloads % 2])?;
            }
            let (stream, datagrams) = traffic.join().expect("a client does not panic")?;
            Ok((reloads, stream, datagrams))
        })?;
        println!(
            "{reloads} times {ELEMENTS} elements, {:.2} Gbit/s, {} retransmits, {} datagrams",
            stream.bits_per_second / 1e9,
            stream.retransmits,
            datagrams.packets
        );
        assert!(reloads > 2 && stream.bytes > 1_000_000, "{stream:?}");
        assert_eq!((datagrams.lost, datagrams.out_of_order), (0, 0), "{datagrams:?}");
        assert_eq!(
            drops(stateway(&lab), "rule_refused")? + drops(stateway(&lab), "policy_refused")?,
            0
        );
        let listed = stateway(&lab).query(&["rules", "list"])?;
        let objects = listed["nftables"].as_array().expect("a list of objects");
        let set = objects.iter().find_map(|object| object.get("set")).expect("a set");
        assert_eq!(set["elem"].as_array().map(Vec::len), Some(ELEMENTS as usize));
        stop_cleanly(&mut lab)
    });
}
