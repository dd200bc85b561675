//! Memory that the process has freed.

/// Returns what is free in the allocator to the system, wherever it lies.
///
/// glibc returns only the end of each arena by itself: after a burst, one block that is
/// still used keeps all that is free in front of it. Other allocators are left to their
/// own ways. It takes milliseconds, in which other threads may have to wait if they
/// allocate: not to be called on the packet path.
pub fn return_free_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY: malloc_trim(3) is thread-safe and touches only what is free.
    unsafe {
        libc::malloc_trim(0);
    }
}

#[cfg(all(test, target_env = "gnu"))]
mod tests {
    use super::*;

    #[test]
    fn what_lies_in_front_of_something_used_is_returned_too() {
        let resident = || -> usize {
            let sizes = std::fs::read_to_string("/proc/self/statm").unwrap();
            sizes.split(' ').nth(1).unwrap().parse().unwrap()
        };
        let blocks: Vec<_> = (0..32_000).map(|_| vec![1u8; 2048]).collect();
        let used = vec![1u8; 2048];
        let before = resident();
        drop(blocks);
        return_free_memory();
        let after = resident();
        assert!(after < before / 2, "{after} of {before} pages");
        drop(used);
    }
}
