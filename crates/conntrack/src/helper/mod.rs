//! Helpers: they read the conversation on a connection, and announce the further connections
//! that its ends agree on.
//!
//! A helper is attached when a connection opens: by the configuration, for a destination port;
//! by a rule; or by the expectation that the connection fulfils. It sees each packet that tracking has
//! accepted, also repeated ones, in the order in which packets pass. It knows no table: it gets
//! bytes and returns requests. A new helper is a file here with its facts and its state, and a
//! [`Kind`].
//!
//! A web page can make a browser send almost any bytes to any port, behind a first line that
//! the page can not choose, and it can choose where segments begin. So bytes that look like an
//! announcement count only where the dialogue of the protocol allows one. A helper follows a
//! TCP connection from its first byte. It leaves the connection if that speaks another protocol
//! or if it has not seen the beginning. Whatever a helper reads, it announces no privileged
//! port and no address of a third party unless the operator allows that.

mod amanda;
mod broadcast;
mod earlier;
mod ftp;
mod h323;
mod irc;
pub(crate) mod pptp;
mod record;
mod sane;
mod settings;
mod shares;
mod sip;
mod stream;
mod text;
mod tftp;

use std::fmt::Debug;
use std::net::{IpAddr, SocketAddr};
use std::ops::{Range, RangeInclusive};

use wire::{TcpFlags, TcpInfo, Transport, protocol};

pub(crate) use self::earlier::{Announcements, Earlier, Way};
pub(crate) use self::record::RecordedHelper;
pub use self::settings::{HelperSettings, TUNABLES};
pub(crate) use self::shares::{Holder, Shares};
pub(crate) use self::stream::Memory;
use crate::Direction;
use crate::connection::Prefix;
use crate::nat::{Edit, ExpectedTranslation};

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
    /// H.323: control of the media of a call. Only [`Self::Q931`] announces it.
    H245,
}

/// The constants of a helper.
pub(crate) struct Facts {
    /// Name as in the kernel.
    pub name: &'static str,
    /// Protocols that carry it.
    pub protocols: &'static [u8],
    /// Assigned port; 0 if there is none.
    pub port: u16,
    /// Kinds of connections that it announces.
    pub classes: &'static [Class],
}

/// One kind of connections that a helper announces.
pub(crate) struct Class {
    /// Name for people.
    pub name: &'static str,
    /// Most of them that one connection, or one call on it, may expect at a time; the oldest
    /// goes first.
    pub maximum: usize,
    /// Lifetime of an expectation, seconds.
    pub timeout_s: u32,
}

impl Kind {
    /// All helpers that can be attached to a port.
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

    /// The state of the helper for a new connection.
    pub(crate) fn start(self) -> AttachedHelper {
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
        AttachedHelper { kind: self, state: Some(state), starts: None }
    }

    /// The same for a connection that its ends open anew, with the SYN+ACK of this direction, which
    /// names the first bytes of both.
    pub(crate) fn start_anew(self, direction: Direction, answer: &TcpInfo) -> AttachedHelper {
        let mut starts = [Some(answer.acknowledgment); 2];
        starts[direction.index()] = Some(answer.sequence.wrapping_add(1));
        AttachedHelper { starts: Some(starts), ..self.start() }
    }

    /// Name as in the kernel.
    pub const fn name(self) -> &'static str {
        self.facts().name
    }

    /// The assigned port of its protocol; 0 if there is none.
    pub const fn default_port(self) -> u16 {
        self.facts().port
    }

    /// Another address and port in the place of `old`, in the form of the helper's protocol.
    /// `None` if the address can not be written there, or if the protocol has none to rewrite.
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

    /// True if the operator allows the helper to announce hosts other than the ends of its
    /// connections.
    fn trusts_third_parties(self, settings: &HelperSettings) -> bool {
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

/// The helpers by destination port.
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
        /// Its helper.
        kind: Kind,
    },
    /// There are too many attachments.
    #[error("helpers are attached to {MAX_ATTACHMENTS} ports already, and that is the limit")]
    TooMany,
}

impl Helpers {
    /// Attaches a helper to connections to `port` that open from now on.
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

    /// The helper of connections to a port.
    pub fn of(&self, protocol: u8, port: u16) -> Option<Kind> {
        let found = self.0.iter().find(|it| (it.protocol, it.port) == (protocol, port));
        found.map(|attachment| attachment.kind)
    }
}

/// A helper with its state for one connection.
#[derive(Debug)]
pub(crate) struct AttachedHelper {
    pub kind: Kind,
    /// `None` if it has [left](Inspected::Left) the connection.
    pub state: Option<Box<dyn Inspect>>,
    /// TCP: the sequence number of the first byte of each direction, by [`Direction::index`],
    /// if its SYN was seen. `None` before the first packet.
    starts: Option<[Option<u32>; 2]>,
}

