//! Counts the steps of the algorithms in tests, so that a test can measure cost without a
//! clock. Outside of tests it does nothing.

/// Counts one more visit to a fragment, a queue, a run or a word of a bitmap.
#[inline(always)]
pub(crate) fn step() {
    #[cfg(test)]
    COUNT.with(|count| count.set(count.get() + 1));
}

#[cfg(test)]
thread_local! {
    static COUNT: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

/// The number of steps that `act` takes.
#[cfg(test)]
pub(crate) fn steps_of<T>(act: impl FnOnce() -> T) -> (T, u64) {
    let before = COUNT.get();
    let result = act();
    (result, COUNT.get() - before)
}
