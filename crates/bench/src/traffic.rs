//! TCP conversations, segment by segment, without any state for a flow: a segment is a function of
//! the flow's number and of the number of segments before it.

use wire::build::{PacketBuilder, Tcp};
use wire::{Network, TcpFlags, Transport, checksum};

/// Bytes that a client sends at a time, and those that a server sends.
pub type Payload = [u32; 2];
/// First sequence numbers of client and server.
const INITIAL: [u32; 2] = [0x1000_0000, 0xf000_0000];
/// Window as carried; 64,000 bytes by the agreed shift of 7.
const WINDOW: u16 = 500;
/// MSS 1460, SACK permitted, timestamps, shift 7: as a Linux host opens.
const SYN_OPTIONS: [u8; 20] = [2, 4, 0x05, 0xb4, 4, 2, 8, 10, 0, 0, 0, 1, 0, 0, 0, 0, 1, 3, 3, 7];
/// Timestamps, as every further segment carries them.
const OPTIONS: [u8; 12] = [1, 1, 8, 10, 0, 0, 0, 2, 0, 0, 0, 1];

/// Offsets of the headers in every frame.
const IP: usize = 14;
const TCP: usize = IP + 20;

/// The sender of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Sender {
    Client = 0,
    Server = 1,
}

/// The kind of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Kind {
    /// SYN, or SYN and ACK.
    Open = 0,
    /// ACK without data.
    Ack = 1,
    /// Data.
    Data = 2,
    /// RST.
    Reset = 3,
}

/// One segment of one flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    pub flow: u32,
    pub sender: Sender,
    pub kind: Kind,
    sequence: u32,
    acknowledgment: u32,
}

impl Segment {
    /// The first, second and third segment of a flow.
    pub fn handshake(flow: u32) -> [Self; 3] {
        let [client, server] = INITIAL;
        let (next_client, next_server) = (client.wrapping_add(1), server.wrapping_add(1));
        let segment = |sender, kind, sequence, acknowledgment| Self {
            flow,
            sender,
            kind,
            sequence,
            acknowledgment,
        };
        [
            segment(Sender::Client, Kind::Open, client, 0),
            segment(Sender::Server, Kind::Open, server, next_client),
            segment(Sender::Client, Kind::Ack, next_client, next_server),
        ]
    }

    /// The `step`th segment after the handshake. The two ends speak by turns, and each acknowledges
    /// everything that the other has sent. In every other flow the server speaks first.
    pub fn talk(flow: u32, step: u32, payload: Payload) -> Self {
        let turn = (step ^ flow) & 1;
        let sender = if turn == 0 { Sender::Client } else { Sender::Server };
        let said = |end: usize| {
            // After an odd number of steps, the first speaker has spoken once more than the other.
            let speaks_first = (flow & 1) as usize == end;
            let times = if speaks_first { step.div_ceil(2) } else { step / 2 };
            INITIAL[end].wrapping_add(1).wrapping_add(times.wrapping_mul(payload[end]))
        };
        let (me, peer) = (turn as usize, 1 - turn as usize);
        Self { flow, sender, kind: Kind::Data, sequence: said(me), acknowledgment: said(peer) }
    }

    /// Data outside its receiver's window.
    pub fn stray(flow: u32) -> Self {
        let segment = Self::talk(flow, 0, [0; 2]);
        Self { sequence: segment.sequence.wrapping_add(1 << 30), ..segment }
    }

    /// The client gives up before an answer comes.
    pub fn reset(flow: u32) -> Self {
        Self {
            flow,
            sender: Sender::Client,
            kind: Kind::Reset,
            sequence: INITIAL[0].wrapping_add(1),
            acknowledgment: 0,
        }
    }

    /// Writes its sequence and acknowledgment numbers into a frame of its template.
    pub fn write_numbers(&self, frame: &mut [u8]) {
        frame[TCP + 4..TCP + 8].copy_from_slice(&self.sequence.to_be_bytes());
        frame[TCP + 8..TCP + 12].copy_from_slice(&self.acknowledgment.to_be_bytes());
    }

