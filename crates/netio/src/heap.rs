//! The memory of the process: large blocks lie in huge pages, and free memory goes back.

mod regions;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};

use self::regions::{GRANULE, REGION, Regions, Run, WORD};

/// The largest number of regions: 32 GiB. Memory beyond comes from the system's allocator, as small
/// blocks do.
const REGIONS: usize = 16_384;
/// The smallest block in a region, in bytes. Smaller blocks come from the system's allocator. They
/// are many, and it caches them for each thread.
const SMALLEST: usize = 2 * GRANULE;
/// The largest block in a region, in bytes. Larger blocks come from the system's allocator, which
/// maps them one by one.
const LARGEST: usize = WORD * GRANULE;
/// The smallest unit in which parts of a region are returned, in bytes. The kernel's pages may be
/// larger.
const PAGE: usize = 4096;
/// A region loses its huge page, and its free pages are returned, if at least one in this many of
/// its bytes is free.
const FREE_PART: usize = 4;
/// The value of `BASE` if the addresses of regions could not be reserved.
const NO_ADDRESSES: usize = 1;

static FREE: Regions<REGIONS> = Regions::new();
/// The address of the first region; 0 before the first allocation.
static BASE: AtomicUsize = AtomicUsize::new(0);
/// One more than the number of a region that was begun but got no memory, and is tried next; 0 for
/// none.
static REFUSED: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// The first region in which this thread has found or left free granules.
    static FIRST: Cell<usize> = const { Cell::new(0) };
}

/// Allocates tables and buffers side by side in regions, for which it asks the kernel for huge
/// pages. Everything else comes from [`System`].
///
/// A processor caches the translations of a few thousand pages. A million connections take fifty
/// thousand ordinary pages. So each of a packet's two look-ups would wait for a walk through page
/// tables before it could wait for memory.
///
/// A program uses it as its `#[global_allocator]`. Threads share one map of free granules, without
/// a lock; a packet allocates nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Heap;

// SAFETY: a block comes from `System`, which keeps the contract, or is a run of granules that
// `FREE` gives to one caller until the caller gives it back. Such a run is aligned to `GRANULE` and
// so to every divisor of it. Its memory is readable and writable before `FREE` can give it away,
// and stays so. The address of a block shows which of the two it is.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        match granules(layout).and_then(take) {
            Some(block) => block,
            // SAFETY: the caller's promises are passed on.
            None => unsafe { System.alloc(layout) },
        }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        match granules(layout).and_then(take) {
            Some(block) => {
                // SAFETY: the block is new and has at least this many bytes.
                unsafe { ptr::write_bytes(block, 0, layout.size()) };
                block
            }
            // SAFETY: the caller's promises are passed on.
            None => unsafe { System.alloc_zeroed(layout) },
        }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        match run_of(block, layout) {
            Some(run) => give(run),
            // SAFETY: it is none of ours, so `System` has allocated it with this layout.
            None => unsafe { System.dealloc(block, layout) },
        }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // The caller promises that the rounded size does not overflow.
        let Ok(wanted) = Layout::from_size_align(size, layout.align()) else {
            return ptr::null_mut();
        };
        let ours = run_of(block, layout);
        match (ours, granules(wanted)) {
            // SAFETY: it is none of ours, so `System` has allocated it with this layout.
            (None, None) => unsafe { System.realloc(block, layout, size) },
            (Some(run), Some(len)) if run.len == len => block,
            _ => {
                // SAFETY: the size is not zero, as the caller promises. The old and the new block
                // do not overlap, and both have at least the copied bytes. The old one is given
                // back only after there is a new one.
                unsafe {
                    let new = self.alloc(wanted);
                    if !new.is_null() {
                        ptr::copy_nonoverlapping(block, new, layout.size().min(size));
                        self.dealloc(block, layout);
                    }
                    new
                }
            }
        }
    }
}

/// The number of granules of a block, if the regions hold blocks of this layout.
fn granules(layout: Layout) -> Option<usize> {
    let is_ours = (SMALLEST..=LARGEST).contains(&layout.size()) && layout.align() <= GRANULE;
    is_ours.then(|| layout.size().div_ceil(GRANULE))
}

