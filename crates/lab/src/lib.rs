//! Network-namespace labs with real programs and the real kernel as peer.
