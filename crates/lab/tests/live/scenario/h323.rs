//! Messages of H.323 calls. An encoder that implements the complete ASN.1 made them.

#[expect(dead_code, reason = "a call has some of them")]
#[path = "../../../../conntrack/src/helper/h323/vectors.rs"]
mod vectors;

/// Messages of 192.0.2.1 or 2001:db8::1 in hexadecimal: those of call signalling, and those of
/// H.245.
pub const SIGNALLING: [&str; 7] = [
    vectors::SETUP_V6,
    vectors::SETUP_OTHER,
    vectors::PROCEEDING,
    vectors::PROGRESS,
    vectors::FACILITY,
    vectors::TUNNELLED,
    vectors::RELEASE,
];
pub const CONTROL: [&str; 10] = [
    vectors::OPEN_ACK,
    vectors::OPEN_ACK_REVERSE,
    vectors::T120,
    vectors::T120_ACK,
    vectors::NOT_T120,
    vectors::OPEN_V6,
    vectors::OPEN_OTHERS,
    vectors::OPEN_IPX,
    vectors::OPEN_SOURCE_ROUTE,
    vectors::ROUND_TRIP,
];
/// Messages of call signalling that Stateway reads to the end and the kernel does not.
pub const ONLY_OURS: [&str; 4] =
    [vectors::SETUP, vectors::SETUP_ROUTED, vectors::ALERTING, vectors::CONNECT];
/// Messages that the kernel reads and Stateway does not.
pub const ONLY_KERNEL: [&str; 2] = [vectors::PROGRESS_TOKENS, vectors::OPEN_H222];

/// The messages of a whole call, from the caller and its gatekeeper, and from the endpoint.
pub const TO_ENDPOINT: [&str; 3] =
    [vectors::CONFIRM_SHORT, vectors::SETUP_OTHER, vectors::ROUND_TRIP];
pub const TO_CALLER: [&str; 3] = [vectors::REGISTER_SHORT, vectors::PROGRESS, vectors::OPEN_ACK];
