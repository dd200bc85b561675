//! A sender with a packet socket says where others are to write a checksum, and how to cut its
//! packets: nothing is written behind the back of the rules, on a bridge or in a router.

use std::net::IpAddr;

use lab::{Family, Lab, Result, StatewaySpec, Transport};
use wire::build::{PacketBuilder, Tcp};
use wire::{TcpFlags, checksum, dissect};

use crate::scenario::{
    beside_others, bridge_spec, drops, frames, kernel_bridge, listen, load, send_offloads, start,
    stateway, stop_cleanly,
};

/// Nothing passes but what is for port 80.
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
/// A neighbour of the client that is not there, so that nobody answers what the server answers.
const SOURCE: [u8; 4] = [192, 0, 2, 77];
const STATION: [u8; 6] = [2, 0, 0, 0, 0, 0x10];
const SOURCE_PORT: u16 = 4000;
/// The port of the last packet.
const LAST_PORT: u16 = 4999;
/// Where the TCP header begins, and its checksum from there.
const TRANSPORT: (u16, u16) = (34, 16);

/// A frame, and what its sender leaves to others: `struct virtio_net_hdr` (virtio 1.2 section
/// 5.1.6).
struct Probe {
    header: [u8; 10],
    frame: Vec<u8>,
}

impl Probe {
    /// Leaves a checksum to others.
    fn partial(frame: Vec<u8>, (start, offset): (u16, u16)) -> Self {
        let mut header = [0; 10];
        header[0] = 1;
        header[6..8].copy_from_slice(&start.to_ne_bytes());
        header[8..10].copy_from_slice(&offset.to_ne_bytes());
        Self { header, frame }
    }

    fn bytes(&self) -> Vec<u8> {
        [&self.header[..], &self.frame].concat()
    }
}

/// An attempt to open a connection from the client.
fn syn(lab: &Lab, (source_port, destination_port): (u16, u16), urgent: u16) -> Vec<u8> {
    let IpAddr::V4(server) = lab.server_address(Family::V4) else { unreachable!("it is of IPv4") };
    let header = Tcp { source_port, destination_port, flags: TcpFlags::SYN, ..Tcp::default() };
    let mut frame = Vec::new();
    let builder = PacketBuilder::v4(SOURCE, server.octets()).macs(STATION, lab.next_hop_mac());
    builder.tcp(&header, &[], &mut frame);
    frame[52..54].copy_from_slice(&urgent.to_be_bytes());
    let network = dissect(&frame).unwrap().network.unwrap();
    checksum::fill_transport(&mut frame, &network);
    frame
}

/// Every place that may be named, in a packet that the rules let through.
fn every_place(lab: &Lab) -> Vec<Probe> {
    let end = 54;
    let places = (0..end).flat_map(|start| (0..end).map(move |offset| (start, offset)));
    let mut frame = syn(lab, (SOURCE_PORT, 80), 0);
    // As a kernel leaves it.
    let network = dissect(&frame).unwrap().network.unwrap();
    let sum = !checksum::Sum::ZERO.pseudo_header(&network, 20).finish();
    frame[50..52].copy_from_slice(&sum.to_be_bytes());
    places.map(|place| Probe::partial(frame.clone(), place)).collect()
}

/// A packet for port 80 whose checksum, if it is written over that, is 22.
fn for_another_port(lab: &Lab) -> Probe {
    const PORT: (u16, u16) = (36, 0);
    let frame = |urgent, source| syn(lab, (source, 80), urgent);
    let becomes = |urgent: &u16| {
        let mut frame = frame(*urgent, SOURCE_PORT);
        // The checksum of the packet is to be right behind that.
        frame[50..52].copy_from_slice(&[0x11, 0x11]);
        checksum::checksum(&frame[36..]) == 22
    };
    let urgent = (0..=u16::MAX).find(becomes).unwrap();
    let mut frame = frame(urgent, SOURCE_PORT);
    frame[50..52].copy_from_slice(&[0x11, 0x11]);
    // The source port makes up for the checksum that was chosen.
    let network = dissect(&frame).unwrap().network.unwrap();
    frame[34..38].copy_from_slice(&[0, 0, 0, 22]);
    let sum = checksum::Sum::ZERO.pseudo_header(&network, 20).bytes(&frame[34..]).finish();
    frame[34..36].copy_from_slice(&sum.to_be_bytes());
    frame[36..38].copy_from_slice(&80_u16.to_be_bytes());
    Probe::partial(frame, PORT)
}

/// The register of CRC32c behind `byte`.
fn crc_step(register: u32, byte: u8) -> u32 {
    let step = |value: u32, _| (value >> 1) ^ if value & 1 == 1 { 0x82f6_3b78 } else { 0 };
    (register >> 8) ^ (0..8).fold((register ^ u32::from(byte)) & 0xff, step)
}

/// A frame of no protocol that rules judge, in which a CRC at the place of SCTP's writes the
/// EtherType of IPv4 and the beginning of a packet for port 22.
fn hidden(lab: &Lab) -> Probe {
    const PLACE: (u16, u16) = (20, 8);
    let packet = &syn(lab, (SOURCE_PORT, 22), 0)[14..];
    let tags = [0x81, 0, 0, 0].repeat(4);
    let mut frame = [&lab.next_hop_mac()[..], &STATION, &tags, &[8, 6], packet].concat();
    let field = usize::from(PLACE.0 + PLACE.1);
    let covered = [&frame[PLACE.0.into()..field], &[0; 4], &frame[field + 4..]].concat();
    let register = covered.iter().fold(u32::MAX, |register, byte| crc_step(register, *byte));
    // Four bytes behind the packet lead to any number: from there back, byte by byte.
    let wanted = !u32::from_le_bytes([8, 0, packet[0], packet[1]]);
    let back = (0..4).fold(wanted, |after, _| {
        let index = (0..=255).find(|&index| crc_step(0, index) >> 24 == after >> 24).unwrap();
        (after ^ crc_step(0, index)) << 8 | u32::from(index)
    });
    frame.extend((back ^ register).to_le_bytes());
    Probe::partial(frame, PLACE)
}

