//! The number of descriptors that this process may have open.

use std::io;

/// The largest number of descriptors that a gateway asks for. Some systems allow a thousand
/// million, and programs that it starts may look at each.
const MOST: u64 = 1 << 16;

/// The number of descriptors that the process may have open now (`RLIMIT_NOFILE`, see
/// getrlimit(2)).
///
/// # Errors
/// The system's error; none is known.
pub fn descriptor_limit() -> io::Result<u64> {
    Ok(limit()?.rlim_cur)
}

/// Raises the limit as far as the system allows, up to 65536, and never lowers it. Returns the
/// limit.
///
/// # Errors
/// The system's error; the limit stays.
pub fn raise_descriptor_limit() -> io::Result<u64> {
    let mut limit = limit()?;
    let wanted = limit.rlim_max.min(MOST);
    if wanted > limit.rlim_cur {
        limit.rlim_cur = wanted;
        // SAFETY: the kernel reads `limit`, which is borrowed for the call.
        if unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) } != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(limit.rlim_cur)
}

fn limit() -> io::Result<libc::rlimit> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the kernel writes `limit`, which is borrowed mutably for the call.
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(limit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_is_raised_and_never_lowered() {
        let (before, most) = (descriptor_limit().unwrap(), limit().unwrap().rlim_max);
        let raised = raise_descriptor_limit().unwrap();
        assert_eq!(raised, before.max(most.min(MOST)));
        assert_eq!(descriptor_limit().unwrap(), raised);
        assert_eq!(raise_descriptor_limit().unwrap(), raised, "there is nothing left to do");
    }
}
