use proptest::prelude::*;

use super::*;

fn counts(table: &IndirectionTable, workers: WorkerSet) -> Vec<usize> {
    workers.iter().map(|worker| table.buckets_of(worker).count()).collect()
}

#[test]
fn without_workers_there_is_no_table() {
    assert_eq!(IndirectionTable::spread(BucketCount::DEFAULT, WorkerSet::EMPTY), Err(NoWorkers));
    let table = IndirectionTable::spread(BucketCount::DEFAULT, WorkerSet::first(2)).unwrap();
    assert_eq!(table.moves_to(WorkerSet::EMPTY), Err(NoWorkers));
}

#[test]
fn the_worker_is_the_one_that_receive_packet_steering_chooses() {
    let buckets = BucketCount::DEFAULT;
    for workers in 1..=64_u64 {
        let table = IndirectionTable::spread(buckets, WorkerSet::first(workers as usize)).unwrap();
        for bucket in buckets.iter() {
            let hash = (bucket.index() as u64) << 24;
            assert_eq!(u64::from(table.owner(bucket).0), (hash * workers) >> 32);
        }
    }
}

#[test]
fn a_third_worker_takes_a_third() {
    let table = IndirectionTable::spread(BucketCount::DEFAULT, WorkerSet::first(2)).unwrap();
    let moves = table.moves_to(WorkerSet::first(3)).unwrap();
    assert_eq!(moves.len(), 85);
    assert!(moves.iter().all(|step| step.to == WorkerId(2)));
}

proptest! {
    #[test]
    fn any_change_of_workers_ends_even(
        before in 1..u64::MAX,
        after in 1..u64::MAX,
        log_buckets in 0..=12_u32,
    ) {
        let set = |bits: u64| (0..64).filter(|n| bits >> n & 1 == 1).map(WorkerId).collect::<WorkerSet>();
        let (before, after) = (set(before), set(after));
        let buckets = BucketCount::new(1 << log_buckets).unwrap();
        let mut table = IndirectionTable::spread(buckets, before).unwrap();
        let spread = counts(&table, before);
        prop_assert!(spread.iter().max().unwrap() - spread.iter().min().unwrap() <= 1);

        let moves = table.moves_to(after).unwrap();
        for step in &moves {
            prop_assert_eq!(table.owner(step.bucket), step.from);
            prop_assert_ne!(step.from, step.to);
            table.set_owner(step.bucket, step.to);
        }
        let spread = counts(&table, after);
        prop_assert_eq!(spread.iter().sum::<usize>(), table.len());
        prop_assert!(spread.iter().max().unwrap() - spread.iter().min().unwrap() <= 1);
        prop_assert_eq!(table.moves_to(after).unwrap(), vec![], "nothing more to do");
    }
}
