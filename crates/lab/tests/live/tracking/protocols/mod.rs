//! Comparison of our trackers with the kernel's: both get the same packets at the same times, and
//! must have the same result for each.

mod datagrams;
mod dccp;
mod icmp;
mod sctp;
mod tcp;
mod timeouts;
mod zones;

use crate::scenario::beside_others;

#[test]
fn tcp_is_tracked_as_by_the_kernel() {
    beside_others(|| tcp::TCP.run());
}

#[test]
fn sctp_is_tracked_as_by_the_kernel() {
    beside_others(|| sctp::SCTP.run());
}

#[test]
fn dccp_is_tracked_as_by_the_kernel() {
    beside_others(|| dccp::DCCP.run());
}

#[test]
fn datagrams_are_tracked_as_by_the_kernel() {
    beside_others(|| datagrams::DATAGRAMS.run());
}

#[test]
fn icmp_is_tracked_as_by_the_kernel() {
    beside_others(|| icmp::ICMP.run());
}

#[test]
fn zones_for_one_direction_are_the_kernels() {
    beside_others(zones::compare);
}

#[test]
fn timeouts_that_rules_give_are_the_kernels() {
    beside_others(timeouts::tcp);
    beside_others(timeouts::udp);
}
