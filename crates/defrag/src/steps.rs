//! Counts the steps of the algorithms while tests run, so that a test can tell
//! what they cost without a clock. Otherwise it is nothing.

/// One more look at a piece, a queue, a run or a word of a bitmap.
#[inline(always)]
pub(crate) fn step() {
    #[cfg(test)]
    COUNT.with(|count| count.set(count.get() + 1));
}

#[cfg(test)]
thread_local! {
    static COUNT: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

/// The steps that `act` takes.
#[cfg(test)]
pub(crate) fn steps_of<T>(act: impl FnOnce() -> T) -> (T, u64) {
    let before = COUNT.get();
    let result = act();
    (result, COUNT.get() - before)
}
