//! The simulation catches each planted fault within 500 seeds.

use sim::{Fault, Planted, run, run_all};

/// Seeds within which each fault has to show.
const SEEDS: u64 = 500;

/// Looks for the first seed that shows a fault. Without the fault the same seed holds.
fn caught(fault: Fault) {
    let failing = run_all(1..SEEDS + 1, Planted(Some(fault)), 1);
    let Some(first) = failing.first() else { panic!("no seed of {SEEDS} shows {fault:?}") };
    if let Err(failure) = run(first.seed, Planted::default()) {
        panic!("it fails without {fault:?} too: {failure}");
    }
}

#[test]
fn other_buckets_at_the_peer_are_caught() {
    caught(Fault::OtherBuckets);
}

#[test]
fn the_port_of_an_imported_connection_that_a_new_one_gets_is_caught() {
    caught(Fault::PortOfImported);
}

#[test]
fn a_missing_alias_is_caught() {
    caught(Fault::NoAlias);
}

#[test]
fn addresses_that_come_late_are_caught() {
    caught(Fault::LateAddress);
}

#[test]
fn what_ends_with_the_virtual_address_is_caught() {
    caught(Fault::LostAddress);
}

#[test]
fn numbers_of_interfaces_are_caught() {
    caught(Fault::InterfaceNumber);
}

#[test]
fn deadlines_are_caught() {
    caught(Fault::AbsoluteDeadline);
}

#[test]
fn a_standby_that_expires_copies_is_caught() {
    caught(Fault::EarlyExpiry);
}

#[test]
fn a_stale_update_is_caught() {
    caught(Fault::StaleUpdate);
}

#[test]
fn connections_that_learn_nothing_anew_are_caught() {
    caught(Fault::NoRelearning);
}

#[test]
fn the_end_of_an_old_connection_that_hits_a_new_one_is_caught() {
    caught(Fault::OldEnd);
}

#[test]
fn a_lost_end_of_a_bulk_transfer_is_caught() {
    caught(Fault::LostBulkEnd);
}

#[test]
fn a_replayed_frame_is_caught() {
    caught(Fault::ReplayedFrame);
}

#[test]
fn missing_shifts_are_caught() {
    caught(Fault::NoShifts);
}

#[test]
fn an_unknown_zone_is_caught() {
    caught(Fault::UnknownZone);
}

#[test]
fn a_record_of_a_bucket_that_has_moved_is_caught() {
    caught(Fault::MovedBucket);
}

#[test]
fn an_assured_copy_that_gives_way_is_caught() {
    caught(Fault::EvictsAssured);
}
