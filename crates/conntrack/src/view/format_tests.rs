use flow::{Endpoint, FlowKey, Zone};

use super::*;
use crate::proto::{dccp::DccpState, sctp::SctpState};
use crate::{Label, Labels};

fn connection() -> Connection {
    let endpoint = |port| Endpoint { address: [0; 16], port };
    let keyed =
        FlowKey::of_ports(Family::V4, protocol::TCP, Zone(0), endpoint(41212), endpoint(6000));
    let (client, server) = ([192, 0, 2, 1].into(), [192, 0, 2, 2].into());
    let ports = |source, destination| TupleTransport::Ports { source, destination };
    Connection {
        family: Family::V4,
        protocol: protocol::TCP,
        zone: 0,
        original_zone: 0,
        reply_zone: 0,
        original: Tuple { source: client, destination: server, transport: ports(41212, 6000) },
        reply: Tuple { source: server, destination: client, transport: ports(6000, 41212) },
        key: keyed.key,
        state: Some("ESTABLISHED"),
        timeout_s: 431_999,
        seen_reply: true,
        assured: true,
        expected: false,
        part: false,
        helper: None,
        mark: 0,
        labels: Labels::NONE,
        counters: None,
        age_s: None,
    }
}

fn with_transport(protocol: u8, there: TupleTransport, back: TupleTransport) -> Connection {
    let mut connection = Connection { protocol, state: None, assured: false, ..connection() };
    connection.timeout_s = 29;
    connection.original.transport = there;
    connection.reply.transport = back;
    connection
}

/// `conntrack` 1.4.7 printed the expected lines on Linux 6.18; only the addresses have been
/// replaced. This kernel does not track DCCP, so that line was written like the one of SCTP.
#[test]
fn connections_are_listed_as_the_tool_lists_them() {
    assert_eq!(
        Listed(&connection()).to_string(),
        "tcp      6 431999 ESTABLISHED src=192.0.2.1 dst=192.0.2.2 sport=41212 dport=6000 \
         src=192.0.2.2 dst=192.0.2.1 sport=6000 dport=41212 [ASSURED] mark=0 use=1"
    );
    let echo = |kind| TupleTransport::Icmp { kind, code: 0, id: 8904 };
    assert_eq!(
        Listed(&with_transport(protocol::ICMP, echo(8), echo(0))).to_string(),
        "icmp     1 29 src=192.0.2.1 dst=192.0.2.2 type=8 code=0 id=8904 \
         src=192.0.2.2 dst=192.0.2.1 type=0 code=0 id=8904 mark=0 use=1"
    );
    let mut echo6 = with_transport(protocol::ICMPV6, echo(128), echo(129));
    let addresses = ["2001:db8::1".parse().unwrap(), "2001:db8::2".parse().unwrap()];
    [echo6.original.source, echo6.original.destination] = addresses;
    [echo6.reply.destination, echo6.reply.source] = addresses;
    assert_eq!(
        Listed(&echo6).to_string(),
        "icmpv6   58 29 src=2001:db8::1 dst=2001:db8::2 type=128 code=0 id=8904 \
         src=2001:db8::2 dst=2001:db8::1 type=129 code=0 id=8904 mark=0 use=1"
    );
    let dccp = Connection { protocol: protocol::DCCP, ..connection() };
    assert_eq!(
        Listed(&Connection { state: Some(DccpState::Open.name()), ..dccp }).to_string(),
        "dccp     33 431999 OPEN src=192.0.2.1 dst=192.0.2.2 sport=41212 dport=6000 \
         src=192.0.2.2 dst=192.0.2.1 sport=6000 dport=41212 [ASSURED] mark=0 use=1"
    );
    let gre = TupleTransport::Gre { key: 0 };
    let gre = Connection { seen_reply: false, ..with_transport(protocol::GRE, gre, gre) };
    assert_eq!(
        Listed(&gre).to_string(),
        "gre      47 29 src=192.0.2.1 dst=192.0.2.2 srckey=0x0 dstkey=0x0 [UNREPLIED] \
         src=192.0.2.2 dst=192.0.2.1 srckey=0x0 dstkey=0x0 mark=0 use=1"
    );
    let other = with_transport(99, TupleTransport::None, TupleTransport::None);
    let other = Connection { seen_reply: false, timeout_s: 599, ..other };
    assert_eq!(
        Listed(&other).to_string(),
        "unknown  99 599 src=192.0.2.1 dst=192.0.2.2 [UNREPLIED] \
         src=192.0.2.2 dst=192.0.2.1 mark=0 use=1"
    );
}

