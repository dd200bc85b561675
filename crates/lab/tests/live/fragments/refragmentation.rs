//! Datagrams that Stateway fragments again, at the length of the largest fragment that arrived. The
//! kernel reassembles them, and the tests compare the cuts with those of the kernel.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use lab::{
    Arrival, Capture, Datagrams, END, Family, Lab, Random, Result, StatewaySpec, Tracking, digest,
    udp,
};
use wire::build::PacketBuilder;
use wire::fragment::{Cut, Fragments};
use wire::{CameIn, Dissected, IcmpError, Network, Transport, dissect};

use super::sequence::PORT;
use crate::scenario::{
    FAMILIES, beside_others, bytes, kernel_bridge, kernel_router, ready, router, router_spec, soon,
    start, stateway_binary, stop_cleanly,
};

/// The number of datagrams of each family. Each has its own source address.
const DATAGRAMS: u16 = 60;
/// The MTU of the link behind the router, smaller than that of the link in front of it.
const NARROW: u32 = 1400;
/// The time until all frames have arrived.
const PAUSE: Duration = Duration::from_millis(200);
/// The time between two frames.
const INTERVAL: Duration = Duration::from_micros(500);

fn octets(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    }
}

fn source(family: Family, host: u16) -> IpAddr {
    match family {
        Family::V4 => Ipv4Addr::new(198, 51, 100, host as u8).into(),
        Family::V6 => Ipv6Addr::new(0x2001, 0xdb8, 7, 0, 0, 0, 0, host).into(),
    }
}

fn network(frame: &[u8]) -> Network {
    let Ok(Dissected { network: Some(network), .. }) = dissect(frame) else {
        panic!("{frame:02x?}");
    };
    network
}

/// A datagram that a test sends.
struct Sent {
    source: IpAddr,
    builder: PacketBuilder,
    frames: Vec<Vec<u8>>,
    payload: Vec<u8>,
}

/// The IPv4 fragments that have "don't fragment" set.
#[derive(Clone, Copy, Debug)]
enum Forbidden {
    None,
    All,
    Last,
}

impl Sent {
    /// A datagram of `length` bytes in fragments that carry `piece` bytes.
    fn new(
        lab: &Lab,
        family: Family,
        host: u16,
        piece: usize,
        length: usize,
        df: Forbidden,
    ) -> Self {
        let (source, destination) = (source(family, host), lab.server_address(family));
        let builder = match (source, destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                PacketBuilder::v4(source.octets(), destination.octets())
            }
            (source, destination) => PacketBuilder::v6(octets(source), octets(destination)),
        };
        let builder = builder.macs([0, 0, 0x5e, 0, 0x53, 0x01], lab.next_hop_mac()).id(host.into());
        let payload: Vec<u8> = (0..length).map(|at| (at * 7 + usize::from(host)) as u8).collect();
        let datagram = udp((source, destination), (1024 + host, PORT), &payload, true);
        let parts: Vec<&[u8]> = datagram.chunks(piece).collect();
        let frame = |(at, part): (usize, &&[u8])| {
            let last = at + 1 == parts.len();
            let forbidden = match df {
                Forbidden::None => false,
                Forbidden::All => true,
                Forbidden::Last => last,
            };
            let builder = builder.clone();
            let builder = if forbidden { builder.dont_fragment() } else { builder };
            let mut frame = Vec::new();
            builder.fragment(17, (at * piece) as u16, !last, part, &mut frame);
            frame
        };
        let frames = parts.iter().enumerate().map(frame).collect();
        Self { source, builder, frames, payload }
    }

    /// The frames in which it leaves by a link of this MTU if a helper has changed its payload to
    /// this. The datagrams of these tests that no router may cut fit the link.
    fn cut_again(&self, payload: &[u8], mtu: u32) -> Vec<Vec<u8>> {
        let networks: Vec<Network> = self.frames.iter().map(|frame| network(frame)).collect();
        let came_in = networks.iter().filter_map(CameIn::of).reduce(CameIn::and).unwrap();
        let cut = came_in.cut();
        let cut = Cut { mtu: cut.mtu.min(mtu), ..cut };
        let mut whole = Vec::new();
        let port = 1024 + (self.source_host());
        self.builder.udp(port, PORT, payload, &mut whole);
        let mut fragments = Fragments::behind(&self.frames[0][..14], &whole, &cut).unwrap();
        let mut frames = Vec::new();
        while let Some(length) = fragments.next_len() {
            let mut frame = vec![0; length];
            fragments.write_next(&mut frame);
            frames.push(frame);
        }
        frames
    }

    fn source_host(&self) -> u16 {
        let octets = octets(self.source);
        u16::from(octets[15])
    }
}

