//! The scratch area of a packet: what its stages tell each other.

use conntrack::nat::{AddressChanges, Request};
use conntrack::seqadj::Adjustment;
use conntrack::syn_proxy::{Joined, Proxied, Screening};
use conntrack::{ConnectionId, Direction, Tracked};
use flow::{Class, Timestamp, ZonePair};
use netio::{Frame, PortId};
use ruleset::{Connection, CtState, Details, Known};
use wire::ETHERNET_LEN;
use wire::control_segment::ControlSegment;

use crate::egress::bridge::OutputPorts;
use crate::egress::route_decision::RouteDecision;
use crate::path::nat::port_search::Search;
use crate::path::packet::Packet;

/// Status bits (`enum ip_conntrack_status` of the kernel's interface).
const EXPECTED: u32 = 1;
const SEEN_REPLY: u32 = 1 << 1;
const ASSURED: u32 = 1 << 2;
const CONFIRMED: u32 = 1 << 3;
const SOURCE_TRANSLATED: u32 = 1 << 4;
const DESTINATION_TRANSLATED: u32 = 1 << 5;

/// How a packet leaves, as far as that is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Exit {
    /// The route that a router has found.
    pub route: Option<RouteDecision>,
    /// The mark of the packet when it was routed.
    pub mark: u32,
    /// The ports that a bridge has chosen.
    pub ports: Option<OutputPorts>,
}

/// The scratch area of a packet.
pub struct Scratch {
    /// The time at which the packet is processed.
    pub now: Timestamp,
    /// The task of the SYN proxy when the packet is tracked.
    pub screening: Screening,
    /// How the packet relates to the connections of its bucket.
    pub tracked: Tracked,
    /// How far tracking has come.
    pub tracking: Progress,
    /// The state of its connection, as rules see it.
    pub state: CtState,
    pub mark: u32,
    pub priority: u32,
    pub input: u128,
    pub output: u128,
    pub output_port: Option<PortId>,
    pub exit: Exit,
    /// The changes that the translation of its connection makes to it.
    pub address_changes: AddressChanges,
    /// It is for an address of the host and belongs to no connection. It ends at the host unless a
    /// rule in front of routing translates its destination.
    pub ends_at_host: bool,
    /// It is the host's own, and the gateway answers it if the host has no part of it.
    pub host_may_refuse: bool,
    /// A rule has chosen a destination and left no choice, so the kernel's own copy goes to the
    /// same destination.
    pub is_determined: bool,
    /// Its connection was announced by a translated one and is translated accordingly, so no rule
    /// is asked for its translation.
    pub is_announced: bool,
    /// A rule was asked that has to see every packet of the flow.
    pub per_packet: bool,
    /// The request of a rule for a source.
    pub request: Option<Request>,
    /// Replies to the connection that the packet has opened come to its bucket by their port.
    pub replies_come_here: bool,
    /// The search for a source of its connection, which waits for the answer of another bucket.
    pub search: Option<Search>,
    /// The sequence numbers that an edited connection shifts.
    pub shift: Option<(Direction, Adjustment)>,
    pub proxy: ProxyScratch,
    /// The connection that the packet has opened inside its tunnel. It is withdrawn unless the packet
    /// goes on.
    pub opened_inside: Option<ConnectionId>,
    /// Rules see the packet with a hop less, as a router sends it on.
    shows_next_hop: bool,
    /// The hop was taken off.
    hop_taken: bool,
    /// The translated ends of its connection, as status bits.
    translated: u32,
}

/// How far the tracking of a packet has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// It was not tracked yet.
    Untracked,
    /// The fast path has tracked it, with this result, and could not send it.
    InFastPath(Tracked),
    /// It was tracked and accepted. A connection that it has opened is withdrawn unless it goes on.
    Accepted,
    /// A connection that it has opened is there for all to see.
    Confirmed,
    /// Replies would not find the connection that it has opened. The connection ends with it.
    Unreachable,
    /// A connection that it has opened was withdrawn, and the SYN proxy of a rule decides about it.
    Withdrawn,
}

/// The part of the SYN proxy.
#[derive(Default)]
pub struct ProxyScratch {
    /// The proxy answers the packet if the rules accept it.
    pub is_to_answer: bool,
    /// The packet is a SYN that the proxy sends to a server, which opens this connection.
    pub to_server: Option<Proxied>,
    /// Only the postrouting chains see it. A rule of an earlier chain has had the proxy answer,
    /// and in the kernel this SYN leaves from the host.
    pub skips_early_chains: bool,
    /// The last thing that the proxy does with the packet.
    pub finish: Option<Finish>,
    /// The packet is a segment that the proxy has made.
    pub is_made: bool,
    /// The segment that is to take the packet's place before it is tracked anew.
    pub instead: Option<ControlSegment>,
    /// The segment that answers the packet.
    pub back: Option<ControlSegment>,
    /// The segment that goes on in the packet's place.
    pub along: Option<ControlSegment>,
}