/// The same tool printed the lines with `-o labels`.
#[test]
fn labels_are_shown_where_the_tool_shows_them() {
    let mut names = LabelNames::default();
    let label = Label::new(40).unwrap();
    names.name(label, "bulk").unwrap();
    let udp = with_transport(
        protocol::UDP,
        TupleTransport::Ports { source: 54060, destination: 9999 },
        TupleTransport::Ports { source: 9999, destination: 54060 },
    );
    let connection = Connection { labels: [label].into_iter().collect(), seen_reply: false, ..udp };
    let tuples = "src=192.0.2.1 dst=192.0.2.2 sport=54060 dport=9999 [UNREPLIED] \
                  src=192.0.2.2 dst=192.0.2.1 sport=9999 dport=54060";
    assert_eq!(
        ListedWith(&connection, &names, Extras { labels: true, extended: false }).to_string(),
        format!("udp      17 29 {tuples} mark=0 use=1 labels=bulk")
    );
    assert_eq!(
        Listed(&connection).to_string(),
        format!("udp      17 29 {tuples} mark=0 use=1"),
        "only who asks for labels sees them"
    );
    let event = |kind| Event { kind, connection: connection.clone() };
    let shown = |kind| {
        let extras = Extras { labels: true, extended: false };
        ReportedWith(&event(kind), &names, extras).to_string()
    };
    assert_eq!(shown(EventKind::New), format!("    [NEW] udp      17 29 {tuples} labels=bulk"));
    assert_eq!(shown(EventKind::Update), format!(" [UPDATE] udp      17 29 {tuples} labels=bulk"));
    assert_eq!(shown(EventKind::Destroy), format!("[DESTROY] udp      17 29 {tuples}"));
}

#[test]
fn optional_fields_stand_where_the_tool_puts_them() {
    let counts = |packets, bytes| Counts { packets, bytes };
    let watched = Connection { helper: Some("ftp"), ..connection() };
    assert!(Listed(&watched).to_string().ends_with("[ASSURED] mark=0 helper=ftp use=1"));
    let event = Event { kind: EventKind::Update, connection: watched };
    assert!(Reported(&event).to_string().ends_with("dport=41212 [ASSURED] helper=ftp"));
    let full = Connection {
        timeout_s: 1,
        mark: 7,
        zone: 3,
        counters: Some([counts(1, 29), counts(0, 0)]),
        age_s: Some(2),
        ..connection()
    };
    let tuples = "src=192.0.2.1 dst=192.0.2.2 sport=41212 dport=6000 packets=1 bytes=29 \
                  src=192.0.2.2 dst=192.0.2.1 sport=6000 dport=41212 packets=0 bytes=0 [ASSURED]";
    assert_eq!(
        Listed(&full).to_string(),
        format!("tcp      6 1 ESTABLISHED {tuples} mark=7 zone=3 delta-time=2 use=1")
    );
    // It has expired, so there is no time left to show.
    let ended =
        Event { kind: EventKind::Destroy, connection: Connection { timeout_s: 0, ..full.clone() } };
    assert_eq!(
        Reported(&ended).to_string(),
        format!("[DESTROY] tcp      6 ESTABLISHED {tuples} mark=7 zone=3 delta-time=2")
    );
    // Only the last event has counters and age.
    let changed = Event { kind: EventKind::Update, connection: full };
    assert_eq!(
        Reported(&changed).to_string(),
        " [UPDATE] tcp      6 1 ESTABLISHED src=192.0.2.1 dst=192.0.2.2 sport=41212 dport=6000 \
         src=192.0.2.2 dst=192.0.2.1 sport=6000 dport=41212 [ASSURED] mark=7 zone=3"
    );
}