/// The frames, and after a pause the frame that announces the end.
fn capture(lab: &Lab, frames: impl IntoIterator<Item = Vec<u8>>, pause: Duration) -> Capture {
    let (mut capture, mut time) = (Capture::new(), Duration::ZERO);
    let ends = [lab.client_address(Family::V4), lab.server_address(Family::V4)];
    let end = match ends {
        [IpAddr::V4(client), IpAddr::V4(server)] => {
            let mut end = Vec::new();
            PacketBuilder::v4(client.octets(), server.octets())
                .macs([0, 0, 0x5e, 0, 0x53, 0x01], lab.next_hop_mac())
                .udp(PORT, PORT, END, &mut end);
            end
        }
        _ => unreachable!("asked for IPv4"),
    };
    for frame in frames {
        capture.push(time, &frame);
        time += INTERVAL;
    }
    capture.push(time + pause, &end);
    capture
}

fn take_any_source(namespace: &lab::Namespace, interfaces: &[&str]) -> Result<()> {
    let off = |name: &str| format!("net.ipv4.conf.{name}.rp_filter=0");
    let settings = ["all"].iter().chain(interfaces).map(|name| off(name));
    namespace.sysctl(settings)
}

/// The kernel reassembles the fragments whatever their new payload is and whatever their order.
#[test]
fn the_kernel_puts_together_what_is_cut_again() {
    beside_others(|| {
        let lab = kernel_bridge()?;
        take_any_source(lab.server(), &["eth0"])?;
        let datagrams = Datagrams::new(&lab, &stateway_binary()?)?;
        let mut random = Random::new(3);
        let (mut frames, mut expected) = (Vec::new(), Vec::new());
        for family in FAMILIES {
            for host in 1..=DATAGRAMS {
                let piece = random.between(10, 180) * 8;
                let length = random.between(piece, 6000);
                let df = random.one_of(&[Forbidden::None, Forbidden::All, Forbidden::Last]);
                let sent = Sent::new(&lab, family, host, piece, length, df);
                // A helper does the same: it changes the length or the content.
                let payload: Vec<u8> =
                    (0..random.between(1, 8000)).map(|at| (at * 3) as u8).collect();
                expected.push(Arrival {
                    source: sent.source.to_string(),
                    port: 1024 + host,
                    length: payload.len(),
                    digest: digest(&payload),
                });
                let mut again = sent.cut_again(&payload, 1500);
                random.shuffle(&mut again);
                frames.extend(again);
            }
        }
        let capture = capture(&lab, frames, PAUSE);
        let recorder = datagrams.start_recording(&lab, PORT)?;
        datagrams.start_sending(&lab, &capture)?.finish()?;
        let mut arrived = recorder.finish()?;
        arrived.sort();
        expected.sort();
        assert_eq!(arrived, expected);
        Ok(())
    });
}

/// Prints the frames that arrive until the frame that announces the end.
const SNIFF: &str = "
import socket
s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
s.setsockopt(socket.SOL_SOCKET, 33, 1 << 24)  # SO_RCVBUFFORCE: it may have to wait for a CPU
s.bind(('eth0', 0))
s.settimeout(8)
print('ready', flush=True)
while True:
    frame, where = s.recvfrom(70000)
    if b'end of the recording' in frame: break
    if where[2] != 4: print(frame.hex())
";

/// The offset, the length, "more fragments" and "don't fragment" of a fragment.
type Shape = (u16, u32, bool, bool);

fn shape(frame: &[u8]) -> Option<(IpAddr, Shape)> {
    let Ok(Dissected { network: Some(network), .. }) = dissect(frame) else {
        return None;
    };
    let fragment = network.fragment?;
    let length = network.end - u32::from(fragment.payload_offset);
    Some((network.source_ip(), (fragment.offset, length, fragment.more, network.dont_fragment)))
}