    /// Position of its template.
    pub fn template(&self) -> usize {
        self.kind as usize * 2 + self.sender as usize
    }
}

/// Writes segments as headers or as frames.
#[derive(Debug)]
pub struct Pen {
    templates: Vec<Template>,
}

#[derive(Debug)]
struct Template {
    frame: Vec<u8>,
    network: Network,
}

impl Pen {
    /// A pen with one template for each kind and sender.
    pub fn new(payload: Payload) -> Self {
        let kinds = [Kind::Open, Kind::Ack, Kind::Data, Kind::Reset];
        let senders = [Sender::Client, Sender::Server];
        let templates = kinds
            .iter()
            .flat_map(|&kind| senders.iter().map(move |&sender| template(kind, sender, payload)));
        Self { templates: templates.collect() }
    }

    /// The headers of a segment, as dissection finds them.
    pub fn headers(&self, segment: &Segment) -> Network {
        let [(source, source_port), (destination, destination_port)] = ends(segment);
        let mut network = self.templates[segment.template()].network;
        network.source[12..].copy_from_slice(&source);
        network.destination[12..].copy_from_slice(&destination);
        if let Transport::Tcp(tcp) = &mut network.transport {
            tcp.source_port = source_port;
            tcp.destination_port = destination_port;
            tcp.sequence = segment.sequence;
            tcp.acknowledgment = segment.acknowledgment;
        }
        network
    }

    /// The frame of a segment, valid until the next one of the same template is written. Its
    /// transport checksum is wrong, as if an interface had verified it.
    pub fn frame(&mut self, segment: &Segment) -> &[u8] {
        let [(source, source_port), (destination, destination_port)] = ends(segment);
        let frame = &mut self.templates[segment.template()].frame;
        frame[IP + 12..IP + 16].copy_from_slice(&source);
        frame[IP + 16..TCP].copy_from_slice(&destination);
        frame[TCP..TCP + 2].copy_from_slice(&source_port.to_be_bytes());
        frame[TCP + 2..TCP + 4].copy_from_slice(&destination_port.to_be_bytes());
        segment.write_numbers(frame);
        checksum::fill_ipv4_header(&mut frame[IP..]);
        frame
    }

    /// A frame with the options of all segments of a template.
    pub fn template(&self, template: usize) -> &[u8] {
        &self.templates[template].frame
    }
}

/// Source and destination: 2^16 clients, which use one port after the other, and 64 servers, in the
/// network that RFC 2544 section C.2.2 sets aside for benchmarks. In every other flow the client
/// has the higher address.
fn ends(segment: &Segment) -> [([u8; 4], u16); 2] {
    let [.., high, low] = segment.flow.to_be_bytes();
    let odd = (segment.flow & 1) as u8;
    let client = ([198, 18 + odd, high, low], 1024 + (segment.flow >> 16) as u16);
    let server = ([198, 19 - odd, 0, low & 0x3f], 443);
    match segment.sender {
        Sender::Client => [client, server],
        Sender::Server => [server, client],
    }
}

fn template(kind: Kind, sender: Sender, payload: Payload) -> Template {
    const ANY: [u8; 4] = [198, 18, 0, 1];
    let payload = match kind {
        Kind::Data => payload[sender as usize] as usize,
        Kind::Open | Kind::Ack | Kind::Reset => 0,
    };
    let (flags, options): (_, &[u8]) = match (kind, sender) {
        (Kind::Open, Sender::Client) => (TcpFlags::SYN, &SYN_OPTIONS),
        (Kind::Open, Sender::Server) => (TcpFlags::SYN.with(TcpFlags::ACK), &SYN_OPTIONS),
        (Kind::Ack, _) => (TcpFlags::ACK, &OPTIONS),
        (Kind::Data, _) => (TcpFlags::ACK.with(TcpFlags::PSH), &OPTIONS),
        (Kind::Reset, _) => (TcpFlags::RST, &[]),
    };
    let tcp = Tcp { flags, options, window: WINDOW, ..Tcp::default() };
    let mut frame = Vec::new();
    PacketBuilder::v4(ANY, ANY).dont_fragment().tcp(&tcp, &vec![0; payload], &mut frame);
    let network = wire::dissect(&frame).ok().and_then(|dissected| dissected.network);
    #[expect(clippy::expect_used, reason = "the builder's frames are whole IPv4 packets")]
    let network = network.expect("an IPv4 packet");
    Template { frame, network }
}

