//! Real clients and servers, each with a typed result.

pub(crate) mod dns;
pub(crate) mod files;
pub(crate) mod http;
pub(crate) mod iperf;
pub(crate) mod path;