/// Takes `len` granules in a row.
fn take(len: usize) -> Option<*mut u8> {
    let base = base()?;
    // The thread-local value is gone when the thread ends.
    let from = FIRST.try_with(Cell::get).unwrap_or(0);
    let run = FREE.take(len, from).or_else(|| begin(base, len))?;
    let _ = FIRST.try_with(|first| first.set(run.region));
    Some(ptr::with_exposed_provenance_mut(base + run.region * REGION + run.first * GRANULE))
}

/// The granules of a block that was allocated with this layout, if it lies in a region.
fn run_of(block: *mut u8, layout: Layout) -> Option<Run> {
    let len = granules(layout)?;
    let base = BASE.load(Ordering::Acquire);
    let at = block.addr().checked_sub(base)?;
    let is_ours = base > NO_ADDRESSES && at < REGIONS * REGION;
    is_ours.then_some(Run { region: at / REGION, first: at % REGION / GRANULE, len })
}

fn give(run: Run) {
    FREE.give(run);
    let _ = FIRST.try_with(|first| first.set(first.get().min(run.region)));
}

/// Begins another region and takes its first granules.
#[cold]
fn begin(base: usize, len: usize) -> Option<Run> {
    let region = match REFUSED.swap(0, Ordering::Relaxed) {
        0 => FREE.begin()?,
        refused => refused - 1,
    };
    let start = ptr::with_exposed_provenance_mut(base + region * REGION);
    // SAFETY: the addresses were reserved for this region and are unused: only one thread begins a
    // region or takes it from `REFUSED`. The region works without huge pages too, so a refused
    // advice does no harm.
    unsafe {
        if libc::mprotect(start, REGION, libc::PROT_READ | libc::PROT_WRITE) != 0 {
            REFUSED.store(region + 1, Ordering::Relaxed);
            return None;
        }
        libc::madvise(start, REGION, libc::MADV_HUGEPAGE);
    }
    Some(FREE.open(region, len))
}

/// The address of the first region; `None` if no addresses could be reserved.
fn base() -> Option<usize> {
    let base = match BASE.load(Ordering::Acquire) {
        0 => reserve(),
        base => base,
    };
    (base > NO_ADDRESSES).then_some(base)
}

/// Reserves the addresses of all regions, which takes no memory.
#[cold]
fn reserve() -> usize {
    const BYTES: usize = (REGIONS + 1) * REGION;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: this makes a new mapping, and the kernel chooses its place.
    let start = unsafe { libc::mmap(ptr::null_mut(), BYTES, libc::PROT_NONE, flags, -1, 0) };
    let base = match start {
        libc::MAP_FAILED => NO_ADDRESSES,
        start => start.expose_provenance().next_multiple_of(REGION),
    };
    match BASE.compare_exchange(0, base, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => base,
        Err(others) => {
            if base != NO_ADDRESSES {
                // SAFETY: the mapping was made here, and no other thread knows it.
                unsafe { libc::munmap(start, BYTES) };
            }
            others
        }
    }
}

