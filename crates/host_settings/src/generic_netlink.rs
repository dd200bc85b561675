//! Requests to families of generic netlink, and the kernel's answers to them.

use std::fmt;
use std::io;

use netlink_packet_core::{
    NLM_F_ACK, NLM_F_DUMP, NLM_F_REQUEST, NLMSG_DONE, NLMSG_ERROR, NetlinkBuffer,
};
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_GENERIC};

/// Headers of netlink and of generic netlink, and of an attribute, bytes.
const HEADER: usize = 16;
const GENERIC: usize = 4;
const ATTRIBUTE: usize = 4;
/// Flag of an attribute that holds others, and the mask of its kind.
const NESTED: u16 = 1 << 15;
const KIND: u16 = (1 << 14) - 1;
/// The family that knows the others, its request, and its attributes (linux/genetlink.h).
const CONTROLLER: u16 = 16;
const GET_FAMILY: u8 = 3;
const FAMILY_ID: u16 = 1;
const FAMILY_NAME: u16 = 2;
const FAMILY_GROUPS: u16 = 7;
const GROUP_NAME: u16 = 1;
const GROUP_ID: u16 = 2;
/// Flag of an error with more about it, and the attribute with its text (linux/netlink.h).
const MORE: u16 = 1 << 9;
const TEXT: u16 = 1;

/// The kernel's answer to what it refuses.
#[derive(Debug)]
pub struct Refusal {
    /// Its error.
    pub error: io::Error,
    /// Its explanation, if it gives one.
    pub text: Option<String>,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.text {
            Some(text) => write!(f, "{}: {text}", self.error),
            None => self.error.fmt(f),
        }
    }
}

impl std::error::Error for Refusal {}

impl From<io::Error> for Refusal {
    fn from(error: io::Error) -> Self {
        Self { error, text: None }
    }
}

/// Attributes of a request.
#[derive(Clone, Debug, Default)]
pub struct Attributes(Vec<u8>);

impl Attributes {
    /// Adds an attribute of one byte.
    #[must_use]
    pub fn byte(self, kind: u16, value: u8) -> Self {
        self.bytes(kind, &[value])
    }

    /// Adds an attribute with a number of 32 bits.
    #[must_use]
    pub fn number(self, kind: u16, value: u32) -> Self {
        self.bytes(kind, &value.to_ne_bytes())
    }

    /// Adds an attribute with a number of 64 bits.
    #[must_use]
    pub fn long(self, kind: u16, value: u64) -> Self {
        self.bytes(kind, &value.to_ne_bytes())
    }

    /// Adds an attribute that holds others.
    #[must_use]
    pub fn nest(self, kind: u16, inner: &Self) -> Self {
        self.bytes(kind | NESTED, &inner.0)
    }

    fn bytes(mut self, kind: u16, value: &[u8]) -> Self {
        // The values of this crate are a few bytes long.
        let length = (ATTRIBUTE + value.len()) as u16;
        self.0.extend_from_slice(&length.to_ne_bytes());
        self.0.extend_from_slice(&kind.to_ne_bytes());
        self.0.extend_from_slice(value);
        self.0.resize(self.0.len().next_multiple_of(ATTRIBUTE), 0);
        self
    }
}

/// Attributes of an answer.
#[derive(Clone, Debug)]
pub struct Answer(Vec<(u16, Vec<u8>)>);

impl Answer {
    fn read(mut bytes: &[u8]) -> Self {
        let mut attributes = Vec::new();
        while let Some(([a, b, c, d], _)) = bytes.split_first_chunk() {
            let length = usize::from(u16::from_ne_bytes([*a, *b]));
            let Some(value) = bytes.get(ATTRIBUTE..length) else { break };
            attributes.push((u16::from_ne_bytes([*c, *d]) & KIND, value.to_vec()));
            bytes = bytes.get(length.next_multiple_of(ATTRIBUTE)..).unwrap_or_default();
        }
        Self(attributes)
    }

