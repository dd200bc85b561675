//! Holds requests back while a gateway hands over: what they change would be lost.

use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::refusal::Refused;

/// The gate that each request passes which may change something.
#[derive(Clone, Debug, Default)]
pub struct Gate(Arc<RwLock<bool>>);

/// The gate is closed as long as this value exists.
#[derive(Debug)]
pub struct Closed<'g>(RwLockWriteGuard<'g, bool>);

impl Gate {
    /// Waits until all requests have been carried out that may change something, and holds others back.
    pub fn close(&self) -> Closed<'_> {
        Closed(self.0.write().unwrap_or_else(PoisonError::into_inner))
    }

    /// Waits until the gate is open. It stays so as long as the result exists.
    pub(crate) fn pass(&self) -> Result<RwLockReadGuard<'_, bool>, Refused> {
        let has_left = self.0.read().unwrap_or_else(PoisonError::into_inner);
        if *has_left {
            return Err(Refused::elsewhere());
        }
        Ok(has_left)
    }
}

impl Closed<'_> {
    /// Another process is the gateway from now on, so requests are refused here.
    pub fn leave(mut self) {
        *self.0 = true;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn requests_wait_until_the_gateway_goes_on() {
        let gate = Gate::default();
        let closed = gate.close();
        std::thread::scope(|scope| {
            let request = scope.spawn(|| gate.pass().is_ok());
            std::thread::sleep(Duration::from_millis(20));
            assert!(!request.is_finished());
            drop(closed);
            assert!(request.join().unwrap());
        });
    }

    #[test]
    fn requests_are_refused_when_it_has_left() {
        let gate = Gate::default();
        gate.close().leave();
        assert!(gate.pass().is_err());
    }
}
