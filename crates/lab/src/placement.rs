//! The CPUs of each part of a lab.

use std::fmt;

/// A set of CPUs, by number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CpuSet(Vec<u32>);

impl CpuSet {
    /// The CPUs with these numbers. With an empty set, nothing is pinned.
    pub fn new(cpus: impl IntoIterator<Item = u32>) -> Self {
        let mut cpus: Vec<u32> = cpus.into_iter().collect();
        cpus.sort_unstable();
        cpus.dedup();
        Self(cpus)
    }

    /// True if nothing is pinned.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The form of `rps_cpus`: hexadecimal words of 32 bits, highest first.
    pub(crate) fn mask(&self) -> String {
        let mut words = vec![0_u32; self.0.last().map_or(1, |cpu| *cpu as usize / 32 + 1)];
        for cpu in &self.0 {
            words[*cpu as usize / 32] |= 1 << (cpu % 32);
        }
        let words: Vec<String> = words.iter().rev().map(|word| format!("{word:08x}")).collect();
        words.join(",")
    }
}

/// The form of `taskset -c`: numbers separated by commas.
impl fmt::Display for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cpus: Vec<String> = self.0.iter().map(u32::to_string).collect();
        f.write_str(&cpus.join(","))
    }
}

/// The CPUs of the gateway and of the end points.
///
/// Programs are pinned with `taskset`. A kernel gateway has no program: a veth pair delivers a
/// packet in a softirq on the CPU of its sender. So a generator on CPU 1 would do the forwarding
/// there too. With `steer_softirq` each veth end gets an `rps_cpus` with the CPUs of its own side,
/// so that receive packet steering moves the packets to them. [`Placement::split`] is the placement
/// of the kernel's reference figures for packet rates: generator on CPU 1, softirq of the gateway
/// on CPU 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// CPUs of the gateway's program or softirq.
    pub gateway: CpuSet,
    /// CPUs of the client's and the server's programs.
    pub endpoints: CpuSet,
    /// True to make the kernel follow by receive packet steering. Needs real root.
    pub steer_softirq: bool,
}

impl Placement {
    /// The scheduler places everything.
    #[must_use]
    pub fn free() -> Self {
        Self { gateway: CpuSet::new([]), endpoints: CpuSet::new([]), steer_softirq: false }
    }

    /// The gateway on CPU 0, the end points on CPU 1, the softirqs with them.
    #[must_use]
    pub fn split() -> Self {
        Self { gateway: CpuSet::new([0]), endpoints: CpuSet::new([1]), steer_softirq: true }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_is_written_as_the_two_tools_want_it() {
        for (cpus, list, mask) in [
            (vec![], "", "00000000"),
            (vec![0], "0", "00000001"),
            (vec![3, 1, 1], "1,3", "0000000a"),
            (vec![0, 31, 32, 69], "0,31,32,69", "00000020,00000001,80000001"),
        ] {
            let set = CpuSet::new(cpus);
            assert_eq!((set.to_string().as_str(), set.mask().as_str()), (list, mask));
        }
    }
}