    /// The number in an attribute; its size is that of the number.
    pub fn number(&self, kind: u16) -> Option<u64> {
        let (_, value) = self.0.iter().find(|(it, _)| *it == kind)?;
        match value[..] {
            [a] => Some(a.into()),
            [a, b] => Some(u16::from_ne_bytes([a, b]).into()),
            [a, b, c, d] => Some(u32::from_ne_bytes([a, b, c, d]).into()),
            _ => value[..].try_into().ok().map(u64::from_ne_bytes),
        }
    }

    /// As [`Self::number`], if it fits.
    pub fn small<T: TryFrom<u64>>(&self, kind: u16) -> Option<T> {
        self.number(kind)?.try_into().ok()
    }

    /// The attributes inside of one.
    fn nested(&self, kind: u16) -> Option<Self> {
        let (_, value) = self.0.iter().find(|(it, _)| *it == kind)?;
        Some(Self::read(value))
    }

    fn text(&self, kind: u16) -> Option<String> {
        let (_, value) = self.0.iter().find(|(it, _)| *it == kind)?;
        Some(String::from_utf8_lossy(value).trim_end_matches('\0').to_owned())
    }
}

/// A family of generic netlink, with a socket of its own.
#[derive(Debug)]
pub struct Family {
    socket: Socket,
    number: u16,
    version: u8,
    sequence: u32,
}

impl Family {
    /// The family of this name.
    ///
    /// # Errors
    /// The kernel's answer, if it has no such family.
    pub fn new(name: &str, version: u8) -> Result<Self, Refusal> {
        Self::open(name, version).map(|(family, _)| family)
    }

    /// The number of a multicast group of a family, by the names of both.
    ///
    /// # Errors
    /// The kernel's answer, if it has no such family or group.
    pub fn group(family: &str, group: &str) -> Result<u32, Refusal> {
        let (_, answer) = Self::open(family, 1)?;
        let groups = answer.nested(FAMILY_GROUPS).unwrap_or(Answer(Vec::new()));
        let mut groups = groups.0.iter().map(|(_, inner)| Answer::read(inner));
        let found = groups.find(|it| it.text(GROUP_NAME).as_deref() == Some(group));
        let number = found.and_then(|it| it.small(GROUP_ID));
        Ok(number.ok_or(io::Error::from(io::ErrorKind::NotFound))?)
    }

    /// The family of this name, with what the kernel says about it.
    fn open(name: &str, version: u8) -> Result<(Self, Answer), Refusal> {
        let mut socket = Socket::new(NETLINK_GENERIC)?;
        socket.bind_auto()?;
        // The kernel has answered when the request has been sent.
        socket.set_non_blocking(true)?;
        socket.set_cap_ack(true)?;
        socket.set_ext_ack(true)?;
        let mut it = Self { socket, number: CONTROLLER, version: 1, sequence: 0 };
        let name = format!("{name}\0");
        let attributes = Attributes::default().bytes(FAMILY_NAME, name.as_bytes());
        let answers = it.send(GET_FAMILY, NLM_F_ACK, &attributes)?;
        let invalid = || io::Error::from(io::ErrorKind::InvalidData);
        let answer = answers.into_iter().next().ok_or_else(invalid)?;
        it.number = answer.small(FAMILY_ID).ok_or_else(invalid)?;
        it.version = version;
        Ok((it, answer))
    }

    /// Asks about one thing, or changes it.
    ///
    /// # Errors
    /// The kernel's answer.
    pub fn ask(&mut self, command: u8, attributes: &Attributes) -> Result<Vec<Answer>, Refusal> {
        self.send(command, NLM_F_ACK, attributes)
    }

    /// Asks for all things of a kind.
    ///
    /// # Errors
    /// The kernel's answer.
    pub fn list(&mut self, command: u8, attributes: &Attributes) -> Result<Vec<Answer>, Refusal> {
        self.send(command, NLM_F_DUMP, attributes)
    }