/// Super-packets that are none: of another kind, without a size, with bytes behind the packet.
fn super_packets(lab: &Lab) -> Vec<Probe> {
    let mut probes = Vec::new();
    for (kind, size, header) in [(1_u8, 1_u16, 54_u16), (1, 8, 20), (4, 8, 54), (5, 8, 54)] {
        let mut frame = syn(lab, (SOURCE_PORT, 80), 0);
        // Behind the packet, as padding, lies what would be its payload.
        frame.extend([0x5a; 100]);
        let mut probe = Probe::partial(frame, TRANSPORT);
        probe.header[1] = kind;
        probe.header[2..4].copy_from_slice(&header.to_ne_bytes());
        probe.header[4..6].copy_from_slice(&size.to_ne_bytes());
        probes.push(probe);
    }
    probes
}

/// Sends the probes from the client, and behind them a packet that is allowed. Returns the
/// frames that reach the server's link.
fn send(lab: &Lab, probes: &[Probe]) -> Result<Vec<Vec<u8>>> {
    // As a card that computes no checksums: the kernel writes them when it sends.
    lab.gateway().program("ethtool").args(["-K", "wan0", "tx", "off"]).check()?;
    lab.client().program("ethtool").args(["-K", "eth0", "tx", "on"]).check()?;
    let mut ports = lab.on_server("python3").args(["-m", "http.server", "80"]).spawn()?;
    ports.wait_for_port(Transport::Tcp, 80)?;
    let mut listening = listen(lab.server())?;
    let last = Probe { header: [0; 10], frame: syn(lab, (LAST_PORT, 80), 0) };
    let all: Vec<_> = probes.iter().chain([&last]).map(Probe::bytes).collect();
    send_offloads(lab.client(), &all)?;
    listening.wait_for_text(&format!("{LAST_PORT:04x}0050"))?;
    let is_ours = |frame: &Vec<u8>| match dissect(frame) {
        Ok(wire::Dissected { network: Some(network), .. }) => {
            network.source_ip() == IpAddr::from(SOURCE)
        }
        _ => frame[6..12] == STATION,
    };
    Ok(frames(listening)?.into_iter().filter(is_ours).collect())
}

/// The ports of a TCP packet whose checksum is right.
fn ports(frame: &[u8]) -> Option<(u16, u16)> {
    let network = dissect(frame).ok()?.network?;
    let wire::Transport::Tcp(tcp) = network.transport else { return None };
    let is_right = checksum::verify_transport(frame, &network) && network.end == 54;
    is_right.then_some((tcp.source_port, tcp.destination_port))
}

/// Nothing that the rules refuse arrives, and what was sent in good order does.
fn only_right_packets_arrive(probes: &[fn(&Lab) -> Vec<Probe>], routed: bool) -> Result<()> {
    // With one worker, packets arrive in the order in which they were sent.
    let spec = StatewaySpec { routed, ..bridge_spec(1)? };
    let mut lab = start(spec)?;
    load(&lab, RULES)?;
    let probes: Vec<_> = probes.iter().flat_map(|probes| probes(&lab)).collect();
    let arrived: Vec<_> = send(&lab, &probes)?.iter().map(|frame| ports(frame)).collect();
    let is_right =
        |probe: &&Probe| probe.header[1..] == Probe::partial(vec![], TRANSPORT).header[1..];
    let mut expected = vec![Some((SOURCE_PORT, 80)); probes.iter().filter(is_right).count()];
    expected.push(Some((LAST_PORT, 80)));
    assert_eq!(arrived, expected);
    assert!(drops(stateway(&lab), "offload_mismatch")? > 0);
    stop_cleanly(&mut lab)
}

#[test]
fn a_checksum_at_a_place_of_the_senders_choice_gets_nothing_past_a_bridge() {
    beside_others(|| {
        only_right_packets_arrive(
            &[every_place, |lab| vec![for_another_port(lab), hidden(lab)], super_packets],
            false,
        )
    });
}

#[test]
fn a_checksum_at_a_place_of_the_senders_choice_gets_nothing_past_a_router() {
    beside_others(|| {
        only_right_packets_arrive(
            &[every_place, |lab| vec![for_another_port(lab), hidden(lab)], super_packets],
            true,
        )
    });
}

/// The attack is one: a bridge of the kernel completes the checksum at that place, and the host
/// gets a packet for another port.
#[test]
fn the_kernel_writes_a_checksum_over_the_port_that_a_host_reads() {
    beside_others(|| {
        let lab = kernel_bridge()?;
        let probe = for_another_port(&lab);
        let arrived = send(&lab, &[probe])?;
        let port = |frame: &Vec<u8>| ports(frame).map(|ports| ports.1);
        assert_eq!(arrived.iter().map(port).collect::<Vec<_>>(), [Some(22), Some(80)]);
        Ok(())
    });
}
