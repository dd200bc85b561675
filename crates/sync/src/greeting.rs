//! The three datagrams by which two nodes agree about keys.
//!
//! `Hello` carries a fresh value of the first node, `Answer` one of the second, and `Confirm` shows
//! that the first has both. The second node keeps nothing for a `Hello`: it makes its fresh value
//! from the greeting and a secret of its own, and makes it again for the `Confirm`. It changes that
//! secret whenever keys come into force, whichever node began, so no `Confirm` works twice or after
//! later keys.
//!
//! Each greeting also names the [`Bond`] that its sender has, so both nodes know whether it holds.

use std::num::NonZeroU64;

use crate::cursor::Reader;
use crate::epoch::Epoch;
use crate::keys::{CODE_BYTES, Fresh, Key, PreSharedKey, Seed, code, is_code};
use crate::node::{NAME_FIELD_BYTES, NodeId, NodeName};
use crate::packet::{Kind, VERSION};
use crate::refusal::Refusal;

/// Length of each greeting. They are equally long, so an answer amplifies nothing.
pub(crate) const GREETING_BYTES: usize = 2 + 2 + 8 + 4 + 4 + 32 + 8 + NAME_FIELD_BYTES + CODE_BYTES;

/// One process of a node, as it names itself in greetings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Host {
    /// The node.
    pub node: NodeId,
    /// Its name.
    pub name: NodeName,
    /// Drawn when the process starts, so a restart is seen.
    pub boot: u64,
}

/// The number of what two processes have in common: both have the streams of each other from the
/// first frame on. It is derived from the greetings in which it began, so no two processes share
/// one that they do not have with each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bond(NonZeroU64);

impl Bond {
    /// From the first bytes of a key that is used for nothing else.
    fn new(key: &Key) -> Self {
        let word = key[..8].iter().fold(0, |word, byte| word << 8 | u64::from(*byte));
        Self(NonZeroU64::new(word).unwrap_or(NonZeroU64::MIN))
    }
}

/// A greeting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Greeting {
    /// Its kind.
    pub kind: Kind,
    /// Its sender.
    pub host: Host,
    /// Names the sender's end of the keys.
    pub index: u32,
    /// Names the receiver's; 0 in a `Hello`.
    pub echo: u32,
    /// The fresh value of the sender; the same one in its `Hello` and its `Confirm`.
    pub fresh: [u8; 32],
    /// The bond that its sender has.
    pub bond: Option<Bond>,
}

impl Greeting {
    /// All but the code.
    fn content(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(GREETING_BYTES);
        bytes.extend_from_slice(&[VERSION, self.kind as u8]);
        bytes.extend_from_slice(&self.host.node.0.get().to_be_bytes());
        bytes.extend_from_slice(&self.host.boot.to_be_bytes());
        bytes.extend_from_slice(&self.index.to_be_bytes());
        bytes.extend_from_slice(&self.echo.to_be_bytes());
        bytes.extend_from_slice(&self.fresh);
        let bond = self.bond.map_or(0, |Bond(bond)| bond.get());
        bytes.extend_from_slice(&bond.to_be_bytes());
        self.host.name.encode(&mut bytes);
        bytes
    }

    fn sign(&self, key: &Key, context: &[u8]) -> Vec<u8> {
        let mut bytes = self.content();
        let code = code(key, &[&bytes, context]);
        bytes.extend_from_slice(&code);
        bytes
    }

    /// Reads a greeting of a kind. Its code has still to be checked.
    fn decode(kind: Kind, datagram: &[u8]) -> Option<(Self, [u8; CODE_BYTES])> {
        let mut reader = Reader(datagram.get(2..)?);
        let node = NodeId(reader.u16()?.try_into().ok()?);
        let boot = reader.u64()?;
        let (index, echo) = (reader.u32()?, reader.u32()?);
        let fresh = reader.array()?;
        let bond = NonZeroU64::new(reader.u64()?).map(Bond);
        let name = NodeName::decode(&mut reader)?;
        let code = reader.array()?;
        reader.end()?;
        let is_fit = (kind == Kind::Hello) == (echo == 0);
        let host = Host { node, name, boot };
        is_fit.then_some((Self { kind, host, index, echo, fresh, bond }, code))
    }
}