/// The last thing that the SYN proxy does with a packet of a connection that it has opened.
#[derive(Clone, Copy, Debug)]
pub enum Finish {
    /// It shifts the sequence numbers.
    Shift(Direction, Adjustment),
    /// It answers the server's SYN+ACK and opens the client's window.
    Join(Proxied, Joined),
    /// It resets the connection to the server.
    Reset(ControlSegment),
    /// It gives a reset of the server the number that the client expects.
    Refusal(u32),
}

impl Scratch {
    /// Creates the scratch area of a packet that came in by the interface `input`.
    pub fn new(
        packet: &Packet,
        tracking: Progress,
        screening: Screening,
        input: u128,
        now: Timestamp,
    ) -> Self {
        Self {
            now,
            screening,
            tracked: Tracked::alone(Class::Untracked),
            tracking,
            // A packet that was not tracked yet is invalid to the kernel's rules.
            state: CtState::Invalid,
            mark: packet.mark,
            priority: 0,
            input,
            output: 0,
            output_port: None,
            exit: Exit::default(),
            address_changes: AddressChanges::default(),
            ends_at_host: false,
            host_may_refuse: false,
            is_determined: false,
            is_announced: false,
            per_packet: packet.per_packet,
            request: None,
            replies_come_here: false,
            search: None,
            shift: None,
            proxy: ProxyScratch::default(),
            opened_inside: None,
            shows_next_hop: false,
            hop_taken: false,
            translated: 0,
        }
    }

    /// Makes this the scratch area of a segment that the SYN proxy has made from the packet.
    pub fn retrack(&mut self, segment: &Packet) {
        let ProxyScratch { to_server, skips_early_chains, .. } = self.proxy;
        let proxy = ProxyScratch {
            to_server,
            skips_early_chains,
            is_made: true,
            ..ProxyScratch::default()
        };
        let (input, now) = (self.input, self.now);
        *self = Self::new(segment, Progress::Untracked, Screening::Off, input, now);
        self.proxy = proxy;
    }

    /// Notes how the packet relates to the connections, for the stages behind tracking.
    pub fn set_tracked(&mut self, tracked: Tracked) {
        self.tracked = tracked;
        self.accept_tracked();
    }

    /// Lets the stages behind tracking see its result.
    pub fn accept_tracked(&mut self) {
        self.state = self.tracked.class.into();
        self.tracking = Progress::Accepted;
    }

    /// Notes the changes that the translation of the connection makes.
    pub fn set_address_changes(&mut self, address_changes: AddressChanges) {
        self.address_changes = address_changes;
        self.set_translated(&address_changes);
    }

    /// Lets rules see the packet with a hop less from now on, as a router sends it on.
    pub fn show_next_hop(&mut self) {
        self.shows_next_hop = true;
    }

    /// Takes the hop off that rules see missing, before anybody looks at it.
    #[inline]
    pub fn take_hop(&mut self, frame: &mut Frame) {
        if std::mem::take(&mut self.shows_next_hop) {
            self.hop_taken = packet_in(frame).is_some_and(wire::take_hop);
        }
    }

    /// True while a hop is taken off the packet.
    pub const fn has_taken_hop(&self) -> bool {
        self.hop_taken
    }

    /// Gives the hop back: the output takes it, from each fragment if the packet came in some.
    #[inline]
    pub fn give_hop(&mut self, frame: &mut Frame) {
        self.shows_next_hop = false;
        if std::mem::take(&mut self.hop_taken)
            && let Some(packet) = packet_in(frame)
        {
            wire::give_hop(packet);
        }
    }

    /// Lets the next stages see which ends of the connection are translated. The destination of a
    /// new connection is known before its source.
    fn set_translated(&mut self, address_changes: &AddressChanges) {
        let bit = |is_set, bit| if is_set { bit } else { 0 };
        let (source, destination) = match self.tracked.direction {
            Some(Direction::Reply) => (address_changes.destination, address_changes.source),
            _ => (address_changes.source, address_changes.destination),
        };
        self.translated = bit(source.is_some(), SOURCE_TRANSLATED)
            | bit(destination.is_some(), DESTINATION_TRANSLATED);
    }

    /// Lets the next stages see a translated destination.
    pub fn set_redirected(&mut self) {
        self.translated |= DESTINATION_TRANSLATED;
    }

    /// The connection as rules see it.
    pub fn connection<'a>(
        &self,
        zones: ZonePair,
        details: Option<&'a dyn Details>,
    ) -> Connection<'a> {
        let tracked = &self.tracked;
        let bit = |is_set, bit| if is_set { bit } else { 0 };
        let known = tracked.direction.map(|direction| Known {
            reply: direction == Direction::Reply,
            status: bit(!tracked.fresh, CONFIRMED)
                | bit(tracked.is_expected(), EXPECTED)
                | bit(tracked.has_seen_reply(), SEEN_REPLY)
                | bit(tracked.is_assured(), ASSURED)
                | self.translated,
            mark: tracked.mark,
            zones,
            details,
        });
        Connection { state: self.state, known }
    }
}

fn packet_in(frame: &mut Frame) -> Option<&mut [u8]> {
    frame.bytes_mut().get_mut(usize::from(ETHERNET_LEN)..)
}
