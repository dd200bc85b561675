use proptest::prelude::*;

use super::*;

fn workers(cpus: &[usize]) -> Vec<WorkerCpu> {
    cpus.iter()
        .enumerate()
        .map(|(id, &cpu)| WorkerCpu { worker: WorkerId(id as u16), cpu })
        .collect()
}

fn interface(name: &str, cpus: &str) -> InterfaceCpus {
    InterfaceCpus { name: name.to_owned(), cpus: cpus.parse().unwrap() }
}

fn place_text(interfaces: &[(&str, &str)], cpus: &[usize]) -> Result<Placement, PlacementError> {
    let interfaces: Vec<_> = interfaces.iter().map(|(name, cpus)| interface(name, cpus)).collect();
    place(&interfaces, &workers(cpus), BucketCount::DEFAULT)
}

#[test]
fn without_masks_every_worker_owns_buckets() {
    let placement = place_text(&[("lan0", ""), ("wan0", "0")], &[0, 1, 2]).unwrap();
    assert_eq!(placement.allowed, WorkerSet::first(3));
    assert!(placement.without_buckets.is_empty());
    assert_eq!(placement.table.owners(), WorkerSet::first(3));
}

#[test]
fn every_interface_must_agree() {
    let placement = place_text(&[("lan0", "7"), ("wan0", "6"), ("dmz0", "")], &[0, 1, 2]).unwrap();
    assert_eq!(placement.allowed, WorkerSet::first(3).without(WorkerId(0)));
    assert_eq!(placement.without_buckets, WorkerSet::first(1));
    assert_eq!(placement.table.owners(), placement.allowed);
}

#[test]
fn cpus_without_a_worker_are_ignored() {
    let placement = place_text(&[("lan0", "ff")], &[2, 5]).unwrap();
    assert_eq!(placement.allowed, WorkerSet::first(2));
}

#[test]
fn a_placement_that_is_impossible_is_explained() {
    let error =
        |interfaces: &[_], cpus: &[_]| place_text(interfaces, cpus).unwrap_err().to_string();
    insta::assert_snapshot!(error(&[], &[]), @"there are no workers; start at least one");
    insta::assert_snapshot!(error(&[("lan0", "3")], &[]), @"there are no workers; start at least one");
    insta::assert_snapshot!(error(&[("lan0", "c")], &[0, 1]), @r#"interface lan0: no worker runs on the CPUs of its rps_cpus, 2-3; the workers run on CPUs 0-1. Choose among these, for example rps_cpus = "3", or leave it out to allow all"#);
    insta::assert_snapshot!(error(&[("lan0", "3"), ("dmz0", ""), ("wan0", "e"), ("wan1", "c")], &[0, 1, 2, 3]), @"rps_cpus of wan1 (2-3) and of lan0, wan0 (1) have no worker in common. Both directions of a flow are worked on by one worker, so the sets of all interfaces must share a CPU; write the same set for both, or run two gateways");
}

proptest! {
    #[test]
    fn no_promise_is_broken(
        masks in prop::collection::vec(0..256_u32, 0..4),
        cpus in prop::collection::vec(0..8_usize, 0..8),
    ) {
        let workers = workers(&cpus);
        let interfaces: Vec<_> =
            masks.iter().map(|mask| interface("lan0", &format!("{mask:x}"))).collect();
        let promised = |worker: &WorkerCpu| {
            interfaces.iter().all(|i| i.cpus.is_empty() || i.cpus.contains(worker.cpu))
        };
        let expected: WorkerSet =
            workers.iter().filter(|&worker| promised(worker)).map(|worker| worker.worker).collect();
        match place(&interfaces, &workers, BucketCount::DEFAULT) {
            Ok(placement) => {
                prop_assert_eq!(placement.allowed, expected);
                prop_assert_eq!(placement.table.owners(), expected);
            }
            Err(_) => prop_assert!(expected.is_empty()),
        }
    }
}
