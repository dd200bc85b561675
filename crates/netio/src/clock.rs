//! Time and randomness of the system, for the crates that must not ask for them.

use std::io;
use std::sync::OnceLock;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// Nanoseconds since the first call in this process, monotonic and the same for
/// all threads. It lasts 584 years.
pub fn monotonic_nanoseconds() -> u64 {
    static START: OnceLock<Instant> = OnceLock::new();
    let elapsed = START.get_or_init(Instant::now).elapsed();
    u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX)
}

/// Nanoseconds since 1970-01-01 00:00:00 UTC by the clock of the host, and the seconds by which the
/// local time is ahead of UTC now.
#[expect(
    clippy::disallowed_methods,
    reason = "rules of the operator ask for the time, and hear of it when it is set"
)]
pub fn wall_clock() -> (i64, i32) {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let seconds = libc::time_t::try_from(since.as_secs()).unwrap_or(0);
    // SAFETY: all of the fields are integers and a pointer, which may be zero.
    let mut local: libc::tm = unsafe { std::mem::zeroed() };
    // SAFETY: it reads `seconds` and writes `local`, both of which live during the call. It is the
    // variant that several threads may call at once.
    let known = !unsafe { libc::localtime_r(&raw const seconds, &raw mut local) }.is_null();
    let zone = if known { i32::try_from(local.tm_gmtoff).unwrap_or(0) } else { 0 };
    (i64::try_from(since.as_nanos()).unwrap_or(i64::MAX), zone)
}

/// CPU time of the calling thread since it began, user and system together, in nanoseconds. Unlike
/// elapsed time, it does not count the time in which other programs had the CPU.
pub fn thread_nanoseconds() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel writes `time`, which is borrowed mutably for the call.
    let result = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    debug_assert_eq!(result, 0, "every kernel since 2.6.12 has this clock");
    time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs()
}

/// Lets the sleeps of the calling thread end when their time is over. The kernel may make them 50 us
/// longer otherwise, to join them with others.
pub fn wake_in_time() {
    // Where the kernel refuses it, sleeps are longer than they have to be.
    // SAFETY: no memory is passed.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1_u64, 0_u64, 0_u64, 0_u64) };
}

/// `N` random bytes that are fit for a secret, such as the key of the steering hash. Blocks only in
/// the first moments after boot, until the kernel has entropy.
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
    fn a_thread_that_sleeps_uses_no_cpu() {
        let (first, begun) = (thread_nanoseconds(), Instant::now());
        std::thread::sleep(std::time::Duration::from_millis(20));
        let used = thread_nanoseconds() - first;
        assert!(u128::from(used) < begun.elapsed().as_nanos(), "{used} ns");
    }

    #[test]
    fn the_zone_is_one_that_there_is() {
        let (now, zone) = wall_clock();
        assert!(now > 1_700_000_000_000_000_000, "{now} ns since 1970");
        // From Baker Island to Kiribati.
        assert!((-12 * 3600..=14 * 3600).contains(&zone), "{zone} s");
    }

    #[test]
    fn seeds_differ() {
        assert_ne!(random_seed::<16>().unwrap(), random_seed::<16>().unwrap());
        // One call returns at least 256 bytes; this asks for more.
        assert_ne!(random_seed::<1024>().unwrap()[1000..], [0; 24]);
    }
}
