//! Helpers: they read what the ends of a connection tell each other, and announce
//! the further connections that the ends agree on.
//!
//! A helper is attached when a connection opens: by the configuration, for a
//! destination port, or by the expectation that the connection fulfils; never by a
//! port alone. It sees each packet that tracking has accepted, in the order in which
//! packets pass, so also what is sent again. It knows no table: bytes go in,
//! requests come out. To add one: a file here with its facts and its state, and a
//! [`Kind`].
//!
//! A web page can have a browser send almost any bytes to any port, behind a first line that
//! it can not choose, and can choose where segments begin. So what looks like an announcement
//! counts only where the dialogue of the protocol has a place for it. A helper follows a TCP
//! connection from its first byte, and leaves it when that speaks another
//! protocol or when it has not seen how it was opened. Whatever a helper reads, nobody is
//! expected at a privileged port or at a third party's address.

mod amanda;
mod broadcast;
mod ftp;
mod h323;
mod irc;
pub(crate) mod pptp;
mod sane;
mod sip;
mod stream;
#[cfg(test)]
mod talk;
mod text;
mod tftp;

use std::fmt::Debug;
use std::net::{IpAddr, SocketAddr};
use std::ops::{Range, RangeInclusive};

use wire::{TcpFlags, Transport, protocol};

pub(crate) use self::stream::Memory;
use crate::nat::{Edit, Follow};
use crate::{Direction, Expectations, Settings};
use flow::FlowKey;

/// Most ports that helpers can be attached to.
pub const MAX_ATTACHMENTS: usize = 64;

/// A protocol whose connections announce others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// Amanda, backups.
    Amanda,
    /// File Transfer Protocol.
    Ftp,
    /// Internet Relay Chat.
    Irc,
    /// NetBIOS name service.
    NetbiosNs,
    /// Point-to-Point Tunneling Protocol.
    Pptp,
    /// Scanner Access Now Easy.
    Sane,
    /// Session Initiation Protocol.
    Sip,
    /// Simple Network Management Protocol.
    Snmp,
    /// Trivial File Transfer Protocol.
    Tftp,
    /// H.323: endpoints and gatekeepers.
    Ras,
    /// H.323: call signalling.
    Q931,
    /// H.323: control of the media of a call. Only [`Self::Q931`] can announce it.
    H245,
}

/// What there is to know of a helper beside its state.
pub(crate) struct Facts {
    /// Name as the kernel has it.
    pub name: &'static str,
    /// Protocols that carry it.
    pub protocols: &'static [u8],
    /// Assigned port; 0: none.
    pub port: u16,
    /// Kinds of connections that it announces.
    pub classes: &'static [Class],
}

/// One kind of connections that a helper announces.
pub(crate) struct Class {
    /// Name for people.
    pub name: &'static str,
    /// How many of them one connection, or one call that it carries, may expect at a time;
    /// the oldest goes first.
    pub maximum: usize,
    /// How long one is expected, seconds.
    pub timeout_s: u32,
}

impl Kind {
    /// All that can be attached to a port.
    pub const ALL: &'static [Self] = &[
        Self::Amanda,
        Self::Ftp,
        Self::Irc,
        Self::NetbiosNs,
        Self::Pptp,
        Self::Sane,
        Self::Sip,
        Self::Snmp,
        Self::Tftp,
        Self::Ras,
        Self::Q931,
    ];

    const fn facts(self) -> &'static Facts {
        match self {
            Self::Amanda => &amanda::FACTS,
            Self::Ftp => &ftp::FACTS,
            Self::Irc => &irc::FACTS,
            Self::NetbiosNs => &broadcast::NETBIOS_NS,
            Self::Pptp => &pptp::FACTS,
            Self::Sane => &sane::FACTS,
            Self::Sip => &sip::FACTS,
            Self::Snmp => &broadcast::SNMP,
            Self::Tftp => &tftp::FACTS,
            Self::Ras => &h323::RAS,
            Self::Q931 => &h323::Q931,
            Self::H245 => &h323::H245,
        }
    }

    /// Its state for a new connection.
    pub(crate) fn start(self) -> Watcher {
        let state: Box<dyn Inspect> = match self {
            Self::Amanda => Box::<amanda::Amanda>::default(),
            Self::Ftp => Box::<ftp::Ftp>::default(),
            Self::Irc => Box::<irc::Irc>::default(),
            Self::NetbiosNs => Box::new(broadcast::Broadcast::NETBIOS_NS),
            Self::Pptp => Box::<pptp::Pptp>::default(),
            Self::Sane => Box::<sane::Sane>::default(),
            Self::Sip => Box::<sip::Sip>::default(),
            Self::Snmp => Box::new(broadcast::Broadcast::SNMP),
            Self::Tftp => Box::new(tftp::Tftp),
            Self::Ras => Box::<h323::Ras>::default(),
            Self::Q931 => Box::<h323::CallSignalling>::default(),
            Self::H245 => Box::<h323::MediaControl>::default(),
        };
        Watcher { kind: self, state: Some(state), starts: None }
    }

    /// Name as the kernel has it.
    pub const fn name(self) -> &'static str {
        self.facts().name
    }

    /// The port that is assigned to its protocol.
    pub const fn default_port(self) -> u16 {
        self.facts().port
    }

    /// Another address and port in the place of `old`, as the helper's protocol writes them.
    /// `None` where it can not: the protocols of these helpers have to do without.
    pub(crate) fn rewrite(self, old: &[u8], address: IpAddr, port: u16) -> Option<Vec<u8>> {
        match self {
            Self::Ftp => ftp::rewrite(old, address, port),
            Self::Irc => Some(irc::rewrite(address, port)),
            Self::Ras | Self::Q931 | Self::H245 => h323::rewrite(old, address, port),
            Self::Amanda => Some(Form::Port.write(address, port)),
            Self::Sip => Some(sip::rewrite(old, address, port)),
            _ => None,
        }
    }

    /// True if the operator has others than the ends of its connections announced.
    fn trusts_third_parties(self, settings: &Settings) -> bool {
        settings.expect_third_parties
            || match self {
                Self::Ftp => settings.ftp_loose,
                Self::Sip => !settings.sip_direct_media,
                _ => false,
            }
    }

    pub(crate) const fn classes(self) -> &'static [Class] {
        self.facts().classes
    }
}

