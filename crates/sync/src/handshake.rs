//! The exchange of greetings as a state machine.

use std::time::Duration;

use flow::Timestamp;

use crate::epoch::Epoch;
use crate::greeting::{Agreed, Greeter, Greeting, Host};
use crate::node::NodeId;
use crate::packet::Kind;
use crate::refusal::Refusal;

/// A greeting is repeated after this time, then after twice as long, and so on.
const REPEAT_FIRST: Duration = Duration::from_millis(100);
/// Longest time between two repetitions. They never end.
const REPEAT_LONGEST: Duration = Duration::from_secs(2);
/// Confirmations sent before the exchange begins anew, because the peer may have restarted.
const CONFIRM_TRIES: u32 = 5;

/// An exchange that this node has begun. Answering others keeps no state.
#[derive(Debug, Default)]
pub(crate) enum Handshake {
    /// None.
    #[default]
    Quiet,
    /// A `Hello` waits for its answer.
    Hailing {
        /// It.
        hello: Box<Greeting>,
        /// When it is repeated.
        repeat: Repeat,
    },
    /// A `Confirm` waits for the peer to use the keys.
    Confirming {
        /// They come into force then.
        agreed: Box<Agreed>,
        /// The `Confirm` and when it is repeated.
        repeat: Repeat,
    },
}

/// A datagram that is sent again and again.
#[derive(Debug)]
pub(crate) struct Repeat {
    datagram: Vec<u8>,
    sent: u32,
    at: Timestamp,
}

impl Repeat {
    fn new(now: Timestamp, datagram: Vec<u8>) -> Self {
        Self { datagram, sent: 0, at: now }
    }

    /// The datagram if its time has come.
    fn poll(&mut self, now: Timestamp, greeter: &mut Greeter) -> Option<&[u8]> {
        if now < self.at {
            return None;
        }
        let wait = REPEAT_LONGEST.min(REPEAT_FIRST * 2u32.saturating_pow(self.sent.min(16)));
        // Up to a quarter more, so that two nodes do not cross each other for ever.
        let jitter = greeter.jitter(wait.as_nanos() as u64 / 4);
        self.at = now.after(wait + Duration::from_nanos(jitter));
        self.sent += 1;
        Some(&self.datagram)
    }
}

/// The result of a greeting besides the next state.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// An answer to send.
    Reply(Vec<u8>),
    /// A repetition is due.
    Continue,
    /// New keys are in force.
    InForce(Box<Agreed>),
}

impl Handshake {
    /// Begins an exchange unless there is one.
    pub fn begin(&mut self, now: Timestamp, greeter: &mut Greeter) {
        if matches!(self, Self::Quiet) {
            self.hail(now, greeter);
        }
    }

    fn hail(&mut self, now: Timestamp, greeter: &mut Greeter) {
        let (hello, datagram) = greeter.hello();
        let repeat = Repeat::new(now, datagram);
        *self = Self::Hailing { hello: Box::new(hello), repeat };
    }

    /// Takes a greeting of the peer.
    pub fn receive(
        &mut self,
        now: Timestamp,
        greeter: &mut Greeter,
        kind: Kind,
        datagram: &[u8],
    ) -> Result<Outcome, Refusal> {
        let (greeting, code) = greeter.read(kind, datagram)?;
        match (kind, &*self) {
            // It may be an old one that somebody repeats, so it changes nothing.
            (Kind::Hello, _) => Ok(Outcome::Reply(greeter.answer(&greeting))),
            (Kind::Answer, Self::Hailing { hello, .. }) => {
                let (datagram, agreed) = greeter.confirm(hello, &greeting, &code)?;
                let repeat = Repeat::new(now, datagram);
                *self = Self::Confirming { agreed: Box::new(agreed), repeat };
                Ok(Outcome::Continue)
            }
            (Kind::Confirm, before) => {
                let agreed = greeter.accept(&greeting, &code)?;
                if before.goes_before(greeter.host.node, &agreed.peer) {
                    return Err(Refusal::Crossed);
                }
                *self = Self::Quiet;
                Ok(Outcome::InForce(Box::new(agreed)))
            }
            (Kind::Answer | Kind::Sealed, _) => Err(Refusal::StaleGreeting),
        }
    }

    /// True if the exchange of this node goes before one that the peer has begun. Without such a
    /// rule each node would take the keys of the other's exchange when two confirms cross.
    fn goes_before(&self, own: NodeId, peer: &Host) -> bool {
        match self {
            // A peer that has restarted does not know the confirm of this node.
            Self::Confirming { agreed, .. } => own < peer.node && agreed.peer == *peer,
            Self::Quiet | Self::Hailing { .. } => false,
        }
    }

    /// The greeting that is due.
    pub fn poll(&mut self, now: Timestamp, greeter: &mut Greeter) -> Option<&[u8]> {
        let is_worn = |repeat: &Repeat| repeat.sent >= CONFIRM_TRIES && now >= repeat.at;
        if matches!(self, Self::Confirming { repeat, .. } if is_worn(repeat)) {
            self.hail(now, greeter);
        }
        match self {
            Self::Quiet => None,
            Self::Hailing { repeat, .. } | Self::Confirming { repeat, .. } => {
                repeat.poll(now, greeter)
            }
        }
    }

    /// Keys that the peer has not used yet, by their index.
    pub fn candidate(&self, index: u32) -> Option<&Epoch> {
        let epoch = self.agreed().map(|agreed| &agreed.epoch);
        epoch.filter(|epoch| epoch.local_index == index)
    }

    /// The keys that wait to come into force.
    pub fn agreed(&self) -> Option<&Agreed> {
        match self {
            Self::Confirming { agreed, .. } => Some(agreed),
            Self::Quiet | Self::Hailing { .. } => None,
        }
    }

    /// The peer has used the keys that wait for that.
    pub fn confirmed(&mut self) -> Option<Agreed> {
        match std::mem::take(self) {
            Self::Confirming { agreed, .. } => Some(*agreed),
            other => {
                *self = other;
                None
            }
        }
    }

    /// When [`Handshake::poll`] has to be called next.
    pub fn next_timeout(&self) -> Timestamp {
        match self {
            Self::Quiet => Timestamp::NEVER,
            Self::Hailing { repeat, .. } | Self::Confirming { repeat, .. } => repeat.at,
        }
    }
}

#[cfg(test)]
#[path = "handshake_tests.rs"]
mod tests;
