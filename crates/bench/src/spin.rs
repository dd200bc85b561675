//! A lock for the baselines.

use std::hint::spin_loop;
use std::sync::{Mutex, MutexGuard, TryLockError};

/// A lock that spins, as those of a kernel's packet path do.
#[derive(Debug)]
pub struct Spin<T>(Mutex<T>);

impl<T> Spin<T> {
    /// An open lock.
    pub fn new(content: T) -> Self {
        Self(Mutex::new(content))
    }

    /// Waits for the lock.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        loop {
            match self.0.try_lock() {
                Ok(guard) => return guard,
                Err(TryLockError::Poisoned(poisoned)) => return poisoned.into_inner(),
                Err(TryLockError::WouldBlock) => spin_loop(),
            }
        }
    }
}