/// Which connections are watched, by destination port.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Helpers(Vec<Attachment>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Attachment {
    protocol: u8,
    port: u16,
    kind: Kind,
}

/// Why a helper was not attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AttachError {
    /// Two helpers can not read one connection.
    #[error("port {port} already has the helper {:?}", .kind.name())]
    Taken {
        /// The port.
        port: u16,
        /// Who has it.
        kind: Kind,
    },
    /// Too many.
    #[error("helpers are attached to {MAX_ATTACHMENTS} ports already, and that is the limit")]
    TooMany,
}

impl Helpers {
    /// Has connections to `port`, opened from now on, watched.
    ///
    /// # Errors
    /// [`AttachError`]; nothing is changed then.
    pub fn attach(&mut self, kind: Kind, port: u16) -> Result<(), AttachError> {
        let protocols = kind.facts().protocols;
        for &protocol in protocols {
            if let Some(kind) = self.of(protocol, port) {
                return Err(AttachError::Taken { port, kind });
            }
        }
        if self.0.len() + protocols.len() > MAX_ATTACHMENTS {
            return Err(AttachError::TooMany);
        }
        self.0.extend(protocols.iter().map(|&protocol| Attachment { protocol, port, kind }));
        Ok(())
    }

    /// Each port with its protocol and helper, in the order in which they were attached.
    pub fn iter(&self) -> impl Iterator<Item = (u8, u16, Kind)> {
        self.0.iter().map(|&Attachment { protocol, port, kind }| (protocol, port, kind))
    }

    /// Who watches connections to a port.
    pub fn of(&self, protocol: u8, port: u16) -> Option<Kind> {
        let found = self.0.iter().find(|it| (it.protocol, it.port) == (protocol, port));
        found.map(|attachment| attachment.kind)
    }
}

/// A helper with what it knows of one connection.
#[derive(Debug)]
pub(crate) struct Watcher {
    pub kind: Kind,
    /// `None`: it has [left](Inspected::Left).
    pub state: Option<Box<dyn Inspect>>,
    /// TCP: the number of the first byte of each direction, by [`Direction::index`], as far as
    /// its SYN was seen. `None` before the first packet.
    starts: Option<[Option<u32>; 2]>,
}

impl Watcher {
    /// Memory of the largest state, bytes.
    pub const STATE_BYTES: usize = size_of::<sip::Sip>();

    /// Has it read a packet, as [`Inspect::inspect`], until it leaves.
    pub fn read(&mut self, packet: &Watched<'_>, ask: &mut dyn FnMut(Request)) -> Inspected {
        let state = self.state.as_mut();
        let inspected = state.map_or(Inspected::Pass, |state| state.inspect(packet, ask));
        self.state.take_if(|_| inspected == Inspected::Left);
        inspected
    }

