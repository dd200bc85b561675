//! The messages as bytes.
//!
//! A frame is its length, the number of descriptors that come with it, its kind, and a body. The
//! length counts what is behind it.

use flow::codec::{DecodeError, Reader, Write};

/// The number of an interface that is missing.
pub const MISSING: u32 = 0;
/// The version of the messages.
pub const VERSION: u16 = 1;
/// Bytes in front of a body: the length, the number of descriptors and the kind.
pub const HEAD_BYTES: usize = 6;
/// The longest frame without its length field, in bytes: a lot of changes of each worker, in which each
/// connection has the beginnings of messages for its helper.
pub const FRAME_BYTES_MAX: usize = 32 << 20;
/// The longest text in a message, in bytes. Longer ones are cut.
const TEXT_BYTES_MAX: usize = 4096;
/// Most interfaces of an offer: more than a gateway may have.
const INTERFACES_MAX: usize = 4096;

/// A message of one of the two processes. The *giver* runs, and the *taker* is to go on for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// The taker speaks the versions in this range. The text is its release.
    Hello(u16, u16, String),
    /// The facts about the giver that the taker has to share.
    Offer(Box<Offer>),
    /// The claim of the interface of this port; one descriptor.
    Claim(u16),
    /// The listening control socket and its lock; two descriptors.
    Control,
    /// The taker is as the giver, and takes records.
    Begin,
    /// Records, which the owner of the session writes and reads.
    Records(Vec<u8>),
    /// The giver wants to know when the taker has applied all that came before.
    Mark(u32),
    /// The taker has.
    Reached(u32),
    /// The giver has received no more packets for so many nanoseconds, and has sent all records. So many
    /// queues follow.
    Frozen(u64, u16),
    /// A receive queue of this port, and where it stands; one descriptor.
    Queue(u16, Position),
    /// The taker has all, so many connections, and waits for the word.
    Ready(u64),
    /// The taker receives packets from now on.
    Go,
    /// It does.
    Running,
    /// The sender goes no further, for this reason. The giver goes on as if nothing had been.
    Stop(String),
    /// Settings of the giver, or elements of sets, have changed since its offer, and nothing changes them
    /// any more. The taker asks for them once more. The number is the fingerprint of the giver's rules.
    Changed(Option<u128>),
    /// A setting that the taker does not go on with, or elements, and the reason.
    NotCarried(String),
}

/// A receive queue and where it stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// The number of the next frame.
    pub sequence: u64,
    /// Every packet has a virtio header in front.
    pub offload: bool,
    /// The number of slots and the next one; `None` for a queue without a ring.
    pub ring: Option<(u32, u32)>,
    /// The queue is that of the lane for latency. Releases that have no lanes do not tell it.
    pub is_latency: bool,
}

/// A giver as the taker has to know it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    /// The release of the giver.
    pub release: String,
    /// A bridge or a router, in the word of the configuration.
    pub mode: String,
    /// The number of its network namespace, if the kernel tells it.
    pub network: Option<u64>,
    /// The interfaces, by port.
    pub interfaces: Vec<Interface>,
    /// The secret of the steering hash.
    pub secret: [u8; 16],
    /// The fingerprint of the rules that are in force, if there are any.
    pub rules: Option<u128>,
    /// The part of the gateway in a pair, if it is in one.
    pub role: Option<OfferedRole>,
}

/// An interface of a giver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// Its name.
    pub name: String,
    /// Its number in the kernel, [`MISSING`] while it is.
    pub index: u32,
    /// The number of its receive queues.
    pub queues: u16,
}

/// The part of a giver in a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OfferedRole {
    /// It is the active one.
    pub is_active: bool,
    /// The highest term that it knows.
    pub term: u32,
}

/// Why bytes are no message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeMessageError {
    /// The frame is longer than any.
    #[error("a frame of {0} bytes is longer than any")]
    TooLong(u32),
    /// There is no such kind.
    #[error("there is no message of kind {0}")]
    Kind(u8),
    /// The message does not come with so many descriptors.
    #[error("a message of kind {0} does not come with {1} descriptors")]
    Descriptors(u8, u8),
    /// The body is not that of such a message.
    #[error("a message of kind {0} is damaged: {1}")]
    Body(u8, DecodeError),
}

