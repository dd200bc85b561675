//! As whom this process acts.

/// The number of the user whose rights this process has.
pub fn user_id() -> u32 {
    // SAFETY: no memory is passed, and the call can not fail.
    unsafe { libc::geteuid() }
}
