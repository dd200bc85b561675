//! Claims interfaces, so that each has one gateway.

use anyhow::Result;
use netio::PortError;
use netio::afpacket::Claim;

use super::at_its_line;
use crate::config::{Configuration, Problems};

/// Claims all interfaces in order, so that no second gateway forwards their packets.
///
/// # Errors
/// [`Problems`] names the interfaces that another gateway has. Otherwise, the error of the first
/// interface that can not be claimed.
pub fn claim_all(config: &Configuration) -> Result<Vec<Claim>> {
    let (mut claims, mut problems) = (Vec::new(), Vec::new());
    for interface in &config.interfaces {
        // The interface may have gone since the configuration was checked.
        let gone = || PortError::NoInterface { interface: interface.name.clone() };
        match interface.link.as_ref().ok_or_else(gone).and_then(Claim::take) {
            Ok(claim) => claims.push(claim),
            Err(error @ PortError::Claimed { .. }) => {
                let what = error.to_string();
                problems.push(config.problem(interface.name_line, "interface.name", what));
            }
            Err(error) => return Err(at_its_line(config, error)),
        }
    }
    Ok(Problems::or_value(problems, claims)?)
}