/// Keys that are agreed with a peer.
#[derive(Debug)]
pub(crate) struct Agreed {
    /// The peer.
    pub peer: Host,
    /// The keys.
    pub epoch: Epoch,
    /// The bond of both from now on.
    pub bond: Bond,
    /// True if both had it before. If not, both begin anew.
    pub is_kept: bool,
}

/// Makes greetings and checks those of others.
pub(crate) struct Greeter {
    /// This node.
    pub host: Host,
    /// The peer, if it is known beforehand.
    pub expected: Option<NodeId>,
    secret: PreSharedKey,
    /// Vouches for `Hello` and `Answer`.
    greeting: Key,
    fresh: Fresh,
    bond: Option<Bond>,
    /// Key from which the fresh values in answers are derived.
    answering: Key,
}

impl Greeter {
    pub fn new(
        (node, name): (NodeId, NodeName),
        expected: Option<NodeId>,
        secret: PreSharedKey,
        seed: Seed,
    ) -> Self {
        let mut fresh = Fresh::new(seed);
        let host = Host { node, name, boot: fresh.draw_u64() };
        let greeting = secret.derive(b"", "greeting");
        let answering = fresh.draw();
        Self { host, expected, secret, greeting, fresh, bond: None, answering }
    }

    /// The bond with the peer.
    pub fn bond(&self) -> Option<Bond> {
        self.bond
    }

    /// Notes the bond with the process of the peer whose keys have come into force. All answers
    /// from before are void.
    pub fn renew(&mut self, bond: Bond) {
        self.bond = Some(bond);
        self.answering = self.fresh.draw();
    }

    /// A random number below `bound`, to spread repetitions.
    pub fn jitter(&mut self, bound: u64) -> u64 {
        self.fresh.draw_u64() % bound.max(1)
    }

    /// The key for digests in a likeness: the same for both ends until one restarts.
    pub fn likeness_key(&self, peer: &Host) -> Key {
        let mut boots = [self.host.boot, peer.boot];
        boots.sort_unstable();
        self.secret.derive(boots.map(u64::to_be_bytes).as_flattened(), "likeness")
    }

    /// A greeting that nobody has answered yet.
    pub fn hello(&mut self) -> (Greeting, Vec<u8>) {
        let drawn = self.fresh.draw_u64();
        let hello = Greeting {
            kind: Kind::Hello,
            host: self.host.clone(),
            index: (drawn as u32).max(1),
            echo: 0,
            fresh: *self.fresh.draw(),
            bond: self.bond,
        };
        let datagram = hello.sign(&self.greeting, b"");
        (hello, datagram)
    }

    /// Reads a greeting, and refuses those of other nodes than the peer.
    pub fn read(
        &self,
        kind: Kind,
        datagram: &[u8],
    ) -> Result<(Greeting, [u8; CODE_BYTES]), Refusal> {
        let (greeting, code) = Greeting::decode(kind, datagram).ok_or(Refusal::Malformed)?;
        let node = greeting.host.node;
        if kind == Kind::Hello {
            self.vouch(&greeting, b"", &code)?;
        }
        if node == self.host.node {
            Err(Refusal::OwnNode)
        } else if self.expected.is_some_and(|expected| expected != node) {
            Err(Refusal::OtherNode)
        } else {
            Ok((greeting, code))
        }
    }

    fn vouch(
        &self,
        greeting: &Greeting,
        context: &[u8],
        code: &[u8; CODE_BYTES],
    ) -> Result<(), Refusal> {
        match is_code(&self.greeting, &[&greeting.content(), context], code) {
            true => Ok(()),
            false => Err(Refusal::Forged),
        }
    }

