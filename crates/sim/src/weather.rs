//! Links lose, repeat, delay and change the packets that they carry.

use lab::Random;

/// The behaviour of a link. Chances are in percent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Weather {
    /// It is lost.
    pub loss: usize,
    /// It comes twice.
    pub repeat: usize,
    /// It takes much longer, so others overtake it.
    pub late: usize,
    /// A byte of it changes.
    pub damage: usize,
    /// Shortest time on the way, microseconds.
    pub delay: usize,
}

impl Weather {
    /// Nothing but a delay.
    pub const FINE: Self = Self { loss: 0, repeat: 0, late: 0, damage: 0, delay: 100 };

    /// Bad weather between gateways.
    pub fn bad(random: &mut Random) -> Self {
        Self {
            loss: random.one_of(&[0, 2, 10, 30]),
            repeat: random.one_of(&[0, 5, 20]),
            late: random.one_of(&[0, 5, 20]),
            damage: random.one_of(&[0, 0, 5]),
            delay: random.between(50, 5_000),
        }
    }

    /// Weather between a host and the gateways, where TCP has to get on.
    pub fn of_hosts(random: &mut Random) -> Self {
        Self {
            loss: random.one_of(&[0, 0, 1]),
            repeat: random.one_of(&[0, 0, 1]),
            late: random.one_of(&[0, 0, 1]),
            damage: 0,
            delay: random.between(50, 3_000),
        }
    }

    /// The times after which something arrives, in microseconds; none if it is lost.
    pub fn carry(&self, random: &mut Random) -> Vec<u64> {
        let happens = |random: &mut Random, percent: usize| random.between(0, 99) < percent;
        if happens(random, self.loss) {
            return Vec::new();
        }
        let copies = 1 + usize::from(happens(random, self.repeat));
        let arrivals = (0..copies).map(|_| {
            let late =
                if happens(random, self.late) { random.between(0, 4 * self.delay) } else { 0 };
            // Without this, nothing overtakes anything.
            (self.delay + late) as u64
        });
        arrivals.collect()
    }

    /// Changes a byte, or not. True if it did.
    pub fn damage(&self, bytes: &mut [u8], random: &mut Random) -> bool {
        if bytes.is_empty() || random.between(0, 99) >= self.damage {
            return false;
        }
        let place = random.between(0, bytes.len() - 1);
        bytes[place] ^= random.between(1, 255) as u8;
        true
    }
}
