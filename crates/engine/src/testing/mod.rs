//! Fixtures for the tests of all rooms: one worker, or several with their rings. Tests of other crates
//! get the cable, by the feature `testing`.

pub mod cable;
#[cfg(test)]
pub mod captures;
#[cfg(test)]
pub mod control_connection;
pub mod line;
#[cfg(test)]
pub mod many_workers;
#[cfg(test)]
pub mod one_worker;
#[cfg(test)]
pub mod pair;
#[cfg(test)]
pub mod router;
#[cfg(test)]
pub mod rules;
#[cfg(test)]
pub mod syn_proxy;
#[cfg(test)]
pub mod tunnels;
#[cfg(test)]
pub mod twins;