/// A router that tracks connections also reassembles datagrams, and must not send longer fragments
/// than arrived. Where the kernel does not send the fragments as they came, Stateway cuts at the
/// same places.
#[test]
fn the_kernel_cuts_again_at_the_same_places() {
    beside_others(|| {
        let lab = kernel_router(Tracking::Conntrack)?;
        lab.gateway().ip(&[&format!("link set wan0 mtu {NARROW}")])?;
        take_any_source(lab.gateway(), &["lan0", "wan0"])?;
        take_any_source(lab.server(), &["eth0"])?;
        let datagrams = Datagrams::new(&lab, &stateway_binary()?)?;
        let mut random = Random::new(4);
        let (mut frames, mut expected) = (Vec::new(), BTreeMap::new());
        for family in FAMILIES {
            for host in 1..=DATAGRAMS {
                // A datagram that must not be fragmented has to fit: otherwise nothing arrives.
                let (least, most, choices): (_, _, &[Forbidden]) = match family {
                    Family::V4 if host % 2 == 0 => (10, 172, &[Forbidden::All]),
                    Family::V4 => (10, 185, &[Forbidden::None, Forbidden::Last]),
                    Family::V6 => (154, 169, &[Forbidden::None]),
                };
                let piece = random.between(least, most) * 8;
                let length = random.between(piece, 6000);
                let sent = Sent::new(&lab, family, host, piece, length, random.one_of(choices));
                let again = sent.cut_again(&sent.payload, NARROW);
                let shapes: Vec<Shape> =
                    again.iter().filter_map(|frame| shape(frame)).map(|(_, shape)| shape).collect();
                expected.insert(sent.source, shapes);
                frames.extend(sent.frames);
            }
        }
        let sniffer = ready(lab.on_server("python3").args(["-c", SNIFF]))?;
        datagrams.start_sending(&lab, &capture(&lab, frames, PAUSE))?.finish()?;
        let mut arrived: BTreeMap<IpAddr, Vec<Shape>> = BTreeMap::new();
        for frame in sniffer.finish()?.stdout.lines().skip(1).map(bytes) {
            if let Some((source, shape)) = shape(&frame) {
                arrived.entry(source).or_default().push(shape);
            }
        }
        for (source, shapes) in &expected {
            let arrived = arrived.remove(source).unwrap_or_default();
            let cuts = |shapes: &[Shape]| -> Vec<(u16, u32, bool)> {
                shapes.iter().map(|&(offset, length, more, _)| (offset, length, more)).collect()
            };
            assert_eq!(cuts(&arrived), cuts(shapes), "{source}");
            // The kernel forgets "don't fragment" where it sends the fragments as they came, so
            // that a sender that discovers the path MTU with them learns nothing. Stateway keeps
            // the flag.
            let has_it = |shapes: &[Shape]| shapes.iter().any(|shape| shape.3);
            assert!(has_it(shapes) || !has_it(&arrived), "{source}");
        }
        Ok(())
    });
}

/// A datagram of the client whose first fragment fits the narrow link and whose second does not.
fn with_a_long_second(lab: &Lab, family: Family) -> Vec<Vec<u8>> {
    let ends = (lab.client_address(family), lab.server_address(family));
    let builder = match ends {
        (IpAddr::V4(client), IpAddr::V4(server)) => {
            PacketBuilder::v4(client.octets(), server.octets()).dont_fragment()
        }
        (client, server) => PacketBuilder::v6(octets(client), octets(server)),
    };
    let builder = builder.macs([0, 0, 0x5e, 0, 0x53, 0x01], lab.next_hop_mac()).id(5);
    let datagram = udp(ends, (5000, PORT), &[7; 2400], true);
    let fragment = |from: usize, to: usize| {
        let mut frame = Vec::new();
        let is_last = to == datagram.len();
        builder.fragment(17, from as u16, !is_last, &datagram[from..to], &mut frame);
        frame
    };
    vec![fragment(0, 960), fragment(960, 960 + 1408), fragment(960 + 1408, datagram.len())]
}

