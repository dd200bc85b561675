//! The simulation catches each planted fault within 500 seeds, by an invariant that names it.

use sim::Invariant::{
    self, BadFrameChangesNothing, EqualAfterQuiet, FullKeepsAssured, NoReset, NoRollBack, NoStall,
    NothingLost, NothingMixed, OneTupleOneConnection, UnlikeStayApart, ZonesCount,
};
use sim::{Fault, Planted, run_all};

/// Seeds within which each fault has to show.
const SEEDS: u64 = 500;

/// The first seed that shows a fault shows it by one of these.
fn caught(fault: Fault, by: &[Invariant]) {
    let failing = run_all(1..SEEDS + 1, Planted(Some(fault)), 1);
    let Some(failure) = failing.first() else { panic!("no seed of {SEEDS} shows {fault:?}") };
    println!("{fault:?}: {failure}");
    assert!(by.contains(&failure.violation.invariant), "{fault:?} is caught otherwise: {failure}");
}

#[test]
fn other_buckets_at_the_peer_are_caught() {
    caught(Fault::OtherBuckets, &[UnlikeStayApart]);
}

#[test]
fn the_port_of_an_imported_connection_that_a_new_one_gets_is_caught() {
    caught(Fault::PortOfImported, &[OneTupleOneConnection]);
}

#[test]
fn a_missing_alias_is_caught() {
    caught(Fault::NoAlias, &[NoStall, NoReset]);
}

#[test]
fn addresses_that_come_late_are_caught() {
    caught(Fault::LateAddress, &[EqualAfterQuiet, NoReset, NoRollBack, NoStall, NothingLost]);
}

#[test]
fn what_ends_with_the_virtual_address_is_caught() {
    caught(Fault::LostAddress, &[NoReset, NoStall, NothingLost, NothingMixed]);
}

#[test]
fn numbers_of_interfaces_are_caught() {
    caught(Fault::InterfaceNumber, &[EqualAfterQuiet, NothingLost]);
}

#[test]
fn deadlines_are_caught() {
    caught(Fault::AbsoluteDeadline, &[NoReset, NothingLost]);
}

#[test]
fn a_standby_that_expires_copies_is_caught() {
    caught(Fault::EarlyExpiry, &[NothingLost]);
}

#[test]
fn a_stale_update_is_caught() {
    caught(Fault::StaleUpdate, &[NoRollBack]);
}

#[test]
fn connections_that_learn_nothing_anew_are_caught() {
    caught(Fault::NoRelearning, &[NoReset, NoStall]);
}

#[test]
fn the_end_of_an_old_connection_that_hits_a_new_one_is_caught() {
    caught(Fault::OldEnd, &[NoRollBack, NothingLost]);
}

#[test]
fn a_lost_end_of_a_bulk_transfer_is_caught() {
    caught(Fault::LostBulkEnd, &[EqualAfterQuiet]);
}

#[test]
fn a_replayed_frame_is_caught() {
    caught(Fault::ReplayedFrame, &[BadFrameChangesNothing]);
}

#[test]
fn missing_shifts_are_caught() {
    caught(Fault::NoShifts, &[NothingMixed, NoReset, NoStall]);
}

#[test]
fn an_unknown_zone_is_caught() {
    caught(Fault::UnknownZone, &[ZonesCount]);
}

#[test]
fn ports_that_both_gateways_give_away_are_caught() {
    caught(Fault::SamePorts, &[OneTupleOneConnection, NoReset, NoStall]);
}

#[test]
fn a_record_of_a_bucket_that_has_moved_is_caught() {
    caught(Fault::MovedBucket, &[NothingLost]);
}

#[test]
fn an_assured_copy_that_gives_way_is_caught() {
    caught(Fault::EvictsAssured, &[FullKeepsAssured, NoReset]);
}

#[test]
fn a_change_that_is_lost_for_good_is_caught() {
    caught(Fault::KeptHole, &[EqualAfterQuiet]);
}
