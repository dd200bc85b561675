//! Time and randomness from the system, for the crates that may not ask for them.

use std::io;
use std::sync::OnceLock;
use std::time::Instant;

/// Nanoseconds since the first call in this process, monotonic and the same for
/// all threads. It lasts 584 years.
pub fn monotonic_nanoseconds() -> u64 {
    static START: OnceLock<Instant> = OnceLock::new();
    let elapsed = START.get_or_init(Instant::now).elapsed();
    u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX)
}

/// `N` random bytes fit for a secret, such as the key of the steering hash.
/// Blocks only in the first moments after boot, until the kernel has entropy.
///
/// # Errors
/// The system's error when getrandom(2) is not available (a sandbox forbids it).
pub fn random_seed<const N: usize>() -> io::Result<[u8; N]> {
    let mut seed = [0; N];
    let mut filled = 0;
    while filled < N {
        let rest = &mut seed[filled..];
        // SAFETY: the kernel writes at most `rest.len()` bytes to `rest`, which is
        // borrowed mutably for the duration of the call.
        let count = unsafe { libc::getrandom(rest.as_mut_ptr().cast(), rest.len(), 0) };
        match usize::try_from(count) {
            Ok(count) => filled += count,
            Err(_) => {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
            }
        }
    }
    Ok(seed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_never_runs_backwards() {
        let first = monotonic_nanoseconds();
        assert!(monotonic_nanoseconds() >= first);
    }

    #[test]
    fn seeds_differ() {
        assert_ne!(random_seed::<16>().unwrap(), random_seed::<16>().unwrap());
        // More than the 256 bytes that one call is sure to return.
        assert_ne!(random_seed::<1024>().unwrap()[1000..], [0; 24]);
    }
}