#[test]
fn a_new_connection_is_reported_as_the_tool_reports_it() {
    let connection = Connection {
        state: Some("SYN_SENT"),
        timeout_s: 120,
        seen_reply: false,
        assured: false,
        ..connection()
    };
    assert_eq!(
        Reported(&Event { kind: EventKind::New, connection }).to_string(),
        "    [NEW] tcp      6 120 SYN_SENT src=192.0.2.1 dst=192.0.2.2 sport=41212 dport=6000 \
         [UNREPLIED] src=192.0.2.2 dst=192.0.2.1 sport=6000 dport=41212"
    );
}

/// Lets the kernel and the real tool, in a namespace of their own, print the connections that
/// `insert` adds; `None` if that is not possible.
fn printed_by_the_tool(insert: &[&str]) -> Option<Vec<String>> {
    let mut script = String::from("set -e\n");
    for arguments in insert {
        script += &format!("conntrack -I {arguments} 2>/dev/null\n");
    }
    script += "conntrack -L -f ipv4 2>/dev/null; conntrack -L -f ipv6 2>/dev/null";
    let output = std::process::Command::new("unshare")
        .args(["--user", "--map-root-user", "--net", "sh", "-c", &script])
        .output()
        .ok()
        .filter(|output| output.status.success())?;
    Some(String::from_utf8(output.stdout).ok()?.lines().map(str::to_owned).collect())
}

#[test]
fn the_real_tool_prints_the_same() {
    let insert = [
        "-p tcp -s 192.0.2.1 -d 192.0.2.2 --sport 41212 --dport 6000 --state ESTABLISHED \
         -u SEEN_REPLY,ASSURED -t 9000 -m 7 -w 3",
        "-p udp -s 2001:db8::1 -d 2001:db8::2 --sport 5000 --dport 53 -t 9000",
        "-p icmp -s 192.0.2.1 -d 192.0.2.2 --icmp-type 8 --icmp-code 0 --icmp-id 77 -t 9000",
        "-p sctp -s 192.0.2.1 -d 192.0.2.2 --sport 41212 --dport 6000 --state ESTABLISHED \
         --orig-vtag 1 --reply-vtag 2 -u SEEN_REPLY,ASSURED -t 9000",
        "-p udplite -s 192.0.2.1 -d 192.0.2.2 --sport 41212 --dport 6000 -t 9000",
    ];
    let Some(mut printed) = printed_by_the_tool(&insert) else {
        println!("SKIPPED: needs user namespaces and the conntrack tool");
        return;
    };
    let timeout_s = 9000;
    let tcp = Connection { timeout_s, mark: 7, zone: 3, ..connection() };
    let ports = |source, destination| TupleTransport::Ports { source, destination };
    let mut udp = with_transport(protocol::UDP, ports(5000, 53), ports(53, 5000));
    let addresses = ["2001:db8::1".parse().unwrap(), "2001:db8::2".parse().unwrap()];
    [udp.original.source, udp.original.destination] = addresses;
    [udp.reply.destination, udp.reply.source] = addresses;
    let echo = |kind| TupleTransport::Icmp { kind, code: 0, id: 77 };
    let icmp = with_transport(protocol::ICMP, echo(8), echo(0));
    let both = ports(41212, 6000);
    let sctp = Connection {
        state: Some(SctpState::Established.name()),
        assured: true,
        timeout_s,
        ..with_transport(protocol::SCTP, both, ports(6000, 41212))
    };
    let udp_lite = with_transport(protocol::UDPLITE, both, ports(6000, 41212));
    let unreplied = |connection| Connection { seen_reply: false, timeout_s, ..connection };
    let mut expected: Vec<_> = [tcp, unreplied(udp), unreplied(icmp), sctp, unreplied(udp_lite)]
        .iter()
        .map(|connection| Listed(connection).to_string())
        .collect();
    // The timeouts that the tool shows count down: 8999 counts as 9000.
    printed.iter_mut().for_each(|line| *line = line.replacen(" 8999 ", " 9000 ", 1));
    // With -L alone the tool may show both families.
    printed.sort();
    printed.dedup();
    expected.sort();
    assert_eq!(printed, expected);
}

