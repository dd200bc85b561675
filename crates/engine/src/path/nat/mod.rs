//! Translation: the stages that change the ends of packets, and the search for free ports.

pub mod identifications;
pub mod payload_edits;
pub mod port_search;
pub mod translation;
