use super::*;

/// The test asserts nothing about time. The measurement itself checks that no packet is lost or
/// overtakes another.
#[test]
fn tables_grow_and_shrink_under_load_and_nothing_is_lost() {
    let cpus = engine::system_cpus();
    // One after the other, because their workers never sleep.
    for workers in [1, 2] {
        let live = measure(300_000, workers, &cpus, Duration::from_millis(100)).unwrap();
        assert_eq!((live.from, live.to, live.lost, live.out_of_order), (1000, 300_000, 0, 0));
        assert_eq!(live.phases.len(), PHASES.len());
        assert!(live.phases.iter().all(|phase| phase.packets > 0), "{live:?}");
        println!("{workers} workers: worst stall {:.0} us", live.worst_stall_us);
    }
}