/// `conntrack -L -o extended` and `-E -o extended` 1.4.7 printed the lines on Linux 6.18; only
/// addresses and ports have been replaced.
#[test]
fn with_extended_lines_begin_with_the_network_protocol() {
    let names = LabelNames::default();
    let extras = Extras { extended: true, ..Extras::default() };
    let ports = |source, destination| TupleTransport::Ports { source, destination };
    let there = with_transport(protocol::UDP, ports(5555, 9999), ports(9999, 5555));
    let mut six = Connection { seen_reply: false, family: Family::V6, ..there.clone() };
    (six.original.source, six.original.destination) =
        ("2001:db8::1".parse().unwrap(), "2001:db8::2".parse().unwrap());
    (six.reply.source, six.reply.destination) = (six.original.destination, six.original.source);
    assert_eq!(
        ListedWith(&there, &names, extras).to_string(),
        "ipv4     2 udp      17 29 src=192.0.2.1 dst=192.0.2.2 sport=5555 dport=9999 \
         src=192.0.2.2 dst=192.0.2.1 sport=9999 dport=5555 mark=0 use=1"
    );
    let new = Event { kind: EventKind::New, connection: six };
    assert_eq!(
        ReportedWith(&new, &names, extras).to_string(),
        "    [NEW] ipv6     10 udp      17 29 src=2001:db8::1 dst=2001:db8::2 sport=5555 \
         dport=9999 [UNREPLIED] src=2001:db8::2 dst=2001:db8::1 sport=9999 dport=5555"
    );
}

/// `conntrack -L expect` 1.4.7 printed the expected lines on Linux 6.18. Only addresses and
/// ports have been replaced, and the line without a source was written like them.
#[test]
fn expectations_are_listed_as_the_tool_lists_them() {
    let mut expected = Expected {
        zone: 5,
        protocol: protocol::TCP,
        source: Some([192, 0, 2, 2].into()),
        source_port: None,
        destination: [192, 0, 2, 1].into(),
        destination_port: 20000,
        timeout_s: 299,
        permanent: false,
        master: connection().original,
        helper: "ftp",
        class: ("data", 0),
        mark: 9,
    };
    let master = "master-src=192.0.2.1 master-dst=192.0.2.2 sport=41212 dport=6000";
    assert_eq!(
        ListedExpectation(&expected).to_string(),
        format!(
            "299 proto=6 src=192.0.2.2 dst=192.0.2.1 sport=0 dport=20000 \
             mask-src=255.255.255.255 mask-dst=255.255.255.255 sport=0 dport=65535 {master} \
             class=0 helper=ftp"
        )
    );
    expected.permanent = true;
    expected.source = None;
    expected.source_port = Some(7);
    expected.class.1 = 1;
    assert_eq!(
        ListedExpectation(&expected).to_string(),
        format!(
            "299 proto=6 src=0.0.0.0 dst=192.0.2.1 sport=7 dport=20000 \
             mask-src=0.0.0.0 mask-dst=255.255.255.255 sport=65535 dport=65535 {master} \
             PERMANENT class=1 helper=ftp"
        )
    );
    expected.destination = "2001:db8::1".parse().unwrap();
    let line = ListedExpectation(&expected).to_string();
    assert!(line.contains(&format!("mask-src=:: mask-dst={}ffff ", "ffff:".repeat(7))), "{line}");
}
