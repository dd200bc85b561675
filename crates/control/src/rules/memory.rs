//! Checks that there is enough memory to load a ruleset, before it is read.

use std::fs;
use std::path::{Path, PathBuf};

/// The most memory that loading takes for each byte of a ruleset, including its text.
const TIMES: u64 = 6;
/// Length from which on a ruleset is checked, in bytes.
const SHORT: u64 = 1 << 20;

/// Refuses a ruleset of this many `bytes` if loading it may take more memory than there is. `held`
/// of the bytes are in memory already.
///
/// # Errors
/// The text gives the memory that loading would take, the memory that is available, and a remedy.
pub fn check_memory(bytes: u64, held: u64) -> Result<(), String> {
    if bytes < SHORT {
        return Ok(());
    }
    let there = There::find(Path::new("/proc"), Path::new("/sys/fs/cgroup"));
    there.map_or(Ok(()), |there| there.check(bytes, held))
}

/// Memory that is available.
#[derive(Debug, PartialEq, Eq)]
struct There {
    bytes: u64,
    /// The owner of the memory, and a way to get more.
    of: String,
}

impl There {
    /// The smaller of the host's available memory and the least rest in this process's control
    /// groups.
    fn find(proc: &Path, groups: &Path) -> Option<Self> {
        let host = of_host(&fs::read_to_string(proc.join("meminfo")).ok()?)
            .map(|bytes| Self { bytes, of: "of this host: end other programs".to_owned() });
        let own = fs::read_to_string(proc.join("self/cgroup")).unwrap_or_default();
        let own = own.lines().find_map(|line| line.strip_prefix("0::/")).map(PathBuf::from);
        let mut all: Vec<Self> = host.into_iter().collect();
        for group in own.iter().flat_map(|own| own.ancestors()) {
            all.extend(of_group(&groups.join(group)).map(|bytes| {
                let name = group.display();
                Self { bytes, of: format!("of the control group /{name}: raise its memory.max") }
            }));
        }
        all.into_iter().min_by_key(|there| there.bytes)
    }

    fn check(&self, bytes: u64, held: u64) -> Result<(), String> {
        let needed = bytes.saturating_mul(TIMES);
        if needed - held <= self.bytes {
            return Ok(());
        }
        let mib = |bytes: u64| bytes.div_ceil(1 << 20);
        Err(format!(
            "loading it may take {} MiB, {TIMES} times its length, and there are {} MiB {}, or \
             load a shorter one",
            mib(needed),
            (self.bytes + held) >> 20,
            self.of
        ))
    }
}

/// Memory that programs can still take, by the kernel's estimate.
fn of_host(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(kib << 10)
}

/// Memory that a control group has left; `None` if it has no limit. Pages of files count as free,
/// because the kernel takes them back before it refuses memory.
fn of_group(group: &Path) -> Option<u64> {
    let number = |file: &str| -> Option<u64> {
        fs::read_to_string(group.join(file)).ok()?.trim().parse().ok()
    };
    let (most, taken) = (number("memory.max")?, number("memory.current")?);
    let details = fs::read_to_string(group.join("memory.stat")).unwrap_or_default();
    let files = details.lines().find_map(|line| line.strip_prefix("inactive_file "));
    let files: u64 = files.and_then(|bytes| bytes.parse().ok()).unwrap_or(0);
    Some(most.saturating_sub(taken.saturating_sub(files)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn a_ruleset_is_refused_that_there_is_no_memory_for() {
        let directory = tempfile::tempdir().unwrap();
        let (proc, groups) = (directory.path().join("proc"), directory.path().join("groups"));
        let write = |path: PathBuf, text: &str| {
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write(proc.join("meminfo"), "MemTotal: 4096000 kB\nMemAvailable:   1024000 kB\n");
        let host = There::find(&proc, &groups).unwrap();
        assert_eq!(host.bytes, 1000 * MIB);
        assert_eq!(host.check(48 * MIB, 0), Ok(()));
        assert_eq!(host.check(200 * MIB, 200 * MIB), Ok(()), "five times are still to come");
        assert_eq!(
            host.check(200 * MIB, 0).unwrap_err(),
            "loading it may take 1200 MiB, 6 times its length, and there are 1000 MiB of this \
             host: end other programs, or load a shorter one"
        );
        // The group itself has no limit. The group around it has one, and half of the memory that
        // it uses are pages of files.
        write(proc.join("self/cgroup"), "0::/outer/inner\n");
        write(groups.join("outer/inner/memory.max"), "max\n");
        write(groups.join("outer/inner/memory.current"), "100\n");
        write(groups.join("outer/memory.max"), &(300 * MIB).to_string());
        write(groups.join("outer/memory.current"), &(200 * MIB).to_string());
        write(groups.join("outer/memory.stat"), &format!("anon 1\ninactive_file {}\n", 100 * MIB));
        let group = There::find(&proc, &groups).unwrap();
        assert_eq!(group.bytes, 200 * MIB);
        let told = group.check(48 * MIB, 0).unwrap_err();
        assert!(told.contains("288 MiB") && told.contains("200 MiB of the control group /outer:"));
    }

    #[test]
    fn what_this_host_has_is_found() {
        let there = There::find(Path::new("/proc"), Path::new("/sys/fs/cgroup")).unwrap();
        assert!(there.bytes > 0);
    }
}