/// Returns free memory to the system, wherever it lies.
///
/// glibc returns only the end of each arena by itself: after a burst, one used block keeps all free
/// memory in front of it. With other allocators this function returns only its own regions. It
/// takes milliseconds, in which other threads may have to wait if they allocate. So the packet path
/// must not call it.
pub fn return_free_memory() {
    // SAFETY: this asks for a constant of the system.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    let page = usize::try_from(page).map_or(REGION, |page| page.clamp(PAGE, REGION));
    if let Some(base) = base() {
        for region in 0..FREE.begun() {
            return_free(base + region * REGION, region, page);
        }
    }
    #[cfg(target_env = "gnu")]
    // SAFETY: malloc_trim(3) is thread-safe and touches only free memory.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Returns the free memory of a region. A region loses its huge page until it is nearly full or
/// empty again, because the kernel would fill a huge page again.
fn return_free(start: usize, region: usize, page: usize) {
    let taken = FREE.take_all(region);
    let free = taken.len() * GRANULE;
    let in_parts = free < REGION && free * FREE_PART >= REGION;
    let advise = |first: usize, bytes: usize, advice| {
        // SAFETY: the first advice is about how to map a region and changes no byte of it. The
        // second drops whole pages of free granules that this call has taken, so no block uses
        // them. Both lie in the addresses reserved for this region. The kernel refuses advice about
        // a region that is not open yet.
        unsafe { libc::madvise(ptr::with_exposed_provenance_mut(start + first), bytes, advice) };
    };
    advise(0, REGION, if in_parts { libc::MADV_NOHUGEPAGE } else { libc::MADV_HUGEPAGE });
    if in_parts || free == REGION {
        for stretch in taken.stretches(page / GRANULE) {
            advise(stretch.start * GRANULE, stretch.len() * GRANULE, libc::MADV_DONTNEED);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[global_allocator]
    static HEAP: Heap = Heap;

    fn resident() -> usize {
        let sizes = std::fs::read_to_string("/proc/self/statm").unwrap();
        sizes.split(' ').nth(1).unwrap().parse().unwrap()
    }

    /// This is one test, because two at once would see each other's memory.
    #[test]
    fn free_memory_is_returned_to_the_system() {
        // Free blocks in front of a used one: small ones if the allocator is known to return them,
        // and blocks in regions.
        let small = cfg!(target_env = "gnu").then_some(1500);
        for size in small.into_iter().chain([4096, 16_384]) {
            let block = || vec![1u8; size];
            let blocks: Vec<_> = (0..64_000_000 / size).map(|_| block()).collect();
            let used = block();
            let before = resident();
            drop(blocks);
            return_free_memory();
            let after = resident();
            assert!(after < before / 2, "{after} of {before} pages with blocks of {size}");
            drop(used);
        }
        // Free blocks between used ones.
        let blocks: Vec<_> = (0..4000).map(|at| vec![at as u8; 16_384]).collect();
        let before = resident();
        let kept: Vec<_> = blocks.into_iter().step_by(8).collect();
        return_free_memory();
        let after = resident();
        assert!(after < before / 2, "{after} of {before} pages");
        let is_whole =
            |(at, block): (usize, &Vec<u8>)| block.iter().all(|&it| it == (8 * at) as u8);
        assert!(kept.iter().enumerate().all(is_whole));
    }

    #[test]
    fn blocks_are_what_was_asked_for() {
        for align in [1, 64, 1024, 4096] {
            for size in [1, 2047, 2048, 2049, 16_384, 65_536, 65_537, 1 << 20] {
                let layout = Layout::from_size_align(size, align).unwrap();
                // SAFETY: the layout has a size, the test writes only inside the block, and each
                // block is given back once, with its layout.
                unsafe {
                    let dirty = HEAP.alloc(layout);
                    dirty.write_bytes(7, size);
                    HEAP.dealloc(dirty, layout);
                    let mut block = HEAP.alloc_zeroed(layout);
                    assert_eq!(block.addr() % align, 0);
                    let in_region = (2048..=65_536).contains(&size) && align <= 1024;
                    assert_eq!(run_of(block, layout).is_some(), in_region, "{layout:?}");
                    let bytes = std::slice::from_raw_parts(block, size);
                    assert!(bytes.iter().all(|&byte| byte == 0));
                    block.write_bytes(9, size);
                    let mut layout = layout;
                    for new in [1, 3000, 2049, 65_536, 70_000, 300_000, 16_000, 10] {
                        let same = layout.size().min(new).min(size);
                        block = HEAP.realloc(block, layout, new);
                        layout = Layout::from_size_align(new, align).unwrap();
                        assert_eq!(block.addr() % align, 0);
                        let bytes = std::slice::from_raw_parts(block, same);
                        assert!(bytes.iter().all(|&byte| byte == 9));
                        block.write_bytes(9, new);
                    }
                    HEAP.dealloc(block, layout);
                }
            }
        }
    }
}
