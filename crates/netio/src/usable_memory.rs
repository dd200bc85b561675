//! The amount of memory that this process may use.

use std::fs::read_to_string;
use std::io;
use std::path::{Path, PathBuf};

/// Bytes that this process may use: the machine's memory, or the least limit of the process's
/// control groups (cgroups(7), both versions). A group that can not be read counts as without
/// limit.
///
/// # Errors
/// An error if proc(5) is not mounted, or has another form.
pub fn usable_memory() -> io::Result<u64> {
    let machine = of_machine(&read_to_string("/proc/meminfo")?, "MemTotal:")
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "/proc/meminfo: no MemTotal"))?;
    let limits = own_groups().into_iter().filter_map(|group| group.limit());
    Ok(limits.min().map_or(machine, |limit| limit.min(machine)))
}

/// Memory that this process can still take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FreeMemory {
    /// How much, bytes.
    pub bytes: u64,
    /// The control group that leaves no more, and the file with its limit; `None`: the machine has
    /// no more.
    pub group: Option<(PathBuf, &'static str)>,
}

/// The least of what programs can still take, as the kernel reckons, and of what the control groups
/// of this process leave; `None` where proc(5) is not mounted.
pub fn free_memory() -> Option<FreeMemory> {
    let meminfo = read_to_string("/proc/meminfo").ok()?;
    let bytes = of_machine(&meminfo, "MemAvailable:")?;
    Some(least_free(bytes, &own_groups()))
}

fn least_free(machine: u64, groups: &[Group]) -> FreeMemory {
    let of_groups = groups.iter().filter_map(|group| {
        let named = (group.name.clone(), group.version.limit);
        Some(FreeMemory { bytes: group.left()?, group: Some(named) })
    });
    let machine = FreeMemory { bytes: machine, group: None };
    of_groups.chain([machine.clone()]).min_by_key(|free| free.bytes).unwrap_or(machine)
}

fn of_machine(meminfo: &str, name: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix(name))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib << 10)
}

/// The names of the files of control groups.
struct Version {
    limit: &'static str,
    taken: &'static str,
    /// Begins the line of `memory.stat` that counts pages of files which are not in use.
    files: &'static str,
}

const FIRST: Version = Version {
    limit: "memory.limit_in_bytes",
    taken: "memory.usage_in_bytes",
    files: "total_inactive_file ",
};
const SECOND: Version =
    Version { limit: "memory.max", taken: "memory.current", files: "inactive_file " };

/// A control group that may bound memory.
struct Group {
    directory: PathBuf,
    /// As the kernel names it.
    name: PathBuf,
    version: &'static Version,
}

impl Group {
    fn number(&self, file: &str) -> Option<u64> {
        read_to_string(self.directory.join(file)).ok()?.trim().parse().ok()
    }

    /// `None` without one.
    fn limit(&self) -> Option<u64> {
        self.number(self.version.limit)
    }

    /// The memory that the group leaves; `None` without a limit. The kernel takes pages of files back before it
    /// refuses memory.
    fn left(&self) -> Option<u64> {
        let (most, taken) = (self.limit()?, self.number(self.version.taken)?);
        let details = read_to_string(self.directory.join("memory.stat")).unwrap_or_default();
        let files = details.lines().find_map(|line| line.strip_prefix(self.version.files));
        let files: u64 = files.and_then(|bytes| bytes.parse().ok()).unwrap_or(0);
        Some(most.saturating_sub(taken.saturating_sub(files)))
    }
}

/// The groups of this process and all groups that these are in.
fn own_groups() -> Vec<Group> {
    let groups = read_to_string("/proc/self/cgroup").unwrap_or_default();
    let mounts = read_to_string("/proc/self/mountinfo").unwrap_or_default();
    all_groups(&groups, &mounts)
}

fn all_groups(groups: &str, mounts: &str) -> Vec<Group> {
    mounts.lines().filter_map(|mount| groups_of(groups, mount)).flatten().collect()
}

/// Those of one mounted hierarchy.
fn groups_of(groups: &str, mount: &str) -> Option<Vec<Group>> {
    let (place, kind) = mount.split_once(" - ")?;
    let mut place = place.split(' ').skip(3);
    let (root, directory) = (place.next()?, place.next()?);
    let mut kind = kind.split(' ');
    let is_memory = |list: &str| list.split(',').any(|word| word == "memory");
    let version = match kind.next()? {
        "cgroup2" => &SECOND,
        "cgroup" if is_memory(kind.nth(1)?) => &FIRST,
        _ => return None,
    };
    // Fields of a line: number, controllers, path. Version 2 has no controllers.
    let group = groups.lines().find_map(|line| {
        let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
        let is_first = version.limit == FIRST.limit;
        let is_it = if is_first { is_memory(controllers) } else { controllers.is_empty() };
        is_it.then_some(path)
    })?;
    // A container may see only its own part of the hierarchy.
    let group = Path::new(group);
    let below = group.strip_prefix(root).or_else(|_| group.strip_prefix("/")).ok()?;
    let all = below.ancestors().map(|below| Group {
        directory: Path::new(directory).join(below),
        name: Path::new("/").join(below),
        version,
    });
    Some(all.collect())
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
        let least_limit = |groups: &str, mounts: &str| {
            all_groups(groups, mounts).iter().filter_map(Group::limit).min()
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
    fn free_is_what_the_fullest_group_leaves_without_pages_of_files() {
        const MIB: u64 = 1 << 20;
        let directory = tempfile::tempdir().unwrap();
        let here = directory.path().to_str().unwrap();
        create_dir_all(directory.path().join("outer/inner")).unwrap();
        let set = |file: &str, text: &str| write(directory.path().join(file), text).unwrap();
        let groups = "3:memory:/outer/inner\n0::/outer/inner\n";
        let v2 = format!("30 23 0:26 / {here} rw - cgroup2 cgroup rw\n");
        let v1 = format!("31 23 0:27 / {here} rw - cgroup cgroup rw,memory\n");
        let free = |mount: &str| least_free(1000 * MIB, &all_groups(groups, mount));
        let of_machine = FreeMemory { bytes: 1000 * MIB, group: None };
        let of = |limit| FreeMemory { bytes: 200 * MIB, group: Some(("/outer".into(), limit)) };
        // The group itself has no limit; half of what the one around it has taken are pages of files.
        set("outer/inner/memory.max", "max\n");
        set("outer/inner/memory.current", "100\n");
        assert_eq!(free(&v2), of_machine);
        set("outer/memory.max", &(300 * MIB).to_string());
        set("outer/memory.current", &(200 * MIB).to_string());
        set("outer/memory.stat", &format!("inactive_file {}\n", 100 * MIB));
        assert_eq!(free(&v2), of("memory.max"));
        assert_eq!(free(&v1), of_machine);
        set("outer/memory.limit_in_bytes", &(300 * MIB).to_string());
        set("outer/memory.usage_in_bytes", &(200 * MIB).to_string());
        set("outer/memory.stat", &format!("total_inactive_file {}\n", 100 * MIB));
        assert_eq!(free(&v1), of("memory.limit_in_bytes"));
    }

    #[test]
    fn the_machine_has_some() {
        let total = |meminfo: &str| of_machine(meminfo, "MemTotal:");
        assert_eq!(total("MemFree: 1 kB\nMemTotal:       1024 kB\n"), Some(1 << 20));
        assert_eq!(total("MemTotal: many"), None);
        assert!(usable_memory().unwrap() > 1 << 20);
        assert!(free_memory().unwrap().bytes > 0);
    }
}
