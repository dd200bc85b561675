//! Random link headers: tags, labels, sessions and other ways to carry a packet in a frame.

use lab::Random;

use super::World;

/// EtherTypes of tags: 802.1Q, 802.1ad, the value used before 802.1ad, and that of some switches.
const TAGS: [u16; 4] = [0x8100, 0x88a8, 0x9100, 0x9200];
/// VLAN identifiers. Most stacks have priority tags, whose identifier is 0.
const VLANS: [u16; 6] = [0, 0, 0, 1, 10, 4095];
/// The largest number of tags in front of a packet.
const MOST_TAGS: usize = 12;

/// The length of an Ethernet header in bytes.
pub const HEADER: usize = 14;
/// The length in bytes of the longest captured frame that is sent again; tags may be added to it.
pub const LONGEST_CAPTURED: usize = 1514;

/// A captured frame, readdressed to the hosts of this world, with tags added and perhaps damaged.
pub fn again(random: &mut Random, world: &World, captured: &[u8]) -> Vec<u8> {
    let mut frame = Vec::from(world.destination_mac);
    frame.extend(world.source_mac);
    tags(random, &mut frame);
    frame.extend(&captured[12..]);
    if random.once_in(3) {
        let at = random.between(12, frame.len() - 1);
        frame[at] ^= 1 << random.between(0, 7);
    }
    frame
}

/// A frame that carries an IP packet of this EtherType.
pub fn frame(random: &mut Random, world: &World, ethertype: u16, packet: &[u8]) -> Vec<u8> {
    let group = [[0xff; 6], [1, 0, 0x5e, 0, 0, 1], [0x33, 0x33, 0, 0, 0, 1]];
    let mut frame = Vec::new();
    frame.extend(match random.once_in(12) {
        true => random.one_of(&group),
        false => world.destination_mac,
    });
    frame.extend(world.source_mac);
    tags(random, &mut frame);
    carry(random, world, ethertype, packet, &mut frame);
    // The shortest frame that a cable carries.
    frame.resize(frame.len().max(60), 0);
    frame
}

/// Adds tags to about one frame in three.
fn tags(random: &mut Random, frame: &mut Vec<u8>) {
    if !random.once_in(3) {
        return;
    }
    for _ in 0..random.between(1, MOST_TAGS) {
        frame.extend(random.one_of(&TAGS).to_be_bytes());
        let priority = (random.between(0, 15) as u16) << 12;
        frame.extend((priority | random.one_of(&VLANS)).to_be_bytes());
    }
}

/// Adds an EtherType or a length, and the bytes that follow it.
fn carry(random: &mut Random, world: &World, ethertype: u16, packet: &[u8], frame: &mut Vec<u8>) {
    let v4 = ethertype == 0x0800;
    match random.between(0, 23) {
        0 => snap(packet, ethertype, [0, 0, 0], frame),
        1 => snap(packet, ethertype, [0, 0, 0xf8], frame),
        2 => {
            // IP in LLC without SNAP.
            frame.extend((packet.len() as u16 + 3).to_be_bytes());
            frame.extend([6, 6, 3]);
            frame.extend(packet);
        }
        3..6 => pppoe(random, v4, packet, frame),
        6..8 => labels(random, packet, frame),
        8 => {
            // A whole frame inside: 802.1ah, and the tag of redundant networks (802.1CB).
            frame.extend([0x88, 0xe7, 0, 0, 0, 1]);
            frame.extend(world.destination_mac);
            frame.extend(world.source_mac);
            frame.extend(ethertype.to_be_bytes());
            frame.extend(packet);
        }
        9 => {
            let tag = random.one_of(&[0xf1c1_u16, 0x892f, 0x88fb, 0x8870, 0x893f, 0x8909]);
            frame.extend(tag.to_be_bytes());
            frame.extend([0, 0, 0, 1]);
            frame.extend(ethertype.to_be_bytes());
            frame.extend(packet);
        }
        10 => {
            // The EtherType of the other family, one that is not assigned, or a random number.
            let any = random.bits() as u16;
            let wrong = random.one_of(&[ethertype ^ 0x8edd, 0x05dd, 0x05ff, 0x0801, any]);
            let wrong = if wrong == 0x0806 { 0x0807 } else { wrong };
            frame.extend(wrong.to_be_bytes());
            frame.extend(packet);
        }
        _ => {
            frame.extend(ethertype.to_be_bytes());
            frame.extend(packet);
        }
    }
}

/// Adds a SNAP header (RFC 1042) and the packet.
fn snap(packet: &[u8], ethertype: u16, organization: [u8; 3], frame: &mut Vec<u8>) {
    frame.extend((packet.len() as u16 + 8).to_be_bytes());
    frame.extend([0xaa, 0xaa, 3]);
    frame.extend(organization);
    frame.extend(ethertype.to_be_bytes());
    frame.extend(packet);
}

/// Adds a PPPoE header (RFC 2516) and the packet. The protocol numbers are those of RFC 1661 and
/// 1662, compressed or not.
fn pppoe(random: &mut Random, v4: bool, packet: &[u8], frame: &mut Vec<u8>) {
    let number: u8 = if v4 { 0x21 } else { 0x57 };
    let protocol: Vec<u8> = match random.between(0, 5) {
        0..3 => vec![0, number],
        3 => vec![number],
        4 => vec![0xff, 3, 0, number],
        _ => vec![0, random.one_of(&[0x2d, 0x2f, 0x3d, 0xfd, 0x53])],
    };
    frame.extend([0x88, 0x64, 0x11, 0, 0, 1]);
    frame.extend(((protocol.len() + packet.len()) as u16).to_be_bytes());
    frame.extend(protocol);
    frame.extend(packet);
}

/// Adds MPLS labels (RFC 3032) and the packet.
fn labels(random: &mut Random, packet: &[u8], frame: &mut Vec<u8>) {
    frame.extend(random.one_of(&[0x8847_u16, 0x8848]).to_be_bytes());
    let count = random.between(1, 12);
    for index in 0..count {
        frame.extend([0, 1, u8::from(index + 1 == count) | 0x10, 64]);
    }
    if random.once_in(4) {
        // A control word of a pseudo-wire (RFC 4385).
        frame.extend([0, 0, 0, 0]);
    }
    frame.extend(packet);
}
