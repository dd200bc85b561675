//! Rules that ask for the time, in a gateway that runs.

use lab::{Error, Family, Result, ping};

use crate::scenario::{beside_others, bridge, load, stop_cleanly};

/// Lets pings through that some rule by time accepts.
fn by_time(question: &str) -> String {
    format!(
        "table inet t {{
    chain f {{
        type filter hook forward priority filter; policy drop;
        icmp type echo-reply accept
        {question} icmp type echo-request accept
    }}
}}"
    )
}

#[test]
fn a_gateway_knows_the_date_and_the_time_of_day() {
    beside_others(|| {
        let mut lab = bridge(2)?;
        let server = lab.server_address(Family::V4);
        let passes = |question: &str| -> Result<bool> {
            load(&lab, &by_time(question))?;
            match ping(lab.on_client("ping"), server, 1) {
                Ok(report) => Ok(report.received == 1),
                Err(Error::Failed { .. }) => Ok(false),
                Err(error) => Err(error),
            }
        };
        assert!(passes("meta time > \"2024-01-01 00:00:00\"")?);
        assert!(!passes("meta time < \"2024-01-01 00:00:00\"")?);
        assert!(passes("meta hour \"00:00\"-\"23:59:59\"")?);
        // One of each pair holds. Noon or midnight may come between the two, but not twice.
        for [this, other] in [
            ["hour \"00:00:00\"-\"11:59:59\"", "hour \"12:00:00\"-\"23:59:59\""],
            [
                "day { \"Sunday\", \"Monday\", \"Tuesday\" }",
                "day != { \"Sunday\", \"Monday\", \"Tuesday\" }",
            ],
        ] {
            let is_one = || -> Result<bool> {
                Ok(passes(&format!("meta {this}"))? != passes(&format!("meta {other}"))?)
            };
            assert!(is_one()? || is_one()?, "{this}");
        }
        stop_cleanly(&mut lab)
    });
}
