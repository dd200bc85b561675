//! The prefetch instruction.

/// Asks the processor to bring the cache line that holds the start of `at` into
/// the first-level cache. It is a hint: it changes nothing a program can see and
/// does nothing on a processor without a stable intrinsic for it.
#[inline(always)]
pub fn prefetch_line<T: ?Sized>(at: &T) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch never faults and never changes memory, whatever the
        // address; SSE, which it needs, is part of every x86_64 processor.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(at).cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}
