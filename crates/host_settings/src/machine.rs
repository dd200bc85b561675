//! Facts about the machine: this run of it, its CPUs, and programs that place interrupts.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;

use netpolicy::Cpu;
use steer::CpuSet;

/// Programs that change settings of devices by themselves.
const PLACERS: [&str; 3] = ["irqbalance", "tuned", "bpftune"];
/// The distance of a CPU in the device's own node.
const NEAR: u32 = 10;
/// The process id of the parent of the kernel's threads.
const KTHREADD: u32 = 2;
/// Unit of the times in `/proc/stat`, ns (USER_HZ), and the place of the idle time there. The time in
/// which an idle CPU waits for a disk follows.
const TICK: u64 = 10_000_000;
const IDLE: usize = 3;
const CPUS: &str = "/sys/devices/system/cpu";
const NODES: &str = "/sys/devices/system/node";

/// The kernel's id of this run of the machine.
///
/// # Errors
/// The system's error, if `/proc` is not mounted.
pub fn boot_id() -> io::Result<String> {
    text("/proc/sys/kernel/random/boot_id")
}

/// The text of a file without blanks around it.
pub fn text(path: impl AsRef<Path>) -> io::Result<String> {
    Ok(fs::read_to_string(path)?.trim().to_owned())
}

/// The set of CPUs, or of nodes, whose list a file holds.
fn cpu_list(path: impl AsRef<Path>) -> Option<CpuSet> {
    CpuSet::of_list(&text(path).ok()?).ok()
}

/// The CPUs that are online, with their distances from a NUMA node.
///
/// # Errors
/// The system's error, if sysfs is not mounted.
pub fn cpus(node: Option<u32>) -> io::Result<Vec<Cpu>> {
    let distances = node.map(distances).unwrap_or_default();
    let online: CpuSet = netio::cpu::online_cpus()?.into_iter().collect();
    let cpu = |number: usize| {
        let path = format!("{CPUS}/cpu{number}/topology/thread_siblings_list");
        let siblings = cpu_list(path).unwrap_or_default();
        let first = siblings.iter().find(|it| online.contains(*it));
        Cpu {
            number,
            distance: distances.get(&number).copied().unwrap_or(NEAR),
            is_sibling: first.is_some_and(|first| first < number),
        }
    };
    Ok(online.iter().map(cpu).collect())
}

/// The distance of each CPU from a node; empty if the kernel does not say.
fn distances(from: u32) -> BTreeMap<usize, u32> {
    let mut distances = BTreeMap::new();
    let Some(nodes) = cpu_list(format!("{NODES}/online")) else { return distances };
    let row = text(format!("{NODES}/node{from}/distance")).unwrap_or_default();
    for (node, distance) in nodes.iter().zip(row.split_whitespace()) {
        let cpus = cpu_list(format!("{NODES}/node{node}/cpulist")).unwrap_or_default();
        let distance = distance.parse().unwrap_or(NEAR);
        distances.extend(cpus.iter().map(|cpu| (cpu, distance)));
    }
    distances
}

/// The time in which some CPUs were not idle since the start of the machine, ns, summed over these.
///
/// # Errors
/// The system's error, if `/proc` is not mounted.
pub fn busy_time(cpus: &CpuSet) -> io::Result<u64> {
    let stat = fs::read_to_string("/proc/stat")?;
    let ticks = stat.lines().filter_map(|line| {
        let mut words = line.strip_prefix("cpu")?.split_ascii_whitespace();
        let cpu: usize = words.next()?.parse().ok()?;
        if !line.starts_with(&format!("cpu{cpu} ")) || !cpus.contains(cpu) {
            return None;
        }
        let times: Vec<u64> = words.map_while(|word| word.parse().ok()).collect();
        // Of guests the time counts as that of programs already (proc(5)).
        let all: u64 = times.iter().take(8).sum();
        Some(all - times.get(IDLE)? - times.get(IDLE + 1)?)
    });
    Ok(ticks.sum::<u64>() * TICK)
}

/// Programs that run and place interrupts by themselves.
pub fn placers() -> Vec<String> {
    let mut placers = Vec::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(process) = entry.file_name().to_str().and_then(|it| it.parse::<u32>().ok()) else {
            continue;
        };
        let name = text(entry.path().join("comm")).unwrap_or_default();
        if PLACERS.contains(&name.as_str()) {
            placers.push(format!("{name} (process {process})"));
        }
    }
    placers.sort();
    placers
}

/// True if `/proc` shows the kernel's threads, by the numbers that system calls of this process
/// take. Both depend on PID namespaces.
pub fn shows_kernel_threads() -> bool {
    let own = fs::read_link("/proc/self").ok();
    let is_own = own.is_some_and(|own| own.as_os_str() == std::process::id().to_string().as_str());
    is_own && text(format!("/proc/{KTHREADD}/comm")).is_ok_and(|name| name == "kthreadd")
}

/// True if a process is certainly the kernel's thread of a NAPI.
pub fn is_thread_of(process: u32, napi: u32) -> bool {
    let name = text(format!("/proc/{process}/comm")).unwrap_or_default();
    shows_kernel_threads() && name.starts_with("napi/") && name.ends_with(&format!("-{napi}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machine_has_a_cpu_and_a_run() {
        assert!(!cpus(Some(0)).unwrap().is_empty());
        assert_eq!(boot_id().unwrap(), boot_id().unwrap());
        let all: CpuSet = netio::cpu::online_cpus().unwrap().into_iter().collect();
        assert!(busy_time(&all).unwrap() > 0);
        assert_eq!(busy_time(&CpuSet::EMPTY).unwrap(), 0);
        assert!(!is_thread_of(std::process::id(), 8193));
    }
}
