//! The prefetch instruction for the crates that may not use unsafe code.

use flow::Prefetch;

/// [`Prefetch`] with the machine's instruction.
#[derive(Clone, Copy, Debug, Default)]
pub struct Hardware;

impl Prefetch for Hardware {
    #[inline(always)]
    fn prefetch<T>(self, at: &T) {
        netio::prefetch_line(at);
    }
}
