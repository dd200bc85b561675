//! Lanes: flows that selectors name have a receive queue of their own.

use std::thread::sleep;
use std::time::Duration;

use lab::{Background, CpuSet, Family, GeneratorSpec, Lab, Result, StatewaySpec, packet_rate};
use serde_json::Value;

use crate::scenario::{
    FAMILIES, alone, beside_others, bridge_spec, ready, start, stateway, stateway_binary,
    stop_cleanly,
};

/// The flows of `START`: those of the first two ports are in one lane, those of the others in the
/// other one. Port 9 is that of the generator.
const SELECTORS: &str = "
[[selector]]
service = \"bulk\"
protocol = \"tcp\"

[[selector]]
service = \"latency\"
port = \"7101-7102\"
";

/// The same with the generator in the lane for latency.
const FLOODED: &str = "
[[selector]]
service = \"latency\"
port = 9
";

const END: &str = "/dev/shm/end";

/// Sends numbered datagrams to four ports of each server until the file exists, and prints how many.
const SEND: &str = "
import os, socket, sys, time
end, *servers = sys.argv[1:]
flows = []
for port in (7101, 7102, 7201, 7202):
    for server in servers:
        kind, _, _, _, place = socket.getaddrinfo(server, port, type=socket.SOCK_DGRAM)[0]
        flow = socket.socket(kind, socket.SOCK_DGRAM)
        flow.connect(place)
        flows.append(flow)
number = 0
print('ready', flush=True)
while not os.path.exists(end):
    for flow in flows: flow.send(b'%d' % number)
    number += 1
    time.sleep(0.002)
print('sent:', number * len(flows), flush=True)
";

/// Takes them until the file exists and nothing comes any more, and prints how many came, and how many
/// of them behind a later one of their flow.
const TAKE: &str = "
import os, select, socket, sys
sockets = []
for port in (7101, 7102, 7201, 7202):
    s = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
    s.bind(('::', port))
    sockets.append(s)
last, came, overtaken = {}, 0, 0
print('ready', flush=True)
while True:
    some = select.select(sockets, [], [], 1)[0]
    if not some and os.path.exists(sys.argv[1]): break
    for s in some:
        data, source = s.recvfrom(100)
        flow, number = (s.fileno(), source[:2]), int(data)
        came += 1
        if number <= last.get(flow, -1): overtaken += 1
        last[flow] = max(number, last.get(flow, -1))
print('came:', came, 'overtaken:', overtaken, 'flows:', len(last), flush=True)
";

fn mix_spec(workers: u32, selectors: &str) -> Result<StatewaySpec> {
    let (interface, more) = ("policy = \"mix\"\n".to_owned(), selectors.to_owned());
    Ok(StatewaySpec { interface, more, ..bridge_spec(workers)? })
}

/// Numbered datagrams on their way, in both directions.
struct Numbered([[Background; 2]; 2]);

impl Numbered {
    fn start(lab: &Lab) -> Result<Self> {
        let way = |from_client: bool| -> Result<[Background; 2]> {
            let address = |family| match from_client {
                true => lab.server_address(family),
                false => lab.client_address(family),
            };
            let [v4, v6] = FAMILIES.map(|family| address(family).to_string());
            let (from, to) = match from_client {
                true => (lab.on_client("python3"), lab.on_server("python3")),
                false => (lab.on_server("python3"), lab.on_client("python3")),
            };
            let taking = ready(to.args(["-c", TAKE, END]))?;
            // A sender that moves to another CPU may overtake itself in the kernel.
            let from = from.cpus(&CpuSet::new([0]));
            Ok([ready(from.args(["-c", SEND, END, &v4, &v6]))?, taking])
        };
        Ok(Self([way(true)?, way(false)?]))
    }

    /// Ends it. No datagram has overtaken another one of its flow. Returns the numbers of those that
    /// were sent and of those that came.
    fn finish(self, lab: &Lab) -> Result<[u64; 2]> {
        lab.client().write_file("end", b"")?;
        lab.server().write_file("end", b"")?;
        let mut all = [0; 2];
        for [sending, taking] in self.0 {
            let word = |text: &str, at: usize| -> u64 {
                text.lines().last().unwrap().split(' ').nth(at).unwrap().parse().unwrap()
            };
            let sent = sending.finish()?.stdout;
            all[0] += word(&sent, 1);
            let came = taking.finish()?.stdout;
            println!("{sent}{came}");
            assert!(came.trim_end().ends_with("overtaken: 0 flows: 8"), "{came}");
            all[1] += word(&came, 1);
        }
        Ok(all)
    }
}

/// The counters of the lanes of `lan0`.
fn lanes(lab: &Lab) -> Result<Value> {
    let shown = stateway(lab).query(&["policy", "show"])?;
    let lanes = shown["lanes"]["lan0"].clone();
    let status = stateway(lab).query(&["status"])?;
    assert!(status["ports"][0]["lanes"].is_object(), "{status}");
    println!("{lanes}");
    Ok(lanes)
}

fn count(lane: &Value, name: &str) -> u64 {
    lane[name].as_u64().expect("a counter")
}

