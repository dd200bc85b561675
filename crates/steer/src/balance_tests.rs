use proptest::prelude::*;

use super::*;
use crate::{BucketCount, MAX_WORKERS};

/// Loads of the workers when one unit of work is `unit` of a worker's time.
fn loads(table: &IndirectionTable, work: &[u64], unit: f64) -> Vec<f64> {
    let mut loads = vec![0.0; MAX_WORKERS];
    for (bucket, owner) in table.iter() {
        loads[owner.index()] += work[bucket.index()] as f64 * unit;
    }
    loads
}

fn order_moves(table: &mut IndirectionTable, plan: &Plan) {
    for step in &plan.moves {
        assert_eq!(table.owner(step.change.bucket), step.change.from);
        table.set_owner(step.change.bucket, step.change.to);
    }
}

fn spread(buckets: u64, workers: usize) -> IndirectionTable {
    IndirectionTable::spread(BucketCount::new(buckets).unwrap(), WorkerSet::first(workers)).unwrap()
}

fn plan(table: &IndirectionTable, work: &[u64], unit: f64, workers: usize) -> Plan {
    let sample = Sample {
        table,
        bucket_work: work,
        worker_load: &loads(table, work, unit),
        allowed: WorkerSet::first(workers),
    };
    Balancer::new(BalanceSettings::default()).plan(&sample)
}

#[test]
fn even_load_moves_no_bucket() {
    let table = spread(256, 4);
    let plan = plan(&table, &[1; 256], 0.01, 4);
    assert_eq!(plan.moves, []);
    assert_eq!(plan.before, plan.after);
    assert_eq!(plan.wanted_workers, 4, "2.56 workers' time at 75 % each");
}

#[test]
fn noise_within_the_threshold_moves_nothing() {
    let table = spread(8, 2);
    let sample = Sample {
        table: &table,
        bucket_work: &[1; 8],
        worker_load: &[0.519, 0.481],
        allowed: WorkerSet::first(2),
    };
    let balancer = Balancer::new(BalanceSettings::default());
    assert_eq!(balancer.plan(&sample).moves, []);
    let sample = Sample { worker_load: &[0.54, 0.46], ..sample };
    assert_eq!(balancer.plan(&sample).moves, [], "a bucket is 0.135: it would only swap them");
    let sample = Sample { worker_load: &[0.64, 0.36], ..sample };
    assert_eq!(balancer.plan(&sample).moves.len(), 1);
}

