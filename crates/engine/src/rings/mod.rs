//! The ties between workers: the rings, the doorbell that wakes a worker, and the account of which
//! worker owns which bucket.

pub mod doorbell;
pub mod link;
pub mod ownership;
