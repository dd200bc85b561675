//! Real traffic through a bridge.

use lab::Family;

use crate::scenario::{
    beside_others, bridge, every_client, fragments_arrive, routes_show, stop_cleanly,
};

fn every_client_with(workers: u32) {
    beside_others(|| {
        let mut lab = bridge(workers)?;
        every_client(&lab)?;
        routes_show(&lab, |_: Family| vec![])?;
        stop_cleanly(&mut lab)
    });
}

#[test]
fn every_client_through_one_worker() {
    every_client_with(1);
}

#[test]
fn every_client_through_two_workers() {
    every_client_with(2);
}

#[test]
fn fragments_through_two_workers() {
    beside_others(|| {
        let mut lab = bridge(2)?;
        fragments_arrive(&lab)?;
        stop_cleanly(&mut lab)
    });
}
