//! Packets behind tags, labels, LLC or PPP, between hosts with the real kernel. The rules judge
//! every packet that a host would answer; a packet that they can not judge does not reach the host.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use lab::{Family, Gateway, Lab, Namespace, Placement, Result, StatewaySpec, Tracking, Transport};
use wire::build::{PacketBuilder, Tcp};
use wire::{Dissected, TcpFlags, dissect};

use crate::scenario::{
    beside_others, bridge_spec, frames, listen, load, router_spec, send_frames, start,
    stop_cleanly, with_config,
};

/// Only packets for port 80 pass.
const RULES: &str = "
table inet filter {
    chain forward {
        type filter hook forward priority filter; policy drop;
        icmpv6 type { nd-neighbor-solicit, nd-neighbor-advert } accept
        ct state established accept
        tcp dport 80 accept
    }
}
";
const MARK: [u8; 4] = [2, 0, 0, 0x10];
/// The port or identifier of the first frame; each frame has its own.
const FIRST_PORT: u16 = 10_000;
/// The number of tags in the deepest stack.
const DEEPEST: usize = 12;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Question {
    Echo,
    Syn(u16),
}

/// A frame. Its link source address identifies it.
struct Probe {
    question: Question,
    /// The bytes between the link addresses and the packet.
    link: Vec<u8>,
    /// True if the rules allow the packet and the host can read it.
    passes: bool,
}

impl Probe {
    fn frame(&self, number: u16, lab: &Lab) -> Vec<u8> {
        let [high, low] = number.to_be_bytes();
        let [a, b, c, d] = MARK;
        let mut frame = Vec::new();
        let (IpAddr::V4(client), IpAddr::V4(server)) =
            (lab.client_address(Family::V4), lab.server_address(Family::V4))
        else {
            unreachable!("they are of IPv4")
        };
        let builder = PacketBuilder::v4(client.octets(), server.octets())
            .macs([a, b, c, d, high, low], lab.next_hop_mac());
        let port = FIRST_PORT + number;
        match self.question {
            Question::Echo => builder.echo(false, port, 1, b"twelve bytes", &mut frame),
            Question::Syn(destination_port) => {
                let flags = TcpFlags::SYN;
                let header = Tcp { source_port: port, destination_port, flags, ..Tcp::default() };
                builder.tcp(&header, &[], &mut frame);
            }
        }
        [&frame[..12], &self.link, &frame[14..]].concat()
    }
}

const QUESTIONS: [Question; 3] = [Question::Echo, Question::Syn(22), Question::Syn(80)];

/// Stacks of priority tags of one kind, of the other kind, and mixed.
fn in_tags() -> Vec<Probe> {
    let kinds = [[0x81, 0x00], [0x88, 0xa8]];
    let mut probes = Vec::new();
    for question in QUESTIONS {
        for depth in 0..=DEEPEST {
            for mixture in [0, 0xfff, 0x555, 0xaaa, 0x6d3] {
                let tag = |place: usize| {
                    let [a, b] = kinds[mixture >> place & 1];
                    [a, b, (place as u8) << 5, 0]
                };
                let mut link: Vec<u8> = (0..depth).flat_map(tag).collect();
                link.extend([8, 0]);
                let is_read = depth <= Dissected::MAX_VLAN_TAGS;
                let passes = question == Question::Syn(80) && is_read;
                probes.push(Probe { question, link, passes });
            }
        }
    }
    probes
}

