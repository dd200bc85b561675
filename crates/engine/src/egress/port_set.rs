//! Some of the ports of a bridge.

use netio::PortId;

/// Ports that a set can hold: the first so many. A bridge has no more.
pub const MAX_PORTS: usize = 256;

/// Some of the first [`MAX_PORTS`] ports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortSet([u64; MAX_PORTS / 64]);

impl PortSet {
    pub fn is_empty(self) -> bool {
        self == Self::default()
    }

    /// In their order.
    pub fn iter(self) -> impl Iterator<Item = PortId> {
        (0..).zip(self.0).flat_map(|(place, bits)| {
            (0..64).filter(move |bit| bits >> bit & 1 != 0).map(move |bit| PortId(64 * place + bit))
        })
    }

    /// Adds a port, if a set can hold it.
    pub fn insert(&mut self, PortId(port): PortId) {
        if let Some(bits) = self.0.get_mut(usize::from(port) / 64) {
            *bits |= 1 << (port % 64);
        }
    }
}

impl FromIterator<PortId> for PortSet {
    /// Leaves out those that a set can not hold.
    fn from_iter<I: IntoIterator<Item = PortId>>(ports: I) -> Self {
        let mut set = Self::default();
        ports.into_iter().for_each(|port| set.insert(port));
        set
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(ports: &[u16]) -> PortSet {
        ports.iter().copied().map(PortId).collect()
    }

    #[test]
    fn a_set_has_what_was_put_in_and_only_ports_of_a_bridge() {
        assert!(set(&[]).is_empty() && set(&[256, u16::MAX]).is_empty());
        let ports: Vec<_> = set(&[255, 64, 0, 63, 256, 64]).iter().map(|port| port.0).collect();
        assert_eq!(ports, [0, 63, 64, 255]);
    }
}
