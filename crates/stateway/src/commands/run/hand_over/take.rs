//! A new process takes the place of the one that runs.

use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail};
use control::schema::{KeptElements, NotKept};
use control::{
    Client, ClientError, ControlSocket, HAND_OVER_PATH, HAND_OVER_PROTOCOL, RuleBook,
    carry_settings,
};
use engine::{Gateway, Intake, Role};
use netio::afpacket::{AfPacketRx, Claim};
use netio::{PortId, QueuePosition, RingPosition, RxQueue, Service};
use sync::hand_over::{
    Heard, Interface as Offered, Lost, MISSING, Message, Offer, Position, Taking, VERSION,
};

use super::super::sync::Former;
use super::channel::{Channel, ChannelError, NEVER};
use super::give::name_of;
use crate::config::{Configuration, Interface, Problems, hash_key};
use crate::errors::UsageError;

/// The longest wait for a message of the process that runs. Nothing else ends it: a process that is ended
/// by a signal before it has taken over has changed nothing.
const PATIENCE: Duration = Duration::from_secs(60);
/// The longest wait for the elements of its sets, of which it may have some millions.
const TO_KEEP: Duration = Duration::from_secs(120);
/// Time between two looks whether it lives while it owes an answer.
const LOOK: Duration = Duration::from_millis(20);
/// The longest head of its answer, bytes.
const HEAD_MAX: usize = 16 << 10;

/// The process that runs, which has made its offer.
pub struct Giver {
    /// Its control socket.
    path: PathBuf,
    session: Session,
    offer: Box<Offer>,
    claims: Vec<OwnedFd>,
    /// Its rules are not those of this process.
    has_other_rules: bool,
    control: Option<[OwnedFd; 2]>,
    /// The rules of the file, if they have sets that packets do not change.
    rules_of_file: Option<RuleBook>,
    /// Elements that this process does not have, and settings, with the reasons.
    not_kept: Vec<String>,
    not_carried: Vec<String>,
}

/// The messages of the process that runs.
struct Session {
    channel: Channel,
    state: Taking,
}

