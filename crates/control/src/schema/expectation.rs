//! Connections that others have announced.

use std::net::IpAddr;

use conntrack::Expected;
use engine::NumberedEvent;
use serde::{Deserialize, Serialize};

use super::Tuple;
use super::connection::event_name;

/// A connection that is expected.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Expectation {
    /// Schema version.
    pub schema: u32,
    /// Name of its protocol as `conntrack` prints it.
    pub protocol: String,
    /// Its IP protocol number.
    pub protocol_number: u8,
    /// Seconds for which it is expected.
    pub timeout_s: u64,
    /// Who will open it; `null`: anybody.
    pub source: Option<IpAddr>,
    /// From which port; `null`: any.
    pub source_port: Option<u16>,
    /// To whom.
    pub destination: IpAddr,
    /// To which port.
    pub destination_port: u16,
    /// It stands for any number of connections until its time is over.
    pub permanent: bool,
    /// The connection that has announced it, as its originator's packets carry it.
    pub master: Tuple,
    /// The helper that has read the announcement.
    pub helper: String,
    /// What the helper calls such connections.
    pub class: String,
    /// The mark that the connection will have.
    pub mark: u32,
    /// Zone.
    pub zone: u16,
}

/// Something happened to a connection that is expected.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExpectationEvent {
    /// Schema version.
    pub schema: u32,
    /// Position in this stream, from 0, without gaps.
    pub sequence: u64,
    /// The worker that reported it.
    pub worker: u16,
    /// Events of that worker that were lost just before this one because this stream was
    /// not read fast enough.
    pub lost: u64,
    /// `new`, or `destroy` when it has come, its time is over, it was withdrawn, or another
    /// took its place.
    pub event: String,
    /// What is or was expected.
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
