//! The amount of memory that this process may use.

use std::fs::read_to_string;
use std::io;
use std::path::Path;

/// Bytes that this process may use: the machine's memory, or the least limit of the process's
/// control groups (cgroups(7), both versions). A group that can not be read counts as without
/// limit.
///
/// # Errors
/// An error if proc(5) is not mounted, or has another form.
pub fn usable_memory() -> io::Result<u64> {
    let machine = machine_memory(&read_to_string("/proc/meminfo")?)
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "/proc/meminfo: no MemTotal"))?;
    let groups = read_to_string("/proc/self/cgroup").unwrap_or_default();
    let mounts = read_to_string("/proc/self/mountinfo").unwrap_or_default();
    Ok(least_limit(&groups, &mounts).map_or(machine, |limit| limit.min(machine)))
}

fn machine_memory(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib << 10)
}

/// The least limit of the groups of a process and of all groups around them.
fn least_limit(groups: &str, mounts: &str) -> Option<u64> {
    mounts.lines().filter_map(|mount| limit_of(groups, mount)).min()
}

/// The least limit in one mounted hierarchy.
fn limit_of(groups: &str, mount: &str) -> Option<u64> {
    let (place, kind) = mount.split_once(" - ")?;
    let mut place = place.split(' ').skip(3);
    let (root, directory) = (place.next()?, place.next()?);
    let mut kind = kind.split(' ');
    let is_memory = |list: &str| list.split(',').any(|word| word == "memory");
    let (file, is_first) = match kind.next()? {
        "cgroup2" => ("memory.max", false),
        "cgroup" if is_memory(kind.nth(1)?) => ("memory.limit_in_bytes", true),
        _ => return None,
    };
    // Fields of a line: number, controllers, path. Version 2 has no controllers.
    let group = groups.lines().find_map(|line| {
        let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
        let is_it = if is_first { is_memory(controllers) } else { controllers.is_empty() };
        is_it.then_some(path)
    })?;
    // A container may see only its own part of the hierarchy.
    let group = Path::new(group);
    let below = group.strip_prefix(root).or_else(|_| group.strip_prefix("/")).ok()?;
    let limit = |group: &Path| {
        let text = read_to_string(Path::new(directory).join(group).join(file)).ok()?;
        text.trim().parse::<u64>().ok()
    };
    below.ancestors().filter_map(limit).min()
}

#[cfg(test)]
mod tests {
    use std::fs::{create_dir_all, write};

    use super::*;

    #[test]
    fn a_process_has_no_more_than_the_least_of_its_groups() {
        let directory = tempfile::tempdir().unwrap();
        let here = directory.path().to_str().unwrap();
        let inner = directory.path().join("outer/inner");
        create_dir_all(&inner).unwrap();
        let set = |group: &str, file: &str, limit: &str| {
            write(directory.path().join(group).join(file), limit).unwrap();
        };
        let v2 = |root: &str| format!("30 23 0:26 {root} {here} rw - cgroup2 cgroup rw\n");
        let v1 = |root: &str| {
            format!("31 23 0:27 {root} {here} rw,relatime shared:9 - cgroup cgroup rw,cpu,memory\n")
        };
        let groups = "12:cpuset:/other\n3:cpu,memory:/outer/inner\n0::/outer/inner\n";
        assert_eq!(least_limit(groups, &(v1("/") + &v2("/"))), None);
        set("outer/inner", "memory.max", "max\n");
        assert_eq!(least_limit(groups, &v2("/")), None);
        set("outer", "memory.max", "1000000\n");
        assert_eq!(least_limit(groups, &v2("/")), Some(1_000_000));
        set("outer/inner", "memory.limit_in_bytes", "900000\n");
        assert_eq!(least_limit(groups, &v2("/")), Some(1_000_000));
        assert_eq!(least_limit(groups, &(v2("/") + &v1("/"))), Some(900_000));
        // Only the group around the process is mounted.
        set("", "memory.max", "800000\n");
        assert_eq!(least_limit(groups, &v2("/outer/inner")), Some(800_000));
        for odd in ["", "x", "30 23 0:26 / - cgroup2", "30 23 0:26 / /proc rw - proc proc rw"] {
            assert_eq!(least_limit(groups, odd), None, "{odd:?}");
        }
    }

    #[test]
    fn the_machine_has_some() {
        assert_eq!(machine_memory("MemFree: 1 kB\nMemTotal:       1024 kB\n"), Some(1 << 20));
        assert_eq!(machine_memory("MemTotal: many"), None);
        assert!(usable_memory().unwrap() > 1 << 20);
    }
}
