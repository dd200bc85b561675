//! The `stateway` binary.
fn main() {}
