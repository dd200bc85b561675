//! The ties between workers: the rings, and the account of which worker owns which bucket.

pub mod link;
pub mod ownership;
