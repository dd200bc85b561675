//! The SYN proxy answers SYNs in the name of servers, so that a flood of SYNs costs no memory
//! here and does not reach the servers (RFC 4987 section 3.7, with the cookies of section 3.6).
//!
//! ```text
//! client                      gateway                     server
//!    SYN  ------------------->
//!         <-------------------  SYN+ACK: cookie, window 0
//!    ACK of the cookie ------>
//!                               SYN  ------------------->
//!                                    <-------------------  SYN+ACK
//!                               ACK  ------------------->
//!         <-------------------  ACK: window of the server
//!    data ------------------->  numbers shifted  ------->
//! ```
//!
//! The first answer needs no state: it is a function of the SYN, a secret and the time. Only an
//! ACK that returns its cookie opens a connection here and at the server. The server counts
//! from another number than the cookie, so from then on the gateway shifts the numbers of each
//! end for the other ([`Adjustment`]).
//!
//! The gateway repeats nothing by itself. A client with data asks again after a closed window,
//! and each time the gateway asks a silent server again. A client that waits for the server to
//! speak first waits for ever if the ACK or the SYN is lost. This is the price of a cookie (RFC
//! 4987 section 3.6), and the reason why the proxy works above a threshold.

mod cookie;
mod options;
mod pressure;
mod promise;
mod record;

use flow::{KeyedPacket, Timestamp};
use wire::control_segment::{ControlSegment, OptionList, Way};
use wire::tcp_option::of_segment;
use wire::{Network, TcpFlags, TcpInfo};

use self::options::{Extras, Offer, Timestamps};
use crate::Direction;
use crate::proto::tcp::Segment;
use crate::seqadj::{Adjustment, Rescale, Shift};

pub use cookie::Cookies;
pub use pressure::Pressure;
pub use promise::Promise;

/// Settings of the proxy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SynProxySettings {
    /// Number of half-open connections of a zone from which on it answers; 0: never.
    pub half_open: u32,
    /// Largest segment that it promises in the name of a server over IPv4, bytes; over IPv6 20
    /// less.
    pub segment_size: u16,
    /// Scale of the windows that it promises in the name of a server.
    pub window_scale: u8,
    /// Promise timestamps, and with them window scale, SACK and ECN.
    pub timestamps: bool,
}

/// A TCP segment that was received.
#[derive(Clone, Copy, Debug)]
pub struct Received<'a> {
    /// Its flow, with its sender.
    pub keyed: &'a KeyedPacket,
    /// The headers of `frame`.
    pub network: &'a Network,
    /// Its fixed header.
    pub tcp: &'a TcpInfo,
    /// The frame.
    pub frame: &'a [u8],
}

/// A connection that the proxy has opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Proxied {
    /// Sequence number of the client's SYN.
    initial: u32,
    /// Sequence number of the SYN+ACK that the client received.
    cookie: u32,
    /// Largest segment that the client accepts, bytes.
    segment_size: u16,
    /// Window that the client announced last, in its scale.
    window: u16,
    /// The promise to the client.
    promise: Promise,
    /// The client's timestamp and the promised one that it echoes.
    timestamps: Option<Timestamps>,
    /// The changes to its segments, once the server has answered.
    adjustment: Option<Adjustment>,
}

/// The segments that follow the SYN+ACK of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Joined {
    /// Completes the handshake of the server.
    pub to_server: ControlSegment,
    /// Opens the client's window.
    pub to_client: ControlSegment,
}

/// The task of the proxy for a packet that would open a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Screening {
    /// Nothing.
    Off,
    /// It decides: the verdict of a segment for which [`screens`] is true is
    /// [`Verdict::Screen`](crate::Verdict::Screen), and nothing has changed.
    Ask,
    /// It answers the packet if the rules accept it. For the rules, the packet opens a
    /// connection that takes no room, so it evicts no other and no limit refuses it. The caller
    /// has to [withdraw](crate::Table::withdraw) it whatever the rules decide.
    Answer,
}