    fn send(
        &mut self,
        command: u8,
        flags: u16,
        attributes: &Attributes,
    ) -> Result<Vec<Answer>, Refusal> {
        self.sequence = self.sequence.wrapping_add(1);
        // A request is far shorter than 4 GiB.
        let length = (HEADER + GENERIC + attributes.0.len()) as u32;
        let mut request = length.to_ne_bytes().to_vec();
        request.extend_from_slice(&self.number.to_ne_bytes());
        request.extend_from_slice(&(NLM_F_REQUEST | flags).to_ne_bytes());
        request.extend_from_slice(&self.sequence.to_ne_bytes());
        request.extend_from_slice(&[0; 4]);
        request.extend_from_slice(&[command, self.version, 0, 0]);
        request.extend_from_slice(&attributes.0);
        self.socket.send_to(&request, &SocketAddr::new(0, 0), 0)?;
        let mut answers = Vec::new();
        loop {
            let (bytes, from) = match self.socket.recv_from_full() {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                received => received?,
            };
            // Anybody may send to the socket; only the kernel has port 0.
            if from.port_number() == 0 && self.read(&bytes, &mut answers)? {
                return Ok(answers);
            }
        }
    }

    /// Reads messages. Returns true if one of them is the last.
    fn read(&self, mut bytes: &[u8], answers: &mut Vec<Answer>) -> Result<bool, Refusal> {
        while let Ok(message) = NetlinkBuffer::new_checked(&bytes) {
            let length = (message.length() as usize).max(HEADER);
            let payload = bytes.get(HEADER..length).unwrap_or_default();
            let (kind, flags) = (message.message_type(), message.flags());
            if message.sequence_number() == self.sequence {
                match kind {
                    NLMSG_ERROR | NLMSG_DONE => return end(payload, kind, flags).map(|()| true),
                    _ => answers.push(Answer::read(payload.get(GENERIC..).unwrap_or_default())),
                }
            }
            bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        }
        Ok(false)
    }
}

/// The end of an answer: a code, and for an error the header of the request and a text.
fn end(payload: &[u8], kind: u16, flags: u16) -> Result<(), Refusal> {
    let code = payload.first_chunk().map_or(0, |code| i32::from_ne_bytes(*code));
    if code == 0 {
        return Ok(());
    }
    let skipped = if kind == NLMSG_ERROR { 4 + HEADER } else { 4 };
    let more = payload.get(skipped..).filter(|_| flags & MORE != 0).map(Answer::read);
    let text = more.and_then(|more| more.text(TEXT));
    Err(Refusal { error: io::Error::from_raw_os_error(-code), text })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_read_as_they_were_written() {
        let inner = Attributes::default().number(1, 7);
        let all = Attributes::default().byte(11, 1).nest(1, &inner).long(6, 1 << 40).number(2, 9);
        let answer = Answer::read(&all.0);
        assert_eq!(answer.number(11), Some(1));
        assert_eq!(answer.number(6), Some(1 << 40));
        assert_eq!(answer.small::<u16>(6), None);
        assert_eq!(answer.number(2), Some(9));
        assert_eq!(answer.number(3), None);
        // A message that is cut ends early.
        for length in 0..all.0.len() {
            Answer::read(&all.0[..length]);
        }
    }

    #[test]
    fn a_family_that_the_kernel_lacks_is_refused() {
        let refusal = Family::new("stateway-none", 1).unwrap_err();
        assert_eq!(refusal.error.kind(), io::ErrorKind::NotFound, "{refusal}");
    }

    #[test]
    fn the_group_of_a_family_has_a_number() {
        assert!(Family::group("nlctrl", "notify").unwrap() > 0);
        let refusal = Family::group("nlctrl", "stateway-none").unwrap_err();
        assert_eq!(refusal.error.kind(), io::ErrorKind::NotFound, "{refusal}");
    }
}