/// True if a taker that speaks this range understands the giver.
pub const fn is_version_known(oldest: u16, newest: u16) -> bool {
    oldest <= VERSION && VERSION <= newest
}

/// The part of a frame in front of its body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// The length of the body.
    pub body_bytes: usize,
    /// The number of descriptors that come with the frame.
    pub descriptors: u8,
    kind: u8,
}

impl Head {
    /// Reads the first bytes of a frame.
    ///
    /// # Errors
    /// [`DecodeMessageError`]; the stream can not be read any further.
    pub fn decode(bytes: [u8; HEAD_BYTES]) -> Result<Self, DecodeMessageError> {
        let [a, b, c, d, descriptors, kind] = bytes;
        let length = u32::from_be_bytes([a, b, c, d]);
        let rest = HEAD_BYTES - size_of::<u32>();
        let body_bytes =
            (length as usize).checked_sub(rest).filter(|_| length as usize <= FRAME_BYTES_MAX);
        let body_bytes = body_bytes.ok_or(DecodeMessageError::TooLong(length))?;
        let expected = DESCRIPTORS.get(usize::from(kind)).ok_or(DecodeMessageError::Kind(kind))?;
        if descriptors != *expected {
            return Err(DecodeMessageError::Descriptors(kind, descriptors));
        }
        Ok(Self { body_bytes, descriptors, kind })
    }
}

/// Descriptors that come with a message, by its kind.
const DESCRIPTORS: [u8; 16] = [0, 0, 1, 2, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0];

impl Message {
    /// The number of the kind.
    const fn kind(&self) -> u8 {
        match self {
            Self::Hello(..) => 0,
            Self::Offer(_) => 1,
            Self::Claim(_) => 2,
            Self::Control => 3,
            Self::Begin => 4,
            Self::Records(_) => 5,
            Self::Mark(_) => 6,
            Self::Reached(_) => 7,
            Self::Frozen(..) => 8,
            Self::Queue(..) => 9,
            Self::Ready(_) => 10,
            Self::Go => 11,
            Self::Running => 12,
            Self::Stop(_) => 13,
            Self::Changed(_) => 14,
            Self::NotCarried(_) => 15,
        }
    }

    /// Its name.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Hello(..) => "hello",
            Self::Offer(_) => "offer",
            Self::Claim(_) => "claim",
            Self::Control => "control",
            Self::Begin => "begin",
            Self::Records(_) => "records",
            Self::Mark(_) => "mark",
            Self::Reached(_) => "reached",
            Self::Frozen(..) => "frozen",
            Self::Queue(..) => "queue",
            Self::Ready(_) => "ready",
            Self::Go => "go",
            Self::Running => "running",
            Self::Stop(_) => "stop",
            Self::Changed(_) => "changed",
            Self::NotCarried(_) => "not carried",
        }
    }

    /// The number of descriptors that come with it.
    pub const fn descriptors(&self) -> u8 {
        DESCRIPTORS[self.kind() as usize]
    }

    /// Appends the frame. Records have to be shorter than [`FRAME_BYTES_MAX`].
    pub fn encode(&self, to: &mut Vec<u8>) {
        let start = to.len();
        to.u32(0);
        to.u8(self.descriptors());
        to.u8(self.kind());
        match self {
            Self::Hello(oldest, newest, release) => {
                to.u16(*oldest);
                to.u16(*newest);
                write_text(to, release);
            }
            Self::Offer(offer) => offer.encode(to),
            Self::Claim(port) => to.u16(*port),
            Self::Records(bytes) => to.bytes(bytes),
            Self::Mark(number) | Self::Reached(number) => to.u32(*number),
            Self::Frozen(nanos, queues) => {
                to.u64(*nanos);
                to.u16(*queues);
            }
            Self::Queue(port, position) => {
                to.u16(*port);
                to.u64(position.sequence);
                to.flag(position.offload);
                to.option(position.ring, |to, (slots, next)| {
                    to.u32(slots);
                    to.u32(next);
                });
                if position.is_latency {
                    to.flag(true);
                }
            }
            Self::Ready(connections) => to.u64(*connections),
            Self::Stop(text) | Self::NotCarried(text) => write_text(to, text),
            Self::Changed(rules) => write_rules(to, *rules),
            Self::Control | Self::Begin | Self::Go | Self::Running => {}
        }
        let length = (to.len() - start - size_of::<u32>()) as u32;
        to[start..start + size_of::<u32>()].copy_from_slice(&length.to_be_bytes());
    }

    /// Reads the body of a frame.
    ///
    /// # Errors
    /// [`DecodeMessageError::Body`].
    pub fn decode(head: Head, body: &[u8]) -> Result<Self, DecodeMessageError> {
        Self::read(head.kind, body).map_err(|error| DecodeMessageError::Body(head.kind, error))
    }

    fn read(kind: u8, body: &[u8]) -> Result<Self, DecodeError> {
        let mut from = Reader::new(body);
        let message = match kind {
            0 => Self::Hello(from.u16()?, from.u16()?, read_text(&mut from)?),
            1 => Self::Offer(Box::new(Offer::read(&mut from)?)),
            2 => Self::Claim(from.u16()?),
            3 => Self::Control,
            4 => Self::Begin,
            5 => Self::Records(from.rest().to_vec()),
            6 => Self::Mark(from.u32()?),
            7 => Self::Reached(from.u32()?),
            8 => Self::Frozen(from.u64()?, from.u16()?),
            9 => {
                let port = from.u16()?;
                let (sequence, offload) = (from.u64()?, from.flag()?);
                let ring = from.option(|from| Ok((from.u32()?, from.u32()?)))?;
                let is_latency = !from.is_empty() && from.flag()?;
                Self::Queue(port, Position { sequence, offload, ring, is_latency })
            }
            10 => Self::Ready(from.u64()?),
            11 => Self::Go,
            12 => Self::Running,
            13 => Self::Stop(read_text(&mut from)?),
            14 => Self::Changed(from.option(Reader::u128)?),
            15 => Self::NotCarried(read_text(&mut from)?),
            _ => return Err(DecodeError::Kind(kind)),
        };
        match from.is_empty() {
            true => Ok(message),
            false => Err(DecodeError::Impossible("bytes behind the end")),
        }
    }
}

