//! Prefetching of cache lines.

/// Fetches the cache line of a value ahead of its use.
///
/// The instruction needs an unsafe call in Rust. So the crates with look-ups take the prefetch
/// as an argument: `netio` has the real one, and [`NoPrefetch`] serves tests and machines
/// without one. A prefetch never changes a result.
pub trait Prefetch: Copy {
    /// Asks for the line that holds the start of `at`.
    fn prefetch<T>(self, at: &T);
}

/// Does nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoPrefetch;

impl Prefetch for NoPrefetch {
    fn prefetch<T>(self, _at: &T) {}
}
