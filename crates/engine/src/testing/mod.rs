//! Fixtures for the tests of all rooms: one worker, or several with their rings.

pub mod cable;
pub mod captures;
pub mod control_connection;
pub mod line;
pub mod many_workers;
pub mod one_worker;
pub mod pair;
pub mod router;
pub mod rules;
pub mod syn_proxy;
pub mod tunnels;
pub mod twins;
