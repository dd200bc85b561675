use std::collections::HashMap;

use proptest::prelude::*;
use wire::protocol;

use super::*;

const SECRET: HashKey = HashKey(0x0123_4567_89ab_cdef, 0xfedc_ba98_7654_3210);

fn address(last: u8) -> [u8; 16] {
    std::net::Ipv4Addr::new(198, 51, 100, last).to_ipv6_mapped().octets()
}

fn of_workers(count: u32, secret: HashKey) -> Vec<Identifications> {
    let worker = |number| {
        let mut it = Identifications::new(number as u16, secret);
        it.set_workers(count);
        it
    };
    (0..count).map(worker).collect()
}

/// The least number of identifications that a worker gives between two equal ones.
fn apart(workers: u32) -> usize {
    let part = (1 << 16) / workers.next_power_of_two() as usize;
    part - part.div_ceil(8)
}

#[test]
fn none_is_given_again_soon_by_any_of_the_workers() {
    for workers in [1, 2, 3, 4, 7, 16, 100, 5000] {
        let mut all = of_workers(workers, SECRET);
        // For each identification, the worker that gave it last, and that worker's count then.
        let mut given: HashMap<u16, (usize, usize)> = HashMap::new();
        for at in 0..(1 << 17) / workers as usize {
            for (number, worker) in all.iter_mut().enumerate() {
                let id = worker.next(address(1), address(2), protocol::UDP) as u16;
                if let Some((by, before)) = given.insert(id, (number, at)) {
                    assert_eq!(by, number, "two workers have given {id}");
                    assert!(at - before >= apart(workers), "{id} after {}", at - before);
                }
            }
        }
        // Only the parts of workers that do not exist are left out.
        let parts = workers.next_power_of_two();
        assert_eq!(given.len(), (1 << 16) / parts as usize * workers as usize);
    }
}

/// The share of the steps between identifications that falls into each sixteenth of their range.
fn spread(steps: &[u16]) -> [f64; 16] {
    let mut counts = [0; 16];
    steps.iter().for_each(|step| counts[usize::from(step >> 12)] += 1);
    counts.map(|count| f64::from(count) / steps.len() as f64)
}

#[test]
fn the_next_is_anywhere() {
    for workers in [1, 2] {
        let mut all = of_workers(workers, SECRET);
        let mut draw = |from, to| all[0].next(address(from), address(to), protocol::UDP) as u16;
        let (mut within, mut between) = (Vec::new(), Vec::new());
        // Each pair gets few, so that its block does not show.
        for from in 0..200 {
            for to in 0..100 {
                let [first, second] = [draw(from, to), draw(from, to)];
                within.push(second.wrapping_sub(first));
                between.push(draw(from, to ^ 1).wrapping_sub(second));
            }
        }
        for steps in [&between, &within] {
            let near = |it: &&u16| it.cast_signed().unsigned_abs() <= 32;
            // By chance 65 of 65,536 are near, and eight times as many within a block.
            let near = steps.iter().filter(near).count();
            assert!(near < 20 * 20 * workers as usize, "{near} of {} are near", steps.len());
        }
        let even = 1.0 / 16.0;
        assert!(spread(&between).iter().all(|part| (part - even).abs() < 0.01), "{between:?}");
    }
}

#[test]
fn an_order_that_was_seen_once_does_not_come_again() {
    let mut own = Identifications::new(0, SECRET);
    let mut round = || -> Vec<u16> {
        (0..1 << 16).map(|_| own.next(address(1), address(2), protocol::UDP) as u16).collect()
    };
    let [first, second] = [round(), round()];
    let follows: HashMap<u16, u16> = first.windows(2).map(|two| (two[0], two[1])).collect();
    let again = second.windows(2).filter(|two| follows.get(&two[0]) == Some(&two[1])).count();
    assert!(again < 200, "{again} of {} could have been known", second.len());
}

proptest! {
    #[test]
    fn an_order_has_each_number_once(bits in 0..=16_u32, order: u64) {
        let mut places: Vec<u32> = (0..1 << bits).map(|it| shuffled(it, bits, order)).collect();
        places.sort_unstable();
        prop_assert!(places.into_iter().eq(0..1 << bits));
    }

    /// Different secrets, addresses and protocols have unrelated identifications.
    #[test]
    fn two_pairs_are_of_two_kinds(secret: u64, a: u8, b: u8, udp: bool) {
        let mut own = Identifications::new(0, HashKey(secret, 1));
        let other_protocol = if udp { protocol::UDP } else { protocol::ICMP };
        prop_assume!((a, other_protocol) != (b, protocol::UDP));
        let differences: Vec<u16> = (0..64)
            .map(|_| {
                (own.next(address(9), address(a), other_protocol)
                    ^ own.next(address(9), address(b), protocol::UDP)) as u16
            })
            .collect();
        let mut different = differences.clone();
        different.sort_unstable();
        different.dedup();
        prop_assert!(different.len() > 56, "{differences:?}");
    }
}

#[test]
fn two_gateways_with_one_secret_give_different_ones() {
    for workers in [1, 2, 3, 16] {
        let mut given = [PortPart::First, PortPart::Second].map(|part| {
            let mut all = of_workers(workers, SECRET);
            all.iter_mut().for_each(|it| it.set_part(part));
            let numbers = (0..1 << 16).map(|at| {
                all[at % workers as usize].next(address(1), address(2), protocol::UDP) as u16
            });
            numbers.collect::<std::collections::BTreeSet<_>>()
        });
        let [first, second] = &mut given;
        assert!(first.is_disjoint(second), "{workers}");
        assert_eq!(first.len(), second.len());
    }
}

/// RFC 8200 section 4.5: an identification has 32 bits.
#[test]
fn a_fragment_of_ipv6_gets_an_identification_that_does_not_repeat() {
    let mut own = Identifications::new(0, SECRET);
    let address = |last| std::net::Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, last).octets();
    let ids = |own: &mut Identifications, to: u16| -> std::collections::HashSet<u32> {
        (0..200_000).map(|_| own.next(address(1), address(to), protocol::UDP)).collect()
    };
    for to in [2, 3] {
        assert!(ids(&mut own, to).len() > 199_900, "few meet among 4 billion");
    }
}
