//! Checks that there is enough memory to load a ruleset, before it is read.

use netio::{FreeMemory, free_memory};

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
    free_memory().map_or(Ok(()), |free| check(&free, bytes, held))
}

fn check(free: &FreeMemory, bytes: u64, held: u64) -> Result<(), String> {
    let needed = bytes.saturating_mul(TIMES);
    if needed - held <= free.bytes {
        return Ok(());
    }
    let of = match &free.group {
        None => "of this host: end other programs".to_owned(),
        Some((name, limit)) => {
            format!("of the control group {}: raise its {limit}", name.display())
        }
    };
    Err(format!(
        "loading it may take {} MiB, {TIMES} times its length, and there are {} MiB {of}, or load a \
         shorter one",
        needed.div_ceil(1 << 20),
        (free.bytes + held) >> 20,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn a_ruleset_is_refused_that_there_is_no_memory_for() {
        let host = FreeMemory { bytes: 1000 * MIB, group: None };
        assert_eq!(check(&host, 48 * MIB, 0), Ok(()));
        assert_eq!(check(&host, 200 * MIB, 200 * MIB), Ok(()), "five times are still to come");
        assert_eq!(
            check(&host, 200 * MIB, 0).unwrap_err(),
            "loading it may take 1200 MiB, 6 times its length, and there are 1000 MiB of this \
             host: end other programs, or load a shorter one"
        );
        let group = FreeMemory { bytes: 200 * MIB, group: Some(("/outer".into(), "memory.max")) };
        let message = check(&group, 48 * MIB, 0).unwrap_err();
        let expected = "288 MiB, 6 times its length, and there are 200 MiB of the control group \
                        /outer: raise its memory.max";
        assert!(message.contains(expected), "{message}");
    }
}
