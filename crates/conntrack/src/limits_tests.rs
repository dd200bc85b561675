use super::*;

const SECRET: HashKey = HashKey(1, 2);

fn settings(max_entries: u64) -> Settings {
    Settings { max_entries, ..Settings::default() }
}

/// Two workers, and the pools that they share.
fn pair(max_entries: u64, reserve: &Reserve) -> (LimitPools, [Limits; 2]) {
    let pools = LimitPools::new(&settings(max_entries), reserve, []);
    let mut pair = [pools.limits(SECRET), pools.limits(SECRET)];
    pair.iter_mut().for_each(|limits| limits.share(2));
    (pools, pair)
}

/// Takes over a limit that has changed.
fn change(pools: &LimitPools, pair: &mut [Limits; 2], max_entries: u64) {
    pools.apply(&settings(max_entries));
    pair.iter_mut().for_each(|limits| limits.share(2));
}

fn spend(limits: &mut Limits, times: usize) -> usize {
    (0..times).filter(|_| limits.spend()).count()
}

#[test]
fn a_limit_that_is_lowered_holds_at_once() {
    let (pools, mut pair) = pair(1 << 20, &Reserve::default());
    pair.iter_mut().for_each(|limits| assert_eq!(spend(limits, 5), 5));
    change(&pools, &mut pair, 100);
    let [first, second] = &mut pair;
    let opened = 10 + spend(first, 4000) + spend(second, 4000);
    assert_eq!(opened, 100, "what lies in pockets counts");
    assert_eq!(first.used() + second.used(), 100);
    change(&pools, &mut pair, 50);
    let [first, second] = &mut pair;
    assert_eq!(spend(first, 10) + spend(second, 10), 0);
    first.table.release(first.table.used());
    second.table.release(second.table.used());
    assert_eq!(spend(first, 100) + spend(second, 100), 50);
}

#[test]
fn each_worker_has_a_part_that_no_other_takes() {
    let (pools, mut pair) = pair(100, &Reserve::default());
    let [first, second] = &mut pair;
    assert_eq!(spend(first, 300), 88, "an eighth is the other's");
    assert_eq!(spend(second, 300), 12);
    // Also where the other had taken everything before.
    first.table.release(88);
    second.table.release(12);
    let mut alone = pools.limits(SECRET);
    drop(std::mem::replace(second, pools.limits(SECRET)));
    assert_eq!(spend(&mut alone, 300), 88);
    second.share(2);
    assert!(!second.spend() && alone.is_overdrawn());
    for _ in 0..12 {
        alone.table.release(1);
        alone.settle();
    }
    assert!(!alone.is_overdrawn());
    assert_eq!(spend(second, 300), 12);
}

#[test]
fn a_higher_limit_is_taken_in_larger_parts() {
    let (pools, mut pair) = pair(1000, &Reserve::default());
    change(&pools, &mut pair, 1 << 20);
    let [first, _] = &mut pair;
    assert!(first.spend());
    assert!(first.table.spare() > 1000, "{}", first.table.spare());
}

#[test]
fn the_reserve_leaves_half_to_the_others() {
    let reserve = Reserve { sources: Vec::new(), connections: 80 };
    let (pools, mut pair) = pair(1000, &reserve);
    assert_eq!((pools.reserve.cap(), pools.table.cap()), (80, 920));
    change(&pools, &mut pair, 100);
    assert_eq!((pools.reserve.cap(), pools.table.cap()), (50, 50));
    change(&pools, &mut pair, 1000);
    assert_eq!((pools.reserve.cap(), pools.table.cap()), (80, 920));
}
