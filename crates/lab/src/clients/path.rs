//! `ping` and `traceroute`.

use std::net::IpAddr;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::program::Program;

/// The counters of `ping`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PingReport {
    /// Echo requests sent.
    pub sent: u32,
    /// Replies received, without duplicates.
    pub received: u32,
    /// Replies that came again.
    pub duplicates: u32,
    /// Mean round trip in milliseconds; `None` without a reply.
    pub mean_ms: Option<f64>,
}

/// A hop that `traceroute` found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hop {
    /// Hop limit of the probe.
    pub limit: u8,
    /// The address that answered; `None` if none did.
    pub address: Option<IpAddr>,
}

/// The way to a host that `traceroute` found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// The hops in order.
    pub hops: Vec<Hop>,
}

impl Route {
    /// The addresses of the hops; `None` for a hop without an answer.
    #[must_use]
    pub fn addresses(&self) -> Vec<Option<IpAddr>> {
        self.hops.iter().map(|hop| hop.address).collect()
    }
}

/// Sends `count` echo requests, 20 ms apart, with a `ping` program of either end:
/// `ping(lab.on_client("ping"), address, 10)`. The program may bring arguments along, such as
/// `["-s", "4000"]` for a size that needs fragments.
///
/// # Errors
/// [`Error::Unexpected`] if `ping` prints no statistics, as when it has no route.
pub fn ping(program: Program, to: IpAddr, count: u32) -> Result<PingReport> {
    let output = program
        .args(["-n", "-q", "-i", "0.02", "-W", "3", "-c", &count.to_string(), &to.to_string()])
        .limit(Duration::from_secs(5) + Duration::from_millis(20) * count)
        .run()?;
    parse_ping(&output.stdout)
        .ok_or_else(|| Error::unexpected("ping", "statistics", &(output.stdout + &output.stderr)))
}

fn parse_ping(text: &str) -> Option<PingReport> {
    let counts = text.lines().find(|line| line.contains("packets transmitted"))?;
    let count = |what: &str| {
        let part = counts.split(", ").find(|part| part.ends_with(what))?;
        part.split(' ').next()?.trim_start_matches('+').parse().ok()
    };
    let mean = |line: &str| line.split(" = ").nth(1)?.split('/').nth(1)?.parse().ok();
    Some(PingReport {
        sent: count("packets transmitted")?,
        received: count("received")?,
        duplicates: count("duplicates").unwrap_or(0),
        mean_ms: text.lines().find(|line| line.starts_with("rtt")).and_then(mean),
    })
}

/// Finds the way to a host: `traceroute(lab.on_client("traceroute"), address)`. Probes are UDP to
/// closed ports. So every hop but the last answers with "time exceeded", and the last with "port
/// unreachable".
///
/// # Errors
/// [`Error::Failed`] if there is no route.
pub fn traceroute(program: Program, to: IpAddr) -> Result<Route> {
    // On a busy machine it takes a moment until neighbours on new links know each other.
    let text = program.args(["-n", "-q", "1", "-w", "5", "-m", "5", &to.to_string()]).check()?;
    let hops: Vec<Hop> = text.lines().filter_map(parse_hop).collect();
    if hops.is_empty() {
        return Err(Error::unexpected("traceroute", "hop", &text));
    }
    Ok(Route { hops })
}

/// Reads a line of the limit and then `*` or the address and times. A line that does not begin with
/// a number is the heading.
fn parse_hop(line: &str) -> Option<Hop> {
    let mut words = line.split_whitespace();
    let limit = words.next()?.parse().ok()?;
    Some(Hop { limit, address: words.next()?.parse().ok() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statistics_of_ping_are_read() {
        let text = "PING 192.0.2.2 (192.0.2.2) 56(84) bytes of data.\n\n\
            --- 192.0.2.2 ping statistics ---\n\
            5 packets transmitted, 4 received, +1 duplicates, 20% packet loss, time 83ms\n\
            rtt min/avg/max/mdev = 0.035/0.052/0.081/0.017 ms\n";
        let report = PingReport { sent: 5, received: 4, duplicates: 1, mean_ms: Some(0.052) };
        assert_eq!(parse_ping(text), Some(report));
        let text = "2 packets transmitted, 0 received, +2 errors, 100% packet loss, time 10ms\n";
        let report = PingReport { sent: 2, received: 0, duplicates: 0, mean_ms: None };
        assert_eq!(parse_ping(text), Some(report));
        assert_eq!(parse_ping("ping: connect: Network is unreachable\n"), None);
    }

    #[test]
    fn hops_of_traceroute_are_read() {
        assert_eq!(parse_hop("traceroute to 192.0.2.2 (192.0.2.2), 5 hops max"), None);
        let hop = |limit, address: &str| Some(Hop { limit, address: address.parse().ok() });
        assert_eq!(parse_hop(" 1  192.0.2.2  0.045 ms"), hop(1, "192.0.2.2"));
        assert_eq!(parse_hop(" 2  2001:db8::1  0.045 ms !X"), hop(2, "2001:db8::1"));
        assert_eq!(parse_hop(" 3  *"), hop(3, "*"));
    }
}
