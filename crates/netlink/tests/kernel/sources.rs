//! Sources that the kernel's `rp_filter` refuses have to be those that the mirror's routes refuse.

use std::collections::BTreeSet;

use fib::{Back, Query, RouteResult};
use netlink::Mirror;

use super::asking::Kernel;
use super::namespace::isolated;
use super::{PACKETS, Random, WORLDS, clean_up, orders, packet, set_up, try_all};

/// The results of the source check for all ways that a packet may take.
fn refuses(mirror: &Mirror, query: &Query, strict: bool) -> BTreeSet<bool> {
    let fib = &mirror.picture().fib;
    let flow = |number: u32| Query { flow_hash: number.wrapping_mul(0x9e37_79b1), ..*query };
    let refuses = |query: Query| {
        let RouteResult::Forward(hop) = fib.look_up(&query) else { panic!("{query:?} has a way") };
        match fib.back(&query, Some(hop.link)) {
            Back::Here => false,
            Back::Elsewhere { .. } => strict,
            Back::Host | Back::Nowhere => true,
        }
    };
    (0..64).map(|number| refuses(flow(number))).collect()
}

/// Compares packets that are to be forwarded; returns how many were, and how many were refused.
fn compare(
    random: &mut Random,
    mirror: &mut Mirror,
    kernel: &mut Kernel,
    strict: bool,
) -> (usize, usize) {
    mirror.refresh().unwrap();
    let (mut asked, mut refused) = (0, 0);
    for _ in 0..PACKETS {
        let query = packet(random, false, mirror);
        let way = mirror.picture().fib.look_up(&query);
        if !matches!(way, RouteResult::Forward(_)) {
            continue;
        }
        // The kernel has one error for all reasons to refuse.
        let theirs = !kernel.way(&query).starts_with("link");
        let ours = refuses(mirror, &query, strict);
        assert!(ours.contains(&theirs), "{query:?}\nkernel refuses: {theirs}\nours: {ours:?}");
        (asked, refused) = (asked + 1, refused + usize::from(theirs));
    }
    (asked, refused)
}

#[test]
fn a_source_is_refused_where_the_kernel_refuses_it() {
    isolated("sources::a_source_is_refused_where_the_kernel_refuses_it", || {
        set_up();
        let mut mirror = Mirror::open().unwrap();
        let mut kernel = Kernel::open();
        for (value, strict) in [("1", true), ("2", false)] {
            std::fs::write("/proc/sys/net/ipv4/conf/all/rp_filter", value).unwrap();
            let (mut asked, mut refused) = (0, 0);
            for world in 1..=WORLDS {
                println!("rp_filter {value}, world {world}");
                let mut random = Random(world.wrapping_mul(0x9e37_79b9_7f4a_7c15));
                let (orders, changes) = orders(&mut random);
                for orders in [orders, changes] {
                    try_all(&orders);
                    let (more, of_them) = compare(&mut random, &mut mirror, &mut kernel, strict);
                    (asked, refused) = (asked + more, refused + of_them);
                }
                clean_up();
            }
            println!("rp_filter {value}: {asked} packets, {refused} refused");
            assert!(asked > 500 && refused * 20 > asked && refused < asked);
        }
    });
}
