use flow::{DropReason, HashKey, Zone};
use ruleset::{Options, import};
use wire::build::{PacketBuilder, Tcp};
use wire::{Dissected, TcpFlags};

use super::*;
use crate::path::rules::ruleset::Rules;
use crate::testing::one_worker::Rig;
use crate::worker::command::Command;
use crate::{Config, Mode, ZoneConfig};

/// Only packets for port 80 pass.
const RULES: &str = r#"{"nftables":[
    {"table":{"family":"inet","name":"t","handle":1}},
    {"chain":{"family":"inet","table":"t","name":"c","handle":1,"type":"filter",
        "hook":"forward","prio":0,"policy":"drop"}},
    {"rule":{"family":"inet","table":"t","chain":"c","handle":2,"expr":[{"match":{"op":"==",
        "left":{"payload":{"protocol":"tcp","field":"dport"}},"right":80}},{"accept":null}]}}]}"#;

/// A bridge with these rules.
fn rig() -> Rig {
    rig_with(&Config::new(HashKey(1, 2)))
}

fn rig_with(config: &Config) -> Rig {
    let mut rig = Rig::new(config);
    let names = ["lan0".to_owned(), "wan0".to_owned()];
    let rules = import(RULES.as_bytes(), Options::default()).unwrap().ruleset;
    let rules = Rules::prepare(rules, Mode::Bridge, 7, &names).unwrap().load(3, rig.now);
    assert!(rig.commands.push(Command::Rules(Some(rules.for_worker()))).is_ok());
    rig.exchange(0, []);
    rig
}

fn syn(port: u16) -> Vec<u8> {
    let mut frame = Vec::new();
    let header =
        Tcp { source_port: 40_000, destination_port: port, flags: TcpFlags::SYN, ..Tcp::default() };
    PacketBuilder::v4([192, 0, 2, 1], [192, 0, 2, 2]).tcp(&header, &[], &mut frame);
    frame
}

/// The packet of a frame behind another link header, which replaces the EtherType.
fn instead(link: &[u8], frame: &[u8]) -> Vec<u8> {
    [&frame[..12], link, &frame[14..]].concat()
}

/// A frame that carries no IP.
fn other(link: &[u8]) -> Vec<u8> {
    instead(link, &[2; 60])
}

fn dropped(rig: &Rig, name: &str) -> u64 {
    let reason = DropReason::ALL.iter().find(|reason| reason.name() == name);
    rig.worker.path.counters.dropped(*reason.expect("there is such a reason"))
}

#[test]
fn no_stack_of_tags_gets_past_the_rules() {
    let mut rig = rig();
    let tagged = |port, depth| {
        let tags = [[0x81, 0, 0, 0], [0x88, 0xa8, 0xe0, 0], [0x91, 0, 0, 0]];
        let tags = tags.iter().cycle().take(depth).flatten().copied();
        instead(&tags.chain([8, 0]).collect::<Vec<_>>(), &syn(port))
    };
    for depth in 0..=12 {
        assert_eq!(rig.pass([tagged(22, depth)]), 0, "{depth} tags");
        let passes = usize::from(depth <= Dissected::MAX_VLAN_TAGS);
        assert_eq!(rig.pass([tagged(80, depth)]), passes, "{depth} tags");
    }
    assert_eq!(dropped(&rig, "policy_refused"), 5);
    assert_eq!(dropped(&rig, "link_depth"), 2 * 8);
}

#[test]
fn a_packet_in_llc_or_ppp_does_not_get_past_the_rules() {
    let mut rig = rig();
    let length = [0, 48];
    for llc in [
        // RFC 1042, its form for bridges, and the LLC address of IP.
        &[0xaa, 0xaa, 3, 0, 0, 0, 8, 0][..],
        &[0xaa, 0xaa, 3, 0, 0, 0xf8, 8, 0],
        &[0xaa, 0xaa, 3, 0, 0, 0, 0x81, 0, 0, 0, 8, 0],
        &[6, 6, 3],
    ] {
        for link in [length.to_vec(), vec![0x81, 0, 0, 0, 0, 48], vec![5, 0xdd], vec![0x88, 0x70]] {
            assert_eq!(rig.pass([instead(&[&link, llc].concat(), &syn(22))]), 0, "{llc:02x?}");
        }
    }
    assert_eq!(dropped(&rig, "ethertype_refused"), 16);
    // The protocol in one byte, compressed headers, fragments, compressed and encrypted data.
    for ppp in [&[0x21][..], &[0, 0x2d], &[0, 0x3d], &[0, 0xfd], &[0, 0x53], &[0xff, 3, 0, 0x21]] {
        let length = (syn(22).len() - 14 + ppp.len()) as u8;
        let link = [&[0x88, 0x64, 0x11, 0, 0, 1, 0, length][..], ppp].concat();
        assert_eq!(rig.pass([instead(&link, &syn(22))]), 0, "{ppp:02x?}");
    }
    assert_eq!(dropped(&rig, "ppp_hidden"), 6);
}