/// An endless sequence of segments.
#[derive(Debug)]
pub enum Traffic {
    /// Talk of known flows: each flow once before any a second time, in random order.
    Talk { payload: Payload, orders: [Vec<u32>; 2], at: usize, step: u32 },
    /// Opens flows, and ends each after [`LAG`] others were opened.
    Churn { flows: Vec<u32>, at: usize, ends: bool },
    /// Opens flows and never ends them.
    Flood { flows: Vec<u32>, at: usize },
    /// Segments of known flows whose numbers are far over the windows.
    Stray { flows: Vec<u32>, at: usize },
}

/// The number of flows that churn keeps open.
pub const LAG: usize = 4096;

impl Traffic {
    /// The talk of these flows, which have been opened.
    pub fn talk(mut flows: Vec<u32>, payload: Payload) -> Self {
        let mut random = Random(7);
        let orders = std::array::from_fn(|_| {
            random.shuffle(&mut flows);
            flows.clone()
        });
        Self::Talk { payload, orders, at: 0, step: 0 }
    }

    /// Opens these flows over and over.
    pub fn flood(mut flows: Vec<u32>) -> Self {
        Random(13).shuffle(&mut flows);
        Self::Flood { flows, at: 0 }
    }

    /// Segments outside the windows of these flows, which have been opened.
    pub fn stray(mut flows: Vec<u32>) -> Self {
        Random(17).shuffle(&mut flows);
        Self::Stray { flows, at: 0 }
    }

    /// Opens and ends these flows, more than [`LAG`], over and over.
    pub fn churn(mut flows: Vec<u32>) -> Self {
        Random(11).shuffle(&mut flows);
        Self::Churn { flows, at: 0, ends: false }
    }

    /// The flows that must be open before the first segment comes.
    pub fn opened_before(&self) -> &[u32] {
        match self {
            Self::Talk { orders, .. } => &orders[0],
            Self::Churn { flows, .. } => &flows[flows.len() - LAG..],
            Self::Flood { .. } | Self::Stray { .. } => &[],
        }
    }

    /// The next segment.
    pub fn next(&mut self) -> Segment {
        match self {
            Self::Talk { payload, orders, at, step } => {
                let segment = Segment::talk(orders[*step as usize & 1][*at], *step, *payload);
                *at += 1;
                if *at == orders[0].len() {
                    (*at, *step) = (0, step.wrapping_add(1));
                }
                segment
            }
            Self::Churn { flows, at, ends } => {
                *ends = !*ends;
                if *ends {
                    return Segment::handshake(flows[*at])[0];
                }
                let old = flows[(*at + flows.len() - LAG) % flows.len()];
                *at = (*at + 1) % flows.len();
                Segment::reset(old)
            }
            Self::Flood { flows, at } => {
                *at = (*at + 1) % flows.len();
                Segment::handshake(flows[*at])[0]
            }
            Self::Stray { flows, at } => {
                *at = (*at + 1) % flows.len();
                Segment::stray(flows[*at])
            }
        }
    }
}

/// SplitMix64 (Steele, Lea and Flood, OOPSLA 2014): repeatable, and random enough to defeat a
/// cache.
#[derive(Debug)]
pub struct Random(pub u64);

impl Random {
    /// 64 bits.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Puts the items in any order.
    pub fn shuffle(&mut self, items: &mut [u32]) {
        for last in (1..items.len()).rev() {
            let other = ((u128::from(self.next()) * (last as u128 + 1)) >> 64) as usize;
            items.swap(last, other);
        }
    }
}

#[cfg(test)]
#[path = "traffic_tests.rs"]
mod tests;