/// True for a segment that the proxy handles if it belongs to no connection: a SYN, or a
/// segment that may return a cookie.
pub const fn screens(flags: TcpFlags) -> bool {
    let syn = flags.contains(TcpFlags::SYN);
    !flags.contains(TcpFlags::RST) && syn != flags.contains(TcpFlags::ACK)
}

/// The answer to a SYN: a promise in the name of the server.
pub fn answer(
    cookies: &Cookies,
    syn: &Received<'_>,
    now: Timestamp,
    promise: &Promise,
) -> ControlSegment {
    let Received { keyed, network, tcp, .. } = *syn;
    let offer = Offer::of(tcp, syn.options(), network.family);
    let mut options = OptionList::default();
    if let Some(segment_size) = promise.segment_size {
        options = options.max_segment_size(segment_size);
    }
    let mut flags = TcpFlags::SYN.with(TcpFlags::ACK);
    if let Some(timestamp) = offer.timestamp.filter(|_| promise.timestamps) {
        let extras = promise.of_offered(offer.extras);
        if extras.sack_permitted {
            options = options.sack_permitted();
        }
        options = options.timestamps(extras.to_timestamp(now), timestamp);
        if let (Some(_), Some(scale)) = (extras.scale, promise.window_scale) {
            options = options.window_scale(scale);
        }
        if extras.ecn {
            flags = flags.with(TcpFlags::ECE);
        }
    }
    ControlSegment {
        way: Way::Back,
        sequence: cookies.make(keyed, tcp.sequence, offer.segment_size, promise.number(), now),
        acknowledgment: tcp.sequence.wrapping_add(1),
        flags,
        // No data before there is a server to receive it.
        window: 0,
        options,
    }
}

/// The connection that a client opens by acknowledging a cookie; `None` if the client was given
/// no such cookie recently.
pub fn redeem(
    cookies: &Cookies,
    ack: &Received<'_>,
    now: Timestamp,
    promise: &Promise,
) -> Option<Proxied> {
    let Received { keyed, tcp, .. } = *ack;
    let cookie = tcp.acknowledgment.wrapping_sub(1);
    // A probe of the closed window may carry the number in front of its first.
    let (initial, segment_size) =
        [tcp.sequence.wrapping_sub(1), tcp.sequence].into_iter().find_map(|initial| {
            Some((initial, cookies.check(cookie, keyed, initial, promise.number(), now)?))
        })?;
    Some(Proxied {
        initial,
        cookie,
        segment_size,
        window: tcp.window,
        promise: *promise,
        timestamps: Timestamps::of(ack.options()),
        adjustment: None,
    })
}

impl Proxied {
    /// Limits the segments that the server will send to `longest` bytes.
    pub fn limit_segment_size(&mut self, longest: u32) {
        let longest = u16::try_from(longest).unwrap_or(u16::MAX);
        self.segment_size = self.segment_size.min(longest);
    }

    /// The client's SYN for the server. It has to be written from a packet of the client.
    pub fn syn(&self) -> ControlSegment {
        let extras = self.extras();
        let mut options = OptionList::default().max_segment_size(self.segment_size);
        let mut flags = TcpFlags::SYN;
        if let Some(timestamps) = self.timestamps {
            if extras.sack_permitted {
                options = options.sack_permitted();
            }
            options = options.timestamps(timestamps.value, 0);
            if let Some(scale) = extras.scale {
                options = options.window_scale(scale);
            }
            if extras.ecn {
                flags = flags.with(TcpFlags::ECE).with(TcpFlags::CWR);
            }
        }
        let unscaled = Rescale { from: extras.scale.unwrap_or(0), to: 0 };
        ControlSegment {
            way: Way::Along,
            sequence: self.initial,
            acknowledgment: 0,
            flags,
            window: unscaled.window(self.window),
            options,
        }
    }

    /// True for a segment of the client that acknowledges only the SYN+ACK with the cookie.
    pub fn is_from_opening(&self, tcp: &TcpInfo) -> bool {
        tcp.flags.contains(TcpFlags::ACK) && tcp.acknowledgment == self.cookie.wrapping_add(1)
    }

