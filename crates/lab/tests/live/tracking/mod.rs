//! Comparison of our trackers with the kernel's: both get the same packets at the same times, and
//! must have the same result for each.

mod amanda;
mod announced;
mod calls;
pub(crate) mod compare;
mod datagrams;
mod dccp;
mod dialogue;
mod h323;
mod icmp;
mod irc;
mod kernel;
mod ours;
mod pptp;
mod questions;
mod ras;
mod reason;
mod said;
mod sane;
mod sctp;
mod spoken;
mod talk;
mod tcp;
mod tftp;
mod timeouts;
mod transcript;
mod translated;
mod zoned;

use conntrack::helper::Kind;

use crate::scenario::alone;

fn with_helpers(kinds: &[Kind], comparison: &compare::Comparison) {
    alone(|| {
        let kernel = kernel::Kernel::new()?;
        kernel.attach_helpers(kinds)?;
        comparison.run_in(&kernel)
    });
}

#[test]
fn tcp_is_tracked_as_by_the_kernel() {
    alone(|| tcp::TCP.run());
}

#[test]
fn sctp_is_tracked_as_by_the_kernel() {
    alone(|| sctp::SCTP.run());
}

#[test]
fn what_is_announced_is_expected_as_by_the_kernel() {
    with_helpers(&[Kind::Ftp], &announced::ANNOUNCED);
}

#[test]
fn files_by_tftp_are_expected_as_by_the_kernel() {
    with_helpers(&[Kind::Tftp], &tftp::TFTP);
}

#[test]
fn what_calls_announce_is_expected_as_by_the_kernel() {
    with_helpers(&[Kind::Sip], &calls::CALLS);
}

#[test]
fn what_irc_clients_offer_is_expected_as_by_the_kernel() {
    with_helpers(&[Kind::Irc], &irc::IRC);
}

#[test]
fn streams_of_amanda_are_expected_as_by_the_kernel() {
    with_helpers(&[Kind::Amanda], &amanda::AMANDA);
}

#[test]
fn pictures_of_scanners_are_expected_as_by_the_kernel() {
    with_helpers(&[Kind::Sane], &sane::SANE);
}

#[test]
fn calls_by_h323_are_announced_as_by_the_kernel() {
    with_helpers(&[Kind::Q931], &h323::H323);
}

#[test]
fn answers_to_questions_of_everybody_are_expected_as_by_the_kernel() {
    alone(questions::compare);
}

#[test]
fn what_gatekeepers_and_endpoints_say_is_announced_as_by_the_kernel() {
    with_helpers(&[Kind::Ras], &ras::RAS);
    with_helpers(&[Kind::Ras], &ras::DOUBTED);
}

#[test]
fn what_calls_say_is_translated_as_by_the_kernel() {
    alone(spoken::compare);
}

#[test]
fn calls_by_pptp_are_announced_as_by_the_kernel() {
    with_helpers(&[Kind::Pptp], &pptp::PPTP);
}

#[test]
fn datagrams_are_tracked_as_by_the_kernel() {
    alone(|| datagrams::DATAGRAMS.run());
}

#[test]
fn zones_for_one_direction_are_the_kernels() {
    alone(zoned::compare);
}

#[test]
fn timeouts_that_rules_give_are_the_kernels() {
    alone(timeouts::tcp);
    alone(timeouts::udp);
}

#[test]
fn icmp_is_tracked_as_by_the_kernel() {
    alone(|| icmp::ICMP.run());
}

#[test]
fn what_rules_translate_is_what_the_kernel_translates() {
    alone(translated::compare);
}

#[test]
fn dccp_is_tracked_as_by_the_kernel() {
    alone(|| dccp::DCCP.run());
}
