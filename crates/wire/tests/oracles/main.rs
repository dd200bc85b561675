//! The dissector against other parsers, against damaged packets, and on real
//! captures.

mod captures;
mod differential;
mod etherparse_view;
mod packets;
mod robustness;
mod segments;
