//! The settings by which two peers see whether they steer and decide alike.

use std::collections::BTreeSet;

use crate::cursor::Reader;
use crate::keys::{CODE_BYTES, HashSecret, Key, code};

/// Longest text that shows the value of an aspect to the peer's operator, bytes.
const TEXT_BYTES_MAX: usize = 60;

/// Something in which peers may differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Aspect {
    /// The steering hash.
    HashKind,
    /// Its secret.
    HashSecret,
    /// The number of buckets.
    Buckets,
    /// Links on which rules translate sources: flows across them are steered by other fields.
    TranslatingLinks,
    /// How fragments are steered.
    FragmentMode,
    /// How packets in tunnels are steered.
    TunnelMode,
    /// Zones of links. A flow has the same bucket in all zones.
    Zones,
    /// The ruleset.
    Rules,
}

/// The consequence of a difference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Consequence {
    /// The peer would look for a connection in another bucket, so it gets none.
    KeepsApart,
    /// An operator should know.
    Warns,
}

impl Aspect {
    /// All of them, in the order of their discriminants.
    pub const ALL: [Self; 8] = [
        Self::HashKind,
        Self::HashSecret,
        Self::Buckets,
        Self::TranslatingLinks,
        Self::FragmentMode,
        Self::TunnelMode,
        Self::Zones,
        Self::Rules,
    ];

    /// Its name in the status.
    pub const fn name(self) -> &'static str {
        match self {
            Self::HashKind => "hash kind",
            Self::HashSecret => "hash secret",
            Self::Buckets => "buckets",
            Self::TranslatingLinks => "links that translate",
            Self::FragmentMode => "fragment mode",
            Self::TunnelMode => "tunnel mode",
            Self::Zones => "zones",
            Self::Rules => "rules",
        }
    }

    /// The consequence of a difference.
    pub const fn consequence(self) -> Consequence {
        match self {
            Self::Zones | Self::Rules => Consequence::Warns,
            _ => Consequence::KeepsApart,
        }
    }
}

/// How a node steers and decides. Peers compare these values when they meet, as keyed digests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Likeness {
    /// Name of the steering hash.
    pub hash_kind: String,
    /// Its secret.
    pub hash_secret: HashSecret,
    /// Number of buckets.
    pub buckets: u32,
    /// Names of the links on which rules translate sources.
    pub translating_links: BTreeSet<String>,
    /// Name of the mode for fragments.
    pub fragment_mode: String,
    /// Name of the mode for tunnels.
    pub tunnel_mode: String,
    /// The zones of links, in a form that is the same on both nodes if they are.
    pub zones: Vec<u8>,
    /// The ruleset, in such a form.
    pub rules: Vec<u8>,
}

impl Likeness {
    /// The values as the peer gets them: digests, and texts of those that are no secret.
    pub(crate) fn prove(&self, key: &Key) -> Proof {
        let links = self.translating_links.iter().map(String::as_str).collect::<Vec<_>>();
        let text = |aspect| match aspect {
            Aspect::HashKind => self.hash_kind.clone(),
            Aspect::HashSecret | Aspect::Zones | Aspect::Rules => String::new(),
            Aspect::Buckets => self.buckets.to_string(),
            // No link has a comma and a space in its name: Linux forbids spaces.
            Aspect::TranslatingLinks => links.join(", "),
            Aspect::FragmentMode => self.fragment_mode.clone(),
            Aspect::TunnelMode => self.tunnel_mode.clone(),
        };
        Proof(Aspect::ALL.map(|aspect| {
            let text = text(aspect);
            let value = match aspect {
                Aspect::HashSecret => self.hash_secret.bytes(),
                Aspect::Zones => &self.zones[..],
                Aspect::Rules => &self.rules[..],
                _ => text.as_bytes(),
            };
            let digest = code(key, &[b"likeness", &[aspect as u8], value]);
            Proven { digest, text: shorten(&text) }
        }))
    }
}

/// The beginning of a text that fits, in printable ASCII.
fn shorten(text: &str) -> String {
    let shown = text.chars().map(|it| if it == ' ' || it.is_ascii_graphic() { it } else { '?' });
    shown.take(TEXT_BYTES_MAX).collect()
}

/// The part of a [`Likeness`] that a peer gets, in the order of [`Aspect::ALL`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Proof([Proven; Aspect::ALL.len()]);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Proven {
    digest: [u8; CODE_BYTES],
    text: String,
}

impl Proof {
    /// Most bytes that it takes.
    pub const BYTES_MAX: usize = Aspect::ALL.len() * (CODE_BYTES + 1 + TEXT_BYTES_MAX);

    pub fn encode(&self, bytes: &mut Vec<u8>) {
        for Proven { digest, text } in &self.0 {
            bytes.extend_from_slice(digest);
            bytes.push(text.len() as u8);
            bytes.extend_from_slice(text.as_bytes());
        }
    }

    pub fn decode(reader: &mut Reader<'_>) -> Option<Self> {
        let proven = Aspect::ALL.map(|_| {
            let digest = reader.array()?;
            let length = usize::from(reader.u8()?);
            let text = std::str::from_utf8(reader.bytes(length)?).ok()?.to_owned();
            let is_fit = length <= TEXT_BYTES_MAX && shorten(&text) == text;
            is_fit.then_some(Proven { digest, text })
        });
        proven.into_iter().collect::<Option<Vec<_>>>()?.try_into().ok().map(Self)
    }

    /// The aspects in which the peer is not like this node.
    pub fn compare(&self, peer: &Self) -> Vec<Mismatch> {
        let pairs = self.0.iter().zip(&peer.0).zip(Aspect::ALL);
        let differing = pairs.filter(|((here, there), _)| here.digest != there.digest);
        let mismatch = |((here, there), aspect): ((&Proven, &Proven), _)| Mismatch {
            aspect,
            here: here.text.clone(),
            there: there.text.clone(),
        };
        differing.map(mismatch).collect()
    }
}

/// A difference between two peers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mismatch {
    /// In what they differ.
    pub aspect: Aspect,
    /// The value here, cut to 60 characters; empty for a secret and for what is no short text.
    pub here: String,
    /// The value at the peer, in printable ASCII.
    pub there: String,
}

#[cfg(test)]
#[path = "likeness_tests.rs"]
mod tests;