/// The errors that the client gets about such datagrams (family, MTU), and the number of fragments
/// that have come to the server.
fn errors_about_a_long_second(lab: &Lab) -> Result<(Vec<(Family, u32)>, usize)> {
    let datagrams = Datagrams::new(lab, &stateway_binary()?)?;
    let frames = FAMILIES.into_iter().flat_map(|family| with_a_long_second(lab, family));
    let sniffers = [lab.on_client("python3"), lab.on_server("python3")];
    let [client, server] = sniffers.map(|program| ready(program.args(["-c", SNIFF])));
    datagrams.start_sending(lab, &capture(lab, frames, PAUSE))?.finish()?;
    let heard = client?.finish()?.stdout;
    let errors = heard.lines().skip(1).map(bytes).filter_map(|frame| {
        let network = dissect(&frame).ok()?.network?;
        let icmp = &frame[network.transport_offset.into()..];
        let mtu = u32::from_be_bytes(icmp.get(4..8)?.try_into().ok()?);
        match (network.transport, network.source_ip().is_ipv4()) {
            (Transport::IcmpError(IcmpError { kind: 3, code: 4, .. }), true) => {
                Some((Family::V4, mtu))
            }
            (Transport::IcmpError(IcmpError { kind: 2, .. }), false) => Some((Family::V6, mtu)),
            _ => None,
        }
    });
    let mut errors: Vec<_> = errors.collect();
    // Different workers may send them, in any order.
    errors.sort_by_key(|(family, _)| *family == Family::V6);
    let arrived = server?.finish()?.stdout;
    let fragments = arrived.lines().skip(1).filter(|line| shape(&bytes(line)).is_some()).count();
    Ok((errors, fragments))
}

/// Without an answer the sender would never learn the MTU of the path.
#[test]
fn the_sender_of_a_later_fragment_that_is_too_long_hears_as_from_the_kernel() {
    beside_others(|| {
        let mut stateway = router(2)?;
        let kernel = kernel_router(Tracking::Conntrack)?;
        let expected = FAMILIES.map(|family| (family, NARROW)).to_vec();
        for lab in [&kernel, &stateway] {
            lab.gateway().ip(&[&format!("link set wan0 mtu {NARROW}")])?;
            soon("the MTU is known", || Ok(errors_about_a_long_second(lab)?.0 == expected))?;
            assert_eq!(errors_about_a_long_second(lab)?, (expected.clone(), 0));
        }
        stop_cleanly(&mut stateway)
    });
}

/// Type and code of the ICMP errors that the client gets when only the first fragments of its
/// datagrams come, by family.
fn errors_about_missing_fragments(lab: &Lab) -> Result<Vec<(Family, u8, u8)>> {
    let datagrams = Datagrams::new(lab, &stateway_binary()?)?;
    let frames = FAMILIES.map(|family| with_a_long_second(lab, family).swap_remove(0));
    let capture = capture(lab, frames, Duration::from_secs(4));
    let sniffer = ready(lab.on_client("python3").args(["-c", SNIFF]))?;
    datagrams.start_sending(lab, &capture)?.finish()?;
    let heard = sniffer.finish()?.stdout;
    let errors = heard.lines().skip(1).map(bytes).filter_map(|frame| {
        match dissect(&frame).ok()?.network?.transport {
            Transport::IcmpError(IcmpError { kind, code, quoted: Some(quoted), .. }) => {
                let is_v4 = quoted.source.starts_with(&[0; 10]);
                Some((if is_v4 { Family::V4 } else { Family::V6 }, kind, code))
            }
            _ => None,
        }
    });
    Ok(errors.collect())
}

#[test]
fn a_sender_hears_that_its_fragments_are_too_late_as_from_the_kernel() {
    beside_others(|| {
        let more = "[tunables]\nipfrag_time = 1\nip6frag_time = 1\n".to_owned();
        let mut stateway = start(StatewaySpec { more, ..router_spec(2)? })?;
        let kernel = kernel_router(Tracking::Conntrack)?;
        let settings = ["net.ipv4.ipfrag_time=1", "net.netfilter.nf_conntrack_frag6_timeout=1"];
        kernel.gateway().sysctl(settings)?;
        for lab in [&kernel, &stateway] {
            assert_eq!(errors_about_missing_fragments(lab)?, [(Family::V6, 3, 1)]);
        }
        stop_cleanly(&mut stateway)
    });
}
