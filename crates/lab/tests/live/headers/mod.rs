//! The router's treatment of headers that attackers make: options, and spoofed sources. The
//! kernel's forwarding in the same namespace is the model.

mod forged;
mod hairpin;
mod options;
mod player;
mod sources;