impl AttachedHelper {
    /// Memory of the largest state, bytes.
    pub const STATE_BYTES: usize = size_of::<sip::Sip>();

    /// Lets the helper read a packet, see [`Inspect::inspect`]. After it has left it reads
    /// nothing more.
    pub fn read(&mut self, packet: &HelperPacket<'_>, ask: &mut dyn FnMut(Request)) -> Inspected {
        let state = self.state.as_mut();
        let inspected = state.map_or(Inspected::Pass, |state| state.inspect(packet, ask));
        self.state.take_if(|_| inspected == Inspected::Left);
        inspected
    }

    /// True if it keeps the beginning of a message whose end has not come.
    pub fn keeps_beginning(&self) -> bool {
        self.state.as_ref().is_some_and(|state| state.keeps_beginning())
    }

    /// Learns from a SYN the number of its sender's first byte, and returns it for this and
    /// later segments. For the opener only the first packet of the connection counts: otherwise
    /// anybody could forge a later SYN to move the beginning.
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
    /// Reads a packet of the connection, and calls `ask` with its requests, in order.
    fn inspect(&mut self, packet: &HelperPacket<'_>, ask: &mut dyn FnMut(Request)) -> Inspected;

    /// True if it keeps the beginning of a message whose end has not come.
    fn keeps_beginning(&self) -> bool {
        false
    }

    /// Writes its state for a record. A function `read` beside it is the reverse.
    fn write(&self, to: &mut Vec<u8>);
}

/// A packet of a connection with a helper, as the helper sees it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HelperPacket<'a> {
    /// Relative to the end that opened the connection.
    pub direction: Direction,
    /// Addresses and ports of this packet.
    pub source: IpAddr,
    pub destination: IpAddr,
    pub source_port: u16,
    pub destination_port: u16,
    /// The address by which the receiver knows the sender: different from `source` if the
    /// connection is translated.
    pub seen_as: IpAddr,
    /// The real receiver of the packet: different from `destination` if that is translated.
    pub receiver: IpAddr,
    /// True if either of these addresses, or its port, is different.
    pub is_translated: bool,
    /// The bytes behind the transport header. It is not empty and has up to 64 KiB, so it may
    /// contain several messages of a stream.
    pub payload: &'a [u8],
    /// TCP: sequence number of the first byte of the payload. `None` for datagrams.
    pub sequence: Option<u32>,
    /// TCP: sequence number of the sender's first byte, if its SYN was seen.
    pub start: Option<u32>,
    /// The frame is broadcast or multicast.
    pub group: bool,
    /// Another connection has announced this one.
    pub is_expected: bool,
    pub settings: &'a HelperSettings,
    /// The memory for messages that wait for the next segment.
    pub memory: &'a Memory,
    /// The source whose share of that memory the connection uses.
    pub opener: Holder,
    /// The earlier announcements of the connection.
    pub earlier: Earlier<'a>,
}

impl HelperPacket<'_> {
    /// How many bytes of a segment with this number were read before, where `next` follows the
    /// last byte that was read; if negative, how many are missing in front of it.
    ///
    /// # Errors
    /// [`Inspected::Left`]: the helper did not see the beginning, or the segment is forged,
    /// because it lies in front of its sender's first byte.
    fn seen(&self, sequence: u32, next: Option<u32>) -> Result<i32, Inspected> {
        let picked_up = self.settings.expect_picked_up.then_some(sequence);
        let expected = next.or(self.start).or(picked_up).ok_or(Inspected::Left)?;
        let seen = expected.wrapping_sub(sequence) as i32;
        if next.is_none() && seen > 0 { Err(Inspected::Left) } else { Ok(seen) }
    }
}

/// The first port that ordinary users may open. Services of hosts listen below it (RFC 6335
/// section 6).
const FIRST_UNPRIVILEGED: u16 = 1024;

