//! The process that runs hands over to a new one.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use control::Gate;
use engine::{FreezeError, Gateway, Mode, Outflow, OutflowError, Role};
use netio::Service;
use sync::hand_over::{
    Giving, Heard, Interface, Lost, MISSING, Message, Offer, OfferedRole, Position,
    is_version_known,
};

use super::super::sync::{Former, now};
use super::channel::{Channel, ChannelError, NEVER};

/// The longest wait for a new process that starts, which may have to load a long ruleset, and ask for the
/// elements of large sets.
const TO_START: Duration = Duration::from_secs(180);
/// The longest wait for one that applies records.
const TO_APPLY: Duration = Duration::from_secs(30);
/// The longest time in which nothing is forwarded, if the new process does not answer, and the longest
/// wait of one that is told to stop then.
const FREEZE_LONGEST: Duration = Duration::from_secs(1);
/// The longest wait for a new process that was told to receive packets. It has all that it needs.
const TO_RUN: Duration = Duration::from_secs(10);
/// The longest wait for what a process has sent before it ended.
const TO_READ: Duration = Duration::from_millis(10);
/// Bytes of records in a message, beyond which it is sent.
const BATCH_BYTES: usize = 128 << 10;
/// Changes that are left to the freeze, about: they cost less than a millisecond.
const LEFT_TO_FREEZE: usize = 256;
/// Rounds of copying at most. Under heavy load each finds about as much as the one before.
const ROUNDS: u32 = 10;

/// The result of a hand-over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Given {
    /// Connections that the new process has.
    pub connections: u64,
    /// Time from the first record to the freeze.
    pub copied: Duration,
    /// Time in which nothing was forwarded.
    pub frozen: Duration,
    /// Settings and elements that the new process does not have, each with the reason.
    pub not_carried: Vec<String>,
}