#[test]
fn a_bridge_passes_arp_and_spanning_tree_and_what_is_named() {
    let arp = other(&[0x08, 0x06]);
    let tagged_arp = other(&[0x81, 0, 0, 7, 0x88, 0xa8, 0, 8, 0x08, 0x06]);
    let spanning_tree = other(&[0, 38, 0x42, 0x42, 3]);
    let others = [
        other(&[0x88, 0xcc]),
        other(&[0x88, 0x63]),
        other(&[0x88, 0x64, 0x11, 0, 0, 1, 0, 10, 0xc0, 0x21]),
        other(&[0x88, 0x47, 0, 0, 1, 64, 0]),
        other(&[0xda, 0xda]),
        other(&[0, 38, 0xaa, 0xaa, 3, 0, 0, 12, 1, 11]),
        other(&[0, 38, 0xfe, 0xfe, 3]),
    ];
    let mut rig = rig();
    assert_eq!(rig.pass([arp.clone(), tagged_arp, spanning_tree.clone()]), 3);
    assert_eq!(rig.pass(others.clone()), 0);
    assert_eq!(dropped(&rig, "ethertype_refused"), others.len() as u64);

    let mut config = Config::new(HashKey(1, 2));
    config.pass = PassList::empty();
    for word in ["lldp", "pppoe", "mpls", "0xDADA", "cisco", "isis"] {
        config.pass.add(word).unwrap();
    }
    let mut rig = rig_with(&config);
    assert_eq!(rig.pass(others.clone()), others.len());
    assert_eq!(rig.pass([arp, spanning_tree]), 0, "they were not named");
}

#[test]
fn a_link_local_frame_that_a_bridge_drops_keeps_its_reason() {
    let mut rig = rig();
    let mut frame = other(&[0x88, 0xcc]);
    frame[..6].copy_from_slice(&[0x01, 0x80, 0xc2, 0, 0, 0x0e]);
    assert_eq!(rig.pass([frame]), 0);
    assert_eq!(dropped(&rig, "link_local"), 1);
}

#[test]
fn a_priority_tag_in_front_of_a_vlan_is_no_way_around_its_zone() {
    let mut config = Config::new(HashKey(1, 2));
    let mut zone = ZoneConfig::new(Zone(10));
    zone.set_vlans(vec![10]).unwrap();
    zone.set_max_connections(1).unwrap();
    config.zones = vec![zone];
    let mut rig = Rig::new(&config);
    let flow = |port: u16, tags: &[u8]| {
        let mut frame = Vec::new();
        PacketBuilder::v4([192, 0, 2, 1], [192, 0, 2, 2]).udp(port, 53, &[], &mut frame);
        instead(&[tags, &[8, 0]].concat(), &frame)
    };
    let vlan = [0x81, 0, 0, 10];
    let priority = [0x81, 0, 0xe0, 0, 0x81, 0, 0, 10];
    assert_eq!(rig.pass([flow(1, &vlan)]), 1);
    // The other direction of the zone's one connection comes with a tag.
    assert_eq!(rig.pass([flow(1, &priority)]), 1);
    assert_eq!(rig.connections(), 1, "it is one flow");
    // No answer was seen, so the connection gives way: the zone never has two.
    assert_eq!(rig.pass((2..50).map(|port| flow(port, &priority))), 48);
    assert_eq!(rig.connections(), 1);
}

#[test]
fn protocols_that_can_not_be_named_are_explained() {
    let refused = |word: &str| PassList::empty().add(word).unwrap_err().to_string();
    assert!(
        refused("arpp")
            .starts_with("\"arpp\" is no protocol with a name here; allowed: \"arp\", \"cfm\", ")
    );
    assert!(refused("0x").contains("no protocol"));
    assert_eq!(refused("0x5dc"), "0x5dc is no EtherType; allowed: from 0x0600 to 0xffff");
    assert_eq!(refused("0x10806"), "0x10806 is no EtherType; allowed: from 0x0600 to 0xffff");
    for read_behind in ["0x0800", "0x86dd", "0x8100", "0x88a8", "0x9100"] {
        assert!(refused(read_behind).contains("take it out"), "{read_behind}");
    }
    let mut named = PassList::empty();
    named.add("arp").unwrap();
    named.add("stp").unwrap();
    assert_eq!(named, PassList::default());
}
