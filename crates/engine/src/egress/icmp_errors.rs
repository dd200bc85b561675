//! ICMP errors to the senders of packets that do not go on: their source addresses and their rate.

use std::net::IpAddr;

use netio::{Frame, FramePool, PortId};
use wire::icmp_error::{self, Message};
use wire::{Family, Readdress};

use crate::egress::allowance::Allowance;
use crate::egress::original_ends::original_ends;

/// Most ICMP errors that a worker sends per second (RFC 1812 section 4.3.2.8, RFC 4443 section 2.4
/// (f)).
pub const ERRORS_PER_SECOND: u64 = 1000;
/// Most ICMP errors that it may send at once after a pause.
pub const ERROR_BURST: u64 = 50;

/// The source addresses of the ICMP errors that leave by a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Names {
    /// For IPv4.
    pub v4: Option<IpAddr>,
    /// For IPv6.
    pub v6: Option<IpAddr>,
}

/// Makes the ICMP errors of a worker.
#[derive(Debug)]
pub struct IcmpAnswers {
    allowance: Allowance,
    /// The source addresses by port. A bridge has none, and takes the packet's destination.
    names: Option<Vec<Names>>,
}

impl Default for IcmpAnswers {
    fn default() -> Self {
        Self { allowance: Allowance::new(ERRORS_PER_SECOND, ERROR_BURST), names: None }
    }
}

/// In whose name the sender of a packet is told of an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Speaker {
    /// The gateway, or the packet's receiver if the gateway has no address.
    Gateway,
    /// The packet's receiver.
    Receiver,
}

impl IcmpAnswers {
    /// Sets the source addresses, by port.
    pub fn set_names(&mut self, names: impl Iterator<Item = Names>) {
        self.names = Some(names.collect());
    }

    /// Makes the ICMP error about a packet, to leave by the port that the packet came in by.
    /// `None` if no error is allowed about it, there is no source address, or the allowance is
    /// used up.
    pub fn about(
        &mut self,
        frame: &Frame,
        message: Message,
        now_ns: u64,
        pool: &mut FramePool,
    ) -> Option<Frame> {
        let before = original_ends(frame);
        if before != Readdress::default() {
            let sent = as_sent(frame, &before, pool)?;
            let answer = self.about(&sent, message, now_ns, pool);
            pool.give_back(sent);
            return answer;
        }
        let network = icmp_error::network_of_answered(frame.bytes())?;
        let from = match &self.names {
            None => network.destination_ip(),
            Some(names) => names.get(usize::from(frame.port.0))?.of(network.family)?,
        };
        self.write(frame, message, from, now_ns, pool)
    }

    /// Makes the ICMP error that the receiver of a packet sends about it. `None` if no error is
    /// allowed about the packet, or the allowance is used up.
    pub fn of_receiver(
        &mut self,
        frame: &Frame,
        message: Message,
        now_ns: u64,
        pool: &mut FramePool,
    ) -> Option<Frame> {
        let from = icmp_error::network_of_answered(frame.bytes())?.destination_ip();
        self.write(frame, message, from, now_ns, pool)
    }

    fn write(
        &mut self,
        frame: &Frame,
        message: Message,
        from: IpAddr,
        now_ns: u64,
        pool: &mut FramePool,
    ) -> Option<Frame> {
        if !self.allowance.take(now_ns) {
            return None;
        }
        let mut error = [0; icmp_error::MAX_FRAME];
        let length = icmp_error::write(frame.bytes(), message, from, &mut error)?;
        let mut answer = pool.copy_of(&error[..length])?;
        answer.port = PortId(frame.port.0);
        Some(answer)
    }
}

/// Copies a translated packet with the addresses that its sender knows.
fn as_sent(frame: &Frame, before: &Readdress, pool: &mut FramePool) -> Option<Frame> {
    let mut sent = pool.copy_of(frame.bytes())?;
    (sent.port, sent.offload) = (frame.port, frame.offload);
    let dissected = wire::dissect(sent.bytes()).ok()?;
    let mut network = dissected.network?;
    let length = (network.end as usize).saturating_sub(network.transport_offset.into());
    let covers = sent.offload.checksum.covers();
    before.apply(sent.bytes_mut(), &mut network, length, covers);
    Some(sent)
}

impl Names {
    fn of(&self, family: Family) -> Option<IpAddr> {
        match family {
            Family::V4 => self.v4,
            Family::V6 => self.v6,
        }
    }
}

#[cfg(test)]
#[path = "icmp_errors_tests.rs"]
mod tests;
