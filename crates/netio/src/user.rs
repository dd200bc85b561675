//! The user of this process.

/// The effective user of this process.
pub fn user_id() -> u32 {
    // SAFETY: no memory is passed, and the call can not fail.
    unsafe { libc::geteuid() }
}
