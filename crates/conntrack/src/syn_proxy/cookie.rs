//! SYN cookies: the state of a half-open connection, kept by its opener (RFC 4987 section
//! 3.6).

use std::hash::Hasher;

use flow::{HashKey, KeyedPacket, Timestamp};
use siphasher::sip::SipHasher24;

/// A cookie is valid in the step in which it was made and in the next: 64 to 128 s.
const STEP_NS: u64 = 64_000_000_000;

/// The largest segment sizes that a cookie can express, bytes: those of common links (Ethernet,
/// PPPoE, IPv6 tunnels, wireless networks, jumbo frames).
const SEGMENT_SIZES: [u16; 8] = [64, 536, 1220, 1360, 1400, 1440, 1460, 8940];
/// Bits of a cookie that hold the place in [`SEGMENT_SIZES`] and, in the lowest one, the parity
/// of the step. All others are the hash.
const PLAIN_BITS: u32 = 4;

/// Makes and verifies cookies.
///
/// Of the 32 bits of a sequence number 28 are a keyed hash. An attacker who guesses opens one
/// connection in 2^27 tries, because two initial numbers fit an acknowledgment. It costs the
/// server one SYN.
#[derive(Clone, Copy, Debug)]
pub struct Cookies {
    key: HashKey,
}

impl Cookies {
    /// Cookies under the secret of the process. They have a derived key and use the stronger of
    /// the two usual SipHashes, because everybody can see them.
    pub fn new(secret: HashKey) -> Self {
        let derive = |name: &[u8]| {
            let mut hasher = SipHasher24::new_with_keys(secret.0, secret.1);
            hasher.write(name);
            hasher.finish()
        };
        Self { key: HashKey(derive(b"SYN cookie, first half"), derive(b"SYN cookie, second half")) }
    }

    /// The sequence number of the answer to a SYN. `opener` is the flow with the sender of the
    /// SYN, `initial` the sequence number of the SYN, `segment_size` the largest segment that
    /// its sender accepts, bytes.
    ///
    /// `promise` is the number of the promise: a cookie is valid for that promise only.
    pub fn make(
        &self,
        opener: &KeyedPacket,
        initial: u32,
        segment_size: u16,
        promise: u64,
        now: Timestamp,
    ) -> u32 {
        let step = now.as_nanos() / STEP_NS;
        let place = SEGMENT_SIZES.iter().rposition(|&size| size <= segment_size).unwrap_or(0);
        self.cookie(opener, initial, place as u32, promise, step)
    }

    /// The largest segment that the opener accepts, rounded down, if `cookie` was made for it
    /// and is young enough. For less than 64 bytes it is 64.
    pub fn check(
        &self,
        cookie: u32,
        opener: &KeyedPacket,
        initial: u32,
        promise: u64,
        now: Timestamp,
    ) -> Option<u16> {
        let step = now.as_nanos() / STEP_NS;
        let was_odd = u64::from(cookie & 1);
        let made = step.checked_sub((step ^ was_odd) & 1)?;
        let place = (cookie >> 1) % SEGMENT_SIZES.len() as u32;
        (self.cookie(opener, initial, place, promise, made) == cookie)
            .then(|| SEGMENT_SIZES[place as usize])
    }

    fn cookie(
        &self,
        opener: &KeyedPacket,
        initial: u32,
        place: u32,
        promise: u64,
        step: u64,
    ) -> u32 {
        let KeyedPacket { key, sender } = opener;
        let mut hasher = SipHasher24::new_with_keys(self.key.0, self.key.1);
        for end in [key.endpoint(*sender), key.endpoint(sender.opposite())] {
            hasher.write(&end.address);
            hasher.write_u16(end.port);
        }
        hasher.write_u16(key.zone.0);
        hasher.write_u8(key.family as u8);
        hasher.write_u8(place as u8);
        hasher.write_u32(initial);
        hasher.write_u64(step);
        hasher.write_u64(promise);
        let plain = place << 1 | (step & 1) as u32;
        (hasher.finish() as u32) << PLAIN_BITS | plain
    }
}

#[cfg(test)]
#[path = "cookie_tests.rs"]
mod tests;
