//! Comparison of our helpers with the kernel's: both see the same control connections, and must
//! expect the same connections from them.

mod amanda;
mod broadcasts;
mod conversation;
mod ftp;
mod h323;
mod h323_conversation;
mod irc;
mod pptp;
mod ras;
mod sane;
mod sip;
mod sip_messages;
mod tftp;

use conntrack::helper::Kind;

use crate::scenario::beside_others;
use crate::scenario::trackers::Comparison;
use crate::scenario::trackers::kernel::Kernel;

fn with_helpers(kinds: &[Kind], comparison: &Comparison) {
    beside_others(|| {
        let kernel = Kernel::new()?;
        kernel.attach_helpers(kinds)?;
        comparison.run_in(&kernel)
    });
}

#[test]
fn data_connections_of_ftp_are_expected_as_by_the_kernel() {
    with_helpers(&[Kind::Ftp], &ftp::FTP);
}

#[test]
fn files_by_tftp_are_expected_as_by_the_kernel() {
    with_helpers(&[Kind::Tftp], &tftp::TFTP);
}

#[test]
fn connections_of_sip_calls_are_expected_as_by_the_kernel() {
    with_helpers(&[Kind::Sip], &sip::SIP);
}

#[test]
fn connections_offered_by_irc_clients_are_expected_as_by_the_kernel() {
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
    beside_others(broadcasts::compare);
}

#[test]
fn gatekeepers_and_endpoints_announce_the_same_as_with_the_kernel() {
    with_helpers(&[Kind::Ras], &ras::RAS);
    with_helpers(&[Kind::Ras], &ras::DOUBTED);
}

#[test]
fn messages_of_sip_calls_are_translated_as_by_the_kernel() {
    beside_others(sip_messages::compare);
}

#[test]
fn calls_by_pptp_are_announced_as_by_the_kernel() {
    with_helpers(&[Kind::Pptp], &pptp::PPTP);
}
