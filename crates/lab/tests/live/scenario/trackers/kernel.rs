//! The kernel's side: a namespace that forwards, and the kernel's result for each packet.

use std::collections::VecDeque;
use std::fmt::Write;
use std::fs;
use std::net::IpAddr;
use std::time::Duration;

use conntrack::helper::{Helpers, Kind};
use lab::{Error, Namespace, Result};
use wire::{Family, Transport, protocol};

use super::dialogue::{Dialogue, Step};
use super::outcome::{Class, Entry, Outcome, Way};
use crate::scenario::cables::{forwarding_namespace, player};

/// The classes. The rules of the namespace write their numbers into the DSCP.
const CLASSES: [(Class, Option<Way>); 7] = [
    (Class::New, Some(Way::Original)),
    (Class::Established, Some(Way::Original)),
    (Class::Established, Some(Way::Reply)),
    (Class::Related, Some(Way::Original)),
    (Class::Related, Some(Way::Reply)),
    (Class::Invalid, None),
    (Class::Untracked, None),
];

/// The states in the order of their numbers (`enum tcp_conntrack`, `ct_dccp_states` and
/// `sctp_conntrack` of the kernel's interface).
const TCP_STATES: [&str; 10] = [
    "NONE",
    "SYN_SENT",
    "SYN_RECV",
    "ESTABLISHED",
    "FIN_WAIT",
    "CLOSE_WAIT",
    "LAST_ACK",
    "TIME_WAIT",
    "CLOSE",
    "SYN_SENT2",
];
const DCCP_STATES: [&str; 8] =
    ["NONE", "REQUEST", "RESPOND", "PARTOPEN", "OPEN", "CLOSEREQ", "CLOSING", "TIMEWAIT"];
const SCTP_STATES: [&str; 9] = [
    "NONE",
    "CLOSED",
    "COOKIE_WAIT",
    "COOKIE_ECHOED",
    "ESTABLISHED",
    "SHUTDOWN_SENT",
    "SHUTDOWN_RECD",
    "SHUTDOWN_ACK_SENT",
    "HEARTBEAT_SENT",
];

/// Bits of an entry's status (`enum ip_conntrack_status` of the kernel's interface).
const SEEN_REPLY: u32 = 1 << 1;
const ASSURED: u32 = 1 << 2;

/// The namespace and its player.
pub struct Kernel {
    namespace: Namespace,
}

/// The kernel's result for a step, with its times.
pub struct Answer {
    pub dialogue: usize,
    /// The step of the dialogue.
    pub step: usize,
    /// The time when the step began.
    pub at: Duration,
    /// The time when the entry had been read.
    pub until: Duration,
    /// None for a step without a packet.
    pub said: Option<Outcome>,
    /// The kernel's reason, if it logs one.
    pub log: String,
}

impl Kernel {
    pub fn new() -> Result<Self> {
        is_recent()?;
        let namespace = forwarding_namespace("kernel")?;
        let sysctls = [
            "net.netfilter.nf_conntrack_log_invalid=255",
            "net.netfilter.nf_log.2=nfnetlink_log",
            "net.netfilter.nf_log.10=nfnetlink_log",
        ];
        namespace.load_rules(&rules())?;
        namespace.sysctl(sysctls)?;
        Ok(Self { namespace })
    }

    /// Attaches helpers.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if this kernel lacks one of them.
    pub fn attach_helpers(&self, kinds: &[Kind]) -> Result<()> {
        let mut helpers = Helpers::default();
        for &kind in kinds {
            helpers.attach(kind, kind.default_port()).expect("the port is free");
        }
        let (mut objects, mut rules) = (String::new(), String::new());
        for (number, (protocol, port, kind)) in helpers.iter().enumerate() {
            let (protocol, name) = (if protocol == 6 { "tcp" } else { "udp" }, kind.name());
            writeln!(objects, "ct helper h{number} {{ type \"{name}\" protocol {protocol}; }}")
                .unwrap();
            writeln!(rules, "{protocol} dport {port} ct helper set \"h{number}\"").unwrap();
        }
        let rules = format!(
            "table inet helpers {{\n{objects}chain forward {{\n\
             type filter hook forward priority filter - 1; policy accept;\n{rules}}}\n}}\n"
        );
        let output = self.namespace.program("nft").args(["-f", "-"]).input(rules).run()?;
        if output.code == Some(0) {
            return Ok(());
        }
        let why = format!("this kernel lacks helpers for {kinds:?}: {}", output.stderr.trim());
        Err(Error::Unavailable { why })
    }

