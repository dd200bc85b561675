//! Real traffic through Stateway.

use std::ops::{Deref, DerefMut};

use lab::{Family, Gateway, Lab, Placement, Result, StatewaySpec};

use crate::scenario::{alone, every_client, fragments_arrive, routes_show, stateway_binary};

/// A lab that prints the log of its Stateway when it is dropped; a failed test shows it.
pub struct Live(Lab);

impl From<Lab> for Live {
    fn from(lab: Lab) -> Self {
        Self(lab)
    }
}

impl Deref for Live {
    type Target = Lab;

    fn deref(&self) -> &Lab {
        &self.0
    }
}

impl DerefMut for Live {
    fn deref_mut(&mut self) -> &mut Lab {
        &mut self.0
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        if let Some(stateway) = self.0.stateway() {
            println!("log of stateway:\n{}", stateway.log());
        }
    }
}

pub fn stateway_lab(workers: u32) -> Result<Live> {
    let spec = StatewaySpec::new(stateway_binary()?, workers);
    Lab::new(Gateway::Stateway(spec), Placement::free()).map(Live)
}

/// Stops the gateway. A failure shows its log.
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

#[test]
fn fragments_through_two_workers() {
    alone(|| {
        let mut lab = stateway_lab(2)?;
        fragments_arrive(&lab)?;
        stop_cleanly(&mut lab)
    });
}