    /// Learns from a segment where the bytes of its sender begin; returns that for later ones
    /// too. Only the packet that opens the connection says it of the opener: anybody could
    /// forge a SYN afterwards, to have the beginning where it suits.
    pub fn start_of(&mut self, direction: Direction, transport: &Transport) -> Option<u32> {
        let Transport::Tcp(tcp) = transport else { return None };
        let said = tcp.flags.contains(TcpFlags::SYN).then(|| tcp.sequence.wrapping_add(1));
        match &mut self.starts {
            Some([_, of_other]) if direction == Direction::Reply => {
                *of_other = of_other.or(said);
                *of_other
            }
            Some([of_opener, _]) => *of_opener,
            None => {
                self.starts = Some([said, None]);
                said
            }
        }
    }
}

/// The part of a helper that reads packets.
pub(crate) trait Inspect: Debug + Send {
    /// Reads a packet of the connection, and asks for what it leads to, in this order.
    fn inspect(&mut self, packet: &Watched<'_>, ask: &mut dyn FnMut(Request)) -> Inspected;
}

/// What a helper sees of a packet of a connection that it watches.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Watched<'a> {
    /// Seen from the opener of the connection.
    pub direction: Direction,
    /// Addresses and ports of this packet.
    pub source: IpAddr,
    pub destination: IpAddr,
    pub source_port: u16,
    pub destination_port: u16,
    /// The address by which the receiver knows the sender: another than `source` if the
    /// connection is translated.
    pub seen_as: IpAddr,
    /// Whom the packet is really for: another than `destination` if that is translated.
    pub receiver: IpAddr,
    /// Another end is what the receiver knows the sender by, or what it is really for.
    pub is_translated: bool,
    /// What is behind the transport header. Not empty; up to 64 KiB, so several
    /// messages of a stream may be in it.
    pub payload: &'a [u8],
    /// TCP: number of the first byte of the payload. `None` for datagrams.
    pub sequence: Option<u32>,
    /// TCP: number of the first byte that the sender has said, if its SYN was seen.
    pub start: Option<u32>,
    /// The frame goes to many: broadcast or multicast.
    pub group: bool,
    /// Another connection has announced this one.
    pub is_expected: bool,
    pub settings: &'a Settings,
    /// For what has to wait for the next segment.
    pub memory: &'a Memory,
    /// What was announced before.
    pub told: Told<'a>,
}

impl Watched<'_> {
    /// How many bytes of a segment with this number come again, where `next` follows what was
    /// read of its sender; negative: how many are missing in front of it.
    ///
    /// # Errors
    /// The helper has to leave: the beginning was not seen, or it was forged, as nobody says
    /// anything in front of its first byte.
    fn seen(&self, sequence: u32, next: Option<u32>) -> Result<i32, Inspected> {
        let picked_up = self.settings.expect_picked_up.then_some(sequence);
        let expected = next.or(self.start).or(picked_up).ok_or(Inspected::Left)?;
        let seen = expected.wrapping_sub(sequence) as i32;
        if next.is_none() && seen > 0 { Err(Inspected::Left) } else { Ok(seen) }
    }
}

/// The first port that anybody may use. Below, services of hosts listen (RFC 6335 section 6).
const FIRST_UNPRIVILEGED: u16 = 1024;

impl Watched<'_> {
    /// True if what the packet announces is not to be believed: it leads to a privileged port,
    /// or to somebody for whom its sender can not speak.
    pub fn refuses(&self, kind: Kind, announced: &Announced) -> bool {
        let Announced { destination, destination_port: port, .. } = *announced;
        // What comes back to the port that has asked reaches nobody who did not speak. GRE has
        // no ports.
        let is_answer = self.sequence.is_none()
            && announced.protocol == protocol::UDP
            && (destination, port) == (self.source, self.source_port);
        let is_privileged =
            port < FIRST_UNPRIVILEGED && announced.protocol != protocol::GRE && !is_answer;
        let settings = self.settings;
        (is_privileged && !settings.expect_privileged)
            || !(kind.trusts_third_parties(settings) || self.speaks_for(kind, destination))
    }

    /// True if the sender is the host that has an address, or may speak for it.
    fn speaks_for(&self, kind: Kind, address: IpAddr) -> bool {
        match kind {
            // A call of PPTP is announced from both ends by its last message, whoever sends that,
            // and a gatekeeper confirms where its endpoint has said that it can be called.
            Kind::Pptp | Kind::Ras => {
                [self.source, self.seen_as, self.destination, self.receiver].contains(&address)
            }
            // An end that knows how others see it names the port that they see as well. It is not
            // for us to translate that once more.
            Kind::Sip => address == self.source,
            _ => address == self.source || address == self.seen_as,
        }
    }
}

/// What the ends of a translated connection have been told so far.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Told<'a> {
    pub expectations: &'a Expectations,
    /// Key of the connection.
    pub master: &'a FlowKey,
}

impl Told<'_> {
    /// The place that an end has announced, where the other end was told `said`; else that.
    pub fn meant(&self, said: (IpAddr, u16)) -> (IpAddr, u16) {
        self.expectations.meant(self.master, said).unwrap_or(said)
    }
}

