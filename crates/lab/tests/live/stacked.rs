//! Devices of the host's kernel that stand on the gateway's interfaces.

use lab::{Gateway, Lab, Placement, Result, StatewaySpec, ping};

use crate::names::load_closed;
use crate::past_the_kernel::{ask_past_bridge, set};
use crate::scenario::{alone, stateway_binary};
use crate::stateway::{Live, stop_cleanly};

/// The station of a macvlan device.
const STATION: &str = "02:00:00:00:00:77";

/// How often the way past the rules is tried until the guard has to have closed it.
const TRIES: usize = 5;

/// True if soon no request gets past the rules.
fn is_closed_soon(lab: &Lab) -> Result<bool> {
    for _ in 0..TRIES {
        if ask_past_bridge(lab)? == [0, 0] {
            return Ok(true);
        }
    }
    Ok(false)
}

#[test]
fn the_kernel_forwards_nothing_that_comes_in_by_a_device_on_top_of_an_interface() {
    alone(|| {
        let spec = StatewaySpec::new(stateway_binary()?, 2);
        let mut lab = Live::from(Lab::new(Gateway::Stateway(spec), Placement::free())?);
        load_closed(&lab)?;
        lab.gateway().ip(&[
            "addr add 192.0.2.254/24 dev wan0",
            "addr add 2001:db8:1::fe/64 dev wan0 nodad",
            &format!("link add link lan0 name mv0 address {STATION} type macvlan mode bridge"),
            "link set mv0 up",
        ])?;
        set(&lab, &["net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1"])?;
        for address in ["192.0.2.2", "2001:db8:1::2"] {
            lab.client().ip(&[&format!(
                "neigh replace {address} lladdr {STATION} dev eth0 nud permanent"
            )])?;
        }
        assert!(is_closed_soon(&lab)?);
        // Another takes its place.
        lab.gateway().ip(&[
            "link del mv0",
            &format!("link add link lan0 name mv1 address {STATION} type macvlan mode bridge"),
            "link set mv1 up",
        ])?;
        assert!(is_closed_soon(&lab)?, "the other device");
        let managed = ping(lab.on_server("ping"), "192.0.2.254".parse().unwrap(), 5)?;
        assert_eq!((managed.received, managed.duplicates), (5, 0), "the host is reached");
        stop_cleanly(&mut lab)?;
        assert_ne!(ask_past_bridge(&lab)?.map(|requests| requests > 0), [false; 2], "it would");
        Ok(())
    });
}