/// Why this process goes on as before.
#[derive(Debug, thiserror::Error)]
pub enum GiveError {
    /// The new process goes no further.
    #[error("{0}")]
    Stopped(String),
    /// It speaks other versions.
    #[error(
        "the new process, release {release}, speaks versions {oldest} to {newest} of the hand-over, \
         and this one, release {own}, speaks version {version}; stop this one and start the new one",
        own = env!("CARGO_PKG_VERSION"),
        version = sync::hand_over::VERSION
    )]
    Version {
        /// Its release.
        release: String,
        /// Its oldest version.
        oldest: u16,
        /// Its newest version.
        newest: u16,
    },
    /// It sends a message that does not belong there.
    #[error("the new process sends {0:?}, which does not belong there")]
    Unexpected(&'static str),
    /// It can not be talked to.
    #[error("{0}")]
    Channel(#[from] ChannelError),
    /// The gateway can not hand over.
    #[error("{0}")]
    Outflow(#[from] OutflowError),
    /// The gateway can not hand over its descriptors.
    #[error("{0}")]
    Freeze(#[from] FreezeError),
    /// The system refuses something.
    #[error("{0}")]
    System(#[from] std::io::Error),
}

/// All that is handed over beside the gateway.
pub struct Gift<'g> {
    pub gateway: &'g Gateway,
    /// Requests pass it.
    pub gate: &'g Gate,
    pub mode: Mode,
    /// The listening control socket and its lock.
    pub control: [OwnedFd; 2],
    /// The part in a pair.
    pub former: Option<Former>,
}

/// The other process, as far as it has come.
struct Taker<'a> {
    channel: Channel,
    state: Giving,
    stop: &'a AtomicBool,
}

/// Hands over to the process behind this socket. `pause_sync` is called before the connections are read.
///
/// # Errors
/// [`GiveError`]; the gateway goes on as before, and the other process was told.
pub fn give(
    gift: &Gift<'_>,
    stream: UnixStream,
    stop: &AtomicBool,
    pause_sync: impl FnOnce(),
) -> Result<Given, GiveError> {
    let channel = Channel::new(stream)?;
    channel.set_write_patience(TO_APPLY)?;
    let mut taker = Taker { channel, state: Giving::Greeting, stop };
    let mut outflow = None;
    let given = taker.hand_over(gift, pause_sync, &mut outflow);
    let Err(error) = given else { return given };
    let error = taker.reason(error);
    // It hears so before the gateway receives again, as the outflow is dropped behind this.
    if let Err(ChannelError::Late(_)) = taker.channel.send(&Message::Stop(error.to_string()), &[]) {
        // Once it wakes, it must not take the end of the socket for the end of this process, and go on
        // beside it. So the socket stays open as long as this process lives.
        std::mem::forget(taker.channel);
    }
    Err(error)
}

impl Taker<'_> {
    fn hand_over<'g>(
        &mut self,
        gift: &Gift<'g>,
        pause_sync: impl FnOnce(),
        outflow: &mut Option<Outflow<'g>>,
    ) -> Result<Given, GiveError> {
        if let Message::Hello(oldest, newest, release) = self.hear(TO_START)?
            && !is_version_known(oldest, newest)
        {
            return Err(GiveError::Version { release, oldest, newest });
        }
        // It asks for rules and settings after the offer.
        let standing = gift.gateway.standing();
        self.offer(gift)?;
        self.hear(TO_START)?;
        pause_sync();
        let begin = Instant::now();
        let outflow = outflow.insert(Outflow::begin(gift.gateway, &standing)?);
        self.copy(outflow)?;
        // Requests that change something end before, and others wait for the outcome. Packets change
        // much until then.
        let closed = gift.gate.close();
        if standing.has_changed(gift.gateway) {
            self.channel.send(&Message::Changed(gift.gateway.rules_fingerprint()), &[])?;
        }
        self.catch_up(outflow)?;
        let given = self.freeze(outflow, begin)?;
        outflow.leave();
        closed.leave();
        Ok(given)
    }

    /// Waits for a message.
    fn hear(&mut self, patience: Duration) -> Result<Message, GiveError> {
        let (message, _) = self.channel.receive(patience, self.stop)?;
        match self.state.hear(&message) {
            Heard::Next(next) => self.state = next,
            Heard::Done => {}
            Heard::Stopped => {
                let Message::Stop(why) = message else {
                    return Err(GiveError::Unexpected(message.name()));
                };
                return Err(GiveError::Stopped(why));
            }
            Heard::Unexpected => return Err(GiveError::Unexpected(message.name())),
        }
        Ok(message)
    }

    /// Why the other process goes no further, if it has said so before this one noticed that it has
    /// ended.
    fn reason(&mut self, error: GiveError) -> GiveError {
        if !matches!(error, GiveError::Channel(ChannelError::Lost)) {
            return error;
        }
        loop {
            match self.channel.receive(TO_READ, &NEVER) {
                Ok((Message::Stop(why), _)) => return GiveError::Stopped(why),
                Ok(_) => {}
                Err(_) => return error,
            }
        }
    }

    fn offer(&mut self, gift: &Gift<'_>) -> Result<(), GiveError> {
        let gateway = gift.gateway;
        let interfaces = gateway.handed_interfaces().into_iter().map(|it| Interface {
            name: it.name,
            index: it.link.map_or(MISSING, |link| link.0),
            queues: it.queues as u16,
        });
        let secret = gateway.secret();
        let role = gift
            .former
            .map(|Former { role, term }| OfferedRole { is_active: role == Role::Active, term });
        let offer = Offer {
            release: env!("CARGO_PKG_VERSION").to_owned(),
            mode: name_of(gift.mode).to_owned(),
            network: netio::network_cookie().ok(),
            interfaces: interfaces.collect(),
            secret: (u128::from(secret.0) << 64 | u128::from(secret.1)).to_be_bytes(),
            rules: gateway.rules_fingerprint(),
            role,
        };
        self.channel.send(&Message::Offer(Box::new(offer)), &[])?;
        for (claim, port) in gateway.claims()?.into_iter().zip(0..) {
            self.channel.send(&Message::Claim(port), &[claim.as_fd()])?;
        }
        let [listener, lock] = &gift.control;
        Ok(self.channel.send(&Message::Control, &[listener.as_fd(), lock.as_fd()])?)
    }

    /// Sends all, and then what has changed.
    fn copy(&mut self, outflow: &mut Outflow<'_>) -> Result<(), GiveError> {
        let mut records = Vec::new();
        while outflow.copy(&mut records)? {
            self.send_records(&mut records, BATCH_BYTES)?;
        }
        self.send_records(&mut records, 1)?;
        self.catch_up(outflow)
    }

    /// Sends what has changed meanwhile, until little is left.
    fn catch_up(&mut self, outflow: &mut Outflow<'_>) -> Result<(), GiveError> {
        let mut records = Vec::new();
        for _ in 0..ROUNDS {
            self.send_records(&mut records, 1)?;
            self.reach_mark(TO_APPLY)?;
            let mut changes = 0;
            loop {
                let count = outflow.take_changes(&mut records)?;
                changes += count;
                self.send_records(&mut records, BATCH_BYTES)?;
                if count == 0 {
                    break;
                }
            }
            if changes <= LEFT_TO_FREEZE {
                break;
            }
        }
        self.send_records(&mut records, 1)?;
        self.reach_mark(TO_APPLY)
    }

    /// Waits until the new process has applied all that was sent.
    fn reach_mark(&mut self, patience: Duration) -> Result<(), GiveError> {
        if let Giving::Copying { mark } = &mut self.state {
            *mark += 1;
            let mark = *mark;
            self.channel.send(&Message::Mark(mark), &[])?;
            self.hear(patience)?;
        }
        Ok(())
    }

    /// Sends the records if they have so many bytes.
    fn send_records(&mut self, records: &mut Vec<u8>, at_least: usize) -> Result<(), ChannelError> {
        if records.len() < at_least {
            return Ok(());
        }
        let message = Message::Records(std::mem::take(records));
        self.channel.send(&message, &[])?;
        if let Message::Records(bytes) = message {
            *records = bytes;
            records.clear();
        }
        Ok(())
    }

    /// Stops receiving, sends what is left, and lets the new process receive.
    fn freeze(&mut self, outflow: &mut Outflow<'_>, begin: Instant) -> Result<Given, GiveError> {
        self.channel.set_write_patience(FREEZE_LONGEST)?;
        let (since, queues) = outflow.freeze()?;
        let left = || FREEZE_LONGEST.saturating_sub(now().since(since));
        let mut records = Vec::new();
        while outflow.rest(&mut records)? {
            self.send_records(&mut records, BATCH_BYTES)?;
        }
        while outflow.rules(&mut records)? {
            self.send_records(&mut records, BATCH_BYTES)?;
        }
        self.send_records(&mut records, 1)?;
        self.reach_mark(left())?;
        let passed = now().since(since).as_nanos() as u64;
        self.channel.send(&Message::Frozen(passed, queues.len() as u16), &[])?;
        for queue in &queues {
            let position = Position {
                sequence: queue.position.sequence,
                offload: queue.position.offload,
                ring: queue.position.ring.map(|ring| (ring.slots, ring.next)),
                is_latency: queue.position.service == Service::Latency,
            };
            self.channel.send(&Message::Queue(queue.port.0, position), &[queue.socket.as_fd()])?;
        }
        self.state = Giving::Frozen;
        let mut not_carried = Vec::new();
        let connections = loop {
            match self.hear(left())? {
                Message::NotCarried(what) => not_carried.push(what),
                Message::Ready(connections) => break connections,
                other => return Err(GiveError::Unexpected(other.name())),
            }
        };
        outflow.let_read();
        self.channel.send(&Message::Go, &[])?;
        self.let_run()?;
        let frozen = now().since(since);
        let copied = begin.elapsed().saturating_sub(frozen);
        Ok(Given { connections, copied, frozen, not_carried })
    }

    /// The new process may receive packets, unless it is lost or says that it does not.
    fn let_run(&mut self) -> Result<(), GiveError> {
        // A signal that ends this process ends it behind this.
        self.stop = &NEVER;
        match self.hear(TO_RUN) {
            Err(GiveError::Channel(ChannelError::Lost)) if self.state.lose() == Lost::GoesOn => {
                Err(ChannelError::Lost.into())
            }
            Err(error @ GiveError::Stopped(_)) => Err(error),
            Err(error) => {
                tracing::error!("{error}; it has all, so it goes on alone");
                Ok(())
            }
            Ok(_) => Ok(()),
        }
    }
}

/// The mode in the word of the configuration.
pub fn name_of(mode: Mode) -> &'static str {
    match mode {
        Mode::Bridge => "bridge",
        Mode::Routed => "routed",
    }
}