#[test]
fn an_elephant_keeps_its_worker_and_its_mice_go() {
    let table = spread(8, 2);
    let plan = plan(&table, &[60, 5, 5, 5, 5, 5, 5, 5], 0.01, 2);
    insta::assert_snapshot!(plan, @r"
    before: worker 0 75.0 %, worker 1 20.0 %, level 35.0 %, excess 15.0 %
      bucket 1 (5.0 %) from worker 0 to worker 1: makes way for bucket 0 (60.0 %), which can not be split
      bucket 2 (5.0 %) from worker 0 to worker 1: makes way for bucket 0 (60.0 %), which can not be split
      bucket 3 (5.0 %) from worker 0 to worker 1: makes way for bucket 0 (60.0 %), which can not be split
    after:  worker 0 60.0 %, worker 1 35.0 %, level 35.0 %, excess 0.0 %
    workers wanted at the target load: 2
    ");
}

#[test]
fn two_elephants_are_parted() {
    let table = spread(4, 2);
    let plan = plan(&table, &[40, 40, 5, 5], 0.01, 2);
    insta::assert_snapshot!(plan, @r"
    before: worker 0 80.0 %, worker 1 10.0 %, level 45.0 %, excess 35.0 %
      bucket 1 (40.0 %) from worker 0 to worker 1: its owner carries 80.0 %, the level is 45.0 %
      bucket 3 (5.0 %) from worker 1 to worker 0: its owner carries 50.0 %, the level is 45.0 %
    after:  worker 0 45.0 %, worker 1 45.0 %, level 45.0 %, excess 0.0 %
    workers wanted at the target load: 2
    ");
}

#[test]
fn an_idle_worker_gets_its_share_in_few_moves() {
    let table = spread(256, 1);
    let mut work = [1; 256];
    work[7] = 100;
    let plan = plan(&table, &work, 0.002, 2);
    assert!(plan.moves.len() <= 16);
    assert!(plan.after.excess < plan.before.excess);
    assert_eq!(plan.moves[0].change.bucket, BucketId(7), "the heaviest that fits goes first");
}

#[test]
fn buckets_leave_a_worker_that_may_own_none() {
    let mut table = spread(32, 3);
    let allowed = WorkerSet::first(3).without(WorkerId(1));
    let mut balancer = Balancer::new(BalanceSettings::default());
    for _ in 0..4 {
        let worker_load = loads(&table, &[1; 32], 0.01);
        let sample =
            Sample { table: &table, bucket_work: &[1; 32], worker_load: &worker_load, allowed };
        let plan = balancer.plan(&sample);
        balancer.finish_round(&plan.moves);
        order_moves(&mut table, &plan);
    }
    assert_eq!(table.owners(), allowed);
    assert_eq!(table.buckets_of(WorkerId(0)).count(), 16);
}

#[test]
fn a_bucket_that_moved_rests() {
    let mut table = spread(16, 2);
    let mut work = [2; 16];
    let mut balancer = Balancer::new(BalanceSettings::default());
    let mut seen = Vec::new();
    for round in 0..6 {
        // The load follows the buckets that moved, which is the worst case for a balancer.
        let worker_load = loads(&table, &work, 0.02);
        let sample = Sample {
            table: &table,
            bucket_work: &work,
            worker_load: &worker_load,
            allowed: WorkerSet::first(2),
        };
        let plan = balancer.plan(&sample);
        balancer.finish_round(&plan.moves);
        order_moves(&mut table, &plan);
        seen.extend(plan.moves.iter().map(|step| (step.change.bucket, round)));
        for (index, work) in work.iter_mut().enumerate() {
            *work = if table.owner(BucketId(index as u16)) == WorkerId(round & 1) { 3 } else { 1 };
        }
    }
    for (at, &(bucket, round)) in seen.iter().enumerate() {
        let again = seen[at + 1..].iter().find(|&&(other, _)| other == bucket);
        assert!(again.is_none_or(|&(_, next)| next > round + 2), "{seen:?}");
    }
    assert!(!seen.is_empty());
}

/// A worker that is busy with receiving alone is not idle.
#[test]
fn load_that_no_bucket_causes_draws_no_buckets() {
    let table = spread(8, 1);
    let sample = Sample {
        table: &table,
        bucket_work: &[1; 8],
        worker_load: &[0.5, 0.9],
        allowed: WorkerSet::first(2),
    };
    let plan = Balancer::new(BalanceSettings::default()).plan(&sample);
    assert_eq!(plan.moves, []);
    assert_eq!(plan.before.loads[1], (WorkerId(1), 0.9));
}

#[test]
fn nonsense_is_survived() {
    let table = spread(4, 2);
    let balancer = Balancer::new(BalanceSettings::default());
    let nonsense = [f64::NAN, f64::INFINITY];
    let allowed = WorkerSet::first(2);
    for (bucket_work, worker_load) in [(&[][..], &nonsense[..]), (&[u64::MAX; 9][..], &[][..])] {
        let plan = balancer.plan(&Sample { table: &table, bucket_work, worker_load, allowed });
        assert_eq!(plan.moves, []);
    }
    let sample = Sample {
        table: &table,
        bucket_work: &[1; 4],
        worker_load: &[0.9, -1.0],
        allowed: WorkerSet::EMPTY,
    };
    assert_eq!(balancer.plan(&sample).moves, []);
}

fn work() -> impl Strategy<Value = Vec<u64>> {
    // Mostly small buckets, sometimes an elephant.
    prop::collection::vec(prop_oneof![8 => 0..20_u64, 1 => 0..2000_u64], 64)
}

proptest! {
    #[test]
    fn plans_improve_and_come_to_an_end(
        work in work(),
        owners in 1..=6_usize,
        workers in 1..=6_usize,
        max_moves in 1..40_usize,
    ) {
        let workers = workers.max(owners);
        let mut table = spread(64, owners);
        let allowed = WorkerSet::first(workers);
        let unit = 1.0 / work.iter().sum::<u64>().max(1) as f64;
        let settings = BalanceSettings { max_moves, rest_rounds: 0, ..BalanceSettings::default() };
        let balancer = Balancer::new(settings);
        for round in 0.. {
            let worker_load = loads(&table, &work, unit);
            let sample = Sample { table: &table, bucket_work: &work, worker_load: &worker_load, allowed };
            let plan = balancer.plan(&sample);
            let most = |spread: &Spread| spread.loads.iter().map(|&(_, load)| load).fold(0.0, f64::max);
            prop_assert!(plan.moves.len() <= max_moves);
            prop_assert!(most(&plan.after) <= most(&plan.before) + 1e-9);
            prop_assert!(plan.moves.iter().all(|step| allowed.contains(step.change.to)));
            if plan.moves.is_empty() {
                break;
            }
            let squares = |spread: &Spread| spread.loads.iter().map(|&(_, load)| load * load).sum::<f64>();
            prop_assert!(squares(&plan.after) < squares(&plan.before));
            order_moves(&mut table, &plan);
            // The planned loads are the ones measured afterwards.
            let measured = loads(&table, &work, unit);
            for &(worker, load) in &plan.after.loads {
                prop_assert!((measured[worker.index()] - load).abs() < 1e-9);
            }
            prop_assert!(round < 200, "no end");
        }
    }

    #[test]
    fn fine_buckets_end_even(work in prop::collection::vec(50..100_u64, 256), workers in 2..=4_usize) {
        let mut table = spread(256, 1);
        let unit = 0.8 / work.iter().sum::<u64>() as f64;
        for _ in 0..32 {
            let plan = plan(&table, &work, unit, workers);
            order_moves(&mut table, &plan);
        }
        let plan = plan(&table, &work, unit, workers);
        prop_assert_eq!(&plan.moves, &vec![]);
        prop_assert!(plan.before.excess <= 0.02, "{}", plan);
    }

    #[test]
    fn no_bucket_moves_to_or_stays_with_a_worker_that_may_own_none(
        work in work(),
        allowed in 1..64_u64,
    ) {
        let mut table = spread(64, 6);
        let allowed: WorkerSet = (0..6).filter(|n| allowed >> n & 1 == 1).map(WorkerId).collect();
        let mut balancer = Balancer::new(BalanceSettings::default());
        for _ in 0..6 {
            let worker_load = loads(&table, &work, 0.001);
            let sample = Sample { table: &table, bucket_work: &work, worker_load: &worker_load, allowed };
            let plan = balancer.plan(&sample);
            prop_assert!(plan.moves.iter().all(|step| allowed.contains(step.change.to)));
            balancer.finish_round(&plan.moves);
            order_moves(&mut table, &plan);
        }
        prop_assert_eq!(table.owners().difference(allowed), WorkerSet::EMPTY);
    }
}
