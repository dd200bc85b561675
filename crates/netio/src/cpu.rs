//! CPUs, threads and large pages.

use std::ffi::CString;
use std::io;

/// Words of a CPU mask: room for 8192 CPUs, the most a Linux kernel can be built for.
const MASK_WORDS: usize = 8192 / u64::BITS as usize;

/// Binds the calling thread to `cpu`.
///
/// # Errors
/// Invalid input when `cpu` does not exist, is offline, or is not among the CPUs
/// that the process was confined to (cpuset).
pub fn pin_current_thread(cpu: usize) -> io::Result<()> {
    let mut mask = [0_u64; MASK_WORDS];
    let word = mask.get_mut(cpu / 64).ok_or_else(|| {
        io::Error::new(io::ErrorKind::InvalidInput, format!("there is no CPU {cpu}"))
    })?;
    *word |= 1 << (cpu % 64);
    // SAFETY: the kernel reads `size_of_val(&mask)` bytes of `mask`; 0 is the
    // calling thread.
    let result = unsafe { libc::sched_setaffinity(0, size_of_val(&mask), mask.as_ptr().cast()) };
    if result == 0 {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    Err(io::Error::new(
        error.kind(),
        format!("cannot bind a thread to CPU {cpu}: {error}; allowed are {:?}", allowed_cpus()),
    ))
}

/// The CPU on which the calling thread runs. A thread that is not bound may run on another one by
/// the time that this returns. `None` if the system does not say.
pub fn current() -> Option<u32> {
    // SAFETY: it takes no arguments and returns a number.
    u32::try_from(unsafe { libc::sched_getcpu() }).ok()
}

/// The CPUs that the process may use, ascending. These are the main thread's, so that the answer
/// does not depend on where other threads were bound.
///
/// # Errors
/// The system's error; none is expected.
pub fn allowed_cpus() -> io::Result<Vec<usize>> {
    thread_cpus(std::process::id())
}

/// The CPUs that a thread of this PID namespace may use, ascending.
///
/// # Errors
/// The system's error, if there is no such thread.
pub fn thread_cpus(thread: u32) -> io::Result<Vec<usize>> {
    let thread = i32::try_from(thread).map_err(io::Error::other)?;
    let mut mask = [0_u64; MASK_WORDS];
    // SAFETY: the kernel writes at most `size_of_val(&mask)` bytes to `mask`.
    let result =
        unsafe { libc::sched_getaffinity(thread, size_of_val(&mask), mask.as_mut_ptr().cast()) };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    let is_set = |cpu: &usize| mask[cpu / 64] >> (cpu % 64) & 1 == 1;
    Ok((0..MASK_WORDS * 64).filter(is_set).collect())
}

/// Lets a thread of this PID namespace use these CPUs only.
///
/// # Errors
/// The system's error: there is no such thread, none of the CPUs is online, or this process may not
/// do that.
pub fn set_thread_cpus(thread: u32, cpus: impl IntoIterator<Item = usize>) -> io::Result<()> {
    let thread = i32::try_from(thread).map_err(io::Error::other)?;
    let mut mask = [0_u64; MASK_WORDS];
    for cpu in cpus {
        let word = mask.get_mut(cpu / 64).ok_or(io::ErrorKind::InvalidInput)?;
        *word |= 1 << (cpu % 64);
    }
    // SAFETY: the kernel reads `size_of_val(&mask)` bytes of `mask`.
    let result =
        unsafe { libc::sched_setaffinity(thread, size_of_val(&mask), mask.as_ptr().cast()) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The CPUs that are switched on, ascending (`/sys/devices/system/cpu/online`).
///
/// # Errors
/// The system's error when sysfs is not mounted; invalid data when the file holds no CPU list.
pub fn online_cpus() -> io::Result<Vec<usize>> {
    const ONLINE: &str = "/sys/devices/system/cpu/online";
    let list = std::fs::read_to_string(ONLINE)?;
    cpu_list(list.trim()).ok_or_else(|| {
        io::Error::new(io::ErrorKind::InvalidData, format!("{ONLINE}: {list:?} is no CPU list"))
    })
}

/// The kernel's list format: numbers and ranges, separated by commas.
fn cpu_list(list: &str) -> Option<Vec<usize>> {
    let mut cpus = Vec::new();
    for part in list.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        if first > last || last >= MASK_WORDS * 64 {
            return None;
        }
        cpus.extend(first..=last);
    }
    Some(cpus)
}

/// Names the calling thread for `top`, `perf` and debuggers. The kernel keeps 15
/// bytes; the rest, and all from a zero byte on, is cut off.
pub fn name_current_thread(name: &str) {
    const KEPT: usize = 15;
    let kept: Vec<u8> = name.bytes().take_while(|&byte| byte != 0).take(KEPT).collect();
    let Ok(name) = CString::new(kept) else { return };
    // SAFETY: `name` is a terminated string that lives through the call.
    unsafe { libc::prctl(libc::PR_SET_NAME, name.as_ptr()) };
}

/// Asks for huge pages under `memory`, for a table with random access. This is worth it from
/// several MiB on, before the memory is first touched. Returns whether the kernel took the advice;
/// only speed depends on it.
pub fn advise_huge_pages<T>(memory: &[T]) -> bool {
    // The largest ordinary page of Linux, because the range must begin at a page.
    const PAGE_BYTES: usize = 64 << 10;
    let range = memory.as_ptr_range();
    let start = range.start.addr().next_multiple_of(PAGE_BYTES);
    let end = range.end.addr() / PAGE_BYTES * PAGE_BYTES;
    if start >= end {
        return false;
    }
    let start = range.start.with_addr(start);
    // SAFETY: the range lies within `memory`, which is mapped, and this advice
    // changes the size of pages, never their content or protection.
    let result =
        unsafe { libc::madvise(start.cast_mut().cast(), end - start.addr(), libc::MADV_HUGEPAGE) };
    result == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn binding_a_thread_leaves_the_process_as_it_was() {
        let allowed = allowed_cpus().unwrap();
        assert!(!allowed.is_empty());
        let cpus = allowed.clone();
        std::thread::spawn(move || {
            for cpu in cpus {
                pin_current_thread(cpu).unwrap();
                // SAFETY: no memory is passed.
                assert_eq!(unsafe { libc::sched_getcpu() }, cpu as i32);
            }
        })
        .join()
        .unwrap();
        assert_eq!(allowed_cpus().unwrap(), allowed);
    }

    #[test]
    fn a_cpu_that_does_not_exist_is_named() {
        for cpu in [8191, 8192, usize::MAX] {
            assert!(pin_current_thread(cpu).unwrap_err().to_string().contains(&cpu.to_string()));
        }
    }

    #[test]
    fn online_contains_allowed() {
        let online = online_cpus().unwrap();
        assert!(allowed_cpus().unwrap().iter().all(|cpu| online.contains(cpu)));
    }

    #[test]
    fn cpu_lists() {
        assert_eq!(cpu_list("0-2,5,7-7"), Some(vec![0, 1, 2, 5, 7]));
        for bad in ["", "x", "3-1", "1,", "0-99999999", "-1", "1-2-3"] {
            assert_eq!(cpu_list(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn threads_have_names() {
        std::thread::spawn(|| {
            name_current_thread("worker-0-of-a-long-name");
            let name = std::fs::read_to_string("/proc/thread-self/comm").unwrap();
            assert_eq!(name.trim_end(), "worker-0-of-a-l");
        })
        .join()
        .unwrap();
    }

    #[test]
    fn the_cpus_of_another_thread_can_be_changed() {
        let (tell, told) = std::sync::mpsc::channel();
        let (end, ends) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            // SAFETY: it takes no arguments and returns a number.
            tell.send(unsafe { libc::gettid() }.cast_unsigned()).unwrap();
            let _ = ends.recv();
        });
        let id = told.recv().unwrap();
        let last = *allowed_cpus().unwrap().last().unwrap();
        set_thread_cpus(id, [last]).unwrap();
        assert_eq!(thread_cpus(id).unwrap(), [last]);
        assert!(set_thread_cpus(id, []).is_err());
        assert!(set_thread_cpus(id, [usize::MAX]).is_err());
        drop(end);
        thread.join().unwrap();
    }

    #[test]
    fn advice_keeps_the_content() {
        let memory = vec![7_u64; 1 << 20];
        advise_huge_pages(&memory);
        assert!(memory.iter().all(|&word| word == 7));
        assert!(!advise_huge_pages(&memory[..8]));
        assert!(!advise_huge_pages::<u8>(&[]));
    }
}
