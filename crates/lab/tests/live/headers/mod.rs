//! What a router does with headers that attackers make: options, and sources that are not their
//! own. The kernel that forwards in the same namespace is the model.

mod forged;
mod hairpin;
mod options;
mod player;
mod sources;
