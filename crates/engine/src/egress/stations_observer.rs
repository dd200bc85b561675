//! For tests: counts the entries that the table looks at.

use std::cell::Cell;

thread_local! {
    static STEPS: Cell<u64> = const { Cell::new(0) };
}

/// Notes a look at an entry.
pub fn note() {
    STEPS.set(STEPS.get() + 1);
}

/// The number of looks since the thread began.
pub fn steps() -> u64 {
    STEPS.get()
}
