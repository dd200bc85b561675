//! Expectations: connections that other connections have announced.

use std::net::IpAddr;

use conntrack::Expected;
use engine::NumberedEvent;
use serde::{Deserialize, Serialize};

use super::Tuple;
use super::connection::event_name;

/// An expectation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Expectation {
    /// Schema version.
    pub schema: u32,
    /// Name of the protocol as `conntrack` prints it.
    pub protocol: String,
    /// Its IP protocol number.
    pub protocol_number: u8,
    /// Seconds until the expectation ends.
    pub timeout_s: u64,
    /// Source address; `null`: any.
    pub source: Option<IpAddr>,
    /// Source port; `null`: any.
    pub source_port: Option<u16>,
    /// Destination address.
    pub destination: IpAddr,
    /// Destination port.
    pub destination_port: u16,
    /// True if it stands for any number of connections until it expires.
    pub permanent: bool,
    /// The connection that announced it: addresses and ports of its originator's packets.
    pub master: Tuple,
    /// The helper that read the announcement.
    pub helper: String,
    /// The helper's name for such connections.
    pub class: String,
    /// The mark of the future connection.
    pub mark: u32,
    /// Zone.
    pub zone: u16,
}

/// An event of an expectation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExpectationEvent {
    /// Schema version.
    pub schema: u32,
    /// Position in this stream, from 0, without gaps.
    pub sequence: u64,
    /// The worker that reported it.
    pub worker: u16,
    /// Events of that worker that were lost just before this one, because this stream was not read
    /// fast enough.
    pub lost: u64,
    /// `new`, or `destroy` when the connection has come, or when the expectation expired, was
    /// withdrawn or was replaced.
    pub event: String,
    /// The expectation.
    pub expectation: Expectation,
}

impl From<&NumberedEvent<conntrack::ExpectationEvent>> for ExpectationEvent {
    fn from(numbered: &NumberedEvent<conntrack::ExpectationEvent>) -> Self {
        Self {
            schema: crate::SCHEMA,
            sequence: numbered.sequence,
            worker: numbered.worker.0,
            lost: numbered.lost,
            event: event_name(numbered.event.kind).to_owned(),
            expectation: Expectation::from(&numbered.event.expected),
        }
    }
}

impl From<&Expected> for Expectation {
    fn from(expected: &Expected) -> Self {
        Self {
            schema: crate::SCHEMA,
            protocol: conntrack::format::protocol_name(expected.protocol).to_owned(),
            protocol_number: expected.protocol,
            timeout_s: expected.timeout_s,
            source: expected.source,
            source_port: expected.source_port,
            destination: expected.destination,
            destination_port: expected.destination_port,
            permanent: expected.permanent,
            master: Tuple::new(&expected.master, None),
            helper: expected.helper.to_owned(),
            class: expected.class.0.to_owned(),
            mark: expected.mark,
            zone: expected.zone,
        }
    }
}