/// As many frames as the interface takes, to port 9.
fn flood(lab: &Lab) -> Result<()> {
    let time = Duration::from_secs(2);
    let spec = GeneratorSpec { time, ..GeneratorSpec::new(stateway_binary()?) };
    packet_rate(lab, &spec).map(drop)
}

#[test]
fn no_flow_is_out_of_order_while_policies_workers_and_buckets_change_under_load() {
    alone(|| {
        let spec = mix_spec(2, SELECTORS)?;
        let mut lab = start(StatewaySpec { gateway: "balance = \"50ms\"\n".to_owned(), ..spec })?;
        let numbered = Numbered::start(&lab)?;
        let set = |device: &str, policy: &str| {
            stateway(&lab).command(&["policy", "set", device, policy]).check()
        };
        std::thread::scope(|scope| {
            let flooding = scope.spawn(|| flood(&lab));
            for (workers, policy) in [("1", "none"), ("2", "mix"), ("3", "bulk"), ("2", "mix")] {
                set("lan0", policy)?;
                stateway(&lab).command(&["steer", "set", "--workers", workers]).check()?;
                set("wan0", policy)?;
                sleep(Duration::from_millis(400));
            }
            flooding.join().expect("the thread has not panicked")
        })?;
        let [sent, came] = numbered.finish(&lab)?;
        assert!(0 < came && came <= sent, "{came} of {sent}");
        let lanes = lanes(&lab)?;
        assert!(count(&lanes["latency"], "received") > 0, "{lanes}");
        stop_cleanly(&mut lab)
    });
}

#[test]
fn a_flood_of_bulk_takes_nothing_from_latency_and_the_other_way_round() {
    alone(|| {
        for (selectors, calm, flooded) in
            [(SELECTORS, "latency", "bulk"), (FLOODED, "bulk", "latency")]
        {
            let mut lab = start(mix_spec(1, selectors)?)?;
            let numbered = Numbered::start(&lab)?;
            flood(&lab)?;
            let [_, came] = numbered.finish(&lab)?;
            let lanes = lanes(&lab)?;
            assert!(came > 0 && count(&lanes[calm], "received") > 0, "{lanes}");
            assert_eq!(count(&lanes[calm], "lost"), 0, "{lanes}");
            let carried = count(&lanes[flooded], "received");
            assert!(carried > count(&lanes[calm], "received"), "{lanes}");
            stop_cleanly(&mut lab)?;
        }
        Ok(())
    });
}

#[test]
fn a_device_without_selectors_has_one_lane_and_says_so() {
    beside_others(|| {
        let mut lab = start(mix_spec(1, "")?)?;
        let shown = stateway(&lab).command(&["policy", "show", "lan0"]).check()?;
        assert!(shown.starts_with("lan0: mix; one lane for all packets"), "{shown}");
        stop_cleanly(&mut lab)?;
        let mut lab = start(mix_spec(1, SELECTORS)?)?;
        assert_eq!(
            lab::ping(lab.on_client("ping"), lab.server_address(Family::V4), 3)?.received,
            3
        );
        let shown = stateway(&lab).command(&["policy", "show", "lan0"]).check()?;
        assert!(shown.starts_with("lan0: mix; latency 0 packets, 0 lost; bulk "), "{shown}");
        stop_cleanly(&mut lab)
    });
}

#[test]
fn an_explanation_names_the_lane_in_which_the_packets_come() {
    alone(|| {
        let mut lab = start(mix_spec(1, SELECTORS)?)?;
        let explain = |question: &str| {
            let words: Vec<&str> =
                ["policy", "explain"].into_iter().chain(question.split(' ')).collect();
            stateway(&lab).query(&words)
        };
        let before = lanes(&lab)?;
        let numbered = Numbered::start(&lab)?;
        let [_, came] = numbered.finish(&lab)?;
        assert!(came > 0);
        let after = lanes(&lab)?;
        for (port, service, says) in [
            (7101, "latency", "decides"),
            (7201, "bulk", "other ports"),
            (9, "bulk", "other ports"),
        ] {
            let answer = explain(&format!("udp 192.0.2.1:40000 192.0.2.2:{port} in lan0"))?;
            assert_eq!(answer["service"], service, "{answer}");
            assert_eq!(answer["selectors"][0]["says"], "other protocol", "{answer}");
            assert_eq!(answer["selectors"][1]["says"], says, "{answer}");
            assert_eq!(answer["workers"][0]["waits_by"], "mix", "{answer}");
            let came = count(&after[service], "received") - count(&before[service], "received");
            assert!(came > 0, "{after}");
        }
        let device = explain("wan0")?;
        assert_eq!(device["lanes"], "latency_and_bulk", "{device}");
        assert_eq!(device["selectors"][1]["flows"], "ports 7101-7102", "{device}");
        for (question, why) in [
            ("lan7", "the gateway has no device \"lan7\""),
            ("udp 192.0.2.1:1 192.0.2.2:2", "by which device does it come?"),
        ] {
            let words: Vec<&str> = question.split(' ').collect();
            let refused = stateway(&lab).command(&["policy", "explain"]).args(&words).run()?;
            assert_eq!(refused.code, Some(2), "{refused:?}");
            assert!(refused.stderr.contains(why), "{refused:?}");
        }
        stop_cleanly(&mut lab)
    });
}
