//! A link that loses, delays, overtakes, repeats and changes datagrams, and brings back old ones.

use std::collections::BTreeMap;

use super::random::Random;

/// Old datagrams that an attacker may bring back, besides greetings, which are never forgotten.
const KEPT: usize = 64;
/// The kind of datagrams that are no greetings.
const SEALED: u8 = 4;

/// How bad the link is.
#[derive(Clone, Copy, Debug)]
pub struct Weather {
    pub loss_percent: u64,
    pub repeat_percent: u64,
    pub attack_percent: u64,
    pub delay_us: (u64, u64),
}

impl Weather {
    pub const FINE: Self =
        Self { loss_percent: 0, repeat_percent: 0, attack_percent: 0, delay_us: (100, 100) };

    pub fn any(random: &mut Random) -> Self {
        let shortest = random.between(50, 2_000);
        Self {
            loss_percent: random.between(0, 30),
            repeat_percent: random.between(0, 10),
            attack_percent: random.between(0, 10),
            delay_us: (shortest, shortest + random.between(0, 20_000)),
        }
    }
}

/// A datagram on its way.
pub struct Flying {
    pub to: usize,
    pub datagram: Vec<u8>,
    /// False if the link has made it itself.
    pub is_honest: bool,
}

pub struct Link {
    pub weather: Weather,
    /// For each receiver, the time until which nothing arrives, in microseconds.
    pub cut_until: [u64; 2],
    flying: BTreeMap<(u64, u64), Flying>,
    sent: u64,
    old: Vec<(usize, Vec<u8>)>,
    greetings: Vec<(usize, Vec<u8>)>,
}

impl Link {
    pub fn new(weather: Weather) -> Self {
        let (flying, old, greetings) = (BTreeMap::new(), Vec::new(), Vec::new());
        Self { weather, cut_until: [0; 2], flying, sent: 0, old, greetings }
    }

    pub fn send(&mut self, now: u64, random: &mut Random, to: usize, datagram: &[u8]) {
        if datagram[1] != SEALED {
            self.greetings.push((to, datagram.to_vec()));
        } else if self.old.len() < KEPT {
            self.old.push((to, datagram.to_vec()));
        } else {
            let at = random.between(0, KEPT as u64 - 1) as usize;
            self.old[at] = (to, datagram.to_vec());
        }
        if now >= self.cut_until[to] && !random.percent(self.weather.loss_percent) {
            self.fly(now, random, to, datagram.to_vec(), true);
            if random.percent(self.weather.repeat_percent) {
                self.fly(now, random, to, datagram.to_vec(), true);
            }
        }
        if random.percent(self.weather.attack_percent) {
            self.attack(now, random);
        }
    }

    fn fly(&mut self, now: u64, random: &mut Random, to: usize, datagram: Vec<u8>, honest: bool) {
        let (shortest, longest) = self.weather.delay_us;
        let arrival = now + random.between(shortest, longest);
        self.sent += 1;
        self.flying.insert((arrival, self.sent), Flying { to, datagram, is_honest: honest });
    }

    /// An old datagram comes back, whole, cut or changed, perhaps to its own sender.
    fn attack(&mut self, now: u64, random: &mut Random) {
        let is_greeting = self.old.is_empty() || random.percent(30);
        let old = if is_greeting { &self.greetings } else { &self.old };
        let Some(last) = old.len().checked_sub(1) else { return };
        let (mut to, mut datagram) = old[random.between(0, last as u64) as usize].clone();
        match random.between(0, 3) {
            0 => {}
            1 => to = 1 - to,
            2 => datagram.truncate(random.between(0, datagram.len() as u64) as usize),
            _ => {
                // Half of the changes are in the header.
                let most = if random.percent(50) { 14 } else { datagram.len() as u64 };
                let bit = random.between(0, most * 8 - 1) as usize;
                datagram[bit / 8] ^= 1 << (bit % 8);
            }
        }
        self.fly(now, random, to, datagram, false);
    }

    /// When the next datagram arrives.
    pub fn next(&self) -> u64 {
        self.flying.keys().next().map_or(u64::MAX, |(at, _)| *at)
    }

    pub fn arrive(&mut self, now: u64) -> Option<Flying> {
        let first = self.flying.first_entry().filter(|entry| entry.key().0 <= now)?;
        Some(first.remove())
    }
}