/// Every other known way to carry a packet in a frame.
fn otherwise() -> Vec<Probe> {
    let ppp = |ppp: &[u8]| [&[0x88, 0x64, 0x11, 0, 0, 1, 0, 40 + ppp.len() as u8], ppp].concat();
    let mut links: Vec<Vec<u8>> = vec![
        // LLC: SNAP of RFC 1042 and of bridges, and the address for IP; the lengths fit or do not.
        vec![0, 48, 0xaa, 0xaa, 3, 0, 0, 0, 8, 0],
        vec![5, 0xdc, 0xaa, 0xaa, 3, 0, 0, 0, 8, 0],
        vec![0, 48, 0xaa, 0xaa, 3, 0, 0, 0xf8, 8, 0],
        vec![0, 43, 6, 6, 3],
        vec![0x81, 0, 0, 0, 0, 48, 0xaa, 0xaa, 3, 0, 0, 0, 8, 0],
        vec![0x88, 0x70, 0xaa, 0xaa, 3, 0, 0, 0, 8, 0],
        // More labels than the gateway reads.
        [&[0x88, 0x47][..], &[0, 1, 0, 64].repeat(8), &[0, 1, 1, 64]].concat(),
        // Other tags, the tags of redundant rings, and whole frames in frames.
        vec![0x92, 0, 0, 0, 8, 0],
        vec![0xf1, 0xc1, 0, 0, 0, 1, 8, 0],
        vec![0x89, 0x2f, 0, 48, 0, 1, 8, 0],
        vec![0x88, 0xe7, 0, 0, 0, 1],
        vec![0x88, 0xe5, 0, 0, 0, 0, 0, 1],
        vec![0x65, 0x58],
        vec![0x86, 0xdd],
        vec![0xda, 0xda, 0, 0, 0, 0, 0, 0, 8, 0],
    ];
    links.extend([&[0x21][..], &[0, 0x2d], &[0, 0x3d], &[0, 0xfd], &[0xff, 3, 0, 0x21]].map(ppp));
    let probe = |(question, link)| Probe { question, link, passes: false };
    let each = |question| links.iter().map(move |link| (question, link.clone()));
    QUESTIONS.into_iter().flat_map(each).map(probe).collect()
}

/// The outcome of the frames, by their numbers.
struct Seen {
    /// The frames that reached the server's link.
    arrived: BTreeSet<u16>,
    /// The frames that the server's kernel answered.
    answered: BTreeSet<u16>,
}

/// Sends the frames from the client. An allowed frame behind them shows when all have arrived.
fn send(lab: &Lab, probes: &[Probe]) -> Result<Seen> {
    let mut ports = lab.on_server("python3").args(["-c", PORTS]).spawn()?;
    ports.wait_for_port(Transport::Tcp, 80)?;
    let mut at_client = listen(lab.client())?;
    let at_server = listen(lab.server())?;
    let transmit = |probes: &[Probe], first: u16| -> Result<()> {
        let numbered = (first..).zip(probes);
        let frames: Vec<_> = numbered.map(|(number, probe)| probe.frame(number, lab)).collect();
        send_frames(lab.client(), &frames)
    };
    transmit(probes, 0)?;
    let last = probes.len() as u16;
    transmit(&[Probe { question: Question::Syn(80), link: vec![8, 0], passes: true }], last)?;
    at_client.wait_for_text(&format!("0050{:04x}", FIRST_PORT + last))?;

    let arrived = frames(at_server)?.into_iter().filter_map(|frame| match frame[6..12] {
        [a, b, c, d, high, low] if [a, b, c, d] == MARK => Some(u16::from_be_bytes([high, low])),
        // A router has replaced the link addresses.
        _ => number(&frame, false),
    });
    let answered = frames(at_client)?.into_iter().filter_map(|frame| number(&frame, true));
    Ok(Seen { arrived: arrived.collect(), answered: answered.collect() })
}

/// The number of the frame that a packet is or answers.
fn number(frame: &[u8], is_answer: bool) -> Option<u16> {
    let port = match dissect(frame).ok()?.network?.transport {
        wire::Transport::Tcp(tcp) if is_answer => tcp.destination_port,
        wire::Transport::Tcp(tcp) => tcp.source_port,
        wire::Transport::IcmpQuery(query) if query.reply == is_answer => query.id,
        _ => return None,
    };
    port.checked_sub(FIRST_PORT)
}

/// Listens at ports 22 and 80.
const PORTS: &str = "
import signal, socket
for port in 22, 80:
    s = socket.socket()
    s.bind(('', port))
    s.listen(1000)
    socket.socket.detach(s)
signal.pause()
";

