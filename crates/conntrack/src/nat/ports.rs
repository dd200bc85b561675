//! The ports that a rule allows, or that are like another.

use super::Ports;

impl Ports {
    /// All ports of programs without privileges.
    pub const UNPRIVILEGED: Self = Self { first: 1024, last: u16::MAX };

    /// The ports that a source may get in the place of its own, if a rule names none. As with the
    /// kernel, a port that programs with privileges have, or credentials of theirs (rsh), is
    /// changed to another of these.
    pub(crate) const fn like(port: u16) -> Self {
        match port {
            0..512 => Self { first: 1, last: 511 },
            512..1024 => Self { first: 600, last: 1023 },
            1024.. => Self::UNPRIVILEGED,
        }
    }

    /// True for a port of the range.
    #[inline]
    pub const fn contains(self, port: u16) -> bool {
        self.first <= port && port <= self.last
    }

    /// Number of ports.
    pub(crate) const fn len(self) -> u32 {
        self.last as u32 - self.first as u32 + 1
    }

    /// The port number `at`, counted round.
    pub(crate) const fn nth_round(self, at: u32) -> u16 {
        // It lies within the range.
        self.first + (at % self.len()) as u16
    }

    /// The distance between two tries that come to every port once. Any run of them is spread over
    /// all of the range, so it finds free ports also where those in use lie together.
    pub(super) const fn step(self) -> u32 {
        // The golden ratio leaves the evenest distances (Knuth, "The Art of Computer Programming"
        // 6.4). A step without a common factor comes to every port.
        let mut step = ((self.len() as u64 * 40_503) >> 16) as u32;
        while !are_coprime(step, self.len()) {
            step += 1;
        }
        step
    }
}

/// True if two numbers have no common factor.
const fn are_coprime(one: u32, other: u32) -> bool {
    let (mut one, mut other) = (one, other);
    while other > 0 {
        (one, other) = (other, one % other);
    }
    one == 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_order_has_every_port_of_a_range_once() {
        for last in (1000..1100).chain([2000, 5095, u16::MAX]) {
            let range = Ports::new(1000, last).unwrap();
            let step = range.step();
            let spread =
                |from: u32| (from..from + range.len()).map(move |at| range.nth_round(at * step));
            let mut ports: Vec<u16> = spread(17).collect();
            ports.sort_unstable();
            assert_eq!(ports, (1000..=last).collect::<Vec<_>>());
            // A hundredth of all tries comes to every tenth of the range.
            let few = spread(5).take(range.len() as usize / 100);
            let mut tenths: Vec<u32> =
                few.map(|port| u32::from(port - 1000) * 10 / range.len()).collect();
            tenths.sort_unstable();
            tenths.dedup();
            assert!(range.len() < 2000 || tenths.len() == 10, "{last}: {tenths:?}");
        }
    }

    #[test]
    fn ports_stay_among_their_like() {
        let ends = |port| {
            let like = Ports::like(port);
            (like.first(), like.last())
        };
        assert_eq!((ends(0), ends(511)), ((1, 511), (1, 511)));
        assert_eq!((ends(512), ends(1023)), ((600, 1023), (600, 1023)));
        assert_eq!((ends(1024), ends(65535)), ((1024, 65535), (1024, 65535)));
        assert_eq!(Ports::UNPRIVILEGED.len(), 64512);
    }
}