    /// Takes the SYN+ACK of the server, also a repeated one. `None` if it does not answer the
    /// SYN, or has another sequence number than the first one.
    pub fn join(&mut self, syn_ack: &Received<'_>) -> Option<Joined> {
        let Received { tcp, .. } = *syn_ack;
        let offset = self.cookie.wrapping_sub(tcp.sequence);
        let shifted = Shift::fixed(offset);
        let reply = Direction::Reply.index();
        if tcp.acknowledgment != self.initial.wrapping_add(1)
            || self.adjustment.is_some_and(|adjustment| adjustment.sequences[reply] != shifted)
        {
            return None;
        }
        let extras = self.extras();
        let segment = Segment::parse(tcp, syn_ack.network, syn_ack.frame).ok()?;
        let server_scale = segment.syn_options().scale;
        let server_timestamps = Timestamps::of(syn_ack.options());

        let mut adjustment = Adjustment::default();
        adjustment.sequences[reply] = shifted;
        if let Some(client_scale) = extras.scale {
            let promised = self.promise.window_scale.unwrap_or(0);
            let taken = if server_scale.is_some() { client_scale } else { 0 };
            let from_server = Rescale { from: server_scale.unwrap_or(0), to: promised };
            adjustment.windows = [Rescale { from: client_scale, to: taken }, from_server];
        }
        if let (Some(client), Some(server)) = (self.timestamps, server_timestamps) {
            adjustment.timestamps[reply] = client.echo.wrapping_sub(server.value);
        }
        self.adjustment = Some(adjustment);
        Some(self.joined(tcp, &adjustment, server_timestamps))
    }

    fn joined(&self, tcp: &TcpInfo, adjustment: &Adjustment, server: Option<Timestamps>) -> Joined {
        let [from_client, from_server] = adjustment.windows;
        let stamped = |value, echo| OptionList::default().timestamps(value, echo);
        let client = self.timestamps;
        let segment =
            |way, sequence: u32, acknowledgment: u32, window, options: Option<_>| ControlSegment {
                way,
                sequence: sequence.wrapping_add(1),
                acknowledgment: acknowledgment.wrapping_add(1),
                flags: TcpFlags::ACK,
                window,
                options: options.unwrap_or_default(),
            };
        // The window of a SYN+ACK is not scaled.
        let window = Rescale { from: 0, to: from_server.to }.window(tcp.window);
        Joined {
            to_server: segment(
                Way::Back,
                self.initial,
                tcp.sequence,
                from_client.window(self.window),
                client.zip(server).map(|(client, server)| stamped(client.value, server.value)),
            ),
            to_client: segment(
                Way::Along,
                self.cookie,
                self.initial,
                window,
                client.map(|client| stamped(client.echo, client.value)),
            ),
        }
    }

    /// The reset for a server that answers a SYN with anything but a SYN+ACK or a reset,
    /// because it remembers an older connection (RFC 9293 section 3.5.1).
    pub fn reset(&self, tcp: &TcpInfo) -> ControlSegment {
        ControlSegment {
            way: Way::Back,
            sequence: tcp.acknowledgment,
            acknowledgment: 0,
            flags: TcpFlags::RST,
            window: 0,
            options: OptionList::default(),
        }
    }

    /// The reset of a client, for the server. It leaves out the acknowledgment, whose number is
    /// not the server's.
    pub fn abort(&self, tcp: &TcpInfo) -> ControlSegment {
        ControlSegment { way: Way::Along, sequence: tcp.sequence, ..self.reset(tcp) }
    }

    /// The sequence number of a server's refusal as the client expects it.
    pub const fn refusal_sequence(&self) -> u32 {
        self.cookie.wrapping_add(1)
    }

    /// The changes to its segments; `None` until the server has answered.
    pub const fn adjustment(&self) -> Option<&Adjustment> {
        self.adjustment.as_ref()
    }

    /// The promise to the client.
    pub const fn promise(&self) -> &Promise {
        &self.promise
    }

    fn extras(&self) -> Extras {
        self.timestamps.map_or(Extras::default(), |stamps| Extras::of_timestamp(stamps.echo))
    }
}

impl Received<'_> {
    fn options(&self) -> &[u8] {
        of_segment(self.frame, self.network, self.tcp)
    }
}
