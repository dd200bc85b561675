//! The connection table of a bucket and the protocol trackers.