/// Why the next message of the process that runs is not there.
#[derive(Debug, thiserror::Error)]
enum HearError {
    #[error(transparent)]
    Channel(#[from] ChannelError),
    #[error("the running gateway sends {0:?}, which does not belong there")]
    Unexpected(&'static str),
    #[error("the running gateway does not hand over: {0}")]
    Stopped(String),
}

impl Session {
    /// Waits for a message.
    fn hear(&mut self) -> Result<(Message, Vec<OwnedFd>), HearError> {
        let (message, descriptors) = self.channel.receive(PATIENCE, &NEVER)?;
        match (self.state.hear(&message), message) {
            (Heard::Next(next), message) => {
                self.state = next;
                Ok((message, descriptors))
            }
            (Heard::Stopped, Message::Stop(why)) => Err(HearError::Stopped(why)),
            (_, message) => Err(HearError::Unexpected(message.name())),
        }
    }
}

/// A gateway that has taken over.
#[derive(Debug)]
pub struct Taken {
    /// Time from the first record to the freeze.
    pub copied: Duration,
    /// Time in which nothing was forwarded.
    pub frozen: Duration,
    /// The owner of all until [`Taken::adopt`].
    intake: Intake,
}

impl Giver {
    /// Asks the gateway behind this control socket to hand over.
    ///
    /// # Errors
    /// There is none, or it refuses.
    pub fn ask(path: &Path) -> anyhow::Result<Self> {
        let stream = UnixStream::connect(path).map_err(|error| {
            UsageError(format!(
                "no gateway can be taken over on {}: {error}; start without --take-over if none runs",
                path.display()
            ))
        })?;
        ask_for_protocol(&stream)?;
        let mut channel = Channel::new(stream)?;
        channel.set_write_patience(PATIENCE)?;
        let release = env!("CARGO_PKG_VERSION").to_owned();
        channel.send(&Message::Hello(VERSION, VERSION, release), &[])?;
        let mut session = Session { channel, state: Taking::Greeting };
        let (mut offer, mut claims) = (None, Vec::new());
        loop {
            match session.hear()? {
                (Message::Offer(offered), _) => offer = Some(offered),
                (Message::Claim(_), claim) => claims.extend(claim),
                (_, control) => {
                    let offer = offer.context("there was no offer")?;
                    return Ok(Self {
                        path: path.to_owned(),
                        session,
                        offer,
                        claims,
                        has_other_rules: false,
                        control: control.try_into().ok(),
                        rules_of_file: None,
                        not_kept: Vec::new(),
                        not_carried: Vec::new(),
                    });
                }
            }
        }
    }

    /// The answer of the running gateway to a request. This process has its control socket, too, so a
    /// client of a gateway that has died would wait there for nobody.
    fn answer<T: Send + 'static>(
        &self,
        patience: Duration,
        ask: impl FnOnce(&Client) -> Result<T, ClientError> + Send + 'static,
    ) -> anyhow::Result<Result<T, ClientError>> {
        let client = Client::new(&self.path)?.with_patience(patience);
        let (answer, answered) = mpsc::channel();
        let thread = thread::Builder::new().name("asks".into());
        // Nobody listens any more if the gateway has died.
        thread.spawn(move || _ = answer.send(ask(&client)))?;
        loop {
            match answered.recv_timeout(LOOK) {
                Ok(answer) => return Ok(answer),
                Err(RecvTimeoutError::Timeout) if !self.session.channel.is_lost() => {}
                Err(_) => return Err(ChannelError::Lost.into()),
            }
        }
    }

    /// Rules with the elements that the sets of the running gateway have got since they were loaded, but
    /// for those of sets that rules change: these come with the connections.
    ///
    /// # Errors
    /// The running gateway does not answer.
    pub fn keep_elements(&mut self, rules: RuleBook) -> anyhow::Result<RuleBook> {
        let sets = rules.ruleset().sets();
        if !sets.iter().any(|set| set.name.is_some() && !set.dynamic) {
            return Ok(rules);
        }
        let text = rules.text();
        let ask = move |client: &Client| client.put_bytes("/v1/rules/kept", text);
        let kept: KeptElements = match self.answer(TO_KEEP, ask)? {
            Ok(kept) => kept,
            // It may be of a release that does not know the request.
            Err(ClientError::Refused(refusal) | ClientError::BadRequest(refusal)) => {
                let what = refusal.what;
                self.not_kept = vec![format!("elements that sets have got do not go on: {what}")];
                return Ok(rules);
            }
            Err(error) => return Err(error.into()),
        };
        let not_kept = kept.not_kept.into_iter();
        let shown = |NotKept { family, table, set, elements, why }| {
            format!("{elements} elements of {family} {table} set {set} do not go on: {why}")
        };
        self.not_kept = not_kept.map(shown).collect();
        let with_kept = rules.with_elements_of(&kept.ruleset);
        self.rules_of_file = Some(rules);
        with_kept.map_err(|error| anyhow!("with the elements of the running gateway: {error}"))
    }

    /// Has this gateway go on with settings that were changed while the other one ran.
    ///
    /// # Errors
    /// The running gateway does not answer.
    pub fn carry_settings(&mut self, gateway: &Gateway) -> anyhow::Result<()> {
        let changed = self.answer(PATIENCE, |client| client.get("/v1/settings/changed"))?;
        self.not_carried = match changed {
            Ok(changed) => carry_settings(gateway, &changed),
            // It may be of a release that does not know the request.
            Err(ClientError::Refused(refusal) | ClientError::BadRequest(refusal)) => {
                let what = refusal.what;
                vec![format!(
                    "settings that were changed while the gateway ran do not go on: {what}"
                )]
            }
            Err(error) => return Err(error.into()),
        };
        Ok(())
    }

    /// Follows changes that the running gateway has taken since its offer. Its rules have this
    /// fingerprint now.
    fn follow_changes(
        &mut self,
        gateway: &Gateway,
        rules: &mut Option<RuleBook>,
        fingerprint: Option<u128>,
    ) -> anyhow::Result<()> {
        self.carry_settings(gateway)?;
        if let Some(of_file) = self.rules_of_file.take() {
            let with_kept = self.keep_elements(of_file)?;
            gateway.go_on_with_elements(with_kept.ruleset().clone())?;
            *rules = Some(with_kept);
        }
        let own = rules.as_ref().map(|book| book.ruleset().fingerprint());
        if own != fingerprint && !self.has_other_rules {
            bail!("the rules of the running gateway have changed meanwhile; try again");
        }
        Ok(())
    }

    /// Checks whether a gateway of this configuration can take the place of the running one, and has
    /// it use the same secret. The rules may be others if `allows_other_rules`.
    ///
    /// # Errors
    /// All that is different and has to be the same.
    pub fn fit(
        &mut self,
        config: &mut Configuration,
        rules: Option<&RuleBook>,
        allows_other_rules: bool,
    ) -> anyhow::Result<()> {
        let offer = &*self.offer;
        let mut problems = Vec::new();
        let mut differ = |line, key: &str, what| problems.push(config.problem(line, key, what));
        if offer.mode != name_of(config.mode) {
            let what = format!(
                "the running gateway is of mode {:?}: it can not be taken over by one of another mode",
                offer.mode
            );
            differ(0, "gateway.mode", what);
        }
        let own_network = netio::network_cookie().ok();
        if offer.network.zip(own_network).is_some_and(|(other, own)| other != own) {
            let what = "the running gateway is in another network namespace: start this one there";
            differ(0, "interface", what.to_owned());
        }
        for interface in &config.interfaces {
            let known = offer.interfaces.iter().find(|it| is_same(interface, it));
            match known {
                None => {
                    let all: Vec<_> = offer.interfaces.iter().map(|it| &*it.name).collect();
                    let what = format!(
                        "{} is none of the running gateway's interfaces, which are {}",
                        interface.name,
                        all.join(", ")
                    );
                    differ(interface.name_line, "interface.name", what);
                }
                Some(known) if usize::from(known.queues) != interface.rx_queues => {
                    let what = format!(
                        "{} has {} receive queues in the running gateway, and {} here: give it as many",
                        interface.name, known.queues, interface.rx_queues
                    );
                    differ(interface.name_line, "interface.rx_queues", what);
                }
                Some(_) => {}
            }
        }
        for missing in offer
            .interfaces
            .iter()
            .filter(|it| !config.interfaces.iter().any(|own| is_same(own, it)))
        {
            let what = format!(
                "the running gateway has interface {}, which is missing here",
                missing.name
            );
            differ(0, "interface", what);
        }
        let has_other_rules = offer.rules != rules.map(|book| book.ruleset().fingerprint());
        if has_other_rules && !allows_other_rules {
            let what = "the running gateway has other rules in force: load these there first \
                        (`stateway rules load`), put those into the file, or give --other-rules";
            differ(0, "rules.file", what.to_owned());
        }
        Problems::or_value(problems, ())?;
        self.has_other_rules = has_other_rules;
        if config.secret.is_none() && config.sync.is_none() {
            config.secret = Some(hash_key(offer.secret));
        }
        Ok(())
    }

    /// Tells the running gateway why this process does not take its place.
    pub fn refuse(&mut self, why: &anyhow::Error) {
        let why = format!("{why:#}").trim_end().replace('\n', "; ");
        // It may have ended.
        let _ = self.session.channel.send(&Message::Stop(why), &[]);
    }

    /// The part of the running gateway in a pair.
    pub fn former(&self) -> Option<Former> {
        self.offer.role.map(|role| Former {
            role: if role.is_active { Role::Active } else { Role::Standby },
            term: role.term,
        })
    }

    /// The claims of the interfaces, in the order of the configuration. One that is missing here or there
    /// is claimed when it comes.
    ///
    /// # Errors
    /// A claim is missing, or is none of the interface.
    pub fn claims(&self, config: &Configuration) -> anyhow::Result<Vec<Claim>> {
        let claimed = config.interfaces.iter().map(|interface| {
            let at = self.offer.interfaces.iter().position(|it| is_same(interface, it));
            let offered = at.and_then(|at| self.offer.interfaces.get(at));
            let is_there = offered.is_some_and(|it| it.index != MISSING);
            let Some(link) = interface.link.as_ref().filter(|_| is_there) else {
                return Ok(Claim::of_none()?);
            };
            let claim = at.and_then(|at| self.claims.get(at)).context("a claim is missing")?;
            Ok(Claim::take_over(claim.try_clone()?, link)?)
        });
        claimed.collect()
    }

    /// The control socket, which the running gateway still has.
    ///
    /// # Errors
    /// Its file has gone.
    pub fn control_socket(&mut self, path: &Path) -> anyhow::Result<ControlSocket> {
        let control = self.control.take().context("the control socket is missing")?;
        Ok(ControlSocket::take_over(path, control)?)
    }

    /// Takes over everything. The gateway receives packets afterwards, and the other process does not.
    /// `prepare` is called before that can be: up to then, a signal ends this process and changes
    /// nothing.
    ///
    /// # Errors
    /// The other process goes on, and this one has to end.
    pub fn take(
        mut self,
        gateway: &Gateway,
        config: &Configuration,
        rules: &mut Option<RuleBook>,
        prepare: impl FnOnce() -> anyhow::Result<()>,
    ) -> anyhow::Result<Taken> {
        let taken = self.take_all(gateway, config, rules, prepare);
        if let Err(error) = &taken {
            // A process that is lost, or has said so itself, needs no word.
            let _ = self.session.channel.send(&Message::Stop(error.to_string()), &[]);
        }
        taken
    }

    fn take_all(
        &mut self,
        gateway: &Gateway,
        config: &Configuration,
        rules: &mut Option<RuleBook>,
        prepare: impl FnOnce() -> anyhow::Result<()>,
    ) -> anyhow::Result<Taken> {
        self.session.channel.send(&Message::Begin, &[])?;
        let (begin, mut intake) =
            (Instant::now(), Intake::new(self.ports(config), !self.has_other_rules));
        let mut frozen_since = begin;
        let mut queues: Vec<(PortId, Box<dyn RxQueue>)> = Vec::new();
        while self.session.state != Taking::Waiting {
            match self.session.hear()? {
                (Message::Records(bytes), _) => intake.take(gateway, &bytes)?,
                (Message::Mark(number), _) => {
                    intake.settle(gateway)?;
                    self.session.channel.send(&Message::Reached(number), &[])?;
                }
                (Message::Changed(fingerprint), _) => {
                    self.follow_changes(gateway, rules, fingerprint)?;
                }
                (Message::Frozen(nanos, _), _) => {
                    let before = Duration::from_nanos(nanos);
                    frozen_since = Instant::now().checked_sub(before).unwrap_or(begin);
                }
                (Message::Queue(port, position), socket) => {
                    let socket = socket.into_iter().next().context("a socket is missing")?;
                    queues.push(self.queue(config, port, position, socket)?);
                }
                _ => {}
            }
        }
        intake.finish(gateway)?;
        prepare()?;
        let connections = gateway.connection_count()?;
        let not_carried = self.not_carried.drain(..).chain(self.not_kept.drain(..));
        let last = not_carried.map(Message::NotCarried).chain([Message::Ready(connections)]);
        for message in last {
            if let Message::NotCarried(what) = &message {
                tracing::warn!("{what}");
            }
            match self.session.channel.send(&message, &[]) {
                // It may have said why, which is heard below.
                Ok(()) | Err(ChannelError::Lost) => {}
                Err(error) => return Err(error.into()),
            }
        }
        match self.session.hear() {
            Ok(_) => {}
            Err(HearError::Channel(ChannelError::Lost))
                if self.session.state.lose() == Lost::GoesOn =>
            {
                tracing::warn!("the running gateway has ended, and all of its state is here");
            }
            Err(error) => return Err(error.into()),
        }
        tell_of_other_lanes(config, &queues);
        gateway.take_queues(queues)?;
        let frozen = frozen_since.elapsed();
        // If the other process has ended, nobody hears it.
        let _ = self.session.channel.send(&Message::Running, &[]);
        Ok(Taken { copied: begin.elapsed().saturating_sub(frozen), frozen, intake })
    }

    /// The port here of each port of the other process, which has the same interfaces.
    fn ports(&self, config: &Configuration) -> Vec<PortId> {
        let own = |offered| {
            let mut all = config.interfaces.iter().zip(0..);
            all.find(|(own, _)| is_same(own, offered)).map(|(_, port)| PortId(port))
        };
        self.offer.interfaces.iter().map(|it| own(it).unwrap_or_default()).collect()
    }

    /// A queue of the other process, with the port that it has here.
    fn queue(
        &self,
        config: &Configuration,
        port: u16,
        position: Position,
        socket: OwnedFd,
    ) -> anyhow::Result<(PortId, Box<dyn RxQueue>)> {
        let offered = self.offer.interfaces.get(usize::from(port));
        let offered = offered.context("a queue belongs to no interface")?;
        let mut own = config.interfaces.iter().zip(0..);
        let own = own.find(|(own, _)| is_same(own, offered));
        let (interface, port) = own.context("a queue belongs to no interface")?;
        let link = interface.link.as_ref().context("an interface has gone")?;
        let Position { sequence, offload, ring, is_latency } = position;
        let ring = ring.map(|(slots, next)| RingPosition { slots, next });
        let service = if is_latency { Service::Latency } else { Service::Bulk };
        let position = QueuePosition { sequence, offload, ring, service };
        let queue = AfPacketRx::take_over(socket, position, link, PortId(port))?;
        Ok((PortId(port), Box::new(queue)))
    }
}

impl Taken {
    /// This gateway owns all from now on. Returns the number of connections.
    ///
    /// # Errors
    /// A worker hangs.
    pub fn adopt(self, gateway: &Gateway) -> anyhow::Result<u64> {
        let report = self.intake.adopt(gateway)?;
        if report.shared_refused > 0 {
            tracing::warn!(
                "{} announcements or elements of sets were not taken over: their connections have \
                 ended, or there is no room",
                report.shared_refused
            );
        }
        Ok(report.connections)
    }
}

/// Logs which interfaces go on with other lanes than those of this configuration.
fn tell_of_other_lanes(config: &Configuration, queues: &[(PortId, Box<dyn RxQueue>)]) {
    for (interface, port) in config.interfaces.iter().zip((0..).map(PortId)) {
        let of_port = queues.iter().filter(|(of, _)| *of == port);
        let has_lanes = of_port.map(|(_, queue)| queue.service()).any(|it| it == Service::Latency);
        if has_lanes != interface.lanes.is_some() {
            let how = if has_lanes { "with the lanes of" } else { "without lanes, as" };
            tracing::warn!(
                "{} goes on {how} the gateway before; the selectors of the file hold when the gateway \
                 is stopped and started",
                interface.own_name()
            );
        }
    }
}

/// True if an interface of this configuration is one of the running gateway. One that is missing at
/// either has only its name.
fn is_same(own: &Interface, offered: &Offered) -> bool {
    match &own.link {
        Some(link) if offered.index != MISSING => link.index == offered.index,
        _ => offered.name == own.own_name(),
    }
}

/// Has the connection carry the messages of a hand-over.
fn ask_for_protocol(mut stream: &UnixStream) -> anyhow::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    let request = format!(
        "POST {HAND_OVER_PATH} HTTP/1.1\r\nHost: stateway\r\nConnection: upgrade\r\n\
         Upgrade: {HAND_OVER_PROTOCOL}\r\nContent-Length: 0\r\n\r\n"
    );
    let broken = "the running gateway does not answer";
    stream.write_all(request.as_bytes()).context(broken)?;
    let head = read_head(stream).context(broken)?;
    let status = head.split(' ').nth(1).unwrap_or_default();
    if status == "101" {
        return Ok(());
    }
    let mut body = String::new();
    let _ = stream.take(HEAD_MAX as u64).read_to_string(&mut body);
    let refusal: serde_json::Value = serde_json::from_str(&body).unwrap_or_default();
    let text = |name: &str| refusal["error"][name].as_str().unwrap_or_default().to_owned();
    if status == "404" {
        bail!(
            "the running gateway is of a release that can not hand over: stop it, and start this one \
             without --take-over"
        );
    }
    bail!("the running gateway does not hand over: {}; {}", text("what"), text("do"))
}

/// Reads up to the empty line, and no byte of what follows.
fn read_head(mut stream: &UnixStream) -> io::Result<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte)?;
        head.extend(byte);
        if head.len() > HEAD_MAX {
            return Err(io::ErrorKind::InvalidData.into());
        }
    }
    Ok(String::from_utf8_lossy(&head).into_owned())
}