    /// The answer to a `Hello` as this node would give it now.
    fn answer_to(&self, hello: &Greeting) -> Greeting {
        let asked = Greeting { kind: Kind::Hello, echo: 0, ..hello.clone() };
        let made_of = |label: &[u8]| code(&self.answering, &[label, &asked.content()]);
        let (first, second, index) = (made_of(b"a"), made_of(b"b"), made_of(b"i"));
        let mut fresh = [0; 32];
        fresh[..CODE_BYTES].copy_from_slice(&first);
        fresh[CODE_BYTES..].copy_from_slice(&second);
        let drawn = u32::from_be_bytes([index[0], index[1], index[2], index[3]]).max(2);
        // Different at both ends, so a datagram that comes back to its sender is known.
        let index = if drawn == hello.index { drawn ^ 1 } else { drawn };
        let (host, bond) = (self.host.clone(), self.bond);
        Greeting { kind: Kind::Answer, host, index, echo: hello.index, fresh, bond }
    }

    /// Answers a `Hello`.
    pub fn answer(&self, hello: &Greeting) -> Vec<u8> {
        self.answer_to(hello).sign(&self.greeting, &hello.fresh)
    }

    /// Takes an `Answer` to `hello`. Returns the `Confirm` and the keys, which come into force
    /// when the peer uses them.
    pub fn confirm(
        &self,
        hello: &Greeting,
        answer: &Greeting,
        code: &[u8; CODE_BYTES],
    ) -> Result<(Vec<u8>, Agreed), Refusal> {
        if answer.echo != hello.index {
            return Err(Refusal::StaleGreeting);
        }
        self.vouch(answer, &hello.fresh, code)?;
        let keys = self.agree(hello, answer);
        let confirm = Greeting { kind: Kind::Confirm, echo: answer.index, ..hello.clone() };
        let datagram = confirm.sign(&keys.confirm, b"");
        let epoch = Epoch::new(hello.index, answer.index, &keys.forth, &keys.back);
        let (bond, is_kept) = keys.bond;
        Ok((datagram, Agreed { peer: answer.host.clone(), epoch, bond, is_kept }))
    }

    /// Takes a `Confirm`. The keys are in force: the caller calls [`Greeter::renew`].
    pub fn accept(&self, confirm: &Greeting, code: &[u8; CODE_BYTES]) -> Result<Agreed, Refusal> {
        let answer = self.answer_to(confirm);
        if answer.index != confirm.echo {
            return Err(Refusal::StaleGreeting);
        }
        let keys = self.agree(confirm, &answer);
        if !is_code(&keys.confirm, &[&confirm.content(), b""], code) {
            return Err(Refusal::Forged);
        }
        let epoch = Epoch::new(answer.index, confirm.index, &keys.back, &keys.forth);
        let (bond, is_kept) = keys.bond;
        Ok(Agreed { peer: confirm.host.clone(), epoch, bond, is_kept })
    }

    /// Derives the keys of which both ends have made fresh values.
    fn agree(&self, first: &Greeting, second: &Greeting) -> Keys {
        let hello = Greeting { kind: Kind::Hello, echo: 0, ..first.clone() };
        let mut salt = hello.content();
        salt.extend_from_slice(&second.content());
        let derive = |label| self.secret.derive(&salt, label);
        let bond = match first.bond {
            Some(bond) if second.bond == first.bond => (bond, true),
            _ => (Bond::new(&derive("bond")), false),
        };
        Keys { forth: derive("forth"), back: derive("back"), confirm: derive("confirm"), bond }
    }
}

/// The keys of one exchange of greetings.
struct Keys {
    /// Of the node that said hello.
    forth: Key,
    /// Of the node that answered.
    back: Key,
    /// Vouches for the `Confirm`.
    confirm: Key,
    /// The bond, and whether both had it before.
    bond: (Bond, bool),
}

#[cfg(test)]
#[path = "greeting_tests.rs"]
mod tests;