impl HelperPacket<'_> {
    /// True if an announcement of this packet is refused: it names a privileged port, or a host
    /// for which the sender may not speak.
    pub fn refuses(&self, kind: Kind, announced: &Announced) -> bool {
        let Announced { destination, destination_port: port, .. } = *announced;
        // A packet to the port from which this one came reaches a program that has just spoken.
        // Nobody answers a question to all with a packet of its own connection, so that could be
        // forged. Name services ask each other, and are reached from their own network only. GRE
        // has no ports.
        let is_name_service = kind == Kind::NetbiosNs
            && announced.source_network.is_some()
            && announced.source_port == Some(port);
        let is_answer = self.sequence.is_none()
            && (!self.group || is_name_service)
            && announced.protocol == protocol::UDP
            && (destination, port) == (self.source, self.source_port);
        let is_privileged =
            port < FIRST_UNPRIVILEGED && announced.protocol != protocol::GRE && !is_answer;
        let settings = self.settings;
        (is_privileged && !settings.expect_privileged)
            || !(kind.trusts_third_parties(settings) || self.speaks_for(kind, destination))
    }

    /// True if `address` is the sender's, or one that it may announce.
    fn speaks_for(&self, kind: Kind, address: IpAddr) -> bool {
        match kind {
            // The last message of a PPTP call announces both ends, whichever end sends it. A
            // gatekeeper confirms the address at which its endpoint accepts calls.
            Kind::Pptp | Kind::Ras => {
                [self.source, self.seen_as, self.destination, self.receiver].contains(&address)
            }
            // An end that knows its translated address also names its translated port. That
            // must not be translated once more.
            Kind::Sip => address == self.source,
            _ => address == self.source || address == self.seen_as,
        }
    }
}

/// A request of a helper.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    /// Expect a connection.
    Expect(Announced),
    /// Withdraw the announcements of this connection in these classes.
    Withdraw {
        /// Indices into [`Kind::classes`].
        classes: RangeInclusive<u8>,
        /// Only those of this [call](Announced::call); `None`: all.
        call: Option<u32>,
    },
    /// End a call of GRE that this connection has announced, or stop expecting it. The ends
    /// have their own call ids.
    End {
        /// One end.
        source: (IpAddr, u16),
        /// The other.
        destination: (IpAddr, u16),
    },
    /// The announcements in this class that wait for a confirmation are confirmed.
    Confirm {
        /// Index into [`Kind::classes`].
        class: u8,
        /// Lifetime from now on, seconds.
        seconds: u32,
    },
    /// The message names an end of the connection, or a place that an end has announced, at
    /// this place. The receiver has to read the address by which it knows that.
    Mention(Mention),
    /// Replace these bytes for the receiver.
    Edit(Edit),
    /// The message states the length of a part of itself at this place.
    Measure {
        /// The place of the number, in decimal digits.
        place: Range<usize>,
        /// The part.
        of: Range<usize>,
    },
    /// Keep this connection at least this long.
    Keep {
        /// Seconds from now on.
        seconds: u32,
    },
}

/// An address that a message names, with its port if it names one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mention {
    /// Its place in the payload.
    pub place: Range<usize>,
    pub address: IpAddr,
    pub port: Option<u16>,
    /// The parts of the two that are written there.
    pub form: Form,
}

/// The form in which a message writes an address and a port.
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
    /// An address and port in this form.
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
    /// Number of the conversation on the announcing connection that it belongs to; the maximum
    /// of a class holds for each conversation. 0 if there is only one.
    pub call: u32,
    /// Its protocol.
    pub protocol: u8,
    /// Address of its opener; `None`: any.
    pub source: Option<IpAddr>,
    /// Network of its opener, if the address may be any of that; `None`: any.
    pub source_network: Option<Prefix>,
    /// Port of its opener; `None`: any.
    pub source_port: Option<u16>,
    /// Destination address.
    pub destination: IpAddr,
    /// Destination port.
    pub destination_port: u16,
    /// Helper of the announced connection.
    pub helper: Option<Kind>,
    /// It stands for any number of connections, until it expires.
    pub permanent: bool,
    /// It is not found before it is [confirmed](Request::Confirm).
    pub waits: bool,
    /// It is one of two whose ports differ in the last bit only; this is the port in the
    /// message.
    pub pair_of: Option<u16>,
    /// Lifetime, seconds; `None`: that of its class.
    pub timeout_s: Option<u32>,
    /// The place of address and port in the payload; empty if they are not in it.
    pub place: Range<usize>,
    /// The translation of the announced connection.
    pub follow: Option<ExpectedTranslation>,
}

impl Announced {
    /// One connection of class 0, opened by any host, without a helper.
    pub const fn new(protocol: u8, destination: IpAddr, destination_port: u16) -> Self {
        Self {
            class: 0,
            call: 0,
            protocol,
            source: None,
            source_network: None,
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

/// The fate of an inspected packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Inspected {
    /// It passes.
    Pass,
    /// It ends in the middle of an announcement. It is dropped, so that the sender repeats it
    /// together with the rest.
    Incomplete,
    /// It passes, and the helper leaves the connection: that speaks another protocol or is
    /// encrypted from now on, or the beginning was not seen.
    Left,
}

/// The transports of helpers.
const TCP: &[u8] = &[protocol::TCP];
const UDP: &[u8] = &[protocol::UDP];
const TCP_AND_UDP: &[u8] = &[protocol::TCP, protocol::UDP];
