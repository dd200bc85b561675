//! Real traffic through Stateway.

use lab::{Family, Gateway, Lab, Placement, Result, StatewaySpec};

use crate::scenario::{alone, every_client, routes_show, stateway_binary};

pub fn stateway_lab(workers: u32) -> Result<Lab> {
    let spec = StatewaySpec::new(stateway_binary()?, workers);
    Lab::new(Gateway::Stateway(spec), Placement::free())
}

/// Stops the gateway; a failure shows its log.
pub fn stop_cleanly(lab: &mut Lab) -> Result<()> {
    let stateway = lab.take_stateway().expect("the lab has a Stateway that runs");
    let output = stateway.stop()?;
    assert_eq!(output.code, Some(0), "log of stateway:\n{}", output.stdout);
    Ok(())
}

fn every_client_with(workers: u32) {
    alone(|| {
        let mut lab = stateway_lab(workers)?;
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