    /// Gives all connections of a protocol timeouts by a rule; `policy` is in nft's syntax.
    pub fn set_timeouts(&self, protocol: &str, policy: &str) -> Result<()> {
        let rules = format!(
            "table inet timeouts {{\n\
             ct timeout given {{ protocol {protocol}; l3proto ip; policy = {{ {policy} }}; }}\n\
             chain forward {{ type filter hook forward priority filter - 1; policy accept;\n\
             ct timeout set \"given\"\n}}\n}}\n"
        );
        self.namespace.load_rules(&rules)
    }

    /// Sets zones, in nft's syntax, for packets by their TTL or hop limit.
    pub fn set_zones(&self, zones: &[(u8, &str)]) -> Result<()> {
        let mut rules = String::new();
        for (ttl, zone) in zones {
            for field in ["ip ttl", "ip6 hoplimit"] {
                writeln!(rules, "{field} {ttl} ct {zone}").unwrap();
            }
        }
        let rules = format!(
            "table inet zones {{\nchain raw {{\n\
             type filter hook prerouting priority raw; policy accept;\n{rules}}}\n}}\n"
        );
        self.namespace.load_rules(&rules)
    }

    /// Sets the connection tracking tunables, without those that only Stateway has.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if this kernel does not know one.
    pub fn tune(&self, tunables: &[(String, u64)]) -> Result<()> {
        let kernels = tunables.iter().filter(|(name, _)| name.starts_with("nf_"));
        let settings = kernels.map(|(name, value)| format!("net.netfilter.{name}={value}"));
        let program = self.namespace.program("sysctl").args(["-qw"]).args(settings);
        program.check().map(drop).map_err(|error| match error {
            Error::Failed { output, .. } if output.contains("No such file") => {
                let first = output.lines().next().unwrap_or_default();
                Error::Unavailable { why: format!("this kernel has no such tracker: {first}") }
            }
            other => other,
        })
    }

    /// Plays dialogues in turn, packet by packet, starting with an empty table.
    pub fn play(&self, dialogues: &[Dialogue], pause: Duration) -> Result<Vec<Answer>> {
        self.namespace.program("conntrack").args(["-F"]).check()?;
        let (orders, order) = orders(dialogues, pause);
        let limit = Duration::from_secs(60) + 4 * pause;
        let player = player(&self.namespace, include_bytes!("player.py"))?;
        let output = player.input(orders).limit(limit).check()?;
        let mut lines = output.lines();
        let answers = order.into_iter().map(|(dialogue, step)| {
            let line = lines.next().expect("an answer to each order");
            let mut words = line.splitn(3, ' ');
            let [at, until] = [(); 2].map(|()| {
                let time = words.next().and_then(|time| time.parse().ok());
                Duration::from_micros(time.expect("a time"))
            });
            let protocol = dialogues[dialogue].key().1.protocol;
            let (said, log) = said(words.next().unwrap_or_default(), protocol);
            Answer { dialogue, step, at, until, said, log }
        });
        Ok(answers.collect())
    }

    /// A table as `conntrack -L` prints it: that of connections, or `expect`.
    pub fn list(&self, table: &str) -> Result<Vec<String>> {
        let mut lines = Vec::new();
        for family in ["ipv4", "ipv6"] {
            let program = self.namespace.program("conntrack").args(["-L", table, "-f", family]);
            lines.extend(program.check()?.lines().map(str::to_owned));
        }
        Ok(lines)
    }
}

/// Our trackers follow Linux 6.6 and later; those of SCTP and ICMPv6 differed before.
fn is_recent() -> Result<()> {
    const OLDEST: [u32; 2] = [6, 6];
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").expect("a kernel has a release");
    let numbers = release.split('.').map_while(|number| number.parse::<u32>().ok());
    if numbers.lt(OLDEST) {
        let why = format!("trackers of Linux {} are others than ours", release.trim());
        return Err(Error::Unavailable { why });
    }
    Ok(())
}

