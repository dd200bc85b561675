//! The control API over a unix socket.