impl Offer {
    fn encode(&self, to: &mut Vec<u8>) {
        write_text(to, &self.release);
        write_text(to, &self.mode);
        to.option(self.network, Write::u64);
        to.u16(self.interfaces.len() as u16);
        for interface in &self.interfaces {
            write_text(to, &interface.name);
            to.u32(interface.index);
            to.u16(interface.queues);
        }
        to.bytes(&self.secret);
        write_rules(to, self.rules);
        to.option(self.role, |to, role| {
            to.flag(role.is_active);
            to.u32(role.term);
        });
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let (release, mode) = (read_text(from)?, read_text(from)?);
        let network = from.option(Reader::u64)?;
        let count = usize::from(from.u16()?);
        if count > INTERFACES_MAX {
            return Err(DecodeError::Impossible("more interfaces than a gateway has"));
        }
        let mut interfaces = Vec::new();
        for _ in 0..count {
            let name = read_text(from)?;
            interfaces.push(Interface { name, index: from.u32()?, queues: from.u16()? });
        }
        let secret = from.array()?;
        let rules = from.option(Reader::u128)?;
        let role =
            from.option(|from| Ok(OfferedRole { is_active: from.flag()?, term: from.u32()? }))?;
        Ok(Self { release, mode, network, interfaces, secret, rules, role })
    }
}

fn write_rules(to: &mut Vec<u8>, fingerprint: Option<u128>) {
    to.option(fingerprint, |to, rules| to.bytes(&rules.to_be_bytes()));
}

fn write_text(to: &mut Vec<u8>, text: &str) {
    let mut end = text.len().min(TEXT_BYTES_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    to.varint(end as u64);
    to.bytes(&text.as_bytes()[..end]);
}

fn read_text(from: &mut Reader<'_>) -> Result<String, DecodeError> {
    let text = std::str::from_utf8(from.prefixed()?);
    let text = text.map_err(|_| DecodeError::Impossible("a text"))?;
    match text.len() <= TEXT_BYTES_MAX {
        true => Ok(text.to_owned()),
        false => Err(DecodeError::Impossible("a text that is too long")),
    }
}

#[cfg(test)]
#[path = "message_tests.rs"]
pub(super) mod tests;
