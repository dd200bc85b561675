//! Workers, pipeline, rings, bucket moves, statistics.
