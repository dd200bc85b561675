//! Broadcast questions by SNMP and for NetBIOS names, whose answers are expected. The kernel's
//! helpers see only the questions of their own host, so on that side a host asks.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use flow::{FlowKey, Zone};
use lab::{Error, Random, Result};
use wire::dissect;

use crate::scenario::cables::forwarding_namespace;
use crate::scenario::trackers::dialogue::packet;
use crate::scenario::trackers::kernel::Answer;
use crate::scenario::trackers::stateway::{Given, Ours};

const QUESTIONS: u64 = 300;
const HOST: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
/// The broadcast address of the host's network. The others are the general broadcast address, a
/// multicast address and the address of one host.
const EVERYBODY: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 255);
const OTHERS: [Ipv4Addr; 3] =
    [Ipv4Addr::BROADCAST, Ipv4Addr::new(224, 0, 0, 251), Ipv4Addr::new(192, 0, 2, 9)];
/// The first source port. Each question has its own port.
const FIRST: u64 = 20000;
/// The helpers expect answers to name questions for three seconds. A run that took longer is
/// repeated.
const SOON: Duration = Duration::from_secs(2);
const ATTEMPTS: usize = 5;

const RULES: &str = "table ip t {\n\
    ct helper snmp { type \"snmp\" protocol udp; }\n\
    ct helper names { type \"netbios-ns\" protocol udp; }\n\
    chain output { type filter hook output priority filter; policy accept;\n\
    udp dport 161 ct helper set \"snmp\"\n\
    udp dport 137 ct helper set \"names\"\n}\n}\n";

/// Sends the questions, and prints the expectations after each.
const ASKER: &str = "
import socket, subprocess, sys
for line in sys.stdin.readlines():
    source, port, to = line.split()
    asker = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    asker.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
    asker.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b'client0')
    asker.bind(('192.0.2.1', int(source)))
    asker.sendto(b'who is there?', (to, int(port)))
print(subprocess.run(['conntrack', '-L', 'expect'], capture_output=True, text=True).stdout, end='')
";

struct Question {
    source_port: u16,
    port: u16,
    to: Ipv4Addr,
}

impl Question {
    fn of(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let port = random.one_of(&[161, 161, 137, 137, 162]);
        let to = if random.once_in(3) { random.one_of(&OTHERS) } else { EVERYBODY };
        Self { source_port: (FIRST + seed) as u16, port, to }
    }

    fn frame(&self) -> Vec<u8> {
        let group = self.to != OTHERS[2];
        let to = if group { [0xff; 6] } else { [2, 0, 0, 0, 0, 9] };
        let mut frame = Vec::new();
        let packet = packet(IpAddr::V4(HOST), IpAddr::V4(self.to)).macs([2, 0, 0, 0, 0, 1], to);
        packet.udp(self.source_port, self.port, b"who is there?", &mut frame);
        frame
    }
}

/// The expectations by the port of the question: the remaining time, and the rest of the line
/// without the addresses that may answer.
type Expected = BTreeMap<u16, (u64, String)>;

fn read<'a>(lines: impl Iterator<Item = &'a str>) -> Expected {
    let each = lines.map(|line| {
        let (time, rest) = line.split_once(' ').expect("a time");
        let fields = rest.split(' ');
        // The first of the two ports is that of the answer.
        let mut ports = fields.clone().filter_map(|field| field.strip_prefix("dport="));
        let port = ports.next().and_then(|port| port.parse().ok()).expect("a port");
        let is_who = |field: &&str| field.starts_with("src=") || field.starts_with("mask-src=");
        let rest: Vec<&str> = fields.filter(|field| !is_who(field)).collect();
        (port, (time.parse().expect("seconds"), rest.join(" ")))
    });
    each.collect()
}

/// The kernel's expectations, and the time that the questions took.
fn kernels(questions: &[Question]) -> Result<(Expected, Duration)> {
    let mut orders = String::new();
    for Question { source_port, port, to } in questions {
        writeln!(orders, "{source_port} {port} {to}").unwrap();
    }
    for _ in 0..ATTEMPTS {
        let namespace = forwarding_namespace("kernel")?;
        namespace.ip(&["addr add 192.0.2.1/24 broadcast 192.0.2.255 dev client0"])?;
        namespace.load_rules(RULES).map_err(|error| Error::Unavailable {
            why: format!("this kernel lacks helpers for questions: {error}"),
        })?;
        let before = Instant::now();
        let asker = namespace.program("/usr/bin/python3").args(["-c", ASKER]);
        let listed = asker.input(orders.clone()).check()?;
        let took = before.elapsed();
        if took < SOON {
            return Ok((read(listed.lines()), took));
        }
    }
    Err(Error::Unavailable { why: "this machine is too busy to ask in two seconds".into() })
}

fn ours(questions: &[Question]) -> Expected {
    let mut ours = Ours::new(&[], Given::default());
    for question in questions {
        let frame = question.frame();
        let network = dissect(&frame).unwrap().network.unwrap();
        let key = FlowKey::of_packet(&network, Zone(0)).unwrap().key;
        let (at, until) = (Duration::from_secs(1), Duration::from_secs(1));
        let now = Answer { dialogue: 0, step: 0, at, until, said: None, log: String::new() };
        ours.track(&frame, &key, &now);
    }
    read(ours.list_expected().iter().map(String::as_str))
}

/// The kernel expects answers from the network of its host, and only to questions for that network.
/// A bridge knows no network.
const NETWORK: &str = "every host that is asked may answer, whatever its network";

/// Compares the kernel's expectations with ours.
pub fn compare() -> Result<()> {
    let questions: Vec<Question> = (0..QUESTIONS).map(Question::of).collect();
    let ((mut kernels, took), mut ours) = (kernels(&questions)?, ours(&questions));
    let (mut alike, mut reasons) = (0, BTreeMap::new());
    for Question { source_port, port, to } in &questions {
        let [kernel, ours] = [&mut kernels, &mut ours].map(|expected| expected.remove(source_port));
        match (&kernel, &ours) {
            (None, Some(_)) if OTHERS[..2].contains(to) => {
                *reasons.entry(NETWORK).or_insert(0) += 1;
            }
            (None, None) => {}
            (Some((time, kernel)), Some((other, ours)))
                if time.abs_diff(*other) <= 1 + took.as_secs() && kernel == ours =>
            {
                alike += 1;
            }
            _ => panic!("{port} of {to}\nkernel: {kernel:?}\nours: {ours:?}"),
        }
    }
    assert!(kernels.is_empty() && ours.is_empty(), "{kernels:?} {ours:?}");
    println!("{} questions, {alike} expected alike, {reasons:?}", questions.len());
    assert!(alike * 3 > questions.len(), "{alike}");
    Ok(())
}