/// Rules that forward every packet and write its class into the DSCP.
fn rules() -> String {
    let mut rules = "table inet judge {\nchain forward {\n\
        type filter hook forward priority 0\n"
        .to_owned();
    for (number, (class, way)) in CLASSES.iter().enumerate() {
        let way = way.map_or(String::new(), |way| format!("ct direction {}", way.name()));
        for ip in ["ip", "ip6"] {
            let class = class.name();
            writeln!(rules, "ct state {class} {way} {ip} dscp set {} accept", number + 1).unwrap();
        }
    }
    rules + "}\n}\n"
}

/// The player's orders, and the dialogue and step of each order that it answers.
fn orders(dialogues: &[Dialogue], pause: Duration) -> (String, Vec<(usize, usize)>) {
    let (mut orders, mut order) = (String::new(), Vec::new());
    for dialogue in dialogues {
        writeln!(orders, "flow {}", flow(dialogue)).unwrap();
    }
    let numbered = |dialogue: &Dialogue| dialogue.steps.iter().cloned().enumerate().collect();
    let mut left: Vec<VecDeque<(usize, Step)>> = dialogues.iter().map(numbered).collect();
    while left.iter().any(|steps| !steps.is_empty()) {
        let mut idle = true;
        for (number, steps) in left.iter_mut().enumerate() {
            match steps.front() {
                Some((_, Step::Pause)) | None => continue,
                Some((at, Step::Age(seconds))) => {
                    writeln!(orders, "age {number} {seconds}").unwrap();
                    order.push((number, *at));
                }
                Some((at, Step::Send(side, frame))) => {
                    write!(orders, "send {number} {} ", side.name()).unwrap();
                    for byte in frame {
                        write!(orders, "{byte:02x}").unwrap();
                    }
                    orders.push('\n');
                    order.push((number, *at));
                }
            }
            steps.pop_front();
            idle = false;
        }
        if idle {
            writeln!(orders, "pause {}", pause.as_secs_f64()).unwrap();
            left.iter_mut().for_each(|steps| drop(steps.pop_front()));
        }
    }
    (orders, order)
}

/// The description of a flow for the player.
fn flow(dialogue: &Dialogue) -> String {
    let (_, network) = dialogue.key();
    let family = if network.family == Family::V4 { 4 } else { 6 };
    let [a, b, c] = match network.transport {
        Transport::Tcp(tcp) => [tcp.source_port, tcp.destination_port, 0],
        Transport::Udp { source_port, destination_port, .. }
        | Transport::Sctp { source_port, destination_port, .. }
        | Transport::Dccp { source_port, destination_port, .. } => {
            [source_port, destination_port, 0]
        }
        Transport::IcmpQuery(query) => [query.icmp_type.into(), query.code.into(), query.id],
        _ => [0; 3],
    };
    let (source, destination) = (network.source_ip(), network.destination_ip());
    format!("{family} {} {source} {destination} {a} {b} {c}", network.protocol)
}

/// Reads `DSCP SOURCE STATUS TIMEOUT STATE LOG`.
fn said(line: &str, protocol: u8) -> (Option<Outcome>, String) {
    let words: Vec<&str> = line.splitn(6, ' ').collect();
    let [dscp, source, status, timeout, state, log] = words[..] else {
        return (None, String::new());
    };
    let (class, way) = match dscp.parse::<usize>() {
        Ok(number @ 1..=7) => CLASSES[number - 1],
        _ => (Class::Lost, None),
    };
    let entry = status.parse::<u32>().ok().map(|status| Entry {
        source: source.parse::<IpAddr>().expect("an address"),
        state: match protocol {
            protocol::TCP => Some(TCP_STATES[state.parse::<usize>().expect("a state")]),
            protocol::DCCP => Some(DCCP_STATES[state.parse::<usize>().expect("a state")]),
            protocol::SCTP => Some(SCTP_STATES[state.parse::<usize>().expect("a state")]),
            _ => None,
        },
        seen_reply: status & SEEN_REPLY != 0,
        assured: status & ASSURED != 0,
        timeout_s: timeout.parse().expect("seconds"),
    });
    (Some(Outcome { class, way, entry }), log.to_owned())
}