/// What a helper asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    /// Expect a connection.
    Expect(Announced),
    /// Expect no longer what this connection has announced in these classes.
    Withdraw {
        /// Indices into [`Kind::classes`].
        classes: RangeInclusive<u8>,
        /// Only what this [call](Announced::call) has announced; `None`: all of it.
        call: Option<u32>,
    },
    /// Neither expect nor keep a call of GRE that this connection has announced, by the ends
    /// with their own call ids.
    End {
        /// One end.
        source: (IpAddr, u16),
        /// The other.
        destination: (IpAddr, u16),
    },
    /// What waits for a confirmation in this class is confirmed, and expected from now on.
    Confirm {
        /// Index into [`Kind::classes`].
        class: u8,
        /// For how long, seconds.
        seconds: u32,
    },
    /// Here stands an end, or a place that an end has announced: the receiver has to read what
    /// it knows it by.
    Mention(Mention),
    /// The receiver has to read something else here.
    Edit(Edit),
    /// Here stands how many bytes another part of the packet has.
    Measure {
        /// Where the number stands, in decimal digits.
        place: Range<usize>,
        /// The part.
        of: Range<usize>,
    },
    /// Keep this connection so long if its protocol would keep it for less.
    Keep {
        /// From now on.
        seconds: u32,
    },
}

/// An address that a message names, and its port if that is named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mention {
    /// Where in the payload.
    pub place: Range<usize>,
    pub address: IpAddr,
    pub port: Option<u16>,
    /// What of both stands there.
    pub form: Form,
}

/// How an end is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// `192.0.2.1:5060`, `[2001:db8::1]:5060`
    Both,
    /// `192.0.2.1`, `[2001:db8::1]`
    Host,
    /// `192.0.2.1`, `2001:db8::1`
    Address,
    /// `5060`
    Port,
}

impl Form {
    /// An end, as it is written.
    pub fn write(self, address: IpAddr, port: u16) -> Vec<u8> {
        let text = match (self, address) {
            (Self::Both, _) => SocketAddr::new(address, port).to_string(),
            (Self::Host, IpAddr::V6(address)) => format!("[{address}]"),
            (Self::Host | Self::Address, _) => address.to_string(),
            (Self::Port, _) => port.to_string(),
        };
        text.into_bytes()
    }
}

/// A connection that a packet announces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Announced {
    /// Index into [`Kind::classes`] of the helper that announces it.
    pub class: u8,
    /// Which of several conversations on the announcing connection it belongs to: the
    /// maximum of a class holds for each. 0 where there is but one.
    pub call: u32,
    /// Its protocol.
    pub protocol: u8,
    /// Who will open it; `None`: anybody.
    pub source: Option<IpAddr>,
    /// From which port; `None`: any.
    pub source_port: Option<u16>,
    /// To whom.
    pub destination: IpAddr,
    /// To which port.
    pub destination_port: u16,
    /// Who will watch it.
    pub helper: Option<Kind>,
    /// It stands for any number of connections, until its time is over.
    pub permanent: bool,
    /// Nobody is let in before it is [confirmed](Request::Confirm).
    pub waits: bool,
    /// It is one of two, whose ports differ in the last bit only: the port that is named.
    pub pair_of: Option<u16>,
    /// How long it is expected, seconds; `None`: as long as its class says.
    pub timeout_s: Option<u32>,
    /// Where in the payload address and port stand; empty where they do not.
    pub place: Range<usize>,
    /// How it is translated when it comes.
    pub follow: Option<Follow>,
}

impl Announced {
    /// One connection of class 0, by anybody, that nobody watches.
    pub const fn new(protocol: u8, destination: IpAddr, destination_port: u16) -> Self {
        Self {
            class: 0,
            call: 0,
            protocol,
            source: None,
            source_port: None,
            destination,
            destination_port,
            helper: None,
            permanent: false,
            waits: false,
            pair_of: None,
            timeout_s: None,
            place: 0..0,
            follow: None,
        }
    }
}

/// What to do with a packet that was inspected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Inspected {
    /// It goes on.
    Pass,
    /// It ends in the middle of an announcement. It is dropped, so that the sender
    /// sends it again together with the rest.
    Incomplete,
    /// It goes on, and so does the connection, without the helper: another protocol is spoken,
    /// or what is said from now on is encrypted, or the beginning was not seen.
    Left,
}

/// The protocols of helpers that speak over both TCP and UDP, or one of them.
const TCP: &[u8] = &[protocol::TCP];
const UDP: &[u8] = &[protocol::UDP];
const TCP_AND_UDP: &[u8] = &[protocol::TCP, protocol::UDP];
