//! Host settings.
