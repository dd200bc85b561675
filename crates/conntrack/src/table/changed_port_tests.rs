use wire::Family;

use super::*;
use crate::nat::Addresses;
use crate::table::translation::tests::{host, open, own, supply};
use crate::testing::{Lab, udp};

/// Opens a connection from port 5060 of a client to a server. Returns its slot and the port with
/// which it leaves.
fn call(lab: &mut Lab, client: u8, server: u8, random: bool) -> (u32, u16) {
    let request = Request {
        addresses: Some(Addresses::one(host(Family::V4, 200))),
        random,
        ..Request::of(TranslatedEnd::Source)
    };
    let packet = udp(Family::V4, (client, 5060), (server, 5060));
    let supply = supply(own(), 7 + u64::from(server));
    let slot = open(lab, &packet, [None, Some(request)], supply).unwrap().unwrap();
    let leaves = lab.table.leaves_as(slot);
    (slot, leaves.key.endpoint(leaves.sender).port)
}

#[test]
fn a_source_whose_port_had_to_change_keeps_the_other_one_towards_further_hosts() {
    let mut lab = Lab::new();
    assert_eq!(call(&mut lab, 1, 100, false).1, 5060);
    let (first, port) = call(&mut lab, 2, 100, false);
    assert_ne!(port, 5060);
    let (second, same) = call(&mut lab, 2, 101, false);
    assert_eq!(same, port);
    assert_eq!(call(&mut lab, 1, 101, false).1, 5060, "the other client has its own");
    assert_ne!(call(&mut lab, 2, 102, true).1, port, "the rule says random");
    lab.run(|table, context| table.close(first, context));
    let (third, same) = call(&mut lab, 2, 103, false);
    assert_eq!(same, port);
    // Without these connections, nobody knows the other port any more.
    for slot in [second, third] {
        lab.run(|table, context| table.close(slot, context));
    }
    assert_eq!(call(&mut lab, 2, 104, false).1, 5060);
}
