//! For tests: counts the packets that take the quick check.

use std::cell::Cell;

thread_local! {
    static PACKETS: Cell<u64> = const { Cell::new(0) };
}

/// Notes a packet that takes it.
pub fn note() {
    PACKETS.set(PACKETS.get() + 1);
}

/// The number of packets since the thread began.
pub fn packets() -> u64 {
    PACKETS.get()
}
