//! Secrets and the keys that are derived from them (HKDF with SHA-256, RFC 5869).

use std::fmt;

use hkdf::Hkdf;
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;
use zeroize::Zeroizing;

pub(crate) const KEY_BYTES: usize = 32;
/// Bytes of the codes that vouch for greetings, and of digests in a likeness.
pub(crate) const CODE_BYTES: usize = 16;
/// In front of all labels, so that no other protocol derives the same keys.
const PROTOCOL: &[u8] = b"stateway sync 1 ";

/// A key that is overwritten when it is dropped.
pub(crate) type Key = Zeroizing<[u8; KEY_BYTES]>;

/// Random bytes that the owner draws anew for each session. Nobody else may know them.
#[derive(Clone)]
pub struct Seed(Zeroizing<[u8; KEY_BYTES]>);

impl Seed {
    /// From bytes of a random source that is fit for keys.
    pub fn new(bytes: [u8; KEY_BYTES]) -> Self {
        Self(Zeroizing::new(bytes))
    }
}

/// The secret that all nodes of a cluster share. It is overwritten when it is dropped.
#[derive(Clone)]
pub struct PreSharedKey(Zeroizing<Vec<u8>>);

/// A pre-shared key that can be guessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the pre-shared key has {bytes} bytes: use {min} random bytes or more", min = PreSharedKey::BYTES_MIN)]
pub struct KeyTooShort {
    /// Its length.
    pub bytes: usize,
}

impl PreSharedKey {
    /// Fewest bytes.
    pub const BYTES_MIN: usize = 16;

    /// Takes over the bytes of a key.
    ///
    /// # Errors
    /// [`KeyTooShort`] for fewer than [`PreSharedKey::BYTES_MIN`] bytes.
    pub fn new(bytes: &[u8]) -> Result<Self, KeyTooShort> {
        match bytes.len() {
            short if short < Self::BYTES_MIN => Err(KeyTooShort { bytes: short }),
            _ => Ok(Self(Zeroizing::new(bytes.to_vec()))),
        }
    }

    /// The secret of the steering hash for nodes that share this key: all of them steer alike.
    pub fn hash_secret(&self) -> HashSecret {
        HashSecret::new(self.derive_16("steering"))
    }

    /// The secret by which nodes that share this key name connections.
    pub fn name_secret(&self) -> [u8; 16] {
        self.derive_16("names of connections")
    }

    fn derive_16(&self, label: &str) -> [u8; 16] {
        let key = self.derive(&[], label);
        let mut secret = [0; 16];
        secret.copy_from_slice(&key[..16]);
        secret
    }

    /// Derives a key. `salt` holds the values that make it fresh, `label` its use.
    pub(crate) fn derive(&self, salt: &[u8], label: &str) -> Key {
        let mut info = PROTOCOL.to_vec();
        info.extend_from_slice(label.as_bytes());
        let mut key = Key::default();
        #[expect(clippy::expect_used, reason = "HKDF refuses only more than 8,160 bytes")]
        Hkdf::<Sha256>::new(Some(salt), &self.0).expand(&info, &mut *key).expect("32 bytes");
        key
    }
}

impl fmt::Debug for PreSharedKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PreSharedKey")
    }
}

/// The secret of the steering hash. Peers need the same one to agree about buckets.
#[derive(Clone, PartialEq, Eq)]
pub struct HashSecret(Zeroizing<[u8; 16]>);

impl HashSecret {
    /// From its bytes.
    pub fn new(bytes: [u8; 16]) -> Self {
        Self(Zeroizing::new(bytes))
    }

    /// Its bytes.
    pub fn bytes(&self) -> &[u8; 16] {
        &self.0
    }
}

impl fmt::Debug for HashSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HashSecret")
    }
}

fn mac(key: &Key, parts: &[&[u8]]) -> Hmac<Sha256> {
    #[expect(clippy::expect_used, reason = "HMAC takes keys of any length")]
    let mut mac = Hmac::<Sha256>::new_from_slice(&**key).expect("a key");
    for part in parts {
        mac.update(part);
    }
    mac
}

/// A code that only owners of the key can make: HMAC with SHA-256, cut to 16 bytes. The parts have
/// fixed lengths, or the last one alone has not.
pub(crate) fn code(key: &Key, parts: &[&[u8]]) -> [u8; CODE_BYTES] {
    let whole = mac(key, parts).finalize().into_bytes();
    let mut code = [0; CODE_BYTES];
    code.copy_from_slice(&whole[..CODE_BYTES]);
    code
}

/// Compares a code in a time that does not depend on where it differs.
pub(crate) fn is_code(key: &Key, parts: &[&[u8]], given: &[u8; CODE_BYTES]) -> bool {
    mac(key, parts).verify_truncated_left(given).is_ok()
}

/// Values that nobody else can foresee, made from a seed.
pub(crate) struct Fresh {
    key: Key,
    drawn: u64,
}

impl Fresh {
    pub fn new(Seed(key): Seed) -> Self {
        Self { key, drawn: 0 }
    }

    pub fn draw(&mut self) -> Key {
        self.drawn += 1;
        let mut value = Key::default();
        let parts: [&[u8]; 2] = [b"fresh", &self.drawn.to_be_bytes()];
        value.copy_from_slice(&mac(&self.key, &parts).finalize().into_bytes());
        value
    }

    pub fn draw_u64(&mut self) -> u64 {
        let value = self.draw();
        value[..8].iter().fold(0, |value, byte| value << 8 | u64::from(*byte))
    }
}