/// Checks that exactly the allowed frames reach the server's link, and returns the answered ones.
fn only_what_is_allowed(probes: &[Probe], routed: bool) -> Result<BTreeSet<u16>> {
    // One worker keeps the order of the frames.
    let spec = StatewaySpec { routed, ..bridge_spec(1)? };
    let mut lab = start(spec)?;
    load(&lab, RULES)?;
    let seen = send(&lab, probes)?;
    let allowed = (0..).zip(probes).filter(|(_, probe)| probe.passes);
    let mut allowed: BTreeSet<u16> = allowed.map(|(number, _)| number).collect();
    allowed.insert(probes.len() as u16);
    let tell = |numbers: &BTreeSet<u16>| {
        let strangers = numbers.difference(&allowed).map(|number| &probes[usize::from(*number)]);
        strangers.map(|it| format!("{:?} in {:02x?}", it.question, it.link)).collect::<Vec<_>>()
    };
    assert_eq!(tell(&seen.answered), [""; 0], "refused packets were answered");
    assert_eq!(tell(&seen.arrived), [""; 0], "refused packets arrived");
    assert_eq!(seen.arrived, allowed, "allowed packets arrived");
    stop_cleanly(&mut lab)?;
    Ok(seen.answered)
}

/// Checks that a host behind a gateway of the kernel answers every frame, however deep the stack,
/// and that Stateway lets only the allowed ones through.
fn stacks_of_tags(kernel: Gateway, routed: bool) {
    beside_others(|| {
        let probes = in_tags();
        let kernel = send(&Lab::new(kernel, Placement::free())?, &probes)?;
        let all: BTreeSet<u16> = (0..=probes.len() as u16).collect();
        assert_eq!(kernel.answered, all, "it is no attack if nobody reads it");
        let answered = only_what_is_allowed(&probes, routed)?;
        let allowed = probes.iter().filter(|probe| probe.passes).count();
        assert_eq!(answered.len(), allowed + 1, "priority tags are transparent");
        Ok(())
    });
}

#[test]
fn stacks_of_tags_that_a_host_reads_do_not_get_past_the_rules() {
    stacks_of_tags(Gateway::KernelBridge, false);
}

#[test]
fn stacks_of_tags_do_not_get_past_the_rules_of_a_router() {
    stacks_of_tags(Gateway::KernelForwarding(Tracking::Off), true);
}

#[test]
fn packets_in_other_frames_do_not_get_past_the_rules() {
    beside_others(|| {
        only_what_is_allowed(&otherwise(), false)?;
        only_what_is_allowed(&otherwise(), true).map(drop)
    });
}

/// Packets from them have no Ethernet header. A router does without, and a bridge can not.
#[test]
fn interfaces_without_ethernet_are_refused_by_a_bridge() {
    beside_others(|| {
        let namespace = Namespace::new("bare")?;
        namespace.ip(&[
            "link add lan0 type veth peer name other",
            "link set lan0 up",
            "tuntap add dev tun0 mode tun",
            "link set tun0 up",
        ])?;
        let tunnel = "link add gre1 type gre local 192.0.2.1 remote 192.0.2.2";
        let has_tunnels = namespace.ip(&[tunnel, "link set gre1 up"]).is_ok();
        let kinds = [
            ("lo", "the loopback interface"),
            ("tun0", "a device for IP packets without an Ethernet header"),
            ("gre1", "a tunnel of IP packets without an Ethernet header"),
        ];
        for (name, kind) in kinds.into_iter().filter(|(name, _)| has_tunnels || *name != "gre1") {
            let config = bridge_spec(1)?.config(&["lan0", name]);
            for command in ["check", "run"] {
                let program = with_config(&namespace, command, &config)?;
                let output = program.limit(Duration::from_secs(5)).run()?;
                assert_eq!(output.code, Some(2), "{name}: {}", output.stderr);
                let said = format!("tried.toml:10: interface.name: {name} is {kind}");
                assert!(output.stderr.contains(&said), "{name}: {}", output.stderr);
            }
            let config = router_spec(1)?.config(&["lan0", name]);
            let output = with_config(&namespace, "check", &config)?.run()?;
            let expected = if name == "lo" { Some(2) } else { Some(0) };
            assert_eq!(output.code, expected, "{name}: {}", output.stderr);
        }
        Ok(())
    });
}
