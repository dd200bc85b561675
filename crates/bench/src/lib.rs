//! Benchmarks, with the rival designs as baselines.
